/*
 * Life of a connection.
 *
 *   CONNECTING   ws_dial(): lookup, then addresses in turn           -> TLS (HTTP without TLS)
 *   TLS          handshake                                           -> HTTP
 *   HTTP         request and answer                                  -> OPEN; DRAINING (server
 * refuses) OPEN         frames both ways                                    -> CLOSING (ws_close)
 *                                                                    -> DRAINING (peer's close; its
 * fault) CLOSING      our close frame queued; messages are dropped        -> DRAINING (peer's
 * close) DRAINING     output goes out, FIN, input is thrown away          -> CLOSED CLOSED handles
 * are closing, then on_close, then freed
 *
 * Every state may go straight to CLOSED (lost, deadline); no state is ever entered again. What
 * on_close will say is settled at the step into DRAINING, or into CLOSED if there was none.
 *
 * There is one timer. Traffic does not touch it: it fires at the deadline it was set to, looks at
 * the times kept in the connection, and goes back to sleep if something has happened since.
 *
 * Grades of failure: the environment's end connections; misuse is our bug.
 */
#include "net/ws_internal.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum {
    KEEPALIVE_S = 60,
    USER_TIMEOUT_MS = 30 * 1000,
    CLOSE_REASON_MAX = 123,
    UNSENT_MAX = 128 * 1024
};

const struct ws_limits ws_limits_default = {
    .max_message = 4 * 1024 * 1024,
    .max_fragments = 4096,
    .max_send_buffer = 1024 * 1024,
    .handshake_ms = 10 * 1000,
    .idle_ms = 10 * 60 * 1000,
    .pong_ms = 15 * 1000,
    .close_ms = 5 * 1000,
    .message_ms = 2 * 60 * 1000,
};

const char *ws_end_name(enum ws_end end)
{
    static const char *const names[] = {
        [WS_END_CLOSED] = "closed",           [WS_END_LOST] = "lost",
        [WS_END_UNREACHABLE] = "unreachable", [WS_END_TLS] = "tls",
        [WS_END_UPGRADE] = "upgrade",         [WS_END_TIMEOUT] = "timeout",
        [WS_END_PROTOCOL] = "protocol",
    };
    shine_assert((size_t)end < sizeof(names) / sizeof(names[0]));
    return names[end];
}

/* --- the timer --- */

/* When something has to happen if nothing else does; 0 = never. */
static uint64_t next_deadline(const struct ws_conn *c)
{
    if (c->state != WS_OPEN)
        return c->state < WS_CLOSED ? c->deadline : 0;
    if (c->paused)
        return 0; /* the peer cannot prove that it lives; TCP's own timeouts go on */
    uint64_t at = 0;
    if (c->message_at && c->limits.message_ms)
        at = c->message_at + c->limits.message_ms;
    if (c->limits.idle_ms) {
        uint64_t idle;
        if (!c->ping_wait)
            idle = c->received_at + c->limits.idle_ms;
        else if (!c->ping_left && c->written_at > c->ping_at)
            idle = c->written_at + c->limits.pong_ms;
        else
            idle = c->ping_at + c->limits.pong_ms;
        if (!at || idle < at)
            at = idle;
    }
    return at;
}

static void timer_cb(uv_timer_t *t)
{
    struct ws_conn *c = t->data;
    uint64_t now = uv_now(c->loop->uv), at = next_deadline(c);
    c->armed_for = 0;
    if (at == 0)
        return;
    if (at > now) {
        ws_conn_arm(c);
        return;
    }
    if (c->state == WS_DRAINING) {
        ws_conn_end(c, c->end, c->end_code, NULL);
    } else if (c->state == WS_CLOSING) {
        ws_conn_end(c, WS_END_TIMEOUT, c->end_code, "no answer to the close frame");
    } else if (c->state != WS_OPEN) {
        ws_conn_end(c, WS_END_TIMEOUT, 1006,
                    c->state == WS_CONNECTING ? "connect took too long"
                                              : "handshake took too long");
    } else if (c->message_at && c->limits.message_ms &&
               now >= c->message_at + c->limits.message_ms) {
        ws_frame_close(c, 1008, "message took too long");
        ws_conn_drain(c, WS_END_TIMEOUT, 1008, "message took too long");
    } else if (c->ping_wait) {
        ws_conn_end(c, WS_END_TIMEOUT, 1006, "no answer to ping");
    } else {
        ws_frame_ping(c);
        c->ping_wait = true;
        c->ping_left = false;
        c->ping_at = now;
        ws_conn_arm(c);
    }
}

void ws_conn_arm(struct ws_conn *c)
{
    uint64_t at = next_deadline(c), now = uv_now(c->loop->uv);
    if (at == 0 || (c->armed_for && c->armed_for <= at))
        return;
    c->armed_for = at;
    uv_timer_start(&c->timer, timer_cb, at > now ? at - now : 0, 0);
}

