/*
 * The pool: keeps `size` connections open, spreads calls over them, and runs the callbacks.
 *
 * A request is on exactly one list: a connection's in_flight, or the pool's finished. Whatever ends
 * a request only moves it to `finished`; callbacks run at the end of a socket event or from the
 * idle handle, never inside db_call() and never in the midst of libpq, so they may call anything
 * here.
 *
 * Connections are opened one at a time: a server that is down sees one attempt per backoff step,
 * not `size`.
 *
 *   filling ──dialled──▶ filling … ──▶ full ──lost──▶ wait (backoff) ──▶ filling
 *   filling ──failed───▶ wait (backoff) ──▶ filling
 *   any ──db_pool_close()──▶ closing: all connections dropped, callbacks run, handles closed, freed
 *
 * Raises: environment only.
 */
#include "db/internal.h"

#include "util/backoff.h"
#include "util/log.h"
#include "util/mem.h"

#include <stdlib.h>

struct db_pool {
    uv_loop_t *loop;
    struct db_limits limits;
    unsigned size;
    struct list conns;
    unsigned conn_count;
    struct db_dialer *dialer;
    struct backoff backoff;
    uv_timer_t redial;
    uv_timer_t watchdog; /* runs while calls are unfinished */
    uv_idle_t idle;      /* active while something is to be told, or was put off */
    struct list finished;
    struct list later;
    struct list at_tick;
    uv_timer_t tick;     /* runs while `at_tick` holds something */
    size_t calls, bytes; /* unfinished: in flight or on `finished` */
    bool delivering;
    bool announced; /* what on_change has been told */
    void (*on_change)(void *ctx, bool ready);
    void *change_ctx;
    bool closing, handles_closing;
    unsigned open_handles;
    void (*on_closed)(void *ctx);
    void *closed_ctx;
};

static void fill(struct db_pool *pool);
static void close_handles(struct db_pool *pool);

uv_loop_t *db_pool_loop(struct db_pool *pool)
{
    return pool->loop;
}

/* --- telling --- */

static void run_later(struct db_pool *pool)
{
    struct list now;
    list_init(&now);
    list_splice(&now, &pool->later);
    struct list *l;
    while ((l = list_pop(&now))) {
        struct db_later *work = list_entry(l, struct db_later, link);
        work->run(work);
    }
}

static void on_idle(uv_idle_t *idle)
{
    struct db_pool *pool = idle->data;
    run_later(pool);
    db_pool_deliver(pool);
}

static void tell_later(struct db_pool *pool)
{
    if (!pool->handles_closing)
        uv_idle_start(&pool->idle, on_idle);
}

void db_pool_later(struct db_pool *pool, struct db_later *work)
{
    shine_assert(!pool->handles_closing);
    list_push(&pool->later, &work->link);
    tell_later(pool);
}

static void on_tick(uv_timer_t *t)
{
    struct db_pool *pool = t->data;
    list_splice(&pool->later, &pool->at_tick);
    tell_later(pool);
}

void db_pool_at_tick(struct db_pool *pool, struct db_later *work)
{
    if (pool->closing) {
        db_pool_later(pool, work);
        return;
    }
    list_push(&pool->at_tick, &work->link);
    if (!uv_is_active((uv_handle_t *)&pool->tick))
        uv_timer_start(&pool->tick, on_tick, DB_TICK_MS, 0);
}

void db_pool_finish(struct db_pool *pool, struct db_request *r, enum db_status status)
{
    r->res.status = status;
    if (status == DB_UNAVAILABLE) {
        PQclear(r->res.pg);
        r->res.pg = NULL;
        r->res.message = "database unavailable";
    }
    list_push(&pool->finished, &r->link);
    tell_later(pool);
}

static void tell_readiness(struct db_pool *pool)
{
    bool ready = db_pool_ready(pool);
    if (ready == pool->announced)
        return;
    pool->announced = ready;
    if (pool->on_change)
        pool->on_change(pool->change_ctx, ready);
}

