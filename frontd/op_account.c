/*
 * Operations about the server and about users: Ping, GetServerInfo, AddUser, GetUser.
 *
 * Grades of failure: environment (answered).
 */
#include "frontd/frontd.h"
#include "frontd/ops.h"

#include "daemon/settings.h"
#include "directory/record.h"
#include "frontd/auth.h"
#include "frontd/session.h"
#include "peer/hello.h"
#include "rpc/fields.h"
#include "store/profiles.h"
#include "util/base64.h"
#include "util/clock.h"
#include "util/mem.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PROTOCOL_VERSION 1
enum { KEY_TEXT_MAX = 64 };

void frontd_ping(struct rpc_call *call)
{
    struct rpc_fields f = rpc_fields_of(rpc_payload(call));
    int64_t ts = clock_wall_ms();
    if (rpc_int_opt(&f, "ts", -DM_INT_MAX, DM_INT_MAX, &ts))
        rpc_reply(call, json_pack("{s:I}", "ts", (json_int_t)ts));
    else
        rpc_fail(call, RPC_BAD_FIELDS, f.problem);
}

static json_t *limit(const struct config *c, const char *key)
{
    return json_integer(config_int(c, key));
}

void frontd_get_server_info(struct rpc_call *call)
{
    const struct config *c = frontd_of(call)->config;
    json_t *limits = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o}", "clientBodyBytes", limit(c, "limits.clientBodyBytes"),
        "maxMessageBytes", limit(c, "ws.maxMessageBytes"), "maxAnswerBytes",
        limit(c, "limits.maxAnswerBytes"), "inFlightPerConnection",
        limit(c, "limits.inFlightPerConnection"), "sessionsPerUser",
        limit(c, "limits.sessionsPerUser"), "maxFutureMs", limit(c, "dm.maxFutureMs"));
    rpc_reply(call, json_pack("{s:s, s:s, s:s, s:s, s:i, s:o, s:o}", "serverLogin",
                              config_str(c, "server.SHiNE.login"), "url",
                              config_str(c, "server.url"), "version", SHINE_VERSION, "description",
                              config_str(c, "server.description"), "protocolVersion",
                              PROTOCOL_VERSION, "capabilities",
                              peer_capabilities(frontd_of(call)->auth), "limits", limits));
}

/* --- GetUser --- */

static void get_user_done(void *ctx, enum db_status st, const struct store_user *user)
{
    struct rpc_call *call = ctx;
    char key[KEY_TEXT_MAX];
    if (st != DB_OK) {
        frontd_fail_db(call, st);
        return;
    }
    if (!user) {
        rpc_reply(call, json_pack("{s:b}", "exists", 0));
        return;
    }
    base64_encode(user->client_key, sizeof user->client_key, key);
    json_t *servers = json_array();
    for (unsigned i = 0; i < user->n_servers; i++)
        (void)json_array_append_new(servers,
                                    json_pack("{s:s, s:s}", "serverLogin", user->servers[i].login,
                                              "url", user->servers[i].url));
    json_t *profile = user->profile ? json_loads(user->profile, 0, NULL) : NULL;
    rpc_reply(call, json_pack("{s:b, s:s, s:s, s:o, s:s, s:s*, s:s*, s:o*}", "exists", 1, "login",
                              user->login, "clientKey", key, "accessServers", servers, "source",
                              user->source, "encKey", user->enc_key, "encKeySigB64",
                              user->enc_key_sig, "profile", profile));
}

static void get_user_looked_up(void *ctx, enum directory_result r, const struct directory_user *u)
{
    struct rpc_call *call = ctx;
    (void)u;
    if (directory_failed(r))
        frontd_fail_directory(call, r);
    else
        store_get_user(frontd_of(call)->store,
                       json_string_value(json_object_get(rpc_payload(call), "login")),
                       get_user_done, call);
}

/* Reads the table, not the cache: the access servers may have changed. */
void frontd_get_user(struct rpc_call *call)
{
    struct frontd *fr = frontd_of(call);
    struct rpc_fields f = rpc_fields_of(rpc_payload(call));
    const char *login;
    bool look_up = false;
    if (!rpc_str(&f, "login", 256, &login) || !rpc_bool_opt(&f, "lookup", &look_up))
        rpc_fail(call, RPC_BAD_FIELDS, f.problem);
    else if (!dm_login_valid(login)) /* nobody can have it */
        rpc_reply(call, json_pack("{s:b}", "exists", 0));
    else if (look_up && session_login(session_of(call))) /* strangers and servers start none */
        directory_fetch(fr->directory, login, get_user_looked_up, call);
    else
        store_get_user(fr->store, login, get_user_done, call);
}

/* --- AddUser --- */

/* The request, borrowed from the payload, which lives as long as the call. Freed where it is
 * answered. */
struct add_user {
    struct rpc_call *call;
    const char *login, *client_key, *enc_key, *enc_key_sig;
    int64_t time_ms;
    uint8_t signature[DM_SIG_BYTES];
    struct store_user user;
};

