/*
 * Claims and what becomes of them. See claims.h.
 *
 * Raises: errors of the database are handed to the caller (environment).
 */
#include "store/claims.h"

#include "store/internal.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

static const struct db_stmt CLAIM_DUE = {
    "claim_due", "SELECT * FROM claim_due($1::text, $2::text, $3::integer, $4::bigint, $5::bigint, "
                 "$6::text[], $7::bigint[])"};
static const struct db_stmt CLAIM_PUSHES = {
    "claim_pushes", "SELECT * FROM claim_pushes($1::text, $2::text, $3::integer, $4::bigint, "
                    "$5::bigint, $6::text[])"};
static const struct db_stmt FINISH_PUSHES = {
    "finish_pushes", "SELECT * FROM finish_pushes($1::text, $2::text[], $3::text[], $4::text[], "
                     "$5::bigint[], $6::integer[], $7::bigint[])"};
static const struct db_stmt NOTIFY_DUE = {"notify_due", "SELECT pg_notify('shine_due', '')"};
static const struct db_stmt RELEASE = {"release_claims",
                                       "SELECT release_claims($1::text, $2::bigint)"};

/* Whoever waits for a claim, with the lease that was asked for: the database's clock begins it when
 * the statement runs. */
struct claim_wait {
    int64_t lease_ms;
    void (*cb)(void);
    void *ctx;
};

static struct db_params *claim_params(const struct store *s, const struct store_claim *c)
{
    struct db_params *p = db_params_new();
    db_add_text(p, s->server_login);
    db_add_text(p, s->process_id);
    db_add_int4(p, (int32_t)c->max_rows);
    db_add_int8(p, c->max_bytes);
    db_add_int8(p, c->lease_ms);
    db_array_begin(p, DB_TEXT_ARRAY, c->n_skip);
    for (size_t i = 0; i < c->n_skip; i++)
        db_item_text(p, c->skip_peers[i]);
    return p;
}

static struct claim_wait *claim_wait_new(const struct store_claim *c, void (*cb)(void), void *ctx)
{
    struct claim_wait *w = xnew(struct claim_wait);
    w->lease_ms = c->lease_ms;
    w->cb = cb;
    w->ctx = ctx;
    return w;
}

/* The last row tells about the rest. Returns how many rows are before it. */
static size_t claimed_of(const struct db_result *res, struct store_claimed *out)
{
    int last = db_rows(res) - 1;
    shine_assert(last >= 0);
    out->more = db_bool(res, last, db_col(res, "more"));
    out->next_due_ms = db_int8(res, last, db_col(res, "next_due"));
    return (size_t)last;
}

/* --- deliveries --- */

static struct store_due due_of(const struct db_result *res, int row, int64_t lease_ms)
{
    struct store_due d = {
        .from_login = db_text(res, row, db_col(res, "from_login")),
        .to_login = db_text(res, row, db_col(res, "to_login")),
        .outgoing_key = db_text(res, row, db_col(res, "outgoing_key")),
        .incoming_key = db_text(res, row, db_col(res, "incoming_key")),
        .revision_time_ms = db_int8(res, row, db_col(res, "revision_time_ms")),
        .reencrypted_at_ms = db_int8(res, row, db_col(res, "reencrypted_at_ms")),
        .row_version = db_int8(res, row, db_col(res, "row_version")),
        .attempt = (unsigned)db_int8(res, row, db_col(res, "attempt")),
        .accepted_ago_ms = db_int8(res, row, db_col(res, "accepted_ago")),
        .lease_ms = lease_ms,
        .claims = (unsigned)db_int8(res, row, db_col(res, "claims")),
        .type = (enum dm_type)db_int8(res, row, db_col(res, "message_type")),
        .served_here = db_bool(res, row, db_col(res, "served_here")),
    };
    int blob = db_col(res, "blob");
    if (!db_is_null(res, row, blob))
        d.blob = db_bytea(res, row, blob, &d.blob_len);
    d.n_routes = store_routes_of(res, row, d.routes);
    store_copy_text(d.second.login, sizeof d.second.login, res, row, db_col(res, "second"));
    store_copy_text(d.second.url, sizeof d.second.url, res, row, db_col(res, "second_url"));
    return d;
}

static void on_due(void *ctx, const struct db_result *res)
{
    struct claim_wait *w = ctx;
    store_due_cb cb = (store_due_cb)w->cb;
    enum db_status st = store_status(res, &CLAIM_DUE);
    struct store_claimed claimed = {.next_due_ms = -1};
    size_t n = st == DB_OK ? claimed_of(res, &claimed) : 0;
    struct store_due *rows = xcalloc(n, sizeof *rows);
    for (size_t i = 0; i < n; i++)
        rows[i] = due_of(res, (int)i, w->lease_ms);
    cb(w->ctx, st, rows, n, &claimed);
    free(rows);
    free(w);
}

void store_claim_due(struct store *s, const struct store_claim *c, store_due_cb cb, void *ctx)
{
    struct db_params *p = claim_params(s, c);
    store_add_schedule(s, p);
    db_call(s->pool, &CLAIM_DUE, p, on_due, claim_wait_new(c, (void (*)(void))cb, ctx));
}

