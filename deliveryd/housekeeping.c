/*
 * Housekeeping: small pieces of work in the database, one after the other, with pauses.
 *
 * Several processes may do it at a time; the pieces are short and skip what others hold. After each
 * piece there is a pause as long as the piece took, so that it never has more than half of one
 * connection; with nothing left to do it looks again after some minutes.
 *
 * Raises: environment (what fails is tried again later, and concerns nothing else).
 */
#include <stdlib.h>

#include "deliveryd/deliveryd.h"
#include "store/housekeeping.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#define DAY_MS ((int64_t)24 * 3600 * 1000)

enum {
    BEGIN_MS = 2 * 1000, /* the start belongs to what waits for its delivery */
    IDLE_MS = 60 * 1000, /* nothing was left to do, or something failed */
    PAUSE_MIN_MS = 10,
    PIECE_ROWS = 1000,
};

struct housekeeping {
    struct deliveryd *d;
    uv_timer_t timer;
    struct store_retention retention;
    bool running, stopped;
    int64_t sent_ms;
};

static void on_timer(uv_timer_t *t);

static void arm(struct housekeeping *h, int64_t ms)
{
    if (!h->stopped)
        (void)uv_timer_start(&h->timer, on_timer, (uint64_t)ms, 0);
}

struct housekeeping *housekeeping_new(struct deliveryd *d)
{
    struct housekeeping *h = xnew(struct housekeeping);
    h->d = d;
    h->retention = (struct store_retention){
        .events_ms = config_int(d->config, "events.retentionDays") * DAY_MS,
        .events_per_user = config_int(d->config, "events.maxPerUser"),
        .rejects_ms = config_int(d->config, "sync.rejectRetentionDays") * DAY_MS,
    };
    (void)uv_timer_init(d->loop, &h->timer);
    h->timer.data = h;
    arm(h, BEGIN_MS);
    return h;
}

void housekeeping_stop(struct housekeeping *h)
{
    h->stopped = true;
    (void)uv_timer_stop(&h->timer);
}

bool housekeeping_idle(const struct housekeeping *h)
{
    return !h->running;
}

static void on_closed(uv_handle_t *handle)
{
    free(handle->data);
}

void housekeeping_free(struct housekeeping *h)
{
    if (!h)
        return;
    shine_assert(!h->running);
    uv_close((uv_handle_t *)&h->timer, on_closed);
}

static void on_piece(void *ctx, enum db_status st, const char *what, int64_t did, bool more)
{
    struct housekeeping *h = ctx;
    int64_t took = clock_mono_ms() - h->sent_ms;
    h->running = false;
    if (st != DB_OK)
        log_warn("housekeeping_failed", LOG_I("again_in_ms", IDLE_MS));
    else if (did > 0)
        log_info("housekeeping", LOG_S("what", what), LOG_I("rows", did), LOG_I("ms", took));
    arm(h, st != DB_OK || !more ? IDLE_MS : took > PAUSE_MIN_MS ? took : PAUSE_MIN_MS);
    deliveryd_part_idle(h->d);
}

static void on_timer(uv_timer_t *t)
{
    struct housekeeping *h = t->data;
    if (!deliveryd_ready(h->d)) {
        arm(h, BEGIN_MS);
        return;
    }
    h->running = true;
    h->sent_ms = clock_mono_ms();
    store_housekeep(h->d->store, &h->retention, PIECE_ROWS, on_piece, h);
}
