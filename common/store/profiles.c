/*
 * Signed profiles, keys of users, and the hint that a record has changed. See profiles.h.
 *
 * Raises: errors of the database are handed to the caller; a stored key that is not a key is logged
 * and left out (environment).
 */
#include "store/profiles.h"

#include "store/internal.h"
#include "util/base64.h"
#include "util/log.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>

static const struct db_stmt PUBLISH = {
    "publish_profile",
    "SELECT * FROM publish_profile($1::text, $2::text, $3::text, $4::text, $5::text, $6::text[], "
    "$7::text[], $8::bigint, $9::bytea, $10::text, $11::bigint)"};
static const struct db_stmt KEYS = {"keys_of_user", "SELECT * FROM keys_of_user($1::text)"};
static const struct db_stmt CONFIRM = {"confirm_user", "SELECT confirm_user($1::text)"};
static const struct db_stmt USER_CHANGED = {"user_changed",
                                            "SELECT pg_notify('shine_events', $1::text)"};

static void on_published(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_published_cb cb = (store_published_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    struct store_published r = {.verdict = STORE_PROFILE_NOT_NEWER};
    int rows = st == DB_OK ? db_rows(res) : 0;
    for (int i = 0; i < rows; i++) {
        r.verdict = (enum store_profile_verdict)db_int8(res, i, db_col(res, "verdict"));
        r.provisional = db_bool(res, i, db_col(res, "provisional"));
        int login = db_col(res, "server_login");
        if (db_is_null(res, i, login) || r.n == STORE_PROFILE_READERS)
            continue;
        struct store_route *reader = &r.readers[r.n++];
        store_copy_text(reader->login, sizeof reader->login, res, i, login);
        store_copy_text(reader->url, sizeof reader->url, res, i, db_col(res, "url"));
    }
    cb(w->ctx, st, &r);
    free(w);
}

void store_publish_profile(struct store *s, const struct store_user *user,
                           const struct store_profile *profile, int64_t max_future_ms,
                           store_published_cb cb, void *ctx)
{
    char key[64];
    base64_encode(user->client_key, sizeof user->client_key, key);
    struct db_params *p = db_params_new();
    db_add_text(p, s->server_login);
    db_add_text(p, user->login);
    db_add_text(p, key);
    db_add_text(p, profile->enc_key);
    db_add_text(p, profile->enc_key_sig);
    store_add_routes(p, user->servers, user->n_servers);
    db_add_int8(p, profile->time_ms);
    db_add_bytea(p, profile->signature, sizeof profile->signature);
    db_add_text(p, profile->record);
    db_add_int8(p, max_future_ms < 0 ? DM_INT_MAX : max_future_ms);
    store_call(s, &PUBLISH, p, on_published, (void (*)(void))cb, ctx);
}

static void on_keys(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_keys_cb cb = (store_keys_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    size_t rows = st == DB_OK ? (size_t)db_rows(res) : 0, n = 0;
    uint8_t(*keys)[DM_KEY_BYTES] = xcalloc(rows, sizeof *keys);
    for (size_t i = 0; i < rows; i++) {
        if (base64_decode_exact(db_text(res, (int)i, db_col(res, "client_key")), keys[n],
                                sizeof keys[n]))
            n++;
        else
            log_error("stored_key_damaged", LOG_S("statement", w->stmt->name));
    }
    cb(w->ctx, st, (const uint8_t(*)[DM_KEY_BYTES])keys, n);
    free(keys);
    free(w);
}

void store_get_keys(struct store *s, const char *login, store_keys_cb cb, void *ctx)
{
    struct db_params *p = db_params_new();
    db_add_text(p, login);
    store_call(s, &KEYS, p, on_keys, (void (*)(void))cb, ctx);
}

void store_confirm_user(struct store *s, const char *login)
{
    struct db_params *p = db_params_new();
    db_add_text(p, login);
    store_forget(s, &CONFIRM, p);
}

static void on_told(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_done_cb cb = (store_done_cb)w->cb;
    cb(w->ctx, store_status(res, w->stmt));
    free(w);
}

void store_tell_user_changed(struct store *s, const char *login, store_done_cb cb, void *ctx)
{
    char entry[DM_LOGIN_MAX + 2];
    (void)snprintf(entry, sizeof entry, "%c%s", STORE_USER_CHANGED, login);
    struct db_params *p = db_params_new();
    db_add_text(p, entry);
    if (cb)
        store_call(s, &USER_CHANGED, p, on_told, (void (*)(void))cb, ctx);
    else
        store_forget(s, &USER_CHANGED, p);
}
