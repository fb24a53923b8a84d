/*
 * A user's own sessions. See devices.h.
 *
 * Raises: errors of the database are handed to the caller (environment).
 */
#include "store/devices.h"

#include "store/internal.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

static const struct db_stmt LIST_SESSIONS = {
    "list_sessions", "SELECT * FROM list_sessions($1::text, $2::text, $3::bigint, $4::text, "
                     "$5::bigint, $6::bigint)"};
static const struct db_stmt CLOSE_SESSION = {
    "close_session", "SELECT close_session($1::text, $2::text, $3::bigint, $4::text) AS verdict"};
static const struct db_stmt OUTDATED_SESSIONS = {
    "outdated_sessions", "SELECT * FROM outdated_sessions($1::text[], $2::bigint[])"};

static struct db_params *asking_params(const struct store_asking *who)
{
    struct db_params *p = db_params_new();
    db_add_text(p, who->login);
    db_add_text(p, who->session_id);
    db_add_int8(p, who->generation);
    return p;
}

/* --- the list --- */

static struct store_device device_of(const struct db_result *res, int row)
{
    int info = db_col(res, "client_info");
    bool pts = strcmp(db_text(res, row, db_col(res, "event_mode")), "pts") == 0;
    return (struct store_device){
        .session_id = db_text(res, row, db_col(res, "session_id")),
        .client_info = db_is_null(res, row, info) ? NULL : db_text(res, row, info),
        .mode = pts ? STORE_EVENTS_PTS : STORE_EVENTS_LIVE,
        .created_at_ms = db_int8(res, row, db_col(res, "created_at_ms")),
        .seen_at_ms = db_int8(res, row, db_col(res, "seen_at_ms")),
        .acked_pts = db_int8(res, row, db_col(res, "acked_pts")),
        .connected = db_bool(res, row, db_col(res, "connected")),
    };
}

static void on_list(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_devices_cb cb = (store_devices_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    bool valid = st == DB_OK && db_bool(res, 0, db_col(res, "valid"));
    size_t n = st == DB_OK ? (size_t)db_rows(res) : 0;
    if (n > 0 && db_is_null(res, 0, db_col(res, "session_id")))
        n = 0; /* the row only says whether the question was allowed */
    struct store_device *rows = xcalloc(n, sizeof *rows);
    for (size_t i = 0; i < n; i++)
        rows[i] = device_of(res, (int)i);
    bool more = n > 0 && db_bool(res, (int)n - 1, db_col(res, "more"));
    cb(w->ctx, st, valid, rows, n, more);
    free(rows);
    free(w);
}

void store_list_sessions(struct store *s, const struct store_asking *who, const char *after,
                         size_t item_bytes, size_t max_bytes, store_devices_cb cb, void *ctx)
{
    struct db_params *p = asking_params(who);
    db_add_text(p, after);
    db_add_int8(p, (int64_t)item_bytes);
    db_add_int8(p, (int64_t)max_bytes);
    store_call(s, &LIST_SESSIONS, p, on_list, (void (*)(void))cb, ctx);
}

/* --- closing --- */

static void on_closed(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    enum db_status st = store_status(res, w->stmt);
    enum store_close verdict = STORE_CLOSE_NOT_VALID;
    if (st == DB_OK) {
        switch (db_int8(res, 0, db_col(res, "verdict"))) {
        case 0:
            verdict = STORE_CLOSE_OK;
            break;
        case 1:
            verdict = STORE_CLOSE_NOT_FOUND;
            break;
        case 2:
            verdict = STORE_CLOSE_OF_ANOTHER;
            break;
        default:
            break;
        }
    }
    ((store_close_cb)w->cb)(w->ctx, st, verdict);
    free(w);
}

void store_close_session(struct store *s, const struct store_asking *who, const char *session_id,
                         store_close_cb cb, void *ctx)
{
    struct db_params *p = asking_params(who);
    db_add_text(p, session_id);
    store_call(s, &CLOSE_SESSION, p, on_closed, (void (*)(void))cb, ctx);
}

/* --- outdated ones --- */

static void on_outdated(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_outdated_cb cb = (store_outdated_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    size_t n = st == DB_OK ? (size_t)db_rows(res) : 0;
    struct store_outdated *rows = xcalloc(n, sizeof *rows);
    for (size_t i = 0; i < n; i++)
        rows[i] = (struct store_outdated){
            .session_id = db_text(res, (int)i, db_col(res, "session_id")),
            .asked = db_int8(res, (int)i, db_col(res, "asked")),
            .stored = db_int8(res, (int)i, db_col(res, "stored")),
        };
    cb(w->ctx, st, rows, n);
    free(rows);
    free(w);
}

void store_outdated_sessions(struct store *s, const char *const *session_ids,
                             const int64_t *generations, size_t n, store_outdated_cb cb, void *ctx)
{
    struct db_params *p = db_params_new();
    db_array_begin(p, DB_TEXT_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_text(p, session_ids[i]);
    db_array_begin(p, DB_INT8_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_int8(p, generations[i]);
    store_call(s, &OUTDATED_SESSIONS, p, on_outdated, (void (*)(void))cb, ctx);
}
