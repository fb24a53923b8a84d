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
