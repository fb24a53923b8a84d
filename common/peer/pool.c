/*
 * The peers of a process, and what state each is in.
 *
 *   IDLE -> CONNECTING                a call came
 *   CONNECTING -> HELLO               the connection is open
 *   CONNECTING, HELLO -> BACKOFF      the dial failed: every waiting call has ended
 *   HELLO -> READY                    the peer knows us
 *   READY -> BACKOFF                  lost while calls wait, or too soon after it was made
 *   READY -> IDLE                     lost after a while, and nobody waits
 *   BACKOFF -> CONNECTING             the delay is over and calls wait
 *   BACKOFF -> IDLE                   the delay is over and nobody waits
 *   any -> IDLE                       the peer is forgotten (pool closing, or making room)
 *
 * Forbidden: IDLE or BACKOFF with a link; CONNECTING, HELLO or READY without one.
 *
 * Raises: environment (logged).
 */
#include <inttypes.h>
#include <stdlib.h>

#include "peer/internal.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#define BACKOFF_BASE_MS   500
#define BACKOFF_MAX_MS    60000
#define STABLE_MS         30000 /* a connection that lasted so long was a good one */
#define MAX_PEERS_DEFAULT 1000
#define SEND_BUFFER_MAX   ((size_t)8 << 20)

static const char *const state_names[] = {"idle", "connecting", "hello", "ready", "backoff"};

static void on_peer_timer(uv_timer_t *t);

/* --- the pool's life --- */

struct peer_pool *peer_pool_new(uv_loop_t *loop, const struct peer_config *cfg)
{
    struct peer_pool *pool = xnew(struct peer_pool);
    pool->loop = loop;
    pool->cfg = *cfg;
    pool->server_login = xstrdup(cfg->server_login);
    pool->cfg.server_login = pool->server_login;
    if (pool->cfg.max_peers == 0)
        pool->cfg.max_peers = MAX_PEERS_DEFAULT;
    if (pool->cfg.max_in_flight_per_peer == 0)
        pool->cfg.max_in_flight_per_peer = 1;
    pool->limits = ws_limits_default;
    pool->limits.handshake_ms = cfg->connect_timeout_ms;
    pool->limits.idle_ms = cfg->ping_idle_ms;
    pool->limits.pong_ms = cfg->pong_timeout_ms;
    pool->limits.max_send_buffer = SEND_BUFFER_MAX; /* several of the largest requests */
    pool->by_key = map_new();
    list_init(&pool->peers);
    (void)uv_timer_init(loop, &pool->anchor);
    pool->anchor.data = pool;
    peer_pool_ref(pool);
    return pool;
}

void peer_pool_ref(struct peer_pool *pool)
{
    pool->refs++;
}

void peer_pool_unref(struct peer_pool *pool)
{
    shine_assert(pool->refs > 0);
    if (--pool->refs > 0)
        return;
    void (*on_closed)(void *ctx) = pool->on_closed;
    void *ctx = pool->closed_ctx;
    free(pool->server_login);
    map_free(pool->by_key);
    free(pool);
    if (on_closed)
        on_closed(ctx);
}

static void on_anchor_closed(uv_handle_t *h)
{
    peer_pool_unref(h->data);
}

/* --- a peer's life --- */

static void on_peer_timer_closed(uv_handle_t *h)
{
    struct peer *p = h->data;
    struct peer_pool *pool = p->pool;
    free(p->key);
    free(p->login);
    free(p->url);
    free(p);
    peer_pool_unref(pool);
}

static bool peer_has_calls(const struct peer *p)
{
    return p->n_queued > 0 || p->n_flight > 0;
}

/* Forget a peer: nothing may be called on it afterwards. Its calls have ended. */
static void peer_forget(struct peer *p, int code, const char *reason)
{
    shine_assert(!peer_has_calls(p));
    peer_link_drop(p, code, reason);
    peer_set_state(p, PEER_IDLE);
    (void)map_remove(p->pool->by_key, p->key);
    list_remove(&p->lru);
    uv_close((uv_handle_t *)&p->timer, on_peer_timer_closed);
}

