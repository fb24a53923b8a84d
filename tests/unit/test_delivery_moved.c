/*
 * Attempts whose routes are old: a server says that it does not serve the recipient any more.
 */
#include "delivery_fixture.h"

/* The table names these servers now. */
static void moved_to(struct fixture *x, const char *login1, const char *url1, const char *login2,
                     const char *url2)
{
    struct store_user *u = &x->store.routes;
    *u = (struct store_user){.n_servers = login2 ? 2 : 1};
    (void)snprintf(u->login, sizeof u->login, "bob");
    (void)snprintf(u->servers[0].login, sizeof u->servers[0].login, "%s", login1);
    (void)snprintf(u->servers[0].url, sizeof u->servers[0].url, "%s", url1);
    if (!login2)
        return;
    (void)snprintf(u->servers[1].login, sizeof u->servers[1].login, "%s", login2);
    (void)snprintf(u->servers[1].url, sizeof u->servers[1].url, "%s", url2);
}

static void looked_up(struct fixture *x, enum directory_result r)
{
    loop_until_count(&x->loop, &x->directory.asked, 1);
    x->directory.cb(x->directory.ctx, r, NULL);
}

static void test_new_route_is_called_in_the_same_attempt(void **state)
{
    struct fixture *x = *state;
    start(x, 10);
    x->a.on_request = unserved;
    x->task.n_routes = 1;
    attempt(x);
    loop_until_count(&x->loop, &x->directory.asked, 1);
    assert_int_equal(0, x->reports);
    moved_to(x, "server_b", x->b.url, NULL, NULL);
    looked_up(x, DIRECTORY_FOUND);
    loop_until_count(&x->loop, &x->reports, 1);
    assert_int_equal(STORE_ATTEMPT_DELIVERED, x->store.last.outcome);
    assert_string_equal("server_b", x->store.via);
    assert_string_equal("ReceiveIncomingMessage", x->b.seen[0]);
    assert_int_equal(1, x->a.n_seen);
    assert_int_equal(1, x->b.n_seen);
}

static void test_routes_called_before_are_not_called_again(void **state)
{
    struct fixture *x = *state;
    start(x, 10);
    x->a.on_request = x->b.on_request = unserved;
    attempt(x);
    moved_to(x, "server_b", x->b.url, "server_a", x->a.url);
    looked_up(x, DIRECTORY_FOUND);
    loop_until_count(&x->loop, &x->reports, 1);
    assert_int_equal(STORE_ATTEMPT_FAILED, x->store.last.outcome);
    assert_non_null(strstr(x->store.error, "server_a: answered 403"));
    assert_non_null(strstr(x->store.error, "server_b: answered 403"));
    assert_non_null(strstr(x->store.error, "no other server"));
    assert_int_equal(1, x->directory.asked); /* once, although both refused */
    assert_int_equal(1, x->store.reads);
    assert_int_equal(1, x->a.n_seen);
    assert_int_equal(1, x->b.n_seen);
}

static void test_new_route_that_refuses_ends_it(void **state)
{
    struct fixture *x = *state;
    start(x, 10);
    x->a.on_request = x->b.on_request = unserved;
    x->task.n_routes = 1;
    attempt(x);
    moved_to(x, "server_b", x->b.url, NULL, NULL);
    looked_up(x, DIRECTORY_FOUND);
    loop_until_count(&x->loop, &x->reports, 1);
    assert_int_equal(STORE_ATTEMPT_FAILED, x->store.last.outcome);
    assert_int_equal(1, x->directory.asked);
    assert_int_equal(1, x->b.n_seen);
}

static void test_table_is_read_whatever_the_look_up_says(void **state)
{
    struct fixture *x = *state;
    start(x, 10);
    x->a.on_request = unserved;
    x->task.n_routes = 1;
    attempt(x);
    moved_to(x, "server_b", x->b.url, NULL, NULL); /* by the operator, say */
    looked_up(x, DIRECTORY_UNAVAILABLE);
    loop_until_count(&x->loop, &x->reports, 1);
    assert_int_equal(STORE_ATTEMPT_DELIVERED, x->store.last.outcome);
}

static void test_recipient_has_moved_here(void **state)
{
    struct fixture *x = *state;
    start(x, 10);
    x->a.on_request = unserved;
    x->task.n_routes = 1;
    attempt(x);
    moved_to(x, "home", "wss://home/ws", NULL, NULL);
    looked_up(x, DIRECTORY_FOUND);
    loop_until_count(&x->loop, &x->reports, 1);
    assert_int_equal(STORE_ATTEMPT_GIVEN_BACK, x->store.last.outcome);
    assert_int_equal(0, x->store.last.retry_after_ms);
    assert_non_null(strstr(x->store.error, "home: serves the recipient now"));
}

static void test_success_while_looking(void **state)
{
    struct fixture *x = *state;
    start(x, 10);
    x->a.on_request = unserved;
    x->b.on_request = silent;
    attempt(x);
    loop_until_count(&x->loop, &x->directory.asked, 1);
    loop_until_count(&x->loop, &x->b.n_seen, 1);
    fake_answer(fake_server_conn(&x->b), x->b.seen[0], x->b.ids[0]);
    loop_until_count(&x->loop, &x->reports, 1);
    assert_int_equal(STORE_ATTEMPT_DELIVERED, x->store.last.outcome);
    delivery_drain(x->delivery, on_idle, x);
    loop_for(&x->loop, 20);
    assert_false(x->idle); /* the look-up still refers to it */
    looked_up(x, DIRECTORY_FOUND);
    loop_until(&x->loop, &x->idle);
    assert_int_equal(0, x->store.reads);
}

static void test_deadline_leaves_no_time(void **state)
{
    struct fixture *x = *state;
    start(x, 10);
    x->a.on_request = unserved;
    x->task.n_routes = 1;
    x->task.deadline_ms = 250; /* enough for one call, not for another */
    attempt(x);
    loop_until_count(&x->loop, &x->directory.asked, 1);
    loop_for(&x->loop, 100);
    moved_to(x, "server_b", x->b.url, NULL, NULL);
    looked_up(x, DIRECTORY_FOUND);
    loop_until_count(&x->loop, &x->reports, 1);
    assert_int_equal(STORE_ATTEMPT_FAILED, x->store.last.outcome);
    assert_int_equal(0, x->b.accepted);
}

int main(void)
{
    log_setup("test", LOG_FORMAT_LOGFMT, LOG_LEVEL_ERROR);
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_new_route_is_called_in_the_same_attempt),
        T(test_routes_called_before_are_not_called_again),
        T(test_new_route_that_refuses_ends_it),
        T(test_table_is_read_whatever_the_look_up_says),
        T(test_recipient_has_moved_here),
        T(test_success_while_looking),
        T(test_deadline_leaves_no_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
