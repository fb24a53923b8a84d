/*
 * Other servers, as the connection pool of a process sees them. See peers.h.
 *
 * Raises: errors of the database are handed to the caller (environment).
 */
#include "store/peers.h"

#include <stddef.h>
#include <stdlib.h>

#include "store/internal.h"
#include "util/mem.h"

static const struct db_stmt PARTNERS = {"partner_servers", "SELECT * FROM partner_servers()"};

static const struct db_stmt UNNAMED = {"unnamed_peers",
                                       "SELECT unnamed_peers($1::text[], $2::text[]) AS place"};
static const struct db_stmt KNOWN = {"known_peers",
                                     "SELECT * FROM known_peers($1::text, $2::bigint)"};
static const struct db_stmt WRITE = {
    "write_peer_connections", "SELECT write_peer_connections("
                              "$1::text, $2::text[], $3::text[], $4::text[], $5::text[], "
                              "$6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], "
                              "$10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], "
                              "$14::bigint[], $15::bigint[], $16::bigint[], $17::bigint[], "
                              "$18::bigint[], $19::bigint[], $20::text[], $21::text[]) AS written"};

static const struct db_stmt BLOCK = {"block_server",
                                     "SELECT block_server($1::text, $2::boolean) AS changed"};
static const struct db_stmt LIST = {"list_peers", "SELECT * FROM list_peers()"};

