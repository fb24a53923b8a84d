/*
 * A daemon's life on its loop: signals, database, schema check, process row, orderly stop.
 *
 *   run -> start() -> [database reachable -> schema checked -> registered, heartbeat]
 *       -> SIGTERM or daemon_stop(): stop() -> daemon_stopped() -> unregistered -> pool closed ->
 * end
 *
 * Grades of failure: a database that is away is environment, the daemon waits for it. An unusable
 * schema, a start() that fails and a stop that does not end are "cannot continue": exit 1 or 3.
 */
#include "daemon/core.h"

#include "daemon/notify.h"
#include "db/migrate.h"
#include "store/sessions.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    HEARTBEAT_MS = 10 * 1000,
    STOP_MS = 20 * 1000,
    UNREGISTER_MS = 3 * 1000,
    RECHECK_MS = 1000,
    /* A check may fail because the database just went away; one that fails so often while the pool
     * is connected means what it says. */
    CHECK_FAILURES_MAX = 3,
};

static const int signal_numbers[DAEMON_SIGNALS] = {SIGTERM, SIGINT, SIGHUP};

/* --- schema, process row, heartbeat --- */

static void heartbeat(uv_timer_t *t)
{
    struct daemon *d = t->data;
    if (db_pool_ready(d->db))
        store_process_heartbeat(d->store, d->spec->kind, d->core->host, getpid());
}

static void registered(void *ctx, enum db_status st)
{
    struct daemon *d = ctx;
    if (st != DB_OK) /* the heartbeat registers as well */
        log_warn("process_not_registered", LOG_S("process", d->process_id));
}

static void start_check(struct daemon *d);

static void check_again(uv_timer_t *t)
{
    start_check(t->data);
}

static void check_work(uv_work_t *w)
{
    struct daemon *d = w->data;
    char *error = NULL;
    d->core->check_error =
        db_schema_check(config_str(d->config, "db.conninfo"), &error) ? NULL : error;
}

static void check_done(uv_work_t *w, int cancelled)
{
    struct daemon *d = w->data;
    struct daemon_core *core = d->core;
    char *error = core->check_error;
    core->check_running = false;
    core->check_error = NULL;
    if (cancelled || core->stopping) {
        free(error);
        return;
    }
    if (!error) {
        core->schema_ok = true;
        log_info("schema_checked", LOG_S("needed", db_schema_needed()));
        store_process_register(d->store, d->spec->kind, core->host, getpid(), registered, d);
        (void)uv_timer_start(&core->timer, heartbeat, HEARTBEAT_MS, HEARTBEAT_MS);
        return;
    }
    core->check_failures = db_pool_ready(d->db) ? core->check_failures + 1 : 0;
    if (core->check_failures >= CHECK_FAILURES_MAX) {
        log_error("schema_unusable", LOG_S("reason", error));
        daemon_fail(d, DAEMON_UNUSABLE, "schema");
    } else {
        log_warn("schema_check_failed", LOG_S("reason", error));
        (void)uv_timer_start(&core->check_timer, check_again, RECHECK_MS, 0);
    }
    free(error);
}

static void start_check(struct daemon *d)
{
    struct daemon_core *core = d->core;
    /* Without a connection on_db_change() comes back when there is one. */
    if (core->check_running || core->schema_ok || core->stopping || !db_pool_ready(d->db))
        return;
    core->check_running = true;
    core->check.data = d;
    shine_assert(uv_queue_work(d->loop, &core->check, check_work, check_done) == 0);
}

static void on_db_change(void *ctx, bool ready)
{
    struct daemon *d = ctx;
    if (d->core->stopping)
        return;
    if (!ready) {
        log_warn("db_unavailable");
        return;
    }
    log_info("db_available");
    start_check(d);
}

/* --- stop --- */

static void cut(uv_timer_t *t)
{
    struct daemon *d = t->data;
    log_error("stop_cut", LOG_S("process", d->process_id), LOG_I("seconds", STOP_MS / 1000));
    _exit(DAEMON_FAILED);
}

static void close_handle(uv_handle_t *h)
{
    if (!uv_is_closing(h))
        uv_close(h, NULL);
}

/* The last step of every life: without its handles the loop ends. */
static void leave_loop(void *ctx)
{
    struct daemon *d = ctx;
    for (int i = 0; i < DAEMON_SIGNALS; i++) {
        close_handle((uv_handle_t *)&d->core->signals[i]);
        /* Closing gave it its default action back: one more SIGTERM would kill a process that is
         * ending in good order, and spoil its exit status. */
        (void)signal(signal_numbers[i], SIG_IGN);
    }
    close_handle((uv_handle_t *)&d->core->timer);
    close_handle((uv_handle_t *)&d->core->check_timer);
    admin_close(d->core->admin);
    if (d->spec->closed)
        d->spec->closed(d);
}

/* Once: after the process row is removed, or when that takes too long. */
static void close_db(struct daemon *d)
{
    if (d->core->db_closing)
        return;
    d->core->db_closing = true;
    if (d->db)
        db_pool_close(d->db, leave_loop, d);
    else
        leave_loop(d);
}

