/* shinectl: what a user writes. send, edit, read, delete. The signature is the authorisation: no
 * session is needed. */
#include "deploy/ctl/client.h"
#include "deploy/ctl/compose.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "util/clock.h"

static int key_read(const struct ctl *c, uint8_t seed[DM_KEY_BYTES])
{
    uint8_t key[DM_KEY_BYTES];
    const char *file = ctl_option(c, "key", 0);
    if (!file)
        return ctl_fail(CTL_USAGE, "--key FILE is needed (see shinectl keygen)");
    return ctl_read_key(file, seed, key);
}

/* A login given as option `name`; NULL after a message. */
static const char *login_option(const struct ctl *c, const char *name)
{
    const char *login = ctl_option(c, name, 0);
    if (login && dm_login_valid(login))
        return login;
    ctl_fail(CTL_USAGE, "--%s LOGIN is needed ([a-z0-9_], 1 to 30)", name);
    return NULL;
}

/* Send one request (payload consumed) and tell how far it got. */
static int submit(struct ctl_client *k, const struct ctl *c, const char *op, json_t *payload)
{
    struct rpc_answer a;
    int code = ctl_client_call(k, op, payload, &a);
    if (code != CTL_OK)
        return code;
    const char *state = ctl_json_text(a.payload, "deliveryState");
    if (strcmp(state, "failed") == 0)
        code = CTL_FAILED;
    if (c->json) {
        ctl_print_json(json_deep_copy(a.payload));
    } else {
        ctl_print_string(stdout, state);
        printf("  ");
        ctl_print_string(stdout, ctl_json_text(a.payload, "outgoingKey"));
        printf("\n");
    }
    rpc_answer_free(&a);
    return code;
}

/* The same on a connection of its own. */
static int submit_once(struct ctl *c, const char *op, json_t *payload)
{
    struct ctl_client *k;
    if (!payload)
        return CTL_USAGE;
    int code = ctl_client_open(c, NULL, NULL, &k);
    if (code != CTL_OK) {
        json_decref(payload);
        return code;
    }
    code = submit(k, c, op, payload);
    ctl_client_close(k);
    return code;
}

int cmd_send(struct ctl *c)
{
    uint8_t seed[DM_KEY_BYTES];
    int code = key_read(c, seed);
    if (code != CTL_OK)
        return code;
    const char *from = login_option(c, "from"), *to = from ? login_option(c, "to") : NULL;
    json_t *payload = NULL;
    if (to) {
        struct ctl_stamp m = ctl_stamp_now(from, to);
        payload = ctl_text_pair(&m, c->words[0], seed);
    }
    sodium_memzero(seed, sizeof seed);
    return submit_once(c, "SendMessagePair", payload);
}

int cmd_edit(struct ctl *c)
{
    uint8_t seed[DM_KEY_BYTES];
    struct dm_key key;
    int code = ctl_text_key(c->words[0], &key);
    if (code == CTL_OK)
        code = key_read(c, seed);
    if (code != CTL_OK)
        return code;
    struct ctl_stamp m = {.from = key.from,
                          .to = key.to,
                          .time_ms = key.time_ms,
                          .nonce = key.nonce,
                          .revision_time_ms = clock_wall_ms()};
    json_t *payload = ctl_text_pair(&m, c->words[1], seed);
    sodium_memzero(seed, sizeof seed);
    return submit_once(c, "SendMessagePair", payload);
}

int cmd_read(struct ctl *c)
{
    uint8_t seed[DM_KEY_BYTES];
    struct dm_key key;
    int code = ctl_text_key(c->words[0], &key);
    if (code == CTL_OK)
        code = key_read(c, seed);
    if (code != CTL_OK)
        return code;
    struct ctl_stamp m = ctl_stamp_now(key.to, key.from); /* the reader writes to the author */
    struct dm_receipt r = {
        .ref_time_ms = key.time_ms, .ref_nonce = key.nonce, .read_at_ms = m.time_ms};
    json_t *payload = ctl_receipt_pair(&m, &r, seed);
    sodium_memzero(seed, sizeof seed);
    return submit_once(c, "SendMessagePair", payload);
}

/* --- delete --- */

static int delete_message(struct ctl *c, const char *from, const uint8_t seed[DM_KEY_BYTES])
{
    struct dm_key key;
    if (c->n_words != 1 || ctl_option(c, "until", 0))
        return ctl_fail(CTL_USAGE, "delete takes a message key, or --conversation --to LOGIN");
    int code = ctl_text_key(c->words[0], &key);
    if (code != CTL_OK)
        return code;
    bool by_to = strcmp(key.from, from) != 0;
    const char *other = by_to ? key.from : key.to, *to = ctl_option(c, "to", 0);
    if ((by_to && strcmp(key.to, from) != 0) || (to && strcmp(to, other) != 0))
        return ctl_fail(CTL_USAGE, "%s is not a message between these two", c->words[0]);
    struct ctl_stamp m = ctl_stamp_now(from, other);
    struct dm_delete d = {.by_to = by_to, .ref_time_ms = key.time_ms, .ref_nonce = key.nonce};
    return submit_once(c, "DeleteMessage", ctl_delete(&m, &d, !ctl_flag(c, "for-me"), seed));
}

/* The server refuses to delete what is still to come, by its own clock: where ours is ahead, up to
 * now means its now. */
static int until_now(struct ctl_client *k, int64_t *until)
{
    struct rpc_answer a;
    int code = ctl_client_call(k, "Ping", json_object(), &a);
    if (code != CTL_OK)
        return code;
    int64_t theirs = json_integer_value(json_object_get(a.payload, "ts"));
    if (theirs > 0 && theirs < *until)
        *until = theirs;
    rpc_answer_free(&a);
    return CTL_OK;
}

static int delete_conversation(struct ctl *c, const char *from, const uint8_t seed[DM_KEY_BYTES])
{
    struct ctl_client *k;
    struct dm_clear d;
    if (c->n_words != 0)
        return ctl_fail(CTL_USAGE, "--conversation takes --to LOGIN, and no message key");
    const char *to = login_option(c, "to");
    if (!to || !ctl_option_int(c, "until", 0, DM_INT_MAX, -1, &d.until_time_ms))
        return CTL_USAGE;
    struct ctl_stamp m = ctl_stamp_now(from, to);
    int code = ctl_client_open(c, NULL, NULL, &k);
    if (code != CTL_OK)
        return code;
    if (d.until_time_ms < 0) {
        d.until_time_ms = m.time_ms;
        code = until_now(k, &d.until_time_ms);
    }
    json_t *payload = code == CTL_OK ? ctl_clear(&m, &d, !ctl_flag(c, "for-me"), seed) : NULL;
    if (payload)
        code = submit(k, c, "DeleteConversation", payload);
    else if (code == CTL_OK)
        code = CTL_USAGE;
    ctl_client_close(k);
    return code;
}

int cmd_delete(struct ctl *c)
{
    uint8_t seed[DM_KEY_BYTES];
    const char *from = login_option(c, "from");
    if (!from)
        return CTL_USAGE;
    int code = key_read(c, seed);
    if (code != CTL_OK)
        return code;
    code = ctl_flag(c, "conversation") ? delete_conversation(c, from, seed)
                                       : delete_message(c, from, seed);
    sodium_memzero(seed, sizeof seed);
    return code;
}
