/*
 * The hint to deliveryd. Every one costs each deliveryd two claims, so they come at a bounded rate,
 * whatever the load; the first after a pause leaves at once.
 *
 * Raises: nothing.
 */
#include "frontd/due.h"

#include <stdlib.h>

#include "store/claims.h"
#include "util/mem.h"

enum { GAP_MS = 50 };

struct due {
    struct store *store;
    uv_timer_t timer;
    uint64_t next; /* not before, in loop time */
};

static void on_timer(uv_timer_t *t)
{
    struct due *d = t->data;
    d->next = uv_now(t->loop) + GAP_MS;
    store_notify_due(d->store);
}

struct due *due_new(uv_loop_t *loop, struct store *store)
{
    struct due *d = xnew(struct due);
    d->store = store;
    shine_assert(uv_timer_init(loop, &d->timer) == 0);
    d->timer.data = d;
    return d;
}

static void on_closed(uv_handle_t *h)
{
    free(h->data);
}

void due_free(struct due *d)
{
    if (d)
        uv_close((uv_handle_t *)&d->timer, on_closed);
}

void due_tell(struct due *d)
{
    uint64_t now = uv_now(d->timer.loop);
    if (!uv_is_active((uv_handle_t *)&d->timer))
        (void)uv_timer_start(&d->timer, on_timer, d->next > now ? d->next - now : 0, 0);
}
