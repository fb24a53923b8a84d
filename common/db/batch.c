/*
 * Group commit.
 *
 *   submit ──▶ waiting ──pump──▶ in a group, in flight
 *
 *   in flight ──DB_OK───────────────────▶ done(row)
 *     ├─DB_UNAVAILABLE──────────────────▶ done(-1)
 *     ├─DB_ERROR, one item──────────────▶ done(-1)
 *     ├─DB_ERROR, several items─────────▶ single groups on `retry` ──pump──▶ in flight
 *     ├─lock_timeout────────────────────▶ the group on `retry`, skipping from now on
 *     └─skipping, no row for an item────▶ left out ──tick──▶ waiting, or done(-1) in the end
 *
 * Groups on `retry` go before waiting items: they are older. A single item that lost a deadlock is
 * tried again a few times.
 *
 * Skipping is a mode of the whole batcher, for as long as it meets locks that stay: otherwise every
 * batch that touches the locked row would find out for itself, and all its items wait meanwhile. In
 * this mode one statement is under way at a time, or our own would skip each other's rows.
 *
 * Raises: environment (the verdict says so); a statement that does not give one row per item is our
 * bug, but the transaction has been committed and the neighbours have their rows, so it is logged
 * as an error and the item gets DB_ERROR.
 */
#include "db/batch.h"

#include "db/internal.h"
#include "util/log.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_TRIES = 4,      /* of one item, against deadlock and serialisation errors */
    MAX_LEFT_OUT = 5,   /* times, a tick apart; a lock that is merely contended is free by then */
    SKIPPING_MS = 3000, /* after the last lock that stayed */
    HANGING_MS = 250,   /* a statement that takes longer does not keep the next one */
};

struct group {
    struct list link; /* on `retry` or `flying` */
    struct db_batcher *batcher;
    bool skipping;
    uint64_t sent_ms;
    unsigned tries;
    size_t count;
    struct db_batch_item *items[];
};

struct db_batcher {
    struct db_pool *pool;
    const struct db_batch_kind *kind;
    void *ctx;
    size_t max_items;
    unsigned max_in_flight;
    struct list waiting;
    size_t waiting_count;
    struct list retry;
    struct list flying;   /* the oldest first */
    struct list left_out; /* items that go back to `waiting` at the next tick */
    size_t left_out_count;
    struct db_later tick;
    unsigned in_flight;
    uint64_t skipping_until; /* loop time */
    struct db_later later;   /* the pump: once a turn, for all that was submitted in it */
};

static void pump(struct db_later *work);
static void take_back(struct db_later *work);

struct db_batcher *db_batcher_new(struct db_pool *pool, const struct db_batch_kind *kind, void *ctx,
                                  size_t max_items, unsigned max_in_flight)
{
    shine_assert(max_items > 0 && max_in_flight > 0);
    struct db_batcher *b = xnew(struct db_batcher);
    b->pool = pool;
    b->kind = kind;
    b->ctx = ctx;
    b->max_items = max_items;
    b->max_in_flight = max_in_flight;
    list_init(&b->waiting);
    list_init(&b->retry);
    list_init(&b->flying);
    list_init(&b->left_out);
    list_init(&b->tick.link);
    b->tick.run = take_back;
    list_init(&b->later.link);
    b->later.run = pump;
    return b;
}

void db_batcher_free(struct db_batcher *b)
{
    if (!b)
        return;
    shine_assert(b->in_flight == 0 && list_empty(&b->waiting) && list_empty(&b->retry));
    shine_assert(list_empty(&b->later.link) && list_empty(&b->tick.link));
    free(b);
}

size_t db_batch_waiting(const struct db_batcher *b)
{
    return b->waiting_count + b->left_out_count;
}

static void pump_later(struct db_batcher *b)
{
    if (b->waiting_count > 0 || !list_empty(&b->retry))
        db_pool_later(b->pool, &b->later);
}

static struct group *group_new(struct db_batcher *b, size_t capacity)
{
    struct group *g = xcalloc(1, sizeof(*g) + capacity * sizeof(struct db_batch_item *));
    list_init(&g->link);
    g->batcher = b;
    return g;
}

static uint64_t now_ms(const struct db_batcher *b)
{
    return uv_now(db_pool_loop(b->pool));
}

static bool is_skipping(const struct db_batcher *b)
{
    return b->kind->stmt_skipping && now_ms(b) < b->skipping_until;
}

/* --- verdicts --- */

static bool may_try_again(const struct group *g, const struct db_result *res)
{
    const char *s = db_sqlstate(res);
    return g->tries < MAX_TRIES && (strcmp(s, "40001") == 0 || strcmp(s, "40P01") == 0);
}

/* The first group to run into a lock tells all that follow. */
static bool begins_to_skip(struct db_batcher *b, const struct group *g, const struct db_result *res)
{
    if (!b->kind->stmt_skipping || g->skipping || strcmp(db_sqlstate(res), "55P03") != 0)
        return false;
    b->skipping_until = now_ms(b) + SKIPPING_MS;
    return true;
}

