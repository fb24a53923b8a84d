/*
 * The serving half of replication. See sync.h.
 *
 * Raises: errors of the database are handed to the caller (environment); a verdict this program
 * does not know is our own bug.
 */
#include "store/sync.h"

#include "store/internal.h"
#include "util/mem.h"

#include <stdlib.h>

static const struct db_stmt SYNC_PAGE = {
    "sync_page", "SELECT * FROM sync_page($1::text, $2::text, $3::boolean, $4::text, $5::bigint, "
                 "$6::text, $7::integer, $8::bigint, $9::text[])"};
static const struct db_stmt SYNC_SETTINGS_PAGE = {
    "sync_settings_page",
    "SELECT * FROM sync_settings_page($1::text, $2::text, $3::boolean, $4::text, $5::bigint, "
    "$6::text, $7::integer, $8::bigint, $9::text[])"};
static const struct db_stmt MARK_UNSYNCED = {
    "mark_unsynced", "SELECT 1::bigint AS users, settings, dms, NULL::text AS last "
                     "FROM mark_unsynced($1::text, $2::text)"};
static const struct db_stmt MARK_ALL_UNSYNCED = {
    "mark_all_unsynced",
    "SELECT users, settings, dms, last FROM mark_all_unsynced($1::text, $2::text, $3::integer)"};
static const struct db_stmt DELIVERY_STATUSES = {
    "get_delivery_statuses", "SELECT * FROM get_delivery_status($1::text[], $2::text[])"};

/* --- pages --- */

static struct db_params *pull_params(const struct store *s, const struct store_pull *p)
{
    struct db_params *q = db_params_new();
    db_add_text(q, s->server_login);
    db_add_text(q, p->caller);
    db_add_bool(q, p->trust_anonymous);
    db_add_text(q, p->owner);
    db_add_int8(q, p->after_stored_ms);
    db_add_text(q, p->after_key);
    db_add_int4(q, (int32_t)p->limit);
    db_add_int8(q, p->max_bytes);
    db_array_begin(q, DB_TEXT_ARRAY, p->n_acks);
    for (size_t i = 0; i < p->n_acks; i++)
        db_item_text(q, p->acks[i]);
    return q;
}

static enum store_pull_verdict pull_verdict_of(const struct db_result *res)
{
    int64_t v = db_int8(res, 0, db_col(res, "verdict"));
    shine_assert(v >= STORE_PULL_OK && v <= STORE_PULL_NOT_ALLOWED);
    return (enum store_pull_verdict)v;
}

/* Rows that hold an item: none, or all. */
static size_t item_count(const struct db_result *res)
{
    return db_is_null(res, 0, db_col(res, "sync_id")) ? 0 : (size_t)db_rows(res);
}

static void item_of(const struct db_result *res, int row, struct store_sync_item *it)
{
    int in = db_col(res, "blob1"), own = db_col(res, "blob2");
    it->sync_id = db_text(res, row, db_col(res, "sync_id"));
    it->primary_key = db_text(res, row, db_col(res, "primary_message_key"));
    it->stored_at_ms = db_int8(res, row, db_col(res, "stored_at_ms"));
    if (!db_is_null(res, row, in)) {
        it->blob[0] = db_bytea(res, row, in, &it->blob_len[0]);
        it->n_blobs = 1;
    }
    it->blob[it->n_blobs] = db_bytea(res, row, own, &it->blob_len[it->n_blobs]);
    it->n_blobs++;
}

