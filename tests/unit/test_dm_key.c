/* Message keys, revisions, the pair check: properties over drawn values (vectors:
 * test_dm_vectors.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "dm/key.h"
#include "support_dm.h"
#include "util/mem.h"

static void test_keys_round_trip(void **state)
{
    (void)state;
    uint64_t rnd = 1;
    for (int i = 0; i < 5000; i++) {
        uint8_t body[DM_TEST_BODY];
        struct dm_container c = dm_draw_container(&rnd, body);
        char base[DM_BASE_KEY_MAX];
        char text[DM_MESSAGE_KEY_MAX];
        struct dm_key k;
        dm_base_key(&c, base);
        dm_message_key(&c, text);
        /* The message key is the base key, a bar and the type. */
        size_t n = strlen(base);
        assert_memory_equal(text, base, n);
        assert_int_equal(text[n], '|');
        assert_int_equal(text[n + 1], '0' + (int)c.type);
        assert_int_equal(text[n + 2], '\0');

        assert_true(dm_key_parse(text, &k));
        assert_string_equal(k.from, c.from);
        assert_string_equal(k.to, c.to);
        assert_int_equal(k.time_ms, c.time_ms);
        assert_int_equal(k.nonce, c.nonce);
        assert_int_equal(k.type, c.type);
    }
}

/* A changed key is refused, or is the key of another message: never a second name of the same one.
 */
static void test_one_name_per_message(void **state)
{
    (void)state;
    static const char alphabet[] = "|0123456789abz_ +-A\n\x80";
    uint64_t rnd = 2;
    for (int i = 0; i < 20000; i++) {
        uint8_t body[DM_TEST_BODY];
        struct dm_container c = dm_draw_container(&rnd, body);
        char text[DM_MESSAGE_KEY_MAX];
        dm_message_key(&c, text);
        char *changed = xstrdup(text);
        size_t at = dm_draw(&rnd, strlen(text));
        changed[at] = alphabet[dm_draw(&rnd, sizeof(alphabet))]; /* its NUL too */
        struct dm_key k;
        if (strcmp(changed, text) != 0 && dm_key_parse(changed, &k)) {
            struct dm_container d = {.type = k.type, .time_ms = k.time_ms, .nonce = k.nonce};
            char again[DM_MESSAGE_KEY_MAX];
            memcpy(d.from, k.from, sizeof(d.from));
            memcpy(d.to, k.to, sizeof(d.to));
            dm_message_key(&d, again);
            assert_string_equal(again, changed);
        }
        free(changed);
    }
}

static void test_longest_keys_fit(void **state)
{
    (void)state;
    struct dm_container c = {.type = DM_CLEAR_OWN, .time_ms = DM_INT_MAX, .nonce = UINT32_MAX};
    char base[DM_BASE_KEY_MAX];
    char text[DM_MESSAGE_KEY_MAX];
    memset(c.from, 'a', DM_LOGIN_MAX);
    memset(c.to, 'b', DM_LOGIN_MAX);
    dm_base_key(&c, base);
    dm_message_key(&c, text);
    assert_int_equal(strlen(base), DM_BASE_KEY_MAX - 1);
    assert_int_equal(strlen(text), DM_MESSAGE_KEY_MAX - 1);
}

static void test_delivery_key(void **state)
{
    (void)state;
    static const int want[] = {0, 2, 2, 4, 4, 5, 6, 7, 8};
    for (int type = DM_TEXT_IN; type <= DM_CLEAR_OWN; type++) {
        struct dm_key k = {.from = "a", .to = "b", .time_ms = 1, .nonce = 2};
        struct dm_key d;
        char out[DM_MESSAGE_KEY_MAX];
        k.type = (enum dm_type)type;
        dm_delivery_key(&k, out);
        assert_true(dm_key_parse(out, &d));
        assert_int_equal(d.type, want[type]);
        assert_int_equal(d.nonce, 2);
    }
}

/* An order: antisymmetric and transitive, and only the two revision fields count. */
static void test_revisions_are_ordered(void **state)
{
    (void)state;
    uint64_t rnd = 3;
    for (int i = 0; i < 20000; i++) {
        struct dm_container c[3] = {0};
        for (int n = 0; n < 3; n++) {
            c[n].revision_time_ms = dm_draw_time(&rnd) >> (dm_draw(&rnd, 2) ? 0 : 50);
            c[n].reencrypted_at_ms = dm_draw_time(&rnd) >> (dm_draw(&rnd, 2) ? 0 : 50);
            c[n].nonce = (uint32_t)dm_draw(&rnd, UINT32_MAX);
        }
        int ab = dm_revision_cmp(&c[0], &c[1]);
        int bc = dm_revision_cmp(&c[1], &c[2]);
        assert_int_equal(ab, -dm_revision_cmp(&c[1], &c[0]));
        assert_int_equal(dm_revision_cmp(&c[0], &c[0]), 0);
        if (ab <= 0 && bc <= 0)
            assert_true(dm_revision_cmp(&c[0], &c[2]) <= 0);
    }
}

/* A drawn pair is one; any field that must agree and does not makes it none. */
static void test_pairs(void **state)
{
    (void)state;
    uint64_t rnd = 4;
    for (int i = 0; i < 5000; i++) {
        uint8_t body[DM_TEST_BODY];
        struct dm_container in = dm_draw_container(&rnd, body);
        if (in.type != DM_TEXT_IN && in.type != DM_RECEIPT_IN)
            continue;
        struct dm_container out = in;
        out.type = (enum dm_type)((int)in.type + 1);
        assert_true(dm_is_pair(&in, &out));
        assert_false(dm_is_pair(&out, &in));
        assert_false(dm_is_pair(&in, &in));
        out.reencrypted_at_ms ^= 1;
        assert_true(dm_is_pair(&in, &out));

        struct dm_container d = out;
        d.time_ms ^= INT64_C(1) << dm_draw(&rnd, 53);
        assert_false(dm_is_pair(&in, &d));
        d = out;
        d.nonce ^= UINT32_C(1) << dm_draw(&rnd, 32);
        assert_false(dm_is_pair(&in, &d));
        d = out;
        d.revision_time_ms ^= INT64_C(1) << dm_draw(&rnd, 53);
        assert_false(dm_is_pair(&in, &d));
        d = out;
        d.from[0] = d.from[0] == 'a' ? 'b' : 'a';
        assert_false(dm_is_pair(&in, &d));
        d = out;
        d.to[0] = d.to[0] == 'a' ? 'b' : 'a';
        assert_false(dm_is_pair(&in, &d));

        uint8_t other[DM_TEST_BODY];
        memcpy(other, body, in.body_len);
        other[in.body_len - 1] ^= 1;
        d = out;
        d.body = other;
        assert_int_equal(dm_is_pair(&in, &d), in.type == DM_TEXT_IN);
    }
}

static void test_sha256(void **state)
{
    (void)state;
    /* FIPS 180-2: "abc"; and nothing at all. */
    static const uint8_t abc[] = {0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea};
    static const uint8_t nothing[] = {0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14};
    uint8_t hash[32];
    dm_sha256((const uint8_t *)"abc", 3, hash);
    assert_memory_equal(hash, abc, sizeof(abc));
    dm_sha256(NULL, 0, hash);
    assert_memory_equal(hash, nothing, sizeof(nothing));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys_round_trip),
        cmocka_unit_test(test_one_name_per_message),
        cmocka_unit_test(test_longest_keys_fit),
        cmocka_unit_test(test_delivery_key),
        cmocka_unit_test(test_revisions_are_ordered),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_sha256),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
