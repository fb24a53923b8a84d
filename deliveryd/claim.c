/*
 * Claims of delivery rows: how much to take, and when.
 *
 * A row counts as work while its attempt lasts, and its second call, if that is still open. Rows
 * that wait for room at a server do not count: they may be as many again as the bounds let wait,
 * and go back soon.
 *
 * Raises: environment (the database is away: the tick goes on).
 */
#include <stdlib.h>

#include "deliveryd/deliveryd.h"
#include "deliveryd/pacer.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#define BATCH_ROWS      500
#define BATCH_BYTES     ((int64_t)8 << 20)
#define OPEN_BYTES_MAX  ((int64_t)64 << 20) /* blobs of all rows taken */
#define SKIP_PEERS_MAX  1000
#define LEAST_ROOM_PART 8  /* a claim for less than this part of all room */
#define SMALL_PAUSE_MS  20 /* is not made more often than that */

struct claims {
    struct deliveryd *d;
    struct pacer *pacer;
    unsigned open; /* rows taken whose attempts are not over */
    int64_t open_bytes;
    int64_t sent_ms; /* the claim under way, or the last one */
};

static enum pacer_begin claim(void *ctx);
static void on_claimed(void *ctx, enum db_status st, const struct store_due *rows, size_t n,
                       const struct store_claimed *claimed);
static void on_room(void *ctx);

struct claims *claims_new(struct deliveryd *d)
{
    struct claims *c = xnew(struct claims);
    c->d = d;
    c->pacer = pacer_new(d->loop, d->tick_ms, claim, c);
    delivery_bounds_on_room(d->routes, on_room, c);
    return c;
}

void claims_stop(struct claims *c)
{
    pacer_stop(c->pacer);
}

bool claims_idle(const struct claims *c)
{
    return c->open == 0 && !pacer_claiming(c->pacer);
}

void claims_free(struct claims *c)
{
    if (!c)
        return;
    shine_assert(c->open == 0);
    pacer_free(c->pacer);
    free(c);
}

void claims_wake(struct claims *c)
{
    pacer_wake(c->pacer);
}

void claims_over(struct claims *c, size_t bytes)
{
    shine_assert(c->open > 0);
    c->open--;
    c->open_bytes -= (int64_t)bytes;
    pacer_room(c->pacer);
    deliveryd_part_idle(c->d);
}

/* A server whose rows were left out has room again. */
static void on_room(void *ctx)
{
    struct claims *c = ctx;
    pacer_wake(c->pacer);
}

/* How many rows may be taken now. */
static unsigned room(const struct claims *c)
{
    const struct deliveryd *d = c->d;
    unsigned waiting = delivery_bounds_waiting(d->routes) + delivery_bounds_waiting(d->asked);
    unsigned busy = c->open > waiting ? c->open - waiting : 0;
    unsigned calling = delivery_in_flight(d->delivery);
    if (calling > busy)
        busy = calling;
    return busy < d->max_in_flight ? d->max_in_flight - busy : 0;
}

static enum pacer_begin claim(void *ctx)
{
    struct claims *c = ctx;
    const struct deliveryd *d = c->d;
    const char *skip[SKIP_PEERS_MAX];
    unsigned rows = room(c);
    int64_t bytes = OPEN_BYTES_MAX - c->open_bytes, now = clock_mono_ms();
    bool small = rows < d->max_in_flight / LEAST_ROOM_PART || bytes < BATCH_BYTES;
    if (!deliveryd_ready(d))
        return PACER_NOT_READY;
    if (rows == 0 || bytes <= 0 || (small && now - c->sent_ms < SMALL_PAUSE_MS))
        return PACER_NO_ROOM;
    struct store_claim want = {
        .max_rows = rows < BATCH_ROWS ? rows : BATCH_ROWS,
        .max_bytes = bytes < BATCH_BYTES ? bytes : BATCH_BYTES,
        .lease_ms = d->lease_ms,
        .skip_peers = skip,
        .n_skip = delivery_bounds_list_full(d->routes, skip, SKIP_PEERS_MAX),
    };
    c->sent_ms = now;
    store_claim_due(d->store, &want, on_claimed, c);
    return PACER_BEGUN;
}

static void on_claimed(void *ctx, enum db_status st, const struct store_due *rows, size_t n,
                       const struct store_claimed *claimed)
{
    struct claims *c = ctx;
    if (n > 0)
        log_debug("rows_claimed", LOG_I("rows", n), LOG_I("open", c->open),
                  LOG_I("ms", clock_mono_ms() - c->sent_ms));
    for (size_t i = 0; i < n && st == DB_OK; i++) {
        c->open++;
        c->open_bytes += (int64_t)rows[i].blob_len;
        /* What is left of the lease was measured after the claim had been sent. */
        attempt_start(c->d, &rows[i], c->sent_ms + rows[i].lease_ms);
    }
    pacer_claimed(c->pacer, st, claimed);
    deliveryd_part_idle(c->d);
}
