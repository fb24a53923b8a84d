/*
 * One frontd worker: what its modules share. Made by worker.c, reached by handlers through
 * frontd_of(), never global.
 */
#ifndef SHINE_FRONTD_FRONTD_H
#define SHINE_FRONTD_FRONTD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/daemon.h"
#include "delivery/delivery.h"
#include "directory/directory.h"
#include "frontd/limits.h"
#include "peer/auth.h"
#include "peer/partners.h"
#include "peer/peer.h"
#include "rpc/dispatch.h"

struct due;
struct pump;
struct sessions;

struct frontd {
    struct daemon *daemon;
    uv_loop_t *loop;             /* daemon->loop */
    const struct config *config; /* daemon->config */
    struct store *store;         /* daemon->store */
    struct directory *directory;
    struct partners *partners; /* table sync_servers */
    struct peer_auth *auth;    /* how this server proves who it is, and judges others */
    struct peer_pool *peers;
    struct delivery *delivery;
    struct pump *pump;
    struct due *due;
    struct sessions *sessions;
    struct limits *limits;
    struct rpc_table *ops;

    /* Settings read on hot paths, taken from `config` once. */
    const char *server_login; /* "" = not configured: operations answer frontd_configured() */
    int64_t max_future_ms;    /* dm.maxFutureMs */
    size_t client_body_bytes; /* limits.clientBodyBytes */
    size_t max_answer_bytes;  /* limits.maxAnswerBytes */
    uint32_t first_reply_budget_ms;

    unsigned sync_pages; /* requests of second servers under way (op_sync.c) */
    unsigned passing_on; /* calls that tell others of a profile, under way (op_profile.c) */
};

/* The worker that serves a call. */
static inline struct frontd *frontd_of(const struct rpc_call *call)
{
    return (struct frontd *)rpc_server(call);
}

/* True if this server has a login; otherwise the call was answered with LOCAL_SERVER_NOT_CONFIGURED
 * and is over. For operations that depend on who this server is. */
bool frontd_configured(struct rpc_call *call);
/* End `call` for a status that is not DB_OK: 503 DB_UNAVAILABLE or 500 INTERNAL_ERROR. */
void frontd_fail_db(struct rpc_call *call, enum db_status st);
/* The answer to a look-up that failed: 503 DIRECTORY_UNAVAILABLE with a moment to wait, or what
 * frontd_fail_db() answers if it was our own table. */
void frontd_fail_directory(struct rpc_call *call, enum directory_result r);

/* True if `call` may go on by the limit `kind` for `key`; otherwise it was answered with
 * RATE_LIMITED and is over. */
bool frontd_within_limit(struct rpc_call *call, enum limit_kind kind, const char *key);

/* --- identity.c --- */

/* The server that a call is believed to come from, NULL if none is: who said ServerHello on this
 * connection, if that is believed; without ServerHello `source_server_login` as the request names
 * it (NULL or "" = not at all), unless a key is known for that login. Copy it before control
 * returns to the loop. */
const char *frontd_source_of(struct rpc_call *call, const char *source_server_login);
/* True if a key is known for this server login, so that its word alone is not enough; also while
 * sync_servers has not been read yet. */
bool frontd_peer_key_known(const struct frontd *f, const char *server_login);
/* True if the operator has entered this server in sync_servers. */
bool frontd_is_partner(const struct frontd *f, const char *server_login);
/* True if the operator has blocked this server: nothing is accepted from it. */
bool frontd_peer_blocked(const struct frontd *f, const char *server_login);
/* The same of who calls: by its ServerHello, or by the name in the request (NULL or "" = none),
 * believed or not. */
bool frontd_caller_blocked(struct rpc_call *call, const char *source_server_login);

#endif
