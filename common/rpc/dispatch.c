/*
 * The dispatch table and the life of a call: made by rpc_dispatch(), ended in finish() and nowhere
 * else.
 *
 * Grades of failure: what a request gets wrong is answered; two operations of one name are our bug.
 */
#include "rpc/dispatch.h"

#include "util/clock.h"
#include "util/log.h"
#include "util/map.h"
#include "util/mem.h"

#include <stdlib.h>

struct rpc_table {
    struct map *by_name;
};

struct rpc_call {
    struct rpc_conn *conn;
    struct rpc_request req;
    int64_t started_us;
};

struct rpc_table *rpc_table_new(const struct rpc_op *ops)
{
    struct rpc_table *t = xnew(struct rpc_table);
    t->by_name = map_new();
    for (; ops->name; ops++) {
        struct rpc_op *copy = xnew(struct rpc_op);
        *copy = *ops;
        shine_assert(map_put(t->by_name, ops->name, copy) == NULL);
    }
    return t;
}

void rpc_table_free(struct rpc_table *t)
{
    if (!t)
        return;
    size_t it = 0;
    void *op;
    while (map_next(t->by_name, &it, NULL, &op))
        free(op);
    map_free(t->by_name);
    free(t);
}

void rpc_dispatch(struct rpc_table *t, struct rpc_conn *conn, struct rpc_request *req,
                  enum rpc_error e, const char *message)
{
    struct rpc_call *call = xnew(struct rpc_call);
    call->conn = conn;
    call->req = *req;
    call->started_us = clock_mono_us();
    *req = (struct rpc_request){0};
    if (e == RPC_EMPTY_JSON || e == RPC_BAD_JSON || e == RPC_NO_OP) {
        rpc_fail(call, e, message);
        return;
    }
    const struct rpc_op *op = map_get(t->by_name, call->req.op);
    int64_t wait_ms = conn->wait ? conn->wait(conn) : 0;
    if (wait_ms > 0)
        rpc_fail_retry(call, RPC_RATE_LIMITED, "too many requests", wait_ms);
    else if (!op)
        rpc_fail(call, RPC_UNKNOWN_OP, "this server does not know the operation");
    else if (e != RPC_OK)
        rpc_fail(call, e, message);
    else if ((op->flags & RPC_NEEDS_SESSION) && !conn->session_login)
        rpc_fail(call, RPC_NOT_AUTHENTICATED, "log in first");
    else
        op->handler(call);
}

const json_t *rpc_payload(const struct rpc_call *call)
{
    return call->req.payload;
}

const char *rpc_op_name(const struct rpc_call *call)
{
    return call->req.op;
}

const char *rpc_request_id(const struct rpc_call *call)
{
    return call->req.request_id;
}

struct rpc_conn *rpc_call_conn(const struct rpc_call *call)
{
    return call->conn;
}

void *rpc_server(const struct rpc_call *call)
{
    return call->conn->server;
}

int64_t rpc_started_us(const struct rpc_call *call)
{
    return call->started_us;
}

/* Send the answer (consumed) and end the call. */
static void finish(struct rpc_call *call, enum rpc_error e, char *text, size_t len)
{
    int64_t us = clock_mono_us() - call->started_us;
    if (e == RPC_INTERNAL_ERROR)
        log_warn("request_failed", LOG_S("op", call->req.op),
                 LOG_S("requestId", call->req.request_id), LOG_S("error", rpc_error_name(e)),
                 LOG_I("us", us));
    else
        log_debug("request", LOG_S("op", call->req.op), LOG_S("requestId", call->req.request_id),
                  LOG_I("status", rpc_error_status(e)), LOG_S("error", rpc_error_name(e)),
                  LOG_I("us", us));
    struct rpc_conn *conn = call->conn;
    conn->send(conn, text, len);
    free(text);
    rpc_request_free(&call->req);
    free(call);
    conn->ended(conn);
}

/* `payload` is consumed. */
static void fail_with(struct rpc_call *call, enum rpc_error e, const char *message, json_t *payload)
{
    size_t len;
    char *text = rpc_answer_error(call->req.op, call->req.request_id, e, message, payload, &len);
    json_decref(payload);
    finish(call, e, text, len);
}

void rpc_reply(struct rpc_call *call, json_t *payload)
{
    size_t len;
    if (!payload) {
        fail_with(call, RPC_INTERNAL_ERROR, "the answer could not be made", NULL);
        return;
    }
    char *text = rpc_answer_ok(call->req.op, call->req.request_id, payload, &len);
    json_decref(payload);
    finish(call, RPC_OK, text, len);
}

void rpc_reply_begin(const struct rpc_call *call, struct json_out *o, size_t payload_bytes)
{
    rpc_answer_begin(o, call->req.op, call->req.request_id, payload_bytes);
}

void rpc_reply_end(struct rpc_call *call, struct json_out *o)
{
    size_t len;
    char *text = json_out_end(o, &len);
    finish(call, RPC_OK, text, len);
}

void rpc_fail(struct rpc_call *call, enum rpc_error e, const char *message)
{
    fail_with(call, e, message, NULL);
}

void rpc_fail_retry(struct rpc_call *call, enum rpc_error e, const char *message,
                    int64_t retry_after_ms)
{
    json_t *payload = json_object();
    if (!payload || json_object_set_new(payload, "retryAfterMs", json_integer(retry_after_ms)) < 0)
        shine_assert(!"a payload of one integer");
    fail_with(call, e, message, payload);
}