static void on_page(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_sync_cb cb = (store_sync_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    enum store_pull_verdict verdict = STORE_PULL_OK;
    bool more = false;
    size_t found = 0, n = 0;
    if (st == DB_OK) {
        verdict = pull_verdict_of(res);
        found = item_count(res);
        more = db_bool(res, db_rows(res) - 1, db_col(res, "more"));
    }
    struct store_sync_item *rows = xcalloc(found, sizeof *rows);
    for (size_t i = 0; i < found; i++)
        item_of(res, (int)i, &rows[n++]);
    cb(w->ctx, st, verdict, rows, n, more);
    free(rows);
    free(w);
}

void store_sync_page(struct store *s, const struct store_pull *p, store_sync_cb cb, void *ctx)
{
    store_call(s, &SYNC_PAGE, pull_params(s, p), on_page, (void (*)(void))cb, ctx);
}

static void on_settings_page(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_sync_settings_cb cb = (store_sync_settings_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    enum store_pull_verdict verdict = STORE_PULL_OK;
    bool more = false;
    size_t n = 0;
    if (st == DB_OK) {
        verdict = pull_verdict_of(res);
        n = item_count(res);
        more = db_bool(res, db_rows(res) - 1, db_col(res, "more"));
    }
    struct store_sync_setting *rows = xcalloc(n, sizeof *rows);
    for (size_t i = 0; i < n; i++) {
        rows[i].sync_id = db_text(res, (int)i, db_col(res, "sync_id"));
        rows[i].stored_at_ms = db_int8(res, (int)i, db_col(res, "stored_at_ms"));
        store_setting_of(res, (int)i, &rows[i].setting);
    }
    cb(w->ctx, st, verdict, rows, n, more);
    free(rows);
    free(w);
}

void store_sync_settings_page(struct store *s, const struct store_pull *p,
                              store_sync_settings_cb cb, void *ctx)
{
    store_call(s, &SYNC_SETTINGS_PAGE, pull_params(s, p), on_settings_page, (void (*)(void))cb,
               ctx);
}

/* --- everything again --- */

static void on_marked(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_marked_cb cb = (store_marked_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    struct store_marked m = {0};
    if (st == DB_OK) {
        int last = db_col(res, "last");
        m.users = db_int8(res, 0, db_col(res, "users"));
        m.settings = db_int8(res, 0, db_col(res, "settings"));
        m.dms = db_int8(res, 0, db_col(res, "dms"));
        m.last = db_is_null(res, 0, last) ? NULL : db_text(res, 0, last);
    }
    cb(w->ctx, st, &m);
    free(w);
}

void store_mark_unsynced(struct store *s, const char *login, store_marked_cb cb, void *ctx)
{
    struct db_params *p = db_params_new();
    db_add_text(p, s->server_login);
    db_add_text(p, login);
    store_call(s, &MARK_UNSYNCED, p, on_marked, (void (*)(void))cb, ctx);
}

void store_mark_all_unsynced(struct store *s, const char *after, unsigned limit, store_marked_cb cb,
                             void *ctx)
{
    struct db_params *p = db_params_new();
    db_add_text(p, s->server_login);
    db_add_text(p, after);
    db_add_int4(p, (int32_t)limit);
    store_call(s, &MARK_ALL_UNSYNCED, p, on_marked, (void (*)(void))cb, ctx);
}

/* --- delivery rows, many at once --- */

struct statuses_wait {
    store_delivery_statuses_cb cb;
    void *ctx;
    size_t n;
};

static void on_statuses(void *ctx, const struct db_result *res)
{
    struct statuses_wait *w = ctx;
    enum db_status st = store_status(res, &DELIVERY_STATUSES);
    struct store_delivery_status *rows = xcalloc(w->n, sizeof *rows);
    for (int r = 0; st == DB_OK && r < db_rows(res); r++) {
        int64_t ord = db_int8(res, r, db_col(res, "ord"));
        shine_assert(ord >= 1 && (size_t)ord <= w->n);
        rows[ord - 1] = (struct store_delivery_status){
            .known = true,
            .delivered = store_state_of(res, r, db_col(res, "state")) == DM_STATE_DELIVERED,
            .revision_time_ms = db_int8(res, r, db_col(res, "revision_time_ms")),
            .reencrypted_at_ms = db_int8(res, r, db_col(res, "reencrypted_at_ms"))};
    }
    w->cb(w->ctx, st, rows, w->n);
    free(rows);
    free(w);
}

void store_delivery_statuses(struct store *s, const struct dm_key *keys, size_t n,
                             store_delivery_statuses_cb cb, void *ctx)
{
    struct db_params *p = db_params_new();
    db_array_begin(p, DB_TEXT_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_text(p, keys[i].from);
    db_array_begin(p, DB_TEXT_ARRAY, n);
    for (size_t i = 0; i < n; i++) {
        char text[DM_MESSAGE_KEY_MAX];
        dm_delivery_key(&keys[i], text);
        db_item_text(p, text);
    }
    struct statuses_wait *w = xnew(struct statuses_wait);
    *w = (struct statuses_wait){.cb = cb, .ctx = ctx, .n = n};
    db_call(s->pool, &DELIVERY_STATUSES, p, on_statuses, w);
}