void db_pool_deliver(struct db_pool *pool)
{
    if (pool->delivering)
        return;
    pool->delivering = true;
    /* Only what is finished now: a callback that calls again and fails at once must not keep us
     * here. */
    struct list batch;
    list_init(&batch);
    list_splice(&batch, &pool->finished);
    struct list *l;
    while ((l = list_pop(&batch))) {
        struct db_request *r = list_entry(l, struct db_request, link);
        size_t bytes = db_params_size(r->params);
        r->cb(r->ctx, &r->res);
        pool->calls--;
        pool->bytes -= bytes;
        PQclear(r->res.pg);
        db_params_free(r->params);
        free(r);
    }
    tell_readiness(pool);
    pool->delivering = false;
    bool idle = list_empty(&pool->finished) && list_empty(&pool->later);
    if (idle && !pool->handles_closing)
        uv_idle_stop(&pool->idle);
    if (idle && pool->closing && pool->calls == 0)
        close_handles(pool);
}

/* --- connections --- */

static void on_redial(uv_timer_t *t)
{
    fill(t->data);
}

static void dial_later(struct db_pool *pool)
{
    if (!pool->closing && !db_dialer_busy(pool->dialer) &&
        !uv_is_active((uv_handle_t *)&pool->redial))
        uv_timer_start(&pool->redial, on_redial, backoff_next(&pool->backoff), 0);
}

static void fill(struct db_pool *pool)
{
    if (!pool->closing && pool->conn_count < pool->size && !db_dialer_busy(pool->dialer))
        db_dialer_start(pool->dialer);
}

static void on_dialled(void *ctx, PGconn *pg, const char *error)
{
    struct db_pool *pool = ctx;
    struct db_conn *c = pg ? db_conn_new(pool, pg) : NULL;
    if (!c) {
        log_warn("db_connect_failed", LOG_S("reason", error ? error : "cannot watch the socket"),
                 LOG_I("connections", pool->conn_count));
        dial_later(pool);
        return;
    }
    list_push(&pool->conns, db_conn_link(c));
    pool->conn_count++;
    log_info("db_connected", LOG_I("connections", pool->conn_count));
    tell_later(pool);
    fill(pool);
}

void db_pool_lost(struct db_pool *pool, struct db_conn *c, bool healthy)
{
    list_remove(db_conn_link(c));
    pool->conn_count--;
    if (healthy)
        backoff_reset(&pool->backoff);
    tell_later(pool);
    dial_later(pool);
}

static void on_watchdog(uv_timer_t *t)
{
    struct db_pool *pool = t->data;
    list_each_safe(l, &pool->conns)
        db_conn_check(db_conn_from_link(l), pool->limits.answer_timeout_ms);
    if (pool->calls == 0)
        uv_timer_stop(t);
}

/* --- calls --- */

/* The connection with the fewest calls in flight, and one that hangs only if all do. */
static struct db_conn *least_busy(const struct db_pool *pool)
{
    struct db_conn *best = NULL;
    bool best_hangs = false;
    list_each(l, &pool->conns) {
        struct db_conn *c = db_conn_from_link(l);
        bool hangs = db_conn_hangs(c);
        if (!best || (best_hangs && !hangs) ||
            (best_hangs == hangs && db_conn_in_flight(c) < db_conn_in_flight(best))) {
            best = c;
            best_hangs = hangs;
        }
    }
    return best;
}

void db_call(struct db_pool *pool, const struct db_stmt *stmt, struct db_params *params, db_cb cb,
             void *ctx)
{
    shine_assert(!pool->handles_closing);
    struct db_request *r = xnew(struct db_request);
    list_init(&r->link);
    r->stmt = stmt;
    r->params = params;
    r->cb = cb;
    r->ctx = ctx;
    size_t bytes = db_params_size(params);
    /* A lone call may be of any size, or it could never be made. */
    bool full = pool->calls >= pool->limits.max_calls ||
                (pool->calls > 0 && pool->bytes + bytes > pool->limits.max_bytes);
    pool->calls++;
    pool->bytes += bytes;
    struct db_conn *c = full || pool->closing ? NULL : least_busy(pool);
    if (!c) {
        db_pool_finish(pool, r, DB_UNAVAILABLE);
        return;
    }
    if (!uv_is_active((uv_handle_t *)&pool->watchdog)) {
        uint64_t every = pool->limits.answer_timeout_ms / 8 + 1;
        uv_timer_start(&pool->watchdog, on_watchdog, every, every);
    }
    db_conn_send(c, r); /* a connection found broken has finished the request as unavailable */
}

