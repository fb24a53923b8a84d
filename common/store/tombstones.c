/*
 * Applying tombstones, many in one statement. See tombstones.h.
 *
 * Raises: errors of the database are handed to the caller (environment).
 */
#include "store/tombstones.h"

#include "store/internal.h"
#include "util/mem.h"

static const struct db_stmt APPLY_TOMBSTONES = {
    "apply_tombstones",
    "SELECT * FROM apply_tombstones($1::text, $2::text, $3::text[], $4::text[], $5::text[], "
    "$6::integer[], $7::bigint[], $8::bigint[], $9::bytea[], $10::bytea[], $11::boolean[], "
    "$12::bigint[], $13::bigint[], $14::bigint[], $15::boolean[], $16::text[], $17::bigint[], "
    "$18::text[])"};
static const struct db_stmt APPLY_TOMBSTONES_SKIPPING = {
    "apply_tombstones_skipping",
    "SELECT r.* FROM " STORE_SKIP_FROM ", apply_tombstones(" STORE_SKIP_ARG1 ", "
    "$2::text, $3::text[], $4::text[], $5::text[], $6::integer[], $7::bigint[], $8::bigint[], "
    "$9::bytea[], $10::bytea[], $11::boolean[], $12::bigint[], $13::bigint[], $14::bigint[], "
    "$15::boolean[], $16::text[], $17::bigint[], $18::text[]) r"};

static const struct db_stmt PULL_TOMBSTONES = {
    "pull_tombstones",
    "SELECT * FROM apply_tombstones($1::text, $2::text, $3::text[], $4::text[], $5::text[], "
    "$6::integer[], $7::bigint[], $8::bigint[], $9::bytea[], $10::bytea[], $11::boolean[], "
    "$12::bigint[], $13::bigint[], $14::bigint[], $15::boolean[], $16::text[], $17::bigint[], "
    "$18::text[], true, $19::boolean[])"};

static struct store_tombstone *tombstone_of(struct db_batch_item *item)
{
    return list_entry(item, struct store_tombstone, item);
}

static const struct store_copy *tombstone_copy(struct db_batch_item *item, size_t which)
{
    (void)which;
    return &tombstone_of(item)->copy;
}

static bool is_of_message(const struct dm_container *c)
{
    return c->type == DM_DELETE_BOTH || c->type == DM_DELETE_OWN;
}

/* The text that types 5 and 6 name; zeros for 7 and 8. */
static struct dm_delete message_of(struct db_batch_item *item)
{
    const struct dm_container *c = &tombstone_copy(item, 0)->c;
    return is_of_message(c) ? dm_delete_of(c) : (struct dm_delete){0};
}

static int64_t until_of(struct db_batch_item *item)
{
    const struct dm_container *c = &tombstone_copy(item, 0)->c;
    return is_of_message(c) ? 0 : dm_clear_of(c).until_time_ms;
}

static void add_bodies(struct db_params *p, struct db_batch_item *const *items, size_t n)
{
    db_array_begin(p, DB_BOOL_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_bool(p, message_of(items[i]).by_to);
    db_array_begin(p, DB_INT8_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_int8(p, message_of(items[i]).ref_time_ms);
    db_array_begin(p, DB_INT8_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_int8(p, message_of(items[i]).ref_nonce);
    db_array_begin(p, DB_INT8_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_int8(p, until_of(items[i]));
}

static struct db_params *tombstones_build(void *ctx, struct db_batch_item *const *items, size_t n)
{
    const struct store *s = ctx;
    struct db_params *p = db_params_new();
    db_add_text(p, s->server_login);
    db_add_text(p, s->process_id);
    store_add_messages(p, items, n, tombstone_copy);
    store_add_bytes(p, items, n, 1, tombstone_copy);
    add_bodies(p, items, n);
    db_array_begin(p, DB_BOOL_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_bool(p, tombstone_of(items[i])->from_server);
    db_array_begin(p, DB_TEXT_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_text(p, tombstone_of(items[i])->source);
    db_array_begin(p, DB_INT8_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_int8(p, tombstone_of(items[i])->max_future_ms);
    db_array_begin(p, DB_TEXT_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_text(p, tombstone_of(items[i])->session_id);
    return p;
}

static struct db_params *pulled_tombstones_build(void *ctx, struct db_batch_item *const *items,
                                                 size_t n)
{
    struct db_params *p = tombstones_build(ctx, items, n);
    db_array_begin(p, DB_BOOL_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_bool(p, tombstone_of(items[i])->proof);
    return p;
}

static void tombstone_done(void *ctx, struct db_batch_item *item, const struct db_result *res,
                           int row)
{
    (void)ctx;
    struct store_tombstone *t = tombstone_of(item);
    enum db_status st = store_status(res, &APPLY_TOMBSTONES);
    if (st == DB_OK) {
        t->verdict = store_verdict_of(res, row);
        t->state = store_state_of(res, row, db_col(res, "state"));
        t->from = store_told_of(res, row, "from_pts", "from_elsewhere");
        t->to = store_told_of(res, row, "to_pts", "to_elsewhere");
        t->ws_sessions = db_int8(res, row, db_col(res, "ws_sessions"));
        t->push_sessions = 0;
        t->attempt = db_bool(res, row, db_col(res, "attempt"));
        t->row_version = db_int8(res, row, db_col(res, "row_version"));
        t->lease_ms = db_int8(res, row, db_col(res, "lease_ms"));
        t->n_routes = store_routes_of(res, row, t->routes);
    }
    t->done(t, st);
}

const struct db_batch_kind store_tombstone_kind = {&APPLY_TOMBSTONES, tombstones_build,
                                                   tombstone_done, &APPLY_TOMBSTONES_SKIPPING};

void store_apply_tombstone(struct store *s, struct store_tombstone *p)
{
    db_batch_submit(s->tombstones, &p->item);
}

const struct db_batch_kind store_pulled_tombstone_kind = {&PULL_TOMBSTONES, pulled_tombstones_build,
                                                          tombstone_done, NULL};

void store_pull_tombstone(struct store *s, struct store_tombstone *p)
{
    db_batch_submit(s->pulled_tombstones, &p->item);
}
