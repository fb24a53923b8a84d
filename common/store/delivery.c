/*
 * Results of delivery attempts, many in one statement, and delivery rows as others ask for them.
 * See delivery.h.
 *
 * Raises: errors of the database are handed to the caller (environment).
 */
#include "store/delivery.h"

#include "store/internal.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

static const struct db_stmt FINISH_ATTEMPTS = {
    "finish_attempts",
    "SELECT * FROM finish_attempts($1::text, $2::text, $3::text[], $4::text[], $5::bigint[], "
    "$6::bigint[], $7::bigint[], $8::integer[], $9::text[], $10::text[], $11::bigint[], "
    "$12::bigint[])"};
static const struct db_stmt FINISH_ATTEMPTS_SKIPPING = {
    "finish_attempts_skipping",
    "SELECT r.* FROM " STORE_SKIP_FROM ", finish_attempts(" STORE_SKIP_ARG1 ", "
    "$2::text, $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[], "
    "$8::integer[], $9::text[], $10::text[], $11::bigint[], $12::bigint[]) r"};
static const struct db_stmt DELIVERY_STATUS = {
    "get_delivery_status", "SELECT * FROM get_delivery_status($1::text[], $2::text[])"};
static const struct db_stmt SHOW_DELIVERY = {"show_delivery",
                                             "SELECT * FROM show_delivery($1::text, $2::text)"};

static const struct db_stmt RELEASE_DELIVERY = {
    "release_delivery", "SELECT release_delivery($1::text, $2::text) AS released"};

static struct store_finish *finish_of(struct db_batch_item *item)
{
    return list_entry(item, struct store_finish, item);
}

static int32_t outcome_code(enum store_outcome o)
{
    return o == STORE_ATTEMPT_DELIVERED ? 1 : o == STORE_ATTEMPT_FAILED ? 2 : 3;
}

static struct db_params *finish_build(void *ctx, struct db_batch_item *const *items, size_t n)
{
    const struct store *s = ctx;
    struct db_params *p = db_params_new();
    db_add_text(p, s->server_login);
    db_add_text(p, s->process_id);
    db_array_begin(p, DB_TEXT_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_text(p, finish_of(items[i])->from_login);
    db_array_begin(p, DB_TEXT_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_text(p, finish_of(items[i])->outgoing_key);
    db_array_begin(p, DB_INT8_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_int8(p, finish_of(items[i])->revision_time_ms);
    db_array_begin(p, DB_INT8_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_int8(p, finish_of(items[i])->reencrypted_at_ms);
    db_array_begin(p, DB_INT8_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_int8(p, finish_of(items[i])->row_version);
    db_array_begin(p, DB_INT4_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_int4(p, outcome_code(finish_of(items[i])->outcome));
    db_array_begin(p, DB_TEXT_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_text(p, finish_of(items[i])->via);
    db_array_begin(p, DB_TEXT_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_text(p, finish_of(items[i])->error);
    db_array_begin(p, DB_INT8_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_int8(p, finish_of(items[i])->retry_after_ms);
    store_add_schedule(s, p);
    return p;
}

static void finish_done(void *ctx, struct db_batch_item *item, const struct db_result *res, int row)
{
    (void)ctx;
    struct store_finish *f = finish_of(item);
    enum db_status st = store_status(res, &FINISH_ATTEMPTS);
    if (st == DB_OK) {
        f->recorded = db_bool(res, row, db_col(res, "recorded"));
        f->state = store_state_of(res, row, db_col(res, "state"));
        f->from.pts = db_int8(res, row, db_col(res, "from_pts"));
        f->from.elsewhere = db_bool(res, row, db_col(res, "from_elsewhere"));
    }
    f->done(f, st);
}

const struct db_batch_kind store_finish_kind = {&FINISH_ATTEMPTS, finish_build, finish_done,
                                                &FINISH_ATTEMPTS_SKIPPING};

void store_finish_attempt(struct store *s, struct store_finish *f)
{
    db_batch_submit(s->finishes, &f->item);
}

static void on_status(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_delivery_status_cb cb = (store_delivery_status_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    struct store_delivery_status row = {0};
    if (st == DB_OK && db_rows(res) > 0) {
        row.known = true;
        row.delivered = store_state_of(res, 0, db_col(res, "state")) == DM_STATE_DELIVERED;
        row.revision_time_ms = db_int8(res, 0, db_col(res, "revision_time_ms"));
        row.reencrypted_at_ms = db_int8(res, 0, db_col(res, "reencrypted_at_ms"));
    }
    cb(w->ctx, st, &row);
    free(w);
}

void store_delivery_status(struct store *s, const struct dm_key *key, store_delivery_status_cb cb,
                           void *ctx)
{
    char text[DM_MESSAGE_KEY_MAX];
    dm_delivery_key(key, text);
    struct db_params *p = db_params_new();
    db_array_begin(p, DB_TEXT_ARRAY, 1);
    db_item_text(p, key->from);
    db_array_begin(p, DB_TEXT_ARRAY, 1);
    db_item_text(p, text);
    store_call(s, &DELIVERY_STATUS, p, on_status, (void (*)(void))cb, ctx);
}

static void on_shown(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_text_cb cb = (store_text_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    size_t n = st == DB_OK ? (size_t)db_rows(res) : 0;
    const char **names = xcalloc(n, sizeof *names);
    const char **values = xcalloc(n, sizeof *values);
    for (size_t i = 0; i < n; i++) {
        int value = db_col(res, "value");
        names[i] = db_text(res, (int)i, db_col(res, "name"));
        values[i] = db_is_null(res, (int)i, value) ? NULL : db_text(res, (int)i, value);
    }
    struct store_text_row row = {.n = n, .names = names, .values = values};
    cb(w->ctx, st, &row);
    free((void *)names);
    free((void *)values);
    free(w);
}

void store_delivery_show(struct store *s, const struct dm_key *key, store_text_cb cb, void *ctx)
{
    char text[DM_MESSAGE_KEY_MAX];
    dm_delivery_key(key, text);
    struct db_params *p = db_params_new();
    db_add_text(p, key->from);
    db_add_text(p, text);
    store_call(s, &SHOW_DELIVERY, p, on_shown, (void (*)(void))cb, ctx);
}

static void on_released(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_release_cb cb = (store_release_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    enum store_release verdict = STORE_RELEASE_NO_ROW;
    if (st == DB_OK && !db_is_null(res, 0, db_col(res, "released")))
        verdict =
            db_bool(res, 0, db_col(res, "released")) ? STORE_RELEASED : STORE_RELEASE_NOT_SET_ASIDE;
    cb(w->ctx, st, verdict);
    free(w);
}

void store_delivery_release(struct store *s, const struct dm_key *key, store_release_cb cb,
                            void *ctx)
{
    char text[DM_MESSAGE_KEY_MAX];
    dm_delivery_key(key, text);
    struct db_params *p = db_params_new();
    db_add_text(p, key->from);
    db_add_text(p, text);
    store_call(s, &RELEASE_DELIVERY, p, on_released, (void (*)(void))cb, ctx);
}
