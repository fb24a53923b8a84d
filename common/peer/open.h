/*
 * Everything that a daemon needs to call other servers, from its configuration: the partners in
 * memory, the pool, its report. In a daemon's start(): peers_open(); in its stop(), when nobody
 * calls any more: peers_close().
 */
#ifndef SHINE_PEER_OPEN_H
#define SHINE_PEER_OPEN_H

#include <stdbool.h>
#include <uv.h>

#include "peer/auth.h"
#include "peer/partners.h"
#include "peer/peer.h"
#include "peer/report.h"
#include "util/config.h"

struct peers {
    struct partners *partners;
    struct peer_auth *auth; /* how this server proves who it is, and judges others */
    struct peer_pool *pool;
    struct peer_report *report;
    /* Private. */
    struct tls_ctx *tls;
    unsigned open;
    void (*on_closed)(void *ctx);
    void *closed_ctx;
};

/* What `server.auth`, `server.keyFile`, `server.url` and `server.urlAliases` say. NULL with *error
 * as of peer_auth_new(). */
struct peer_auth *peer_auth_open(const struct config *config, char **error);

/* NULL if the configuration cannot be used (tls.caFile, server.keyFile; logged). `config` and
 * `store` are borrowed until the close callback. */
struct peers *peers_open(uv_loop_t *loop, const struct config *config, struct store *store);
/* End every call and connection, and free all; `on_closed` follows, before the database may be
 * closed. */
void peers_close(struct peers *p, void (*on_closed)(void *ctx), void *ctx);

#endif
