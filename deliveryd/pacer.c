/*
 * One timer per pacer: the next moment at which a claim is begun or tried.
 *
 * Raises: nothing but our own bugs.
 */
#include "deliveryd/pacer.h"

#include <stdlib.h>

#include "util/mem.h"

enum {
    NO_ROOM_MS = 20, /* without news of room, look again after so long */
    NOT_READY_MS = 200,
    HELD_MS = 20, /* what is due and was not given is locked by somebody: no need to hurry */
};

struct pacer {
    uv_timer_t timer;
    int64_t tick_ms;
    pacer_claim claim;
    void *ctx;
    bool claiming, woken, no_room, stopped;
};

static void on_timer(uv_timer_t *t);

/* At the latest in `ms`. */
static void arm(struct pacer *p, int64_t ms)
{
    uint64_t in = ms > 0 ? (uint64_t)ms : 0;
    if (p->stopped || p->claiming)
        return;
    if (!uv_is_active((uv_handle_t *)&p->timer) || uv_timer_get_due_in(&p->timer) > in)
        (void)uv_timer_start(&p->timer, on_timer, in, 0);
}

struct pacer *pacer_new(uv_loop_t *loop, int64_t tick_ms, pacer_claim claim, void *ctx)
{
    struct pacer *p = xnew(struct pacer);
    (void)uv_timer_init(loop, &p->timer);
    p->timer.data = p;
    p->tick_ms = tick_ms;
    p->claim = claim;
    p->ctx = ctx;
    arm(p, 0);
    return p;
}

static void on_closed(uv_handle_t *h)
{
    free(h->data);
}

void pacer_free(struct pacer *p)
{
    if (!p)
        return;
    shine_assert(!p->claiming);
    uv_close((uv_handle_t *)&p->timer, on_closed);
}

void pacer_stop(struct pacer *p)
{
    p->stopped = true;
    (void)uv_timer_stop(&p->timer);
}

void pacer_wake(struct pacer *p)
{
    p->woken = true;
    arm(p, 0);
}

void pacer_room(struct pacer *p)
{
    if (p->no_room)
        arm(p, 0);
}

bool pacer_claiming(const struct pacer *p)
{
    return p->claiming;
}

static void on_timer(uv_timer_t *t)
{
    struct pacer *p = t->data;
    p->woken = false;
    enum pacer_begin begin = p->claim(p->ctx);
    p->claiming = begin == PACER_BEGUN;
    p->no_room = begin == PACER_NO_ROOM;
    if (!p->claiming)
        arm(p, p->no_room ? NO_ROOM_MS : NOT_READY_MS);
}

void pacer_claimed(struct pacer *p, enum db_status st, const struct store_claimed *c)
{
    shine_assert(p->claiming);
    p->claiming = false;
    /* Without a database the tick goes on: its return is nothing that we are told. */
    int64_t in = p->tick_ms;
    if (st == DB_OK && c->more)
        in = 0;
    else if (st == DB_OK && c->next_due_ms >= 0 && c->next_due_ms < in)
        in = c->next_due_ms > HELD_MS ? c->next_due_ms : HELD_MS;
    arm(p, p->woken ? 0 : in);
}
