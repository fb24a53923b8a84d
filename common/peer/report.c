/*
 * What a pool tells people. See report.h.
 *
 * The table is written every few seconds, and only what has changed; once a minute all of it,
 * because the table is unlogged and a crash of the database empties it. What was written last is
 * kept as a text for each peer, so that nothing on the hot path has to say that it changed
 * something.
 *
 * Raises: environment (a write that fails is made up for by the next one).
 */
#include "peer/report.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "peer/internal.h"
#include "store/peers.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#define WRITE_MS 3000
#define LOG_MS   60000
/* Every so many writes, all rows. */
#define WHOLE_EVERY 20

struct written {
    struct store_route key;
    char *text; /* what the row said */
    uint64_t round;
};

struct peer_report {
    struct peer_pool *pool;
    struct store *store;
    uv_timer_t write_timer, log_timer;
    uv_signal_t signal;
    unsigned handles;
    struct map *written; /* of struct written, by "login url" */
    uint64_t round;
    bool writing, closing;
    uint64_t logged_ok, logged_failed, logged_timed_out; /* sums at the last line */
    void (*on_closed)(void *ctx);
    void *closed_ctx;
};

/* --- one peer as a row --- */

static int64_t ago(int64_t now, int64_t then)
{
    return then == 0 ? -1 : now - then;
}

static struct store_peer_row row_of(const struct peer *p, int64_t now)
{
    int64_t active = 0, ping = 0, pong = 0;
    if (p->link) {
        active = peer_link_last_received_ms(p->link);
        peer_link_ping_times(p->link, &ping, &pong);
    }
    return (struct store_peer_row){
        .login = p->login,
        .url = p->url,
        .state = peer_state_name(p),
        .last_error = p->last_error,
        .connected_ms = ago(now, p->ready_ms),
        .active_ms = ago(now, active),
        .ping_ms = ago(now, ping),
        .pong_ms = ago(now, pong),
        .error_ms = ago(now, p->error_ms),
        .reconnects = p->count.connects > 0 ? (int64_t)p->count.connects - 1 : 0,
        .queued = {p->n_lane[0], p->n_lane[1], p->n_lane[2]},
        .in_flight = p->n_flight,
        .ok = (int64_t)p->count.ok,
        .failed = (int64_t)p->count.failed,
        .timed_out = (int64_t)p->count.timed_out,
        .late = (int64_t)p->count.late,
    };
}

/* The moment, 0 = never: unlike the time since then it does not change by itself. */
static int64_t moment(int64_t now, int64_t ago_ms)
{
    return ago_ms < 0 ? 0 : now - ago_ms;
}

/* What makes one row differ from another one of the same peer. */
static char *text_of(const struct store_peer_row *r, int64_t now)
{
    return xasprintf("%s %s %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64
                     " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64
                     " %" PRId64 " %" PRId64,
                     r->state, r->last_error, moment(now, r->connected_ms),
                     moment(now, r->active_ms), moment(now, r->ping_ms), moment(now, r->pong_ms),
                     moment(now, r->error_ms), r->reconnects, r->queued[0], r->queued[1],
                     r->queued[2], r->in_flight, r->ok, r->failed, r->timed_out, r->late);
}

/* --- the table --- */

static void written_free(struct written *w)
{
    free(w->text);
    free(w);
}

/* Nothing is known of what the table says. */
static void forget_written(struct peer_report *r)
{
    size_t it = 0;
    void *w;
    while (map_next(r->written, &it, NULL, &w))
        written_free(w);
    map_free(r->written);
    r->written = map_new();
}

static void free_if_over(struct peer_report *r)
{
    if (!r->closing || r->writing || r->handles > 0)
        return;
    void (*on_closed)(void *ctx) = r->on_closed;
    void *ctx = r->closed_ctx;
    forget_written(r);
    map_free(r->written);
    free(r);
    if (on_closed)
        on_closed(ctx);
}

static void on_written(void *ctx, enum db_status st, bool written)
{
    struct peer_report *r = ctx;
    r->writing = false;
    if (st != DB_OK || !written)
        forget_written(r);
    free_if_over(r);
}

/* True if the row has changed since it was written; notes what it says now. */
static bool note(struct peer_report *r, const struct store_peer_row *row, int64_t now)
{
    char *key = xasprintf("%s %s", row->login, row->url);
    struct written *w = map_get(r->written, key);
    char *text = text_of(row, now);
    bool changed = !w || strcmp(w->text, text) != 0;
    if (!w) {
        w = xnew(struct written);
        memcpy(w->key.login, row->login, strlen(row->login) + 1);
        memcpy(w->key.url, row->url, strlen(row->url) + 1);
        (void)map_put(r->written, key, w);
    }
    free(w->text);
    w->text = text;
    w->round = r->round;
    free(key);
    return changed;
}

/* Peers that were written once and are no more; `gone` has room for all. */
static size_t collect_gone(struct peer_report *r, struct store_route *gone)
{
    size_t it = 0, n = 0;
    const char *key;
    void *v;
    while (map_next(r->written, &it, &key, &v)) {
        struct written *w = v;
        if (w->round == r->round)
            continue;
        gone[n++] = w->key;
        (void)map_remove(r->written, key);
        written_free(w);
    }
    return n;
}

