/*
 * Settings of users: UpsertUserSetting, GetUserSettings, MarkAllUserSettingsUnsynced.
 *
 * Raises: environment (answered).
 */
#include "frontd/frontd.h"
#include "frontd/ops.h"
#include "frontd/pump.h"
#include "frontd/session.h"
#include "rpc/fields.h"
#include "store/sync.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

enum {
    PAGE_OVERHEAD = 1024, /* what a page and each of its settings take beside name and value */
    ITEM_OVERHEAD = 192,
    NAMES_MAX = 1000, /* of one request */
};

/* --- UpsertUserSetting --- */

/* Names and values are borrowed from the payload, which lives as long as the call. */
struct upsert {
    struct rpc_call *call;
    struct store_setting setting;
    char login[DM_LOGIN_MAX + 1];
    bool key_fresh; /* the key was read for this request */
};

static void upsert_verify(struct upsert *u, const struct directory_user *user);

static void on_put(void *ctx, enum db_status st, const struct store_setting_result *rows, size_t n)
{
    struct upsert *u = ctx;
    struct frontd *f = frontd_of(u->call);
    enum store_setting_verdict v = n > 0 ? rows[0].verdict : STORE_SETTING_OK;
    if (st != DB_OK) {
        frontd_fail_db(u->call, st);
    } else if (v == STORE_SETTING_NOT_SERVED) {
        rpc_fail(u->call, RPC_LOCAL_SERVER_NOT_ACCESS_SERVER,
                 "this server is not an access server of this user");
    } else if (v == STORE_SETTING_TIME_AHEAD) {
        rpc_fail(u->call, RPC_TIME_SKEW, "timeMs is too far ahead of this server's clock");
    } else if (v == STORE_SETTING_TOO_MANY) {
        rpc_fail(u->call, RPC_TOO_MANY_SETTINGS, "delete some settings first");
    } else {
        pump_told_setting(f->pump, u->login, &rows[0].told, &u->setting);
        rpc_reply(u->call, json_object());
    }
    free(u);
}

static void on_key(void *ctx, enum directory_result r, const struct directory_user *user)
{
    struct upsert *u = ctx;
    if (r == DIRECTORY_FOUND) {
        u->key_fresh = true;
        upsert_verify(u, user);
        return;
    }
    if (directory_failed(r))
        frontd_fail_directory(u->call, r);
    else
        rpc_fail(u->call, RPC_USER_NOT_FOUND, "the user is unknown here");
    free(u);
}

static void upsert_verify(struct upsert *u, const struct directory_user *user)
{
    struct frontd *f = frontd_of(u->call);
    const struct store_setting *s = &u->setting;
    if (dm_setting_verify(u->login, s->name, s->time_ms, s->value, s->sig, user->client_key)) {
        struct store_new_settings p = {
            .login = u->login,
            .items = &u->setting,
            .n = 1,
            .max_future_ms = f->max_future_ms,
            .max_count = (unsigned)config_int(f->config, "limits.settingsPerUser")};
        store_put_settings(f->store, &p, on_put, u);
    } else if (!u->key_fresh) {
        directory_forget(f->directory, u->login);
        directory_fetch(f->directory, u->login, on_key, u);
    } else {
        rpc_fail(u->call, RPC_BAD_SIGNATURE, "not signed by the user's key");
        free(u);
    }
}

void frontd_upsert_user_setting(struct rpc_call *call)
{
    if (!frontd_configured(call))
        return;
    struct frontd *f = frontd_of(call);
    struct rpc_fields fields = rpc_fields_of(rpc_payload(call));
    struct store_setting s = {.value = NULL};
    if (!rpc_str(&fields, "name", DM_SETTING_NAME_MAX, &s.name) ||
        !rpc_str_opt(&fields, "value", DM_SETTING_VALUE_MAX, &s.value) ||
        !rpc_int(&fields, "timeMs", 0, DM_INT_MAX, &s.time_ms) ||
        !rpc_bytes(&fields, "signatureB64", s.sig, sizeof s.sig)) {
        rpc_fail(call, RPC_BAD_FIELDS, fields.problem);
        return;
    }
    if (!s.value || !dm_setting_name_valid(s.name)) {
        rpc_fail(call, RPC_BAD_FIELDS,
                 s.value ? "name must be [A-Za-z0-9_./-]{1,128}" : "value is missing");
        return;
    }
    struct upsert *u = xnew(struct upsert);
    u->call = call;
    u->setting = s;
    (void)memccpy(u->login, session_login(session_of(call)), '\0', sizeof u->login);
    const struct directory_user *user = directory_peek(f->directory, u->login);
    if (user)
        upsert_verify(u, user);
    else
        directory_fetch(f->directory, u->login, on_key, u);
}

