/*
 * One call: queued in a lane, written, answered or ended, told once, freed.
 *
 *   lane -> flight -> ended (told, freed)
 *     \_______________^
 *
 * Every call has one timer. In a lane it is the caller's deadline; in flight it is the answer's
 * deadline, moved on while the connection brings bytes; once ended it runs at once, so that no
 * callback is made from inside a function that somebody called.
 *
 * Raises: environment (answers that make no sense are counted and dropped).
 */
#include "peer/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/envelope.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

enum call_state { CALL_NEW, CALL_WAITING, CALL_FLIGHT, CALL_ENDED };

struct peer_call {
    struct peer_pool *pool;
    struct peer *peer; /* WAITING, FLIGHT */
    struct list link;  /* WAITING: peer->lanes[lane]; FLIGHT: peer->flight */
    enum call_state state;
    enum peer_lane lane;
    char request_id[24];
    char *text; /* the request, until it was written */
    size_t len;
    uv_timer_t timer;
    int64_t deadline_ms; /* of the caller */
    int64_t written_ms;
    peer_cb cb;
    void *ctx;
    struct peer_answer answer; /* ENDED */
};

static void on_timer(uv_timer_t *t);

struct peer_call *peer_call_new(struct peer_pool *pool, const char *op, json_t *payload, peer_cb cb,
                                void *ctx)
{
    struct peer_call *c = xnew(struct peer_call);
    c->pool = pool;
    c->cb = cb;
    c->ctx = ctx;
    list_init(&c->link);
    /* Never used twice in a process, so an answer that comes too late finds nobody. */
    (void)snprintf(c->request_id, sizeof c->request_id, "p%" PRIu64, ++pool->next_id);
    c->text = rpc_request_text(op, c->request_id, payload, &c->len);
    json_decref(payload);
    (void)uv_timer_init(pool->loop, &c->timer);
    c->timer.data = c;
    peer_pool_ref(pool);
    return c;
}

static void on_timer_closed(uv_handle_t *h)
{
    struct peer_call *c = h->data;
    struct peer_pool *pool = c->pool;
    free(c->text);
    free(c);
    peer_pool_unref(pool);
}

/* Tell and forget. Nothing may be touched afterwards. */
static void call_tell(struct peer_call *c)
{
    uv_close((uv_handle_t *)&c->timer, on_timer_closed);
    c->cb(c->ctx, &c->answer);
}

/* Take a call off its peer's books. */
static void call_unlink(struct peer_call *c)
{
    struct peer *p = c->peer;
    if (c->state == CALL_WAITING) {
        p->n_lane[c->lane]--;
        p->n_queued--;
        p->queued_bytes -= c->len;
    } else if (c->state == CALL_FLIGHT) {
        p->n_flight--;
    }
    list_remove(&c->link);
    c->peer = NULL;
}

void peer_call_end(struct peer_call *c, enum peer_result result, const char *error,
                   bool dial_failed)
{
    shine_assert(c->state != CALL_ENDED);
    bool written = c->state == CALL_FLIGHT;
    if (c->peer)
        call_unlink(c);
    c->state = CALL_ENDED;
    c->answer = (struct peer_answer){
        .result = result, .written = written, .dial_failed = dial_failed, .error = error};
    (void)uv_timer_start(&c->timer, on_timer, 0, 0);
}

static void arm_until(struct peer_call *c, int64_t when_ms)
{
    int64_t now = clock_mono_ms();
    (void)uv_timer_start(&c->timer, on_timer, when_ms > now ? (uint64_t)(when_ms - now) : 0, 0);
}

bool peer_call_queue(struct peer *p, struct peer_call *c, enum peer_lane lane, uint32_t timeout_ms)
{
    const struct peer_config *cfg = &p->pool->cfg;
    if (p->n_queued >= cfg->max_queue_per_peer || p->queued_bytes + c->len > PEER_QUEUE_BYTES_MAX)
        return false;
    if (timeout_ms == 0 || timeout_ms > cfg->caller_timeout_ms)
        timeout_ms = cfg->caller_timeout_ms;
    c->peer = p;
    c->lane = lane;
    c->state = CALL_WAITING;
    list_push(&p->lanes[lane], &c->link);
    p->n_lane[lane]++;
    p->n_queued++;
    p->queued_bytes += c->len;
    c->deadline_ms = clock_mono_ms() + timeout_ms;
    arm_until(c, c->deadline_ms);
    return true;
}

