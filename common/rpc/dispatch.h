/*
 * From a parsed request to the function that serves it, and from there to exactly one answer.
 *
 * A call lives from rpc_dispatch() to its one rpc_reply()/rpc_fail(); the handler may answer at
 * once or later. The connection may be gone by then: the answer is dropped. Handlers keep the call,
 * never the connection.
 */
#ifndef SHINE_RPC_DISPATCH_H
#define SHINE_RPC_DISPATCH_H

#include <stdint.h>

#include "rpc/envelope.h"

struct rpc_call;
typedef void (*rpc_handler)(struct rpc_call *call);

enum { RPC_NEEDS_SESSION = 1u << 0 };

struct rpc_op {
    const char *name; /* NULL ends the table */
    unsigned flags;
    rpc_handler handler;
};

/* The embedder's connection, seen from here. The embedder counts a call before rpc_dispatch(), and
 * every rpc_dispatch() leads to exactly one `ended`, the last use of the connection by that call:
 * the connection must live until then. */
struct rpc_conn {
    void (*send)(struct rpc_conn *c, const char *text, size_t len); /* drops when closed */
    void (*ended)(struct rpc_conn *c);                              /* one call less in flight */
    /* May a request of this connection be served now? 0, or how many ms to wait: then it is
     * answered 429. NULL = always. */
    int64_t (*wait)(struct rpc_conn *c);
    const char *session_login; /* NULL while not logged in */
    void *server;              /* what handlers work on; see rpc_server() */
};

/* A dispatch table indexed by name. `ops` is copied, its names must outlive the table. */
struct rpc_table;
struct rpc_table *rpc_table_new(const struct rpc_op *ops);
void rpc_table_free(struct rpc_table *t);

/* Run one request (consumed) of `conn`: find its operation, check the flags, call the handler.
 * Errors are answered here. `e` and `message` are what rpc_request_parse() returned for it. */
void rpc_dispatch(struct rpc_table *t, struct rpc_conn *conn, struct rpc_request *req,
                  enum rpc_error e, const char *message);

/* What the handler sees. Borrowed, valid until the answer. */
const json_t *rpc_payload(const struct rpc_call *call);
const char *rpc_op_name(const struct rpc_call *call);
const char *rpc_request_id(const struct rpc_call *call);
struct rpc_conn *rpc_call_conn(const struct rpc_call *call);
void *rpc_server(const struct rpc_call *call);
/* clock_mono_us() when the request was dispatched. */
int64_t rpc_started_us(const struct rpc_call *call);

/* The one answer; each ends the call. `payload` (an object) is consumed. NULL is what json_pack()
 * gives when a value cannot be sent, so it is answered INTERNAL_ERROR; an empty answer is
 * json_object(). `message` NULL = none. Every answer is logged: at debug level, INTERNAL_ERROR as a
 * warning. */
void rpc_reply(struct rpc_call *call, json_t *payload);
void rpc_fail(struct rpc_call *call, enum rpc_error e, const char *message);
/* The same answer as rpc_reply(), written without a tree: between the two come the members of the
 * payload. `payload_bytes`: about how long it will be. */
void rpc_reply_begin(const struct rpc_call *call, struct json_out *o, size_t payload_bytes);
void rpc_reply_end(struct rpc_call *call, struct json_out *o);
/* 429 and 503 with `retryAfterMs` in the payload. */
void rpc_fail_retry(struct rpc_call *call, enum rpc_error e, const char *message,
                    int64_t retry_after_ms);

#endif