/* --- GetUserSettings --- */

static void on_settings(void *ctx, enum db_status st, const struct store_setting *rows, size_t n,
                        bool more)
{
    struct rpc_call *call = ctx;
    struct frontd *f = frontd_of(call);
    if (st != DB_OK) {
        frontd_fail_db(call, st);
        return;
    }
    struct json_out o;
    const char *last = NULL;
    rpc_reply_begin(call, &o, PAGE_OVERHEAD);
    json_out_list(&o, "settings");
    for (size_t i = 0; i < n; i++) {
        const struct store_setting *s = &rows[i];
        /* The store counted bytes of values; escapes may take six times as many. */
        size_t bytes = json_out_string_len(s->name) + json_out_string_len(s->value) + ITEM_OVERHEAD;
        if (i > 0 && json_out_len(&o) + bytes + PAGE_OVERHEAD > f->max_answer_bytes) {
            more = true;
            break;
        }
        json_out_item(&o);
        json_out_string(&o, "name", s->name);
        json_out_string(&o, "value", s->value);
        json_out_int(&o, "timeMs", s->time_ms);
        json_out_base64(&o, "signatureB64", s->sig, sizeof s->sig);
        json_out_close(&o);
        last = s->name;
    }
    json_out_close(&o);
    json_out_bool(&o, "hasMore", more);
    json_out_string(&o, "nextName", last ? last : "");
    rpc_reply_end(call, &o);
}

/* The names asked for, borrowed; false if the call was answered. */
static bool read_names(struct rpc_call *call, struct rpc_fields *fields, const char ***names,
                       size_t *n)
{
    const json_t *list = json_object_get(rpc_payload(call), "names"), *name;
    size_t i;
    *names = NULL;
    *n = 0;
    if (!list || json_is_null(list))
        return true;
    bool ok = rpc_array(fields, "names", NAMES_MAX, &list);
    const char **out = xcalloc(json_array_size(list) + 1, sizeof *out);
    json_array_foreach(list, i, name) {
        const char *s = json_string_value(name);
        ok = ok && s && dm_setting_name_valid(s);
        out[(*n)++] = s;
    }
    if (ok) {
        *names = out;
        return true;
    }
    free((void *)out);
    rpc_fail(call, RPC_BAD_FIELDS,
             fields->problem[0] ? fields->problem : "names must be names of settings");
    return false;
}

void frontd_get_user_settings(struct rpc_call *call)
{
    struct frontd *f = frontd_of(call);
    struct rpc_fields fields = rpc_fields_of(rpc_payload(call));
    struct store_settings_query q = {.login = session_login(session_of(call)), .after = ""};
    const char **names;
    size_t room = f->max_answer_bytes - PAGE_OVERHEAD;
    if (!rpc_str_opt(&fields, "afterName", DM_SETTING_NAME_MAX, &q.after)) {
        rpc_fail(call, RPC_BAD_FIELDS, fields.problem);
        return;
    }
    if (!read_names(call, &fields, &names, &q.n_names))
        return;
    q.names = names;
    q.limit = (unsigned)(room / ITEM_OVERHEAD);
    q.max_bytes = (int64_t)room;
    store_get_settings(f->store, &q, on_settings, call);
    free((void *)names);
}

/* --- MarkAllUserSettingsUnsynced --- */

static void on_marked(void *ctx, enum db_status st, const struct store_marked *m)
{
    struct rpc_call *call = ctx;
    if (st != DB_OK)
        frontd_fail_db(call, st);
    else
        rpc_reply(call, json_pack("{s:I, s:I}", "settingsUpdated", (json_int_t)m->settings,
                                  "dmUpdated", (json_int_t)m->dms));
}

void frontd_mark_all_user_settings_unsynced(struct rpc_call *call)
{
    if (!frontd_configured(call))
        return;
    struct rpc_fields fields = rpc_fields_of(rpc_payload(call));
    const char *own = session_login(session_of(call)), *login = own;
    if (!rpc_str_opt(&fields, "login", DM_LOGIN_MAX, &login))
        rpc_fail(call, RPC_BAD_FIELDS, fields.problem);
    else if (strcmp(login, own) != 0) /* for others it is an operator's act */
        rpc_fail(call, RPC_SESSION_OF_ANOTHER_USER, "a session marks its own user's data only");
    else
        store_mark_unsynced(frontd_of(call)->store, own, on_marked, call);
}
