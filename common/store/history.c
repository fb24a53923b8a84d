/*
 * Pages of a conversation. See messages.h.
 *
 * Raises: errors of the database are handed to the caller (environment).
 */
#include "store/internal.h"
#include "store/messages.h"
#include "util/mem.h"

#include <stdlib.h>

static const struct db_stmt GET_HISTORY = {
    "get_history", "SELECT * FROM get_history($1::text, $2::text, $3::integer, $4::bigint, "
                   "$5::text, $6::bigint)"};

struct store_history_item store_history_item_of(const struct db_result *res, int row)
{
    int read = db_col(res, "read_at_ms");
    int state = db_col(res, "delivery_state");
    struct store_history_item it = {
        .message_key = db_text(res, row, db_col(res, "message_key")),
        .base_key = db_text(res, row, db_col(res, "base_key")),
        .from = db_text(res, row, db_col(res, "from_login")),
        .to = db_text(res, row, db_col(res, "to_login")),
        .type = (int)db_int8(res, row, db_col(res, "message_type")),
        .time_ms = db_int8(res, row, db_col(res, "time_ms")),
        .nonce = db_int8(res, row, db_col(res, "nonce")),
        .revision_time_ms = db_int8(res, row, db_col(res, "revision_time_ms")),
        .reencrypted_at_ms = db_int8(res, row, db_col(res, "reencrypted_at_ms")),
        .created_at_ms = db_int8(res, row, db_col(res, "created_at_ms")),
        .read_at_ms = db_is_null(res, row, read) ? -1 : db_int8(res, row, read),
        .delivery_state = db_is_null(res, row, state) ? NULL : db_text(res, row, state),
    };
    it.blob = db_bytea(res, row, db_col(res, "blob"), &it.blob_len);
    return it;
}

static void on_history(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_history_cb cb = (store_history_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    size_t n = st == DB_OK ? (size_t)db_rows(res) : 0;
    struct store_history_item *rows = xcalloc(n, sizeof *rows);
    for (size_t i = 0; i < n; i++)
        rows[i] = store_history_item_of(res, (int)i);
    bool more = n > 0 && db_bool(res, (int)n - 1, db_col(res, "more"));
    cb(w->ctx, st, rows, n, more);
    free(rows);
    free(w);
}

void store_history(struct store *s, const struct store_history_query *q, store_history_cb cb,
                   void *ctx)
{
    struct db_params *p = db_params_new();
    db_add_text(p, q->owner);
    db_add_text(p, q->with);
    db_add_int4(p, (int32_t)q->limit);
    db_add_int8(p, q->before_time_ms);
    db_add_text(p, q->before_key ? q->before_key : "");
    db_add_int8(p, q->max_blob_bytes);
    store_call(s, &GET_HISTORY, p, on_history, (void (*)(void))cb, ctx);
}
