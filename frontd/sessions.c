/*
 * All connections of a worker: who may connect, and how they end when the worker stops.
 *
 *   accepting -> stopping (no new requests) -> everything answered, or the deadline -> 1001 -> gone
 *
 * Grades of failure: environment only.
 */
#include "frontd/session_check.h"
#include "frontd/session_internal.h"

#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#include <stdlib.h>

static struct ws_limits limits_from(const struct config *c)
{
    struct ws_limits l = ws_limits_default;
    l.max_message = (size_t)config_int(c, "ws.maxMessageBytes");
    /* Answers have room of their own, or a page of history could push out an event. */
    l.max_send_buffer = (size_t)(config_int(c, "ws.maxSendBufferBytes") +
                                 2 * config_int(c, "limits.maxAnswerBytes"));
    l.handshake_ms = (uint32_t)config_int(c, "ws.handshakeSeconds") * 1000;
    l.idle_ms = (uint32_t)config_int(c, "ws.idleSeconds") * 1000;
    return l;
}

struct sessions *sessions_new(struct frontd *f)
{
    struct sessions *ss = xnew(struct sessions);
    ss->f = f;
    ss->limits = limits_from(f->config);
    ss->max_in_flight = (unsigned)config_int(f->config, "limits.inFlightPerConnection");
    ss->max_connections = (size_t)config_int(f->config, "limits.connections");
    ss->max_per_address = (size_t)config_int(f->config, "limits.connectionsPerAddress");
    list_init(&ss->connected);
    ss->by_id = map_new();
    ss->by_address = map_new();
    ss->stop_timer.data = ss;
    shine_assert(uv_timer_init(f->loop, &ss->stop_timer) == 0);
    ss->check = session_check_new(ss);
    return ss;
}

const struct ws_limits *sessions_limits(const struct sessions *ss)
{
    return &ss->limits;
}

static void timer_closed(uv_handle_t *h)
{
    free(h->data);
}

void sessions_free(struct sessions *ss)
{
    shine_assert(ss->n_sessions == 0 && map_size(ss->by_address) == 0);
    session_check_free(ss->check);
    map_free(ss->by_id);
    map_free(ss->by_address);
    uv_close((uv_handle_t *)&ss->stop_timer, timer_closed);
}

/* One line a second at most: whoever is refused may come back at once. */
static void log_refused(struct sessions *ss, const char *remote, const char *why)
{
    int64_t now = clock_mono_ms();
    ss->refused++;
    if (now - ss->refused_logged_ms < 1000)
        return;
    ss->refused_logged_ms = now;
    log_warn("connections_refused", LOG_S("remote", remote), LOG_S("limit", why),
             LOG_I("refused", ss->refused));
}

bool sessions_accept(struct ws_listener *l, void *ctx, struct ws_conn *conn, const char *remote,
                     const struct ws_callbacks **callbacks, void **conn_ctx)
{
    struct sessions *ss = ctx;
    struct address *a = map_get(ss->by_address, remote);
    const char *why = NULL;
    (void)l;
    if (ss->stopping)
        why = "stopping";
    else if (ss->n_connected >= ss->max_connections)
        why = "limits.connections";
    else if (a && a->n >= ss->max_per_address)
        why = "limits.connectionsPerAddress";
    if (why) {
        log_refused(ss, remote, why);
        return false;
    }
    struct session *s = session_new(ss, conn, remote);
    if (!a) {
        a = xnew(struct address);
        (void)map_put(ss->by_address, s->remote, a);
    }
    a->n++;
    list_push(&ss->connected, &s->link);
    ss->n_connected++;
    ss->n_sessions++;
    *callbacks = &session_callbacks;
    *conn_ctx = s;
    return true;
}

static void stopped_if_gone(struct sessions *ss)
{
    if (!ss->on_stopped || ss->n_connected > 0)
        return;
    void (*cb)(void *ctx) = ss->on_stopped;
    ss->on_stopped = NULL;
    (void)uv_timer_stop(&ss->stop_timer);
    cb(ss->stopped_ctx);
}

void sessions_disconnected(struct session *s)
{
    struct sessions *ss = s->all;
    struct address *a = map_get(ss->by_address, s->remote);
    if (--a->n == 0) {
        (void)map_remove(ss->by_address, s->remote);
        free(a);
    }
    list_remove(&s->link);
    ss->n_connected--;
    stopped_if_gone(ss);
}

void sessions_removed(struct session *s)
{
    s->all->n_sessions--;
}

void sessions_taken_over(struct sessions *ss, const char *session_id, int64_t generation)
{
    struct session *s = map_get(ss->by_id, session_id);
    if (!s || s->generation >= generation)
        return;
    if (generation == SESSION_CLOSED)
        session_remove(s);
    else
        session_take_over(s);
}

static void close_all(struct sessions *ss)
{
    list_each_safe(n, &ss->connected)
        session_close(list_entry(n, struct session, link), SESSION_CLOSE_GOING_AWAY,
                      "the server stops");
}

static void deadline(uv_timer_t *t)
{
    struct sessions *ss = t->data;
    log_warn("requests_cut", LOG_I("in_flight", ss->in_flight));
    close_all(ss);
}

/* With no connection left to wait for; not from inside sessions_stop(). */
static void nobody_left(uv_timer_t *t)
{
    stopped_if_gone(t->data);
}

void sessions_stop(struct sessions *ss, uint32_t deadline_ms, void (*on_done)(void *ctx), void *ctx)
{
    ss->stopping = true;
    session_check_stop(ss->check);
    ss->on_stopped = on_done;
    ss->stopped_ctx = ctx;
    list_each_safe(n, &ss->connected) {
        struct session *s = list_entry(n, struct session, link);
        if (s->in_flight == 0)
            session_close(s, SESSION_CLOSE_GOING_AWAY, "the server stops");
    }
    if (ss->n_connected == 0)
        (void)uv_timer_start(&ss->stop_timer, nobody_left, 0, 0);
    else
        (void)uv_timer_start(&ss->stop_timer, deadline, deadline_ms, 0);
}
