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

struct fixture {
    uv_loop_t loop;
    struct db_pool *pool;
    int changes; /* calls of on_change */
    bool told;
};

static void on_change(void *ctx, bool ready)
{
    struct fixture *f = ctx;
    assert_int_equal(ready, db_pool_ready(f->pool));
    assert_int_not_equal(ready, f->told);
    f->told = ready;
    f->changes++;
}

static void open_pool_limited(struct fixture *f, const char *conninfo, unsigned size,
                              struct db_limits limits)
{
    *f = (struct fixture){0};
    assert_int_equal(uv_loop_init(&f->loop), 0);
    f->pool = db_pool_new_limited(&f->loop, conninfo, "shine-test", size, &limits);
    db_pool_on_change(f->pool, on_change, f);
}

static void open_pool(struct fixture *f, unsigned size)
{
    open_pool_limited(f, pg_conninfo(pg), size, DB_LIMITS_DEFAULT);
    assert_true(run_until_ready(&f->loop, f->pool));
}

static void call(struct fixture *f, const struct db_stmt *stmt, int64_t v, db_cb cb, void *ctx)
{
    struct db_params *p = db_params_new();
    db_add_int8(p, v);
    db_call(f->pool, stmt, p, cb, ctx);
}

static void wait_answers(struct fixture *f, struct answers *a, int want)
{
    a->want = want;
    assert_true(run_until(&f->loop, answers_complete, a));
    assert_int_equal(a->total, want);
}

/* Not necessarily at once: the end of a connection may not have been noticed yet. */
static void must_work_again(struct fixture *f)
{
    struct answers a = {0};
    for (int i = 1; i <= 100 && a.ok == 0; i++) {
        assert_true(run_until_ready(&f->loop, f->pool));
        call(f, &stmt_id, 1, answers_cb, &a);
        wait_answers(f, &a, i);
    }
    assert_int_equal(a.ok, 1);
}

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

static bool never(void *ctx)
{
    return --*(int *)ctx < 0;
}

/* Turn the loop `n` times, waiting for events at most as long as run_until()'s tick. */
static void turn(struct fixture *f, int n)
{
    run_until(&f->loop, never, &n);
}

enum { CALLS = 60 };

/* Send calls of all kinds, let the loop turn `turns` times, kill, and see everything answered. */
static void kill_after(struct fixture *f, const struct db_stmt *stmt, int turns)
{
    struct once o[CALLS + 1] = {0};
    o[CALLS].answers = -1;
    for (int i = 0; i < CALLS; i++) {
        const struct db_stmt *s = stmt ? stmt : mix[i % 4];
        int64_t v = s == &stmt_sleep ? 50 : s == &stmt_big ? 300000 : i;
        call(f, s, v, once_cb, &o[i]);
    }
    turn(f, turns);
    terminate_all();
    assert_true(run_until(&f->loop, all_answered, o));
    for (int i = 0; i < CALLS; i++)
        assert_int_equal(o[i].answers, 1);
    assert_true(run_until_ready(&f->loop, f->pool));
}

static void test_kill_in_flight(void **state)
{
    (void)state;
    struct fixture f;
    open_pool(&f, 3);
    const struct db_stmt *const kinds[] = {NULL, &stmt_id, &stmt_big, &stmt_sleep};
    for (int turns = 0; turns < 6; turns++)
        for (size_t k = 0; k < 4; k++)
            kill_after(&f, kinds[k], turns * turns);
    must_work_again(&f);
    close_pool_and_loop(f.pool, &f.loop);
}

static bool is_not_ready(void *ctx)
{
    return !db_pool_ready(ctx);
}

static void test_kill_idle(void **state)
{
    (void)state;
    struct fixture f;
    open_pool(&f, 1);
    turn(&f, 3);
    assert_int_equal(f.changes, 1);
    terminate_all();
    assert_true(run_until(&f.loop, is_not_ready, f.pool));
    assert_true(run_until_ready(&f.loop, f.pool));
    turn(&f, 3);
    assert_int_equal(f.changes, 3);
    struct answers a = {0};
    call(&f, &stmt_id, 1, answers_cb, &a);
    wait_answers(&f, &a, 1);
    assert_int_equal(a.ok, 1);
    close_pool_and_loop(f.pool, &f.loop);
}

