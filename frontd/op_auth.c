/*
 * Operations that make a session and log into it: AuthChallenge, CreateAuthSession,
 * SessionChallenge, SessionLogin.
 *
 * The last two of each pair go through these steps; nothing is stored or changed before all checks
 * have passed, and a nonce is used up by the first attempt that gets as far as naming it:
 *
 *   fields -> clock -> nonce -> user or session read -> key -> signature -> stored -> logged in
 *
 * Grades of failure: environment (answered).
 */
#include "frontd/auth.h"
#include "frontd/frontd.h"
#include "frontd/ops.h"
#include "frontd/session.h"
#include "rpc/fields.h"
#include "store/sessions.h"
#include "store/users.h"
#include "util/base64.h"
#include "util/mem.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define SESSION_KEY_PREFIX "ed25519/"
enum { CLIENT_INFO_MAX = 4096, STORAGE_PWD_MAX = 4096, FIELD_MAX = 256 };

/* One CreateAuthSession or SessionLogin on its way. Strings are borrowed from the payload, which
 * lives as long as the call. Freed in login_free(). */
struct login {
    struct rpc_call *call;
    const char *login, *session_key, *storage_pwd, *auth_nonce, *client_key; /* Create */
    const char *session_id;                                                  /* SessionLogin */
    int64_t time_ms;
    uint8_t client_key_bytes[DM_KEY_BYTES], session_key_bytes[DM_KEY_BYTES];
    uint8_t signature[DM_SIG_BYTES];
    char nonce[SESSION_NONCE_LEN + 1];
    char new_id[SHINE_SESSION_ID_LEN + 2]; /* room for the padding that is cut off */
    char *client_info;                     /* JSON text, or NULL */
    enum store_event_mode mode;
};

static void login_free(struct login *l)
{
    free(l->client_info);
    free(l);
}

static void login_fail(struct login *l, enum rpc_error e, const char *message)
{
    rpc_fail(l->call, e, message);
    login_free(l);
}

static void login_fail_db(struct login *l, enum db_status st)
{
    frontd_fail_db(l->call, st);
    login_free(l);
}

/* --- fields and checks that both log-ins share --- */

/* false with the problem noted in `f`. */
static bool read_client_info(struct rpc_fields *f, struct login *l)
{
    const json_t *info = json_object_get(f->payload, "clientInfo");
    static const char wrong[] = "clientInfo must be a text or an object of at most 4096 bytes";
    if (f->problem[0])
        return false;
    if (!info || json_is_null(info))
        return true;
    if (json_is_string(info) || json_is_object(info))
        l->client_info = json_dumps(info, JSON_COMPACT | JSON_ENCODE_ANY);
    if (l->client_info && strlen(l->client_info) <= CLIENT_INFO_MAX)
        return true;
    memcpy(f->problem, wrong, sizeof wrong);
    return false;
}

static bool read_event_mode(struct rpc_fields *f, struct login *l)
{
    static const char wrong[] = "eventMode must be live or pts";
    const char *mode = "live";
    if (!rpc_str_opt(f, "eventMode", FIELD_MAX, &mode))
        return false;
    l->mode = strcmp(mode, "pts") == 0 ? STORE_EVENTS_PTS : STORE_EVENTS_LIVE;
    if (l->mode == STORE_EVENTS_PTS || strcmp(mode, "live") == 0)
        return true;
    memcpy(f->problem, wrong, sizeof wrong);
    return false;
}

static bool read_common(struct rpc_fields *f, struct login *l)
{
    return rpc_str(f, "sessionKey", FIELD_MAX, &l->session_key) &&
           rpc_int(f, "timeMs", 0, DM_INT_MAX, &l->time_ms) &&
           rpc_bytes(f, "signatureB64", l->signature, sizeof l->signature) &&
           read_event_mode(f, l) && read_client_info(f, l);
}

static bool read_session_key(struct login *l)
{
    static const size_t prefix = sizeof SESSION_KEY_PREFIX - 1;
    return strncmp(l->session_key, SESSION_KEY_PREFIX, prefix) == 0 &&
           base64_decode_exact(l->session_key + prefix, l->session_key_bytes,
                               sizeof l->session_key_bytes);
}

/* Clock and nonce; false if the call was answered (and `l` freed). */
static bool check_fresh(struct login *l, enum session_nonce kind, const char *subject)
{
    char message[160];
    if (!auth_time_ok(l->time_ms, message, sizeof message)) {
        login_fail(l, RPC_TIME_SKEW, message);
        return false;
    }
    bool taken = session_nonce_take(session_of(l->call), kind, subject, l->nonce);
    if (!taken || (l->auth_nonce && strcmp(l->auth_nonce, l->nonce) != 0)) {
        login_fail(l, RPC_AUTH_NONCE_MISMATCH,
                   "ask for a nonce on this connection, use it once and within 60 s");
        return false;
    }
    return true;
}