void peer_report_write(struct peer_report *r)
{
    if (!r->store || r->writing || r->closing)
        return;
    int64_t now = clock_mono_ms();
    size_t most = 0, n = 0;
    bool whole = r->round % WHOLE_EVERY == 0;
    r->round++;
    list_each(i, &r->pool->peers)
        most++;
    struct store_peer_row *rows = xcalloc(most, sizeof *rows);
    list_each(i, &r->pool->peers) {
        const struct peer *p = list_entry(i, struct peer, lru);
        struct store_peer_row row = row_of(p, now);
        if (p->retired || strlen(p->login) > SHINE_SERVER_LOGIN_MAX ||
            strlen(p->url) > SHINE_URL_MAX)
            continue; /* a retired one may share its key with its successor */
        if (note(r, &row, now) || whole)
            rows[n++] = row;
    }
    struct store_route *gone = xcalloc(map_size(r->written), sizeof *gone);
    size_t n_gone = collect_gone(r, gone);
    if (n > 0 || n_gone > 0) {
        r->writing = true;
        store_write_peers(r->store, rows, n, gone, n_gone, on_written, r);
    }
    free(rows);
    free(gone);
}

static void on_write(uv_timer_t *t)
{
    peer_report_write(t->data);
}

/* --- the log --- */

void peer_report_log(struct peer_report *r)
{
    int64_t now = clock_mono_ms();
    list_each(n, &r->pool->peers) {
        const struct peer *p = list_entry(n, struct peer, lru);
        log_info("peer", LOG_S("peer", p->login), LOG_S("url", p->url),
                 LOG_S("state", peer_state_name(p)), LOG_I("legacy", p->legacy),
                 LOG_I("up_s", p->state == PEER_READY ? (now - p->ready_ms) / 1000 : 0),
                 LOG_I("queue_realtime", p->n_lane[PEER_REALTIME]),
                 LOG_I("queue_normal", p->n_lane[PEER_NORMAL]),
                 LOG_I("queue_bulk", p->n_lane[PEER_BULK]), LOG_I("in_flight", p->n_flight),
                 LOG_I("connects", p->count.connects), LOG_I("ok", p->count.ok),
                 LOG_I("failed", p->count.failed), LOG_I("timed_out", p->count.timed_out),
                 LOG_I("late", p->count.late), LOG_S("last_error", p->last_error));
    }
}

static void on_signal(uv_signal_t *s, int number)
{
    (void)number;
    peer_report_log(s->data);
}

/* The counters of peers that are forgotten are lost to the sums, which may fall. */
static uint64_t since(uint64_t *last, uint64_t sum)
{
    uint64_t d = sum > *last ? sum - *last : 0;
    *last = sum;
    return d;
}

void peer_report_sum(struct peer_report *r)
{
    unsigned n = 0, ready = 0, down = 0, queued = 0, in_flight = 0;
    uint64_t ok = 0, failed = 0, timed_out = 0;
    list_each(i, &r->pool->peers) {
        const struct peer *p = list_entry(i, struct peer, lru);
        n++;
        ready += p->state == PEER_READY;
        down += p->state == PEER_BACKOFF;
        queued += p->n_queued;
        in_flight += p->n_flight;
        ok += p->count.ok;
        failed += p->count.failed;
        timed_out += p->count.timed_out;
    }
    if (n > 0)
        log_info("peers", LOG_I("known", n), LOG_I("ready", ready), LOG_I("backoff", down),
                 LOG_I("queued", queued), LOG_I("in_flight", in_flight),
                 LOG_I("ok", since(&r->logged_ok, ok)),
                 LOG_I("failed", since(&r->logged_failed, failed)),
                 LOG_I("timed_out", since(&r->logged_timed_out, timed_out)));
}

static void on_log(uv_timer_t *t)
{
    peer_report_sum(t->data);
}

/* --- life --- */

struct peer_report *peer_report_new(uv_loop_t *loop, struct peer_pool *pool, struct store *store)
{
    struct peer_report *r = xnew(struct peer_report);
    r->pool = pool;
    r->store = store;
    r->written = map_new();
    r->write_timer.data = r->log_timer.data = r->signal.data = r;
    (void)uv_timer_init(loop, &r->write_timer);
    (void)uv_timer_init(loop, &r->log_timer);
    shine_assert(uv_signal_init(loop, &r->signal) == 0);
    r->handles = 3;
    (void)uv_timer_start(&r->write_timer, on_write, WRITE_MS, WRITE_MS);
    (void)uv_timer_start(&r->log_timer, on_log, LOG_MS, LOG_MS);
    (void)uv_signal_start(&r->signal, on_signal, SIGUSR1);
    return r;
}

static void on_handle_closed(uv_handle_t *h)
{
    struct peer_report *r = h->data;
    r->handles--;
    free_if_over(r);
}

void peer_report_close(struct peer_report *r, void (*on_closed)(void *ctx), void *ctx)
{
    shine_assert(!r->closing);
    r->closing = true;
    r->on_closed = on_closed;
    r->closed_ctx = ctx;
    uv_close((uv_handle_t *)&r->write_timer, on_handle_closed);
    uv_close((uv_handle_t *)&r->log_timer, on_handle_closed);
    uv_close((uv_handle_t *)&r->signal, on_handle_closed);
}
