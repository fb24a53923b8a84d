/*
 * Losing connections and servers: every call ends exactly once, and the pool comes back by itself.
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
    pg_exec(pg, "CREATE TABLE w (v bigint)");
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
static const struct db_stmt stmt_write = {"write", "INSERT INTO w VALUES ($1::bigint)"};
static const struct db_stmt *const mix[] = {&stmt_id, &stmt_big, &stmt_sleep, &stmt_write};

static void terminate_all(void)
{
    pg_exec(pg, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'shine-test'");
}

/* A call that must be answered once and once only. */
struct once {
    int answers;
    enum db_status status;
};

static void once_cb(void *ctx, const struct db_result *r)
{
    struct once *o = ctx;
    o->answers++;
    o->status = db_status(r);
    assert_int_not_equal(o->status, DB_ERROR);
}

static bool all_answered(void *ctx)
{
    const struct once *o = ctx;
    for (; o->answers >= 0; o++)
        if (o->answers == 0)
            return false;
    return true;
}

enum { CALLS = 60 };

/* Send calls of all kinds, let the loop turn `turns` times, kill, and see everything answered. */
static void kill_after(struct db_fixture *f, const struct db_stmt *stmt, int turns)
{
    struct once o[CALLS + 1] = {0};
    o[CALLS].answers = -1;
    for (int i = 0; i < CALLS; i++) {
        const struct db_stmt *s = stmt ? stmt : mix[i % 4];
        int64_t v = s == &stmt_sleep ? 50 : s == &stmt_big ? 300000 : i;
        db_fixture_call(f, s, v, once_cb, &o[i]);
    }
    db_fixture_turn(f, turns);
    terminate_all();
    assert_true(run_until(&f->loop, all_answered, o));
    for (int i = 0; i < CALLS; i++)
        assert_int_equal(o[i].answers, 1);
    assert_true(run_until_ready(&f->loop, f->pool));
}

static void test_kill_in_flight(void **state)
{
    (void)state;
    struct db_fixture f;
    db_fixture_open_ready(&f, pg_conninfo(pg), 3, NULL);
    const struct db_stmt *const kinds[] = {NULL, &stmt_id, &stmt_big, &stmt_sleep};
    for (int turns = 0; turns < 6; turns++)
        for (size_t k = 0; k < 4; k++)
            kill_after(&f, kinds[k], turns * turns);
    db_fixture_must_work_again(&f);
    db_fixture_close(&f);
}

static void test_kill_idle(void **state)
{
    (void)state;
    struct db_fixture f;
    db_fixture_open_ready(&f, pg_conninfo(pg), 1, NULL);
    db_fixture_turn(&f, 3);
    assert_int_equal(f.changes, 1);
    terminate_all();
    assert_true(run_until_not_ready(&f.loop, f.pool));
    assert_true(run_until_ready(&f.loop, f.pool));
    db_fixture_turn(&f, 3);
    assert_int_equal(f.changes, 3);
    struct answers a = {0};
    db_fixture_call(&f, &stmt_id, 1, answers_cb, &a);
    db_fixture_wait(&f, &a, 1);
    assert_int_equal(a.ok, 1);
    db_fixture_close(&f);
}

static void test_server_crash_and_return(void **state)
{
    (void)state;
    struct db_fixture f;
    db_fixture_open_ready(&f, pg_conninfo(pg), 2, NULL);
    struct answers a = {0};
    for (int i = 0; i < 100; i++)
        db_fixture_call(&f, &stmt_sleep, 10, answers_cb, &a);
    db_fixture_turn(&f, 5);
    pg_stop(pg);
    db_fixture_wait(&f, &a, 100);
    assert_true(a.unavailable > 0);
    assert_int_equal(a.error, 0);
    assert_true(run_until_not_ready(&f.loop, f.pool));
    struct answers down = {0};
    db_fixture_call(&f, &stmt_id, 1, answers_cb, &down);
    assert_int_equal(down.total, 0); /* at once, but not from inside */
    db_fixture_wait(&f, &down, 1);
    assert_int_equal(down.unavailable, 1);
    pg_start(pg);
    assert_true(run_until_ready(&f.loop, f.pool));
    db_fixture_call(&f, &stmt_id, 1, answers_cb, &down);
    db_fixture_wait(&f, &down, 2);
    assert_int_equal(down.ok, 1);
    db_fixture_close(&f);
}

static void set_read_only(const char *value)
{
    char *sql = xasprintf("ALTER SYSTEM SET default_transaction_read_only = %s", value);
    char *conninfo =
        xasprintf("%s options='-c default_transaction_read_only=off'", pg_conninfo(pg));
    pg_exec_at(conninfo, sql);
    pg_exec_at(conninfo, "SELECT pg_reload_conf()");
    free(conninfo);
    free(sql);
    while (
        pg_query_int(pg, "SELECT (current_setting('default_transaction_read_only') = 'on')::int") !=
        (strcmp(value, "on") == 0))
        usleep(1000);
}

/* A demoted server: live connections notice by the first write, new ones are not accepted at all.
 */
