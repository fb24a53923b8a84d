/*
 * The event log as sessions read it, and hints to other processes. See sessions.h.
 *
 * Raises: errors of the database are handed to the caller (environment).
 */
#include "store/internal.h"
#include "store/sessions.h"
#include "util/buf.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

/* Blobs of one owner in one answer; at least one event is given however large it is. */
enum { MAX_BYTES_PER_OWNER = 1024 * 1024 };
/* PostgreSQL refuses payloads of 8,000 bytes and more. */
enum { MAX_PAYLOAD = 7900 };

static const struct db_stmt EVENTS_SINCE = {
    "events_since",
    "SELECT * FROM events_since($1::text[], $2::bigint[], $3::integer, $4::bigint)"};
static const struct db_stmt NOTIFY_EVENTS = {"notify_events",
                                             "SELECT pg_notify('shine_events', $1::text)"};

/* Column numbers, looked up once per result. */
struct columns {
    int owner, pts, kind, more, message_key, base_key, gone, from, to, type, time, revision,
        reencrypted, state, blob, value;
};

static struct columns columns_of(const struct db_result *res)
{
    return (struct columns){
        .owner = db_col(res, "owner_login"),
        .pts = db_col(res, "pts"),
        .kind = db_col(res, "kind"),
        .more = db_col(res, "more"),
        .message_key = db_col(res, "message_key"),
        .base_key = db_col(res, "base_key"),
        .gone = db_col(res, "gone"),
        .from = db_col(res, "from_login"),
        .to = db_col(res, "to_login"),
        .type = db_col(res, "message_type"),
        .time = db_col(res, "time_ms"),
        .revision = db_col(res, "revision_time_ms"),
        .reencrypted = db_col(res, "reencrypted_at_ms"),
        .state = db_col(res, "delivery_state"),
        .blob = db_col(res, "blob"),
        .value = db_col(res, "value"),
    };
}

static enum store_event_kind kind_of(int64_t code)
{
    switch (code) {
    case 2:
        return STORE_EVENT_STATE;
    case 3:
        return STORE_EVENT_SETTING;
    case 4:
        return STORE_EVENT_HISTORY;
    default:
        return STORE_EVENT_MESSAGE;
    }
}

static struct store_event event_of(const struct db_result *res, int row, const struct columns *c)
{
    struct store_event e = {
        .owner = db_text(res, row, c->owner),
        .pts = db_int8(res, row, c->pts),
        .kind = kind_of(db_int8(res, row, c->kind)),
        .more = db_bool(res, row, c->more),
        .message_key = db_text(res, row, c->message_key),
        .base_key = db_text(res, row, c->base_key),
        .gone = db_bool(res, row, c->gone),
        .from = db_text(res, row, c->from),
        .to = db_text(res, row, c->to),
        .type = (int)db_int8(res, row, c->type),
        .time_ms = db_int8(res, row, c->time),
        .revision_time_ms = db_int8(res, row, c->revision),
        .reencrypted_at_ms = db_int8(res, row, c->reencrypted),
        .delivery_state = db_is_null(res, row, c->state) ? NULL : db_text(res, row, c->state),
    };
    e.value = db_is_null(res, row, c->value) ? NULL : db_text(res, row, c->value);
    e.blob = db_bytea(res, row, c->blob, &e.blob_len);
    return e;
}

static void on_events(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_events_cb cb = (store_events_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    size_t n = st == DB_OK ? (size_t)db_rows(res) : 0;
    struct store_event *rows = xcalloc(n, sizeof *rows);
    if (n > 0) {
        struct columns c = columns_of(res);
        for (size_t i = 0; i < n; i++)
            rows[i] = event_of(res, (int)i, &c);
    }
    cb(w->ctx, st, rows, n);
    free(rows);
    free(w);
}

void store_events_since(struct store *s, const char *const *owners, const int64_t *after, size_t n,
                        unsigned limit, store_events_cb cb, void *ctx)
{
    struct db_params *p = db_params_new();
    db_array_begin(p, DB_TEXT_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_text(p, owners[i]);
    db_array_begin(p, DB_INT8_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_int8(p, after[i]);
    db_add_int4(p, (int32_t)limit);
    db_add_int8(p, MAX_BYTES_PER_OWNER);
    store_call(s, &EVENTS_SINCE, p, on_events, (void (*)(void))cb, ctx);
}

void store_notify_events(struct store *s, const char *const *owners, size_t n)
{
    struct buf payload;
    buf_init(&payload, MAX_PAYLOAD);
    bool fits = true;
    for (size_t i = 0; i < n && fits; i++)
        fits = (i == 0 || buf_append(&payload, ",", 1)) &&
               buf_append(&payload, owners[i], strlen(owners[i]));
    char *text = xmemdup0(buf_head(&payload), fits ? buf_len(&payload) : 0);
    buf_free(&payload);
    struct db_params *p = db_params_new();
    db_add_text(p, text);
    free(text);
    store_forget(s, &NOTIFY_EVENTS, p);
}
