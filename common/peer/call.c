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

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/envelope.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#define LANE_SHARE       8 /* of so many starts, one is for each lower lane that waits */
#define LANE_PLACES_FROM 6 /* in flight: from here on each lane has a place of its own */

enum call_state { CALL_NEW, CALL_WAITING, CALL_FLIGHT, CALL_ENDED };

struct peer_call {
    struct peer_pool *pool;
    struct peer *peer; /* WAITING, FLIGHT */
    struct list link;  /* WAITING: peer->lanes[lane]; FLIGHT: peer->flight */
    enum call_state state;
    enum peer_lane lane;
    bool waits;       /* PEER_WAIT_DIAL */
    uint64_t dial_no; /* the peer's last dial when this call was queued */
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

struct peer_call *peer_call_new(struct peer_pool *pool, const struct peer_request *r, peer_cb cb,
                                void *ctx)
{
    struct peer_call *c = xnew(struct peer_call);
    c->pool = pool;
    c->lane = r->lane;
    c->waits = (r->flags & PEER_WAIT_DIAL) != 0;
    c->cb = cb;
    c->ctx = ctx;
    list_init(&c->link);
    /* Never used twice in a process, so an answer that comes too late finds nobody. */
    (void)snprintf(c->request_id, sizeof c->request_id, "p%" PRIu64, ++pool->next_id);
    c->text = rpc_request_text(r->op, c->request_id, r->payload, &c->len);
    json_decref(r->payload);
    uint32_t limit_ms = pool->cfg.caller_timeout_ms;
    if (r->timeout_ms > 0 && r->timeout_ms < limit_ms)
        limit_ms = r->timeout_ms;
    c->deadline_ms = clock_mono_ms() + limit_ms;
    (void)uv_timer_init(pool->loop, &c->timer);
    c->timer.data = c;
    peer_pool_ref(pool);
    return c;
}

bool peer_call_waits(const struct peer_call *c)
{
    return c->waits;
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
        p->n_lane_flight[c->lane]--;
        p->n_flight--;
    }
    list_remove(&c->link);
    c->peer = NULL;
    peer_calls_fewer(p);
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

bool peer_call_queue(struct peer *p, struct peer_call *c)
{
    const struct peer_config *cfg = &p->pool->cfg;
    if (p->n_queued >= cfg->max_queue_per_peer || p->queued_bytes + c->len > PEER_QUEUE_BYTES_MAX)
        return false;
    c->peer = p;
    c->dial_no = p->dial_no;
    c->state = CALL_WAITING;
    list_push(&p->lanes[c->lane], &c->link);
    p->n_lane[c->lane]++;
    p->n_queued++;
    p->queued_bytes += c->len;
    arm_until(c, c->deadline_ms);
    return true;
}

/* --- what is written next; the only place that knows the order of the lanes --- */

/* With many places in flight, one is kept free for each lane that has none. */
static bool lane_has_place(const struct peer *p, int lane)
{
    if (p->max_in_flight < LANE_PLACES_FROM)
        return true;
    unsigned kept = 0;
    for (int other = 0; other < PEER_LANES; other++)
        kept += other != lane && p->n_lane_flight[other] == 0;
    return p->n_flight + kept < p->max_in_flight;
}

static struct peer_call *next_call(const struct peer *p)
{
    int next = -1;
    for (int lane = 0; lane < PEER_LANES; lane++) {
        if (list_empty(&p->lanes[lane]) || !lane_has_place(p, lane))
            continue;
        if (next < 0 || (p->passed[lane] >= LANE_SHARE - 1 && p->passed[lane] > p->passed[next]))
            next = lane;
    }
    return next < 0 ? NULL : list_entry(p->lanes[next].next, struct peer_call, link);
}

static void count_passed(struct peer *p, enum peer_lane started)
{
    for (int lane = 0; lane < PEER_LANES; lane++)
        if (lane == (int)started || list_empty(&p->lanes[lane]))
            p->passed[lane] = 0;
        else
            p->passed[lane]++;
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
    while (p->state == PEER_READY && !p->new_url && p->n_flight < p->max_in_flight &&
           (c = next_call(p))) {
        if (!peer_link_send(p->link, c->text, c->len))
            return; /* its buffer is full, or it is closing: net tells either */
        call_unlink(c);
        count_passed(p, c->lane);
        c->peer = p;
        c->state = CALL_FLIGHT;
        list_push(&p->flight, &c->link);
        p->n_flight++;
        p->n_lane_flight[c->lane]++;
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
    if (written)
        peer_note_error(p, p->stray_ms >= c->written_ms ? "answered_another_id" : "no_answer");
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
    peer_connection_over(p, p->last_error);
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

void peer_calls_end_dial(struct peer *p, const char *error)
{
    for (int lane = 0; lane < PEER_LANES; lane++)
        list_each_safe(n, &p->lanes[lane]) {
            struct peer_call *c = list_entry(n, struct peer_call, link);
            if (c->waits && c->dial_no == p->dial_no)
                continue; /* it came when that dial was under way */
            p->count.failed++;
            peer_call_end(c, PEER_UNREACHABLE, error, true);
        }
}

void peer_calls_move(struct peer *from, struct peer *to)
{
    for (int lane = 0; lane < PEER_LANES; lane++)
        while (!list_empty(&from->lanes[lane])) {
            struct peer_call *c = list_entry(from->lanes[lane].next, struct peer_call, link);
            call_unlink(c);
            c->state = CALL_NEW;
            peer_submit(to, c);
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

/* Is it an id that a request of this process had? Then its answer came too late. */
static bool was_ours(const struct peer_pool *pool, const char *request_id)
{
    char *end;
    if (request_id[0] != 'p' || request_id[1] < '1' || request_id[1] > '9')
        return false;
    errno = 0;
    unsigned long long n = strtoull(request_id + 1, &end, 10);
    return errno == 0 && *end == '\0' && n <= pool->next_id;
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
        if (!a.is_event && !was_ours(p->pool, a.request_id))
            p->stray_ms = clock_mono_ms();
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
