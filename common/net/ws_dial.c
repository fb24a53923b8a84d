/*
 * Dialling: name lookup, then the addresses of both families in turn, the next one when the last
 * has failed or has not answered for 250 ms (RFC 8305, simplified: one lookup for both families).
 * The first that connects wins, the others are closed. The connection's handshake deadline covers
 * all of it.
 *
 * Lookups run on libuv's thread pool, which signature checks and file access use too: at most two
 * at a time, so that a name server that never answers takes half of the default pool and not all of
 * it. Further ones wait here, and their deadline runs on.
 *
 * Grades of failure: an unreachable peer ends the connection (WS_END_UNREACHABLE).
 */
#include "net/ws_internal.h"
#include "util/mem.h"

#include <netdb.h>
#include <stdlib.h>
#include <string.h>

enum { LOOKUPS_MAX = 2, NEXT_ADDRESS_MS = 250, ADDRESSES_MAX = 16 };

/* One TCP connect. Lives until its handle is closed, or becomes the connection's socket. */
struct attempt {
    uv_tcp_t *tcp;
    uv_connect_t req;
    struct ws_conn *conn; /* NULL: lost interest */
    struct list link;     /* on dial->attempts */
};

/* One name lookup. Cannot be cancelled once a thread works on it, so it may outlive the connection.
 */
struct lookup {
    uv_getaddrinfo_t req;
    struct ws_loop *loop;
    struct ws_conn *conn; /* NULL: lost interest */
    char host[256];
    struct list link; /* on loop->lookup_queue while waiting */
};

struct ws_dial {
    struct ws_conn *conn;
    uv_timer_t next;       /* to the next address; its close callback frees this struct */
    struct lookup *lookup; /* under way or waiting */
    struct list attempts;
    struct sockaddr_storage address[ADDRESSES_MAX];
    unsigned addresses, tried, allowed;
    int error; /* of the last failed attempt */
};

static void try_next(struct ws_dial *d);

static void free_handle(uv_handle_t *h)
{
    free(h);
}

static void free_dial(uv_handle_t *h)
{
    free(h->data);
}

/* --- ends --- */

/* Close all attempts and timers; forget the lookup. */
static void give_up(struct ws_dial *d)
{
    struct list *n;
    while ((n = list_pop(&d->attempts))) {
        struct attempt *a = list_entry(n, struct attempt, link);
        a->conn = NULL;
        uv_close((uv_handle_t *)a->tcp, free_handle); /* connect_cb frees the rest */
    }
    if (d->lookup) {
        d->lookup->conn = NULL;
        if (!list_empty(&d->lookup->link)) {
            list_remove(&d->lookup->link);
            ws_loop_put(d->lookup->loop);
            free(d->lookup);
        } else {
            (void)uv_cancel((uv_req_t *)&d->lookup->req); /* works only before a thread has it */
        }
    }
    d->conn->dial = NULL;
    uv_close((uv_handle_t *)&d->next, free_dial);
}

void ws_dial_cancel(struct ws_conn *c)
{
    if (c->dial)
        give_up(c->dial);
}

static void unreachable(struct ws_conn *c, const char *what, int err)
{
    char *reason = xasprintf("%s: %s", what, uv_strerror(err));
    ws_conn_end(c, WS_END_UNREACHABLE, 1006, reason);
    free(reason);
}

/* --- connecting --- */

static void connect_cb(uv_connect_t *req, int status)
{
    struct attempt *a = req->data;
    struct ws_conn *c = a->conn;
    if (!c) { /* closed meanwhile; the handle has its own close callback */
        free(a);
        return;
    }
    list_remove(&a->link);
    uv_tcp_t *tcp = a->tcp;
    free(a);
    struct ws_dial *d = c->dial;
    if (status < 0) {
        d->error = status;
        uv_close((uv_handle_t *)tcp, free_handle);
        try_next(d);
        return;
    }
    give_up(d);
    ws_conn_attach(c, tcp);
    ws_conn_start(c);
}

static void next_cb(uv_timer_t *t)
{
    try_next(t->data);
}

/* Dial the next address. When there is none left and nothing under way, the peer is unreachable. */
static void try_next(struct ws_dial *d)
{
    struct ws_conn *c = d->conn;
    while (d->tried < d->addresses) {
        const struct sockaddr *addr = (const struct sockaddr *)&d->address[d->tried++];
        if (c->cb->address_ok && !c->cb->address_ok(c->ctx, addr))
            continue;
        d->allowed++;
        struct attempt *a = xnew(struct attempt);
        a->tcp = xnew(uv_tcp_t);
        list_init(&a->link);
        a->req.data = a;
        a->conn = c;
        int r = uv_tcp_init(c->loop->uv, a->tcp);
        if (r != 0) { /* not registered with the loop: plain memory */
            free(a->tcp);
        } else if ((r = uv_tcp_connect(&a->req, a->tcp, addr, connect_cb)) != 0) {
            uv_close((uv_handle_t *)a->tcp, free_handle);
        }
        if (r != 0) {
            free(a);
            d->error = r;
            continue;
        }
        list_push(&d->attempts, &a->link);
        uv_timer_start(&d->next, next_cb, NEXT_ADDRESS_MS, 0);
        return;
    }
    uv_timer_stop(&d->next);
    if (!list_empty(&d->attempts))
        return;
    if (d->addresses > 0 && d->allowed == 0)
        ws_conn_end(c, WS_END_UNREACHABLE, 1006, "address_refused");
    else
        unreachable(c, "connect", d->error);
}

