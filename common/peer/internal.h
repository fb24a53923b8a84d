/*
 * Shared by pool.c (the peers of a process), state.c (what one peer does next), known.c (which
 * peers there are), link.c (one connection and its hello), call.c (one call from queue to answer)
 * and report.c (what is told about them). Not for anybody else.
 *
 * Who owns what: the pool its peers, a peer its calls until they end, the pool the ended ones until
 * their callback has run. A link (one physical connection) frees itself when net says that it is
 * closed; until then it may outlive its peer. `refs` of the pool counts every object with a libuv
 * handle or a connection, so that the pool goes last.
 */
#ifndef SHINE_PEER_INTERNAL_H
#define SHINE_PEER_INTERNAL_H

#include "net/ws.h"
#include "peer/hello.h"
#include "peer/partners.h"
#include "peer/peer.h"
#include "peer/plan.h"
#include "util/backoff.h"
#include "util/list.h"
#include "util/map.h"

#define PEER_LANES 3
/* Texts that wait for one peer: the bound in calls alone would allow gigabytes of large ones. */
#define PEER_QUEUE_BYTES_MAX ((size_t)64 << 20)

enum peer_state { PEER_IDLE, PEER_TURN, PEER_CONNECTING, PEER_HELLO, PEER_READY, PEER_BACKOFF };

struct peer_link;
struct peer_call;

struct peer {
    struct peer_pool *pool;
    struct list lru; /* pool->peers, most recently called last */
    char *key;       /* in pool->by_key, unless retired */
    char *login, *url;
    bool partner;     /* it is in sync_servers: the key is the login alone */
    bool blocked;     /* its calls end at once */
    bool retired;     /* nobody names it any more: goes when its calls have ended */
    bool wanted;      /* it is to be connected although nobody calls (server.pool.eager) */
    char *new_url;    /* dialled from when nothing is in flight; NULL = as it is */
    struct list todo; /* pool->todo: retired or new_url, and the time may have come */

    enum peer_state state;
    struct list turn; /* TURN: pool->turn_called or turn_wanted */
    uv_timer_t timer; /* HELLO: the answer is due; BACKOFF, IDLE if wanted: the next dial is due */
    struct backoff backoff;
    bool dial_failed;       /* the last thing that happened was a failed dial */
    uint64_t dial_no;       /* of the last dial */
    int64_t dial_ms;        /* when it began; 0 = never */
    int64_t probe_ms;       /* when peer_pool_heard_from() last had an effect */
    struct peer_link *link; /* CONNECTING, HELLO, READY */
    int64_t ready_ms;       /* clock_mono_ms() of the last READY; 0 = never */
    uint64_t ready_ok;      /* count.ok at that moment */
    const char *last_error; /* "" or a static snake_case reason; stays when things are well again */
    int64_t error_ms;

    unsigned max_in_flight; /* as agreed by the hello */
    bool legacy;            /* it knows no ServerHello */
    unsigned capabilities;  /* what it listed in its last answer to one */
    struct list lanes[PEER_LANES], flight;
    unsigned n_lane[PEER_LANES], n_queued, n_flight;
    unsigned n_lane_flight[PEER_LANES];
    unsigned passed[PEER_LANES]; /* calls of other lanes started while this one waited */
    size_t queued_bytes;
    int64_t stray_ms; /* of the last answer to a request that was never made; 0 = never */

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
    struct list turn_called, turn_wanted; /* may dial next: first those that somebody waits for */
    struct list todo;
    struct dial_limit limit;
    uv_timer_t wake; /* for the two above */
    uint64_t next_id;
    unsigned refs;
    bool checking; /* a question of known.c is under way */
    bool closing;
    void (*on_closed)(void *ctx);
    void *closed_ctx;
};

/* --- pool.c --- */

void peer_pool_ref(struct peer_pool *pool);
void peer_pool_unref(struct peer_pool *pool);
/* The peer that calls to (login, url) go to, made if it is new; NULL if there are too many, all of
 * them busy. With `make_room` false an unused one does not go to make room for it. */
