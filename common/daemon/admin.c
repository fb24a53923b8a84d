/*
 * A small HTTP server: one request a connection, answered from memory.
 *
 *   accepted -> head read -> answer written -> closed
 *        \__________\_______________________^     (deadline, garbage, shutdown)
 *
 * Heads are parsed by http_parser and bounded; a connection lives for seconds and there are few of
 * them, so that nobody on the admin network can hold the process up.
 *
 * Grades of failure: an address that cannot be listened on is "cannot continue"; what a caller
 * sends ends its connection only.
 */
#include "daemon/admin.h"

#include <http_parser.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/settings.h"
#include "util/list.h"
#include "util/log.h"
#include "util/mem.h"

enum {
    CONNECTIONS_MAX = 32,
    HEAD_MAX = 4096,
    PATH_LEN = 128,
    DEADLINE_MS = 5000,
    BACKLOG = 64,
};

struct admin {
    struct daemon *d;
    struct list sockets;     /* struct admin_socket */
    struct list connections; /* struct admin_conn */
    unsigned n_connections;
    unsigned handles; /* of sockets and connections, not closed yet */
    bool closing;
};

struct admin_socket {
    struct list link;
    uv_tcp_t tcp;
    struct admin *admin;
};

struct admin_conn {
    struct list link;
    uv_tcp_t tcp;
    uv_timer_t deadline;
    uv_write_t write;
    unsigned handles; /* not closed yet */
    struct admin *admin;
    http_parser parser;
    size_t seen; /* bytes of the head */
    bool complete, ending;
    char path[PATH_LEN];
    size_t path_len;
    char in[1024];
    char *out;
};

static void handle_gone(struct admin *a)
{
    if (--a->handles == 0 && a->closing)
        free(a);
}

/* --- one connection --- */

static void on_conn_closed(uv_handle_t *h)
{
    struct admin_conn *c = h->data;
    struct admin *a = c->admin;
    if (--c->handles == 0) {
        free(c->out);
        free(c);
    }
    handle_gone(a);
}

static void conn_end(struct admin_conn *c)
{
    if (c->ending)
        return;
    c->ending = true;
    list_remove(&c->link);
    c->admin->n_connections--;
    uv_close((uv_handle_t *)&c->tcp, on_conn_closed);
    uv_close((uv_handle_t *)&c->deadline, on_conn_closed);
}

static void on_deadline(uv_timer_t *t)
{
    conn_end(t->data);
}

static void on_written(uv_write_t *w, int status)
{
    (void)status;
    conn_end(w->data);
}

static void conn_answer(struct admin_conn *c, const char *status, const char *text)
{
    (void)uv_read_stop((uv_stream_t *)&c->tcp);
    c->out = xasprintf("HTTP/1.1 %s\r\nContent-Type: text/plain; charset=utf-8\r\n"
                       "Cache-Control: no-store\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n"
                       "%s",
                       status, strlen(text), c->parser.method == HTTP_HEAD ? "" : text);
    uv_buf_t buf = uv_buf_init(c->out, (unsigned)strlen(c->out));
    c->write.data = c;
    if (uv_write(&c->write, (uv_stream_t *)&c->tcp, &buf, 1, on_written) != 0)
        conn_end(c);
}

static bool path_is(const struct admin_conn *c, const char *path)
{
    return c->path_len == strlen(path) && memcmp(c->path, path, c->path_len) == 0;
}

static void conn_serve(struct admin_conn *c)
{
    char reason[256];
    if (c->parser.method != HTTP_GET && c->parser.method != HTTP_HEAD) {
        conn_answer(c, "405 Method Not Allowed\r\nAllow: GET, HEAD", "only GET\n");
    } else if (path_is(c, "/healthz")) {
        conn_answer(c, "200 OK", "ok\n");
    } else if (path_is(c, "/readyz")) {
        if (daemon_is_ready(c->admin->d, reason, sizeof reason - 1)) {
            conn_answer(c, "200 OK", "ready\n");
        } else {
            size_t n = strlen(reason);
            memcpy(reason + n, "\n", 2);
            conn_answer(c, "503 Service Unavailable", reason);
        }
    } else {
        conn_answer(c, "404 Not Found", "there are /healthz and /readyz\n");
    }
}

static int on_url(http_parser *p, const char *at, size_t n)
{
    struct admin_conn *c = p->data;
    if (n > sizeof c->path - c->path_len) /* longer than any that exists */
        n = sizeof c->path - c->path_len;
    memcpy(c->path + c->path_len, at, n);
    c->path_len += n;
    return 0;
}