static void test_server_crash_and_return(void **state)
{
    (void)state;
    struct fixture f;
    open_pool(&f, 2);
    struct answers a = {0};
    for (int i = 0; i < 100; i++)
        call(&f, &stmt_sleep, 10, answers_cb, &a);
    turn(&f, 5);
    pg_stop(pg);
    wait_answers(&f, &a, 100);
    assert_true(a.unavailable > 0);
    assert_int_equal(a.error, 0);
    assert_true(run_until(&f.loop, is_not_ready, f.pool));
    struct answers down = {0};
    call(&f, &stmt_id, 1, answers_cb, &down);
    assert_int_equal(down.total, 0); /* at once, but not from inside */
    wait_answers(&f, &down, 1);
    assert_int_equal(down.unavailable, 1);
    pg_start(pg);
    assert_true(run_until_ready(&f.loop, f.pool));
    call(&f, &stmt_id, 1, answers_cb, &down);
    wait_answers(&f, &down, 2);
    assert_int_equal(down.ok, 1);
    close_pool_and_loop(f.pool, &f.loop);
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
    struct fixture f;
    open_pool(&f, 1);
    set_read_only("on");
    struct answers a = {0};
    while (a.unavailable == 0) { /* the backend takes the new setting between two statements */
        call(&f, &stmt_write, 1, answers_cb, &a);
        wait_answers(&f, &a, a.total + 1);
    }
    assert_int_equal(a.error, 0);
    assert_false(db_pool_ready(f.pool));
    struct fixture other;
    open_pool_limited(&other, pg_conninfo(pg), 1, DB_LIMITS_DEFAULT);
    turn(&other, 8);
    turn(&f, 8);
    assert_false(db_pool_ready(other.pool));
    assert_false(db_pool_ready(f.pool));
    close_pool_and_loop(other.pool, &other.loop);
    set_read_only("off");
    assert_true(run_until_ready(&f.loop, f.pool));
    call(&f, &stmt_write, 1, answers_cb, &a);
    wait_answers(&f, &a, a.total + 1);
    assert_true(db_pool_ready(f.pool));
    close_pool_and_loop(f.pool, &f.loop);
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
    struct fixture f;
    open_pool_limited(&f, both, 2, DB_LIMITS_DEFAULT); /* the standby comes first and is no use */
    assert_true(run_until_ready(&f.loop, f.pool));
    struct answers answers = {0};
    call(&f, &stmt_write, 1, answers_cb, &answers);
    wait_answers(&f, &answers, 1);
    assert_int_equal(answers.ok, 1);
    pg_stop(a);
    assert_true(run_until(&f.loop, is_not_ready, f.pool));
    pg_exec(b, "SELECT pg_promote()");
    assert_true(run_until_ready(&f.loop, f.pool));
    call(&f, &stmt_write, 2, answers_cb, &answers);
    wait_answers(&f, &answers, 2);
    assert_int_equal(answers.ok, 2);
    assert_int_equal(pg_query_int(b, "SELECT count(*) FROM w WHERE v = 2"), 1);
    close_pool_and_loop(f.pool, &f.loop);
    free(both);
    pg_free(b);
    pg_free(a);
}

/* A port that accepts and never says a word. */
static int black_hole(int *port)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sa);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&sa, len) == 0 && listen(fd, 5) == 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&sa, &len), 0);
    *port = ntohs(sa.sin_port);
    return fd;
}

static void must_connect(const char *conninfo)
{
    char *error = db_pool_check_conninfo(conninfo);
    assert_null(error);
    struct db_limits limits = DB_LIMITS_DEFAULT;
    limits.connect_timeout_ms = 700;
    struct fixture f;
    open_pool_limited(&f, conninfo, 2, limits);
    assert_true(run_until_ready(&f.loop, f.pool));
    close_pool_and_loop(f.pool, &f.loop);
}

