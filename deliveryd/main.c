/*
 * deliveryd: its parts put together and taken apart.
 *
 * Stopping goes in this order:
 *
 *   nothing new is claimed, what has not begun is given back -> calls under way end, after
 *   FINISH_MS by force -> their results are recorded -> whatever is still leased to us is given
 *   back -> database closed
 *
 * Grades of failure: a certificate file that cannot be used, or no login, is "cannot continue";
 * everything else is environment.
 */
#include <stdlib.h>

#include "daemon/settings.h"
#include "db/listen.h"
#include "deliveryd/deliveryd.h"
#include "peer/open.h"
#include "util/log.h"
#include "util/mem.h"

enum {
    FINISH_MS = 8 * 1000, /* for calls under way when the process stops */
    MISSING_TTL_MS = 1000,
    DIRECTORY_ENTRIES = 50000,
    WAITING_MAX = 500, /* rows that wait for room at some server */
};

enum stop_step { RUNNING, FINISHING, RELEASING, STOPPED };

struct process {
    struct deliveryd d; /* first: reached from it */
    struct peers *peers;
    struct db_listener *listener;
    uv_signal_t snapshot;
    uv_timer_t stop_timer; /* runs once after each sign that a part is idle */
    uv_timer_t cut_timer;
    enum stop_step step;
    bool peers_closing, peers_closed, attempts_done;
    unsigned handles_open;
};

bool deliveryd_ready(const struct deliveryd *d)
{
    char why[64];
    return daemon_is_ready(d->daemon, why, sizeof why);
}

/* --- start --- */

static void read_settings(struct deliveryd *d)
{
    const struct config *c = d->config;
    int64_t schedule[SETTINGS_ATTEMPTS_MAX];
    size_t n = settings_schedule(c, schedule);
    struct settings_attempt times = settings_attempt(c);
    store_set_schedule(d->store, schedule, n);
    d->last_attempt = (unsigned)n;
    d->ask_from = (unsigned)config_int(c, "delivery.askSecondFrom");
    d->tick_ms = config_int(c, "delivery.tickMs");
    d->lease_ms = times.lease_ms;
    d->ask_ms = times.ask_ms;
    d->call_ms = times.call_ms;
    d->max_in_flight = (unsigned)config_int(c, "delivery.maxInFlight");
    d->max_per_peer = (unsigned)config_int(c, "delivery.maxInFlightPerPeer");
}

static void open_parts(struct process *p)
{
    struct deliveryd *d = &p->d;
    const struct config *c = d->config;
    d->directory = directory_new(d->loop, d->store, config_int(c, "directory.ttlSeconds") * 1000,
                                 MISSING_TTL_MS, DIRECTORY_ENTRIES);
    d->peers = p->peers->pool;
    if (config_bool(c, "sync.importUserProfileFromPartner.enabled"))
        directory_ask_others(d->directory, d->peers, &import_limits_default);
    const struct delivery_bounds_config bounds = {d->max_per_peer, WAITING_MAX, WAIT_MS};
    d->routes = delivery_bounds_new(d->loop, &bounds);
    d->asked = delivery_bounds_new(d->loop, &bounds);
    /* How much is taken at a time is the claims' business. */
    const struct delivery_config dc = {.server_login = d->server_login,
                                       .max_in_flight = UINT32_MAX,
                                       .directory = d->directory,
                                       .bounds = d->routes};
    d->delivery = delivery_new(d->loop, d->store, d->peers, &dc);
    d->hints = hints_new(d);
    d->claims = claims_new(d);
    d->pushes = pushes_new(d);
    d->housekeeping = housekeeping_new(d);
}

/* With a payload: frontd has left something to us. Without: the connection is new, and whatever was
 * said meanwhile was missed. */
static void on_due(void *ctx, const char *payload)
{
    struct process *p = ctx;
    (void)payload;
    claims_wake(p->d.claims);
    pushes_wake(p->d.pushes);
}

static void on_snapshot(uv_signal_t *s, int number)
{
    struct process *p = s->data;
    (void)number;
    peer_report_log(p->peers->report);
}

static void open_handles(struct process *p)
{
    p->snapshot.data = p->stop_timer.data = p->cut_timer.data = p;
    shine_assert(uv_signal_init(p->d.loop, &p->snapshot) == 0);
    shine_assert(uv_timer_init(p->d.loop, &p->stop_timer) == 0);
    shine_assert(uv_timer_init(p->d.loop, &p->cut_timer) == 0);
    (void)uv_signal_start(&p->snapshot, on_snapshot, SIGUSR1);
}

