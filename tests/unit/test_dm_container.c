/* The container codec: properties over drawn values, and what is a caller's bug (vectors:
 * test_dm_vectors.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dm/container.h"
#include "support_dm.h"
#include "util/mem.h"

static const uint8_t seed[DM_KEY_BYTES] = {9, 8, 7};

/* *c, built, in an allocation of exactly its size: a read past the end is a finding of ASan. */
static uint8_t *built(const struct dm_container *c, size_t *n)
{
    *n = dm_container_len(c);
    uint8_t *blob = xmalloc(*n);
    assert_int_equal(dm_build(c, seed, blob), DM_OK);
    return blob;
}

static void test_logins(void **state)
{
    (void)state;
    for (int ch = 1; ch < 256; ch++) {
        char s[2] = {(char)ch, '\0'};
        bool good = (ch >= 'a' && ch <= 'z') || (ch >= '0' && ch <= '9') || ch == '_';
        assert_int_equal(dm_login_valid(s), good);
    }
    assert_false(dm_login_valid(""));
    assert_true(dm_login_valid("a23456789012345678901234567890"));
    assert_false(dm_login_valid("a234567890123456789012345678901"));
    /* 31 bytes without a NUL: refused, and byte 32 is never looked at. */
    char *full = xmalloc(DM_LOGIN_MAX + 1);
    memset(full, 'a', DM_LOGIN_MAX + 1);
    assert_false(dm_login_valid(full));
    free(full);
}

