/*
 * Connections to other servers: one per peer and process, kept open, reconnected with jitter,
 * introduced by ServerHello.
 *
 *   IDLE -> CONNECTING -> HELLO -> READY
 *            |    ^         |       |
 *            v    |         v       v
 *            +--> +-- BACKOFF <-----+     and from BACKOFF or READY back to IDLE when no call waits
 *
 * A failed dial (look-up, TCP, TLS, upgrade, hello) ends every call that waits for it, and calls
 * that come before the next one is due end at once: their try was that dial. When a working
 * connection is lost, what was written ends and what was not goes on waiting for the next one.
 *
 * A call is matched to its answer by request id. The transport never repeats a call: it ends once,
 * with an answer or with an error, within `callerTimeout`. With a peer that lacks the `pipelining`
 * capability one request is in flight at a time; a request that times out there drops the
 * connection, and what was not yet written counts as not tried.
 */
#ifndef SHINE_PEER_PEER_H
#define SHINE_PEER_PEER_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "net/tls.h"

struct peer_pool;

struct peer_config {
    const char *server_login; /* ours, as said in ServerHello; copied */
    struct tls_ctx *tls;      /* for dialling; borrowed */
    uint32_t ping_idle_ms, pong_timeout_ms, request_timeout_ms, connect_timeout_ms,
        caller_timeout_ms;
    uint32_t max_queue_per_peer;
    uint32_t max_in_flight_per_peer; /* where both sides list `pipelining` */
    bool allow_private_addresses;    /* otherwise ws:// URLs, and addresses that are not public
                                        (net/address.h), are refused */
    uint32_t max_peers;              /* the least recently used one without calls makes room for a
                                        new one; 0 = 1,000 */
};

enum peer_result {
    PEER_ANSWER,      /* an answer came: status, error and payload are set */
    PEER_UNREACHABLE, /* the dial failed (look-up, TCP, TLS, upgrade, hello): it was tried */
    PEER_LOST,        /* the connection died; see `written` */
    PEER_TIMEOUT,     /* no answer in time; see `written` */
    PEER_OVERLOADED,  /* our own queue for this peer is full: nothing was tried */
    PEER_SHUTDOWN     /* the pool is closing: nothing was tried unless `written` */
};

struct peer_answer {
    enum peer_result result;
    bool written;          /* the request was handed to the connection */
    bool dial_failed;      /* a dial to the peer failed while this call waited */
    int status;            /* of the answer; 0 otherwise */
    const char *error;     /* error code of the answer, "" if none; otherwise a snake_case reason */
    const json_t *payload; /* of the answer (object); NULL otherwise */
};
/* Valid during the callback only. Never synchronous, exactly once per call. */
typedef void (*peer_cb)(void *ctx, const struct peer_answer *a);

enum peer_lane { PEER_REALTIME, PEER_NORMAL, PEER_BULK };

/* A pool without connections: each is opened by the first call that needs it. Ended by
 * peer_pool_close(). */
struct peer_pool *peer_pool_new(uv_loop_t *loop, const struct peer_config *cfg);
/* End every call (PEER_SHUTDOWN) and connection; `on_closed` follows when all is freed. */
void peer_pool_close(struct peer_pool *p, void (*on_closed)(void *ctx), void *ctx);

/* Call `op` on the server `login` at `url`. A peer is the pair (login, URL). `payload` is consumed.
 * `timeout_ms` bounds the whole call (queueing, connecting, answer); 0 or more than callerTimeout
 * means callerTimeout. */
void peer_call(struct peer_pool *p, const char *login, const char *url, enum peer_lane lane,
               const char *op, json_t *payload, uint32_t timeout_ms, peer_cb cb, void *ctx);

/* What this side can do, as a new array: for our own ServerHello and for the answer to another's.
 */
json_t *peer_capabilities(void);

/* Log one line per peer: state, url, queue, counters, last error (SIGUSR1 and every minute by its
 * owner). */
void peer_pool_log(const struct peer_pool *p);

#endif
