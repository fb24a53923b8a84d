/*
 * Reading signed profiles. Raises no failures; a record that does not fit its buffer is our bug.
 */
#include "directory/profile.h"

#include "directory/record.h"
#include "rpc/fields.h"
#include "util/base64.h"
#include "util/mem.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *profile_signed_text(const char *login, const char *client_key_b64,
                          const struct store_route *servers, unsigned n, int64_t time_ms)
{
    bool two = n > 1;
    return xasprintf("SHiNE_USER_PROFILE:%s:%s:%s=%s%s%s%s%s:%" PRId64, login, client_key_b64,
                     servers[0].login, servers[0].url, two ? "," : "", two ? servers[1].login : "",
                     two ? "=" : "", two ? servers[1].url : "", time_ms);
}

static void point_into(struct profile *p)
{
    bool has_key = p->enc_key[0] != '\0';
    p->user.enc_key = p->own.enc_key = has_key ? p->enc_key : NULL;
    p->user.enc_key_sig = p->own.enc_key_sig = has_key ? p->enc_key_sig : NULL;
    p->own.record = p->record;
}

void profile_copy(struct profile *to, const struct profile *from)
{
    *to = *from;
    point_into(to);
}

int profile_compare(const struct profile *a, const struct profile *b)
{
    if (a->own.time_ms != b->own.time_ms)
        return a->own.time_ms < b->own.time_ms ? -1 : 1;
    int c = memcmp(a->own.signature, b->own.signature, sizeof a->own.signature);
    return c ? c : strcmp(a->enc_key_sig, b->enc_key_sig);
}

/* The fields in a fixed order, each with the value that was sent. */
static void write_record(struct profile *p, const char *key, const char *signature)
{
    const struct store_user *u = &p->user;
    json_t *servers = json_array();
    for (unsigned i = 0; i < u->n_servers; i++)
        (void)json_array_append_new(
            servers,
            json_pack("{s:s, s:s}", "serverLogin", u->servers[i].login, "url", u->servers[i].url));
    json_t *j =
        json_pack("{s:s, s:s, s:o, s:I, s:s, s:s*, s:s*}", "login", u->login, "clientKey", key,
                  "accessServers", servers, "timeMs", (json_int_t)p->own.time_ms, "signatureB64",
                  signature, "encKey", u->enc_key, "encKeySigB64", u->enc_key_sig);
    shine_assert(j);
    size_t n = json_dumpb(j, p->record, sizeof p->record - 1, JSON_COMPACT); /* the rest is zero */
    shine_assert(n > 0 && n < sizeof p->record);
    json_decref(j);
}

enum rpc_error profile_read(const json_t *payload, struct profile *out, const char **message,
                            char buffer[160])
{
    struct rpc_fields f = rpc_fields_of(payload);
    const char *login, *key, *signature, *enc_key = NULL, *enc_key_sig = NULL;
    *out = (struct profile){0};
    *message = buffer;
    enum rpc_error e = RPC_BAD_FIELDS;
    if (rpc_str(&f, "login", 256, &login) && rpc_str(&f, "clientKey", PROFILE_KEY_TEXT - 1, &key) &&
        rpc_int(&f, "timeMs", 0, DM_INT_MAX, &out->own.time_ms) &&
        rpc_str(&f, "signatureB64", PROFILE_SIG_TEXT - 1, &signature) &&
        rpc_bytes(&f, "signatureB64", out->own.signature, sizeof out->own.signature) &&
        rpc_str_opt(&f, "encKey", PROFILE_KEY_TEXT - 1, &enc_key) &&
        rpc_str_opt(&f, "encKeySigB64", PROFILE_SIG_TEXT - 1, &enc_key_sig))
        e = RPC_OK;
    if (e == RPC_OK && !dm_login_valid(login)) {
        *message = "a login is [a-z0-9_]{1,30}";
        return RPC_BAD_LOGIN;
    }
    if (e == RPC_OK &&
        !base64_decode_exact(key, out->user.client_key, sizeof out->user.client_key)) {
        *message = "clientKey must be Base64 of 32 bytes";
        return RPC_BAD_KEY_FORMAT;
    }
    if (e == RPC_OK)
        e = record_read_servers(&f, &out->user, message);
    if (f.problem[0]) {
        (void)snprintf(buffer, 160, "%s", f.problem);
        *message = buffer;
    }
    if (e != RPC_OK)
        return e;
    memcpy(out->user.login, login, strlen(login) + 1);
    e = record_check_enc_key(login, out->user.client_key, enc_key, enc_key_sig, message);
    if (e != RPC_OK)
        return e;
    char *text =
        profile_signed_text(login, key, out->user.servers, out->user.n_servers, out->own.time_ms);
    bool right = crypto_sign_verify_detached(out->own.signature, (const unsigned char *)text,
                                             strlen(text), out->user.client_key) == 0;
    free(text);
    *message = "the profile is not signed by the key it names";
    if (!right)
        return RPC_BAD_SIGNATURE;
    if (enc_key) {
        memcpy(out->enc_key, enc_key, strlen(enc_key) + 1);
        memcpy(out->enc_key_sig, enc_key_sig, strlen(enc_key_sig) + 1);
    }
    point_into(out);
    write_record(out, key, signature);
    return RPC_OK;
}