void ws_conn_heard(struct ws_conn *c)
{
    c->received_at = uv_now(c->loop->uv);
    if (c->ping_wait) {
        c->ping_wait = false;
        c->pong_at = c->received_at;
        ws_conn_arm(c);
    }
}

/* --- beginning --- */

struct ws_conn *ws_conn_new(struct ws_loop *loop, bool server, struct tls_ctx *tls,
                            const struct ws_limits *limits)
{
    struct ws_conn *c = xnew(struct ws_conn);
    c->loop = ws_loop_ref(loop);
    c->server = server;
    c->tls = tls_ctx_ref(tls);
    c->limits = *limits;
    c->state = WS_CONNECTING;
    list_init(&c->dirty);
    list_init(&c->work);
    uv_timer_init(loop->uv, &c->timer);
    c->timer.data = c;
    c->handles = 1;
    c->received_at = uv_now(loop->uv);
    c->deadline = c->received_at + limits->handshake_ms;
    ws_conn_arm(c);
    return c;
}

static void note_remote(struct ws_conn *c)
{
    struct sockaddr_storage a;
    int len = sizeof(a);
    memcpy(c->remote, "unknown", sizeof("unknown"));
    if (uv_tcp_getpeername(c->tcp, (struct sockaddr *)&a, &len) != 0)
        return;
    if (a.ss_family == AF_INET6) {
        const struct sockaddr_in6 *a6 = (const struct sockaddr_in6 *)&a;
        /* One spelling for one address, however the socket is bound. */
        if (IN6_IS_ADDR_V4MAPPED(&a6->sin6_addr))
            (void)inet_ntop(AF_INET, &a6->sin6_addr.s6_addr[12], c->remote, sizeof(c->remote));
        else
            (void)uv_ip6_name(a6, c->remote, sizeof(c->remote));
    } else {
        (void)uv_ip4_name((const struct sockaddr_in *)&a, c->remote, sizeof(c->remote));
    }
}

void ws_conn_attach(struct ws_conn *c, uv_tcp_t *tcp)
{
    c->tcp = tcp;
    c->handles++;
    tcp->data = c;
    note_remote(c);
    /* Failures of these leave a connection that works, only less well. */
    (void)uv_tcp_nodelay(tcp, 1);
    (void)uv_tcp_keepalive(tcp, 1, KEEPALIVE_S);
    uv_os_fd_t fd;
    int ms = USER_TIMEOUT_MS;
    if (uv_fileno((uv_handle_t *)tcp, &fd) == 0)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
    /* What the kernel has not sent yet, nothing can overtake: let it hold little of that. */
    int unsent = UNSENT_MAX;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof(unsent));
}

void ws_conn_start(struct ws_conn *c)
{
    if (c->tls) {
        c->state = WS_TLS;
        if (!ws_tls_start(c))
            return;
    } else {
        c->state = WS_HTTP;
        ws_http_start(c);
    }
    ws_io_read_update(c);
}

void ws_conn_opened(struct ws_conn *c)
{
    ws_http_free(c->http);
    c->http = NULL;
    ws_frame_attach(c);
    c->state = WS_OPEN;
    c->was_open = true;
    ws_conn_arm(c);
    c->cb->on_open(c, c->ctx);
}

/* --- end --- */

static void conn_free(struct ws_conn *c)
{
    if (c->cb)
        c->cb->on_close(c, c->ctx, c->end, c->end_code, c->end_reason);
    SSL_free(c->ssl);
    tls_ctx_free(c->tls);
    ws_http_free(c->http);
    ws_frame_detach(c);
    buf_free(&c->rx);
    buf_free(&c->early);
    buf_free(&c->plain);
    buf_free(&c->cipher);
    buf_free(&c->out);
    ws_loop_put(c->loop);
    free(c->host);
    free(c->path);
    free(c->end_reason);
    free(c);
}

static void timer_closed(uv_handle_t *h)
{
    struct ws_conn *c = h->data;
    if (--c->handles == 0)
        conn_free(c);
}

static void tcp_closed(uv_handle_t *h)
{
    struct ws_conn *c = h->data;
    free(h);
    if (--c->handles == 0)
        conn_free(c);
}

static void set_end(struct ws_conn *c, enum ws_end end, int code, const char *reason)
{
    c->end = end;
    c->end_code = code;
    if (reason) {
        char *copy = xstrdup(reason); /* `reason` may be the old one */
        free(c->end_reason);
        c->end_reason = copy;
    } else if (!c->end_reason) {
        c->end_reason = xstrdup("");
    }
}

void ws_conn_end(struct ws_conn *c, enum ws_end end, int code, const char *reason)
{
    if (c->state == WS_CLOSED)
        return;
    if (c->state == WS_CONNECTING && !c->server)
        ws_dial_cancel(c);
    c->state = WS_CLOSED;
    set_end(c, end, code, reason);
    log_debug("ws_end", LOG_S("remote", c->remote), LOG_S("end", ws_end_name(end)),
              LOG_I("code", code), LOG_S("reason", c->end_reason), LOG_I("open", c->was_open));
    list_remove(&c->dirty);
    list_remove(&c->work);
    uv_close((uv_handle_t *)&c->timer, timer_closed);
    if (c->tcp)
        uv_close((uv_handle_t *)c->tcp, tcp_closed);
}