bool db_pool_ready(const struct db_pool *pool)
{
    return pool->conn_count > 0;
}

void db_pool_on_change(struct db_pool *pool, void (*cb)(void *ctx, bool ready), void *ctx)
{
    pool->on_change = cb;
    pool->change_ctx = ctx;
}

/* --- beginning and end --- */

struct db_pool *db_pool_new_limited(uv_loop_t *loop, const char *conninfo,
                                    const char *application_name, unsigned size,
                                    const struct db_limits *limits)
{
    char *error;
    char *options = db_session_options(limits->statement_timeout_ms);
    struct db_settings *settings =
        db_settings_new(conninfo, application_name, options, limits->connect_timeout_ms, &error);
    free(options);
    shine_assert(settings && size > 0); /* the caller has checked the conninfo */
    struct db_pool *pool = xnew(struct db_pool);
    pool->loop = loop;
    pool->limits = *limits;
    pool->size = size;
    list_init(&pool->conns);
    list_init(&pool->finished);
    list_init(&pool->later);
    list_init(&pool->at_tick);
    backoff_init(&pool->backoff, limits->reconnect_min_ms, limits->reconnect_max_ms);
    shine_assert(uv_timer_init(loop, &pool->redial) == 0);
    shine_assert(uv_timer_init(loop, &pool->watchdog) == 0);
    shine_assert(uv_timer_init(loop, &pool->tick) == 0);
    shine_assert(uv_idle_init(loop, &pool->idle) == 0);
    pool->redial.data = pool->watchdog.data = pool->idle.data = pool->tick.data = pool;
    pool->dialer = db_dialer_new(loop, settings, on_dialled, pool);
    fill(pool);
    return pool;
}

struct db_pool *db_pool_new(uv_loop_t *loop, const char *conninfo, const char *application_name,
                            unsigned size)
{
    return db_pool_new_limited(loop, conninfo, application_name, size, &DB_LIMITS_DEFAULT);
}

static void handle_closed(void *ctx)
{
    struct db_pool *pool = ctx;
    if (--pool->open_handles > 0)
        return;
    void (*on_closed)(void *ctx) = pool->on_closed;
    void *closed_ctx = pool->closed_ctx;
    free(pool);
    if (on_closed)
        on_closed(closed_ctx);
}

static void on_handle_closed(uv_handle_t *h)
{
    handle_closed(h->data);
}

static void close_handles(struct db_pool *pool)
{
    if (pool->handles_closing)
        return;
    pool->handles_closing = true;
    uv_close((uv_handle_t *)&pool->redial, on_handle_closed);
    uv_close((uv_handle_t *)&pool->watchdog, on_handle_closed);
    uv_close((uv_handle_t *)&pool->tick, on_handle_closed);
    uv_close((uv_handle_t *)&pool->idle, on_handle_closed);
}

void db_pool_close(struct db_pool *pool, void (*on_closed)(void *ctx), void *ctx)
{
    shine_assert(!pool->closing);
    pool->closing = true;
    pool->on_closed = on_closed;
    pool->closed_ctx = ctx;
    uv_timer_stop(&pool->redial);
    uv_timer_stop(&pool->tick);
    list_splice(&pool->later, &pool->at_tick);
    pool->open_handles = 5; /* the dialer's and the four of close_handles() */
    db_dialer_close(pool->dialer, handle_closed, pool);
    while (!list_empty(&pool->conns))
        db_conn_drop(db_conn_from_link(pool->conns.next), NULL);
    tell_later(pool); /* the rest when the last callback has run */
}