static void test_read_only_server(void **state)
{
    (void)state;
    struct db_fixture f;
    db_fixture_open_ready(&f, pg_conninfo(pg), 1, NULL);
    set_read_only("on");
    struct answers a = {0};
    while (a.unavailable == 0) { /* the backend takes the new setting between two statements */
        db_fixture_call(&f, &stmt_write, 1, answers_cb, &a);
        db_fixture_wait(&f, &a, a.total + 1);
    }
    assert_int_equal(a.error, 0);
    assert_false(db_pool_ready(f.pool));
    struct db_fixture other;
    db_fixture_open(&other, pg_conninfo(pg), 1, NULL);
    db_fixture_turn(&other, 8);
    db_fixture_turn(&f, 8);
    assert_false(db_pool_ready(other.pool));
    assert_false(db_pool_ready(f.pool));
    db_fixture_close(&other);
    set_read_only("off");
    assert_true(run_until_ready(&f.loop, f.pool));
    db_fixture_call(&f, &stmt_write, 1, answers_cb, &a);
    db_fixture_wait(&f, &a, a.total + 1);
    assert_true(db_pool_ready(f.pool));
    db_fixture_close(&f);
}

/* The primary dies, the standby is promoted: the pool finds it by itself. */
static void test_failover(void **state)
{
    (void)state;
    struct pg *a = pg_new(NULL);
    pg_exec(a, "CREATE TABLE w (v bigint)");
    struct pg *b = pg_new_standby(a);
    char *both = xasprintf("host=%s,%s port=%d,%d user=postgres dbname=postgres", pg_socket_dir(b),
                           pg_socket_dir(a), pg_port(b), pg_port(a));
    struct db_fixture f;
    db_fixture_open(&f, both, 2, NULL); /* the standby comes first and is no use */
    assert_true(run_until_ready(&f.loop, f.pool));
    struct answers answers = {0};
    db_fixture_call(&f, &stmt_write, 1, answers_cb, &answers);
    db_fixture_wait(&f, &answers, 1);
    assert_int_equal(answers.ok, 1);
    pg_stop(a);
    assert_true(run_until_not_ready(&f.loop, f.pool));
    pg_exec(b, "SELECT pg_promote()");
    assert_true(run_until_ready(&f.loop, f.pool));
    db_fixture_call(&f, &stmt_write, 2, answers_cb, &answers);
    db_fixture_wait(&f, &answers, 2);
    assert_int_equal(answers.ok, 2);
    assert_int_equal(pg_query_int(b, "SELECT count(*) FROM w WHERE v = 2"), 1);
    db_fixture_close(&f);
    free(both);
    pg_free(b);
    pg_free(a);
}

static void test_frozen_backend(void **state)
{
    (void)state;
    struct db_limits limits = DB_LIMITS_DEFAULT;
    limits.answer_timeout_ms = 600;
    struct db_fixture f;
    db_fixture_open(&f, pg_conninfo(pg), 1, &limits);
    assert_true(run_until_ready(&f.loop, f.pool));
    pid_t pid = (pid_t)pg_query_int(pg, "SELECT pid FROM pg_stat_activity WHERE "
                                        "application_name = 'shine-test'");
    assert_int_equal(kill(pid, SIGSTOP), 0);
    struct answers a = {0};
    for (int i = 0; i < 5; i++)
        db_fixture_call(&f, &stmt_id, i, answers_cb, &a);
    db_fixture_wait(&f, &a, 5);
    assert_int_equal(a.unavailable, 5);
    kill(pid, SIGCONT);
    assert_true(run_until_ready(&f.loop, f.pool));
    db_fixture_call(&f, &stmt_id, 1, answers_cb, &a);
    db_fixture_wait(&f, &a, 6);
    assert_int_equal(a.ok, 1);
    db_fixture_close(&f);
}

/* Many lives of connections, killed in every phase; bounded in time rather than in rounds. */
static void test_many_rounds(void **state)
{
    (void)state;
    struct db_limits limits = DB_LIMITS_DEFAULT;
    limits.reconnect_min_ms = limits.reconnect_max_ms = 2;
    struct db_fixture f;
    db_fixture_open(&f, pg_conninfo(pg), 3, &limits);
    struct answers a = {0};
    int sent = 0, rounds = 0;
    uint64_t end = uv_hrtime() + (uint64_t)15 * 1000 * 1000 * 1000;
    for (; rounds < 1000 && uv_hrtime() < end; rounds++) {
        assert_true(run_until_ready(&f.loop, f.pool));
        for (int i = 0; i < 8; i++, sent++)
            db_fixture_call(&f, mix[(size_t)(rounds + i) % 2], 20000, answers_cb, &a);
        for (int i = rounds % 9; i > 0; i--)
            uv_run(&f.loop, UV_RUN_ONCE);
        terminate_all();
    }
    db_fixture_wait(&f, &a, sent);
    assert_int_equal(a.error, 0);
    print_message("%d rounds, %d calls: %d ok, %d unavailable\n", rounds, sent, a.ok,
                  a.unavailable);
    db_fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kill_in_flight),
        cmocka_unit_test(test_kill_idle),
        cmocka_unit_test(test_server_crash_and_return),
        cmocka_unit_test(test_read_only_server),
        cmocka_unit_test(test_failover),
        cmocka_unit_test(test_frozen_backend),
        cmocka_unit_test(test_many_rounds),
    };
    return cmocka_run_group_tests(tests, start_server, stop_server);
}