static void log_in(struct login *l, const char *session_id, const struct store_session *row)
{
    const struct session_identity id = {
        .login = row->login,
        .session_id = session_id,
        .generation = row->generation,
        .epoch = row->epoch,
        .last_pts = row->last_pts,
        .pts_mode = l->mode == STORE_EVENTS_PTS,
    };
    session_log_in(session_of(l->call), &id);
}

/* --- AuthChallenge, CreateAuthSession --- */

static void auth_challenge_done(void *ctx, enum db_status st, const struct store_user *user)
{
    struct rpc_call *call = ctx;
    if (st != DB_OK)
        frontd_fail_db(call, st);
    else if (!user)
        rpc_fail(call, RPC_UNKNOWN_USER, "no such user here");
    else
        rpc_reply(call,
                  json_pack("{s:s}", "authNonce",
                            session_nonce_new(session_of(call), SESSION_NONCE_AUTH, user->login)));
}

void frontd_auth_challenge(struct rpc_call *call)
{
    struct rpc_fields f = rpc_fields_of(rpc_payload(call));
    const char *login;
    if (!rpc_str(&f, "login", FIELD_MAX, &login))
        rpc_fail(call, RPC_BAD_FIELDS, f.problem);
    else if (!dm_login_valid(login))
        rpc_fail(call, RPC_UNKNOWN_USER, "no such user here");
    else if (frontd_configured(call))
        store_get_user(frontd_of(call)->store, login, auth_challenge_done, call);
}

static void create_done(void *ctx, enum db_status st, const struct store_session *row)
{
    struct login *l = ctx;
    if (st != DB_OK) {
        login_fail_db(l, st);
        return;
    }
    if (row->verdict != STORE_SESSION_OK) {
        bool many = row->verdict == STORE_SESSION_TOO_MANY;
        login_fail(l, many ? RPC_TOO_MANY_SESSIONS : RPC_UNKNOWN_USER,
                   many ? "this user has as many sessions as are allowed" : "no such user here");
        return;
    }
    json_t *payload = json_pack("{s:s, s:I, s:I}", "sessionId", l->new_id, "epoch",
                                (json_int_t)row->epoch, "lastPts", (json_int_t)row->last_pts);
    log_in(l, l->new_id, row);
    rpc_reply(l->call, payload);
    login_free(l);
}

/* A fresh session id: 32 random bytes, Base64 without the padding. */
static void make_session_id(struct login *l)
{
    unsigned char bytes[32];
    randombytes_buf(bytes, sizeof bytes);
    base64_encode(bytes, sizeof bytes, l->new_id);
    l->new_id[SHINE_SESSION_ID_LEN] = '\0';
}

static bool create_signature_ok(const struct login *l)
{
    char *text = xasprintf("AUTH_CREATE_SESSION:%s:%s:%s:%" PRId64 ":%s", l->login, l->session_key,
                           l->storage_pwd, l->time_ms, l->auth_nonce);
    bool ok = auth_verify(text, l->signature, l->client_key_bytes);
    free(text);
    return ok;
}

static void create_user_found(void *ctx, enum db_status st, const struct store_user *user)
{
    struct login *l = ctx;
    if (st != DB_OK) {
        login_fail_db(l, st);
        return;
    }
    if (!user) {
        login_fail(l, RPC_UNKNOWN_USER, "no such user here");
        return;
    }
    if (sodium_memcmp(user->client_key, l->client_key_bytes, DM_KEY_BYTES) != 0) {
        login_fail(l, RPC_CLIENT_KEY_NOT_ACTUAL, "clientKey is not the user's key");
        return;
    }
    if (!create_signature_ok(l)) {
        login_fail(l, RPC_BAD_SIGNATURE, "the request is not signed by clientKey");
        return;
    }
    struct frontd *fr = frontd_of(l->call);
    make_session_id(l);
    struct store_new_session n = {
        .session_id = l->new_id,
        .login = l->login,
        .storage_pwd = l->storage_pwd,
        .client_info = l->client_info,
        .mode = l->mode,
        .max_per_user = (unsigned)config_int(fr->config, "limits.sessionsPerUser"),
    };
    memcpy(n.session_key, l->session_key_bytes, sizeof n.session_key);
    store_create_session(fr->store, &n, create_done, l);
}

