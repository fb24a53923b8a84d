/*
 * Reading what a stranger says about a user: everything is checked before anything is kept. Raises
 * no failures.
 */
#include "directory/record.h"

#include "net/ws.h"
#include "rpc/fields.h"
#include "util/base64.h"
#include "util/mem.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SERVERS_MAX = 2 };

bool record_read_route(const json_t *item, struct store_route *out)
{
    struct rpc_fields f = rpc_fields_of(item);
    const char *login, *url;
    struct ws_url parsed;
    if (!json_is_object(item) || !rpc_str(&f, "serverLogin", SHINE_SERVER_LOGIN_MAX, &login) ||
        !rpc_str(&f, "url", SHINE_URL_MAX, &url))
        return false;
    if (!dm_server_login_valid(login) || !ws_url_parse(url, &parsed) || !parsed.tls ||
        strpbrk(url, ",= "))
        return false;
    memcpy(out->login, login, strlen(login) + 1);
    memcpy(out->url, url, strlen(url) + 1);
    return true;
}

static bool read_servers(struct rpc_fields *f, struct store_user *u)
{
    const json_t *list;
    if (!rpc_array(f, "accessServers", SERVERS_MAX, &list) || json_array_size(list) == 0)
        return false;
    u->n_servers = (unsigned)json_array_size(list);
    for (unsigned i = 0; i < u->n_servers; i++)
        if (!record_read_route(json_array_get(list, i), &u->servers[i]))
            return false;
    return u->n_servers < 2 || strcmp(u->servers[0].login, u->servers[1].login) != 0;
}

/* Signed by the client key, so it is the user's whoever tells it; otherwise there is none. */
static void read_enc_key(struct rpc_fields *f, struct record *r)
{
    const char *key = "", *sig = "";
    uint8_t key_bytes[DM_KEY_BYTES], signature[DM_SIG_BYTES];
    if (!rpc_str_opt(f, "encKey", RECORD_KEY_TEXT - 1, &key) ||
        !rpc_str_opt(f, "encKeySigB64", RECORD_SIG_TEXT - 1, &sig) ||
        !base64_decode_exact(key, key_bytes, sizeof key_bytes) ||
        !base64_decode_exact(sig, signature, sizeof signature))
        return;
    char *text = xasprintf("SHiNE_ENC_KEY:%s:%s", r->user.login, key);
    bool ok = crypto_sign_verify_detached(signature, (const unsigned char *)text, strlen(text),
                                          r->user.client_key) == 0;
    free(text);
    if (!ok)
        return;
    (void)snprintf(r->enc_key, sizeof r->enc_key, "%s", key);
    (void)snprintf(r->enc_key_sig, sizeof r->enc_key_sig, "%s", sig);
    r->user.enc_key = r->enc_key;
    r->user.enc_key_sig = r->enc_key_sig;
}

enum record_result record_read(const json_t *payload, const char *login, struct record *out)
{
    struct rpc_fields f = rpc_fields_of(payload);
    const json_t *exists = json_object_get(payload, "exists");
    const char *said, *key, *source = "";
    *out = (struct record){0};
    if (json_is_false(exists))
        return RECORD_NOBODY;
    if (!json_is_true(exists) || !rpc_str(&f, "login", DM_LOGIN_MAX, &said) ||
        strcmp(said, login) != 0 || !rpc_str(&f, "clientKey", 64, &key) ||
        !base64_decode_exact(key, out->user.client_key, sizeof out->user.client_key) ||
        !read_servers(&f, &out->user) || !rpc_str_opt(&f, "source", 64, &source))
        return RECORD_BAD;
    memcpy(out->user.login, login, strlen(login) + 1);
    out->local = strcmp(source, "local") == 0;
    out->provisional = strcmp(source, "provisional") == 0;
    read_enc_key(&f, out);
    return RECORD_USER;
}
