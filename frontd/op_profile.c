/*
 * UpsertUserProfile: a user says, signed, which servers are theirs.
 *
 *   judged -> published -> answered, passed on
 *      ^          |
 *      |          +-> looked up (nobody of that name here, or the key is a stranger's word)
 *      \______________/            once each
 *
 * Whoever accepts a newer profile passes it on to the access servers that the user has left and to
 * those that they have now. Only a newer one is passed on, so no loop can form. It is done once, as
 * well as it goes: a server that does not hear of it so compares its record with others' later
 * (directory.h).
 *
 * Grades of failure: environment (answered; a server that cannot be told is logged).
 */
#include "frontd/frontd.h"
#include "frontd/ops.h"

#include "directory/profile.h"
#include "frontd/session.h"
#include "util/log.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

/* Freed where the request is answered. */
struct upsert {
    struct rpc_call *call;
    struct profile profile;
    bool looked_up, confirmed;
};

static void publish(struct upsert *u);
static void on_published(void *ctx, enum db_status st, const struct store_published *r);
static void on_looked_up(void *ctx, enum directory_result r, const struct directory_user *user);

static void fail(struct upsert *u, enum rpc_error e, const char *message)
{
    rpc_fail(u->call, e, message);
    free(u);
}

void frontd_upsert_user_profile(struct rpc_call *call)
{
    if (!frontd_configured(call))
        return;
    struct upsert *u = xnew(struct upsert);
    const char *message = "";
    char buffer[160] = "";
    u->call = call;
    enum rpc_error e = profile_read(rpc_payload(call), &u->profile, &message, buffer);
    if (e != RPC_OK)
        fail(u, e, message);
    else
        publish(u);
}

static void publish(struct upsert *u)
{
    struct frontd *f = frontd_of(u->call);
    /* A server passes on what another one has judged: clocks differ, and all must agree. */
    bool from_server = session_peer(session_of(u->call)) != NULL;
    store_publish_profile(f->store, &u->profile.user, &u->profile.own,
                          from_server ? -1 : f->max_future_ms, on_published, u);
}

/* --- passing on --- */

/* Beyond it nobody is told: one user could make us call servers all day. */
enum { PASSING_ON_MAX = 200 };

struct reader {
    struct frontd *f;
    char login[DM_LOGIN_MAX + 1];
    char server[SHINE_SERVER_LOGIN_MAX + 1];
};

static void on_passed(void *ctx, const struct peer_answer *a)
{
    struct reader *r = ctx;
    if (a->result == PEER_ANSWER && a->status >= 200 && a->status <= 299)
        log_debug("profile_passed_on", LOG_S("login", r->login), LOG_S("peer", r->server));
    else
        log_info("profile_not_passed_on", LOG_S("login", r->login), LOG_S("peer", r->server),
                 LOG_I("status", a->status), LOG_S("error", a->error));
    r->f->passing_on--;
    free(r);
}

static void pass_on(struct frontd *f, const struct profile *p, const struct store_route *to)
{
    if (f->passing_on >= PASSING_ON_MAX) {
        log_info("profile_not_passed_on", LOG_S("login", p->user.login), LOG_S("peer", to->login),
                 LOG_S("error", "too_many_at_once"));
        return;
    }
    json_t *payload = json_loads(p->record, 0, NULL);
    shine_assert(payload);
    struct reader *r = xnew(struct reader);
    r->f = f;
    f->passing_on++;
    memcpy(r->login, p->user.login, sizeof r->login);
    memcpy(r->server, to->login, sizeof r->server);
    peer_call(f->peers, to->login, to->url, PEER_NORMAL, "UpsertUserProfile", payload, 0, on_passed,
              r);
}

/* --- what came of it --- */

static void applied(struct upsert *u, const struct store_published *r)
{
    struct frontd *f = frontd_of(u->call);
    const char *login = u->profile.user.login;
    log_info("profile_applied", LOG_S("login", login),
             LOG_S("server1", u->profile.user.servers[0].login),
             LOG_S("server2", u->profile.user.servers[1].login));
    directory_forget(f->directory, login);
    store_tell_user_changed(f->store, login, NULL, NULL);
    for (unsigned i = 0; i < r->n; i++)
        pass_on(f, &u->profile, &r->readers[i]);
}

/* A key that a stranger told us may be the wrong one: those with standing are asked, once, before a
 * profile is refused for its sake. */
static bool confirm(struct upsert *u, const struct store_published *r)
{
    if (!r->provisional || u->confirmed)
        return false;
    u->confirmed = true;
    directory_refresh(frontd_of(u->call)->directory, u->profile.user.login, on_looked_up, u);
    return true;
}

static void on_published(void *ctx, enum db_status st, const struct store_published *r)
{
    struct upsert *u = ctx;
    if (st != DB_OK) {
        frontd_fail_db(u->call, st);
        free(u);
        return;
    }
    switch (r->verdict) {
    case STORE_PROFILE_APPLIED:
        applied(u, r);
        break;
    case STORE_PROFILE_NOT_NEWER:
        break;
    case STORE_PROFILE_OTHER_KEY:
        if (!confirm(u, r))
            fail(u, RPC_CLIENT_KEY_NOT_ACTUAL, "the user has another key");
        return;
    case STORE_PROFILE_NOT_BELIEVED:
        if (!confirm(u, r))
            fail(u, RPC_LOCAL_SERVER_NOT_ACCESS_SERVER,
                 "no partner of this server knows the user: they are not served here");
        return;
    case STORE_PROFILE_TOO_EARLY:
        fail(u, RPC_TIME_SKEW, "timeMs is too far ahead of this server's clock");
        return;
    case STORE_PROFILE_NO_USER:
        if (u->looked_up) {
            fail(u, RPC_USER_NOT_FOUND, "the user is unknown here");
            return;
        }
        u->looked_up = true;
        const char *peer = frontd_source_of(u->call, NULL);
        directory_fetch_from(frontd_of(u->call)->directory, u->profile.user.login, peer ? peer : "",
                             on_looked_up, u);
        return;
    }
    rpc_reply(u->call, json_object());
    free(u);
}

/* If nobody knows the user, the table still does not, and the second verdict says so. */
static void on_looked_up(void *ctx, enum directory_result r, const struct directory_user *user)
{
    struct upsert *u = ctx;
    (void)user;
    if (directory_failed(r)) {
        frontd_fail_directory(u->call, r);
        free(u);
    } else {
        publish(u);
    }
}
