/*
 * Client sessions. See sessions.h.
 *
 * Raises: errors of the database are handed to the caller; a stored session key of the wrong length
 * is logged and reported as an error (environment).
 */
#include "store/sessions.h"

#include "store/internal.h"
#include "util/log.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct db_stmt CREATE_SESSION = {
    "create_session", "SELECT * FROM create_session($1::text, $2::text, $3::text, $4::text, "
                      "$5::bytea, $6::text, $7::text, $8::text, $9::integer)"};
static const struct db_stmt GET_SESSION = {"get_session", "SELECT * FROM get_session($1::text)"};
static const struct db_stmt LOGIN_SESSION = {
    "login_session", "SELECT * FROM login_session($1::text, $2::text, $3::text, $4::text)"};
static const struct db_stmt DISCONNECT_SESSION = {
    "disconnect_session", "SELECT disconnect_session($1::text, $2::bigint)"};

static const char *mode_name(enum store_event_mode mode)
{
    return mode == STORE_EVENTS_PTS ? "pts" : "live";
}

/* Creating needs what the answer does not repeat. */
struct creation {
    store_session_cb cb;
    void *ctx;
    struct store_session row;
    char *storage_pwd;
};

static void on_created(void *ctx, const struct db_result *res)
{
    struct creation *c = ctx;
    enum db_status st = store_status(res, &CREATE_SESSION);
    if (st == DB_OK) {
        switch (db_int8(res, 0, db_col(res, "verdict"))) {
        case 0:
            c->row.verdict = STORE_SESSION_OK;
            break;
        case 1:
            c->row.verdict = STORE_SESSION_NOT_FOUND;
            break;
        default:
            c->row.verdict = STORE_SESSION_TOO_MANY;
        }
        c->row.storage_pwd = c->storage_pwd;
        c->row.epoch = db_int8(res, 0, db_col(res, "epoch"));
        c->row.last_pts = db_int8(res, 0, db_col(res, "last_pts"));
        c->row.generation = db_int8(res, 0, db_col(res, "generation"));
    }
    c->cb(c->ctx, st, st == DB_OK ? &c->row : NULL);
    free(c->storage_pwd);
    free(c);
}

void store_create_session(struct store *s, const struct store_new_session *n, store_session_cb cb,
                          void *ctx)
{
    struct creation *c = xnew(struct creation);
    c->cb = cb;
    c->ctx = ctx;
    c->storage_pwd = xstrdup(n->storage_pwd);
    memcpy(c->row.session_key, n->session_key, sizeof c->row.session_key);
    (void)snprintf(c->row.login, sizeof c->row.login, "%s", n->login);

    struct db_params *p = db_params_new();
    db_add_text(p, s->server_login);
    db_add_text(p, s->process_id);
    db_add_text(p, n->session_id);
    db_add_text(p, n->login);
    db_add_bytea(p, n->session_key, sizeof n->session_key);
    db_add_text(p, n->storage_pwd);
    db_add_text(p, n->client_info);
    db_add_text(p, mode_name(n->mode));
    db_add_int4(p, (int32_t)n->max_per_user);
    db_call(s->pool, &CREATE_SESSION, p, on_created, c);
}

/* Answers of get_session and login_session have the same columns. */
static void on_session(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_session_cb cb = (store_session_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    struct store_session row = {.verdict = STORE_SESSION_NOT_FOUND};
    if (st == DB_OK && db_rows(res) > 0) {
        size_t len;
        const uint8_t *key = db_bytea(res, 0, db_col(res, "session_key"), &len);
        store_copy_text(row.login, sizeof row.login, res, 0, db_col(res, "login"));
        if (len == sizeof row.session_key) {
            row.verdict = STORE_SESSION_OK;
            memcpy(row.session_key, key, sizeof row.session_key);
        } else {
            log_error("stored_session_damaged", LOG_S("login", row.login));
            st = DB_ERROR;
        }
        row.storage_pwd = db_text(res, 0, db_col(res, "storage_pwd"));
        row.epoch = db_int8(res, 0, db_col(res, "epoch"));
        row.last_pts = db_int8(res, 0, db_col(res, "last_pts"));
        row.acked_pts = db_int8(res, 0, db_col(res, "acked_pts"));
        row.generation = db_int8(res, 0, db_col(res, "generation"));
    }
    cb(w->ctx, st, st == DB_OK ? &row : NULL);
    free(w);
}

void store_get_session(struct store *s, const char *session_id, store_session_cb cb, void *ctx)
{
    struct db_params *p = db_params_new();
    db_add_text(p, session_id);
    store_call(s, &GET_SESSION, p, on_session, (void (*)(void))cb, ctx);
}

void store_login_session(struct store *s, const char *session_id, const char *client_info,
                         enum store_event_mode mode, store_session_cb cb, void *ctx)
{
    struct db_params *p = db_params_new();
    db_add_text(p, s->process_id);
    db_add_text(p, session_id);
    db_add_text(p, client_info);
    db_add_text(p, mode_name(mode));
    store_call(s, &LOGIN_SESSION, p, on_session, (void (*)(void))cb, ctx);
}

void store_disconnect_session(struct store *s, const char *session_id, int64_t generation)
{
    struct db_params *p = db_params_new();
    db_add_text(p, session_id);
    db_add_int8(p, generation);
    store_forget(s, &DISCONNECT_SESSION, p);
}