static void test_error_names(void **state)
{
    (void)state;
    static const char *const names[] = {
        "OK",           "BAD_MAGIC",  "BAD_VERSION",    "BAD_TYPE", "BAD_FROM_LOGIN",
        "BAD_TO_LOGIN", "BAD_LENGTH", "BODY_TOO_LARGE", "BAD_BODY", "BAD_TIME",
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        assert_string_equal(dm_error_name((enum dm_error)i), names[i]);
}

static void test_round_trip(void **state)
{
    (void)state;
    uint64_t rnd = 11;
    uint8_t key[DM_KEY_BYTES];
    dm_public_key(seed, key);
    for (int i = 0; i < 1000; i++) {
        uint8_t body[DM_TEST_BODY];
        struct dm_container c = dm_draw_container(&rnd, body);
        struct dm_container d;
        size_t n = 0;
        uint8_t *blob = built(&c, &n);
        assert_int_equal(dm_parse(blob, n, &d), DM_OK);
        assert_int_equal(d.type, c.type);
        assert_string_equal(d.from, c.from);
        assert_string_equal(d.to, c.to);
        assert_int_equal(d.time_ms, c.time_ms);
        assert_int_equal(d.nonce, c.nonce);
        assert_int_equal(d.revision_time_ms, c.revision_time_ms);
        assert_int_equal(d.reencrypted_at_ms, c.reencrypted_at_ms);
        assert_int_equal(d.body_len, c.body_len);
        assert_memory_equal(d.body, c.body, c.body_len);
        assert_true(dm_verify(blob, n, key));

        /* Any one bit: the signature is gone, whether or not the fields still parse. */
        size_t bit = dm_draw(&rnd, n * 8);
        blob[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        assert_false(dm_verify(blob, n, key));
        free(blob);
    }
}

/* No beginning of a container is a container, nor is one with more behind it. */
static void test_every_length(void **state)
{
    (void)state;
    uint64_t rnd = 12;
    for (int i = 0; i < 24; i++) {
        uint8_t body[DM_TEST_BODY];
        struct dm_container c = dm_draw_container(&rnd, body);
        struct dm_container d;
        size_t n = 0;
        uint8_t *blob = built(&c, &n);
        for (size_t cut = 0; cut < n; cut++) {
            uint8_t *part = xmalloc(cut);
            memcpy(part, blob, cut);
            assert_int_equal(dm_parse(part, cut, &d), DM_BAD_LENGTH);
            free(part);
        }
        blob = xrealloc(blob, n + 1);
        blob[n] = 0;
        assert_int_equal(dm_parse(blob, n + 1, &d), DM_BAD_LENGTH);
        free(blob);
    }
    struct dm_container d;
    assert_int_equal(dm_parse(NULL, 0, &d), DM_BAD_LENGTH);
}

/* Whatever is changed before the signature, dm_parse() accepts exactly what dm_build() would write.
 */
static void test_parse_and_build_agree(void **state)
{
    (void)state;
    uint64_t rnd = 13;
    int accepted = 0;
    for (int i = 0; i < 1000; i++) {
        uint8_t body[DM_TEST_BODY];
        struct dm_container c = dm_draw_container(&rnd, body);
        size_t n = 0;
        uint8_t *blob = built(&c, &n);
        for (int k = 0; k < 8; k++) {
            uint8_t *changed = xmalloc(n);
            memcpy(changed, blob, n);
            changed[dm_draw(&rnd, n - DM_SIG_BYTES)] = (uint8_t)dm_draw(&rnd, 256);
            struct dm_container d;
            if (dm_parse(changed, n, &d) == DM_OK) {
                size_t m = 0;
                uint8_t *again = built(&d, &m);
                assert_int_equal(m, n);
                assert_memory_equal(again, changed, n - DM_SIG_BYTES);
                free(again);
                accepted++;
            }
            free(changed);
        }
        free(blob);
    }
    assert_true(accepted > 1000);
}

/* dm_build() refuses a damaged struct with some code and writes nothing. */
static void test_build_refuses(void **state)
{
    (void)state;
    uint64_t rnd = 14;
    static const int64_t bad_times[] = {-1, DM_INT_MAX + 1, INT64_MAX, INT64_MIN};
    for (int i = 0; i < 2000; i++) {
        uint8_t body[DM_TEST_BODY];
        struct dm_container c = dm_draw_container(&rnd, body);
        enum dm_error want = DM_BAD_TIME;
        int64_t bad = bad_times[dm_draw(&rnd, 4)];
        switch (dm_draw(&rnd, 8)) {
        case 0:
            c.type = (enum dm_type)(dm_draw(&rnd, 2) ? 0 : 9);
            want = DM_BAD_TYPE;
            break;
        case 1:
            c.from[dm_draw(&rnd, strlen(c.from))] = '|';
            want = DM_BAD_FROM_LOGIN;
            break;
        case 2:
            memset(c.to, 'a', sizeof(c.to)); /* no NUL */
            want = DM_BAD_TO_LOGIN;
            break;
        case 3:
            c.time_ms = bad;
            break;
        case 4:
            c.revision_time_ms = bad;
            break;
        case 5:
            c.reencrypted_at_ms = bad;
            break;
        case 6:
            c.body_len = dm_draw(&rnd, 2) ? DM_BODY_MAX + 1 : SIZE_MAX;
            want = DM_BODY_TOO_LARGE;
            break;
        default:
            c.body_len = 0;
            c.body = NULL;
            want = DM_BAD_BODY;
            break;
        }
        uint8_t out[1] = {0x5a};
        assert_int_equal(dm_build(&c, seed, out), want);
        assert_int_equal(out[0], 0x5a);
    }
}

static void test_largest_container(void **state)
{
    (void)state;
    struct dm_container c = {.type = DM_TEXT_IN, .body_len = DM_BODY_MAX};
    struct dm_container d;
    size_t n = 0;
    uint8_t *body = xcalloc(DM_BODY_MAX, 1);
    c.body = body;
    memset(c.from, 'a', DM_LOGIN_MAX);
    memset(c.to, 'b', DM_LOGIN_MAX);
    uint8_t *blob = built(&c, &n);
    assert_int_equal(n, DM_CONTAINER_MAX);
    assert_int_equal(dm_parse(blob, n, &d), DM_OK);
    free(blob);
    free(body);
}

/* Runs `f` in a child; true if it aborted. */
static bool aborts(void (*f)(const struct dm_container *c), const struct dm_container *c)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)close(STDERR_FILENO); /* the message is expected */
        f(c);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void ask_receipt(const struct dm_container *c)
{
    (void)dm_receipt_of(c);
}
static void ask_delete(const struct dm_container *c)
{
    (void)dm_delete_of(c);
}
static void ask_clear(const struct dm_container *c)
{
    (void)dm_clear_of(c);
}

static void test_body_of_another_type_aborts(void **state)
{
    (void)state;
    uint8_t body[DM_TEST_BODY] = {1};
    for (int type = DM_TEXT_IN; type <= DM_CLEAR_OWN; type++) {
        struct dm_container c = {.type = (enum dm_type)type, .body = body};
        c.body_len = DM_RECEIPT_BODY;
        assert_int_equal(aborts(ask_receipt, &c), type != DM_RECEIPT_IN && type != DM_RECEIPT_OUT);
        c.body_len = DM_DELETE_BODY;
        assert_int_equal(aborts(ask_delete, &c), type != DM_DELETE_BOTH && type != DM_DELETE_OWN);
        c.body_len = DM_CLEAR_BODY;
        assert_int_equal(aborts(ask_clear, &c), type != DM_CLEAR_BOTH && type != DM_CLEAR_OWN);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logins),
        cmocka_unit_test(test_error_names),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_every_length),
        cmocka_unit_test(test_parse_and_build_agree),
        cmocka_unit_test(test_build_refuses),
        cmocka_unit_test(test_largest_container),
        cmocka_unit_test(test_body_of_another_type_aborts),
    };
    if (sodium_init() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
