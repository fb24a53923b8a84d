/*
 * The LISTEN connection.
 *
 *   CONNECTING ──connected──▶ LISTENING ──LISTEN done, own probe back──▶ LIVE ──10 s──▶ PROBING ─┐
 *       ▲                         │                                      ▲  callback(NULL) once │
 *       │ backoff                 │                                      └──probe back────────────┘
 *     WAITING ◀── lost, or no probe back within 5 s, from any of the three
 *   any ──db_listener_close()──▶ CLOSED
 *
 * The probe is a notification to a channel of this connection alone, so that it wakes nobody else.
 * It goes the whole way a real one goes: commit, the server's queue, the backend, the network.
 *
 * Raises: environment only.
 */
#include "db/listen.h"

#include "db/internal.h"
#include "util/backoff.h"
#include "util/log.h"
#include "util/mem.h"

#include <ctype.h>
#include <openssl/rand.h>
#include <stdlib.h>
#include <string.h>

enum state { CONNECTING, LISTENING, LIVE, PROBING, WAITING, CLOSED };

struct db_listener {
    enum state state;
    uv_loop_t *loop;
    struct db_dialer *dialer;
    struct db_listener_times times;
    char *channel;
    char probe_channel[40];
    db_notify_cb cb;
    void *ctx;
    PGconn *pg;
    struct db_watch *watch;
    struct backoff backoff;
    uv_timer_t timer; /* WAITING: reconnect; LIVE: next probe; LISTENING, PROBING: time limit */
    unsigned probes;  /* number of the last one sent */
    unsigned open_handles;
};

static void on_deadline(uv_timer_t *t);

/* --- ways down --- */

static void on_redial(uv_timer_t *t)
{
    struct db_listener *l = t->data;
    l->state = CONNECTING;
    db_dialer_start(l->dialer);
}

static void disconnect(struct db_listener *l)
{
    db_watch_free(l->watch);
    l->watch = NULL;
    PQfinish(l->pg);
    l->pg = NULL;
}

static void wait_and_redial(struct db_listener *l)
{
    l->state = WAITING;
    uv_timer_start(&l->timer, on_redial, backoff_next(&l->backoff), 0);
}

/* The one way a connection is lost. */
static void drop(struct db_listener *l, const char *reason)
{
    char *line = db_first_line(reason);
    log_warn("db_listener_lost", LOG_S("channel", l->channel), LOG_S("reason", line));
    free(line);
    disconnect(l);
    wait_and_redial(l);
}

static void on_deadline(uv_timer_t *t)
{
    drop(t->data, "own notification not received in time");
}

/* --- probing --- */

/* Only while no query is under way: one is sent at a time. */
static bool send_sql(struct db_listener *l, const char *sql)
{
    int rc = PQsendQuery(l->pg, sql) == 1 ? PQflush(l->pg) : -1;
    return rc >= 0 && db_watch_set(l->watch, rc > 0 ? UV_READABLE | UV_WRITABLE : UV_READABLE);
}

static void probe(struct db_listener *l, enum state state, const char *sql)
{
    l->state = state;
    uv_timer_start(&l->timer, on_deadline, l->times.probe_timeout_ms, 0);
    if (!send_sql(l, sql))
        drop(l, PQerrorMessage(l->pg));
}

static void on_probe_due(uv_timer_t *t)
{
    struct db_listener *l = t->data;
    char sql[80];
    snprintf(sql, sizeof(sql), "NOTIFY %s, '%u'", l->probe_channel, ++l->probes);
    probe(l, PROBING, sql);
}

static void begin_listening(struct db_listener *l)
{
    char *sql = xasprintf("LISTEN %s; LISTEN %s; NOTIFY %s, '%u'", l->channel, l->probe_channel,
                          l->probe_channel, ++l->probes);
    probe(l, LISTENING, sql);
    free(sql);
}

/* --- receiving --- */

static void take_probe(struct db_listener *l, const char *payload)
{
    if ((l->state != LISTENING && l->state != PROBING) || strtoul(payload, NULL, 10) != l->probes)
        return;
    bool fresh = l->state == LISTENING;
    l->state = LIVE;
    uv_timer_start(&l->timer, on_probe_due, l->times.probe_every_ms, 0);
    backoff_reset(&l->backoff);
    if (fresh)
        l->cb(l->ctx, NULL);
}