/* Keep the resolver's order of preference, but let the families alternate: if one does not work
 * here at all, the second address already is of the other. */
static void sort_addresses(struct ws_dial *d, const struct addrinfo *list)
{
    const struct addrinfo *next[2] = {list, list};
    int first = list ? list->ai_family : AF_INET6;
    for (unsigned turn = 0; d->addresses < ADDRESSES_MAX && (next[0] || next[1]); turn ^= 1) {
        const struct addrinfo **p = &next[turn];
        while (*p && ((*p)->ai_family == first) != (turn == 0))
            *p = (*p)->ai_next;
        if (!*p)
            continue;
        struct sockaddr_storage *to = &d->address[d->addresses++];
        memcpy(to, (*p)->ai_addr, (*p)->ai_addrlen);
        if (to->ss_family == AF_INET6)
            ((struct sockaddr_in6 *)to)->sin6_port = htons(d->conn->port);
        else
            ((struct sockaddr_in *)to)->sin_port = htons(d->conn->port);
        *p = (*p)->ai_next;
    }
}

/* --- lookup --- */

static void lookup_cb(uv_getaddrinfo_t *req, int status, struct addrinfo *list)
{
    struct lookup *l = req->data;
    struct ws_conn *c = l->conn;
    struct ws_loop *loop = l->loop;
    free(l);
    loop->lookups--;
    ws_dial_next_lookup(loop);
    if (c) {
        struct ws_dial *d = c->dial;
        d->lookup = NULL;
        if (status == 0) {
            sort_addresses(d, list);
            d->error = UV_EAI_NODATA;
            try_next(d);
        } else {
            unreachable(c, "lookup", status);
        }
    }
    uv_freeaddrinfo(list);
    ws_loop_put(loop);
}

void ws_dial_next_lookup(struct ws_loop *loop)
{
    static const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct list *n;
    while (loop->lookups < LOOKUPS_MAX && (n = list_pop(&loop->lookup_queue))) {
        struct lookup *l = list_entry(n, struct lookup, link);
        l->req.data = l;
        int r = uv_getaddrinfo(loop->uv, &l->req, lookup_cb, l->host, NULL, &hints);
        if (r == 0) {
            loop->lookups++;
            continue;
        }
        /* A name the resolver does not even try. on_close must not come from here (we may be inside
         * ws_dial()), and does not: ending only starts to close handles. */
        l->conn->dial->lookup = NULL;
        unreachable(l->conn, "lookup", r);
        free(l);
        ws_loop_put(loop);
    }
}

struct ws_conn *ws_dial(uv_loop_t *loop, const struct ws_url *url, struct tls_ctx *tls,
                        const struct ws_limits *limits, const struct ws_callbacks *callbacks,
                        void *ctx)
{
    shine_assert(tls || !url->tls);
    struct ws_loop *shared = ws_loop_get(loop);
    struct ws_conn *c = ws_conn_new(shared, false, url->tls ? tls : NULL, limits);
    c->cb = callbacks;
    c->ctx = ctx;
    c->host = xstrdup(url->host);
    c->path = xstrdup(url->path);
    c->port = url->port;
    struct ws_dial *d = xnew(struct ws_dial);
    c->dial = d;
    d->conn = c;
    list_init(&d->attempts);
    uv_timer_init(loop, &d->next);
    d->next.data = d;

    struct sockaddr_in *a4 = (struct sockaddr_in *)&d->address[0];
    struct sockaddr_in6 *a6 = (struct sockaddr_in6 *)&d->address[0];
    if (uv_ip4_addr(url->host, url->port, a4) == 0 || uv_ip6_addr(url->host, url->port, a6) == 0) {
        d->addresses = 1;
        uv_timer_start(&d->next, next_cb, 0, 0); /* address_ok must not be called from here */
    } else {
        struct lookup *l = xnew(struct lookup);
        l->loop = ws_loop_ref(shared);
        l->conn = c;
        memcpy(l->host, url->host, sizeof(l->host));
        list_init(&l->link);
        list_push(&shared->lookup_queue, &l->link);
        d->lookup = l;
        ws_dial_next_lookup(shared);
    }
    ws_loop_put(shared);
    return c;
}
