/*
 * The store object, and what its files share.
 *
 * Raises: errors of the database are logged and handed to the caller (environment).
 */
#include "store/internal.h"
#include "util/log.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One statement of a kind at a time. A second would mostly wait for the heads that the first holds,
 * and while it waits nothing can join it; measured, two are slower than one that takes them all. */
enum { STATEMENTS_IN_FLIGHT = 1 };
/* Pages of replication hold the head of one owner: short, so that his own messages go between. */
enum { PULLED_AT_ONCE = 50 };

struct store *store_new(struct db_pool *pool, const struct store_identity *id, unsigned max_batch)
{
    struct store *s = xnew(struct store);
    s->pool = pool;
    s->server_login = xstrdup(id->server_login);
    s->process_id = xstrdup(id->process_id);
    s->pairs = db_batcher_new(pool, &store_pair_kind, s, max_batch, STATEMENTS_IN_FLIGHT);
    s->incoming = db_batcher_new(pool, &store_incoming_kind, s, max_batch, STATEMENTS_IN_FLIGHT);
    s->tombstones = db_batcher_new(pool, &store_tombstone_kind, s, max_batch, STATEMENTS_IN_FLIGHT);
    unsigned pulled = max_batch < PULLED_AT_ONCE ? max_batch : PULLED_AT_ONCE;
    s->pulled_pairs =
        db_batcher_new(pool, &store_pulled_pair_kind, s, pulled, STATEMENTS_IN_FLIGHT);
    s->pulled_incoming =
        db_batcher_new(pool, &store_pulled_incoming_kind, s, pulled, STATEMENTS_IN_FLIGHT);
    s->pulled_tombstones =
        db_batcher_new(pool, &store_pulled_tombstone_kind, s, pulled, STATEMENTS_IN_FLIGHT);
    s->finishes = db_batcher_new(pool, &store_finish_kind, s, max_batch, STATEMENTS_IN_FLIGHT);
    s->pushes = db_batcher_new(pool, &store_push_kind, s, max_batch, STATEMENTS_IN_FLIGHT);
    return s;
}

void store_free(struct store *s)
{
    if (!s)
        return;
    db_batcher_free(s->pairs);
    db_batcher_free(s->incoming);
    db_batcher_free(s->tombstones);
    db_batcher_free(s->pulled_pairs);
    db_batcher_free(s->pulled_incoming);
    db_batcher_free(s->pulled_tombstones);
    db_batcher_free(s->finishes);
    db_batcher_free(s->pushes);
    free(s->server_login);
    free(s->process_id);
    free(s);
}

void store_call(struct store *s, const struct db_stmt *stmt, struct db_params *params,
                db_cb handler, void (*cb)(void), void *ctx)
{
    struct store_wait *w = xnew(struct store_wait);
    w->stmt = stmt;
    w->cb = cb;
    w->ctx = ctx;
    db_call(s->pool, stmt, params, handler, w);
}

static void on_forgotten(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    (void)store_status(res, w->stmt);
    free(w);
}

void store_forget(struct store *s, const struct db_stmt *stmt, struct db_params *params)
{
    store_call(s, stmt, params, on_forgotten, NULL, NULL);
}

/* Errors that say nothing about the request: the same may succeed a moment later. */
static bool is_passing(const char *sqlstate)
{
    static const char *const states[] = {
        "40001", /* serialisation failure, */
        "40P01", /* deadlock: the batch has tried its items again singly before */
        "55P03", /* a lock was not to be had in time */
        "57014", /* statement_timeout, or cancelled by an operator */
    };
    if (strncmp(sqlstate, "53", 2) == 0) /* disk full, out of memory, too many connections */
        return true;
    for (size_t i = 0; i < sizeof states / sizeof *states; i++)
        if (strcmp(sqlstate, states[i]) == 0)
            return true;
    return false;
}

enum db_status store_status(const struct db_result *res, const struct db_stmt *stmt)
{
    enum db_status st = db_status(res);
    if (st == DB_ERROR && is_passing(db_sqlstate(res))) {
        log_warn("db_passing_error", LOG_S("call", stmt->name), LOG_S("sqlstate", db_sqlstate(res)),
                 LOG_S("message", db_message(res)));
        return DB_UNAVAILABLE;
    }
    if (st == DB_ERROR)
        log_error("db_error", LOG_S("call", stmt->name), LOG_S("sqlstate", db_sqlstate(res)),
                  LOG_S("message", db_message(res)));
    return st;
}

void store_copy_text(char *out, size_t size, const struct db_result *res, int row, int col)
{
    (void)snprintf(out, size, "%s", db_text(res, row, col));
}

void store_add_routes(struct db_params *p, const struct store_route *servers, unsigned n)
{
    db_array_begin(p, DB_TEXT_ARRAY, n);
    for (unsigned i = 0; i < n; i++)
        db_item_text(p, servers[i].login);
    db_array_begin(p, DB_TEXT_ARRAY, n);
    for (unsigned i = 0; i < n; i++)
        db_item_text(p, servers[i].url);
}
