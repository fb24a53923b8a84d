/*
 * Bounds per server: how they follow what calls come to, who waits and in which order, and attempts
 * that leave a route out.
 */
#include "delivery_fixture.h"

enum { WAITERS = 6 };

struct waiting {
    struct delivery_waiter waiter;
    struct room *room;
    const char *login;
    bool called, in_time, begins;
    unsigned nth; /* of all callbacks */
};

struct room {
    uv_loop_t loop;
    struct delivery_bounds *bounds;
    struct waiting w[WAITERS];
    unsigned calls, rooms;
};

static void make(struct room *r, unsigned max_per_peer, unsigned max_waiting, unsigned wait_ms)
{
    *r = (struct room){0};
    assert_int_equal(0, uv_loop_init(&r->loop));
    struct delivery_bounds_config cfg = {max_per_peer, max_waiting, wait_ms};
    r->bounds = delivery_bounds_new(&r->loop, &cfg);
}

static void finish(struct room *r)
{
    delivery_bounds_free(r->bounds);
    loop_finish(&r->loop);
}

static void on_go(struct delivery_waiter *waiter, bool in_time)
{
    struct waiting *w = list_entry(waiter, struct waiting, waiter);
    assert_false(w->called);
    w->called = true;
    w->in_time = in_time;
    w->nth = ++w->room->calls;
    if (in_time && w->begins)
        delivery_bounds_begin(w->room->bounds, w->login);
}

static bool wait_for(struct room *r, unsigned i, const char *login)
{
    r->w[i] = (struct waiting){.waiter = {.go = on_go}, .room = r, .login = login, .begins = true};
    return delivery_bounds_wait(r->bounds, login, &r->w[i].waiter);
}

static void test_the_bound_follows_the_calls(void **state)
{
    (void)state;
    struct room r;
    make(&r, 30, 10, 1000);
    assert_false(delivery_bounds_full(r.bounds, "a"));
    for (int i = 0; i < 3; i++) {
        assert_false(delivery_bounds_full(r.bounds, "a"));
        delivery_bounds_begin(r.bounds, "a");
    }
    assert_true(delivery_bounds_full(r.bounds, "a")); /* a tenth */
    assert_false(delivery_bounds_full(r.bounds, "b"));
    const char *full[4];
    assert_int_equal(1, delivery_bounds_list_full(r.bounds, full, 4));
    assert_string_equal("a", full[0]);
    /* One answer makes room for two more, until the largest bound is reached. */
    unsigned open = 3;
    for (int i = 0; i < 100; i++) {
        delivery_bounds_end(r.bounds, "a", true);
        open--;
        while (!delivery_bounds_full(r.bounds, "a")) {
            delivery_bounds_begin(r.bounds, "a");
            open++;
        }
    }
    assert_int_equal(30, open);
    /* One failure takes it all back. */
    delivery_bounds_end(r.bounds, "a", false);
    open--;
    for (; open > 3; open--) {
        assert_true(delivery_bounds_full(r.bounds, "a"));
        delivery_bounds_end(r.bounds, "a", false);
    }
    delivery_bounds_end(r.bounds, "a", false);
    assert_false(delivery_bounds_full(r.bounds, "a"));
    delivery_bounds_end(r.bounds, "a", false);
    delivery_bounds_end(r.bounds, "a", false);
    finish(&r);
}

static void test_the_smallest_bound_is_one(void **state)
{
    (void)state;
    struct room r;
    make(&r, 1, 10, 1000);
    delivery_bounds_begin(r.bounds, "a");
    assert_true(delivery_bounds_full(r.bounds, "a"));
    delivery_bounds_end(r.bounds, "a", true);
    assert_false(delivery_bounds_full(r.bounds, "a"));
    finish(&r);
}

static void note_room(void *ctx)
{
    ((struct room *)ctx)->rooms++;
}

static void test_waiters_go_in_order_and_nobody_passes_them(void **state)
{
    (void)state;
    struct room r;
    make(&r, 1, 10, 60000);
    delivery_bounds_on_room(r.bounds, note_room, &r);
    delivery_bounds_begin(r.bounds, "a");
    delivery_bounds_begin(r.bounds, "b");
    assert_true(wait_for(&r, 0, "a") && wait_for(&r, 1, "a") && wait_for(&r, 2, "b"));
    assert_int_equal(3, delivery_bounds_waiting(r.bounds));
    delivery_bounds_end(r.bounds, "a", true);
    assert_int_equal(0, r.calls);                     /* never from inside */
    assert_true(delivery_bounds_full(r.bounds, "a")); /* the room is the waiter's */
    loop_until_count(&r.loop, &r.calls, 1);
    assert_true(r.w[0].called && r.w[0].in_time);
    assert_int_equal(0, r.rooms);
    delivery_bounds_end(r.bounds, "a", true);
    loop_until_count(&r.loop, &r.calls, 2);
    assert_true(r.w[1].called && !r.w[2].called);
    delivery_bounds_end(r.bounds, "b", false);
    loop_until_count(&r.loop, &r.calls, 3);
    assert_true(r.w[2].in_time);
    delivery_bounds_end(r.bounds, "a", true);
    assert_int_equal(1, r.rooms); /* nobody waited for that one */
    delivery_bounds_end(r.bounds, "b", true);
    finish(&r);
}

