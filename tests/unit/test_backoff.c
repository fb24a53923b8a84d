/* Tests of the reconnect delays: bounds of every step, and that they really vary. */
#include "util/backoff.h"
#include "util/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void each_step_stays_in_its_bounds(void **state)
{
    (void)state;
    for (int round = 0; round < 300; round++) {
        struct backoff b;
        backoff_init(&b, 1000, 30000);
        for (uint64_t high = 1000; high < 1 << 20; high *= 2) {
            uint32_t delay = backoff_next(&b);
            assert_in_range(delay, 500, high < 30000 ? high : 30000);
        }
    }
}

static void delays_are_spread_over_the_range(void **state)
{
    (void)state;
    unsigned low = 0, high = 0;
    for (int i = 0; i < 1000; i++) {
        struct backoff b;
        backoff_init(&b, 1000, 8000);
        for (int k = 0; k < 5; k++)
            (void)backoff_next(&b);
        uint32_t delay = backoff_next(&b); /* 500..8000 */
        low += delay < 2000;
        high += delay > 6000;
    }
    assert_in_range(low, 100, 300); /* expected 200 of 1000 */
    assert_in_range(high, 170, 370);
}

static void reset_starts_again(void **state)
{
    (void)state;
    struct backoff b;
    backoff_init(&b, 100, 60000);
    for (int i = 0; i < 20; i++)
        (void)backoff_next(&b);
    backoff_reset(&b);
    assert_in_range(backoff_next(&b), 50, 100);
}

static void extremes_neither_overflow_nor_vanish(void **state)
{
    (void)state;
    struct backoff b;
    backoff_init(&b, 0, 0);
    for (int i = 0; i < 100; i++)
        assert_int_equal(backoff_next(&b), 1);
    backoff_init(&b, UINT32_MAX, UINT32_MAX);
    for (int i = 0; i < 100; i++)
        assert_true(backoff_next(&b) >= UINT32_MAX / 2);
    backoff_init(&b, 1, UINT32_MAX);
    for (int i = 0; i < 1000; i++)
        assert_true(backoff_next(&b) >= 1);
    backoff_init(&b, 5000, 1000); /* the maximum wins */
    assert_int_equal(backoff_next(&b), 1000);
}

static void clocks_agree_with_themselves(void **state)
{
    (void)state;
    int64_t us = clock_mono_us(), ms = clock_mono_ms();
    assert_in_range(ms - us / 1000, 0, 10000);
    assert_true(clock_mono_us() >= us);
    assert_true(clock_wall_ms() > INT64_C(1600000000000));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_step_stays_in_its_bounds),
        cmocka_unit_test(delays_are_spread_over_the_range),
        cmocka_unit_test(reset_starts_again),
        cmocka_unit_test(extremes_neither_overflow_nor_vanish),
        cmocka_unit_test(clocks_agree_with_themselves),
    };
    return cmocka_run_group_tests_name("backoff", tests, NULL, NULL);
}