static void test_hosts(void **state)
{
    (void)state;
    int port;
    int fd = black_hole(&port);
    const char *dir = pg_socket_dir(pg);
    int ours = pg_port(pg);
    const char *const tail = "user=postgres dbname=postgres";
    char *texts[] = {
        xasprintf("host=127.0.0.1,%s port=%d,%d %s", dir, port, ours, tail),
        xasprintf("host=no-such-host.invalid,localhost port=%d %s", ours, tail),
        xasprintf("host=localhost port=%d %s", ours, tail),
        xasprintf("hostaddr=127.0.0.1 port=%d %s", ours, tail),
        xasprintf("host=whatever hostaddr=127.0.0.1 port=%d %s connect_timeout=3", ours, tail),
        xasprintf("postgresql://postgres@[::1]:1,127.0.0.1:%d/postgres", ours),
        xasprintf("host=127.0.0.1,/nonexistent,localhost port=1,2,%d %s", ours, tail),
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        must_connect(texts[i]);
        free(texts[i]);
    }
    close(fd);
}

static void test_bad_conninfo(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "nonsense=1",         "host=a,b port=1,2,3",  "host=a,b hostaddr=127.0.0.1",
        "service=x",          "connect_timeout=soon", "target_session_attrs=standby",
        "host=a 'unfinished",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char *error = db_pool_check_conninfo(bad[i]);
        if (!error)
            fail_msg("accepted: %s", bad[i]);
        free(error);
    }
    assert_null(db_pool_check_conninfo("host=a,b port=5432 target_session_attrs=read-write"));
    assert_null(db_pool_check_conninfo(""));
}

/* Closing in any phase of connecting leaves nothing behind. */
static void test_close_while_connecting(void **state)
{
    (void)state;
    int port;
    int fd = black_hole(&port);
    char *hole = xasprintf("host=127.0.0.1 port=%d user=x", port);
    char *name = xasprintf("host=localhost port=%d user=postgres sslmode=require", pg_port(pg));
    const char *const texts[] = {hole, name, "host=no-such-host.invalid user=x"};
    for (int turns = 0; turns < 12; turns++) {
        for (size_t i = 0; i < 3; i++) {
            struct fixture f;
            open_pool_limited(&f, texts[i], 2, DB_LIMITS_DEFAULT);
            struct answers a = {0};
            call(&f, &stmt_id, 1, answers_cb, &a);
            for (int t = 0; t < turns; t++)
                uv_run(&f.loop, UV_RUN_NOWAIT);
            close_pool_and_loop(f.pool, &f.loop);
            assert_int_equal(a.total, 1);
        }
    }
    free(hole);
    free(name);
    close(fd);
}

static void test_frozen_backend(void **state)
{
    (void)state;
    struct db_limits limits = DB_LIMITS_DEFAULT;
    limits.answer_timeout_ms = 600;
    struct fixture f;
    open_pool_limited(&f, pg_conninfo(pg), 1, limits);
    assert_true(run_until_ready(&f.loop, f.pool));
    pid_t pid = (pid_t)pg_query_int(pg, "SELECT pid FROM pg_stat_activity WHERE "
                                        "application_name = 'shine-test'");
    assert_int_equal(kill(pid, SIGSTOP), 0);
    struct answers a = {0};
    for (int i = 0; i < 5; i++)
        call(&f, &stmt_id, i, answers_cb, &a);
    wait_answers(&f, &a, 5);
    assert_int_equal(a.unavailable, 5);
    kill(pid, SIGCONT);
    assert_true(run_until_ready(&f.loop, f.pool));
    call(&f, &stmt_id, 1, answers_cb, &a);
    wait_answers(&f, &a, 6);
    assert_int_equal(a.ok, 1);
    close_pool_and_loop(f.pool, &f.loop);
}

static void test_statement_timeout(void **state)
{
    (void)state;
    struct db_limits limits = DB_LIMITS_DEFAULT;
    limits.statement_timeout_ms = 100;
    struct fixture f;
    open_pool_limited(&f, pg_conninfo(pg), 1, limits);
    assert_true(run_until_ready(&f.loop, f.pool));
    struct answers a = {0};
    call(&f, &stmt_sleep, 60000, answers_cb, &a);
    call(&f, &stmt_id, 1, answers_cb, &a);
    wait_answers(&f, &a, 2);
    assert_int_equal(a.ok, 1);
    assert_string_equal(a.sqlstate, "57014");
    close_pool_and_loop(f.pool, &f.loop);
}

