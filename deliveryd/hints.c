/*
 * Hints to the processes that hold the sessions of those for whom there are events.
 *
 * Raises: nothing but our own bugs. A hint that is lost is repaired by the other side's poll.
 */
#include <stdlib.h>

#include "deliveryd/deliveryd.h"
#include "store/sessions.h"
#include "util/map.h"
#include "util/mem.h"

enum { HINTS_MAX = 100 /* fit into one notification */ };

struct hints {
    struct deliveryd *d;
    struct map *logins;
    uv_timer_t timer;
};

static void on_timer(uv_timer_t *t)
{
    hints_flush(t->data);
}

struct hints *hints_new(struct deliveryd *d)
{
    struct hints *h = xnew(struct hints);
    h->d = d;
    h->logins = map_new();
    (void)uv_timer_init(d->loop, &h->timer);
    h->timer.data = h;
    return h;
}

void hints_tell(struct hints *h, const char *login, const struct store_told *told)
{
    if (told->pts == 0 || !told->elsewhere || map_get(h->logins, login))
        return;
    (void)map_put(h->logins, login, h);
    if (map_size(h->logins) >= HINTS_MAX)
        hints_flush(h);
    else if (!uv_is_active((uv_handle_t *)&h->timer))
        (void)uv_timer_start(&h->timer, on_timer, 0, 0);
}

void hints_flush(struct hints *h)
{
    const char *logins[HINTS_MAX];
    const char *login;
    void *value;
    size_t n = 0, it = 0;
    while (n < HINTS_MAX && map_next(h->logins, &it, &login, &value))
        logins[n++] = login;
    (void)uv_timer_stop(&h->timer);
    if (n == 0)
        return;
    store_notify_events(h->d->store, logins, n);
    map_free(h->logins);
    h->logins = map_new();
}

static void on_closed(uv_handle_t *handle)
{
    free(handle->data);
}

void hints_free(struct hints *h)
{
    if (!h)
        return;
    map_free(h->logins);
    uv_close((uv_handle_t *)&h->timer, on_closed);
}
