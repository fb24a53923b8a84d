/*
 * A pool's bounds, and what callbacks may do.
 */
#include "support_db.h"
#include "support_pg.h"

#include "util/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct pg *pg;

static int start_server(void **state)
{
    (void)state;
    pg = pg_new(NULL);
    return 0;
}

static int stop_server(void **state)
{
    (void)state;
    pg_free(pg);
    return 0;
}

static const struct db_stmt stmt_id = {"id", "SELECT $1::bigint AS v"};
static const struct db_stmt stmt_sleep = {"sleep", "SELECT pg_sleep($1::bigint / 1000.0)"};
static const struct db_stmt stmt_big = {"big", "SELECT repeat('x', $1::bigint::integer) AS t"};

static void test_statement_timeout(void **state)
{
    (void)state;
    struct db_limits limits = DB_LIMITS_DEFAULT;
    limits.statement_timeout_ms = 100;
    struct db_fixture f;
    db_fixture_open(&f, pg_conninfo(pg), 1, &limits);
    assert_true(run_until_ready(&f.loop, f.pool));
    struct answers a = {0};
    db_fixture_call(&f, &stmt_sleep, 60000, answers_cb, &a);
    db_fixture_call(&f, &stmt_id, 1, answers_cb, &a);
    db_fixture_wait(&f, &a, 2);
    assert_int_equal(a.ok, 1);
    assert_string_equal(a.sqlstate, "57014");
    db_fixture_close(&f);
}

static void test_bounds(void **state)
{
    (void)state;
    struct db_limits limits = DB_LIMITS_DEFAULT;
    limits.max_calls = 10;
    struct db_fixture f;
    db_fixture_open(&f, pg_conninfo(pg), 1, &limits);
    assert_true(run_until_ready(&f.loop, f.pool));
    struct answers a = {0};
    for (int i = 0; i < 15; i++)
        db_fixture_call(&f, &stmt_id, i, answers_cb, &a);
    db_fixture_wait(&f, &a, 15);
    assert_int_equal(a.ok, 10);
    assert_int_equal(a.unavailable, 5);
    db_fixture_close(&f);

    limits.max_bytes = 20;
    db_fixture_open(&f, pg_conninfo(pg), 1, &limits);
    assert_true(run_until_ready(&f.loop, f.pool));
    a = (struct answers){0};
    for (int i = 0; i < 3; i++)
        db_fixture_call(&f, &stmt_id, i, answers_cb, &a);
    db_fixture_wait(&f, &a, 3);
    assert_int_equal(a.ok, 2);
    db_fixture_close(&f);
}

static bool closed_inside;

static void on_closed(void *ctx)
{
    (void)ctx;
    closed_inside = true;
}

static void close_inside(void *ctx, const struct db_result *r)
{
    struct db_fixture *f = ctx;
    assert_int_equal(db_status(r), DB_OK);
    db_pool_close(f->pool, on_closed, NULL);
}

static void test_close_from_callback(void **state)
{
    (void)state;
    struct db_fixture f;
    db_fixture_open_ready(&f, pg_conninfo(pg), 1, NULL);
    struct answers a = {0};
    db_fixture_call(&f, &stmt_id, 1, answers_cb, &a);
    db_fixture_call(&f, &stmt_id, 1, close_inside, &f);
    for (int i = 0; i < 20; i++)
        db_fixture_call(&f, &stmt_big, 100000, answers_cb, &a);
    closed_inside = false;
    uv_run(&f.loop, UV_RUN_DEFAULT);
    assert_true(closed_inside);
    assert_int_equal(a.total, 21);
    assert_true(a.unavailable > 0);
    assert_int_equal(uv_loop_close(&f.loop), 0);
}

/* A callback that calls again, also while there is no server, neither recurses nor starves the
 * loop. */
struct again {
    struct db_fixture *f;
    int left;
};

static void call_again(void *ctx, const struct db_result *r)
{
    struct again *again = ctx;
    (void)r;
    if (again->left-- > 0)
        db_fixture_call(again->f, &stmt_id, 1, call_again, again);
}

static bool none_left(void *ctx)
{
    return ((struct again *)ctx)->left < 0;
}

static void test_call_from_callback(void **state)
{
    (void)state;
    struct db_fixture f;
    db_fixture_open_ready(&f, pg_conninfo(pg), 1, NULL);
    struct again again = {&f, 200};
    call_again(&again, NULL);
    assert_true(run_until(&f.loop, none_left, &again));
    again.left = 200;
    db_pool_close(f.pool, NULL, NULL);
    call_again(&again, NULL);
    uv_run(&f.loop, UV_RUN_DEFAULT);
    assert_true(none_left(&again));
    assert_int_equal(uv_loop_close(&f.loop), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statement_timeout),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_close_from_callback),
        cmocka_unit_test(test_call_from_callback),
    };
    return cmocka_run_group_tests(tests, start_server, stop_server);
}
