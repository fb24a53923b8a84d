/*
 * shinectl: users. add, show and set-servers go to the database; profile signs like the user and
 * goes to a server.
 */
#include "deploy/ctl/client.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "directory/profile.h"
#include "util/base64.h"
#include "util/clock.h"
#include "util/mem.h"

/* --- users --- */

struct user_wait {
    struct ctl *ctl;
    bool done;
    enum db_status st;
    enum store_add verdict;
    bool found;
    json_t *json;
};

/* Running daemons may remember the user, and hear of the change before this program ends. A hint
 * that fails is no failure: they forget by themselves after a while. */
static void on_told(void *ctx, enum db_status st)
{
    struct user_wait *w = ctx;
    (void)st;
    w->done = true;
}

static void on_user_added(void *ctx, enum db_status st, enum store_add verdict)
{
    struct user_wait *w = ctx;
    w->st = st;
    w->verdict = verdict;
    if (st == DB_OK && verdict == STORE_ADDED)
        store_tell_user_changed(w->ctl->store, w->ctl->words[0], on_told, w);
    else
        w->done = true;
}

int cmd_user_add(struct ctl *c)
{
    struct store_user u = {0};
    struct user_wait w = {.ctl = c};
    const char *key = ctl_option(c, "client-key", 0);
    if (!dm_login_valid(c->words[0]))
        return ctl_fail(CTL_USAGE, "%s is not a login ([a-z0-9_], 1 to 30)", c->words[0]);
    if (!key || !base64_decode_exact(key, u.client_key, sizeof u.client_key))
        return ctl_fail(CTL_USAGE,
                        "--client-key takes the Base64 of 32 bytes (see shinectl keygen)");
    int code = ctl_access_servers(c, u.servers, &u.n_servers);
    if (code == CTL_OK)
        code = ctl_store(c);
    if (code != CTL_OK)
        return code;
    snprintf(u.login, sizeof u.login, "%s", c->words[0]);
    store_add_user(c->store, &u, on_user_added, &w);
    (void)ctl_wait(c, &w.done, 0);
    code = ctl_db_result(w.st);
    if (code != CTL_OK)
        return code;
    if (w.verdict == STORE_OTHER_KEY)
        return ctl_fail(CTL_REFUSED, "%s exists already, with another key", u.login);
    const char *what = w.verdict == STORE_ADDED ? "added" : "unchanged";
    if (c->json)
        ctl_print_json(json_pack("{s:s, s:s}", "login", u.login, "result", what));
    else
        printf("%s %s\n", u.login,
               w.verdict == STORE_ADDED ? "added"
                                        : "exists already with this key: nothing changed");
    return CTL_OK;
}

static void on_user_shown(void *ctx, enum db_status st, const struct store_user *u)
{
    struct user_wait *w = ctx;
    w->st = st;
    w->found = u != NULL;
    w->done = true;
    if (!u)
        return;
    char key[64];
    base64_encode(u->client_key, sizeof u->client_key, key);
    json_t *servers = json_array();
    for (unsigned i = 0; i < u->n_servers; i++)
        json_array_append_new(servers, json_pack("{s:s, s:s}", "serverLogin", u->servers[i].login,
                                                 "url", u->servers[i].url));
    w->json = json_pack("{s:s, s:s, s:s, s:o, s:s*, s:o*}", "login", u->login, "clientKey", key,
                        "source", u->source, "accessServers", servers, "encKey", u->enc_key,
                        "profile", u->profile ? json_loads(u->profile, 0, NULL) : NULL);
}

/* When it was signed, and where it leads: after `user set-servers` that is not where the user is.
 */
static void print_profile(const json_t *profile)
{
    char when[32];
    size_t i;
    json_t *server;
    ctl_time_text(json_integer_value(json_object_get(profile, "timeMs")), when);
    printf("profile     %s UTC ", when);
    json_array_foreach(json_object_get(profile, "accessServers"), i, server)
        printf(" %s", ctl_json_text(server, "serverLogin"));
    printf("\n");
}

int cmd_user_show(struct ctl *c)
{
    struct user_wait w = {.ctl = c};
    int code = ctl_store(c);
    if (code != CTL_OK)
        return code;
    store_get_user(c->store, c->words[0], on_user_shown, &w);
    (void)ctl_wait(c, &w.done, 0);
    code = ctl_db_result(w.st);
    if (code != CTL_OK)
        return code;
    if (!w.found)
        return ctl_fail(CTL_REFUSED, "there is no user %s here", c->words[0]);
    if (c->json) {
        ctl_print_json(w.json);
        return CTL_OK;
    }
    printf("login       %s\nclient key  %s\nsource      %s\n",
           json_string_value(json_object_get(w.json, "login")),
           json_string_value(json_object_get(w.json, "clientKey")),
           json_string_value(json_object_get(w.json, "source")));
    size_t i;
    json_t *server;
    json_array_foreach(json_object_get(w.json, "accessServers"), i, server)
        printf("server %zu    %s  %s\n", i + 1,
               json_string_value(json_object_get(server, "serverLogin")),
               json_string_value(json_object_get(server, "url")));
    const json_t *enc_key = json_object_get(w.json, "encKey");
    const json_t *profile = json_object_get(w.json, "profile");
    if (enc_key)
        printf("enc key     %s\n", json_string_value(enc_key));
    if (profile)
        print_profile(profile);
    json_decref(w.json);
    return CTL_OK;
}

