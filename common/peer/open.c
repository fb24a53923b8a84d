/*
 * Everything that a daemon needs to call other servers. See open.h.
 *
 * Raises: a configuration that cannot be used is handed to the caller (cannot continue).
 */
#include "peer/open.h"

#include <stdlib.h>

#include "net/tls.h"
#include "util/log.h"
#include "util/mem.h"

#define PARTNERS_MS 30000

static uint32_t ms_of(const struct config *c, const char *key)
{
    return (uint32_t)config_int(c, key) * 1000;
}

struct peer_auth *peer_auth_open(const struct config *c, char **error)
{
    const struct peer_auth_config ac = {.trust = (enum peer_trust)config_enum(c, "server.auth"),
                                        .key_file = config_str(c, "server.keyFile"),
                                        .url = config_str(c, "server.url"),
                                        .aliases = config_str(c, "server.urlAliases")};
    return peer_auth_new(&ac, error);
}

static struct peer_pool *open_pool(uv_loop_t *loop, const struct config *c, struct store *store,
                                   const struct peers *p)
{
    const struct peer_config pc = {
        .server_login = config_str(c, "server.SHiNE.login"),
        .tls = p->tls,
        .ping_idle_ms = ms_of(c, "server.pool.pingIdleSeconds"),
        .pong_timeout_ms = ms_of(c, "server.pool.pongTimeoutSeconds"),
        .request_timeout_ms = ms_of(c, "server.pool.requestTimeoutSeconds"),
        .connect_timeout_ms = ms_of(c, "server.pool.connectTimeoutSeconds"),
        .caller_timeout_ms = ms_of(c, "server.pool.callerTimeoutSeconds"),
        .max_queue_per_peer = (uint32_t)config_int(c, "server.pool.maxQueuePerPeer"),
        .max_in_flight_per_peer = (uint32_t)config_int(c, "server.pool.maxInFlightPerPeer"),
        .allow_private_addresses = config_bool(c, "server.pool.allowPrivateAddresses"),
        .max_peers = (uint32_t)config_int(c, "server.pool.maxPeers"),
        .dials_per_second = (uint32_t)config_int(c, "server.pool.dialsPerSecond"),
        .partners = p->partners,
        .store = store,
        .auth = p->auth,
        /* Without a name of our own we cannot introduce ourselves. */
        .eager = config_bool(c, "server.pool.eager") && *config_str(c, "server.SHiNE.login"),
    };
    return peer_pool_new(loop, &pc);
}

static struct peers *fail(const char *what, char *reason)
{
    log_error(what, LOG_S("reason", reason));
    free(reason);
    return NULL;
}

struct peers *peers_open(uv_loop_t *loop, const struct config *config, struct store *store)
{
    bool verify = config_bool(config, "tls.peerVerify");
    char *error = NULL;
    struct tls_ctx *tls = tls_client_new(config_str(config, "tls.caFile"), verify, &error);
    if (!tls)
        return fail("bad_ca_file", error);
    if (!verify)
        log_warn("peers_not_verified", LOG_S("key", "tls.peerVerify"));
    struct peer_auth *auth = peer_auth_open(config, &error);
    if (!auth) {
        tls_ctx_free(tls);
        return fail("bad_server_key", error);
    }
    struct peers *p = xnew(struct peers);
    p->tls = tls;
    p->auth = auth;
    p->partners = partners_new(loop, store, PARTNERS_MS);
    peer_auth_use(auth, p->partners);
    p->pool = open_pool(loop, config, store, p);
    p->report = peer_report_new(loop, p->pool, store);
    return p;
}

static void part_closed(void *ctx)
{
    struct peers *p = ctx;
    if (--p->open > 0)
        return;
    void (*on_closed)(void *ctx) = p->on_closed;
    void *closed_ctx = p->closed_ctx;
    tls_ctx_free(p->tls);
    peer_auth_free(p->auth);
    free(p);
    on_closed(closed_ctx);
}

void peers_close(struct peers *p, void (*on_closed)(void *ctx), void *ctx)
{
    p->open = 3;
    p->on_closed = on_closed;
    p->closed_ctx = ctx;
    peer_report_close(p->report, part_closed, p);
    peer_pool_close(p->pool, part_closed, p);
    partners_close(p->partners, part_closed, p);
}