void frontd_create_auth_session(struct rpc_call *call)
{
    if (!frontd_configured(call))
        return;
    struct rpc_fields f = rpc_fields_of(rpc_payload(call));
    struct login *l = xnew(struct login);
    l->call = call;
    if (!rpc_str(&f, "login", FIELD_MAX, &l->login) ||
        !rpc_str_opt(&f, "storagePwd", STORAGE_PWD_MAX, &l->storage_pwd) ||
        !rpc_str(&f, "authNonce", FIELD_MAX, &l->auth_nonce) ||
        !rpc_str(&f, "clientKey", FIELD_MAX, &l->client_key) || !read_common(&f, l)) {
        login_fail(l, RPC_BAD_FIELDS, f.problem);
        return;
    }
    if (!l->storage_pwd || strchr(l->storage_pwd, ':')) {
        login_fail(l, RPC_BAD_FIELDS, "storagePwd is missing or contains a colon");
        return;
    }
    if (!read_session_key(l) ||
        !base64_decode_exact(l->client_key, l->client_key_bytes, sizeof l->client_key_bytes)) {
        login_fail(l, RPC_BAD_KEY_FORMAT,
                   "clientKey must be Base64 of 32 bytes, sessionKey the same after ed25519/");
        return;
    }
    if (!dm_login_valid(l->login)) {
        login_fail(l, RPC_UNKNOWN_USER, "no such user here");
        return;
    }
    if (check_fresh(l, SESSION_NONCE_AUTH, l->login))
        store_get_user(frontd_of(call)->store, l->login, create_user_found, l);
}

/* --- SessionChallenge, SessionLogin --- */

static void session_challenge_done(void *ctx, enum db_status st, const struct store_session *row)
{
    struct rpc_call *call = ctx;
    if (st != DB_OK) {
        frontd_fail_db(call, st);
        return;
    }
    if (row->verdict != STORE_SESSION_OK) {
        rpc_fail(call, RPC_SESSION_NOT_FOUND, "no such session");
        return;
    }
    const char *id = json_string_value(json_object_get(rpc_payload(call), "sessionId"));
    rpc_reply(call, json_pack("{s:s}", "nonce",
                              session_nonce_new(session_of(call), SESSION_NONCE_LOGIN, id)));
}

void frontd_session_challenge(struct rpc_call *call)
{
    struct rpc_fields f = rpc_fields_of(rpc_payload(call));
    const char *id;
    if (!rpc_str(&f, "sessionId", FIELD_MAX, &id))
        rpc_fail(call, RPC_BAD_FIELDS, f.problem);
    else if (strlen(id) != SHINE_SESSION_ID_LEN)
        rpc_fail(call, RPC_SESSION_NOT_FOUND, "no such session");
    else if (frontd_configured(call))
        store_get_session(frontd_of(call)->store, id, session_challenge_done, call);
}

static void session_login_done(void *ctx, enum db_status st, const struct store_session *row)
{
    struct login *l = ctx;
    if (st != DB_OK) {
        login_fail_db(l, st);
        return;
    }
    if (row->verdict != STORE_SESSION_OK) {
        login_fail(l, RPC_SESSION_NOT_FOUND, "no such session");
        return;
    }
    json_t *payload = json_pack("{s:s, s:s, s:I, s:I, s:I}", "storagePwd", row->storage_pwd,
                                "login", row->login, "epoch", (json_int_t)row->epoch, "lastPts",
                                (json_int_t)row->last_pts, "ackedPts", (json_int_t)row->acked_pts);
    log_in(l, l->session_id, row);
    rpc_reply(l->call, payload);
    login_free(l);
}

static void session_found(void *ctx, enum db_status st, const struct store_session *row)
{
    struct login *l = ctx;
    if (st != DB_OK) {
        login_fail_db(l, st);
        return;
    }
    if (row->verdict != STORE_SESSION_OK) {
        login_fail(l, RPC_SESSION_NOT_FOUND, "no such session");
        return;
    }
    char *text = xasprintf("SESSION_LOGIN:%s:%" PRId64 ":%s", l->session_id, l->time_ms, l->nonce);
    /* The key that counts is the stored one. */
    bool ok = sodium_memcmp(row->session_key, l->session_key_bytes, DM_KEY_BYTES) == 0 &&
              auth_verify(text, l->signature, row->session_key);
    free(text);
    if (ok)
        store_login_session(frontd_of(l->call)->store, l->session_id, l->client_info, l->mode,
                            session_login_done, l);
    else
        login_fail(l, RPC_BAD_SIGNATURE, "the request is not signed by the session's key");
}

void frontd_session_login(struct rpc_call *call)
{
    if (!frontd_configured(call))
        return;
    struct rpc_fields f = rpc_fields_of(rpc_payload(call));
    struct login *l = xnew(struct login);
    l->call = call;
    if (!rpc_str(&f, "sessionId", FIELD_MAX, &l->session_id) || !read_common(&f, l)) {
        login_fail(l, RPC_BAD_FIELDS, f.problem);
        return;
    }
    if (!read_session_key(l)) {
        login_fail(l, RPC_BAD_KEY_FORMAT, "sessionKey must be ed25519/ and Base64 of 32 bytes");
        return;
    }
    if (strlen(l->session_id) != SHINE_SESSION_ID_LEN) {
        login_fail(l, RPC_SESSION_NOT_FOUND, "no such session");
        return;
    }
    if (check_fresh(l, SESSION_NONCE_LOGIN, l->session_id))
        store_get_session(frontd_of(call)->store, l->session_id, session_found, l);
}