void store_set_schedule(struct store *s, const int64_t *offsets_ms, size_t n)
{
    shine_assert(n > 0 && n <= STORE_ATTEMPTS_MAX);
    memcpy(s->schedule, offsets_ms, n * sizeof *offsets_ms);
    s->n_schedule = n;
}

void store_add_schedule(const struct store *s, struct db_params *p)
{
    if (s->n_schedule == 0) {
        db_add_text(p, NULL);
        return;
    }
    db_array_begin(p, DB_INT8_ARRAY, s->n_schedule);
    for (size_t i = 0; i < s->n_schedule; i++)
        db_item_int8(p, s->schedule[i]);
}

/* --- pushes --- */

static struct store_push push_of(const struct db_result *res, int row, int64_t lease_ms)
{
    static const char *const types[] = {"type1", "type2"}, *const blobs[] = {"blob1", "blob2"};
    struct store_push u = {
        .owner = db_text(res, row, db_col(res, "owner_login")),
        .primary_key = db_text(res, row, db_col(res, "primary_key")),
        .sync_id = db_text(res, row, db_col(res, "sync_id")),
        .row_version = db_int8(res, row, db_col(res, "row_version")),
        .tries = (unsigned)db_int8(res, row, db_col(res, "tries")),
        .lease_ms = lease_ms,
    };
    store_copy_text(u.second.login, sizeof u.second.login, res, row, db_col(res, "second"));
    store_copy_text(u.second.url, sizeof u.second.url, res, row, db_col(res, "second_url"));
    for (size_t i = 0; i < 2; i++) {
        int col = db_col(res, blobs[i]);
        if (db_is_null(res, row, col))
            continue;
        u.type[u.n_blobs] = (enum dm_type)db_int8(res, row, db_col(res, types[i]));
        u.blob[u.n_blobs] = db_bytea(res, row, col, &u.blob_len[u.n_blobs]);
        u.n_blobs++;
    }
    return u;
}

static void on_pushes(void *ctx, const struct db_result *res)
{
    struct claim_wait *w = ctx;
    store_push_cb cb = (store_push_cb)w->cb;
    enum db_status st = store_status(res, &CLAIM_PUSHES);
    struct store_claimed claimed = {.next_due_ms = -1};
    size_t n = st == DB_OK ? claimed_of(res, &claimed) : 0;
    struct store_push *rows = xcalloc(n, sizeof *rows);
    for (size_t i = 0; i < n; i++)
        rows[i] = push_of(res, (int)i, w->lease_ms);
    cb(w->ctx, st, rows, n, &claimed);
    free(rows);
    free(w);
}

void store_claim_pushes(struct store *s, const struct store_claim *c, store_push_cb cb, void *ctx)
{
    db_call(s->pool, &CLAIM_PUSHES, claim_params(s, c), on_pushes,
            claim_wait_new(c, (void (*)(void))cb, ctx));
}

static struct store_push_result *push_result_of(struct db_batch_item *item)
{
    return list_entry(item, struct store_push_result, item);
}

static int32_t outcome_code(enum store_push_outcome o)
{
    return o == STORE_PUSH_ACKED ? 1 : o == STORE_PUSH_FAILED ? 2 : 3;
}

static struct db_params *push_build(void *ctx, struct db_batch_item *const *items, size_t n)
{
    const struct store *s = ctx;
    struct db_params *p = db_params_new();
    db_add_text(p, s->process_id);
    db_array_begin(p, DB_TEXT_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_text(p, push_result_of(items[i])->owner);
    db_array_begin(p, DB_TEXT_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_text(p, push_result_of(items[i])->primary_key);
    db_array_begin(p, DB_TEXT_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_text(p, push_result_of(items[i])->sync_id);
    db_array_begin(p, DB_INT8_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_int8(p, push_result_of(items[i])->row_version);
    db_array_begin(p, DB_INT4_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_int4(p, outcome_code(push_result_of(items[i])->outcome));
    db_array_begin(p, DB_INT8_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_int8(p, push_result_of(items[i])->retry_after_ms);
    return p;
}

static void push_done(void *ctx, struct db_batch_item *item, const struct db_result *res, int row)
{
    (void)ctx;
    struct store_push_result *r = push_result_of(item);
    enum db_status st = store_status(res, &FINISH_PUSHES);
    if (st == DB_OK)
        r->recorded = db_bool(res, row, db_col(res, "recorded"));
    r->done(r, st);
}

const struct db_batch_kind store_push_kind = {&FINISH_PUSHES, push_build, push_done, NULL};

void store_finish_push(struct store *s, struct store_push_result *r)
{
    db_batch_submit(s->pushes, &r->item);
}

/* --- both --- */

void store_notify_due(struct store *s)
{
    store_forget(s, &NOTIFY_DUE, NULL);
}

static void on_released(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_done_cb cb = (store_done_cb)w->cb;
    cb(w->ctx, store_status(res, w->stmt));
    free(w);
}

void store_release_claims(struct store *s, int64_t lease_ms, store_done_cb cb, void *ctx)
{
    struct db_params *p = db_params_new();
    db_add_text(p, s->process_id);
    db_add_int8(p, lease_ms);
    store_call(s, &RELEASE, p, on_released, (void (*)(void))cb, ctx);
}
