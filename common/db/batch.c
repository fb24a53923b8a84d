/*
 * Group commit.
 *
 *   submit ──▶ waiting ──pump──▶ in a group, in flight ──DB_OK──────────▶ done(row)
 *                                       │   ├─DB_UNAVAILABLE──────────▶ done(-1)
 *                                       │   └─DB_ERROR, one item──────▶ done(-1)
 *                                       └─DB_ERROR, several items──▶ single groups on `retry`
 * ──pump──▶ in flight
 *
 * Groups on `retry` go before waiting items: they are older. A single item that lost a deadlock is
 * tried again a few times.
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

enum { MAX_TRIES = 4 }; /* of one item, against deadlock and serialisation errors */

struct group {
    struct list link; /* on `retry`, or alone while in flight */
    struct db_batcher *batcher;
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
    unsigned in_flight;
    struct db_later later; /* the pump: once a turn, for all that was submitted in it */
};

static void pump(struct db_later *work);

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
    list_init(&b->later.link);
    b->later.run = pump;
    return b;
}

void db_batcher_free(struct db_batcher *b)
{
    if (!b)
        return;
    shine_assert(b->in_flight == 0 && list_empty(&b->waiting) && list_empty(&b->retry));
    shine_assert(list_empty(&b->later.link));
    free(b);
}

size_t db_batch_waiting(const struct db_batcher *b)
{
    return b->waiting_count;
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

/* --- verdicts --- */

static bool may_try_again(const struct group *g, const struct db_result *res)
{
    const char *s = db_sqlstate(res);
    return g->tries < MAX_TRIES && (strcmp(s, "40001") == 0 || strcmp(s, "40P01") == 0);
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
        missing += row_of[i] < 0;
        b->kind->done(b->ctx, g->items[i], row_of[i] < 0 ? &no_row : res, row_of[i]);
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
    if (db_status(res) == DB_ERROR && (g->count > 1 || may_try_again(g, res))) {
        log_info("db_batch_retry", LOG_S("stmt", b->kind->stmt->name),
                 LOG_S("sqlstate", db_sqlstate(res)), LOG_I("items", g->count));
        if (g->count > 1) {
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

static struct group *next_group(struct db_batcher *b)
{
    struct list *l = list_pop(&b->retry);
    if (l)
        return list_entry(l, struct group, link);
    if (b->waiting_count == 0 || (b->in_flight > 0 && b->waiting_count < b->max_items))
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
    while (b->in_flight < b->max_in_flight && (g = next_group(b))) {
        g->tries++;
        b->in_flight++;
        struct db_params *params = b->kind->build(b->ctx, g->items, g->count);
        db_call(b->pool, b->kind->stmt, params, on_result, g);
    }
}

void db_batch_submit(struct db_batcher *b, struct db_batch_item *item)
{
    list_init(&item->link);
    list_push(&b->waiting, &item->link);
    b->waiting_count++;
    pump_later(b);
}
