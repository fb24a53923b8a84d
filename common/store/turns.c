/*
 * Turns of the puller. See turns.h.
 *
 * Raises: errors of the database are handed to the caller (environment).
 */
#include "store/turns.h"

#include "store/internal.h"
#include "util/mem.h"

#include <stdlib.h>

enum { OWNERS_AT_ONCE = 5000 };

static const struct db_stmt ORDER_TURNS = {
    "order_turns", "SELECT order_turns($1::text, $2::text, $3::text, $4::integer) AS last"};
static const struct db_stmt CLAIM_TURNS = {
    "claim_turns",
    "SELECT * FROM claim_turns($1::text, $2::text, $3::text[], $4::integer, $5::bigint)"};
static const struct db_stmt RENEW_TURN = {
    "renew_turn", "SELECT renew_turn($1::text, $2::text, $3::text, $4::bigint) AS held"};
static const struct db_stmt FINISH_TURN = {
    "finish_turn", "SELECT finish_turn($1::text, $2::text, $3::text, $4::bigint, $5::text, "
                   "$6::bigint, $7::boolean)"};
static const struct db_stmt TELL_HISTORY = {
    "tell_history", "SELECT * FROM tell_history($1::text, $2::text, $3::text[])"};
static const struct db_stmt NOTE_REJECTS = {
    "note_sync_rejects", "SELECT note_sync_rejects($1::text, $2::text, $3::text[], $4::text[])"};

static void on_ordered(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_ordered_cb cb = (store_ordered_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    bool more = st == DB_OK && !db_is_null(res, 0, db_col(res, "last"));
    cb(w->ctx, st, more ? db_text(res, 0, db_col(res, "last")) : NULL);
    free(w);
}

void store_order_turns(struct store *s, const char *server, const char *after, store_ordered_cb cb,
                       void *ctx)
{
    struct db_params *p = db_params_new();
    db_add_text(p, s->server_login);
    db_add_text(p, server);
    db_add_text(p, after);
    db_add_int4(p, OWNERS_AT_ONCE);
    store_call(s, &ORDER_TURNS, p, on_ordered, (void (*)(void))cb, ctx);
}

static void on_claimed(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_turns_cb cb = (store_turns_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    size_t n = st == DB_OK ? (size_t)db_rows(res) : 0;
    struct store_turn *rows = xcalloc(n, sizeof *rows);
    for (size_t i = 0; i < n; i++) {
        struct store_turn *t = &rows[i];
        store_copy_text(t->owner, sizeof t->owner, res, (int)i, db_col(res, "owner_login"));
        store_copy_text(t->server.login, sizeof t->server.login, res, (int)i,
                        db_col(res, "server_login"));
        store_copy_text(t->server.url, sizeof t->server.url, res, (int)i, db_col(res, "url"));
    }
    cb(w->ctx, st, rows, n);
    free(rows);
    free(w);
}

static void add_texts(struct db_params *p, const char *const *texts, size_t n)
{
    db_array_begin(p, DB_TEXT_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_text(p, texts[i]);
}

void store_claim_turns(struct store *s, const char *const *skip, size_t n_skip, unsigned max,
                       int64_t lease_ms, store_turns_cb cb, void *ctx)
{
    struct db_params *p = db_params_new();
    db_add_text(p, s->server_login);
    db_add_text(p, s->process_id);
    add_texts(p, skip, n_skip);
    db_add_int4(p, (int32_t)max);
    db_add_int8(p, lease_ms);
    store_call(s, &CLAIM_TURNS, p, on_claimed, (void (*)(void))cb, ctx);
}

static struct db_params *turn_params(const struct store *s, const struct store_turn *t)
{
    struct db_params *p = db_params_new();
    db_add_text(p, s->process_id);
    db_add_text(p, t->owner);
    db_add_text(p, t->server.login);
    return p;
}

static void on_renewed(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_renewed_cb cb = (store_renewed_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    cb(w->ctx, st, st == DB_OK && db_bool(res, 0, db_col(res, "held")));
    free(w);
}

void store_renew_turn(struct store *s, const struct store_turn *t, int64_t lease_ms,
                      store_renewed_cb cb, void *ctx)
{
    struct db_params *p = turn_params(s, t);
    db_add_int8(p, lease_ms);
    store_call(s, &RENEW_TURN, p, on_renewed, (void (*)(void))cb, ctx);
}

static void on_finished(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_turn_ended_cb cb = (store_turn_ended_cb)w->cb;
    cb(w->ctx, store_status(res, w->stmt));
    free(w);
}

void store_finish_turn(struct store *s, const struct store_turn *t, const struct store_turn_end *e,
                       store_turn_ended_cb cb, void *ctx)
{
    struct db_params *p = turn_params(s, t);
    db_add_int8(p, e->moved);
    db_add_text(p, e->result);
    db_add_int8(p, e->next_ms);
    db_add_bool(p, e->complete);
    store_call(s, &FINISH_TURN, p, on_finished, (void (*)(void))cb, ctx);
}

static void on_told(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_history_told_cb cb = (store_history_told_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    size_t n = st == DB_OK ? (size_t)db_rows(res) : 0;
    const char **owners = xcalloc(n, sizeof *owners);
    for (size_t i = 0; i < n; i++)
        owners[i] = db_text(res, (int)i, db_col(res, "owner_login"));
    cb(w->ctx, st, owners, n);
    free((void *)owners);
    free(w);
}

void store_tell_history(struct store *s, const char *const *owners, size_t n,
                        store_history_told_cb cb, void *ctx)
{
    struct db_params *p = db_params_new();
    db_add_text(p, s->server_login);
    db_add_text(p, s->process_id);
    if (owners)
        add_texts(p, owners, n);
    else
        db_add_text(p, NULL);
    store_call(s, &TELL_HISTORY, p, on_told, (void (*)(void))cb, ctx);
}

void store_note_rejects(struct store *s, const struct store_turn *t, const char *const *sync_ids,
                        const char *const *reasons, size_t n, store_turn_ended_cb cb, void *ctx)
{
    struct db_params *p = db_params_new();
    db_add_text(p, t->owner);
    db_add_text(p, t->server.login);
    add_texts(p, sync_ids, n);
    add_texts(p, reasons, n);
    store_call(s, &NOTE_REJECTS, p, on_finished, (void (*)(void))cb, ctx);
}
