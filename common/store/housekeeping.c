/*
 * Pieces of housekeeping. See housekeeping.h.
 *
 * Marking for new second servers comes first: a pull waits for it. Then the event logs, some users
 * at a time, and after the last of them the notes.
 *
 * Raises: errors of the database are handed to the caller (environment).
 */
#include "store/housekeeping.h"

#include "store/internal.h"
#include "util/mem.h"

#include <stdlib.h>

enum { OWNERS_AT_ONCE = 200 };

static const struct db_stmt MARK = {"mark_outbox",
                                    "SELECT mark_outbox($1::text, $2::integer) AS did"};
static const struct db_stmt TRIM = {"trim_events",
                                    "SELECT * FROM trim_events($1::text, $2::integer, $3::bigint, "
                                    "$4::bigint, $5::integer)"};
static const struct db_stmt REJECTS = {"forget_rejects",
                                       "SELECT forget_rejects($1::bigint, $2::integer) AS did"};

struct piece {
    struct store *s;
    struct store_retention retention;
    unsigned max_rows;
    store_housekeep_cb cb;
    void *ctx;
};

static void on_marked(void *ctx, const struct db_result *res);
static void on_trimmed(void *ctx, const struct db_result *res);
static void on_forgotten(void *ctx, const struct db_result *res);

static void piece_end(struct piece *p, enum db_status st, const char *what, int64_t did, bool more)
{
    p->cb(p->ctx, st, what, did, more);
    free(p);
}

void store_housekeep(struct store *s, const struct store_retention *r, unsigned max_rows,
                     store_housekeep_cb cb, void *ctx)
{
    struct piece *p = xnew(struct piece);
    *p = (struct piece){s, *r, max_rows, cb, ctx};
    struct db_params *params = db_params_new();
    db_add_text(params, s->server_login);
    db_add_int4(params, (int32_t)max_rows);
    db_call(s->pool, &MARK, params, on_marked, p);
}

static void on_marked(void *ctx, const struct db_result *res)
{
    struct piece *p = ctx;
    enum db_status st = store_status(res, &MARK);
    if (st != DB_OK || !db_is_null(res, 0, db_col(res, "did"))) {
        piece_end(p, st, "mark_outbox", st == DB_OK ? db_int8(res, 0, db_col(res, "did")) : 0,
                  st == DB_OK);
        return;
    }
    struct db_params *params = db_params_new();
    db_add_text(params, p->s->trim_after);
    db_add_int4(params, OWNERS_AT_ONCE);
    db_add_int8(params, p->retention.events_ms);
    db_add_int8(params, p->retention.events_per_user);
    db_add_int4(params, (int32_t)p->max_rows);
    db_call(p->s->pool, &TRIM, params, on_trimmed, p);
}

static void on_trimmed(void *ctx, const struct db_result *res)
{
    struct piece *p = ctx;
    enum db_status st = store_status(res, &TRIM);
    if (st != DB_OK) {
        piece_end(p, st, "trim_events", 0, false);
        return;
    }
    int64_t did = db_int8(res, 0, db_col(res, "did"));
    bool more = !db_is_null(res, 0, db_col(res, "last"));
    store_copy_text(p->s->trim_after, sizeof p->s->trim_after, res, 0, db_col(res, "last"));
    if (more || did > 0) {
        piece_end(p, st, "trim_events", did, more);
        return;
    }
    struct db_params *params = db_params_new();
    db_add_int8(params, p->retention.rejects_ms);
    db_add_int4(params, (int32_t)p->max_rows);
    db_call(p->s->pool, &REJECTS, params, on_forgotten, p);
}

static void on_forgotten(void *ctx, const struct db_result *res)
{
    struct piece *p = ctx;
    enum db_status st = store_status(res, &REJECTS);
    int64_t did = st == DB_OK ? db_int8(res, 0, db_col(res, "did")) : 0;
    piece_end(p, st, "forget_rejects", did, did >= (int64_t)p->max_rows);
}