/* A skipping statement gave no row for this item. */
static void leave_out(struct db_batcher *b, struct db_batch_item *item)
{
    static const struct db_result locked = {.status = DB_UNAVAILABLE,
                                            .message = "locked by somebody else"};
    if (++item->left_out < MAX_LEFT_OUT) {
        list_push(&b->left_out, &item->link);
        b->left_out_count++;
        if (list_empty(&b->tick.link))
            db_pool_at_tick(b->pool, &b->tick);
        return;
    }
    b->skipping_until = now_ms(b) + SKIPPING_MS;
    b->kind->done(b->ctx, item, &locked, -1);
}

static void take_back(struct db_later *work)
{
    struct db_batcher *b = list_entry(work, struct db_batcher, tick);
    list_splice(&b->waiting, &b->left_out);
    b->waiting_count += b->left_out_count;
    b->left_out_count = 0;
    pump_later(b);
}

static void queue_singly(struct db_batcher *b, struct group *g)
{
    for (size_t i = 0; i < g->count; i++) {
        struct group *one = group_new(b, 1);
        one->items[0] = g->items[i];
        one->count = 1;
        list_push(&b->retry, &one->link);
    }
}

static void judge_all(struct db_batcher *b, struct group *g, const struct db_result *res)
{
    for (size_t i = 0; i < g->count; i++)
        b->kind->done(b->ctx, g->items[i], res, -1);
}

static void judge_rows(struct db_batcher *b, struct group *g, const struct db_result *res)
{
    int *row_of = xmalloc(g->count * sizeof(*row_of));
    for (size_t i = 0; i < g->count; i++)
        row_of[i] = -1;
    size_t strange = 0, missing = 0;
    int rows = db_rows(res);
    int ord_col = db_col(res, "ord");
    for (int row = 0; row < rows; row++) {
        int64_t ord = db_int8(res, row, ord_col);
        if (ord < 1 || (uint64_t)ord > g->count || row_of[ord - 1] >= 0)
            strange++;
        else
            row_of[ord - 1] = row;
    }
    const struct db_result no_row = {.status = DB_ERROR,
                                     .message = "the statement gave no row for this item"};
    for (size_t i = 0; i < g->count; i++) {
        bool found = row_of[i] >= 0;
        if (!found && g->skipping) {
            leave_out(b, g->items[i]);
            continue;
        }
        missing += !found;
        b->kind->done(b->ctx, g->items[i], found ? res : &no_row, row_of[i]);
    }
    if (strange + missing > 0)
        log_error("db_batch_rows_wrong", LOG_S("stmt", b->kind->stmt->name),
                  LOG_I("items", g->count), LOG_I("rows", rows), LOG_I("missing", missing),
                  LOG_I("strange", strange));
    free(row_of);
}

static void on_result(void *ctx, const struct db_result *res)
{
    struct group *g = ctx;
    struct db_batcher *b = g->batcher;
    list_remove(&g->link);
    bool skip = db_status(res) == DB_ERROR && begins_to_skip(b, g, res);
    if (skip || (db_status(res) == DB_ERROR && (g->count > 1 || may_try_again(g, res)))) {
        log_info("db_batch_retry", LOG_S("stmt", b->kind->stmt->name),
                 LOG_S("sqlstate", db_sqlstate(res)), LOG_I("items", g->count));
        if (g->count > 1 && !skip) {
            queue_singly(b, g);
        } else {
            list_push(&b->retry, &g->link);
            g = NULL;
        }
    } else {
        if (db_status(res) == DB_OK)
            judge_rows(b, g, res);
        else
            judge_all(b, g, res);
    }
    b->in_flight--; /* only now: `done` must not free the batcher */
    free(g);
    pump_later(b);
}

/* --- sending --- */

static bool may_send(const struct db_batcher *b)
{
    if (b->in_flight == 0)
        return true;
    const struct group *oldest = list_entry(b->flying.next, struct group, link);
    if (now_ms(b) - oldest->sent_ms > HANGING_MS)
        return b->in_flight <= b->max_in_flight;
    return b->in_flight < b->max_in_flight && !is_skipping(b) &&
           (!list_empty(&b->retry) || b->waiting_count >= b->max_items);
}

static struct group *next_group(struct db_batcher *b)
{
    if (!may_send(b))
        return NULL;
    struct list *l = list_pop(&b->retry);
    if (l)
        return list_entry(l, struct group, link);
    if (b->waiting_count == 0)
        return NULL;
    size_t n = b->waiting_count < b->max_items ? b->waiting_count : b->max_items;
    struct group *g = group_new(b, n);
    for (; g->count < n; g->count++)
        g->items[g->count] = list_entry(list_pop(&b->waiting), struct db_batch_item, link);
    b->waiting_count -= n;
    return g;
}

static void pump(struct db_later *work)
{
    struct db_batcher *b = list_entry(work, struct db_batcher, later);
    struct group *g;
    while ((g = next_group(b))) {
        g->tries++;
        g->skipping = is_skipping(b);
        g->sent_ms = now_ms(b);
        b->in_flight++;
        list_push(&b->flying, &g->link);
        struct db_params *params = b->kind->build(b->ctx, g->items, g->count);
        db_call(b->pool, g->skipping ? b->kind->stmt_skipping : b->kind->stmt, params, on_result,
                g);
    }
}

void db_batch_submit(struct db_batcher *b, struct db_batch_item *item)
{
    list_init(&item->link);
    item->left_out = 0;
    list_push(&b->waiting, &item->link);
    b->waiting_count++;
    pump_later(b);
}
