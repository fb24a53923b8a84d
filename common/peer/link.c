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

#define HELLO_ID "server-hello-001"

/* What this side can do, as said in ServerHello. An entry here switches the feature on. */
static const char *const capabilities[] = {"connection-pool", "dm-sync", "settings-sync",
                                           "dm-status-batch"};

struct peer_link {
    struct peer_pool *pool;
    struct peer *peer; /* NULL once let go */
    struct ws_conn *ws;
    bool private_ok, address_refused;
};

static bool we_list(const char *capability)
{
    for (size_t i = 0; i < sizeof capabilities / sizeof *capabilities; i++)
        if (strcmp(capabilities[i], capability) == 0)
            return true;
    return false;
}

json_t *peer_capabilities(void)
{
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof capabilities / sizeof *capabilities; i++)
        (void)json_array_append_new(list, json_string(capabilities[i]));
    return list;
}

static bool answer_lists(const json_t *payload, const char *capability)
{
    const json_t *list = json_object_get(payload, "capabilities");
    size_t i;
    const json_t *v;
    json_array_foreach(list, i, v) {
        const char *s = json_string_value(v);
        if (s && strcmp(s, capability) == 0)
            return true;
    }
    return false;
}

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

static void hello_answered(struct peer *p, const struct rpc_answer *a)
{
    if (a->status == 400 && strcmp(a->error, "UNKNOWN_OP") == 0) {
        peer_ready(p, true, false);
        return;
    }
    const char *who = json_string_value(json_object_get(a->payload, "serverLogin"));
    if (a->status < 200 || a->status > 299 ||
        !json_is_true(json_object_get(a->payload, "accepted"))) {
        log_warn("peer_hello_refused", LOG_S("peer", p->login), LOG_I("status", a->status));
        hello_failed(p, "hello_refused");
    } else if (!who || strcmp(who, p->login) != 0) {
        /* Only the length of what it calls itself: the text is a stranger's, and unbounded. */
        log_warn("peer_wrong_login", LOG_S("peer", p->login), LOG_S("url", p->url),
                 LOG_I("answered_bytes", who ? strlen(who) : 0));
        hello_failed(p, "wrong_server_login");
    } else {
        peer_ready(p, false, we_list("pipelining") && answer_lists(a->payload, "pipelining"));
    }
}

static void on_open(struct ws_conn *conn, void *ctx)
{
    struct peer_link *l = ctx;
    struct peer *p = l->peer;
    if (!p)
        return;
    json_t *hello = json_pack("{s:s, s:i, s:o}", "serverLogin", l->pool->cfg.server_login,
                              "protocolVersion", 1, "capabilities", peer_capabilities());
    shine_assert(hello);
    size_t len;
    char *text = rpc_request_text("ServerHello", HELLO_ID, hello, &len);
    json_decref(hello);
    peer_set_state(p, PEER_HELLO);
    if (!ws_send_text(conn, text, len))
        hello_failed(p, "hello_not_sent");
    free(text);
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
    if (!a.is_event && strcmp(a.request_id, HELLO_ID) == 0)
        hello_answered(p, &a);
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
    p->link = l;
    peer_pool_ref(pool);
    l->ws = ws_dial(pool->loop, &url, pool->cfg.tls, &pool->limits, &callbacks, l);
    return true;
}