/* The call to write next. The only place that knows the order of the lanes. */
static struct peer_call *next_call(const struct peer *p)
{
    for (int lane = 0; lane < PEER_LANES; lane++)
        if (!list_empty(&p->lanes[lane]))
            return list_entry(p->lanes[lane].next, struct peer_call, link);
    return NULL;
}

static int64_t answer_due_ms(const struct peer_call *c)
{
    int64_t from = c->written_ms;
    int64_t heard = peer_link_last_received_ms(c->peer->link);
    if (heard > from)
        from = heard;
    int64_t due = from + c->pool->cfg.request_timeout_ms;
    return due < c->deadline_ms ? due : c->deadline_ms;
}

void peer_calls_pump(struct peer *p)
{
    struct peer_call *c;
    while (p->state == PEER_READY && p->n_flight < p->max_in_flight && (c = next_call(p))) {
        if (!peer_link_send(p->link, c->text, c->len))
            return; /* its buffer is full, or it is closing: net tells either */
        call_unlink(c);
        c->peer = p;
        c->state = CALL_FLIGHT;
        list_push(&p->flight, &c->link);
        p->n_flight++;
        free(c->text);
        c->text = NULL;
        c->written_ms = clock_mono_ms();
        arm_until(c, answer_due_ms(c));
    }
}

static void on_timer(uv_timer_t *t)
{
    struct peer_call *c = t->data;
    if (c->state == CALL_ENDED) {
        call_tell(c);
        return;
    }
    struct peer *p = c->peer;
    bool written = c->state == CALL_FLIGHT;
    int64_t due = written ? answer_due_ms(c) : c->deadline_ms;
    if (due > clock_mono_ms()) {
        arm_until(c, due);
        return;
    }
    p->count.timed_out++;
    peer_call_end(c, PEER_TIMEOUT, "timeout", false);
    if (!written)
        return;
    if (p->max_in_flight > 1) {
        peer_calls_pump(p);
        return;
    }
    /* With one request at a time the peer is still busy with this one, and whatever was written
     * next would wait behind it. */
    peer_link_drop(p, 1000, "request timed out");
    peer_connection_over(p, "request_timeout");
}

void peer_calls_end_flight(struct peer *p, enum peer_result result, const char *error)
{
    while (!list_empty(&p->flight)) {
        p->count.failed++;
        peer_call_end(list_entry(p->flight.next, struct peer_call, link), result, error, false);
    }
}

void peer_calls_end_queue(struct peer *p, enum peer_result result, const char *error,
                          bool dial_failed)
{
    for (int lane = 0; lane < PEER_LANES; lane++)
        while (!list_empty(&p->lanes[lane])) {
            p->count.failed++;
            peer_call_end(list_entry(p->lanes[lane].next, struct peer_call, link), result, error,
                          dial_failed);
        }
}

static struct peer_call *find_in_flight(const struct peer *p, const char *request_id)
{
    /* At most max_in_flight_per_peer of them, and answers mostly come in order. */
    list_each(n, &p->flight) {
        struct peer_call *c = list_entry(n, struct peer_call, link);
        if (strcmp(c->request_id, request_id) == 0)
            return c;
    }
    return NULL;
}

void peer_calls_answer(struct peer *p, const char *text, size_t len)
{
    struct rpc_answer a;
    if (!rpc_answer_parse(text, len, &a)) {
        log_debug("peer_text_ignored", LOG_S("peer", p->login), LOG_I("bytes", len));
        return;
    }
    struct peer_call *c = a.is_event ? NULL : find_in_flight(p, a.request_id);
    if (!c) {
        p->count.late++;
        log_debug("peer_answer_unmatched", LOG_S("peer", p->login));
        rpc_answer_free(&a);
        return;
    }
    call_unlink(c);
    c->state = CALL_ENDED;
    (void)uv_timer_stop(&c->timer);
    c->answer = (struct peer_answer){.result = PEER_ANSWER,
                                     .written = true,
                                     .status = a.status,
                                     .error = a.error,
                                     .payload = a.payload};
    if (a.status >= 200 && a.status < 300)
        p->count.ok++;
    else
        p->count.failed++;
    peer_calls_pump(p);
    call_tell(c); /* the call is freed by its timer's close callback, later */
    rpc_answer_free(&a);
}
