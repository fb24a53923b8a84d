/*
 * The LISTEN connection: notifications arrive, and a connection that has died, in whatever way, is
 * found out.
 */
#include "db/listen.h"

#include "support_db.h"
#include "support_pg.h"

#include "util/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

struct heard {
    uv_loop_t loop;
    struct db_listener *l;
    int nulls;
    int payloads;
    char last[32];
    int want_nulls, want_payloads;
    bool close_at_null;
};

static void on_notify(void *ctx, const char *payload)
{
    struct heard *h = ctx;
    if (payload) {
        h->payloads++;
        snprintf(h->last, sizeof(h->last), "%s", payload);
        return;
    }
    h->nulls++;
    if (h->close_at_null)
        db_listener_close(h->l);
}

static bool heard_enough(void *ctx)
{
    struct heard *h = ctx;
    return h->nulls >= h->want_nulls && h->payloads >= h->want_payloads;
}

static void wait_heard(struct heard *h, int nulls, int payloads)
{
    h->want_nulls = nulls;
    h->want_payloads = payloads;
    assert_true(run_until(&h->loop, heard_enough, h));
    assert_int_equal(h->nulls, nulls);
    assert_int_equal(h->payloads, payloads);
}

static const struct db_listener_times quick = {.probe_every_ms = 100, .probe_timeout_ms = 400};

static void open_listener(struct heard *h, const struct db_listener_times *times)
{
    *h = (struct heard){0};
    assert_int_equal(uv_loop_init(&h->loop), 0);
    h->l = db_listen_timed(&h->loop, pg_conninfo_tls(pg), "hints", on_notify, h, times);
}

static void close_listener(struct heard *h)
{
    db_listener_close(h->l);
    uv_run(&h->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&h->loop), 0);
}

static const char select_backend[] =
    "SELECT pid FROM pg_stat_activity WHERE application_name = 'shine-listen-hints'";

static void test_arrives(void **state)
{
    (void)state;
    struct heard h;
    open_listener(&h, &DB_LISTENER_TIMES_DEFAULT);
    wait_heard(&h, 1, 0);
    pg_exec(pg, "NOTIFY hints, 'one'; NOTIFY hints, 'two'; NOTIFY others, 'three'");
    wait_heard(&h, 1, 2);
    assert_string_equal(h.last, "two");
    pg_exec(pg, "SELECT pg_notify('hints', i::text) FROM generate_series(1, 2000) i");
    wait_heard(&h, 1, 2002);
    assert_string_equal(h.last, "2000");
    close_listener(&h);
}

/* Probes go on, disturb nobody, and a healthy connection is kept. */
static void test_stays(void **state)
{
    (void)state;
    struct heard h;
    open_listener(&h, &(struct db_listener_times){.probe_every_ms = 5, .probe_timeout_ms = 20000});
    wait_heard(&h, 1, 0);
    int64_t pid = pg_query_int(pg, select_backend);
    for (int i = 1; i <= 20; i++) {
        pg_exec(pg, "NOTIFY hints, 'x'");
        wait_heard(&h, 1, i);
    }
    assert_true(pid == pg_query_int(pg, select_backend));
    close_listener(&h);
}

static void test_terminated(void **state)
{
    (void)state;
    struct heard h;
    open_listener(&h, &DB_LISTENER_TIMES_DEFAULT);
    for (int i = 1; i <= 5; i++) {
        wait_heard(&h, i, i - 1);
        pg_exec(pg, "NOTIFY hints, 'x'");
        wait_heard(&h, i, i);
        char *sql = xasprintf("SELECT pg_terminate_backend((%s))", select_backend);
        pg_exec(pg, sql);
        free(sql);
    }
    wait_heard(&h, 6, 5);
    close_listener(&h);
}

static void test_frozen(void **state)
{
    (void)state;
    struct heard h;
    open_listener(&h, &quick);
    wait_heard(&h, 1, 0);
    pid_t pid = (pid_t)pg_query_int(pg, select_backend);
    assert_int_equal(kill(pid, SIGSTOP), 0);
    wait_heard(&h, 2, 0);
    pg_exec(pg, "NOTIFY hints, 'after'");
    wait_heard(&h, 2, 1);
    kill(pid, SIGCONT);
    close_listener(&h);
}

static void test_server_down_and_up(void **state)
{
    (void)state;
    struct heard h;
    open_listener(&h, &quick);
    wait_heard(&h, 1, 0);
    pg_stop(pg);
    pg_start(pg);
    wait_heard(&h, 2, 0);
    pg_exec(pg, "NOTIFY hints, 'x'");
    wait_heard(&h, 2, 1);
    close_listener(&h);
}

static void test_close_anywhere(void **state)
{
    (void)state;
    struct heard h;
    for (int turns = 0; turns < 20; turns++) {
        open_listener(&h, &quick);
        for (int i = 0; i < turns; i++)
            uv_run(&h.loop, i % 2 ? UV_RUN_ONCE : UV_RUN_NOWAIT);
        close_listener(&h);
    }
    open_listener(&h, &quick);
    h.close_at_null = true;
    uv_run(&h.loop, UV_RUN_DEFAULT);
    assert_int_equal(h.nulls, 1);
    assert_int_equal(uv_loop_close(&h.loop), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arrives),
        cmocka_unit_test(test_stays),
        cmocka_unit_test(test_terminated),
        cmocka_unit_test(test_frozen),
        cmocka_unit_test(test_server_down_and_up),
        cmocka_unit_test(test_close_anywhere),
    };
    return cmocka_run_group_tests(tests, start_server, stop_server);
}
