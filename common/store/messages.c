/*
 * Accepting pairs and incoming copies, many in one statement. See messages.h.
 *
 * Raises: errors of the database are handed to the caller (environment); a verdict this program
 * does not know is our own bug.
 */
#include "store/messages.h"

#include "store/internal.h"
#include "util/mem.h"

static const struct db_stmt ACCEPT_PAIRS = {
    "accept_pairs",
    "SELECT * FROM accept_pairs($1::text, $2::text, $3::text[], $4::text[], $5::text[], "
    "$6::integer[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bytea[], "
    "$12::bytea[], $13::boolean[], $14::text[], $15::bigint[], $16::text[], $17::bigint[], "
    "$18::bigint[], $19::bigint[])"};
static const struct db_stmt ACCEPT_PAIRS_SKIPPING = {
    "accept_pairs_skipping",
    "SELECT r.* FROM " STORE_SKIP_FROM ", accept_pairs(" STORE_SKIP_ARG1 ", "
    "$2::text, $3::text[], $4::text[], $5::text[], $6::integer[], $7::bigint[], $8::bigint[], "
    "$9::bigint[], $10::bigint[], $11::bytea[], $12::bytea[], $13::boolean[], $14::text[], "
    "$15::bigint[], $16::text[], $17::bigint[], $18::bigint[], $19::bigint[]) r"};
static const struct db_stmt APPLY_INCOMING = {
    "apply_incoming",
    "SELECT * FROM apply_incoming($1::text, $2::text, $3::text[], $4::text[], $5::text[], "
    "$6::integer[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bytea[], "
    "$12::bytea[], $13::text[], $14::bigint[], $15::bigint[], $16::bigint[])"};
static const struct db_stmt APPLY_INCOMING_SKIPPING = {
    "apply_incoming_skipping",
    "SELECT r.* FROM " STORE_SKIP_FROM ", apply_incoming(" STORE_SKIP_ARG1 ", "
    "$2::text, $3::text[], $4::text[], $5::text[], $6::integer[], $7::bigint[], $8::bigint[], "
    "$9::bigint[], $10::bigint[], $11::bytea[], $12::bytea[], $13::text[], $14::bigint[], "
    "$15::bigint[], $16::bigint[]) r"};

static const struct db_stmt PULL_PAIRS = {
    "pull_pairs",
    "SELECT * FROM accept_pairs($1::text, $2::text, $3::text[], $4::text[], $5::text[], "
    "$6::integer[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bytea[], "
    "$12::bytea[], $13::boolean[], $14::text[], $15::bigint[], $16::text[], $17::bigint[], "
    "$18::bigint[], $19::bigint[], true, $20::boolean[])"};
static const struct db_stmt PULL_INCOMING = {
    "pull_incoming",
    "SELECT * FROM apply_incoming($1::text, $2::text, $3::text[], $4::text[], $5::text[], "
    "$6::integer[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bytea[], "
    "$12::bytea[], $13::text[], $14::bigint[], $15::bigint[], $16::bigint[], true)"};

/* --- pairs --- */

static struct store_pair *pair_of(struct db_batch_item *item)
{
    return list_entry(item, struct store_pair, item);
}

static const struct store_copy *pair_copy(struct db_batch_item *item, size_t which)
{
    const struct store_pair *p = pair_of(item);
    return which == 0 ? &p->in : &p->out;
}

