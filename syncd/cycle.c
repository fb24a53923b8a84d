/*
 * Turns: claimed when they are due, one of each server at a time, recorded when they have ended.
 *
 *   start: everybody is due -> claim, run, record -> … -> due again after sync.intervalMs
 *
 * A server that cannot be reached fails the turn under way, and nothing of it is claimed until a
 * ping comes back; then everybody with this second server is due, because what could not be pushed
 * meanwhile waits there. The pings also find out about servers that vanish between two cycles.
 *
 * With --once the process ends when nothing is left to claim.
 *
 * Grades of failure: environment.
 */
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/sessions.h"
#include "syncd/cycle.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

enum {
    TICK_MS = 1000,
    FIRST_RETRY_MS = 100, /* the database connection is made while we start */
    TURNS_MAX = 16,       /* servers worked on at the same time */
    RENEW_MS = 20 * 1000,
    BACKOFF_MIN_MS = 5 * 1000,
    BACKOFF_MAX_MS = 5 * 60 * 1000,
    FIRST_PAGE_BYTES = 262144,
    ONCE_PATIENCE_MS = 30 * 1000, /* with a database that does not answer */
    /* When a turn that did not end well comes again. */
    AGAIN_BUSY_MS = 10 * 1000,
    AGAIN_FAILED_MS = 60 * 1000,
    AGAIN_LATER_MS = 5 * 60 * 1000,
};

static void on_tick(uv_timer_t *timer);
static void claim(struct cycle *c);
static void tell_left_over(struct cycle *c);

void cycle_done_if_idle(struct cycle *c)
{
    if (!c->stopping || c->n_turns > 0 || c->calls > 0 || !c->on_done)
        return;
    void (*cb)(void *ctx) = c->on_done;
    c->on_done = NULL;
    cb(c->done_ctx);
}

bool cycle_call_ended(struct cycle *c, enum db_status st)
{
    c->calls--;
    if (st == DB_OK)
        c->database_ms = clock_mono_ms();
    if (c->s->once && st == DB_OK && c->calls == 0 && c->n_turns == 0 && !c->stopping)
        (void)uv_timer_start(&c->timer, on_tick, 0, TICK_MS); /* whatever comes next, or the end */
    cycle_done_if_idle(c);
    return !c->stopping;
}

/* --- who is due --- */

/* What a puller that was killed had noted and not told. */
static void on_left_over(void *ctx, enum db_status st, const char *const *owners, size_t n)
{
    struct cycle *c = ctx;
    if (n > 0)
        store_notify_events(c->s->store, owners, n);
    if (cycle_call_ended(c, st) && n > 0)
        tell_left_over(c);
}

static void tell_left_over(struct cycle *c)
{
    c->calls++;
    store_tell_history(c->s->store, NULL, 0, on_left_over, c);
}

/* An order under way; each answer carries on after the last owner. */
struct ordering {
    struct cycle *c;
    char server[SHINE_SERVER_LOGIN_MAX + 1]; /* "" = all */
};

static void on_ordered(void *ctx, enum db_status st, const char *last)
{
    struct ordering *o = ctx;
    struct cycle *c = o->c;
    bool all = o->server[0] == '\0';
    if (cycle_call_ended(c, st)) {
        if (st == DB_OK && last) {
            cycle_order(c, all ? NULL : o->server, last);
        } else if (st == DB_OK && all) {
            c->started = true;
            tell_left_over(c);
        }
        (void)uv_timer_start(&c->timer, on_tick, st == DB_OK ? 0 : FIRST_RETRY_MS, TICK_MS);
    }
    free(o);
}

void cycle_order(struct cycle *c, const char *server, const char *after)
{
    struct ordering *o = xnew(struct ordering);
    o->c = c;
    if (server)
        (void)memccpy(o->server, server, '\0', sizeof o->server);
    c->calls++;
    store_order_turns(c->s->store, server, after, on_ordered, o);
}

/* --- once --- */

static void finish_once(struct cycle *c)
{
    int status = c->sum.failed > 0 ? 2 : c->sum.rejects > 0 ? 3 : 0;
    printf("%u users: %" PRId64 " settings, %" PRId64 " messages fetched, %" PRId64
           " refused; %u users not finished\n",
           c->sum.owners, c->sum.settings, c->sum.messages, c->sum.rejects, c->sum.failed);
    (void)fflush(stdout);
    if (status == 0)
        daemon_stop(c->s->daemon, "one cycle is over");
    else
        daemon_fail(c->s->daemon, status, "one cycle is over");
}

