/*
 * One connection: from WebSocket messages to calls, from answers and events to WebSocket messages.
 *
 * Back-pressure has one form, not reading: while too many requests are in flight, a large one is
 * being parsed, or too much waits to be sent. What still does not fit into the send buffer ends
 * the connection with 1013: dropping an answer or event silently would be a lie.
 *
 * Grades of failure: environment only (a client that breaks rules or goes away).
 */
#include "frontd/session.h"

#include "frontd/identity.h"
#include "frontd/pump.h"
#include "frontd/session_check.h"
#include "frontd/session_internal.h"
#include "store/sessions.h"
#include "util/base64.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

enum {
    LARGE_REQUEST = 64 * 1024, /* bytes; above it a text is parsed on the thread pool */
    NONCE_MS = 60 * 1000,
    CLOSE_TAKEN_OVER = 4001,
    CLOSE_REMOVED = 4002,
    CLOSE_TOO_SLOW = 1013,
};

/* --- life --- */

static void free_if_unused(struct session *s)
{
    if (s->ws || s->in_flight > 0)
        return;
    sessions_removed(s);
    identity_free(s);
    free(s);
}

/* Read on, or stop reading, as the reasons for not reading stand now. */
static void adjust_reading(struct session *s)
{
    if (!s->ws)
        return;
    bool pause = s->in_flight >= s->all->max_in_flight || s->parsing ||
                 ws_send_queued(s->ws) > s->send_buffer / 2;
    if (pause && !s->paused)
        ws_pause(s->ws);
    else if (!pause && s->paused)
        ws_resume(s->ws);
    s->paused = pause;
}

static void send_text(struct session *s, const char *text, size_t len)
{
    if (!s->ws || s->closing || ws_send_text(s->ws, text, len))
        return;
    log_info("session_too_slow", LOG_S("remote", s->remote), LOG_S("login", s->login),
             LOG_I("queued", ws_send_queued(s->ws)));
    session_close(s, CLOSE_TOO_SLOW, "too slow");
}

void session_close(struct session *s, int code, const char *reason)
{
    if (!s->ws || s->closing)
        return;
    s->closing = true;
    if (s->paused) /* otherwise the peer's close frame would never be read */
        ws_resume(s->ws);
    s->paused = false;
    ws_close(s->ws, code, reason);
}

/* --- calls --- */

static void conn_send(struct rpc_conn *c, const char *text, size_t len)
{
    send_text((struct session *)c, text, len);
}

static void conn_ended(struct rpc_conn *c)
{
    struct session *s = (struct session *)c;
    s->in_flight--;
    s->all->in_flight--;
    if (s->all->stopping && s->in_flight == 0)
        session_close(s, SESSION_CLOSE_GOING_AWAY, "the server stops");
    else if (!s->closing)
        adjust_reading(s);
    free_if_unused(s);
}

static int64_t conn_wait(struct rpc_conn *c)
{
    const struct session *s = (const struct session *)c;
    return s->login[0] ? limits_take(s->all->f->limits, LIMIT_LOGIN, s->login) : 0;
}

/* A large request on its way through the thread pool. */
struct parse_job {
    uv_work_t work;
    struct session *s;
    char *text;
    size_t len;
    struct rpc_request req;
    enum rpc_error e;
    const char *message;
};

static void parse_work(uv_work_t *w)
{
    struct parse_job *j = w->data;
    j->e = rpc_request_parse(j->text, j->len, &j->req, &j->message);
}

static void parse_done(uv_work_t *w, int status)
{
    struct parse_job *j = w->data;
    struct session *s = j->s;
    shine_assert(status == 0); /* never cancelled */
    free(j->text);
    s->parsing = false;
    rpc_dispatch(s->all->f->ops, &s->conn, &j->req, j->e, j->message);
    free(j);
}

static void parse_elsewhere(struct session *s, const char *text, size_t len)
{
    struct parse_job *j = xnew(struct parse_job);
    j->work.data = j;
    j->s = s;
    j->text = xmemdup0(text, len);
    j->len = len;
    s->parsing = true; /* one at a time: bounds the memory of a connection */
    shine_assert(uv_queue_work(s->all->f->loop, &j->work, parse_work, parse_done) == 0);
}

static void on_message(struct ws_conn *conn, void *ctx, const char *text, size_t len)
{
    struct session *s = ctx;
    (void)conn;
    if (s->closing || s->all->stopping)
        return; /* the close frame is under way: the outcome is unknown to the client, it repeats */
    s->in_flight++;
    s->all->in_flight++;
    if (len > LARGE_REQUEST) {
        parse_elsewhere(s, text, len);
        adjust_reading(s);
        return;
    }
    struct rpc_request req;
    const char *message;
    enum rpc_error e = rpc_request_parse(text, len, &req, &message);
    adjust_reading(s);
    rpc_dispatch(s->all->f->ops, &s->conn, &req, e, message);
}

static void on_open(struct ws_conn *conn, void *ctx)
{
    struct session *s = ctx;
    (void)conn;
    log_debug("session_open", LOG_S("remote", s->remote));
    if (s->all->stopping)
        session_close(s, SESSION_CLOSE_GOING_AWAY, "the server stops");
}

static void on_drain(struct ws_conn *conn, void *ctx)
{
    struct session *s = ctx;
    (void)conn;
    if (!s->closing)
        adjust_reading(s);
}

