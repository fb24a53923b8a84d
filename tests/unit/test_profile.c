/*
 * Reading signed profiles.
 */
#include "directory/profile.h"

#include "directory/record.h"
#include "util/base64.h"
#include "util/mem.h"

#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint8_t seed[DM_KEY_BYTES] = {4, 5, 6};

/* --- an independent signer --- */

static char *sign(const char *text)
{
    uint8_t key[32], secret[64], sig[64];
    assert_int_equal(0, crypto_sign_seed_keypair(key, secret, seed));
    (void)crypto_sign_detached(sig, NULL, (const unsigned char *)text, strlen(text), secret);
    return base64_encode_new(sig, sizeof sig);
}

static char *key_text(void)
{
    uint8_t key[32];
    dm_public_key(seed, key);
    return base64_encode_new(key, sizeof key);
}

/* The payload with `servers` "name=url" (NULL = none), signed as the protocol says. */
static json_t *payload(const char *login, const char *one, const char *two, const char *time)
{
    char *key = key_text();
    char *text = xasprintf("SHiNE_USER_PROFILE:%s:%s:%s%s%s:%s", login, key, one, two ? "," : "",
                           two ? two : "", time);
    char *sig = sign(text);
    json_t *servers = json_array();
    const char *const given[] = {one, two};
    for (int i = 0; i < 2 && given[i]; i++) {
        const char *eq = strchr(given[i], '=');
        assert_non_null(eq);
        json_array_append_new(servers, json_pack("{s:s%, s:s}", "serverLogin", given[i],
                                                 (size_t)(eq - given[i]), "url", eq + 1));
    }
    json_t *p =
        json_pack("{s:s, s:s, s:o, s:I, s:s}", "login", login, "clientKey", key, "accessServers",
                  servers, "timeMs", (json_int_t)strtoll(time, NULL, 10), "signatureB64", sig);
    free(key);
    free(text);
    free(sig);
    return p;
}

#define ONE "alpha=wss://alpha.example/ws"
#define TWO "beta.x=wss://beta.example:8443/a/b?c"

/* Reads and frees. */
static enum rpc_error read_it(json_t *p, struct profile *out)
{
    const char *message = NULL;
    char buffer[160] = "";
    enum rpc_error e = profile_read(p, out, &message, buffer);
    if (e != RPC_OK)
        assert_true(message && *message);
    json_decref(p);
    return e;
}

static enum rpc_error changed(const char *name, json_t *value)
{
    struct profile out;
    json_t *p = payload("bob", ONE, TWO, "1774700000123");
    if (value)
        json_object_set_new(p, name, value);
    else
        json_object_del(p, name);
    return read_it(p, &out);
}

/* --- tests --- */

static void a_good_one_is_read(void **state)
{
    struct profile p, q;
    (void)state;
    json_t *sent = payload("bob", ONE, TWO, "1774700000123");
    json_object_set_new(sent, "unknown", json_string("field"));
    assert_int_equal(RPC_OK, read_it(json_incref(sent), &p));
    assert_string_equal("bob", p.user.login);
    assert_int_equal(2, p.user.n_servers);
    assert_string_equal("beta.x", p.user.servers[1].login);
    assert_string_equal("wss://beta.example:8443/a/b?c", p.user.servers[1].url);
    assert_true(p.own.time_ms == 1774700000123);
    assert_null(p.user.enc_key);

    /* What is kept for others is what was signed, and no more. */
    json_t *record = json_loads(p.own.record, 0, NULL);
    json_object_del(sent, "unknown");
    assert_true(json_equal(sent, record));
    json_decref(sent);

    profile_copy(&q, &p);
    memset(&p, 0, sizeof p);
    assert_int_equal(RPC_OK, read_it(record, &p));
    assert_string_equal(q.own.record, p.own.record);
    assert_int_equal(0, profile_compare(&p, &q));
    assert_int_equal(RPC_OK, read_it(payload("bob", ONE, NULL, "0"), &p));
}