static bool start(struct daemon *daemon)
{
    struct process *p = xnew(struct process);
    struct deliveryd *d = &p->d;
    daemon->own = p;
    d->daemon = daemon;
    d->loop = daemon->loop;
    d->config = daemon->config;
    d->store = daemon->store;
    d->server_login = config_str(d->config, "server.SHiNE.login");
    if (!*d->server_login) {
        log_error("no_server_login", LOG_S("reason", "server.SHiNE.login is not set"));
        return false;
    }
    p->peers = peers_open(d->loop, d->config, d->store);
    if (!p->peers)
        return false;
    read_settings(d);
    open_parts(p);
    open_handles(p);
    p->listener = db_listen(d->loop, config_str(d->config, "db.conninfo"), "shine_due", on_due, p);
    return true;
}

/* --- stop --- */

static void released(void *ctx, enum db_status st)
{
    struct process *p = ctx;
    if (st != DB_OK) /* they run out by themselves */
        log_warn("leases_not_released");
    p->step = STOPPED;
    (void)uv_timer_stop(&p->stop_timer);
    daemon_stopped(p->d.daemon);
}

static void peers_closed(void *ctx)
{
    struct process *p = ctx;
    p->peers_closed = true;
    deliveryd_part_idle(&p->d);
}

static void attempts_done(void *ctx)
{
    struct process *p = ctx;
    p->attempts_done = true;
    deliveryd_part_idle(&p->d);
}

static void close_peers(struct process *p)
{
    p->peers_closing = true;
    (void)uv_timer_stop(&p->cut_timer);
    directory_stop(p->d.directory);
    peers_close(p->peers, peers_closed, p);
}

/* Runs once after each sign that a part may be idle, from the loop: the part itself may still be on
 * the stack. */
static void go_on_stopping(uv_timer_t *t)
{
    struct process *p = t->data;
    struct deliveryd *d = &p->d;
    bool idle = p->attempts_done && claims_idle(d->claims) && pushes_idle(d->pushes);
    if (p->step != FINISHING)
        return;
    if (idle && !p->peers_closing)
        close_peers(p);
    if (!idle || !p->peers_closed || !housekeeping_idle(d->housekeeping))
        return;
    p->step = RELEASING;
    hints_flush(d->hints);
    store_release_claims(d->store, d->lease_ms, released, p);
}

static void cut_calls(uv_timer_t *t)
{
    struct process *p = t->data;
    if (p->peers_closing)
        return;
    log_info("calls_cut", LOG_I("attempts", delivery_in_flight(p->d.delivery)));
    close_peers(p);
}

void deliveryd_part_idle(struct deliveryd *d)
{
    struct process *p = (struct process *)d;
    if (p->step == FINISHING)
        (void)uv_timer_start(&p->stop_timer, go_on_stopping, 0, 0);
}

static void stop(struct daemon *daemon)
{
    struct process *p = daemon->own;
    struct deliveryd *d = &p->d;
    d->stopping = true;
    p->step = FINISHING;
    db_listener_close(p->listener);
    claims_stop(d->claims);
    pushes_stop(d->pushes);
    housekeeping_stop(d->housekeeping);
    delivery_bounds_stop(d->asked);
    delivery_bounds_stop(d->routes);
    delivery_drain(d->delivery, attempts_done, p);
    (void)uv_signal_stop(&p->snapshot);
    (void)uv_timer_start(&p->cut_timer, cut_calls, FINISH_MS, 0);
    deliveryd_part_idle(d);
}

static void handle_closed(uv_handle_t *h)
{
    struct process *p = h->data;
    if (--p->handles_open == 0)
        free(p);
}

/* Every call has ended: nothing refers to the parts any more. */
static void closed(struct daemon *daemon)
{
    struct process *p = daemon->own;
    struct deliveryd *d = &p->d;
    claims_free(d->claims);
    pushes_free(d->pushes);
    housekeeping_free(d->housekeeping);
    hints_free(d->hints);
    delivery_free(d->delivery);
    delivery_bounds_free(d->routes);
    delivery_bounds_free(d->asked);
    directory_free(d->directory);
    p->handles_open = 3;
    uv_close((uv_handle_t *)&p->snapshot, handle_closed);
    uv_close((uv_handle_t *)&p->cut_timer, handle_closed);
    uv_close((uv_handle_t *)&p->stop_timer, handle_closed);
}

int main(int argc, char **argv)
{
    static const struct daemon_spec spec = {
        .kind = "deliveryd",
        .needs_db = true,
        .notify = true,
        .admin = true,
        .start = start,
        .stop = stop,
        .closed = closed,
    };
    int status = 0;
    struct daemon *d = daemon_init(argc, argv, "deliveryd", NULL, NULL, &status);
    return d ? daemon_run(d, &spec) : status;
}