/* Forget the log-in of this connection, here and in the database. */
static void log_out(struct session *s)
{
    struct sessions *all = s->all;
    if (!s->login[0])
        return;
    pump_leave(all->f->pump, &s->member);
    if (map_get(all->by_id, s->id) == s)
        (void)map_remove(all->by_id, s->id);
    if (!all->stopping) /* then unregistering the process does it for all at once */
        store_disconnect_session(all->f->store, s->id, s->generation);
    s->login[0] = s->id[0] = '\0';
    s->conn.session_login = NULL;
}

static void on_close(struct ws_conn *conn, void *ctx, enum ws_end end, int code, const char *reason)
{
    struct session *s = ctx;
    (void)conn;
    log_debug("session_closed", LOG_S("remote", s->remote), LOG_S("login", s->login),
              LOG_S("end", ws_end_name(end)), LOG_I("code", code), LOG_S("reason", reason));
    log_out(s);
    s->ws = NULL;
    sessions_disconnected(s);
    free_if_unused(s);
}

const struct ws_callbacks session_callbacks = {
    .on_open = on_open,
    .on_message = on_message,
    .on_drain = on_drain,
    .on_close = on_close,
};

static void member_send(struct pump_member *m, const char *text, size_t len)
{
    send_text(list_entry(m, struct session, member), text, len);
}

struct session *session_new(struct sessions *all, struct ws_conn *ws, const char *remote)
{
    struct session *s = xnew(struct session);
    s->conn = (struct rpc_conn){
        .send = conn_send, .ended = conn_ended, .wait = conn_wait, .server = all->f};
    s->all = all;
    s->ws = ws;
    s->send_buffer = all->limits.max_send_buffer;
    s->member.send = member_send;
    list_init(&s->link);
    list_init(&s->member.link);
    size_t n = strnlen(remote, sizeof s->remote - 1);
    memcpy(s->remote, remote, n);
    return s;
}

/* --- what handlers see --- */

struct session *session_of(const struct rpc_call *call)
{
    return (struct session *)rpc_call_conn(call);
}

const char *session_login(const struct session *s)
{
    return s->login[0] ? s->login : NULL;
}

const char *session_id(const struct session *s)
{
    return s->id[0] ? s->id : NULL;
}

int64_t session_generation(const struct session *s)
{
    return s->generation;
}

const char *session_remote(const struct session *s)
{
    return s->remote;
}

bool session_is_closed(const struct session *s)
{
    return !s->ws || s->closing;
}

bool session_reserve(struct session *s, size_t bytes)
{
    size_t bound = s->all->limits.max_send_buffer + bytes;
    if (!s->ws)
        return false;
    if (s->send_buffer < bound) {
        /* Both together: reading stops at half of it and goes on when net says that it has drained.
         */
        s->send_buffer = bound;
        ws_raise_send_buffer(s->ws, bound);
    }
    if (ws_send_queued(s->ws) + s->reserved + bytes > s->send_buffer)
        return false;
    s->reserved += bytes;
    return true;
}

void session_release(struct session *s, size_t bytes)
{
    s->reserved -= bytes;
}

const char *session_nonce_new(struct session *s, enum session_nonce kind, const char *subject)
{
    struct nonce *n = &s->nonces[kind];
    unsigned char bytes[32];
    size_t len = strlen(subject);
    shine_assert(len < sizeof n->subject);
    memcpy(n->subject, subject, len + 1);
    randombytes_buf(bytes, sizeof bytes);
    base64_encode(bytes, sizeof bytes, n->text);
    n->expires_ms = clock_mono_ms() + NONCE_MS;
    return n->text;
}

bool session_nonce_take(struct session *s, enum session_nonce kind, const char *subject,
                        char nonce[SESSION_NONCE_LEN + 1])
{
    struct nonce *n = &s->nonces[kind];
    bool ok = n->text[0] && clock_mono_ms() < n->expires_ms && strcmp(n->subject, subject) == 0;
    memcpy(nonce, n->text, sizeof n->text);
    n->text[0] = '\0';
    return ok;
}

void session_take_over(struct session *s)
{
    pump_leave(s->all->f->pump, &s->member);
    session_close(s, CLOSE_TAKEN_OVER, "another connection took over this session");
}

void session_remove(struct session *s)
{
    pump_leave(s->all->f->pump, &s->member);
    session_close(s, CLOSE_REMOVED, "this session was closed");
}

void session_log_in(struct session *s, const struct session_identity *id)
{
    struct sessions *all = s->all;
    if (!s->ws) {
        store_disconnect_session(all->f->store, id->session_id, id->generation);
        return;
    }
    struct session *old = map_get(all->by_id, id->session_id);
    if (old && old != s && old->generation > id->generation) {
        /* Two log-ins at once, answered in the other order: the later one keeps the session. */
        session_take_over(s);
        return;
    }
    log_out(s);
    size_t login_len = strlen(id->login), id_len = strlen(id->session_id);
    shine_assert(login_len < sizeof s->login && id_len < sizeof s->id);
    memcpy(s->login, id->login, login_len + 1);
    memcpy(s->id, id->session_id, id_len + 1);
    s->generation = id->generation;
    s->member.wants_history = id->pts_mode;
    s->conn.session_login = s->login;
    (void)map_put(all->by_id, s->id, s);
    if (old && old != s)
        session_take_over(old);
    if (s->generation > 1)
        pump_told_log_in(all->f->pump, s->id, s->generation);
    pump_join(all->f->pump, &s->member, s->login, id->epoch, id->last_pts);
    session_check_soon(all->check, s);
}
