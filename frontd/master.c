/*
 * The master: sockets and workers.
 *
 *   binding (an old process may still hold the address: tried for 10 s) -> running -> stopping
 *
 *   a worker: starting -> running -> gone -> (backoff) -> starting ...
 *                            \-> told to stop -> gone
 *
 * Grades of failure: a worker that dies is environment: it is started again. An address that cannot
 * be bound, a certificate that cannot be used, and a worker that says the database's schema does
 * not fit are "cannot continue".
 */
#include "frontd/master.h"

#include "daemon/notify.h"
#include "daemon/settings.h"
#include "frontd/sockets.h"
#include "frontd/worker.h"
#include "net/tls.h"
#include "util/backoff.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    BIND_TRIES = 100,
    BIND_RETRY_MS = 100,
    RESTART_BASE_MS = 200,
    RESTART_MAX_MS = 30 * 1000,
    STEADY_MS = 60 * 1000, /* a worker that ran so long starts again without much delay */
    KILL_MS = 18 * 1000,   /* workers give up by themselves after 20 s; the master must not */
};

struct master;

struct worker_slot {
    struct master *m;
    bool alive;       /* the process runs; then `process` and `pipe` are open */
    unsigned closing; /* handles of the last process that are still being closed */
    uv_process_t process;
    uv_pipe_t pipe; /* our end; the worker sees it end when we do */
    uv_timer_t restart;
    struct backoff backoff;
    int64_t started_ms;
};

struct master {
    struct daemon *d;
    struct sockets sockets;
    unsigned bind_tries;
    uv_timer_t timer; /* binding: the next try; stopping: the kill */
    uv_signal_t snapshot;
    struct worker_slot *slots;
    size_t n_slots;
    size_t n_busy; /* slots with a process, or handles of one */
    bool stopping;
    size_t open_handles; /* while everything is being closed */
};

/* --- workers --- */

static void start_worker(struct worker_slot *s);

static void on_restart(uv_timer_t *t)
{
    start_worker(t->data);
}

static void plan_restart(struct worker_slot *s)
{
    uint32_t delay = backoff_next(&s->backoff);
    log_info("worker_restart", LOG_I("ms", delay));
    (void)uv_timer_start(&s->restart, on_restart, delay, 0);
}

/* The end of the last handle of a process that is gone. */
static void slot_handle_closed(uv_handle_t *h)
{
    struct worker_slot *s = h->data;
    struct master *m = s->m;
    if (--s->closing > 0)
        return;
    m->n_busy--;
    if (!m->stopping)
        plan_restart(s);
    else if (m->n_busy == 0)
        daemon_stopped(m->d);
}

static void close_slot(struct worker_slot *s)
{
    s->closing = 2;
    uv_close((uv_handle_t *)&s->process, slot_handle_closed);
    uv_close((uv_handle_t *)&s->pipe, slot_handle_closed);
}

static void worker_exited(uv_process_t *p, int64_t status, int number)
{
    struct worker_slot *s = p->data;
    struct master *m = s->m;
    s->alive = false;
    close_slot(s);
    if (m->stopping && status == 0 && number == 0)
        log_info("worker_stopped", LOG_I("worker", p->pid));
    else
        log_warn("worker_gone", LOG_I("worker", p->pid), LOG_I("status", status),
                 LOG_I("signal", number));
    if (clock_mono_ms() - s->started_ms >= STEADY_MS)
        backoff_reset(&s->backoff);
    if (status == DAEMON_UNUSABLE) /* it has logged why; all others would say the same */
        daemon_fail(m->d, DAEMON_UNUSABLE, "worker cannot work");
}

/* argv as we got it, and --worker. The strings are borrowed. */
static char **worker_argv(const struct daemon *d)
{
    static char worker_option[] = "--worker";
    char **argv = xcalloc((size_t)d->argc + 2, sizeof *argv);
    memcpy(argv, d->argv, (size_t)d->argc * sizeof *argv);
    argv[d->argc] = worker_option;
    return argv;
}

static void start_worker(struct worker_slot *s)
{
    struct master *m = s->m;
    uv_stdio_container_t stdio[WORKER_SOCKET_FD + WORKER_SOCKETS_MAX];
    for (int i = 0; i < WORKER_PIPE_FD; i++)
        stdio[i] = (uv_stdio_container_t){.flags = UV_INHERIT_FD, .data.fd = i};
    shine_assert(uv_pipe_init(m->d->loop, &s->pipe, 0) == 0);
    stdio[WORKER_PIPE_FD].flags = (uv_stdio_flags)(UV_CREATE_PIPE | UV_READABLE_PIPE);
    stdio[WORKER_PIPE_FD].data.stream = (uv_stream_t *)&s->pipe;
    for (size_t i = 0; i < m->sockets.n; i++)
        stdio[WORKER_SOCKET_FD + i] =
            (uv_stdio_container_t){.flags = UV_INHERIT_FD, .data.fd = m->sockets.fds[i]};
    char **argv = worker_argv(m->d);
    const uv_process_options_t options = {
        .exit_cb = worker_exited,
        .file = "/proc/self/exe",
        .args = argv,
        .stdio = stdio,
        .stdio_count = WORKER_SOCKET_FD + (int)m->sockets.n,
    };
    s->process.data = s->pipe.data = s;
    s->started_ms = clock_mono_ms();
    int r = uv_spawn(m->d->loop, &s->process, &options);
    free(argv);
    m->n_busy++;
    if (r == 0) {
        s->alive = true;
        log_info("worker_started", LOG_I("worker", s->process.pid));
        return;
    }
    log_warn("worker_not_started", LOG_S("reason", uv_strerror(r)));
    close_slot(s);
}

