/* Which bucket counts, and how many are kept. */
#include "frontd/limits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "daemon/settings.h"
#include "util/clock.h"

static int64_t now_us;

int64_t clock_mono_us(void)
{
    return now_us;
}

int64_t clock_mono_ms(void)
{
    return now_us / 1000;
}

int64_t clock_wall_ms(void)
{
    return now_us / 1000;
}

static struct config *config;
static struct limits *limits;

static void set(const char *assignment)
{
    char *error = NULL;
    assert_true(config_set(config, assignment, "test", &error));
}

static int setup(void **state)
{
    (void)state;
    now_us = 1000000000;
    config = config_new(settings_keys);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    limits_free(limits);
    config_free(config);
    return 0;
}

static unsigned take_all(enum limit_kind kind, const char *key)
{
    unsigned n = 0;
    while (n < 100000 && limits_take(limits, kind, key) == 0)
        n++;
    return n;
}

static void the_defaults(void **state)
{
    (void)state;
    limits = limits_new(config, 100);
    assert_int_equal(take_all(LIMIT_LOGIN, "alice"), 1000);
    assert_int_equal(limits_take(limits, LIMIT_LOGIN, "alice"), 5);
    assert_int_equal(take_all(LIMIT_LOGIN, "bob"), 1000);
    assert_int_equal(take_all(LIMIT_ADDRESS, "192.0.2.1"), 100);
    assert_int_equal(limits_take(limits, LIMIT_ADDRESS, "192.0.2.1"), 50);
    assert_int_equal(take_all(LIMIT_PEER, "beta"), 5000);
    assert_int_equal(take_all(LIMIT_HELLO, "192.0.2.1"), 100);
    assert_int_equal(take_all(LIMIT_ADD_USER, "192.0.2.1"), 10);
    assert_int_equal(limits_take(limits, LIMIT_ADD_USER, "192.0.2.1"), 60000);
    now_us += 1000000;
    assert_int_equal(take_all(LIMIT_LOGIN, "alice"), 200);
    assert_int_equal(take_all(LIMIT_ADDRESS, "192.0.2.1"), 20);
    assert_int_equal(take_all(LIMIT_PEER, "beta"), 5000);
}

static void none(void **state)
{
    (void)state;
    set("limits.requestsPerLogin=0");
    limits = limits_new(config, 100);
    assert_int_equal(take_all(LIMIT_LOGIN, "alice"), 100000);
}

static void networks(void **state)
{
    (void)state;
    limits = limits_new(config, 100);
    assert_int_equal(take_all(LIMIT_ADDRESS, "2001:db8:1:2:3:4:5:6"), 100);
    assert_int_equal(take_all(LIMIT_ADDRESS, "2001:db8:1:2::1"), 0);
    assert_int_equal(take_all(LIMIT_ADDRESS, "2001:db8:1:3::1"), 100);
    assert_int_equal(take_all(LIMIT_ADDRESS, "192.0.2.1"), 100);
    assert_int_equal(take_all(LIMIT_ADDRESS, "192.0.2.2"), 100);
    assert_int_equal(take_all(LIMIT_ADDRESS, "::ffff:192.0.2.3"), 100);
    assert_int_equal(take_all(LIMIT_ADDRESS, "::ffff:192.0.2.4"), 100);
}

static void beyond_the_bound_newcomers_share(void **state)
{
    (void)state;
    limits = limits_new(config, 1000);
    char key[32];
    for (int i = 0; i < 1000; i++) {
        (void)snprintf(key, sizeof key, "192.0.%d.%d", i / 256, i % 256);
        assert_int_equal(limits_take(limits, LIMIT_ADDRESS, key), 0);
    }
    assert_int_equal(take_all(LIMIT_ADDRESS, "198.51.100.1"), 100);
    assert_int_equal(take_all(LIMIT_ADDRESS, "198.51.100.2"), 0);
    /* Those who are known are not touched by that. */
    assert_int_equal(take_all(LIMIT_ADDRESS, "192.0.0.1"), 99);
    /* All but one are full again after a second: there is room. */
    now_us += 1000000;
    assert_int_equal(take_all(LIMIT_ADDRESS, "198.51.100.3"), 100);
    assert_int_equal(take_all(LIMIT_ADDRESS, "198.51.100.4"), 100);
    assert_int_equal(take_all(LIMIT_ADDRESS, "192.0.0.1"), 20);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(the_defaults),
        T(none),
        T(networks),
        T(beyond_the_bound_newcomers_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