static void give_up_once(struct cycle *c)
{
    log_error("database_not_available");
    daemon_fail(c->s->daemon, 2, "the database does not answer");
}

/* --- claims --- */

static struct sync_server *server_of(struct cycle *c, const struct store_route *route)
{
    struct sync_server *server = map_get(c->servers, route->login);
    if (!server) {
        server = xnew(struct sync_server);
        server->max_bytes = FIRST_PAGE_BYTES;
        server->next_ping_ms = clock_mono_ms() + CYCLE_PING_MS;
        backoff_init(&server->backoff, BACKOFF_MIN_MS, BACKOFF_MAX_MS);
        (void)map_put(c->servers, route->login, server);
    }
    server->route = *route;
    return server;
}

static void begin_turn(struct cycle *c, const struct store_turn *id)
{
    struct turn *t = xnew(struct turn);
    t->s = c->s;
    t->id = *id;
    t->server = server_of(c, &id->server);
    t->server->busy = true;
    list_init(&t->link);
    list_push(&c->turns, &t->link);
    c->n_turns++;
    log_debug("turn_begins", LOG_S("owner", id->owner), LOG_S("peer", id->server.login));
    turn_start(t);
}

static void on_claimed(void *ctx, enum db_status st, const struct store_turn *rows, size_t n)
{
    struct cycle *c = ctx;
    c->claiming = false;
    /* Claimed while stopping: the leases are given back by unregistering or run out. */
    if (!cycle_call_ended(c, st))
        return;
    for (size_t i = 0; i < n; i++)
        begin_turn(c, &rows[i]);
    if (c->s->once && st == DB_OK && n == 0 && c->n_turns == 0 && c->calls == 0)
        finish_once(c);
}

static void claim(struct cycle *c)
{
    struct map *servers = c->servers;
    const char **skip = xcalloc(map_size(servers) + 1, sizeof *skip);
    size_t n = 0, it = 0;
    void *v;
    if (!c->started || c->claiming || c->stopping || c->n_turns >= TURNS_MAX) {
        free((void *)skip);
        return;
    }
    while (map_next(servers, &it, NULL, &v)) {
        const struct sync_server *server = v;
        if (server->busy || server->failing)
            skip[n++] = server->route.login;
    }
    c->claiming = true;
    c->calls++;
    store_claim_turns(c->s->store, skip, n, TURNS_MAX - c->n_turns, CYCLE_LEASE_MS, on_claimed, c);
    free((void *)skip);
}

/* --- ends --- */

/* With some jitter, so that those who began together do not come back together. */
static int64_t next_cycle_ms(const struct syncd *s)
{
    int64_t tenth = s->interval_ms / 10;
    return s->interval_ms - (int64_t)randombytes_uniform((uint32_t)(tenth > 0 ? tenth : 1));
}

static struct store_turn_end end_of(const struct turn *t, char text[128])
{
    static const char *const words[] = {[TURN_EQUAL] = "equal",
                                        [TURN_REJECTS] = "refused here",
                                        [TURN_LATER] = "to be judged later",
                                        [TURN_TIME_UP] = "time is up",
                                        [TURN_BUSY] = "busy",
                                        [TURN_REFUSED] = "refused there",
                                        [TURN_UNREACHABLE] = "not reached",
                                        [TURN_FAILED] = "failed",
                                        [TURN_LOST] = "taken over"};
    struct store_turn_end e = {.moved = t->moved, .result = text};
    switch (t->result) {
    case TURN_EQUAL:
    case TURN_REJECTS:
        e.complete = true;
        e.next_ms = next_cycle_ms(t->s);
        break;
    case TURN_REFUSED:
        e.next_ms = next_cycle_ms(t->s);
        break;
    case TURN_LATER:
        e.complete = true; /* seen all the same */
        e.next_ms = AGAIN_LATER_MS;
        break;
    case TURN_TIME_UP:
        e.next_ms = 0;
        break;
    case TURN_BUSY:
        e.next_ms = AGAIN_BUSY_MS;
        break;
    case TURN_UNREACHABLE:
    case TURN_FAILED:
    case TURN_LOST:
        e.next_ms = AGAIN_FAILED_MS;
        break;
    }
    if (t->rejected > 0)
        (void)snprintf(text, 128, "%s, %" PRId64 " items refused", words[t->result], t->rejected);
    else if (t->error[0])
        (void)snprintf(text, 128, "%s: %s", words[t->result], t->error);
    else
        (void)snprintf(text, 128, "%s", words[t->result]);
    return e;
}

