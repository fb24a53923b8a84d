/*
 * See support_db.h.
 */
#include "support_db.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#define TIME_LIMIT_NS ((uint64_t)20 * 1000 * 1000 * 1000)

static void on_limit(uv_timer_t *t)
{
    (void)t; /* it only has to wake the loop */
}

static void on_timer_closed(uv_handle_t *h)
{
    free(h);
}

bool run_until(uv_loop_t *loop, bool (*cond)(void *ctx), void *ctx)
{
    uv_timer_t *tick = malloc(sizeof(*tick)); /* outlives us: its close is completed later */
    assert_non_null(tick);
    uv_timer_init(loop, tick);
    uv_timer_start(tick, on_limit, 100, 100);
    uint64_t end = uv_hrtime() + TIME_LIMIT_NS;
    bool holds;
    while (!(holds = cond(ctx)) && uv_hrtime() < end)
        uv_run(loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)tick, on_timer_closed);
    return holds;
}

static bool is_ready(void *ctx)
{
    return db_pool_ready(ctx);
}

bool run_until_ready(uv_loop_t *loop, struct db_pool *pool)
{
    return run_until(loop, is_ready, pool);
}

static bool is_not_ready(void *ctx)
{
    return !db_pool_ready(ctx);
}

bool run_until_not_ready(uv_loop_t *loop, struct db_pool *pool)
{
    return run_until(loop, is_not_ready, pool);
}

static void on_closed(void *ctx)
{
    *(bool *)ctx = true;
}

void close_pool_and_loop(struct db_pool *pool, uv_loop_t *loop)
{
    bool closed = false;
    db_pool_close(pool, on_closed, &closed);
    uv_run(loop, UV_RUN_DEFAULT);
    assert_true(closed);
    assert_int_equal(uv_loop_close(loop), 0);
}

void answers_cb(void *ctx, const struct db_result *res)
{
    struct answers *a = ctx;
    a->total++;
    switch (db_status(res)) {
    case DB_OK:
        a->ok++;
        break;
    case DB_ERROR:
        a->error++;
        snprintf(a->sqlstate, sizeof(a->sqlstate), "%s", db_sqlstate(res));
        break;
    case DB_UNAVAILABLE:
        a->unavailable++;
        break;
    }
}

bool answers_complete(void *ctx)
{
    const struct answers *a = ctx;
    return a->total >= a->want;
}

static void on_change(void *ctx, bool ready)
{
    struct db_fixture *f = ctx;
    assert_int_equal(ready, db_pool_ready(f->pool));
    assert_int_not_equal(ready, f->told);
    f->told = ready;
    f->changes++;
}

void db_fixture_open(struct db_fixture *f, const char *conninfo, unsigned size,
                     const struct db_limits *limits)
{
    const struct db_limits defaults = DB_LIMITS_DEFAULT;
    *f = (struct db_fixture){0};
    assert_int_equal(uv_loop_init(&f->loop), 0);
    f->pool =
        db_pool_new_limited(&f->loop, conninfo, "shine-test", size, limits ? limits : &defaults);
    db_pool_on_change(f->pool, on_change, f);
}

void db_fixture_open_ready(struct db_fixture *f, const char *conninfo, unsigned size,
                           const struct db_limits *limits)
{
    db_fixture_open(f, conninfo, size, limits);
    assert_false(db_pool_ready(f->pool));
    assert_true(run_until_ready(&f->loop, f->pool));
}

void db_fixture_close(struct db_fixture *f)
{
    close_pool_and_loop(f->pool, &f->loop);
}

void db_fixture_call(struct db_fixture *f, const struct db_stmt *stmt, int64_t v, db_cb cb,
                     void *ctx)
{
    struct db_params *p = db_params_new();
    db_add_int8(p, v);
    db_call(f->pool, stmt, p, cb, ctx);
}

void db_fixture_wait(struct db_fixture *f, struct answers *a, int want)
{
    a->want = want;
    assert_true(run_until(&f->loop, answers_complete, a));
    assert_int_equal(a->total, want);
}

void db_fixture_must_work_again(struct db_fixture *f)
{
    static const struct db_stmt stmt = {"works", "SELECT $1::bigint"};
    struct answers a = {0};
    for (int i = 1; i <= 100 && a.ok == 0; i++) {
        assert_true(run_until_ready(&f->loop, f->pool));
        db_fixture_call(f, &stmt, 1, answers_cb, &a);
        db_fixture_wait(f, &a, i);
    }
    assert_int_equal(a.ok, 1);
}

static bool never(void *ctx)
{
    return --*(int *)ctx < 0;
}

void db_fixture_turn(struct db_fixture *f, int n)
{
    run_until(&f->loop, never, &n);
}

enum { CALLS = 60 };