/* `message` may be filled in place: it lives in the caller. */
static enum rpc_error check_proof(struct rpc_fields *f, struct add_user *a, char message[160])
{
    const char *sentence;
    if (!rpc_int(f, "timeMs", 0, DM_INT_MAX, &a->time_ms) ||
        !rpc_bytes(f, "signatureB64", a->signature, sizeof a->signature))
        return RPC_BAD_FIELDS;
    if (!auth_time_ok(a->time_ms, message, 160))
        return RPC_TIME_SKEW;
    char *text = xasprintf("SHiNE_ADD_USER:%s:%s:%" PRId64, a->login, a->client_key, a->time_ms);
    bool ok = auth_verify(text, a->signature, a->user.client_key);
    free(text);
    sentence = "the request is not signed by the key it adds";
    memcpy(message, sentence, strlen(sentence) + 1);
    return ok ? RPC_OK : RPC_BAD_SIGNATURE;
}

/*
 * Added at once if this server knows the login already (the table decides); otherwise when no other
 * server knows it:
 *
 *   add_user_known -> add_user_elsewhere -> add_user_done
 *         \____________________________________^
 */
static void add_user_known(void *ctx, enum db_status st, const struct store_user *user);
static void add_user_elsewhere(void *ctx, enum directory_result r, const struct directory_user *u);
static void add_user_done(void *ctx, enum db_status st, enum store_add verdict);

static void add_user_known(void *ctx, enum db_status st, const struct store_user *user)
{
    struct add_user *a = ctx;
    struct frontd *fr = frontd_of(a->call);
    if (st != DB_OK)
        add_user_done(a, st, STORE_OTHER_KEY);
    else if (user || !config_bool(fr->config, "sync.importUserProfileFromPartner.enabled"))
        store_add_user(fr->store, &a->user, add_user_done, a);
    else
        directory_refresh(fr->directory, a->user.login, add_user_elsewhere, a);
}

/* Whoever has the login elsewhere stands in the table now. */
static void add_user_elsewhere(void *ctx, enum directory_result r, const struct directory_user *u)
{
    struct add_user *a = ctx;
    (void)u;
    if (!directory_failed(r)) {
        store_add_user(frontd_of(a->call)->store, &a->user, add_user_done, a);
        return;
    }
    /* A partner that cannot be asked may know somebody of this name: two users of one login could
     * not be told apart later. */
    frontd_fail_directory(a->call, r);
    free(a);
}

static void add_user_done(void *ctx, enum db_status st, enum store_add verdict)
{
    struct add_user *a = ctx;
    struct rpc_call *call = a->call;
    if (st != DB_OK) {
        frontd_fail_db(call, st);
    } else {
        directory_forget(frontd_of(call)->directory, a->user.login); /* it may stand as missing */
        if (verdict == STORE_ADDED)
            store_tell_user_changed(frontd_of(call)->store, a->user.login, NULL, NULL);
        if (verdict == STORE_OTHER_KEY)
            rpc_fail(call, RPC_USER_ALREADY_EXISTS, "the login exists with another key");
        else
            rpc_reply(call, json_object());
    }
    free(a);
}

/* Read and check the whole request; *message says what is wrong (it may be in `buffer`). */
static enum rpc_error add_user_read(struct frontd *fr, struct rpc_fields *f, struct add_user *a,
                                    const char **message, char buffer[160])
{
    if (!rpc_str(f, "login", 256, &a->login) || !rpc_str(f, "clientKey", 256, &a->client_key) ||
        !rpc_str_opt(f, "encKey", 256, &a->enc_key) ||
        !rpc_str_opt(f, "encKeySigB64", 256, &a->enc_key_sig))
        return RPC_BAD_FIELDS;
    *message = "a login is [a-z0-9_]{1,30}";
    if (!dm_login_valid(a->login))
        return RPC_BAD_LOGIN;
    *message = "clientKey must be Base64 of 32 bytes";
    if (!base64_decode_exact(a->client_key, a->user.client_key, sizeof a->user.client_key))
        return RPC_BAD_KEY_FORMAT;
    enum rpc_error e = record_read_servers(f, &a->user, message);
    if (e == RPC_OK)
        e = record_check_enc_key(a->login, a->user.client_key, a->enc_key, a->enc_key_sig, message);
    if (e == RPC_OK && config_bool(fr->config, "directory.addUserProof")) {
        e = check_proof(f, a, buffer);
        *message = buffer;
    }
    return e;
}

void frontd_add_user(struct rpc_call *call)
{
    struct frontd *fr = frontd_of(call);
    struct rpc_fields f = rpc_fields_of(rpc_payload(call));
    const char *message = "";
    char buffer[160] = "";
    if (config_enum(fr->config, "directory.addUser") != SETTINGS_ADD_USER_OPEN) {
        rpc_fail(call, RPC_ADD_USER_DISABLED, "users are added by this server's operator");
        return;
    }
    if (!frontd_within_limit(call, LIMIT_ADD_USER, session_remote(session_of(call))))
        return;
    struct add_user *a = xnew(struct add_user);
    a->call = call;
    enum rpc_error e = add_user_read(fr, &f, a, &message, buffer);
    if (e != RPC_OK) {
        rpc_fail(call, e, f.problem[0] ? f.problem : message);
        free(a);
        return;
    }
    memcpy(a->user.login, a->login, strlen(a->login) + 1);
    a->user.enc_key = a->enc_key;
    a->user.enc_key_sig = a->enc_key_sig;
    a->user.source = "local";
    store_get_user(fr->store, a->user.login, add_user_known, a);
}