static void what_is_not_signed_is_refused(void **state)
{
    (void)state;
    assert_int_equal(RPC_BAD_SIGNATURE, changed("login", json_string("bobby")));
    assert_int_equal(RPC_BAD_SIGNATURE, changed("timeMs", json_integer(1774700000124)));
    assert_int_equal(
        RPC_BAD_SIGNATURE,
        changed("clientKey", json_string("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=")));
    json_t *one =
        json_pack("[{s:s, s:s}]", "serverLogin", "alpha", "url", "wss://alpha.example/ws");
    assert_int_equal(RPC_BAD_SIGNATURE, changed("accessServers", one));
    char *other = sign("SHiNE_ADD_USER:bob");
    assert_int_equal(RPC_BAD_SIGNATURE, changed("signatureB64", json_string(other)));
    free(other);
}

static void what_is_malformed_is_refused(void **state)
{
    static const char *const fields[] = {"login", "clientKey", "accessServers", "timeMs",
                                         "signatureB64"};
    (void)state;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        assert_int_equal(RPC_BAD_FIELDS, changed(fields[i], NULL));
        assert_int_equal(RPC_BAD_FIELDS, changed(fields[i], json_true()));
    }
    assert_int_equal(RPC_BAD_LOGIN, changed("login", json_string("Bob")));
    assert_int_equal(RPC_BAD_KEY_FORMAT, changed("clientKey", json_string("c2hvcnQ=")));
    assert_int_equal(RPC_BAD_FIELDS, changed("signatureB64", json_string("c2hvcnQ=")));
    assert_int_equal(RPC_BAD_FIELDS, changed("timeMs", json_integer(-1)));
    assert_int_equal(RPC_BAD_FIELDS, changed("timeMs", json_integer(DM_INT_MAX + 1)));
    assert_int_equal(RPC_BAD_FIELDS, changed("accessServers", json_array()));
    json_t *three = json_pack("[{},{},{}]");
    assert_int_equal(RPC_TOO_MANY_ACCESS_SERVERS, changed("accessServers", three));
}

static void addresses_are_strict(void **state)
{
    /* Each is signed as it stands: the signature does not help. */
    static const char *const bad[] = {
        "alpha=ws://alpha.example/ws",      "alpha=wss://alpha.example/w s",
        "alpha=wss://alpha.example/w,s",    "alpha=wss://alpha.example/w=s",
        "alpha=wss://u@alpha.example/ws",   "alpha=wss://alpha.example/ws#f",
        "alpha=wss://\xc3\xa4.example/ws",  "alpha=wss://alpha.example/\xc3\xa4",
        "alpha=wss://alpha.example:0/ws",   "alpha=wss://alpha.example:70000/ws",
        "alpha=https://alpha.example/ws",   "alpha=wss:///ws",
        "Alpha=wss://alpha.example/ws",     "-alpha=wss://alpha.example/ws",
        "alpha=wss://alpha.example/w\"s\"",
    };
    struct profile p;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(RPC_BAD_FIELDS, read_it(payload("bob", bad[i], NULL, "1"), &p));
    assert_int_equal(RPC_BAD_FIELDS, read_it(payload("bob", ONE, ONE, "1"), &p));
    for (size_t len = 255; len <= 256; len++) {
        char url[300] = "alpha=wss://alpha.example/";
        for (size_t n = strlen(url); n < len + 6; n++)
            url[n] = 'x';
        assert_int_equal(len == 255 ? RPC_OK : RPC_BAD_FIELDS,
                         read_it(payload("bob", url, NULL, "1"), &p));
    }
}

static void the_longest_fits(void **state)
{
    char one[400], two[400], login[31];
    struct profile p;
    (void)state;
    memset(login, 'l', 30);
    login[30] = '\0';
    memset(one, 'a', sizeof one);
    memset(two, 'b', sizeof two);
    memcpy(one + 63, "=wss://", 7);
    memcpy(two + 63, "=wss://", 7);
    memset(one + 70 + 100, '/', 1); /* a host of 100 letters, the rest is path */
    memset(two + 70 + 100, '/', 1);
    one[64 + 255] = two[64 + 255] = '\0';
    json_t *j = payload(login, one, two, "9007199254740991");
    json_object_set_new(j, "encKey", json_string("AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="));
    char *text = xasprintf("SHiNE_ENC_KEY:%s:AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=", login);
    char *sig = sign(text);
    json_object_set_new(j, "encKeySigB64", json_string(sig));
    free(text);
    free(sig);
    assert_int_equal(RPC_OK, read_it(j, &p));
    assert_string_equal("AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=", p.own.enc_key);
    assert_true(strlen(p.own.record) < PROFILE_RECORD_MAX);
}

