/*
 * Reading what a stranger says about a user: everything is checked before anything is kept. Raises
 * no failures.
 */
#include "directory/record.h"

#include "net/ws.h"
#include "util/base64.h"
#include "util/mem.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SERVERS_MAX = 2 };

/* One access server, read from {serverLogin, url}; false if either is not what it must be. */
static bool read_route(const json_t *item, struct store_route *out)
{
    struct rpc_fields f = rpc_fields_of(item);
    const char *login, *url;
    struct ws_url parsed;
    if (!json_is_object(item) || !rpc_str(&f, "serverLogin", SHINE_SERVER_LOGIN_MAX, &login) ||
        !rpc_str(&f, "url", SHINE_URL_MAX, &url))
        return false;
    if (!dm_server_login_valid(login) || !ws_url_parse(url, &parsed) || !parsed.tls)
        return false;
    memcpy(out->login, login, strlen(login) + 1);
    memcpy(out->url, url, strlen(url) + 1);
    return true;
}

enum rpc_error record_read_servers(struct rpc_fields *f, struct store_user *u, const char **message)
{
    const json_t *list;
    if (!rpc_array(f, "accessServers", SIZE_MAX, &list))
        return RPC_BAD_FIELDS;
    size_t n = json_array_size(list);
    *message = "a user has at most two access servers";
    if (n > SERVERS_MAX)
        return RPC_TOO_MANY_ACCESS_SERVERS;
    *message = "accessServers must be one or two of {serverLogin, url:\"wss://…\"}";
    u->n_servers = (unsigned)n;
    for (unsigned i = 0; i < u->n_servers; i++)
        if (!read_route(json_array_get(list, i), &u->servers[i]))
            return RPC_BAD_FIELDS;
    bool same = n == SERVERS_MAX && strcmp(u->servers[0].login, u->servers[1].login) == 0;
    return n == 0 || same ? RPC_BAD_FIELDS : RPC_OK;
}

enum rpc_error record_check_enc_key(const char *login, const uint8_t client_key[DM_KEY_BYTES],
                                    const char *enc_key, const char *enc_key_sig,
                                    const char **message)
{
    uint8_t key[DM_KEY_BYTES], signature[DM_SIG_BYTES];
    *message = "encKey and encKeySigB64 belong together";
    if (!enc_key && !enc_key_sig)
        return RPC_OK;
    if (!enc_key || !enc_key_sig)
        return RPC_BAD_FIELDS;
    *message = "encKey must be Base64 of 32 bytes, encKeySigB64 of 64";
    if (!base64_decode_exact(enc_key, key, sizeof key) ||
        !base64_decode_exact(enc_key_sig, signature, sizeof signature))
        return RPC_BAD_KEY_FORMAT;
    char *text = xasprintf("SHiNE_ENC_KEY:%s:%s", login, enc_key);
    bool ok = crypto_sign_verify_detached(signature, (const unsigned char *)text, strlen(text),
                                          client_key) == 0;
    free(text);
    *message = "encKeySigB64 is not the client key's signature";
    return ok ? RPC_OK : RPC_BAD_SIGNATURE;
}

/* --- what another server says --- */

static void point_into(struct record *r)
{
    bool has_key = r->enc_key[0] != '\0';
    r->user.enc_key = has_key ? r->enc_key : NULL;
    r->user.enc_key_sig = has_key ? r->enc_key_sig : NULL;
}

void record_copy(struct record *to, const struct record *from)
{
    *to = *from;
    profile_copy(&to->profile, &from->profile);
    point_into(to);
}

static void keep_enc_key(struct record *r, const char *key, const char *sig)
{
    (void)snprintf(r->enc_key, sizeof r->enc_key, "%s", key);
    (void)snprintf(r->enc_key_sig, sizeof r->enc_key_sig, "%s", sig);
}

/* Signed by the client key, so it is the user's whoever tells it; otherwise there is none. */
static void read_enc_key(struct rpc_fields *f, struct record *r)
{
    const char *key = NULL, *sig = NULL, *message;
    if (rpc_str_opt(f, "encKey", PROFILE_KEY_TEXT - 1, &key) &&
        rpc_str_opt(f, "encKeySigB64", PROFILE_SIG_TEXT - 1, &sig) && key &&
        record_check_enc_key(r->user.login, r->user.client_key, key, sig, &message) == RPC_OK)
        keep_enc_key(r, key, sig);
}

/* Likewise. What it says counts more than the unsigned rest. */
static void read_profile(const json_t *payload, struct record *r)
{
    const json_t *j = json_object_get(payload, "profile");
    const char *message;
    char buffer[160] = "";
    if (!j || json_is_null(j))
        return;
    struct profile *p = &r->profile;
    r->has_profile = json_is_object(j) && profile_read(j, p, &message, buffer) == RPC_OK &&
                     strcmp(p->user.login, r->user.login) == 0 &&
                     memcmp(p->user.client_key, r->user.client_key, DM_KEY_BYTES) == 0;
    r->bad_profile = !r->has_profile;
    if (!r->has_profile)
        return;
    r->user.n_servers = p->user.n_servers;
    memcpy(r->user.servers, p->user.servers, sizeof r->user.servers);
    if (p->own.enc_key)
        keep_enc_key(r, p->enc_key, p->enc_key_sig);
}

enum record_result record_read(const json_t *payload, const char *login, struct record *out)
{
    struct rpc_fields f = rpc_fields_of(payload);
    const json_t *exists = json_object_get(payload, "exists");
    const char *said, *key, *source = "", *message;
    *out = (struct record){0};
    if (json_is_false(exists))
        return RECORD_NOBODY;
    if (!json_is_true(exists) || !rpc_str(&f, "login", DM_LOGIN_MAX, &said) ||
        strcmp(said, login) != 0 || !rpc_str(&f, "clientKey", 64, &key) ||
        !base64_decode_exact(key, out->user.client_key, sizeof out->user.client_key) ||
        record_read_servers(&f, &out->user, &message) != RPC_OK ||
        !rpc_str_opt(&f, "source", 64, &source))
        return RECORD_BAD;
    memcpy(out->user.login, login, strlen(login) + 1);
    out->local = strcmp(source, "local") == 0;
    out->provisional = strcmp(source, "provisional") == 0;
    read_enc_key(&f, out);
    read_profile(payload, out);
    point_into(out);
    return RECORD_USER;
}