static void add_up(struct cycle *c, const struct turn *t, const char *result)
{
    c->sum.settings += t->settings;
    c->sum.messages += t->moved - t->settings;
    if (t->result == TURN_TIME_UP) /* it goes on */
        return;
    c->sum.owners++;
    c->sum.rejects += t->rejected;
    c->sum.failed += t->result > TURN_REJECTS;
    printf("%s from %s: %" PRId64 " settings, %" PRId64 " messages; %s\n", t->id.owner,
           t->id.server.login, t->settings, t->moved - t->settings, result);
    (void)fflush(stdout);
}

static void on_recorded(void *ctx, enum db_status st)
{
    struct cycle *c = ctx;
    c->n_turns--;
    if (cycle_call_ended(c, st))
        claim(c);
}

void cycle_turn_ended(struct turn *t)
{
    struct cycle *c = t->s->cycle;
    char text[128];
    struct store_turn_end e = end_of(t, text);
    if (t->moved > 0 || t->result != TURN_EQUAL)
        log_info("turn_ended", LOG_S("owner", t->id.owner), LOG_S("peer", t->id.server.login),
                 LOG_I("settings", t->settings), LOG_I("messages", t->moved - t->settings),
                 LOG_S("result", text), LOG_I("ms", clock_mono_ms() - t->began_ms));
    if (c->s->once)
        add_up(c, t, text);
    t->server->busy = false;
    if (t->result == TURN_UNREACHABLE)
        watch_failed(t->server);
    else
        t->server->next_ping_ms = clock_mono_ms() + CYCLE_PING_MS;
    c->calls++;
    store_finish_turn(c->s->store, &t->id, &e, on_recorded, c);
    list_remove(&t->link);
    json_decref(t->acks);
    free(t);
}

/* --- life --- */

static void on_tick(uv_timer_t *timer)
{
    struct cycle *c = timer->data;
    int64_t now = clock_mono_ms();
    if (c->stopping)
        return;
    if (c->s->once && c->n_turns == 0 && now - c->database_ms > ONCE_PATIENCE_MS) {
        give_up_once(c);
        return;
    }
    if (!c->started && c->calls == 0)
        cycle_order(c, NULL, "");
    if (now - c->renewed_ms >= RENEW_MS)
        watch_renew(c);
    if (!c->s->once)
        watch_ping(c);
    claim(c);
}

struct cycle *cycle_new(struct syncd *s)
{
    struct cycle *c = xnew(struct cycle);
    c->s = s;
    c->servers = map_new();
    list_init(&c->turns);
    c->database_ms = c->renewed_ms = clock_mono_ms();
    c->timer.data = c;
    shine_assert(uv_timer_init(s->loop, &c->timer) == 0);
    (void)uv_timer_start(&c->timer, on_tick, 0, TICK_MS);
    return c;
}

static void on_stop(uv_timer_t *timer)
{
    cycle_done_if_idle(timer->data);
}

void cycle_stop(struct cycle *c, void (*on_done)(void *ctx), void *ctx)
{
    c->stopping = true;
    c->on_done = on_done;
    c->done_ctx = ctx;
    (void)uv_timer_start(&c->timer, on_stop, 0, 0); /* there may be nothing to wait for */
    list_each_safe(n, &c->turns)
        list_entry(n, struct turn, link)->time_up = true;
}

static void timer_closed(uv_handle_t *h)
{
    free(h->data);
}

void cycle_free(struct cycle *c)
{
    size_t it = 0;
    void *server;
    shine_assert(c->n_turns == 0);
    while (map_next(c->servers, &it, NULL, &server))
        free(server);
    map_free(c->servers);
    uv_close((uv_handle_t *)&c->timer, timer_closed);
}