static void on_partners(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_partners_cb cb = (store_partners_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    size_t n = st == DB_OK ? (size_t)db_rows(res) : 0;
    struct store_partner *rows = xcalloc(n, sizeof *rows);
    for (size_t i = 0; i < n; i++) {
        int r = (int)i;
        rows[i].login = db_text(res, r, db_col(res, "server_login"));
        rows[i].url = db_text(res, r, db_col(res, "url"));
        rows[i].public_keys = db_text(res, r, db_col(res, "public_keys"));
        rows[i].blocked = db_bool(res, r, db_col(res, "blocked"));
    }
    cb(w->ctx, st, rows, n);
    free(rows);
    free(w);
}

void store_read_partners(struct store *s, store_partners_cb cb, void *ctx)
{
    store_call(s, &PARTNERS, db_params_new(), on_partners, (void (*)(void))cb, ctx);
}

static void on_unnamed(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_unnamed_cb cb = (store_unnamed_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    size_t n = st == DB_OK ? (size_t)db_rows(res) : 0;
    size_t *which = xcalloc(n, sizeof *which);
    for (size_t i = 0; i < n; i++)
        which[i] = (size_t)db_int8(res, (int)i, db_col(res, "place")) - 1;
    cb(w->ctx, st, which, n);
    free(which);
    free(w);
}

void store_unnamed_peers(struct store *s, const struct store_route *peers, size_t n,
                         store_unnamed_cb cb, void *ctx)
{
    struct db_params *p = db_params_new();
    store_add_routes(p, peers, (unsigned)n);
    store_call(s, &UNNAMED, p, on_unnamed, (void (*)(void))cb, ctx);
}

static void on_known(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_known_cb cb = (store_known_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    size_t n = st == DB_OK ? (size_t)db_rows(res) : 0;
    struct store_route *rows = xcalloc(n, sizeof *rows);
    for (size_t i = 0; i < n; i++) {
        int r = (int)i;
        store_copy_text(rows[i].login, sizeof rows[i].login, res, r, db_col(res, "server_login"));
        store_copy_text(rows[i].url, sizeof rows[i].url, res, r, db_col(res, "url"));
    }
    cb(w->ctx, st, rows, n);
    free(rows);
    free(w);
}

void store_known_peers(struct store *s, unsigned limit, store_known_cb cb, void *ctx)
{
    struct db_params *p = db_params_new();
    db_add_text(p, s->server_login);
    db_add_int8(p, limit);
    store_call(s, &KNOWN, p, on_known, (void (*)(void))cb, ctx);
}

/* --- what people shall see --- */

static void add_text_column(struct db_params *p, const struct store_peer_row *rows, size_t n,
                            size_t offset)
{
    db_array_begin(p, DB_TEXT_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_text(p, *(const char *const *)(const void *)((const char *)&rows[i] + offset));
}

static void add_int_column(struct db_params *p, const struct store_peer_row *rows, size_t n,
                           size_t offset)
{
    db_array_begin(p, DB_INT8_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_int8(p, *(const int64_t *)(const void *)((const char *)&rows[i] + offset));
}

static void on_written(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_written_cb cb = (store_written_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    cb(w->ctx, st, st == DB_OK && db_bool(res, 0, db_col(res, "written")));
    free(w);
}

void store_write_peers(struct store *s, const struct store_peer_row *rows, size_t n,
                       const struct store_route *gone, size_t n_gone, store_written_cb cb,
                       void *ctx)
{
#define COL(member) offsetof(struct store_peer_row, member)
    static const size_t texts[] = {COL(login), COL(url), COL(state), COL(last_error)};
    static const size_t numbers[] = {
        COL(connected_ms), COL(active_ms), COL(ping_ms),   COL(pong_ms),   COL(error_ms),
        COL(reconnects),   COL(queued[0]), COL(queued[1]), COL(queued[2]), COL(in_flight),
        COL(ok),           COL(failed),    COL(timed_out), COL(late)};
#undef COL
    struct db_params *p = db_params_new();
    db_add_text(p, s->process_id);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        add_text_column(p, rows, n, texts[i]);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        add_int_column(p, rows, n, numbers[i]);
    store_add_routes(p, gone, (unsigned)n_gone);
    store_call(s, &WRITE, p, on_written, (void (*)(void))cb, ctx);
}

static struct store_peer_line line_of(const struct db_result *res, int r)
{
    return (struct store_peer_line){
        .login = db_text(res, r, db_col(res, "server_login")),
        .url = db_text(res, r, db_col(res, "url")),
        .process = db_text(res, r, db_col(res, "process")),
        .state = db_text(res, r, db_col(res, "state")),
        .last_error = db_text(res, r, db_col(res, "last_error")),
        .error_ago = db_text(res, r, db_col(res, "error_ago")),
        .connected_ago = db_text(res, r, db_col(res, "connected_ago")),
        .partner = db_bool(res, r, db_col(res, "partner")),
        .queued = db_int8(res, r, db_col(res, "queued")),
        .in_flight = db_int8(res, r, db_col(res, "in_flight")),
        .ok = db_int8(res, r, db_col(res, "ok")),
        .failed = db_int8(res, r, db_col(res, "failed")),
        .timed_out = db_int8(res, r, db_col(res, "timed_out")),
    };
}

static void on_lines(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_peer_lines_cb cb = (store_peer_lines_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    size_t n = st == DB_OK ? (size_t)db_rows(res) : 0;
    struct store_peer_line *rows = xcalloc(n, sizeof *rows);
    for (size_t i = 0; i < n; i++)
        rows[i] = line_of(res, (int)i);
    cb(w->ctx, st, rows, n);
    free(rows);
    free(w);
}

void store_list_peers(struct store *s, store_peer_lines_cb cb, void *ctx)
{
    store_call(s, &LIST, db_params_new(), on_lines, (void (*)(void))cb, ctx);
}

static void on_blocked(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_blocked_cb cb = (store_blocked_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    cb(w->ctx, st, st == DB_OK && db_bool(res, 0, db_col(res, "changed")));
    free(w);
}

void store_block_server(struct store *s, const char *login, bool blocked, store_blocked_cb cb,
                        void *ctx)
{
    struct db_params *p = db_params_new();
    db_add_text(p, login);
    db_add_bool(p, blocked);
    store_call(s, &BLOCK, p, on_blocked, (void (*)(void))cb, ctx);
}
