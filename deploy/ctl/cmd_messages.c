/* shinectl: send, watch, history. Bodies are plain UTF-8 behind a zero byte, as all our own tools
 * agree. */
#include "deploy/ctl/client.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dm/key.h"
#include "util/base64.h"
#include "util/buf.h"
#include "util/clock.h"
#include "util/mem.h"

#define TEXT_MAX 65535 /* with the zero byte: limits.clientBodyBytes */

/* The text argument, or all of stdin for "-". NULL if it is empty or too long. */
static uint8_t *body_read(const char *word, size_t *len)
{
    struct buf b;
    buf_init(&b, TEXT_MAX + 1);
    bool ok = buf_append(&b, "", 1);
    if (strcmp(word, "-") != 0) {
        ok = ok && buf_append(&b, word, strlen(word));
    } else {
        char chunk[4096];
        size_t n;
        while (ok && (n = fread(chunk, 1, sizeof chunk, stdin)) > 0)
            ok = buf_append(&b, chunk, n);
    }
    *len = buf_len(&b);
    uint8_t *body = ok && *len > 1 ? (uint8_t *)xmemdup0(buf_head(&b), *len) : NULL;
    buf_free(&b);
    return body;
}

static char *copy_build(struct dm_container *c, enum dm_type type, const uint8_t seed[DM_KEY_BYTES])
{
    c->type = type;
    size_t n = dm_container_len(c);
    uint8_t *bytes = xmalloc(n);
    char *text = dm_build(c, seed, bytes) == DM_OK ? base64_encode_new(bytes, n) : NULL;
    free(bytes);
    return text;
}

/* The signed pair as the payload of SendMessagePair, or NULL after a message. */
static json_t *pair_build(struct ctl *c, const uint8_t seed[DM_KEY_BYTES])
{
    struct dm_container m = {.time_ms = clock_wall_ms(), .nonce = randombytes_random()};
    const char *from = ctl_option(c, "from", 0), *to = ctl_option(c, "to", 0);
    if (!from || !to || !dm_login_valid(from) || !dm_login_valid(to)) {
        ctl_fail(CTL_USAGE, "--from LOGIN and --to LOGIN are needed ([a-z0-9_], 1 to 30)");
        return NULL;
    }
    uint8_t *body = body_read(c->words[0], &m.body_len);
    if (!body) {
        ctl_fail(CTL_USAGE, "the text must have 1 to %d bytes", TEXT_MAX);
        return NULL;
    }
    snprintf(m.from, sizeof m.from, "%s", from);
    snprintf(m.to, sizeof m.to, "%s", to);
    m.body = body;
    char *in = copy_build(&m, DM_TEXT_IN, seed), *out = copy_build(&m, DM_TEXT_OUT, seed);
    json_t *payload =
        in && out ? json_pack("{s:s, s:s}", "incomingBlobB64", in, "outgoingBlobB64", out) : NULL;
    if (!payload)
        ctl_fail(CTL_CONFIG, "the message could not be built");
    free(in);
    free(out);
    free(body);
    return payload;
}

static const char *text_of(const json_t *payload, const char *name)
{
    const char *s = json_string_value(json_object_get(payload, name));
    return s ? s : "";
}

int cmd_send(struct ctl *c)
{
    uint8_t seed[DM_KEY_BYTES], key[DM_KEY_BYTES];
    struct ctl_client *k;
    struct rpc_answer a;
    const char *file = ctl_option(c, "key", 0);
    if (!file)
        return ctl_fail(CTL_USAGE, "--key FILE is needed (see shinectl keygen)");
    int code = ctl_read_key(file, seed, key);
    if (code != CTL_OK)
        return code;
    json_t *payload = pair_build(c, seed);
    sodium_memzero(seed, sizeof seed);
    if (!payload)
        return CTL_USAGE;
    code = ctl_client_open(c, NULL, NULL, &k);
    if (code != CTL_OK) {
        json_decref(payload);
        return code;
    }
    code = ctl_client_call(k, "SendMessagePair", payload, &a);
    if (code == CTL_OK) {
        const char *state = text_of(a.payload, "deliveryState");
        if (strcmp(state, "failed") == 0)
            code = CTL_FAILED;
        if (c->json)
            ctl_print_json(json_deep_copy(a.payload));
        else
            printf("%s  %s\n", state, text_of(a.payload, "outgoingKey"));
        rpc_answer_free(&a);
    }
    ctl_client_close(k);
    return code;
}

