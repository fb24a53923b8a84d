/* Tests of the byte buffer. */
#include "util/buf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void empty_buffer_reads_as_nothing(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 0);
    assert_int_equal(buf_len(&b), 0);
    assert_non_null(buf_head(&b));
    assert_true(buf_append(&b, NULL, 0));
    buf_consume(&b, 0);
    buf_free(&b);
}

static void appended_bytes_come_out_in_order(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 0);
    assert_true(buf_append(&b, "hello ", 6));
    assert_true(buf_append(&b, "world", 5));
    assert_int_equal(buf_len(&b), 11);
    assert_memory_equal(buf_head(&b), "hello world", 11);
    buf_consume(&b, 6);
    assert_int_equal(buf_len(&b), 5);
    assert_memory_equal(buf_head(&b), "world", 5);
    buf_free(&b);
}

static void bound_refuses_whole_append(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 10);
    assert_true(buf_append(&b, "12345678", 8));
    assert_false(buf_append(&b, "abc", 3));
    assert_int_equal(buf_len(&b), 8);
    assert_null(buf_reserve(&b, 3));
    assert_null(buf_reserve(&b, SIZE_MAX));
    assert_true(buf_append(&b, "ab", 2));
    assert_false(buf_append(&b, "c", 1));
    buf_consume(&b, 1);
    assert_true(buf_append(&b, "c", 1));
    assert_memory_equal(buf_head(&b), "2345678abc", 10);
    buf_free(&b);
    assert_true(buf_append(&b, "0123456789", 10)); /* usable, with the same bound */
    assert_false(buf_append(&b, "x", 1));
    buf_free(&b);
}

static void reserve_and_commit(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 1 << 20);
    uint8_t *room = buf_reserve(&b, 1000);
    assert_non_null(room);
    memset(room, 'x', 1000);
    assert_int_equal(buf_len(&b), 0);
    buf_commit(&b, 400);
    assert_int_equal(buf_len(&b), 400);
    room = buf_reserve(&b, 5000);
    memset(room, 'y', 5000);
    buf_commit(&b, 5000);
    assert_int_equal(buf_head(&b)[399], 'x');
    assert_int_equal(buf_head(&b)[400], 'y');
    assert_int_equal(buf_len(&b), 5400);
    buf_free(&b);
}

/* A stream that is never empty must neither lose bytes nor grow without end. */
static void long_stream_keeps_content_and_size(void **state)
{
    (void)state;
    struct buf b;
    uint32_t in = 0, out = 0;
    buf_init(&b, 4000);
    for (int round = 0; round < 20000; round++) {
        while (buf_append(&b, &in, sizeof in))
            in++;
        for (int i = 0; i < 1 + round % 700; i++) {
            uint32_t got;
            memcpy(&got, buf_head(&b), sizeof got);
            assert_int_equal(got, out);
            out++;
            buf_consume(&b, sizeof got);
        }
    }
    assert_true(b.cap <= 3 * 4000);
    buf_free(&b);
}

static void emptied_large_storage_is_released(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 0);
    assert_non_null(buf_reserve(&b, 64 * 1024));
    buf_commit(&b, 1);
    buf_consume(&b, 1);
    assert_non_null(b.data); /* small: kept */
    uint8_t *room = buf_reserve(&b, 64 * 1024 + 1);
    assert_non_null(room);
    buf_commit(&b, 2);
    buf_consume(&b, 1);
    assert_non_null(b.data);
    buf_consume(&b, 1);
    assert_null(b.data);
    assert_int_equal(b.cap, 0);
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(empty_buffer_reads_as_nothing),
        cmocka_unit_test(appended_bytes_come_out_in_order),
        cmocka_unit_test(bound_refuses_whole_append),
        cmocka_unit_test(reserve_and_commit),
        cmocka_unit_test(long_stream_keeps_content_and_size),
        cmocka_unit_test(emptied_large_storage_is_released),
    };
    return cmocka_run_group_tests_name("buf", tests, NULL, NULL);
}
