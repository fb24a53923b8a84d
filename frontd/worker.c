/*
 * A worker's parts put together and taken apart.
 *
 * Grades of failure: sockets or certificates that cannot be used are "cannot continue"; the master
 * tries again with backoff. A master that is gone ends the worker in an orderly way, so that a new
 * one finds the address free.
 */
#include "frontd/worker.h"

#include "daemon/admin.h"
#include "daemon/settings.h"
#include "frontd/due.h"
#include "frontd/frontd.h"
#include "frontd/ops.h"
#include "frontd/pump.h"
#include "frontd/session.h"
#include "net/tls.h"
#include "peer/open.h"
#include "store/claims.h"
#include "util/log.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

enum {
    IN_FLIGHT_MS = 10 * 1000, /* for requests in flight when the worker stops */
    RETRY_AFTER_MS = 1000,    /* told to clients while the database or directory is away */
    MISSING_TTL_MS = 1000,    /* another process may add the user at any time */
    DIRECTORY_ENTRIES = 200000,
    LIMIT_ENTRIES = 100000, /* users, addresses, servers; of each */
};

struct worker {
    struct frontd f; /* first: reached from it */
    struct tls_ctx *server_tls;
    struct peers *peers;
    struct ws_listener *sockets[WORKER_SOCKETS_MAX];
    size_t n_sockets;
    struct admin *admin;
    unsigned parts_open;  /* stopping: delivery and peers */
    uv_pipe_t master;     /* ends with the master */
    char from_master[16]; /* which never writes */
};

/* --- what handlers share --- */

bool frontd_configured(struct rpc_call *call)
{
    if (*frontd_of(call)->server_login)
        return true;
    rpc_fail(call, RPC_LOCAL_SERVER_NOT_CONFIGURED, "server.SHiNE.login is not set");
    return false;
}

void frontd_fail_db(struct rpc_call *call, enum db_status st)
{
    shine_assert(st != DB_OK);
    if (st == DB_UNAVAILABLE)
        rpc_fail_retry(call, RPC_DB_UNAVAILABLE, "the database is not available", RETRY_AFTER_MS);
    else
        rpc_fail(call, RPC_INTERNAL_ERROR, "the database refused; the server's log says why");
}

void frontd_fail_directory(struct rpc_call *call, enum directory_result r)
{
    shine_assert(directory_failed(r));
    if (r != DIRECTORY_UNAVAILABLE) {
        frontd_fail_db(call, r == DIRECTORY_DB_UNAVAILABLE ? DB_UNAVAILABLE : DB_ERROR);
        return;
    }
    rpc_fail_retry(call, RPC_DIRECTORY_UNAVAILABLE, "the user could not be looked up",
                   RETRY_AFTER_MS);
}

bool frontd_within_limit(struct rpc_call *call, enum limit_kind kind, const char *key)
{
    int64_t wait_ms = limits_take(frontd_of(call)->limits, kind, key);
    if (wait_ms == 0)
        return true;
    rpc_fail_retry(call, RPC_RATE_LIMITED, "too many requests", wait_ms);
    return false;
}

/* --- start --- */

static bool fail(const char *what, char *reason)
{
    log_error(what, LOG_S("reason", reason));
    free(reason);
    return false;
}

static bool open_tls(struct worker *w, bool listens_tls)
{
    const struct config *c = w->f.config;
    char *error = NULL;
    if (listens_tls)
        w->server_tls =
            tls_server_new(config_str(c, "tls.certFile"), config_str(c, "tls.keyFile"), &error);
    return w->server_tls || !listens_tls || fail("bad_certificate", error);
}

static bool open_socket(struct worker *w, char kind, int fd)
{
    char *error = NULL;
    if (kind == WORKER_SOCKET_ADMIN)
        return admin_serve(w->admin, fd);
    struct ws_listener *l =
        ws_listen(w->f.loop, fd, kind == WORKER_SOCKET_TLS ? w->server_tls : NULL, "/ws",
                  sessions_limits(w->f.sessions), sessions_accept, w->f.sessions, &error);
    if (!l)
        return fail("cannot_listen", error);
    w->sockets[w->n_sockets++] = l;
    return true;
}

static bool open_sockets(struct worker *w, const char *kinds)
{
    w->admin = admin_new(w->f.daemon);
    for (size_t i = 0; kinds[i]; i++)
        if (!open_socket(w, kinds[i], WORKER_SOCKET_FD + (int)i))
            return false;
    return true;
}

