/*
 * Settings of users. See settings.h.
 *
 * Raises: errors of the database are handed to the caller (environment).
 */
#include "store/settings.h"

#include "store/internal.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

static const struct db_stmt PUT_SETTINGS = {
    "put_settings",
    "SELECT * FROM put_settings($1::text, $2::text, $3::text[], $4::text[], $5::text[], "
    "$6::bigint[], $7::bytea[], $8::text[], $9::bigint[], $10::integer) ORDER BY ord"};
static const struct db_stmt GET_SETTINGS = {
    "get_settings",
    "SELECT * FROM get_settings($1::text, $2::text[], $3::text, $4::integer, $5::bigint)"};

/* As in put_settings(). */
static enum store_setting_verdict verdict_of(int64_t code)
{
    switch (code) {
    case 0:
        return STORE_SETTING_OK;
    case 1:
        return STORE_SETTING_NOT_SERVED;
    case 3:
        return STORE_SETTING_TIME_AHEAD;
    default:
        shine_assert(code == 4);
        return STORE_SETTING_TOO_MANY;
    }
}

static void on_put(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_settings_put_cb cb = (store_settings_put_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    size_t n = st == DB_OK ? (size_t)db_rows(res) : 0;
    struct store_setting_result *rows = xcalloc(n, sizeof *rows);
    for (size_t i = 0; i < n; i++) {
        rows[i].verdict = verdict_of(db_int8(res, (int)i, db_col(res, "verdict")));
        rows[i].told = store_told_of(res, (int)i, "pts", "elsewhere");
    }
    cb(w->ctx, st, rows, n);
    free(rows);
    free(w);
}

void store_put_settings(struct store *s, const struct store_new_settings *p,
                        store_settings_put_cb cb, void *ctx)
{
    struct db_params *q = db_params_new();
    db_add_text(q, s->server_login);
    db_add_text(q, s->process_id);
    db_array_begin(q, DB_TEXT_ARRAY, p->n);
    for (size_t i = 0; i < p->n; i++)
        db_item_text(q, p->login);
    db_array_begin(q, DB_TEXT_ARRAY, p->n);
    for (size_t i = 0; i < p->n; i++)
        db_item_text(q, p->items[i].name);
    db_array_begin(q, DB_TEXT_ARRAY, p->n);
    for (size_t i = 0; i < p->n; i++)
        db_item_text(q, p->items[i].value);
    db_array_begin(q, DB_INT8_ARRAY, p->n);
    for (size_t i = 0; i < p->n; i++)
        db_item_int8(q, p->items[i].time_ms);
    db_array_begin(q, DB_BYTEA_ARRAY, p->n);
    for (size_t i = 0; i < p->n; i++)
        db_item_bytea(q, p->items[i].sig, DM_SIG_BYTES);
    db_array_begin(q, DB_TEXT_ARRAY, p->n);
    for (size_t i = 0; i < p->n; i++)
        db_item_text(q, p->source);
    db_array_begin(q, DB_INT8_ARRAY, p->n);
    for (size_t i = 0; i < p->n; i++)
        db_item_int8(q, p->max_future_ms);
    db_add_int4(q, (int32_t)p->max_count);
    store_call(s, &PUT_SETTINGS, q, on_put, (void (*)(void))cb, ctx);
}

void store_setting_of(const struct db_result *res, int row, struct store_setting *out)
{
    size_t n;
    *out = (struct store_setting){.name = db_text(res, row, db_col(res, "name")),
                                  .value = db_text(res, row, db_col(res, "value")),
                                  .time_ms = db_int8(res, row, db_col(res, "time_ms"))};
    const uint8_t *sig = db_bytea(res, row, db_col(res, "signature"), &n);
    /* One of another length was put there by hand: readers will find that it does not fit. */
    memcpy(out->sig, sig, n < DM_SIG_BYTES ? n : DM_SIG_BYTES);
}

static void on_settings(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_settings_cb cb = (store_settings_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    size_t n = st == DB_OK ? (size_t)db_rows(res) : 0;
    struct store_setting *rows = xcalloc(n, sizeof *rows);
    for (size_t i = 0; i < n; i++)
        store_setting_of(res, (int)i, &rows[i]);
    cb(w->ctx, st, rows, n, n > 0 && db_bool(res, (int)n - 1, db_col(res, "more")));
    free(rows);
    free(w);
}

void store_get_settings(struct store *s, const struct store_settings_query *q, store_settings_cb cb,
                        void *ctx)
{
    struct db_params *p = db_params_new();
    db_add_text(p, q->login);
    if (q->names) {
        db_array_begin(p, DB_TEXT_ARRAY, q->n_names);
        for (size_t i = 0; i < q->n_names; i++)
            db_item_text(p, q->names[i]);
    } else {
        db_add_text(p, NULL);
    }
    db_add_text(p, q->after);
    db_add_int4(p, (int32_t)q->limit);
    db_add_int8(p, q->max_bytes);
    store_call(s, &GET_SETTINGS, p, on_settings, (void (*)(void))cb, ctx);
}
