/*
 * Bounds per server. See bounds.h.
 *
 * A server is known here while it has open calls or waiters, and forgotten with the last of them:
 * the table never holds more than there are calls and waiters.
 *
 * Raises: nothing but our own bugs.
 */
#include "delivery/bounds.h"

#include <stdlib.h>
#include <string.h>

#include "util/clock.h"
#include "util/map.h"
#include "util/mem.h"

#define FIRST_SHARE 10 /* a server begins with this part of the largest bound */

struct bound {
    char *login;
    unsigned open, limit;
    bool being_served; /* not to be forgotten */
    struct list waiters;
};

struct delivery_bounds {
    struct delivery_bounds_config cfg;
    struct map *peers;
    unsigned waiting;
    bool stopped;
    uv_timer_t timer; /* at once if there may be room for a waiter, else when one's time is over */
    void (*on_room)(void *ctx);
    void *room_ctx;
};

static void on_timer(uv_timer_t *t);

struct delivery_bounds *delivery_bounds_new(uv_loop_t *loop,
                                            const struct delivery_bounds_config *cfg)
{
    struct delivery_bounds *b = xnew(struct delivery_bounds);
    shine_assert(cfg->max_per_peer > 0);
    b->cfg = *cfg;
    b->peers = map_new();
    (void)uv_timer_init(loop, &b->timer);
    b->timer.data = b;
    return b;
}

static void on_timer_closed(uv_handle_t *h)
{
    struct delivery_bounds *b = h->data;
    map_free(b->peers);
    free(b);
}

void delivery_bounds_free(struct delivery_bounds *b)
{
    if (!b)
        return;
    shine_assert(map_size(b->peers) == 0);
    uv_close((uv_handle_t *)&b->timer, on_timer_closed);
}

static void arm(struct delivery_bounds *b, uint64_t ms)
{
    if (!uv_is_active((uv_handle_t *)&b->timer) || uv_timer_get_due_in(&b->timer) > ms)
        (void)uv_timer_start(&b->timer, on_timer, ms, 0);
}

void delivery_bounds_stop(struct delivery_bounds *b)
{
    b->stopped = true;
    if (b->waiting > 0)
        arm(b, 0);
}

static unsigned first_limit(const struct delivery_bounds *b)
{
    unsigned n = b->cfg.max_per_peer / FIRST_SHARE;
    return n > 0 ? n : 1;
}

static struct bound *bound_of(struct delivery_bounds *b, const char *login)
{
    struct bound *p = map_get(b->peers, login);
    if (p)
        return p;
    p = xnew(struct bound);
    p->login = xstrdup(login);
    p->limit = first_limit(b);
    list_init(&p->waiters);
    (void)map_put(b->peers, login, p);
    return p;
}

static void forget_if_idle(struct delivery_bounds *b, struct bound *p)
{
    if (p->open > 0 || !list_empty(&p->waiters) || p->being_served)
        return;
    (void)map_remove(b->peers, p->login);
    free(p->login);
    free(p);
}

static bool has_no_room(const struct bound *p)
{
    return p->open >= p->limit || !list_empty(&p->waiters);
}

bool delivery_bounds_full(const struct delivery_bounds *b, const char *login)
{
    const struct bound *p = map_get(b->peers, login);
    return p && has_no_room(p);
}

void delivery_bounds_begin(struct delivery_bounds *b, const char *login)
{
    bound_of(b, login)->open++;
}

void delivery_bounds_end(struct delivery_bounds *b, const char *login, bool prompt)
{
    struct bound *p = map_get(b->peers, login);
    shine_assert(p && p->open > 0);
    bool was_full = has_no_room(p);
    p->open--;
    if (!prompt)
        p->limit = first_limit(b);
    else if (p->limit < b->cfg.max_per_peer)
        p->limit++;
    if (!list_empty(&p->waiters))
        arm(b, 0);
    else if (was_full && !has_no_room(p) && b->on_room)
        b->on_room(b->room_ctx);
    forget_if_idle(b, p);
}

bool delivery_bounds_wait(struct delivery_bounds *b, const char *login, struct delivery_waiter *w)
{
    if (b->stopped || b->waiting >= b->cfg.max_waiting)
        return false;
    struct bound *p = bound_of(b, login);
    list_init(&w->link);
    w->until_ms = clock_mono_ms() + b->cfg.wait_ms;
    list_push(&p->waiters, &w->link);
    b->waiting++;
    arm(b, b->cfg.wait_ms);
    return true;
}

/* The first waiter of `p` whose turn it is, whether in time or not; NULL if all must wait on. */
static struct delivery_waiter *next_waiter(struct delivery_bounds *b, struct bound *p,
                                           bool *in_time)
{
    if (list_empty(&p->waiters))
        return NULL;
    struct delivery_waiter *w = list_entry(p->waiters.next, struct delivery_waiter, link);
    *in_time = !b->stopped && p->open < p->limit;
    if (!*in_time && !b->stopped && w->until_ms > clock_mono_ms())
        return NULL;
    list_remove(&w->link);
    b->waiting--;
    return w;
}

static void serve(struct delivery_bounds *b, struct bound *p)
{
    struct delivery_waiter *w;
    bool in_time = false;
    p->being_served = true;
    while ((w = next_waiter(b, p, &in_time)))
        w->go(w, in_time);
    p->being_served = false;
    if (!has_no_room(p) && b->on_room)
        b->on_room(b->room_ctx);
    forget_if_idle(b, p);
}

/* Callbacks begin calls, and so add to the table: it is not walked while they are made. */
static void on_timer(uv_timer_t *t)
{
    struct delivery_bounds *b = t->data;
    size_t n = 0, it = 0;
    struct bound **queued = xcalloc(map_size(b->peers), sizeof(struct bound *));
    void *value;
    while (map_next(b->peers, &it, NULL, &value)) {
        struct bound *p = value;
        if (!list_empty(&p->waiters))
            queued[n++] = p;
    }
    /* None of them is forgotten before its turn: it has waiters. */
    for (size_t i = 0; i < n; i++)
        serve(b, queued[i]);
    free((void *)queued);
    /* The next time that one's time is over: they are not sorted across servers. */
    if (b->waiting > 0)
        arm(b, b->cfg.wait_ms / 4 + 1);
}

size_t delivery_bounds_list_full(const struct delivery_bounds *b, const char **out, size_t max)
{
    size_t n = 0, it = 0;
    void *value;
    while (n < max && map_next(b->peers, &it, NULL, &value)) {
        const struct bound *p = value;
        if (has_no_room(p))
            out[n++] = p->login;
    }
    return n;
}

unsigned delivery_bounds_waiting(const struct delivery_bounds *b)
{
    return b->waiting;
}

void delivery_bounds_on_room(struct delivery_bounds *b, void (*cb)(void *ctx), void *ctx)
{
    b->on_room = cb;
    b->room_ctx = ctx;
}
