/*
 * Shared by pool.c (peers and their states), link.c (one connection and its hello) and call.c (one
 * call from queue to answer). Not for anybody else.
 *
 * Who owns what: the pool its peers, a peer its calls until they end, the pool the ended ones until
 * their callback has run. A link (one physical connection) frees itself when net says that it is
 * closed; until then it may outlive its peer. `refs` of the pool counts every object with a libuv
 * handle or a connection, so that the pool goes last.
 */
#ifndef SHINE_PEER_INTERNAL_H
#define SHINE_PEER_INTERNAL_H

#include "net/ws.h"
#include "peer/peer.h"
#include "util/backoff.h"
#include "util/list.h"
#include "util/map.h"

#define PEER_LANES 3
/* Texts that wait for one peer: the bound in calls alone would allow gigabytes of large ones. */
#define PEER_QUEUE_BYTES_MAX ((size_t)64 << 20)

enum peer_state { PEER_IDLE, PEER_CONNECTING, PEER_HELLO, PEER_READY, PEER_BACKOFF };

struct peer_link;

struct peer {
    struct peer_pool *pool;
    struct list lru; /* pool->peers, most recently called last */
    char *key;       /* in pool->by_key */
    char *login, *url;

    enum peer_state state;
    uv_timer_t timer; /* HELLO: the answer is due; BACKOFF: the next dial is due */
    struct backoff backoff;
    bool dial_failed;       /* the last thing that happened was a failed dial */
    const char *last_error; /* "" or a static snake_case reason */
    struct peer_link *link; /* CONNECTING, HELLO, READY */
    int64_t ready_ms;       /* clock_mono_ms() of the last READY */

    unsigned max_in_flight; /* as agreed by the hello */
    bool legacy;            /* it knows no ServerHello */
    struct list lanes[PEER_LANES], flight;
    unsigned n_lane[PEER_LANES], n_queued, n_flight;
    size_t queued_bytes;

    struct {
        uint64_t connects, ok, failed, timed_out, late;
    } count;
};

struct peer_pool {
    uv_loop_t *loop;
    struct peer_config cfg;
    char *server_login; /* what cfg.server_login points to */
    struct ws_limits limits;
    struct map *by_key;
    struct list peers;
    uint64_t next_id;
    unsigned refs;
    uv_timer_t anchor; /* closed last by peer_pool_close(): makes its callback asynchronous */
    bool closing;
    void (*on_closed)(void *ctx);
    void *closed_ctx;
};

/* --- pool.c --- */

/* The one place where a peer's state changes: logs, and arms or stops the timer of the state. */
void peer_set_state(struct peer *p, enum peer_state state);
/* The connection or the attempt at one is over, its link already detached: end the calls that were
 * part of it and choose the next state. `reason` is static. */
void peer_connection_over(struct peer *p, const char *reason);
/* The hello succeeded. */
void peer_ready(struct peer *p, bool legacy, bool pipelining);
void peer_pool_ref(struct peer_pool *pool);
void peer_pool_unref(struct peer_pool *pool);

/* --- link.c --- */

/* Begin to connect; the outcome comes by peer_ready() or peer_connection_over(), never from
 * inside. false with *reason if the URL cannot be dialled at all. */
bool peer_link_dial(struct peer *p, const char **reason);
/* Let go of the peer's link: close it, and hear no more of it. Does nothing without a link. */
void peer_link_drop(struct peer *p, int code, const char *reason);
bool peer_link_send(struct peer_link *l, const char *text, size_t len);
int64_t peer_link_last_received_ms(const struct peer_link *l);

/* --- call.c --- */

struct peer_call;
struct peer_call *peer_call_new(struct peer_pool *pool, const char *op, json_t *payload, peer_cb cb,
                                void *ctx);
/* End a call that is on no queue: its callback follows from the loop. `error` is static. */
void peer_call_end(struct peer_call *c, enum peer_result result, const char *error,
                   bool dial_failed);
/* Queue a new call; false if the peer's queue is full. */
bool peer_call_queue(struct peer *p, struct peer_call *c, enum peer_lane lane, uint32_t timeout_ms);
/* Write what may be written now. */
void peer_calls_pump(struct peer *p);
/* End everything that was written, or that waits. */
void peer_calls_end_flight(struct peer *p, enum peer_result result, const char *error);
void peer_calls_end_queue(struct peer *p, enum peer_result result, const char *error,
                          bool dial_failed);
/* A text came on a READY connection. Last act of the caller: the answer's callback may do anything,
 * closing the pool included. */
void peer_calls_answer(struct peer *p, const char *text, size_t len);

#endif
