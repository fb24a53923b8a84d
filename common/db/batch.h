/*
 * Group commit in the application. Items submitted while a round trip is under way wait, and go
 * together in the next statement: one statement, one transaction, one commit, and each item gets
 * its own verdict.
 *
 * An idle batcher sends at the end of the loop's turn: a lone item waits for nothing, and what one
 * poll has brought goes together. Sending within the submission was rejected: an idle batcher would
 * send the first item of a turn alone, and the rest of them would wait for it.
 *
 * If a batch fails as a whole (any SQL error: deadlock, serialisation, a value we did not foresee),
 * its items are sent again one by one, so that one bad item never fails its neighbours. If the
 * connection is lost, every item of the batch ends with DB_UNAVAILABLE.
 *
 * Neither does one item whose row is locked by somebody keep the others. A kind may have a second
 * statement that leaves such items out instead of waiting. After a batch has run into lock_timeout
 * it comes again in that form, and so do all others for a few seconds; an item that is left out
 * several times ends with DB_UNAVAILABLE.
 */
#ifndef SHINE_DB_BATCH_H
#define SHINE_DB_BATCH_H

#include "db/db.h"
#include "util/list.h"

struct db_batcher;

/* Embedded in each item; the item stays the submitter's until `done` was called for it. */
struct db_batch_item {
    struct list link;
    unsigned left_out; /* so many times; the batcher's own */
};

struct db_batch_kind {
    const struct db_stmt *stmt;
    /* Build the parameters for `n` items. The statement must return exactly one row per item, whose
     * column `ord` (integer, from 1) names the item. */
    struct db_params *(*build)(void *ctx, struct db_batch_item *const *items, size_t n);
    /* The verdict for one item: its row of the result; on DB_UNAVAILABLE or DB_ERROR `row` is -1.
     * The item may be freed. */
    void (*done)(void *ctx, struct db_batch_item *item, const struct db_result *res, int row);
    /* The same parameters and result as `stmt`, but it waits for no lock that somebody may hold for
     * long: it gives no row for the items concerned, and has done nothing for them. May be NULL. */
    const struct db_stmt *stmt_skipping;
};

/* `max_items` in one statement, at most `max_in_flight` statements under way; a second one is only
 * begun when a full batch waits. While the oldest hangs (waits for a lock, or its server process is
 * frozen) there may be one more. */
struct db_batcher *db_batcher_new(struct db_pool *pool, const struct db_batch_kind *kind, void *ctx,
                                  size_t max_items, unsigned max_in_flight);
/* Items still waiting or in flight are a bug: close the pool first. */
void db_batcher_free(struct db_batcher *b);
/* Queue one item. `done` is never called from inside. */
void db_batch_submit(struct db_batcher *b, struct db_batch_item *item);
/* Items waiting, not in flight: for back-pressure. */
size_t db_batch_waiting(const struct db_batcher *b);

#endif