static int on_headers_complete(http_parser *p)
{
    struct admin_conn *c = p->data;
    c->complete = true;
    return 2; /* no body is read: stop here */
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    struct admin_conn *c = h->data;
    (void)suggested;
    *buf = uv_buf_init(c->in, sizeof c->in);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    static const http_parser_settings parser_settings = {
        .on_url = on_url, .on_headers_complete = on_headers_complete};
    struct admin_conn *c = s->data;
    if (n == 0)
        return;
    if (n < 0) {
        conn_end(c);
        return;
    }
    size_t used = http_parser_execute(&c->parser, &parser_settings, buf->base, (size_t)n);
    c->seen += used;
    if (c->complete)
        conn_serve(c);
    else if (c->seen > HEAD_MAX)
        conn_answer(c, "431 Request Header Fields Too Large", "too long\n");
    else if (HTTP_PARSER_ERRNO(&c->parser) != HPE_OK)
        conn_answer(c, "400 Bad Request", "not HTTP\n");
}

static void on_connection(uv_stream_t *s, int status)
{
    const struct admin_socket *from = s->data;
    struct admin *a = from->admin;
    if (status < 0)
        return;
    struct admin_conn *c = xnew(struct admin_conn);
    c->admin = a;
    c->tcp.data = c->deadline.data = c;
    list_init(&c->link);
    c->handles = 2;
    a->handles += 2;
    shine_assert(uv_tcp_init(a->d->loop, &c->tcp) == 0);
    shine_assert(uv_timer_init(a->d->loop, &c->deadline) == 0);
    http_parser_init(&c->parser, HTTP_REQUEST);
    c->parser.data = c;
    list_push(&a->connections, &c->link);
    a->n_connections++;
    /* Beyond the bound a connection is accepted and cut: left in the backlog it would look alive.
     */
    if (uv_accept(s, (uv_stream_t *)&c->tcp) != 0 || a->n_connections > CONNECTIONS_MAX ||
        uv_timer_start(&c->deadline, on_deadline, DEADLINE_MS, 0) != 0 ||
        uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read) != 0)
        conn_end(c);
}

/* --- all of them --- */

static void on_socket_closed(uv_handle_t *h)
{
    struct admin_socket *s = h->data;
    struct admin *a = s->admin;
    free(s);
    handle_gone(a);
}

struct admin *admin_new(struct daemon *d)
{
    struct admin *a = xnew(struct admin);
    a->d = d;
    list_init(&a->sockets);
    list_init(&a->connections);
    return a;
}

static struct admin_socket *socket_new(struct admin *a)
{
    struct admin_socket *s = xnew(struct admin_socket);
    s->admin = a;
    s->tcp.data = s;
    list_init(&s->link);
    shine_assert(uv_tcp_init(a->d->loop, &s->tcp) == 0);
    a->handles++;
    list_push(&a->sockets, &s->link);
    return s;
}

static bool socket_listen(struct admin_socket *s, int r)
{
    if (r == 0)
        r = uv_listen((uv_stream_t *)&s->tcp, BACKLOG, on_connection);
    if (r != 0)
        log_error("cannot_listen", LOG_S("key", "admin.listen"), LOG_S("reason", uv_strerror(r)));
    return r == 0;
}

bool admin_serve(struct admin *a, int fd)
{
    struct admin_socket *s = socket_new(a);
    return socket_listen(s, uv_tcp_open(&s->tcp, fd));
}

struct admin *admin_open(struct daemon *d)
{
    struct settings_address at;
    struct sockaddr_storage to;
    struct admin *a = admin_new(d);
    const char *list = config_str(d->config, "admin.listen");
    while (settings_next_address(&list, &at) > 0) {
        struct admin_socket *s = socket_new(a);
        int r = strchr(at.host, ':') ? uv_ip6_addr(at.host, at.port, (struct sockaddr_in6 *)&to)
                                     : uv_ip4_addr(at.host, at.port, (struct sockaddr_in *)&to);
        if (r == 0)
            r = uv_tcp_bind(&s->tcp, (const struct sockaddr *)&to, 0);
        if (!socket_listen(s, r)) {
            admin_close(a);
            return NULL;
        }
        log_info("admin_listening", LOG_S("address", at.host), LOG_I("port", at.port));
    }
    return a;
}

void admin_close(struct admin *a)
{
    struct list *l;
    if (!a)
        return;
    a->closing = true;
    a->handles++; /* until everything has begun to close */
    while ((l = list_pop(&a->sockets)) != NULL)
        uv_close((uv_handle_t *)&list_entry(l, struct admin_socket, link)->tcp, on_socket_closed);
    while (!list_empty(&a->connections))
        conn_end(list_entry(a->connections.next, struct admin_conn, link));
    handle_gone(a);
}
