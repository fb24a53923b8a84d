/*
 * syncd: its parts put together and taken apart.
 *
 * Stopping: nothing new is begun, calls to other servers end, pages that are being stored are
 * stored to their end, turns are recorded.
 *
 * Grades of failure: a certificate file that cannot be used, or no login, is "cannot continue";
 * everything else is environment.
 */
#include <stdlib.h>

#include "peer/open.h"
#include "syncd/syncd.h"
#include "util/log.h"
#include "util/mem.h"

enum {
    MISSING_TTL_MS = 1000,
    DIRECTORY_ENTRIES = 50000,
};

struct process {
    struct syncd s;
    struct peers *peers;
    uv_signal_t snapshot;
    unsigned parts_open; /* stopping: turns and peers */
    unsigned handles_open;
};

static void on_snapshot(uv_signal_t *h, int number)
{
    struct process *p = h->data;
    (void)number;
    peer_report_log(p->peers->report);
}

static bool start(struct daemon *d)
{
    struct process *p = d->own;
    const struct config *c = d->config;
    struct syncd *s = &p->s;
    s->daemon = d;
    s->loop = d->loop;
    s->store = d->store;
    s->server_login = config_str(c, "server.SHiNE.login");
    s->interval_ms = config_int(c, "sync.intervalMs");
    s->max_turn_ms = config_int(c, "sync.maxTurnMs");
    if (!*s->server_login) {
        log_error("no_login", LOG_S("reason", "server.SHiNE.login is not set"));
        return false;
    }
    p->peers = peers_open(d->loop, c, d->store);
    if (!p->peers)
        return false;
    s->peers = p->peers->pool;
    s->directory = directory_new(d->loop, d->store, config_int(c, "directory.ttlSeconds") * 1000,
                                 MISSING_TTL_MS, DIRECTORY_ENTRIES);
    if (config_bool(c, "sync.importUserProfileFromPartner.enabled"))
        directory_ask_others(s->directory, s->peers, &import_limits_default);
    p->snapshot.data = p;
    shine_assert(uv_signal_init(d->loop, &p->snapshot) == 0);
    (void)uv_signal_start(&p->snapshot, on_snapshot, SIGUSR1);
    s->cycle = cycle_new(s);
    return true;
}

static void part_closed(void *ctx)
{
    struct process *p = ctx;
    if (--p->parts_open == 0)
        daemon_stopped(p->s.daemon);
}

static void stop(struct daemon *d)
{
    struct process *p = d->own;
    (void)uv_signal_stop(&p->snapshot);
    p->parts_open = 2;
    cycle_stop(p->s.cycle, part_closed, p);
    directory_stop(p->s.directory);
    peers_close(p->peers, part_closed, p);
}

static void handle_closed(uv_handle_t *h)
{
    free(h->data);
}

static void closed(struct daemon *d)
{
    struct process *p = d->own;
    cycle_free(p->s.cycle);
    directory_free(p->s.directory);
    uv_close((uv_handle_t *)&p->snapshot, handle_closed);
}

int main(int argc, char **argv)
{
    static const char *const extra[] = {"--once", NULL};
    struct daemon_spec spec = {.kind = "syncd",
                               .needs_db = true,
                               .admin = true,
                               .notify = true,
                               .start = start,
                               .stop = stop,
                               .closed = closed};
    unsigned seen = 0;
    int status;
    struct daemon *d = daemon_init(argc, argv, "syncd", extra, &seen, &status);
    if (!d)
        return status;
    struct process *p = xnew(struct process);
    p->s.once = seen & 1;
    if (p->s.once) /* beside the one that stays */
        spec.admin = spec.notify = false;
    d->own = p;
    return daemon_run(d, &spec);
}
