/*
 * One physical connection to a peer: dial, ServerHello, texts in and out.
 *
 * A link belongs to its peer until it is over or dropped; after that nobody is told anything, and
 * it frees itself when net has closed it.
 *
 * Raises: environment (a peer that cannot be reached or says something odd is logged).
 */
#include "peer/internal.h"

#include <stdlib.h>
#include <string.h>

#include "net/address.h"
#include "peer/reason.h"
#include "rpc/envelope.h"
#include "util/log.h"
#include "util/mem.h"

/* The first ServerHello of a connection, and the one with our proof. */
#define HELLO_ID       "server-hello-001"
#define HELLO_PROOF_ID "server-hello-002"

struct peer_link {
    struct peer_pool *pool;
    struct peer *peer; /* NULL once let go */
    struct ws_conn *ws;
    bool private_ok, address_refused;
    struct peer_hello hello;
    const char *hello_id; /* of the request that is open while the state is HELLO */
};

void peer_link_drop(struct peer *p, int code, const char *reason)
{
    struct peer_link *l = p->link;
    if (!l)
        return;
    p->link = NULL;
    l->peer = NULL;
    ws_close(l->ws, code, reason);
}

bool peer_link_send(struct peer_link *l, const char *text, size_t len)
{
    return ws_send_text(l->ws, text, len);
}

int64_t peer_link_last_received_ms(const struct peer_link *l)
{
    return ws_last_received_ms(l->ws);
}

void peer_link_ping_times(const struct peer_link *l, int64_t *ping_ms, int64_t *pong_ms)
{
    ws_ping_times(l->ws, ping_ms, pong_ms);
}

static void hello_failed(struct peer *p, const char *reason)
{
    peer_link_drop(p, 1000, reason);
    peer_connection_over(p, reason);
}

static void hello_send(struct peer_link *l, const char *id)
{
    json_t *payload = peer_hello_payload(&l->hello);
    size_t len;
    char *text = rpc_request_text("ServerHello", id, payload, &len);
    json_decref(payload);
    l->hello_id = id;
    if (!ws_send_text(l->ws, text, len))
        hello_failed(l->peer, "hello_not_sent");
    free(text);
}

static void hello_answered(struct peer_link *l, const struct rpc_answer *a)
{
    struct peer *p = l->peer;
    const struct peer_hello *h = &l->hello;
    const char *reason;
    switch (peer_hello_answered(&l->hello, a, &reason)) {
    case PEER_HELLO_SECOND:
        hello_send(l, HELLO_PROOF_ID);
        break;
    case PEER_HELLO_FAILED:
        hello_failed(p, reason);
        break;
    case PEER_HELLO_DONE:
        p->capabilities = h->capabilities;
        peer_ready(p, h->legacy,
                   peer_lists(h->auth, "pipelining") &&
                       peer_capabilities_have(h->capabilities, "pipelining"));
        break;
    }
}

static void on_open(struct ws_conn *conn, void *ctx)
{
    struct peer_link *l = ctx;
    (void)conn;
    if (!l->peer)
        return;
    peer_set_state(l->peer, PEER_HELLO);
    hello_send(l, HELLO_ID);
}

static void on_message(struct ws_conn *conn, void *ctx, const char *text, size_t len)
{
    (void)conn;
    struct peer_link *l = ctx;
    struct peer *p = l->peer;
    if (!p)
        return;
    if (p->state == PEER_READY) {
        peer_calls_answer(p, text, len);
        return;
    }
    struct rpc_answer a;
    if (!rpc_answer_parse(text, len, &a))
        return;
    if (!a.is_event && strcmp(a.request_id, l->hello_id) == 0)
        hello_answered(l, &a);
    rpc_answer_free(&a);
}

static void on_drain(struct ws_conn *conn, void *ctx)
{
    (void)conn;
    struct peer_link *l = ctx;
    if (l->peer)
        peer_calls_pump(l->peer);
}

static void on_close(struct ws_conn *conn, void *ctx, enum ws_end end, int code, const char *reason)
{
    (void)conn;
    struct peer_link *l = ctx;
    struct peer *p = l->peer;
    struct peer_pool *pool = l->pool;
    if (p) {
        log_debug("peer_closed", LOG_S("peer", p->login), LOG_S("end", ws_end_name(end)),
                  LOG_I("code", code), LOG_S("reason", reason));
        p->link = NULL;
        peer_connection_over(p, peer_reason(end, reason, l->address_refused));
    }
    free(l);
    peer_pool_unref(pool);
}

static bool address_ok(void *ctx, const struct sockaddr *addr)
{
    struct peer_link *l = ctx;
    if (l->private_ok || net_address_public(addr))
        return true;
    l->address_refused = true;
    return false;
}

bool peer_link_dial(struct peer *p, const char **reason)
{
    static const struct ws_callbacks callbacks = {.on_open = on_open,
                                                  .on_message = on_message,
                                                  .on_drain = on_drain,
                                                  .on_close = on_close,
                                                  .address_ok = address_ok};
    struct peer_pool *pool = p->pool;
    struct ws_url url;
    if (!ws_url_parse(p->url, &url)) {
        *reason = "bad_url";
        return false;
    }
    if (url.tls ? !pool->cfg.tls : !pool->cfg.allow_private_addresses) {
        *reason = url.tls ? "no_tls" : "plain_url";
        return false;
    }
    struct peer_link *l = xnew(struct peer_link);
    l->pool = pool;
    l->peer = p;
    /* The operator has written a partner's address, strangers the others. */
    l->private_ok = pool->cfg.allow_private_addresses || p->partner;
    peer_hello_begin(&l->hello, pool->cfg.auth, pool->cfg.server_login, p->login, &url);
    p->link = l;
    peer_pool_ref(pool);
    l->ws = ws_dial(pool->loop, &url, pool->cfg.tls, &pool->limits, &callbacks, l);
    return true;
}