static void encryption_keys_are_signed_too(void **state)
{
    struct profile p;
    (void)state;
    json_t *j = payload("bob", ONE, NULL, "1");
    json_object_set_new(j, "encKey", json_string("AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="));
    assert_int_equal(RPC_BAD_FIELDS, read_it(json_deep_copy(j), &p));
    char *sig = sign("SHiNE_ENC_KEY:bobby:AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=");
    json_object_set_new(j, "encKeySigB64", json_string(sig));
    free(sig);
    assert_int_equal(RPC_BAD_SIGNATURE, read_it(j, &p));
}

static void the_newest_is_the_same_everywhere(void **state)
{
    struct profile a = {0}, b = {0};
    (void)state;
    assert_int_equal(0, profile_compare(&a, &b));
    strcpy(a.enc_key_sig, "x");
    assert_true(profile_compare(&a, &b) > 0 && profile_compare(&b, &a) < 0);
    b.own.signature[3] = 0x80;
    assert_true(profile_compare(&a, &b) < 0 && profile_compare(&b, &a) > 0);
    a.own.time_ms = 1;
    assert_true(profile_compare(&a, &b) > 0 && profile_compare(&b, &a) < 0);
}

/* --- the profile in an answer to GetUser --- */

static json_t *answer(json_t *profile)
{
    char *key = key_text();
    json_t *j = json_pack("{s:b, s:s, s:s, s:[{s:s, s:s}], s:o*}", "exists", 1, "login", "bob",
                          "clientKey", key, "accessServers", "serverLogin", "old", "url",
                          "wss://old.example/ws", "profile", profile);
    free(key);
    return j;
}

static void a_record_follows_its_profile(void **state)
{
    struct record r, copy;
    (void)state;
    json_t *j = answer(payload("bob", ONE, TWO, "5"));
    assert_int_equal(RECORD_USER, record_read(j, "bob", &r));
    assert_true(r.has_profile && !r.bad_profile);
    assert_int_equal(2, r.user.n_servers);
    assert_string_equal("alpha", r.user.servers[0].login);
    record_copy(&copy, &r);
    memset(&r, 0, sizeof r);
    assert_int_equal(5, copy.profile.own.time_ms);
    assert_non_null(strstr(copy.profile.own.record, "\"timeMs\":5"));
    json_decref(j);
}

static void another_users_profile_is_left_out(void **state)
{
    struct record r;
    (void)state;
    json_t *wrong[] = {payload("bobby", ONE, NULL, "5"), json_string("no object"), json_object()};
    for (size_t i = 0; i < 3; i++) {
        json_t *j = answer(wrong[i]);
        assert_int_equal(RECORD_USER, record_read(j, "bob", &r));
        assert_true(!r.has_profile && r.bad_profile);
        assert_string_equal("old", r.user.servers[0].login);
        json_decref(j);
    }
    json_t *j = answer(payload("bob", ONE, NULL, "5")); /* signed, but by another key */
    json_object_set_new(j, "clientKey",
                        json_string("AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="));
    assert_int_equal(RECORD_USER, record_read(j, "bob", &r));
    assert_true(!r.has_profile && r.bad_profile);
    json_decref(j);
    j = answer(NULL);
    assert_int_equal(RECORD_USER, record_read(j, "bob", &r));
    assert_true(!r.has_profile && !r.bad_profile);
    json_decref(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_one_is_read),
        cmocka_unit_test(what_is_not_signed_is_refused),
        cmocka_unit_test(what_is_malformed_is_refused),
        cmocka_unit_test(addresses_are_strict),
        cmocka_unit_test(the_longest_fits),
        cmocka_unit_test(encryption_keys_are_signed_too),
        cmocka_unit_test(the_newest_is_the_same_everywhere),
        cmocka_unit_test(a_record_follows_its_profile),
        cmocka_unit_test(another_users_profile_is_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
