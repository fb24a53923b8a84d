/* A token bucket, with the test's own clock. */
#include "util/bucket.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define S INT64_C(1000000)

static int64_t take_all(struct bucket *b, const struct bucket_rate *r, int64_t now, int64_t *wait)
{
    int64_t n = 0;
    while ((*wait = bucket_take(b, r, now)) == 0)
        n++;
    return n;
}

static void burst_then_rate(void **state)
{
    (void)state;
    const struct bucket_rate r = bucket_rate_of(20, 1, 100);
    struct bucket b = {0};
    int64_t now = 5 * S, wait;
    assert_int_equal(take_all(&b, &r, now, &wait), 100);
    assert_int_equal(wait, S / 20);
    assert_false(bucket_is_full(&b, now));
    /* Asking costs nothing. */
    assert_int_equal(bucket_take(&b, &r, now), S / 20);
    assert_int_equal(take_all(&b, &r, now + wait, &wait), 1);
    assert_int_equal(take_all(&b, &r, now + S, &wait), 19);
    assert_int_equal(take_all(&b, &r, now + 2 * S, &wait), 20);
}

static void full_again_and_no_fuller(void **state)
{
    (void)state;
    const struct bucket_rate r = bucket_rate_of(20, 1, 100);
    struct bucket b = {0};
    int64_t wait;
    assert_true(bucket_is_full(&b, S));
    assert_int_equal(take_all(&b, &r, S, &wait), 100);
    assert_false(bucket_is_full(&b, 6 * S - 1));
    assert_true(bucket_is_full(&b, 6 * S));
    assert_int_equal(take_all(&b, &r, 1000 * S, &wait), 100);
}

static void rates(void **state)
{
    (void)state;
    struct bucket_rate r = bucket_rate_of(1, 60, 10);
    struct bucket b = {0};
    int64_t wait;
    assert_int_equal(take_all(&b, &r, S, &wait), 10);
    assert_int_equal(wait, 60 * S);
    r = bucket_rate_of(5000000, 1, 1);
    assert_int_equal(r.interval_us, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(burst_then_rate),
        cmocka_unit_test(full_again_and_no_fuller),
        cmocka_unit_test(rates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
