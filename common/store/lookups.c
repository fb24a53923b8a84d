/*
 * Look-ups of users at other servers. See lookups.h.
 *
 * Raises: errors of the database are handed to the caller (environment).
 */
#include "store/lookups.h"

#include "store/internal.h"
#include "util/base64.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

static const struct db_stmt LOOK_UP_SERVERS = {
    "look_up_servers", "SELECT * FROM look_up_servers($1::text, $2::text, $3::text)"};
static const struct db_stmt IMPORT_RECORD = {
    "import_record",
    "SELECT * FROM import_record($1::text, $2::text, $3::text, $4::text, $5::text, $6::text, "
    "$7::text, $8::text[], $9::text[], $10::bigint, $11::bytea, $12::text, "
    "$13::text, $14::text)"};

static enum store_place_kind kind_of(const char *name)
{
    if (strcmp(name, "partner") == 0)
        return STORE_PLACE_PARTNER;
    return strcmp(name, "home") == 0 ? STORE_PLACE_HOME : STORE_PLACE_SENDER;
}

static void on_places(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_places_cb cb = (store_places_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    size_t n = st == DB_OK ? (size_t)db_rows(res) : 0;
    struct store_place *rows = xcalloc(n, sizeof *rows);
    for (size_t i = 0; i < n; i++) {
        int r = (int)i;
        struct store_route *route = &rows[i].route;
        store_copy_text(route->login, sizeof route->login, res, r, db_col(res, "server_login"));
        store_copy_text(route->url, sizeof route->url, res, r, db_col(res, "url"));
        rows[i].kind = kind_of(db_text(res, r, db_col(res, "kind")));
        rows[i].home = db_bool(res, r, db_col(res, "home"));
    }
    cb(w->ctx, st, rows, n);
    free(rows);
    free(w);
}

void store_look_up_places(struct store *s, const char *login, const char *sender,
                          store_places_cb cb, void *ctx)
{
    struct db_params *p = db_params_new();
    db_add_text(p, s->server_login);
    db_add_text(p, login);
    db_add_text(p, sender);
    store_call(s, &LOOK_UP_SERVERS, p, on_places, (void (*)(void))cb, ctx);
}

static void on_imported(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_import_cb cb = (store_import_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    enum store_import verdict = STORE_IMPORT_NOT_BELIEVED;
    if (st == DB_OK)
        verdict = (enum store_import)db_int8(res, 0, db_col(res, "verdict"));
    cb(w->ctx, st, verdict, st == DB_OK && db_bool(res, 0, db_col(res, "changed")));
    free(w);
}

void store_import_user(struct store *s, const struct store_user *user,
                       const struct store_profile *profile, const char *from, store_import_cb cb,
                       void *ctx)
{
    char key[64];
    base64_encode(user->client_key, sizeof user->client_key, key);
    struct db_params *p = db_params_new();
    db_add_text(p, s->server_login);
    db_add_text(p, user->login);
    db_add_text(p, key);
    db_add_text(p, user->enc_key);
    db_add_text(p, user->enc_key_sig);
    db_add_text(p, user->source);
    db_add_text(p, from);
    store_add_routes(p, user->servers, user->n_servers);
    db_add_int8(p, profile ? profile->time_ms : 0);
    db_add_bytea(p, profile ? profile->signature : NULL, profile ? DM_SIG_BYTES : 0);
    db_add_text(p, profile ? profile->record : NULL);
    db_add_text(p, profile ? profile->enc_key : NULL);
    db_add_text(p, profile ? profile->enc_key_sig : NULL);
    store_call(s, &IMPORT_RECORD, p, on_imported, (void (*)(void))cb, ctx);
}