static void on_found(void *ctx, enum db_status st, bool found)
{
    struct user_wait *w = ctx;
    w->st = st;
    w->found = found;
    if (found)
        store_tell_user_changed(w->ctl->store, w->ctl->words[0], on_told, w);
    else
        w->done = true;
}

int cmd_user_set_servers(struct ctl *c)
{
    struct store_route routes[2];
    struct user_wait w = {.ctl = c};
    unsigned n;
    int code = ctl_access_servers(c, routes, &n);
    if (code == CTL_OK)
        code = ctl_store(c);
    if (code != CTL_OK)
        return code;
    store_set_servers(c->store, c->words[0], routes, n, on_found, &w);
    (void)ctl_wait(c, &w.done, 0);
    code = ctl_db_result(w.st);
    if (code != CTL_OK)
        return code;
    if (!w.found)
        return ctl_fail(CTL_REFUSED, "there is no user %s here", c->words[0]);
    if (c->json)
        ctl_print_json(json_pack("{s:s, s:s}", "login", c->words[0], "result", "changed"));
    else
        printf("%s is served by %s%s%s\n", c->words[0], routes[0].login, n == 2 ? " and " : "",
               n == 2 ? routes[1].login : "");
    return CTL_OK;
}

/* --- signed profiles --- */

static void sign_into(json_t *payload, const char *name, const char *text,
                      const uint8_t seed[DM_KEY_BYTES])
{
    uint8_t public_key[crypto_sign_PUBLICKEYBYTES], secret[crypto_sign_SECRETKEYBYTES];
    uint8_t signature[crypto_sign_BYTES];
    char b64[PROFILE_SIG_TEXT];
    (void)crypto_sign_seed_keypair(public_key, secret, seed);
    (void)crypto_sign_detached(signature, NULL, (const unsigned char *)text, strlen(text), secret);
    sodium_memzero(secret, sizeof secret);
    base64_encode(signature, sizeof signature, b64);
    json_object_set_new(payload, name, json_string(b64));
}

static json_t *profile_payload(const char *login, const struct store_route *routes, unsigned n,
                               const char *enc_key, const uint8_t seed[DM_KEY_BYTES],
                               const uint8_t public_key[DM_KEY_BYTES])
{
    int64_t now = clock_wall_ms();
    char key[PROFILE_KEY_TEXT];
    base64_encode(public_key, DM_KEY_BYTES, key);
    json_t *servers = json_array();
    for (unsigned i = 0; i < n; i++)
        json_array_append_new(
            servers, json_pack("{s:s, s:s}", "serverLogin", routes[i].login, "url", routes[i].url));
    json_t *payload =
        json_pack("{s:s, s:s, s:o, s:I, s:s*}", "login", login, "clientKey", key, "accessServers",
                  servers, "timeMs", (json_int_t)now, "encKey", enc_key);
    char *text = profile_signed_text(login, key, routes, n, now);
    sign_into(payload, "signatureB64", text, seed);
    free(text);
    if (enc_key) {
        text = xasprintf("SHiNE_ENC_KEY:%s:%s", login, enc_key);
        sign_into(payload, "encKeySigB64", text, seed);
        free(text);
    }
    return payload;
}

int cmd_user_profile(struct ctl *c)
{
    uint8_t seed[DM_KEY_BYTES], key[DM_KEY_BYTES], enc_key_bytes[DM_KEY_BYTES];
    struct store_route routes[2];
    unsigned n;
    struct ctl_client *k;
    struct rpc_answer a;
    const char *file = ctl_option(c, "key", 0), *enc_key = ctl_option(c, "enc-key", 0);
    if (!dm_login_valid(c->words[0]))
        return ctl_fail(CTL_USAGE, "%s is not a login ([a-z0-9_], 1 to 30)", c->words[0]);
    if (!file)
        return ctl_fail(CTL_USAGE, "--key FILE is needed (see shinectl keygen)");
    if (enc_key && !base64_decode_exact(enc_key, enc_key_bytes, sizeof enc_key_bytes))
        return ctl_fail(CTL_USAGE, "--enc-key takes the Base64 of 32 bytes");
    int code = ctl_access_servers(c, routes, &n);
    if (code == CTL_OK)
        code = ctl_read_key(file, seed, key);
    if (code != CTL_OK)
        return code;
    json_t *payload = profile_payload(c->words[0], routes, n, enc_key, seed, key);
    sodium_memzero(seed, sizeof seed);
    code = ctl_client_open(c, NULL, NULL, &k);
    if (code == CTL_OK) {
        code = ctl_client_call(k, "UpsertUserProfile", json_incref(payload), &a);
        ctl_client_close(k);
    }
    if (code == CTL_OK) {
        rpc_answer_free(&a);
        if (c->json)
            ctl_print_json(json_incref(payload));
        else
            printf("%s is served by %s%s%s\n", c->words[0], routes[0].login, n == 2 ? " and " : "",
                   n == 2 ? routes[1].login : "");
    }
    json_decref(payload);
    return code;
}
