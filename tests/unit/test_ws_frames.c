/*
 * What a peer can do wrong below the level of messages: each breach ends with the close code of RFC
 * 6455, and the server's owner is told once. And what is right but odd.
 */
#include "support_frames.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_unmasked(void **state)
{
    (void)state;
    struct frames f;
    frames_start(&f);
    frames_put_header(&f, FIN | TEXT, 5, false);
    assert_true(buf_append(&f.out, "hello", 5));
    frames_expect_breach(&f, 1002);
}

static void test_reserved_bit(void **state)
{
    (void)state;
    struct frames f;
    frames_start(&f);
    frames_put(&f, FIN | RSV1 | TEXT, "hello", 5);
    frames_expect_breach(&f, 1002);
}

static void test_unknown_opcodes(void **state)
{
    (void)state;
    static const unsigned opcodes[] = {3, 7, 11, 15};
    for (size_t i = 0; i < sizeof(opcodes) / sizeof(opcodes[0]); i++) {
        struct frames f;
        frames_start(&f);
        frames_put(&f, FIN | opcodes[i], "x", 1);
        frames_expect_breach(&f, 1002);
    }
}

static void test_broken_sequences(void **state)
{
    (void)state;
    struct frames f;
    frames_start(&f); /* continuation of nothing */
    frames_put(&f, FIN | CONT, "x", 1);
    frames_expect_breach(&f, 1002);
    frames_start(&f); /* a message within a message */
    frames_put(&f, TEXT, "x", 1);
    frames_put(&f, FIN | TEXT, "y", 1);
    frames_expect_breach(&f, 1002);
    frames_start(&f); /* a control frame in pieces */
    frames_put(&f, PING, "x", 1);
    frames_expect_breach(&f, 1002);
    frames_start(&f); /* a control frame of more than 125 bytes */
    char big[126] = {0};
    frames_put(&f, FIN | PING, big, sizeof(big));
    frames_expect_breach(&f, 1002);
    frames_start(&f); /* a length in more bytes than it needs */
    assert_true(buf_append(&f.out, "\x81\xfe\x00\x01\x00\x00\x00\x00x", 9));
    frames_expect_breach(&f, 1002);
    frames_start(&f); /* a length with the highest bit */
    frames_put_header(&f, FIN | TEXT, UINT64_MAX, true);
    assert_true(buf_append(&f.out, "x", 1));
    frames_expect_breach(&f, 1002);
}

static void test_binary(void **state)
{
    (void)state;
    struct frames f;
    frames_start(&f);
    frames_put(&f, FIN | BINARY, "hello", 5);
    frames_expect_breach(&f, 1003);
}

static void test_bad_utf8(void **state)
{
    (void)state;
    struct frames f;
    frames_start(&f);
    frames_put(&f, FIN | TEXT, "a\xc3(", 3);
    frames_expect_breach(&f, 1007);
    frames_start(&f); /* cut off at the end of the message */
    frames_put(&f, FIN | TEXT, "abc\xe2\x82", 5);
    frames_expect_breach(&f, 1007);
    frames_start(&f); /* a surrogate, split over fragments */
    frames_put(&f, TEXT, "\xed", 1);
    frames_put(&f, FIN | CONT, "\xa0\x80", 2);
    frames_expect_breach(&f, 1007);
}

static void test_utf8_across_fragments(void **state)
{
    (void)state;
    struct frames f;
    frames_start(&f);
    f.server.ends[0].keep_last = true;
    frames_put(&f, TEXT, "\xf0\x9f", 2);
    frames_put(&f, FIN | PING, "p", 1);
    frames_put(&f, CONT, "", 0);
    frames_put(&f, FIN | CONT, "\x92\xa9!", 3);
    frames_put_close(&f, 1000, "");
    frames_send(&f, 0);
    frames_expect_close(&f, 1000, WS_END_CLOSED);
    assert_int_equal(f.server.ends[0].messages, 1);
    assert_int_equal(f.server.ends[0].bytes, 5);
    frames_finish(&f);
}