static void open_parts(struct worker *w, struct daemon *d)
{
    struct frontd *f = &w->f;
    const struct config *c = d->config;
    f->server_login = config_str(c, "server.SHiNE.login");
    f->max_future_ms = config_int(c, "dm.maxFutureMs");
    f->client_body_bytes = (size_t)config_int(c, "limits.clientBodyBytes");
    f->max_answer_bytes = (size_t)config_int(c, "limits.maxAnswerBytes");
    f->first_reply_budget_ms = (uint32_t)config_int(c, "delivery.firstReplyBudgetMs");
    f->store = d->store;
    f->directory = directory_new(f->loop, f->store, config_int(c, "directory.ttlSeconds") * 1000,
                                 MISSING_TTL_MS, DIRECTORY_ENTRIES);
    f->partners = w->peers->partners;
    f->auth = w->peers->auth;
    f->peers = w->peers->pool;
    /* Without a name of our own we cannot call anybody. */
    if (*f->server_login && config_bool(c, "sync.importUserProfileFromPartner.enabled"))
        directory_ask_others(f->directory, f->peers, &import_limits_default);
    const struct delivery_config dc = {
        .server_login = f->server_login,
        .max_in_flight = (uint32_t)config_int(c, "delivery.firstAttemptMaxInFlight"),
        .directory = f->directory,
    };
    f->delivery = delivery_new(f->loop, f->store, f->peers, &dc);
    f->pump = pump_new(f);
    f->due = due_new(f->loop, f->store);
    int64_t schedule[SETTINGS_ATTEMPTS_MAX];
    store_set_schedule(f->store, schedule, settings_schedule(c, schedule));
    f->ops = rpc_table_new(frontd_ops);
    f->limits = limits_new(c, LIMIT_ENTRIES);
    w->f.sessions = sessions_new(f);
}

/* --- the master, signals --- */

static void master_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    struct worker *w = h->data;
    (void)suggested;
    *buf = uv_buf_init(w->from_master, sizeof w->from_master);
}

static void master_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    struct worker *w = s->data;
    (void)buf;
    if (n >= 0)
        return;
    (void)uv_read_stop(s);
    log_warn("master_gone");
    daemon_stop(w->f.daemon, "master gone");
}

static bool watch_master(struct worker *w)
{
    w->master.data = w;
    shine_assert(uv_pipe_init(w->f.loop, &w->master, 0) == 0);
    int r = uv_pipe_open(&w->master, WORKER_PIPE_FD);
    if (r == 0)
        r = uv_read_start((uv_stream_t *)&w->master, master_alloc, master_read);
    return r == 0 || fail("no_master", xstrdup(uv_strerror(r)));
}

static bool worker_start(struct daemon *d)
{
    struct worker *w = xnew(struct worker);
    const char *kinds = getenv(WORKER_SOCKETS_ENV);
    d->own = w;
    w->f.daemon = d;
    w->f.loop = d->loop;
    w->f.config = d->config;
    if (!kinds || strlen(kinds) > WORKER_SOCKETS_MAX)
        return fail("no_master", xstrdup("--worker is for the master's use"));
    if (!watch_master(w) || !open_tls(w, strchr(kinds, WORKER_SOCKET_TLS)))
        return false;
    w->peers = peers_open(d->loop, d->config, d->store);
    if (!w->peers)
        return false;
    open_parts(w, d);
    return open_sockets(w, kinds);
}

/* --- stop --- */

static void part_closed(struct worker *w)
{
    if (--w->parts_open > 0)
        return;
    pump_stop(w->f.pump);
    due_free(w->f.due);
    daemon_stopped(w->f.daemon);
}

static void attempts_recorded(void *ctx)
{
    part_closed(ctx);
}

static void peers_closed(void *ctx)
{
    part_closed(ctx);
}

/* Attempts end because the peers' calls do; new ones are handed over to deliveryd. */
static void sessions_gone(void *ctx)
{
    struct worker *w = ctx;
    w->parts_open = 2;
    directory_stop(w->f.directory);
    delivery_drain(w->f.delivery, attempts_recorded, w);
    peers_close(w->peers, peers_closed, w);
}

static void worker_stop(struct daemon *d)
{
    struct worker *w = d->own;
    for (size_t i = 0; i < w->n_sockets; i++)
        ws_listener_close(w->sockets[i]);
    w->n_sockets = 0;
    sessions_stop(w->f.sessions, IN_FLIGHT_MS, sessions_gone, w);
}

static void master_closed(uv_handle_t *h)
{
    struct worker *w = h->data;
    free(w);
}

/* Every call has ended: nothing refers to the parts any more. */
static void worker_closed(struct daemon *d)
{
    struct worker *w = d->own;
    admin_close(w->admin);
    sessions_free(w->f.sessions);
    limits_free(w->f.limits);
    pump_free(w->f.pump);
    delivery_free(w->f.delivery);
    directory_free(w->f.directory);
    rpc_table_free(w->f.ops);
    tls_ctx_free(w->server_tls);
    uv_close((uv_handle_t *)&w->master, master_closed);
}

static void worker_reload(struct daemon *d)
{
    struct worker *w = d->own;
    char *error = NULL;
    partners_refresh(w->f.partners);
    if (!w->server_tls)
        return;
    if (tls_server_reload(w->server_tls, &error))
        log_info("certificate_reloaded");
    else
        (void)fail("bad_certificate", error); /* the old one stays */
}

int worker_run(struct daemon *d)
{
    static const struct daemon_spec spec = {
        .kind = "frontd",
        .needs_db = true,
        .start = worker_start,
        .stop = worker_stop,
        .closed = worker_closed,
        .reload = worker_reload,
    };
    return daemon_run(d, &spec);
}
