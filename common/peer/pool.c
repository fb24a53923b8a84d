/*
 * The peers of a process: who they are, when they come and go, and how calls reach them.
 *
 * Raises: environment (logged).
 */
#include <stdlib.h>
#include <string.h>

#include "peer/internal.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#define BACKOFF_BASE_MS   500
#define BACKOFF_MAX_MS    60000
#define PROBE_MS          30000
#define MAX_PEERS_DEFAULT 1000
#define DIALS_DEFAULT     20
#define SEND_BUFFER_MAX   ((size_t)8 << 20)

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
    if (pool->cfg.dials_per_second == 0)
        pool->cfg.dials_per_second = DIALS_DEFAULT;
    if (pool->cfg.max_in_flight_per_peer == 0)
        pool->cfg.max_in_flight_per_peer = 1;
    pool->limits = ws_limits_default;
    pool->limits.handshake_ms = cfg->connect_timeout_ms;
    pool->limits.idle_ms = cfg->ping_idle_ms;
    pool->limits.pong_ms = cfg->pong_timeout_ms;
    pool->limits.max_send_buffer = SEND_BUFFER_MAX; /* several of the largest requests */
    pool->by_key = map_new();
    list_init(&pool->peers);
    list_init(&pool->turn_called);
    list_init(&pool->turn_wanted);
    list_init(&pool->todo);
    (void)uv_timer_init(loop, &pool->wake);
    pool->wake.data = pool;
    peer_pool_ref(pool);
    if (cfg->partners)
        partners_watch(cfg->partners, peer_pool_reconcile, pool);
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

static void on_wake_closed(uv_handle_t *h)
{
    peer_pool_unref(h->data);
}

void peer_pool_close(struct peer_pool *pool, void (*on_closed)(void *ctx), void *ctx)
{
    shine_assert(!pool->closing);
    pool->closing = true;
    pool->on_closed = on_closed;
    pool->closed_ctx = ctx;
    if (pool->cfg.partners)
        partners_watch(pool->cfg.partners, NULL, NULL);
    while (!list_empty(&pool->peers)) {
        struct peer *p = list_entry(pool->peers.next, struct peer, lru);
        peer_calls_end_flight(p, PEER_SHUTDOWN, "shutdown");
        peer_calls_end_queue(p, PEER_SHUTDOWN, "shutdown", false);
        peer_forget(p, 1001, "shutting down");
    }
    /* The last handle of a pool without peers: makes its callback asynchronous. */
    uv_close((uv_handle_t *)&pool->wake, on_wake_closed);
}

/* --- peers come and go --- */

static void on_peer_timer_closed(uv_handle_t *h)
{
    struct peer *p = h->data;
    struct peer_pool *pool = p->pool;
    free(p->key);
    free(p->login);
    free(p->url);
    free(p->new_url);
    free(p);
    peer_pool_unref(pool);
}

void peer_forget(struct peer *p, int code, const char *reason)
{
    shine_assert(!peer_has_calls(p));
    p->wanted = false;
    peer_link_drop(p, code, reason);
    peer_set_state(p, PEER_IDLE);
    if (map_get(p->pool->by_key, p->key) == p) /* a retired one may have a successor */
        (void)map_remove(p->pool->by_key, p->key);
    list_remove(&p->lru);
    list_remove(&p->todo);
    uv_close((uv_handle_t *)&p->timer, on_peer_timer_closed);
}

static bool has_room(struct peer_pool *pool, bool make_room)
{
    if (map_size(pool->by_key) < pool->cfg.max_peers)
        return true;
    list_each(n, &pool->peers) {
        struct peer *p = list_entry(n, struct peer, lru);
        if (make_room && !peer_has_calls(p) && !p->retired) {
            peer_forget(p, 1000, "unused");
            return true;
        }
    }
    return false;
}

/* NULL for a peer that is a pair. */
static const struct partner *partner_of(const struct peer_pool *pool, const char *login)
{
    return pool->cfg.partners ? partners_find(pool->cfg.partners, login) : NULL;
}

/* A login holds no space. */
static char *key_of(const struct partner *partner, const char *login, const char *url)
{
    return partner ? xstrdup(login) : xasprintf("%s %s", login, url);
}