/* The callback may close the listener at any of them. */
static void take_notifications(struct db_listener *l)
{
    PGnotify *n;
    while (l->state != CLOSED && (n = PQnotifies(l->pg))) {
        if (strcmp(n->relname, l->probe_channel) == 0)
            take_probe(l, n->extra);
        else
            l->cb(l->ctx, n->extra);
        PQfreemem(n);
    }
}

/* Results of our own LISTEN and NOTIFY. NULL, or what failed. */
static char *take_results(struct db_listener *l)
{
    PGresult *res;
    while (!PQisBusy(l->pg) && (res = PQgetResult(l->pg))) {
        bool ok = PQresultStatus(res) == PGRES_COMMAND_OK;
        char *why = ok ? NULL : db_first_line(PQresultErrorMessage(res));
        PQclear(res);
        if (!ok)
            return why;
    }
    return NULL;
}

static void on_socket(void *ctx, int status)
{
    struct db_listener *l = ctx;
    if (status < 0) {
        drop(l, uv_strerror(status));
        return;
    }
    if (!db_consume(l->pg)) {
        drop(l, PQerrorMessage(l->pg));
        return;
    }
    char *failed = take_results(l);
    int rc = failed ? -1 : PQflush(l->pg);
    if (rc < 0 || !db_watch_set(l->watch, rc > 0 ? UV_READABLE | UV_WRITABLE : UV_READABLE)) {
        drop(l, failed ? failed : PQerrorMessage(l->pg));
        free(failed);
        return;
    }
    take_notifications(l);
}

static void on_dialled(void *ctx, PGconn *pg, const char *error)
{
    struct db_listener *l = ctx;
    if (!pg) {
        log_warn("db_listener_failed", LOG_S("channel", l->channel), LOG_S("reason", error));
        wait_and_redial(l);
        return;
    }
    l->pg = pg;
    l->watch = db_watch_new(l->loop, PQsocket(pg), on_socket, l);
    if (l->watch)
        begin_listening(l);
    else
        drop(l, "cannot watch the socket");
}

/* --- beginning and end --- */

static bool is_plain_identifier(const char *s)
{
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_");
    return n > 0 && n < 64 && s[n] == '\0' && !isdigit((unsigned char)s[0]);
}

static void name_probe_channel(struct db_listener *l)
{
    uint64_t r = 0;
    shine_assert(RAND_bytes((unsigned char *)&r, sizeof(r)) == 1);
    snprintf(l->probe_channel, sizeof(l->probe_channel), "shine_probe_%016llx",
             (unsigned long long)r);
}

struct db_listener *db_listen_timed(uv_loop_t *loop, const char *conninfo, const char *channel,
                                    db_notify_cb cb, void *ctx,
                                    const struct db_listener_times *times)
{
    shine_assert(is_plain_identifier(channel));
    char *error;
    char *options = db_session_options(DB_LIMITS_DEFAULT.statement_timeout_ms);
    char *name = xasprintf("shine-listen-%s", channel);
    struct db_settings *settings =
        db_settings_new(conninfo, name, options, DB_LIMITS_DEFAULT.connect_timeout_ms, &error);
    free(name);
    free(options);
    shine_assert(settings); /* the caller has checked it */
    struct db_listener *l = xnew(struct db_listener);
    l->loop = loop;
    l->times = *times;
    l->channel = xstrdup(channel);
    l->cb = cb;
    l->ctx = ctx;
    name_probe_channel(l);
    backoff_init(&l->backoff, 100, 5000);
    shine_assert(uv_timer_init(loop, &l->timer) == 0);
    l->timer.data = l;
    l->dialer = db_dialer_new(loop, settings, on_dialled, l);
    l->state = CONNECTING;
    db_dialer_start(l->dialer);
    return l;
}

struct db_listener *db_listen(uv_loop_t *loop, const char *conninfo, const char *channel,
                              db_notify_cb cb, void *ctx)
{
    return db_listen_timed(loop, conninfo, channel, cb, ctx, &DB_LISTENER_TIMES_DEFAULT);
}

static void handle_closed(void *ctx)
{
    struct db_listener *l = ctx;
    if (--l->open_handles > 0)
        return;
    free(l->channel);
    free(l);
}

static void on_timer_closed(uv_handle_t *h)
{
    handle_closed(h->data);
}

void db_listener_close(struct db_listener *l)
{
    shine_assert(l->state != CLOSED);
    l->state = CLOSED;
    disconnect(l);
    l->open_handles = 2;
    uv_close((uv_handle_t *)&l->timer, on_timer_closed);
    db_dialer_close(l->dialer, handle_closed, l);
}
