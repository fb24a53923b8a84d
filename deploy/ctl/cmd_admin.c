/* shinectl: schema, keys, servers, delivery state. Everything here goes to the database. */
#include "deploy/ctl/ctl.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "db/migrate.h"
#include "dm/key.h"
#include "net/ws.h"
#include "store/delivery.h"
#include "store/users.h"
#include "util/base64.h"
#include "util/mem.h"

static void note_file(void *ctx, const char *name)
{
    struct ctl *c = ctx;
    if (!c->json)
        printf("applied %s\n", name);
}

int cmd_migrate(struct ctl *c)
{
    const char *conninfo = config_str(c->config, "db.conninfo");
    char *error = NULL;
    if (!db_migrate(conninfo, note_file, c, &error)) {
        int code = ctl_fail(CTL_DATABASE, "%s", error);
        free(error);
        return code;
    }
    if (c->json)
        ctl_print_json(json_pack("{s:s}", "version", db_schema_needed()));
    else
        printf("schema is at version %s\n", db_schema_needed());
    return CTL_OK;
}

int cmd_keygen(struct ctl *c)
{
    uint8_t seed[DM_KEY_BYTES], key[DM_KEY_BYTES];
    char secret_text[64], public_text[64];
    randombytes_buf(seed, sizeof seed);
    dm_public_key(seed, key);
    sodium_bin2base64(secret_text, sizeof secret_text, seed, sizeof seed,
                      sodium_base64_VARIANT_ORIGINAL);
    base64_encode(key, sizeof key, public_text);
    if (c->json)
        ctl_print_json(json_pack("{s:s, s:s}", "secret", secret_text, "public", public_text));
    else
        printf("secret %s\npublic %s\n", secret_text, public_text);
    sodium_memzero(seed, sizeof seed);
    sodium_memzero(secret_text, sizeof secret_text);
    return CTL_OK;
}

/* --- servers --- */

struct wait {
    bool done;
    enum db_status st;
    bool found;
    enum store_release release;
    json_t *json;
};

static void on_server_added(void *ctx, enum db_status st)
{
    struct wait *w = ctx;
    w->st = st;
    w->done = true;
}

int cmd_server_add(struct ctl *c)
{
    struct wait w = {0};
    uint8_t key_bytes[DM_KEY_BYTES];
    struct ws_url parsed;
    const char *url = ctl_option(c, "url", 0), *key = ctl_option(c, "key", 0);
    if (!url || !ws_url_parse(url, &parsed))
        return ctl_fail(CTL_USAGE, "--url takes wss://host[:port]/path");
    if (!ctl_server_login_valid(c->words[0]))
        return ctl_fail(CTL_USAGE, "%s is not a server login", c->words[0]);
    if (key && !base64_decode_exact(key, key_bytes, sizeof key_bytes))
        return ctl_fail(CTL_USAGE, "--key takes the Base64 of 32 bytes");
    int code = ctl_store(c);
    if (code != CTL_OK)
        return code;
    store_add_server(c->store, c->words[0], url, key, on_server_added, &w);
    (void)ctl_wait(c, &w.done, 0);
    code = ctl_db_result(w.st);
    if (code != CTL_OK)
        return code;
    if (c->json)
        ctl_print_json(json_pack("{s:s, s:s}", "serverLogin", c->words[0], "url", url));
    else
        printf("server %s is at %s\n", c->words[0], url);
    return CTL_OK;
}

/* --- delivery --- */

static void on_delivery_row(void *ctx, enum db_status st, const struct store_text_row *row)
{
    struct wait *w = ctx;
    w->st = st;
    w->found = row && row->n > 0;
    w->done = true;
    if (!w->found)
        return;
    w->json = json_object();
    for (size_t i = 0; i < row->n; i++)
        json_object_set_new(w->json, row->names[i],
                            row->values[i] ? json_string(row->values[i]) : json_null());
}

static void on_delivery_released(void *ctx, enum db_status st, enum store_release verdict)
{
    struct wait *w = ctx;
    w->st = st;
    w->release = verdict;
    w->done = true;
}

/* The message key of a command line, and the database. CTL_OK, or an exit code after a message. */
static int key_and_store(struct ctl *c, struct dm_key *key)
{
    if (!dm_key_parse(c->words[0], key))
        return ctl_fail(CTL_USAGE, "%s is not a message key (from|to|timeMs|nonce|type)",
                        c->words[0]);
    return ctl_store(c);
}

int cmd_delivery_release(struct ctl *c)
{
    struct wait w = {0};
    struct dm_key key;
    int code = key_and_store(c, &key);
    if (code != CTL_OK)
        return code;
    store_delivery_release(c->store, &key, on_delivery_released, &w);
    (void)ctl_wait(c, &w.done, 0);
    code = ctl_db_result(w.st);
    if (code != CTL_OK)
        return code;
    if (w.release == STORE_RELEASE_NO_ROW)
        return ctl_fail(CTL_REFUSED, "no delivery row for this message here");
    bool released = w.release == STORE_RELEASED;
    if (c->json)
        ctl_print_json(json_pack("{s:b}", "released", released));
    else
        printf("%s\n", released ? "released: due at once" : "it is not set aside; nothing changed");
    return CTL_OK;
}

int cmd_delivery_show(struct ctl *c)
{
    struct wait w = {0};
    struct dm_key key;
    int code = key_and_store(c, &key);
    if (code != CTL_OK)
        return code;
    store_delivery_show(c->store, &key, on_delivery_row, &w);
    (void)ctl_wait(c, &w.done, 0);
    code = ctl_db_result(w.st);
    if (code != CTL_OK)
        return code;
    if (!w.found)
        return ctl_fail(CTL_REFUSED, "no delivery row for this message here");
    if (c->json) {
        ctl_print_json(w.json);
        return CTL_OK;
    }
    const char *name;
    json_t *value;
    json_object_foreach(w.json, name, value)
        printf("%-18s %s\n", name, json_is_string(value) ? json_string_value(value) : "-");
    json_decref(w.json);
    return CTL_OK;
}