static bool make_room(struct peer_pool *pool)
{
    if (map_size(pool->by_key) < pool->cfg.max_peers)
        return true;
    list_each(n, &pool->peers) {
        struct peer *p = list_entry(n, struct peer, lru);
        if (!peer_has_calls(p)) {
            peer_forget(p, 1000, "unused");
            return true;
        }
    }
    return false;
}

/* The peer (login, url), made if it is new; NULL if there are too many, all of them busy. */
static struct peer *pool_peer(struct peer_pool *pool, const char *login, const char *url)
{
    char *key = xasprintf("%s %s", login, url); /* a login holds no space */
    struct peer *p = map_get(pool->by_key, key);
    if (p || !make_room(pool)) {
        free(key);
        if (p)
            list_push(&pool->peers, &p->lru);
        return p;
    }
    p = xnew(struct peer);
    p->pool = pool;
    p->key = key;
    p->login = xstrdup(login);
    p->url = xstrdup(url);
    p->last_error = "";
    backoff_init(&p->backoff, BACKOFF_BASE_MS, BACKOFF_MAX_MS);
    for (int lane = 0; lane < PEER_LANES; lane++)
        list_init(&p->lanes[lane]);
    list_init(&p->flight);
    list_init(&p->lru);
    list_push(&pool->peers, &p->lru);
    (void)map_put(pool->by_key, key, p);
    (void)uv_timer_init(pool->loop, &p->timer);
    p->timer.data = p;
    peer_pool_ref(pool);
    return p;
}

void peer_pool_close(struct peer_pool *pool, void (*on_closed)(void *ctx), void *ctx)
{
    shine_assert(!pool->closing);
    pool->closing = true;
    pool->on_closed = on_closed;
    pool->closed_ctx = ctx;
    while (!list_empty(&pool->peers)) {
        struct peer *p = list_entry(pool->peers.next, struct peer, lru);
        peer_calls_end_flight(p, PEER_SHUTDOWN, "shutdown");
        peer_calls_end_queue(p, PEER_SHUTDOWN, "shutdown", false);
        peer_forget(p, 1001, "shutting down");
    }
    uv_close((uv_handle_t *)&pool->anchor, on_anchor_closed);
}

/* --- states --- */

void peer_set_state(struct peer *p, enum peer_state state)
{
    bool linked = state == PEER_CONNECTING || state == PEER_HELLO || state == PEER_READY;
    shine_assert(linked == (p->link != NULL));
    (void)uv_timer_stop(&p->timer);
    uint32_t wait_ms = 0;
    if (state == PEER_HELLO)
        wait_ms = p->pool->cfg.request_timeout_ms;
    else if (state == PEER_BACKOFF)
        wait_ms = backoff_next(&p->backoff);
    if (wait_ms > 0)
        (void)uv_timer_start(&p->timer, on_peer_timer, wait_ms, 0);
    log_debug("peer_state", LOG_S("peer", p->login), LOG_S("from", state_names[p->state]),
              LOG_S("to", state_names[state]), LOG_I("wait_ms", wait_ms));
    p->state = state;
}

static void peer_dial(struct peer *p)
{
    const char *reason;
    if (peer_link_dial(p, &reason))
        peer_set_state(p, PEER_CONNECTING);
    else
        peer_connection_over(p, reason);
}

void peer_ready(struct peer *p, bool legacy, bool pipelining)
{
    p->legacy = legacy;
    p->max_in_flight = pipelining ? p->pool->cfg.max_in_flight_per_peer : 1;
    p->dial_failed = false;
    p->last_error = "";
    p->ready_ms = clock_mono_ms();
    p->count.connects++;
    log_info("peer_connected", LOG_S("peer", p->login), LOG_S("url", p->url),
             LOG_I("legacy", legacy), LOG_I("pipelining", pipelining));
    peer_set_state(p, PEER_READY);
    peer_calls_pump(p);
}

