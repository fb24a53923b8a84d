/*
 * Users and partner servers. See users.h.
 *
 * Raises: errors of the database are handed to the caller; a stored key that is not a key is logged
 * and reported as an error, the process goes on (environment).
 */
#include "store/users.h"

#include "store/internal.h"
#include "util/base64.h"
#include "util/log.h"
#include "util/mem.h"

#include <stdlib.h>

static const struct db_stmt GET_USER = {"get_user", "SELECT * FROM get_user($1::text)"};
static const struct db_stmt ADD_USER = {
    "add_user", "SELECT add_user($1::text, $2::text, $3::text, $4::text, $5::text, $6::text, "
                "$7::text[], $8::text[]) AS verdict"};
static const struct db_stmt SET_SERVERS = {
    "set_user_servers",
    "SELECT set_user_servers($1::text, $2::text, $3::text[], $4::text[]) AS found"};
static const struct db_stmt ADD_SERVER = {"add_server",
                                          "SELECT add_server($1::text, $2::text, $3::text)"};
static const struct db_stmt LIST_SERVERS = {"list_servers", "SELECT * FROM list_servers()"};

static void add_route(struct store_user *u, const struct db_result *res, const char *login,
                      const char *url)
{
    if (db_is_null(res, 0, db_col(res, login)))
        return;
    struct store_route *r = &u->servers[u->n_servers++];
    store_copy_text(r->login, sizeof r->login, res, 0, db_col(res, login));
    store_copy_text(r->url, sizeof r->url, res, 0, db_col(res, url));
}

static const char *text_or_null(const struct db_result *res, int row, const char *col)
{
    int c = db_col(res, col);
    return db_is_null(res, row, c) ? NULL : db_text(res, row, c);
}

static void on_user(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_user_cb cb = (store_user_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    struct store_user u = {0};
    bool found = st == DB_OK && db_rows(res) > 0;
    if (found) {
        store_copy_text(u.login, sizeof u.login, res, 0, db_col(res, "login"));
        if (!base64_decode_exact(db_text(res, 0, db_col(res, "client_key")), u.client_key,
                                 sizeof u.client_key)) {
            log_error("stored_key_damaged", LOG_S("login", u.login));
            st = DB_ERROR;
            found = false;
        }
        add_route(&u, res, "server1", "url1");
        add_route(&u, res, "server2", "url2");
        u.enc_key = text_or_null(res, 0, "enc_key");
        u.enc_key_sig = text_or_null(res, 0, "enc_key_sig");
        u.source = db_text(res, 0, db_col(res, "source"));
        u.age_ms = db_int8(res, 0, db_col(res, "age_ms"));
        u.profile = text_or_null(res, 0, "profile");
    }
    cb(w->ctx, st, found ? &u : NULL);
    free(w);
}

void store_get_user(struct store *s, const char *login, store_user_cb cb, void *ctx)
{
    struct db_params *p = db_params_new();
    db_add_text(p, login);
    store_call(s, &GET_USER, p, on_user, (void (*)(void))cb, ctx);
}

static void on_added(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_add_cb cb = (store_add_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    enum store_add verdict = STORE_OTHER_KEY;
    if (st == DB_OK)
        verdict = (enum store_add)db_int8(res, 0, db_col(res, "verdict"));
    cb(w->ctx, st, verdict);
    free(w);
}

void store_add_user(struct store *s, const struct store_user *user, store_add_cb cb, void *ctx)
{
    char key[64];
    base64_encode(user->client_key, sizeof user->client_key, key);
    struct db_params *p = db_params_new();
    db_add_text(p, s->server_login);
    db_add_text(p, user->login);
    db_add_text(p, key);
    db_add_text(p, user->enc_key);
    db_add_text(p, user->enc_key_sig);
    db_add_text(p, user->source ? user->source : "local");
    store_add_routes(p, user->servers, user->n_servers);
    store_call(s, &ADD_USER, p, on_added, (void (*)(void))cb, ctx);
}

static void on_set(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_found_cb cb = (store_found_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    cb(w->ctx, st, st == DB_OK && db_bool(res, 0, db_col(res, "found")));
    free(w);
}

void store_set_servers(struct store *s, const char *login, const struct store_route *servers,
                       unsigned n, store_found_cb cb, void *ctx)
{
    struct db_params *p = db_params_new();
    db_add_text(p, s->server_login);
    db_add_text(p, login);
    store_add_routes(p, servers, n);
    store_call(s, &SET_SERVERS, p, on_set, (void (*)(void))cb, ctx);
}

static void on_server_added(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_done_cb cb = (store_done_cb)w->cb;
    cb(w->ctx, store_status(res, w->stmt));
    free(w);
}

void store_add_server(struct store *s, const char *login, const char *url, const char *key_b64,
                      store_done_cb cb, void *ctx)
{
    struct db_params *p = db_params_new();
    db_add_text(p, login);
    db_add_text(p, url);
    db_add_text(p, key_b64);
    store_call(s, &ADD_SERVER, p, on_server_added, (void (*)(void))cb, ctx);
}

static void on_servers(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_servers_cb cb = (store_servers_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    size_t n = st == DB_OK ? (size_t)db_rows(res) : 0;
    struct store_server *rows = xcalloc(n, sizeof *rows);
    for (size_t i = 0; i < n; i++) {
        int r = (int)i;
        store_copy_text(rows[i].login, sizeof rows[i].login, res, r, db_col(res, "server_login"));
        store_copy_text(rows[i].url, sizeof rows[i].url, res, r, db_col(res, "url"));
        rows[i].blocked = db_bool(res, r, db_col(res, "blocked"));
    }
    cb(w->ctx, st, rows, n);
    free(rows);
    free(w);
}

void store_list_servers(struct store *s, store_servers_cb cb, void *ctx)
{
    store_call(s, &LIST_SERVERS, NULL, on_servers, (void (*)(void))cb, ctx);
}