static void test_bounds(void **state)
{
    (void)state;
    struct db_limits limits = DB_LIMITS_DEFAULT;
    limits.max_calls = 10;
    struct fixture f;
    open_pool_limited(&f, pg_conninfo(pg), 1, limits);
    assert_true(run_until_ready(&f.loop, f.pool));
    struct answers a = {0};
    for (int i = 0; i < 15; i++)
        call(&f, &stmt_id, i, answers_cb, &a);
    wait_answers(&f, &a, 15);
    assert_int_equal(a.ok, 10);
    assert_int_equal(a.unavailable, 5);
    close_pool_and_loop(f.pool, &f.loop);

    limits.max_bytes = 20;
    open_pool_limited(&f, pg_conninfo(pg), 1, limits);
    assert_true(run_until_ready(&f.loop, f.pool));
    a = (struct answers){0};
    for (int i = 0; i < 3; i++)
        call(&f, &stmt_id, i, answers_cb, &a);
    wait_answers(&f, &a, 3);
    assert_int_equal(a.ok, 2);
    close_pool_and_loop(f.pool, &f.loop);
}

static bool closed_inside;

static void on_closed(void *ctx)
{
    (void)ctx;
    closed_inside = true;
}

static void close_inside(void *ctx, const struct db_result *r)
{
    struct fixture *f = ctx;
    assert_int_equal(db_status(r), DB_OK);
    db_pool_close(f->pool, on_closed, NULL);
}

static void test_close_from_callback(void **state)
{
    (void)state;
    struct fixture f;
    open_pool(&f, 1);
    struct answers a = {0};
    call(&f, &stmt_id, 1, answers_cb, &a);
    call(&f, &stmt_id, 1, close_inside, &f);
    for (int i = 0; i < 20; i++)
        call(&f, &stmt_big, 100000, answers_cb, &a);
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
    struct fixture *f;
    int left;
};

static void call_again(void *ctx, const struct db_result *r)
{
    struct again *again = ctx;
    (void)r;
    if (again->left-- > 0)
        call(again->f, &stmt_id, 1, call_again, again);
}

static bool none_left(void *ctx)
{
    return ((struct again *)ctx)->left < 0;
}

static void test_call_from_callback(void **state)
{
    (void)state;
    struct fixture f;
    open_pool(&f, 1);
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

/* Many lives of connections, killed in every phase; bounded in time rather than in rounds. */
static void test_many_rounds(void **state)
{
    (void)state;
    struct db_limits limits = DB_LIMITS_DEFAULT;
    limits.reconnect_min_ms = limits.reconnect_max_ms = 2;
    struct fixture f;
    open_pool_limited(&f, pg_conninfo(pg), 3, limits);
    struct answers a = {0};
    int sent = 0, rounds = 0;
    uint64_t end = uv_hrtime() + (uint64_t)15 * 1000 * 1000 * 1000;
    for (; rounds < 1000 && uv_hrtime() < end; rounds++) {
        assert_true(run_until_ready(&f.loop, f.pool));
        for (int i = 0; i < 8; i++, sent++)
            call(&f, mix[(size_t)(rounds + i) % 2], 20000, answers_cb, &a);
        for (int i = rounds % 9; i > 0; i--)
            uv_run(&f.loop, UV_RUN_ONCE);
        terminate_all();
    }
    wait_answers(&f, &a, sent);
    assert_int_equal(a.error, 0);
    print_message("%d rounds, %d calls: %d ok, %d unavailable\n", rounds, sent, a.ok,
                  a.unavailable);
    close_pool_and_loop(f.pool, &f.loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kill_in_flight),
        cmocka_unit_test(test_kill_idle),
        cmocka_unit_test(test_server_crash_and_return),
        cmocka_unit_test(test_read_only_server),
        cmocka_unit_test(test_failover),
        cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_bad_conninfo),
        cmocka_unit_test(test_close_while_connecting),
        cmocka_unit_test(test_frozen_backend),
        cmocka_unit_test(test_statement_timeout),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_close_from_callback),
        cmocka_unit_test(test_call_from_callback),
        cmocka_unit_test(test_many_rounds),
    };
    return cmocka_run_group_tests(tests, start_server, stop_server);
}