static struct peer *peer_new(struct peer_pool *pool, char *key, const char *login, const char *url)
{
    struct peer *p = xnew(struct peer);
    p->pool = pool;
    p->key = key;
    p->login = xstrdup(login);
    p->url = xstrdup(url);
    p->last_error = "";
    backoff_init(&p->backoff, BACKOFF_BASE_MS, BACKOFF_MAX_MS);
    for (int lane = 0; lane < PEER_LANES; lane++)
        list_init(&p->lanes[lane]);
    list_init(&p->flight);
    list_init(&p->turn);
    list_init(&p->todo);
    list_init(&p->lru);
    list_push(&pool->peers, &p->lru);
    (void)map_put(pool->by_key, key, p);
    (void)uv_timer_init(pool->loop, &p->timer);
    p->timer.data = p;
    peer_pool_ref(pool);
    return p;
}

struct peer *peer_pool_get(struct peer_pool *pool, const char *login, const char *url,
                           bool make_room)
{
    const struct partner *partner = partner_of(pool, login);
    char *key = key_of(partner, login, url);
    struct peer *p = map_get(pool->by_key, key);
    if (p || !has_room(pool, make_room)) {
        free(key);
        return p;
    }
    p = peer_new(pool, key, login, partner ? partner->url : url);
    p->partner = partner != NULL;
    p->blocked = partner && partner->blocked;
    return p;
}

/* --- calls --- */

void peer_submit(struct peer *p, struct peer_call *c)
{
    if (p->blocked) {
        p->count.failed++;
        peer_note_error(p, "blocked");
        peer_call_end(c, PEER_UNREACHABLE, "blocked", true);
    } else if (p->state == PEER_BACKOFF && p->dial_failed && !peer_call_waits(c)) {
        p->count.failed++;
        peer_call_end(c, PEER_UNREACHABLE, p->last_error, true);
    } else if (!peer_call_queue(p, c)) {
        p->count.failed++;
        peer_call_end(c, PEER_OVERLOADED, "queue_full", false);
    } else if (p->state == PEER_IDLE) {
        peer_want_dial(p);
    } else if (p->state == PEER_TURN) {
        if (p->n_queued == 1)
            peer_hurry(p);
    } else if (p->state == PEER_BACKOFF) {
        if (peer_call_waits(c))
            peer_hasten(p);
    } else {
        peer_calls_pump(p);
    }
}

void peer_request(struct peer_pool *pool, const struct peer_request *r, peer_cb cb, void *ctx)
{
    struct peer_call *c = peer_call_new(pool, r, cb, ctx);
    if (pool->closing) {
        peer_call_end(c, PEER_SHUTDOWN, "shutdown", false);
        return;
    }
    struct peer *p = peer_pool_get(pool, r->login, r->url, true);
    if (!p) {
        peer_call_end(c, PEER_OVERLOADED, "too_many_peers", false);
        return;
    }
    list_push(&pool->peers, &p->lru);
    peer_submit(p, c);
}

void peer_call(struct peer_pool *pool, const char *login, const char *url, enum peer_lane lane,
               const char *op, json_t *payload, uint32_t timeout_ms, peer_cb cb, void *ctx)
{
    const struct peer_request r = {.login = login,
                                   .url = url,
                                   .lane = lane,
                                   .op = op,
                                   .payload = payload,
                                   .timeout_ms = timeout_ms};
    peer_request(pool, &r, cb, ctx);
}

/* --- what others ask and tell --- */

static const struct peer *find_peer(const struct peer_pool *pool, const char *login,
                                    const char *url)
{
    char *key = key_of(partner_of(pool, login), login, url);
    const struct peer *p = map_get(pool->by_key, key);
    free(key);
    return p;
}

bool peer_pool_lists(const struct peer_pool *pool, const char *login, const char *url,
                     const char *capability)
{
    const struct peer *p = find_peer(pool, login, url);
    return p && peer_capabilities_have(p->capabilities, capability);
}

struct peer_standing peer_pool_state(const struct peer_pool *pool, const char *login,
                                     const char *url)
{
    const struct partner *partner = partner_of(pool, login);
    const struct peer *p = find_peer(pool, login, url);
    struct peer_standing s = {.blocked = partner && partner->blocked};
    if (p) {
        s.connected = p->state == PEER_READY;
        s.down = p->state == PEER_BACKOFF && p->dial_failed;
        s.in_flight = p->n_flight;
        s.queued = p->n_queued;
    }
    return s;
}

void peer_pool_heard_from(struct peer_pool *pool, const char *login)
{
    int64_t now = clock_mono_ms();
    list_each(n, &pool->peers) {
        struct peer *p = list_entry(n, struct peer, lru);
        bool down = p->state == PEER_BACKOFF && p->dial_failed;
        if (!(down || (p->wanted && p->state == PEER_IDLE)) || strcmp(p->login, login) != 0)
            continue;
        if (p->probe_ms != 0 && now - p->probe_ms < PROBE_MS)
            continue;
        p->probe_ms = now;
        peer_want_dial(p);
    }
}
