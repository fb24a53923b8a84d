/*
 * When to dial: simulated clocks, and random numbers that are the same in every run.
 */
#include "peer/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sodium.h>

enum { PEERS = 200, TENTH = PEERS / 10, DIALS_MAX = 100000 };

/* --- seeded random numbers, in place of libsodium's --- */

static uint64_t seed;

static uint32_t next_random(void) /* splitmix64 */
{
    uint64_t z = (seed += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)(z >> 32);
}

static const char *random_name(void)
{
    return "seeded";
}

static void random_buf(void *buf, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)buf)[i] = (uint8_t)next_random();
}

static struct randombytes_implementation seeded = {
    .implementation_name = random_name, .random = next_random, .buf = random_buf};

/* --- the dials of a simulation --- */

static int64_t dialled[DIALS_MAX];
static unsigned n_dialled;

static void note(int64_t at)
{
    assert_true(n_dialled < DIALS_MAX);
    dialled[n_dialled++] = at;
}

static int by_time(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The most dials in any second. */
static unsigned busiest_second(void)
{
    unsigned most = 0, from = 0;
    qsort(dialled, n_dialled, sizeof *dialled, by_time);
    for (unsigned i = 0; i < n_dialled; i++) {
        while (dialled[i] - dialled[from] >= 1000)
            from++;
        if (i - from + 1 > most)
            most = i - from + 1;
    }
    return most;
}

static int setup(void **state)
{
    (void)state;
    n_dialled = 0;
    return 0;
}

/* --- one process and its 200 peers --- */

/* All of them are to be dialled as soon as the limit allows; returns when the last one was. */
static int64_t dial_all(unsigned n_peers, unsigned wanted, int64_t start)
{
    struct dial_limit l = {0};
    unsigned most = dial_limit_most(20, n_peers);
    int64_t now = start;
    for (unsigned i = 0; i < wanted;) {
        if (dial_limit_take(&l, now, most)) {
            note(now);
            i++;
        } else {
            uint32_t wait = dial_limit_wait_ms(&l, now, most);
            assert_true(wait > 0 && wait <= 1100);
            now += wait;
        }
    }
    return now - start;
}

static void calls_to_all_peers_at_once(void **state)
{
    (void)state;
    int64_t took = dial_all(PEERS, PEERS, 123456);
    assert_true(busiest_second() <= TENTH);
    assert_true(took <= 25000); /* within callerTimeout */
    n_dialled = 0;
    took = dial_all(1000, 1000, 5);
    assert_true(busiest_second() <= 100);
    assert_true(took <= 25000);
}

static void few_peers_do_not_wait(void **state)
{
    (void)state;
    assert_int_equal(0, dial_all(PEERS, 20, 999));
    assert_int_equal(0, dial_all(3, 3, 1));
    struct dial_limit l = {0};
    for (int64_t now = 1; now < 100000; now += 57) /* and a steady trickle never does */
        assert_true(dial_limit_take(&l, now, 20));
    assert_int_equal(0, dial_limit_wait_ms(&l, 100000 + 5000, 20));
}

static void eager_start(void **state)
{
    (void)state;
    for (seed = 1; seed <= 20; seed++) {
        int64_t want[PEERS];
        struct dial_limit l = {0};
        n_dialled = 0;
        for (unsigned i = 0; i < PEERS; i++)
            want[i] = dial_first_ms(PEERS);
        qsort(want, PEERS, sizeof *want, by_time);
        int64_t now = 0;
        for (unsigned i = 0; i < PEERS; i++) {
            now = want[i] > now ? want[i] : now;
            now += dial_limit_wait_ms(&l, now, TENTH);
            assert_true(dial_limit_take(&l, now, TENTH));
            note(now);
        }
        assert_true(busiest_second() <= TENTH);
        assert_true(now <= 30000);
        for (unsigned i = 0; i < 50; i++)
            assert_true(dial_first_ms(3) < 300);
    }
}

/* --- one peer and the 200 servers that lost it --- */

/* Each server dials as soon as its back-off (and, where nobody waits, its spread) is over, from the
 * moment 0 when the connections were lost until it succeeds, from `back_ms` on. */
static void servers_come_back(int64_t back_ms, bool eager, int64_t *last)
{
    *last = 0;
    for (unsigned i = 0; i < PEERS; i++) {
        struct backoff b;
        backoff_init(&b, 500, 60000);
        int64_t now = eager ? dial_again_ms(&b) : 0;
        while (now < back_ms) {
            now += backoff_next(&b);
            now += eager ? dial_again_ms(&b) : 0;
        }
        note(now);
        *last = now > *last ? now : *last;
    }
}

static void worst_of_runs(int64_t outage_ms, bool eager)
{
    unsigned most = 0;
    int64_t last;
    for (seed = 1; seed <= 10 * 1000; seed += 1000) {
        n_dialled = 0;
        servers_come_back(outage_ms, eager, &last);
        assert_true(last - outage_ms <= 60000);
        most = busiest_second() > most ? busiest_second() : most;
    }
    print_message("outage %lld ms: %u of %d in the busiest second\n", (long long)outage_ms, most,
                  PEERS);
    assert_true(most <= TENTH);
}

static void eager_servers_come_back(void **state)
{
    (void)state;
    static const int64_t outages[] = {0, 500, 2000, 5000, 20000, 60000, 600000};
    for (size_t i = 0; i < sizeof outages / sizeof *outages; i++) {
        worst_of_runs(outages[i], true);
    }
}

/* Where calls keep coming, a server dials at the end of each back-off: after a long outage that is
 * spread by jitter alone. */
static void busy_servers_come_back(void **state)
{
    (void)state;
    static const int64_t outages[] = {30000, 60000, 600000};
    for (size_t i = 0; i < sizeof outages / sizeof *outages; i++) {
        worst_of_runs(outages[i], false);
    }
}

int main(void)
{
    if (randombytes_set_implementation(&seeded) != 0)
        return 1;
#define T(name) cmocka_unit_test_setup(name, setup)
    const struct CMUnitTest tests[] = {
        T(calls_to_all_peers_at_once), T(few_peers_do_not_wait),  T(eager_start),
        T(eager_servers_come_back),    T(busy_servers_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
