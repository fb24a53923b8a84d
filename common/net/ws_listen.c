/*
 * Accepting. The socket is opened elsewhere (a master process keeps it while workers come and go);
 * here it is only listened on. When file descriptors run out, libuv accepts and closes with a
 * descriptor it keeps in reserve, so the loop does not spin on a connection that nobody can take;
 * what is left to do is to say so.
 *
 * Grades of failure: a connection that cannot be accepted is dropped and logged.
 */
#include "net/ws_internal.h"
#include "util/log.h"
#include "util/mem.h"

#include <stdlib.h>

enum { BACKLOG = 1024, LOG_EVERY_MS = 1000 };

struct ws_listener {
    uv_tcp_t tcp;
    struct ws_loop *loop;
    struct tls_ctx *tls;
    char *path;
    struct ws_limits limits;
    ws_accept_cb on_accept;
    void *ctx;
    uint64_t logged_at; /* the last complaint: a flood must not become a flood of lines */
};

static void free_handle(uv_handle_t *h)
{
    free(h);
}

static void complain(struct ws_listener *l, int err)
{
    uint64_t now = uv_now(l->loop->uv);
    if (l->logged_at && now - l->logged_at < LOG_EVERY_MS)
        return;
    l->logged_at = now;
    log_warn("accept_failed", LOG_S("error", uv_strerror(err)));
}

static void connection_cb(uv_stream_t *s, int status)
{
    struct ws_listener *l = s->data;
    if (status < 0) {
        complain(l, status);
        return;
    }
    uv_tcp_t *tcp = xnew(uv_tcp_t);
    if (uv_tcp_init(l->loop->uv, tcp) != 0) {
        free(tcp);
        return;
    }
    int r = uv_accept(s, (uv_stream_t *)tcp);
    if (r != 0) {
        complain(l, r);
        uv_close((uv_handle_t *)tcp, free_handle);
        return;
    }
    struct ws_conn *c = ws_conn_new(l->loop, true, l->tls, &l->limits);
    c->path = xstrdup(l->path);
    ws_conn_attach(c, tcp);
    const struct ws_callbacks *cb = NULL;
    void *ctx = NULL;
    if (!l->on_accept(l, l->ctx, c, c->remote, &cb, &ctx)) {
        ws_conn_end(c, WS_END_CLOSED, 1006, "refused");
        return;
    }
    c->cb = cb;
    c->ctx = ctx;
    ws_conn_start(c);
}

static void listener_closed(uv_handle_t *h)
{
    struct ws_listener *l = h->data;
    ws_loop_put(l->loop);
    tls_ctx_free(l->tls);
    free(l->path);
    free(l);
}

struct ws_listener *ws_listen(uv_loop_t *loop, int fd, struct tls_ctx *tls, const char *path,
                              const struct ws_limits *limits, ws_accept_cb on_accept, void *ctx,
                              char **error)
{
    struct ws_listener *l = xnew(struct ws_listener);
    l->loop = ws_loop_get(loop);
    l->tls = tls_ctx_ref(tls);
    l->path = xstrdup(path);
    l->limits = *limits;
    l->on_accept = on_accept;
    l->ctx = ctx;
    uv_tcp_init(loop, &l->tcp);
    l->tcp.data = l;
    int r = uv_tcp_open(&l->tcp, fd);
    if (r == 0)
        r = uv_listen((uv_stream_t *)&l->tcp, BACKLOG, connection_cb);
    if (r == 0)
        return l;
    *error = xasprintf("cannot listen on socket %d: %s", fd, uv_strerror(r));
    uv_close((uv_handle_t *)&l->tcp, listener_closed);
    return NULL;
}

void ws_listener_close(struct ws_listener *l)
{
    uv_close((uv_handle_t *)&l->tcp, listener_closed);
}
