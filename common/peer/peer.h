/*
 * Connections to other servers: one per peer and process, kept open, reconnected with jitter,
 * introduced by ServerHello.
 *
 *   IDLE -> TURN -> CONNECTING -> HELLO -> READY
 *            ^          |           |        |
 *            |          v           v        v
 *            +------ BACKOFF <------+--------+     and from BACKOFF or READY back to IDLE when no
 *                                                  call waits
 *
 * Who a peer is: a login in sync_servers, under the URL of its row, whatever URL a call names; any
 * other is the pair (login, URL), so that nobody's record changes where another user's messages go.
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

struct partners;
struct peer_auth;
struct peer_pool;
struct store;

struct peer_config {
    const char *server_login; /* ours, as said in ServerHello; copied */
    struct tls_ctx *tls;      /* for dialling; borrowed */
    uint32_t ping_idle_ms, pong_timeout_ms, request_timeout_ms, connect_timeout_ms,
        caller_timeout_ms;
    uint32_t max_queue_per_peer;
    uint32_t max_in_flight_per_peer; /* where both sides list `pipelining` */
    bool allow_private_addresses;    /* otherwise ws:// URLs, and addresses that are not public
                                        (net/address.h) and not those of partners, are refused */
    uint32_t max_peers;              /* the least recently used one without calls makes room for a
                                        new one; 0 = 1,000 */
    uint32_t dials_per_second;       /* for a pool of few peers (plan.h); 0 = 20 */
    struct partners *partners; /* calls wait until it is loaded; the pool is its watcher, and is
                                  closed before it; borrowed, NULL = there are none */
    struct store *store;       /* to ask which peers users still name; borrowed, NULL = all */
    bool eager;                /* connect to all known peers, not only to those that are called */
    const struct peer_auth *auth; /* how servers prove who they are; borrowed, NULL = no proofs
                                     are made or asked for */
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

/* A lower lane goes after a higher one, but not for ever: one start in eight is kept for each lane
 * that waits, and one place in flight where there are many. Within a lane, first come, first
 * served. */
enum peer_lane { PEER_REALTIME, PEER_NORMAL, PEER_BULK };

enum {
    /* The call waits for a dial that begins after it was made, if there is no connection: one in
     * back-off does not end it. The next dial begins when the back-off is over or 5 s after the
     * last one began, whatever comes first. */
    PEER_WAIT_DIAL = 1
};

struct peer_request {
    const char *login, *url;
    enum peer_lane lane;
    unsigned flags; /* of the above */
    const char *op;
    json_t *payload;     /* consumed */
    uint32_t timeout_ms; /* bounds the whole call (queueing, connecting, answer); 0 or more than
                            callerTimeout means callerTimeout */
};

/* A pool without connections: each is opened by the first call that needs it. Ended by
 * peer_pool_close(). */
struct peer_pool *peer_pool_new(uv_loop_t *loop, const struct peer_config *cfg);
/* End every call (PEER_SHUTDOWN) and connection; `on_closed` follows when all is freed, the
 * question to the database that may be under way included. */
void peer_pool_close(struct peer_pool *p, void (*on_closed)(void *ctx), void *ctx);

/* Make a call. A blocked partner is PEER_UNREACHABLE, "blocked". */
void peer_request(struct peer_pool *p, const struct peer_request *r, peer_cb cb, void *ctx);
/* The same without flags. */
void peer_call(struct peer_pool *p, const char *login, const char *url, enum peer_lane lane,
               const char *op, json_t *payload, uint32_t timeout_ms, peer_cb cb, void *ctx);

/* The peer that calls to (login, url) go to, as things stand; all zero if it was never called. */
struct peer_standing {
    bool connected; /* a call would be written now, or wait for others in flight only */
    bool down;      /* the last dial failed and the next one is not due: a call without
                       PEER_WAIT_DIAL would end at once */
    bool blocked;
    unsigned in_flight, queued;
};
struct peer_standing peer_pool_state(const struct peer_pool *p, const char *login, const char *url);

/* True if that peer listed this capability (one that hello.c has a name for) when it was last
 * greeted; false if it never was. */
bool peer_pool_lists(const struct peer_pool *p, const char *login, const char *url,
                     const char *capability);

/* A server has made contact as `login`, proven or not: if dials to it fail, one is made now, but
 * not more than one per peer in 30 s for this reason. That it reaches us does not mean that we
 * reach it: nothing else changes. */
void peer_pool_heard_from(struct peer_pool *p, const char *login);

#endif
