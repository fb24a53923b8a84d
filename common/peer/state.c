/*
 * What one peer does next.
 *
 *   IDLE -> TURN                      a call came, or it is to be connected anyway (eager)
 *   BACKOFF -> TURN                   the delay is over and calls wait, or the peer was heard from
 *   TURN -> CONNECTING                the process may make one more dial now
 *   CONNECTING -> HELLO               the connection is open
 *   CONNECTING, HELLO -> BACKOFF      the dial failed: the calls that waited for it have ended
 *   HELLO -> READY                    the peer knows us
 *   READY -> BACKOFF                  lost while calls wait, or too soon after it was made
 *   READY -> IDLE                     lost after a while, and nobody waits
 *   BACKOFF -> IDLE                   the delay is over and nobody waits
 *   any -> IDLE                       the peer is forgotten, blocked, or changes its address
 *
 * Forbidden: IDLE, TURN or BACKOFF with a link; CONNECTING, HELLO or READY without one. TURN is the
 * state of a moment, unless the process dials many peers at once or does not know yet who is a
 * partner. A URL that cannot be dialled at all goes from TURN to BACKOFF.
 *
 * Raises: environment (logged).
 */
#include <string.h>

#include "peer/internal.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#define STABLE_MS     30000 /* a connection that lasted so long was a good one */
#define FRESH_DIAL_MS 5000  /* between dials that PEER_WAIT_DIAL asks for */

static void on_peer_timer(uv_timer_t *t);

static const char *const state_names[] = {"idle",  "waiting", "connecting",
                                          "hello", "ready",   "backoff"};

const char *peer_state_name(const struct peer *p)
{
    return p->blocked ? "blocked" : state_names[p->state];
}

void peer_note_error(struct peer *p, const char *reason)
{
    p->last_error = reason;
    p->error_ms = clock_mono_ms();
}

/* How long a state lasts if nothing happens; 0 = for ever. */
static uint32_t state_wait_ms(struct peer *p, enum peer_state state)
{
    switch (state) {
    case PEER_HELLO:
        return p->pool->cfg.request_timeout_ms;
    case PEER_BACKOFF:
        return backoff_next(&p->backoff);
    case PEER_IDLE:
        if (!p->wanted)
            return 0;
        return 1 + (p->dial_ms == 0 ? dial_first_ms((unsigned)map_size(p->pool->by_key))
                                    : dial_again_ms(&p->backoff));
    default:
        return 0;
    }
}

void peer_set_state(struct peer *p, enum peer_state state)
{
    bool linked = state == PEER_CONNECTING || state == PEER_HELLO || state == PEER_READY;
    shine_assert(linked == (p->link != NULL));
    (void)uv_timer_stop(&p->timer);
    list_remove(&p->turn);
    uint32_t wait_ms = state_wait_ms(p, state);
    if (wait_ms > 0)
        (void)uv_timer_start(&p->timer, on_peer_timer, wait_ms, 0);
    if (state == PEER_TURN)
        list_push(p->n_queued > 0 ? &p->pool->turn_called : &p->pool->turn_wanted, &p->turn);
    log_debug("peer_state", LOG_S("peer", p->login), LOG_S("from", state_names[p->state]),
              LOG_S("to", state_names[state]), LOG_I("wait_ms", wait_ms));
    p->state = state;
}

/* --- dialling --- */

static void peer_dial(struct peer *p)
{
    const char *reason;
    p->dial_no++;
    p->dial_ms = clock_mono_ms();
    if (peer_link_dial(p, &reason))
        peer_set_state(p, PEER_CONNECTING);
    else
        peer_connection_over(p, reason);
}

static struct peer *next_turn(const struct peer_pool *pool)
{
    const struct list *of =
        list_empty(&pool->turn_called) ? &pool->turn_wanted : &pool->turn_called;
    return list_empty(of) ? NULL : list_entry(of->next, struct peer, turn);
}

/* How long until somebody may dial; -1 = nobody wants to, or it is not known who may. */
static int64_t dial_turns(struct peer_pool *pool)
{
    unsigned most = dial_limit_most(pool->cfg.dials_per_second, (unsigned)map_size(pool->by_key));
    int64_t now = clock_mono_ms();
    struct peer *p;
    if (pool->cfg.partners && !partners_loaded(pool->cfg.partners))
        return -1;
    while ((p = next_turn(pool))) {
        if (!dial_limit_take(&pool->limit, now, most))
            return dial_limit_wait_ms(&pool->limit, now, most);
        peer_dial(p);
    }
    return -1;
}

