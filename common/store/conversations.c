/*
 * The list of a user's conversations. See conversations.h.
 *
 * Raises: errors of the database are handed to the caller (environment).
 */
#include "store/conversations.h"

#include "store/internal.h"
#include "util/mem.h"

#include <stdlib.h>

static const struct db_stmt LIST_CONVERSATIONS = {
    "list_conversations",
    "SELECT * FROM list_conversations($1::text, $2::integer, $3::bigint, $4::text, $5::bigint)"};

static struct store_conversation conversation_of(const struct db_result *res, int row)
{
    int read = db_col(res, "last_read_at_ms");
    return (struct store_conversation){
        .with = db_text(res, row, db_col(res, "with_login")),
        .last = store_history_item_of(res, row),
        .last_time_ms = db_int8(res, row, db_col(res, "last_time_ms")),
        .unread = db_int8(res, row, db_col(res, "unread_count")),
        .last_read_at_ms = db_is_null(res, row, read) ? -1 : db_int8(res, row, read),
    };
}

static void on_conversations(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_conversations_cb cb = (store_conversations_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    size_t n = st == DB_OK ? (size_t)db_rows(res) : 0;
    struct store_conversation *rows = xcalloc(n, sizeof *rows);
    for (size_t i = 0; i < n; i++)
        rows[i] = conversation_of(res, (int)i);
    bool more = n > 0 && db_bool(res, (int)n - 1, db_col(res, "more"));
    cb(w->ctx, st, rows, n, more);
    free(rows);
    free(w);
}

void store_list_conversations(struct store *s, const struct store_conversations_query *q,
                              store_conversations_cb cb, void *ctx)
{
    struct db_params *p = db_params_new();
    db_add_text(p, q->owner);
    db_add_int4(p, (int32_t)q->limit);
    db_add_int8(p, q->before_time_ms);
    db_add_text(p, q->before_with ? q->before_with : "");
    db_add_int8(p, q->max_blob_bytes);
    store_call(s, &LIST_CONVERSATIONS, p, on_conversations, (void (*)(void))cb, ctx);
}