static struct db_params *pairs_build(void *ctx, struct db_batch_item *const *items, size_t n)
{
    const struct store *s = ctx;
    struct db_params *p = db_params_new();
    db_add_text(p, s->server_login);
    db_add_text(p, s->process_id);
    store_add_messages(p, items, n, pair_copy);
    store_add_copies(p, items, n, 2, pair_copy);
    db_array_begin(p, DB_BOOL_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_bool(p, pair_of(items[i])->from_server);
    db_array_begin(p, DB_TEXT_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_text(p, pair_of(items[i])->source);
    db_array_begin(p, DB_INT8_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_int8(p, pair_of(items[i])->max_future_ms);
    db_array_begin(p, DB_TEXT_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_text(p, pair_of(items[i])->session_id);
    store_add_receipts(p, items, n, 2, pair_copy);
    return p;
}

static struct db_params *pulled_pairs_build(void *ctx, struct db_batch_item *const *items, size_t n)
{
    struct db_params *p = pairs_build(ctx, items, n);
    db_array_begin(p, DB_BOOL_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_bool(p, pair_of(items[i])->proof);
    return p;
}

static void pair_done(void *ctx, struct db_batch_item *item, const struct db_result *res, int row)
{
    (void)ctx;
    struct store_pair *p = pair_of(item);
    enum db_status st = store_status(res, &ACCEPT_PAIRS);
    if (st == DB_OK) {
        p->verdict = store_verdict_of(res, row);
        p->state = store_state_of(res, row, db_col(res, "state"));
        p->from = store_told_of(res, row, "from_pts", "from_elsewhere");
        p->to = store_told_of(res, row, "to_pts", "to_elsewhere");
        p->ws_sessions = db_int8(res, row, db_col(res, "ws_sessions"));
        p->push_sessions = 0;
        p->attempt = db_bool(res, row, db_col(res, "attempt"));
        p->row_version = db_int8(res, row, db_col(res, "row_version"));
        p->lease_ms = db_int8(res, row, db_col(res, "lease_ms"));
        p->n_routes = store_routes_of(res, row, p->routes);
    }
    p->done(p, st);
}

const struct db_batch_kind store_pair_kind = {&ACCEPT_PAIRS, pairs_build, pair_done,
                                              &ACCEPT_PAIRS_SKIPPING};

void store_accept_pair(struct store *s, struct store_pair *p)
{
    db_batch_submit(s->pairs, &p->item);
}

/* Nobody else holds the heads for long: no form that leaves items out is needed. */
const struct db_batch_kind store_pulled_pair_kind = {&PULL_PAIRS, pulled_pairs_build, pair_done,
                                                     NULL};

void store_pull_pair(struct store *s, struct store_pair *p)
{
    db_batch_submit(s->pulled_pairs, &p->item);
}

/* --- incoming copies --- */

static struct store_incoming *incoming_of(struct db_batch_item *item)
{
    return list_entry(item, struct store_incoming, item);
}

static const struct store_copy *incoming_copy(struct db_batch_item *item, size_t which)
{
    (void)which;
    return &incoming_of(item)->in;
}

static struct db_params *incoming_build(void *ctx, struct db_batch_item *const *items, size_t n)
{
    const struct store *s = ctx;
    struct db_params *p = db_params_new();
    db_add_text(p, s->server_login);
    db_add_text(p, s->process_id);
    store_add_messages(p, items, n, incoming_copy);
    store_add_copies(p, items, n, 1, incoming_copy);
    db_array_begin(p, DB_TEXT_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_text(p, incoming_of(items[i])->source);
    store_add_receipts(p, items, n, 1, incoming_copy);
    return p;
}

static void incoming_done(void *ctx, struct db_batch_item *item, const struct db_result *res,
                          int row)
{
    (void)ctx;
    struct store_incoming *p = incoming_of(item);
    enum db_status st = store_status(res, &APPLY_INCOMING);
    if (st == DB_OK) {
        p->verdict = store_verdict_of(res, row);
        p->to = store_told_of(res, row, "to_pts", "to_elsewhere");
        p->from = store_told_of(res, row, "from_pts", "from_elsewhere");
        p->ws_sessions = db_int8(res, row, db_col(res, "ws_sessions"));
        p->push_sessions = 0;
    }
    p->done(p, st);
}

const struct db_batch_kind store_incoming_kind = {&APPLY_INCOMING, incoming_build, incoming_done,
                                                  &APPLY_INCOMING_SKIPPING};

void store_apply_incoming(struct store *s, struct store_incoming *p)
{
    db_batch_submit(s->incoming, &p->item);
}

const struct db_batch_kind store_pulled_incoming_kind = {&PULL_INCOMING, incoming_build,
                                                         incoming_done, NULL};

void store_pull_incoming(struct store *s, struct store_incoming *p)
{
    db_batch_submit(s->pulled_incoming, &p->item);
}