/* A waiter that begins nothing leaves its room to the next. */
static void test_unused_room_goes_on(void **state)
{
    (void)state;
    struct room r;
    make(&r, 1, 10, 60000);
    delivery_bounds_begin(r.bounds, "a");
    assert_true(wait_for(&r, 0, "a") && wait_for(&r, 1, "a") && wait_for(&r, 2, "a"));
    r.w[0].begins = false;
    delivery_bounds_end(r.bounds, "a", true);
    loop_until_count(&r.loop, &r.calls, 2);
    assert_true(r.w[0].called && r.w[1].called && r.w[1].in_time && !r.w[2].called);
    delivery_bounds_stop(r.bounds);
    loop_until_count(&r.loop, &r.calls, 3);
    assert_false(r.w[2].in_time);
    assert_false(wait_for(&r, 3, "a"));
    delivery_bounds_end(r.bounds, "a", true);
    finish(&r);
}

static void test_waiting_ends(void **state)
{
    (void)state;
    struct room r;
    make(&r, 1, 2, 30);
    delivery_bounds_begin(r.bounds, "a");
    delivery_bounds_begin(r.bounds, "b");
    assert_true(wait_for(&r, 0, "a") && wait_for(&r, 1, "b"));
    assert_false(wait_for(&r, 2, "a")); /* too many */
    loop_until_count(&r.loop, &r.calls, 2);
    assert_false(r.w[0].in_time || r.w[1].in_time);
    assert_int_equal(0, delivery_bounds_waiting(r.bounds));
    delivery_bounds_end(r.bounds, "a", true);
    delivery_bounds_end(r.bounds, "b", true);
    finish(&r);
}

/* --- attempts --- */

static void bound(struct fixture *x)
{
    struct delivery_bounds_config cfg = {1, 10, 1000};
    x->bounds = delivery_bounds_new(&x->loop, &cfg);
    start(x, 10);
}

static void test_a_route_at_its_bound_is_left_out(void **state)
{
    struct fixture *x = *state;
    x->no_directory = true;
    bound(x);
    delivery_bounds_begin(x->bounds, "server_a");
    attempt(x);
    loop_until_count(&x->loop, &x->reports, 1);
    assert_int_equal(STORE_ATTEMPT_DELIVERED, x->store.last.outcome);
    assert_string_equal("server_b", x->store.via);
    assert_int_equal(0, x->a.n_seen);
    assert_false(delivery_bounds_full(x->bounds, "server_b"));
    /* The other one fails too: the slot is not used. */
    x->b.on_request = unserved;
    attempt(x);
    loop_until_count(&x->loop, &x->reports, 2);
    assert_int_equal(STORE_ATTEMPT_GIVEN_BACK, x->store.last.outcome);
    assert_int_equal(2000, x->store.last.retry_after_ms);
    assert_non_null(strstr(x->store.error, "server_a: left out"));
    assert_int_equal(0, x->a.n_seen);
    delivery_bounds_end(x->bounds, "server_a", true);
}

static void test_both_routes_at_their_bound(void **state)
{
    struct fixture *x = *state;
    bound(x);
    delivery_bounds_begin(x->bounds, "server_a");
    delivery_bounds_begin(x->bounds, "server_b");
    attempt(x);
    loop_until_count(&x->loop, &x->reports, 1);
    assert_int_equal(STORE_ATTEMPT_GIVEN_BACK, x->store.last.outcome);
    assert_int_equal(0, x->a.n_seen + x->b.n_seen);
    /* Who has waited for the first one may call it. */
    x->task.granted[0] = true;
    attempt(x);
    loop_until_count(&x->loop, &x->reports, 2);
    assert_int_equal(STORE_ATTEMPT_DELIVERED, x->store.last.outcome);
    assert_string_equal("server_a", x->store.via);
    delivery_bounds_end(x->bounds, "server_a", true);
    delivery_bounds_end(x->bounds, "server_b", true);
}

static void test_a_call_counts_until_its_end(void **state)
{
    struct fixture *x = *state;
    bound(x);
    x->a.on_request = silent;
    attempt(x);
    loop_until_count(&x->loop, &x->reports, 1);
    loop_until_count(&x->loop, &x->a.n_seen, 1);
    assert_true(delivery_bounds_full(x->bounds, "server_a"));
    assert_int_equal(1, delivery_in_flight(x->delivery));
    fake_answer(fake_server_conn(&x->a), x->a.seen[0], x->a.ids[0]);
    delivery_drain(x->delivery, on_idle, x);
    loop_until(&x->loop, &x->idle);
    assert_false(delivery_bounds_full(x->bounds, "server_a"));
    assert_int_equal(0, delivery_in_flight(x->delivery));
}

static void test_an_old_row_ends_although_all_are_busy(void **state)
{
    struct fixture *x = *state;
    start(x, 10);
    char ten[] = "{\"retryAfterMs\":10000}";
    x->a.on_request = x->b.on_request = busy;
    x->a.ctx = x->b.ctx = ten;
    x->task.busy_is_a_try = true;
    attempt(x);
    loop_until_count(&x->loop, &x->reports, 1);
    assert_int_equal(STORE_ATTEMPT_FAILED, x->store.last.outcome);
    assert_int_equal(STORE_ATTEMPT_FAILED, x->report.outcome);
}

int main(void)
{
    log_setup("test", LOG_FORMAT_LOGFMT, LOG_LEVEL_ERROR);
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_bound_follows_the_calls),
        cmocka_unit_test(test_the_smallest_bound_is_one),
        cmocka_unit_test(test_waiters_go_in_order_and_nobody_passes_them),
        cmocka_unit_test(test_unused_room_goes_on),
        cmocka_unit_test(test_waiting_ends),
        T(test_a_route_at_its_bound_is_left_out),
        T(test_both_routes_at_their_bound),
        T(test_a_call_counts_until_its_end),
        T(test_an_old_row_ends_although_all_are_busy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
