/*
 * Any JSON as another server's answer about a user. What is let in must be within its bounds, must
 * survive a copy, and the profile in it must read back from its own record as the same one.
 *
 * The fuzzer cannot sign: the first byte decides whether the profile is signed for it.
 */
#include "directory/record.h"
#include "util/base64.h"
#include "util/mem.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t seed[DM_KEY_BYTES] = {7};

/* Sign what the profile says, if it says enough, as a user would who had made it. */
static void sign(json_t *answer)
{
    uint8_t key[DM_KEY_BYTES], secret[crypto_sign_SECRETKEYBYTES], sig[DM_SIG_BYTES];
    char key_text[64], sig_text[96];
    struct store_user u = {0};
    const char *message;
    json_t *p = json_object_get(answer, "profile");
    struct rpc_fields f = rpc_fields_of(p);
    const char *login = json_string_value(json_object_get(p, "login"));
    if (!json_is_object(p) || !login || record_read_servers(&f, &u, &message) != RPC_OK)
        return;
    shine_assert(crypto_sign_seed_keypair(key, secret, seed) == 0);
    base64_encode(key, sizeof key, key_text);
    char *text = profile_signed_text(login, key_text, u.servers, u.n_servers,
                                     json_integer_value(json_object_get(p, "timeMs")));
    (void)crypto_sign_detached(sig, NULL, (const unsigned char *)text, strlen(text), secret);
    free(text);
    base64_encode(sig, sizeof sig, sig_text);
    (void)json_object_set_new(answer, "clientKey", json_string(key_text));
    (void)json_object_set_new(p, "clientKey", json_string(key_text));
    (void)json_object_set_new(p, "signatureB64", json_string(sig_text));
}

static void check_user(const struct store_user *u)
{
    shine_assert(dm_login_valid(u->login));
    shine_assert(u->n_servers == 1 || u->n_servers == 2);
    for (unsigned i = 0; i < u->n_servers; i++) {
        shine_assert(dm_server_login_valid(u->servers[i].login));
        shine_assert(strncmp(u->servers[i].url, "wss://", 6) == 0);
        shine_assert(!strpbrk(u->servers[i].url, ",= \""));
    }
    shine_assert(!u->enc_key == !u->enc_key_sig);
}

static void check(const struct record *r)
{
    struct record copy;
    struct profile again;
    const char *message;
    char buffer[160] = "";
    check_user(&r->user);
    record_copy(&copy, r);
    check_user(&copy.user);
    if (!r->has_profile)
        return;
    check_user(&r->profile.user);
    json_t *j = json_loads(copy.profile.own.record, JSON_REJECT_DUPLICATES, NULL);
    shine_assert(j && profile_read(j, &again, &message, buffer) == RPC_OK);
    shine_assert(profile_compare(&again, &r->profile) == 0);
    shine_assert(strcmp(again.own.record, r->profile.own.record) == 0);
    json_decref(j);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct record r;
    if (size == 0)
        return 0;
    json_t *answer = json_loadb((const char *)data + 1, size - 1, JSON_REJECT_DUPLICATES, NULL);
    if (!answer)
        return 0;
    const char *login = json_string_value(json_object_get(answer, "login"));
    if (data[0] & 1)
        sign(answer);
    if (record_read(answer, login && dm_login_valid(login) ? login : "bob", &r) == RECORD_USER)
        check(&r);
    json_decref(answer);
    return 0;
}