static void unregistered(void *ctx, enum db_status st)
{
    struct daemon *d = ctx;
    if (st != DB_OK) /* its row ages and is cleared by the next process that starts */
        log_warn("process_not_unregistered", LOG_S("process", d->process_id));
    close_db(d);
}

static void unregister_late(uv_timer_t *t)
{
    close_db(t->data);
}

void daemon_stopped(struct daemon *d)
{
    shine_assert(d->core->stopping && !d->core->stopped);
    d->core->stopped = true;
    if (!d->core->schema_ok || !db_pool_ready(d->db)) {
        close_db(d);
        return;
    }
    store_process_unregister(d->store, unregistered, d);
    (void)uv_timer_start(&d->core->check_timer, unregister_late, UNREGISTER_MS, 0);
}

void daemon_stop(struct daemon *d, const char *reason)
{
    if (d->core->stopping)
        return;
    d->core->stopping = true;
    log_info("stopping", LOG_S("process", d->process_id), LOG_S("reason", reason));
    (void)uv_timer_stop(&d->core->check_timer);
    (void)uv_timer_start(&d->core->timer, cut, STOP_MS, 0);
    if (d->spec->notify)
        notify_service_manager("STOPPING=1");
    d->spec->stop(d);
}

void daemon_fail(struct daemon *d, int status, const char *reason)
{
    if (!d->core->stopping)
        d->core->status = status;
    daemon_stop(d, reason);
}

static void on_signal(uv_signal_t *s, int number)
{
    struct daemon *d = s->data;
    if (number != SIGHUP)
        daemon_stop(d, number == SIGTERM ? "SIGTERM" : "SIGINT");
    else if (d->spec->reload && !d->core->stopping)
        d->spec->reload(d);
}

bool daemon_is_ready(struct daemon *d, char *why, size_t size)
{
    const char *reason = "";
    if (d->core->stopping)
        reason = "stopping";
    else if (d->spec->needs_db && !db_pool_ready(d->db))
        reason = "the database is not available";
    else if (d->spec->needs_db && !d->core->schema_ok)
        reason = "the schema is not checked yet";
    else if (d->spec->ready)
        return d->spec->ready(d, why, size);
    (void)snprintf(why, size, "%s", reason);
    return *reason == '\0';
}

/* --- run --- */

static void open_db(struct daemon *d)
{
    const struct store_identity id = {
        .server_login = config_str(d->config, "server.SHiNE.login"),
        .process_id = d->process_id,
    };
    d->db = db_pool_new(d->loop, config_str(d->config, "db.conninfo"), d->process_id,
                        (unsigned)config_int(d->config, "db.poolSize"));
    d->store = store_new(d->db, &id, (unsigned)config_int(d->config, "db.maxBatch"));
    db_pool_on_change(d->db, on_db_change, d);
}

static void start_handles(struct daemon *d)
{
    struct daemon_core *core = d->core;
    for (int i = 0; i < DAEMON_SIGNALS; i++) {
        core->signals[i].data = d;
        shine_assert(uv_signal_init(d->loop, &core->signals[i]) == 0);
        shine_assert(uv_signal_start(&core->signals[i], on_signal, signal_numbers[i]) == 0);
    }
    core->timer.data = core->check_timer.data = d;
    shine_assert(uv_timer_init(d->loop, &core->timer) == 0);
    shine_assert(uv_timer_init(d->loop, &core->check_timer) == 0);
}

static void free_daemon(struct daemon *d)
{
    store_free(d->store);
    int r = uv_loop_close(d->loop);
    if (r != 0) /* a handle that its module forgot */
        log_warn("loop_not_empty", LOG_S("reason", uv_strerror(r)));
    free(d->loop);
    config_free(d->config);
    free(d->core);
    free(d);
}

int daemon_run(struct daemon *d, const struct daemon_spec *spec)
{
    char *error = NULL;
    d->spec = spec;
    if (spec->needs_db)
        error = db_pool_check_conninfo(config_str(d->config, "db.conninfo"));
    if (error) {
        log_error("bad_conninfo", LOG_S("origin", config_origin(d->config, "db.conninfo")),
                  LOG_S("reason", error));
        free(error);
        return DAEMON_FAILED;
    }
    start_handles(d);
    if (spec->needs_db)
        open_db(d);
    if (spec->admin)
        d->core->admin = admin_open(d);
    if ((spec->admin && !d->core->admin) || !spec->start(d)) {
        log_error("start_failed", LOG_S("process", d->process_id));
        return DAEMON_FAILED;
    }
    log_info("started", LOG_S("process", d->process_id), LOG_S("version", SHINE_VERSION));
    if (spec->notify)
        notify_service_manager("READY=1");
    shine_assert(uv_run(d->loop, UV_RUN_DEFAULT) == 0);
    shine_assert(d->core->stopped);
    int status = d->core->status;
    log_info("stopped", LOG_S("process", d->process_id), LOG_I("status", status));
    free_daemon(d);
    return status;
}
