/*
 * Users' records as other servers answer them.
 */
#include "directory/record.h"

#include "dm/container.h"
#include "util/base64.h"
#include "util/mem.h"

#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint8_t seed[DM_KEY_BYTES] = {1};

/* A good answer about bob, with an encryption key signed for `signed_login`. */
static json_t *answer(const char *signed_login)
{
    uint8_t key[DM_KEY_BYTES], enc[DM_KEY_BYTES] = {9}, sig[DM_SIG_BYTES];
    uint8_t pk[crypto_sign_PUBLICKEYBYTES], sk[crypto_sign_SECRETKEYBYTES];
    char key_text[64], enc_text[64], sig_text[128];
    dm_public_key(seed, key);
    (void)crypto_sign_seed_keypair(pk, sk, seed);
    base64_encode(key, sizeof key, key_text);
    base64_encode(enc, sizeof enc, enc_text);
    char *text = xasprintf("SHiNE_ENC_KEY:%s:%s", signed_login, enc_text);
    (void)crypto_sign_detached(sig, NULL, (const unsigned char *)text, strlen(text), sk);
    free(text);
    base64_encode(sig, sizeof sig, sig_text);
    json_t *p =
        json_pack("{s:b, s:s, s:s, s:[{s:s, s:s}, {s:s, s:s}], s:s, s:s, s:s}", "exists", 1,
                  "login", "bob", "clientKey", key_text, "accessServers", "serverLogin", "a", "url",
                  "wss://a.example/ws", "serverLogin", "b", "url", "wss://b.example:8443/ws",
                  "encKey", enc_text, "encKeySigB64", sig_text, "source", "local");
    assert_non_null(p);
    return p;
}

static void test_a_record(void **state)
{
    (void)state;
    uint8_t key[DM_KEY_BYTES];
    struct record r;
    json_t *p = answer("bob");
    assert_int_equal(RECORD_USER, record_read(p, "bob", &r));
    dm_public_key(seed, key);
    assert_memory_equal(key, r.user.client_key, sizeof key);
    assert_string_equal("bob", r.user.login);
    assert_int_equal(2, r.user.n_servers);
    assert_string_equal("b", r.user.servers[1].login);
    assert_string_equal("wss://b.example:8443/ws", r.user.servers[1].url);
    assert_string_equal(json_string_value(json_object_get(p, "encKey")), r.user.enc_key);
    assert_string_equal(json_string_value(json_object_get(p, "encKeySigB64")), r.user.enc_key_sig);
    assert_true(r.local);
    assert_false(r.provisional);
    json_decref(p);
}

static void test_an_encryption_key_that_is_not_the_users(void **state)
{
    (void)state;
    struct record r;
    json_t *p = answer("alice");
    assert_int_equal(RECORD_USER, record_read(p, "bob", &r));
    assert_null(r.user.enc_key);
    assert_null(r.user.enc_key_sig);
    json_decref(p);
    p = answer("bob");
    (void)json_object_del(p, "encKeySigB64");
    assert_int_equal(RECORD_USER, record_read(p, "bob", &r));
    assert_null(r.user.enc_key);
    json_decref(p);
}

static void test_nobody(void **state)
{
    (void)state;
    struct record r;
    json_t *p = json_pack("{s:b}", "exists", 0);
    assert_int_equal(RECORD_NOBODY, record_read(p, "bob", &r));
    json_decref(p);
}

static void test_no_record_of_this_user(void **state)
{
    (void)state;
    static const struct {
        const char *name, *value;
    } rows[] = {
        {"exists", "1"},
        {"login", "\"alice\""},
        {"login", "7"},
        {"clientKey", "\"AAAA\""},
        {"accessServers", "[]"},
        {"accessServers", "{}"},
        {"accessServers", "[1]"},
        {"accessServers", "[{\"serverLogin\":\"A\",\"url\":\"wss://a/ws\"}]"},
        {"accessServers", "[{\"serverLogin\":\"a\",\"url\":\"ws://a/ws\"}]"},
        {"accessServers", "[{\"serverLogin\":\"a\",\"url\":\"wss://a/x=y\"}]"},
        {"accessServers", "[{\"serverLogin\":\"a\",\"url\":\"wss://a/ws\"},"
                          "{\"serverLogin\":\"a\",\"url\":\"wss://b/ws\"}]"},
        {"accessServers", "[{\"serverLogin\":\"a\",\"url\":\"wss://a/ws\"},"
                          "{\"serverLogin\":\"b\",\"url\":\"wss://b/ws\"},"
                          "{\"serverLogin\":\"c\",\"url\":\"wss://c/ws\"}]"},
        {"source", "1"},
    };
    struct record r;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *p = answer("bob");
        json_t *v = json_loads(rows[i].value, JSON_DECODE_ANY, NULL);
        assert_non_null(v);
        (void)json_object_set_new(p, rows[i].name, v);
        if (record_read(p, "bob", &r) != RECORD_BAD)
            fail_msg("%s: %s was taken", rows[i].name, rows[i].value);
        json_decref(p);
    }
}

int main(void)
{
    if (sodium_init() < 0)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_record),
        cmocka_unit_test(test_an_encryption_key_that_is_not_the_users),
        cmocka_unit_test(test_nobody),
        cmocka_unit_test(test_no_record_of_this_user),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