static void test_too_long(void **state)
{
    (void)state;
    struct frames f;
    char *text = calloc(1, 200000);
    memset(text, 'x', 200000);
    frames_start(&f); /* exactly the limit passes */
    frames_put(&f, TEXT, text, 60000);
    frames_put(&f, FIN | CONT, text, 40000);
    frames_put_close(&f, 1000, "");
    frames_send(&f, 0);
    net_run_until(&f.loop, &f.raw.ended, 1, 10);
    assert_int_equal(f.server.ends[0].messages, 1);
    assert_int_equal(f.server.ends[0].bytes, 100000);
    frames_finish(&f);

    frames_start(&f);
    frames_put(&f, FIN | TEXT, text, 100001);
    frames_expect_breach(&f, 1009);
    frames_start(&f);
    frames_put(&f, TEXT, text, 60000);
    frames_put(&f, FIN | CONT, text, 40001);
    frames_expect_breach(&f, 1009);
    free(text);
}

static void test_too_many_fragments(void **state)
{
    (void)state;
    struct frames f;
    frames_start(&f); /* the limit passes */
    frames_put(&f, TEXT, "x", 1);
    for (int i = 0; i < 98; i++)
        frames_put(&f, CONT, "x", 1);
    frames_put(&f, FIN | CONT, "x", 1);
    frames_put_close(&f, 1000, "");
    frames_send(&f, 0);
    net_run_until(&f.loop, &f.raw.ended, 1, 10);
    assert_int_equal(f.server.ends[0].messages, 1);
    frames_finish(&f);

    for (size_t size = 0; size < 2; size++) {
        frames_start(&f);
        frames_put(&f, TEXT, "x", 1);
        for (int i = 0; i < 100000; i++)
            frames_put(&f, CONT, "x", size);
        frames_expect_breach(&f, 1009);
    }
}

static void test_giant_announcement(void **state)
{
    (void)state;
    struct frames f;
    frames_start(&f);
    frames_put_header(&f, FIN | TEXT, INT64_MAX, true);
    assert_true(buf_append(&f.out, "x", 1));
    size_t before = mallinfo2().uordblks;
    frames_send(&f, 0);
    frames_expect_close(&f, 1009, WS_END_PROTOCOL);
    assert_true(mallinfo2().uordblks < before + 512 * 1024);
    frames_finish(&f);

    /* The same within a message whose length so far would overflow the sum. */
    frames_start(&f);
    frames_put(&f, TEXT, "hello", 5);
    frames_put_header(&f, FIN | CONT, INT64_MAX, true);
    assert_true(buf_append(&f.out, "x", 1));
    frames_expect_breach(&f, 1009);
}

static void test_close_codes(void **state)
{
    (void)state;
    static const int good[] = {1000, 1001, 1003, 1007, 1011, 1012, 1013, 1014, 3000, 4001, 4999};
    static const int bad[] = {0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000};
    struct frames f;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        frames_start(&f);
        frames_put_close(&f, good[i], "за́чем");
        frames_send(&f, i % 2);
        frames_expect_close(&f, good[i], WS_END_CLOSED);
        assert_string_equal(f.server.ends[0].reason, "за́чем");
        frames_finish(&f);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        frames_start(&f);
        frames_put_close(&f, bad[i], "");
        frames_expect_breach(&f, 1002);
    }
    frames_start(&f); /* without a code */
    frames_put(&f, FIN | CLOSE, "", 0);
    frames_send(&f, 0);
    frames_expect_close(&f, 1005, WS_END_CLOSED);
    frames_finish(&f);
    frames_start(&f); /* half a code */
    frames_put(&f, FIN | CLOSE, "\x03", 1);
    frames_expect_breach(&f, 1002);
    frames_start(&f); /* a reason that is no text */
    frames_put_close(&f, 1000, "\xff");
    frames_expect_breach(&f, 1007);
}

static void test_nothing_after_close(void **state)
{
    (void)state;
    struct frames f;
    frames_start(&f);
    frames_put_close(&f, 1000, "");
    frames_put(&f, FIN | TEXT, "late", 4);
    frames_send(&f, 0);
    frames_expect_close(&f, 1000, WS_END_CLOSED);
    assert_int_equal(f.server.ends[0].messages, 0);
    frames_finish(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unmasked),
        cmocka_unit_test(test_reserved_bit),
        cmocka_unit_test(test_unknown_opcodes),
        cmocka_unit_test(test_broken_sequences),
        cmocka_unit_test(test_binary),
        cmocka_unit_test(test_bad_utf8),
        cmocka_unit_test(test_utf8_across_fragments),
        cmocka_unit_test(test_too_long),
        cmocka_unit_test(test_too_many_fragments),
        cmocka_unit_test(test_giant_announcement),
        cmocka_unit_test(test_close_codes),
        cmocka_unit_test(test_nothing_after_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