static void on_wake(uv_timer_t *t)
{
    struct peer_pool *pool = t->data;
    struct list *n;
    while ((n = list_pop(&pool->todo)))
        peer_do_todo(list_entry(n, struct peer, todo));
    int64_t wait_ms = dial_turns(pool);
    if (wait_ms >= 0)
        (void)uv_timer_start(&pool->wake, on_wake, (uint64_t)wait_ms, 0);
}

void peer_pool_later(struct peer_pool *pool)
{
    if (!pool->closing)
        (void)uv_timer_start(&pool->wake, on_wake, 0, 0);
}

void peer_want_dial(struct peer *p)
{
    peer_set_state(p, PEER_TURN);
    peer_pool_later(p->pool);
}

void peer_hurry(struct peer *p)
{
    list_push(&p->pool->turn_called, &p->turn);
}

void peer_hasten(struct peer *p)
{
    int64_t wait_ms = p->dial_ms + FRESH_DIAL_MS - clock_mono_ms();
    if (wait_ms <= 0)
        peer_want_dial(p);
    else if ((int64_t)uv_timer_get_due_in(&p->timer) > wait_ms)
        (void)uv_timer_start(&p->timer, on_peer_timer, (uint64_t)wait_ms, 0);
}

/* --- what happens to a connection --- */

void peer_ready(struct peer *p, bool legacy, bool pipelining)
{
    p->legacy = legacy;
    p->max_in_flight = pipelining ? p->pool->cfg.max_in_flight_per_peer : 1;
    p->dial_failed = false;
    p->ready_ms = clock_mono_ms();
    p->ready_ok = p->count.ok;
    p->count.connects++;
    log_info("peer_connected", LOG_S("peer", p->login), LOG_S("url", p->url),
             LOG_I("legacy", legacy), LOG_I("pipelining", pipelining));
    peer_set_state(p, PEER_READY);
    peer_calls_pump(p);
}

static void dial_failed(struct peer *p, const char *reason)
{
    p->dial_failed = true;
    peer_note_error(p, reason);
    log_warn("peer_dial_failed", LOG_S("peer", p->login), LOG_S("url", p->url),
             LOG_S("reason", reason), LOG_I("failures", p->backoff.step + 1));
    peer_calls_end_dial(p, reason);
    peer_set_state(p, PEER_BACKOFF);
    if (p->n_queued > 0)
        peer_hasten(p);
}

void peer_connection_over(struct peer *p, const char *reason)
{
    if (p->state != PEER_READY) {
        dial_failed(p, reason);
        return;
    }
    /* It answered once, and hung up when nothing more was asked: a way to work, not a failure. */
    bool served = p->count.ok > p->ready_ok && p->n_flight == 0 &&
                  (strcmp(reason, "closed") == 0 || strcmp(reason, "lost") == 0);
    bool stable = clock_mono_ms() - p->ready_ms >= STABLE_MS;
    if (served && !stable)
        reason = p->count.ok - p->ready_ok == 1 ? "closed_after_one_request" : reason;
    if (served || stable)
        backoff_reset(&p->backoff);
    peer_note_error(p, reason);
    log_info("peer_lost", LOG_S("peer", p->login), LOG_S("reason", reason),
             LOG_I("in_flight", p->n_flight), LOG_I("waiting", p->n_queued));
    peer_calls_end_flight(p, PEER_LOST, reason);
    /* A peer that accepts and then drops us is not dialled at the pace of our calls. */
    peer_set_state(p, stable && p->n_queued == 0 ? PEER_IDLE : PEER_BACKOFF);
}

static void on_peer_timer(uv_timer_t *t)
{
    struct peer *p = t->data;
    if (p->state == PEER_HELLO) {
        peer_link_drop(p, 1000, "no answer to ServerHello");
        peer_connection_over(p, "hello_timeout");
    } else if (p->state == PEER_IDLE || p->n_queued > 0) {
        peer_want_dial(p);
    } else {
        shine_assert(p->state == PEER_BACKOFF);
        peer_set_state(p, PEER_IDLE);
    }
}