void ws_conn_drain(struct ws_conn *c, enum ws_end end, int code, const char *reason)
{
    if (c->state >= WS_DRAINING)
        return;
    uint64_t latest = uv_now(c->loop->uv) + c->limits.close_ms;
    if (c->state == WS_OPEN || c->deadline > latest)
        c->deadline = latest;
    c->state = WS_DRAINING;
    set_end(c, end, code, reason);
    c->armed_for = 0;
    ws_conn_arm(c);
    ws_io_dirty(c);
    ws_io_read_update(c);
}

void ws_conn_lost(struct ws_conn *c, const char *reason)
{
    if (c->state == WS_DRAINING) {
        /* The peer is done; so are we, unless it still reads what we have to say. */
        if (!c->input_eof || c->shutdown_begun)
            ws_conn_end(c, c->end, c->end_code, NULL);
        return;
    }
    if (c->state == WS_OPEN)
        log_info("ws_lost", LOG_S("remote", c->remote), LOG_S("reason", reason));
    char *early = NULL;
    if (c->state == WS_TLS || c->state == WS_HTTP)
        early = xasprintf("%s: %s", c->state == WS_TLS ? "TLS handshake" : "HTTP upgrade", reason);
    ws_conn_end(c, WS_END_LOST, c->state == WS_CLOSING ? c->end_code : 1006,
                early ? early : reason);
    free(early);
}

/* --- what owners call --- */

bool ws_send_text(struct ws_conn *c, const char *text, size_t len)
{
    if (c->state != WS_OPEN)
        return false;
    size_t queued = ws_io_queued(c), max = c->limits.max_send_buffer;
    /* An empty buffer takes one message of any length, or a message above the bound could never
     * leave. */
    if (queued > 0 && (queued >= max || len > max - queued)) {
        c->refused = true;
        return false;
    }
    ws_frame_text(c, text, len);
    if (queued + len >= max / 4)
        c->above_quarter = true;
    return true;
}

void ws_raise_send_buffer(struct ws_conn *c, size_t max)
{
    if (c->limits.max_send_buffer < max)
        c->limits.max_send_buffer = max;
}

size_t ws_send_queued(const struct ws_conn *c)
{
    return ws_io_queued(c);
}

void ws_pause(struct ws_conn *c)
{
    if (c->paused || c->state > WS_OPEN)
        return; /* once closing, the peer's answer must be heard */
    c->paused = true;
    list_remove(&c->work);
    if (c->state == WS_OPEN && !c->in)
        ws_io_read_update(c);
}

void ws_resume(struct ws_conn *c)
{
    if (!c->paused)
        return;
    c->paused = false;
    if (c->state != WS_OPEN)
        return;
    /* Silence while nobody listened says nothing about the peer. */
    c->received_at = uv_now(c->loop->uv);
    if (c->message_at)
        c->message_at = c->received_at;
    c->ping_wait = false;
    ws_conn_arm(c);
    if (c->input_left)
        ws_io_again(c);
    else if (!c->in)
        ws_io_read_update(c);
}

void ws_close(struct ws_conn *c, int code, const char *reason)
{
    if (c->state < WS_OPEN) {
        ws_conn_end(c, WS_END_CLOSED, code, reason);
        return;
    }
    if (c->state != WS_OPEN)
        return;
    /* A close frame holds 123 bytes of reason; cut between characters. */
    char text[CLOSE_REASON_MAX + 1];
    size_t n = strlen(reason);
    if (n > CLOSE_REASON_MAX)
        for (n = CLOSE_REASON_MAX; n > 0 && ((unsigned char)reason[n] & 0xc0) == 0x80;)
            n--;
    memcpy(text, reason, n);
    text[n] = '\0';
    ws_frame_close(c, code, text);
    set_end(c, WS_END_TIMEOUT, code, text);
    c->state = WS_CLOSING;
    c->deadline = uv_now(c->loop->uv) + c->limits.close_ms;
    c->armed_for = 0;
    ws_conn_arm(c);
    if (c->paused) {
        c->paused = false; /* the answer must be heard; messages are dropped from now on */
        if (c->input_left)
            ws_io_again(c);
    }
    if (!c->in)
        ws_io_read_update(c);
}

const char *ws_remote(const struct ws_conn *c)
{
    return c->remote;
}

int64_t ws_last_received_ms(const struct ws_conn *c)
{
    return (int64_t)c->received_at; /* libuv's clock is the monotonic one too */
}

void ws_ping_times(const struct ws_conn *c, int64_t *ping_ms, int64_t *pong_ms)
{
    *ping_ms = (int64_t)c->ping_at;
    *pong_ms = (int64_t)c->pong_at;
}