static void signal_workers(struct master *m, int number)
{
    for (size_t i = 0; i < m->n_slots; i++)
        if (m->slots[i].alive)
            (void)uv_process_kill(&m->slots[i].process, number); /* gone meanwhile: the same */
}

static void start_workers(struct master *m)
{
    int64_t n = config_int(m->d->config, "frontd.workers");
    m->n_slots = n > 0 ? (size_t)n : (size_t)uv_available_parallelism();
    m->slots = xcalloc(m->n_slots, sizeof *m->slots);
    for (size_t i = 0; i < m->n_slots; i++) {
        struct worker_slot *s = &m->slots[i];
        s->m = m;
        s->restart.data = s;
        shine_assert(uv_timer_init(m->d->loop, &s->restart) == 0);
        backoff_init(&s->backoff, RESTART_BASE_MS, RESTART_MAX_MS);
        start_worker(s);
    }
}

/* --- sockets --- */

static void try_bind(uv_timer_t *t)
{
    struct master *m = t->data;
    char *error = NULL;
    enum sockets_result r = sockets_open(&m->sockets, m->d->config, &error);
    if (r == SOCKETS_OPEN) {
        shine_assert(setenv(WORKER_SOCKETS_ENV, m->sockets.kind, 1) == 0);
        start_workers(m);
        /* Clients are not refused from now on; those who come before a worker works wait. */
        notify_service_manager("READY=1");
        return;
    }
    if (r == SOCKETS_IN_USE && ++m->bind_tries < BIND_TRIES) {
        if (m->bind_tries == 1)
            log_warn("address_in_use", LOG_S("reason", error));
        (void)uv_timer_start(&m->timer, try_bind, BIND_RETRY_MS, 0);
    } else {
        log_error("cannot_listen", LOG_S("reason", error));
        daemon_fail(m->d, DAEMON_FAILED, "cannot listen");
    }
    free(error);
}

/* What every worker would trip over is found before one is started. */
static bool check_certificate(const struct config *c)
{
    char *error = NULL;
    if (*config_str(c, "listen") == '\0')
        return true;
    if (*config_str(c, "tls.certFile") == '\0') {
        log_error("no_certificate", LOG_S("reason", "listen is set, but tls.certFile is not; "
                                                    "without TLS there is listen.plain"));
        return false;
    }
    struct tls_ctx *tls =
        tls_server_new(config_str(c, "tls.certFile"), config_str(c, "tls.keyFile"), &error);
    if (!tls)
        log_error("bad_certificate", LOG_S("reason", error));
    free(error);
    tls_ctx_free(tls);
    return tls != NULL;
}

static bool check_conninfo(const struct config *c)
{
    char *error = db_pool_check_conninfo(config_str(c, "db.conninfo"));
    if (error)
        log_error("bad_conninfo", LOG_S("origin", config_origin(c, "db.conninfo")),
                  LOG_S("reason", error));
    bool ok = !error;
    free(error);
    return ok;
}

/* --- life --- */

static void on_snapshot(uv_signal_t *s, int number)
{
    signal_workers(s->data, number);
}

static bool master_start(struct daemon *d)
{
    if (!check_certificate(d->config) || !check_conninfo(d->config))
        return false;
    struct master *m = xnew(struct master);
    d->own = m;
    m->d = d;
    m->timer.data = m->snapshot.data = m;
    shine_assert(uv_timer_init(d->loop, &m->timer) == 0);
    shine_assert(uv_signal_init(d->loop, &m->snapshot) == 0);
    (void)uv_signal_start(&m->snapshot, on_snapshot, SIGUSR1);
    (void)uv_timer_start(&m->timer, try_bind, 0, 0);
    return true;
}

static void kill_workers(uv_timer_t *t)
{
    struct master *m = t->data;
    log_warn("workers_killed", LOG_I("workers", m->n_busy));
    signal_workers(m, SIGKILL);
}

static void master_stop(struct daemon *d)
{
    struct master *m = d->own;
    m->stopping = true;
    notify_service_manager("STOPPING=1");
    sockets_close(&m->sockets);
    signal_workers(m, SIGTERM);
    for (size_t i = 0; i < m->n_slots; i++)
        (void)uv_timer_stop(&m->slots[i].restart);
    if (m->n_busy > 0)
        (void)uv_timer_start(&m->timer, kill_workers, KILL_MS, 0);
    else
        daemon_stopped(d);
}

/* libuv closes handles in no promised order: the last one frees. */
static void handle_closed(uv_handle_t *h)
{
    struct master *m = h->data;
    if (--m->open_handles > 0)
        return;
    free(m->slots);
    free(m);
}

static void master_closed(struct daemon *d)
{
    struct master *m = d->own;
    m->open_handles = 2 + m->n_slots;
    for (size_t i = 0; i < m->n_slots; i++) {
        m->slots[i].restart.data = m;
        uv_close((uv_handle_t *)&m->slots[i].restart, handle_closed);
    }
    uv_close((uv_handle_t *)&m->timer, handle_closed);
    uv_close((uv_handle_t *)&m->snapshot, handle_closed);
}

static void master_reload(struct daemon *d)
{
    signal_workers(d->own, SIGHUP);
}

int master_run(struct daemon *d)
{
    static const struct daemon_spec spec = {
        .kind = "frontd",
        .start = master_start,
        .stop = master_stop,
        .closed = master_closed,
        .reload = master_reload,
    };
    return daemon_run(d, &spec);
}