struct peer *peer_pool_get(struct peer_pool *pool, const char *login, const char *url,
                           bool make_room);
/* Take a call in, or end it. */
void peer_submit(struct peer *p, struct peer_call *c);
/* Forget a peer: nothing may be called on it afterwards. Its calls have ended. */
void peer_forget(struct peer *p, int code, const char *reason);
static inline bool peer_has_calls(const struct peer *p)
{
    return p->n_queued > 0 || p->n_flight > 0;
}

/* --- state.c --- */

/* The one place where a peer's state changes: logs, and arms or stops the timer of the state. */
void peer_set_state(struct peer *p, enum peer_state state);
const char *peer_state_name(const struct peer *p);
/* IDLE, BACKOFF: dial, as soon as it is this peer's turn. */
void peer_want_dial(struct peer *p);
/* TURN: somebody waits for it now. */
void peer_hurry(struct peer *p);
/* BACKOFF: a call waits that the last dial does not answer for. */
void peer_hasten(struct peer *p);
/* Dial those whose turn it is, and see to those on `todo`, in a later turn of the loop. */
void peer_pool_later(struct peer_pool *pool);
/* The connection or the attempt at one is over, its link already detached: end the calls that were
 * part of it and choose the next state. `reason` is static. */
void peer_connection_over(struct peer *p, const char *reason);
/* The hello succeeded. */
void peer_ready(struct peer *p, bool legacy, bool pipelining);
void peer_note_error(struct peer *p, const char *reason);

/* --- known.c --- */

/* Called when the table of partners has been read, with the pool: addresses, blocks, peers that
 * nobody names. */
void peer_pool_reconcile(void *ctx);
/* Calls ended: is there something that waited for that? */
void peer_calls_fewer(struct peer *p);
/* What `todo` is about; may forget the peer. */
void peer_do_todo(struct peer *p);

/* --- link.c --- */

/* Begin to connect; the outcome comes by peer_ready() or peer_connection_over(), never from
 * inside. false with *reason if the URL cannot be dialled at all. */
bool peer_link_dial(struct peer *p, const char **reason);
/* Let go of the peer's link: close it, and hear no more of it. Does nothing without a link. */
void peer_link_drop(struct peer *p, int code, const char *reason);
bool peer_link_send(struct peer_link *l, const char *text, size_t len);
int64_t peer_link_last_received_ms(const struct peer_link *l);
/* When the last ping was sent and the last pong came; 0 = never. */
void peer_link_ping_times(const struct peer_link *l, int64_t *ping_ms, int64_t *pong_ms);

/* --- call.c --- */

struct peer_call *peer_call_new(struct peer_pool *pool, const struct peer_request *r, peer_cb cb,
                                void *ctx);
/* End a call that is on no queue: its callback follows from the loop. `error` is static. */
void peer_call_end(struct peer_call *c, enum peer_result result, const char *error,
                   bool dial_failed);
/* PEER_WAIT_DIAL */
bool peer_call_waits(const struct peer_call *c);
/* Queue a new call, or one taken off another peer's queue; false if the peer's queue is full. */
bool peer_call_queue(struct peer *p, struct peer_call *c);
/* Write what may be written now. */
void peer_calls_pump(struct peer *p);
/* End everything that was written, or that waits. */
void peer_calls_end_flight(struct peer *p, enum peer_result result, const char *error);
void peer_calls_end_queue(struct peer *p, enum peer_result result, const char *error,
                          bool dial_failed);
/* The dial has failed: end what waited for it. */
void peer_calls_end_dial(struct peer *p, const char *error);
/* Everything that waits for `from` waits for `to` instead. */
void peer_calls_move(struct peer *from, struct peer *to);
/* A text came on a READY connection. Last act of the caller: the answer's callback may do anything,
 * closing the pool included. */
void peer_calls_answer(struct peer *p, const char *text, size_t len);

#endif