/* One message as a line: time, who to whom, what, how far. Texts that are not plain are shown by
 * their size. */
static void message_print(const json_t *m)
{
    char when[32];
    const char *b64 = text_of(m, "blobB64"), *state = text_of(m, "deliveryState");
    uint8_t *blob = xmalloc(base64_decoded_max(strlen(b64)));
    size_t n;
    struct dm_container c;
    ctl_time_text(json_integer_value(json_object_get(m, "timeMs")), when);
    printf("%s  %s → %s  ", when, text_of(m, "fromLogin"), text_of(m, "toLogin"));
    if (!base64_decode(b64, strlen(b64), blob, &n) || dm_parse(blob, n, &c) != DM_OK)
        printf("(unreadable)");
    else if (c.body[0] == 0)
        ctl_print_text((const char *)c.body + 1, c.body_len - 1);
    else
        printf("(encrypted, %zu bytes)", c.body_len);
    if (json_integer_value(json_object_get(m, "revisionTimeMs")) > 0)
        printf("  (edited)");
    printf("%s%s%s\n", *state ? "  [" : "", state, *state ? "]" : "");
    fflush(stdout);
    free(blob);
}

struct watch {
    struct ctl *ctl;
    int64_t left; /* events still to show; 0 = no limit */
    bool limited, done;
};

static void on_watch_event(void *ctx, const char *op, const json_t *payload)
{
    struct watch *w = ctx;
    if (w->done)
        return;
    if (w->ctl->json) {
        ctl_print_json(json_pack("{s:s, s:O}", "op", op, "payload", payload));
    } else if (strcmp(op, "IncomingDirectMessage") == 0) {
        if (json_is_true(json_object_get(payload, "deleted")))
            printf("(deleted)  %s\n", text_of(payload, "messageKey"));
        else
            message_print(payload);
    } else if (strcmp(op, "DmDeliveryStateChanged") == 0) {
        printf("%s  %s\n", text_of(payload, "deliveryState"), text_of(payload, "outgoingKey"));
    } else {
        printf("(%s)\n", op);
    }
    fflush(stdout);
    if (w->limited && --w->left == 0)
        w->done = true;
}

int cmd_watch(struct ctl *c)
{
    struct watch w = {.ctl = c};
    struct ctl_client *k;
    int64_t seconds;
    if (!ctl_option_int(c, "count", 1, 1000000000, 0, &w.left) ||
        !ctl_option_int(c, "timeout", 1, 86400 * 365, 0, &seconds))
        return CTL_USAGE;
    w.limited = w.left > 0;
    int code = ctl_client_open(c, on_watch_event, &w, &k);
    if (code != CTL_OK)
        return code;
    code = ctl_client_login(k, "watch");
    if (code == CTL_OK) {
        fprintf(stderr, "watching %s\n", ctl_option(c, "login", 0));
        code = ctl_client_run(k, &w.done, (uint64_t)seconds * 1000);
        if (code == CTL_OK && w.limited && !w.done)
            code = ctl_fail(CTL_REFUSED, "time is up, %" PRId64 " events short", w.left);
    }
    ctl_client_close(k);
    return code;
}

int cmd_history(struct ctl *c)
{
    struct ctl_client *k;
    struct rpc_answer a;
    int64_t limit;
    const char *with = ctl_option(c, "with", 0);
    if (!with)
        return ctl_fail(CTL_USAGE, "--with LOGIN is needed");
    if (!ctl_option_int(c, "limit", 1, 200, 20, &limit))
        return CTL_USAGE;
    int code = ctl_client_open(c, NULL, NULL, &k);
    if (code != CTL_OK)
        return code;
    code = ctl_client_login(k, "history");
    if (code == CTL_OK)
        code = ctl_client_call(
            k, "GetDirectMessages",
            json_pack("{s:s, s:I}", "withLogin", with, "limit", (json_int_t)limit), &a);
    if (code == CTL_OK) {
        if (c->json) {
            ctl_print_json(json_deep_copy(a.payload));
        } else {
            const json_t *items = json_object_get(a.payload, "items");
            for (size_t i = json_array_size(items); i-- > 0;)
                message_print(json_array_get(items, i));
            if (json_is_true(json_object_get(a.payload, "hasMore")))
                fprintf(stderr, "(there are older messages)\n");
        }
        rpc_answer_free(&a);
    }
    ctl_client_close(k);
    return code;
}