void peer_connection_over(struct peer *p, const char *reason)
{
    p->last_error = reason;
    if (p->state != PEER_READY) {
        p->dial_failed = true;
        log_warn("peer_dial_failed", LOG_S("peer", p->login), LOG_S("url", p->url),
                 LOG_S("reason", reason), LOG_I("failures", p->backoff.step + 1));
        peer_calls_end_queue(p, PEER_UNREACHABLE, reason, true);
        peer_set_state(p, PEER_BACKOFF);
        return;
    }
    bool stable = clock_mono_ms() - p->ready_ms >= STABLE_MS;
    if (stable)
        backoff_reset(&p->backoff);
    log_info("peer_lost", LOG_S("peer", p->login), LOG_S("reason", reason),
             LOG_I("in_flight", p->n_flight), LOG_I("waiting", p->n_queued));
    peer_calls_end_flight(p, PEER_LOST, reason);
    /* A peer that accepts and then drops us is not dialled at the pace of our calls. */
    peer_set_state(p, stable && p->n_queued == 0 ? PEER_IDLE : PEER_BACKOFF);
}

static void on_peer_timer(uv_timer_t *t)
{
    struct peer *p = t->data;
    if (p->state == PEER_HELLO) {
        peer_link_drop(p, 1000, "no answer to ServerHello");
        peer_connection_over(p, "hello_timeout");
        return;
    }
    shine_assert(p->state == PEER_BACKOFF);
    if (p->n_queued > 0)
        peer_dial(p);
    else
        peer_set_state(p, PEER_IDLE);
}

/* --- calls --- */

void peer_call(struct peer_pool *pool, const char *login, const char *url, enum peer_lane lane,
               const char *op, json_t *payload, uint32_t timeout_ms, peer_cb cb, void *ctx)
{
    struct peer_call *c = peer_call_new(pool, op, payload, cb, ctx);
    if (pool->closing) {
        peer_call_end(c, PEER_SHUTDOWN, "shutdown", false);
        return;
    }
    struct peer *p = pool_peer(pool, login, url);
    if (!p) {
        peer_call_end(c, PEER_OVERLOADED, "too_many_peers", false);
    } else if (p->state == PEER_BACKOFF && p->dial_failed) {
        p->count.failed++;
        peer_call_end(c, PEER_UNREACHABLE, p->last_error, true);
    } else if (!peer_call_queue(p, c, lane, timeout_ms)) {
        p->count.failed++;
        peer_call_end(c, PEER_OVERLOADED, "queue_full", false);
    } else if (p->state == PEER_IDLE) {
        peer_dial(p);
    } else {
        peer_calls_pump(p);
    }
}

void peer_pool_log(const struct peer_pool *pool)
{
    int64_t now = clock_mono_ms();
    list_each(n, &pool->peers) {
        const struct peer *p = list_entry(n, struct peer, lru);
        log_info("peer", LOG_S("peer", p->login), LOG_S("url", p->url),
                 LOG_S("state", state_names[p->state]), LOG_I("legacy", p->legacy),
                 LOG_I("up_s", p->state == PEER_READY ? (now - p->ready_ms) / 1000 : 0),
                 LOG_I("queue_realtime", p->n_lane[PEER_REALTIME]),
                 LOG_I("queue_normal", p->n_lane[PEER_NORMAL]),
                 LOG_I("queue_bulk", p->n_lane[PEER_BULK]), LOG_I("in_flight", p->n_flight),
                 LOG_I("connects", p->count.connects), LOG_I("ok", p->count.ok),
                 LOG_I("failed", p->count.failed), LOG_I("timed_out", p->count.timed_out),
                 LOG_I("late", p->count.late), LOG_S("last_error", p->last_error));
    }
}
