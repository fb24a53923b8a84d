/*
 * What goes on beside the turns: leases are held, and servers that nobody works with are pinged, so
 * that it is noticed when one goes away or comes back.
 *
 * Grades of failure: environment.
 */
#include <stdlib.h>
#include <string.h>

#include "syncd/cycle.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

enum { PING_TIMEOUT_MS = 12 * 1000 };

/* --- leases --- */

struct renewal {
    struct cycle *c;
    struct store_turn id;
};

static void on_renewed(void *ctx, enum db_status st, bool held)
{
    struct renewal *r = ctx;
    struct cycle *c = r->c;
    if (st == DB_OK && !held)
        list_each_safe(n, &c->turns) {
            struct turn *t = list_entry(n, struct turn, link);
            if (strcmp(t->id.owner, r->id.owner) == 0 &&
                strcmp(t->id.server.login, r->id.server.login) == 0)
                turn_fail(t, TURN_LOST, "lease_lost"); /* it ends with what is under way */
        }
    free(r);
    (void)cycle_call_ended(c, st);
}

void watch_renew(struct cycle *c)
{
    c->renewed_ms = clock_mono_ms();
    list_each_safe(n, &c->turns) {
        struct renewal *r = xnew(struct renewal);
        r->c = c;
        r->id = list_entry(n, struct turn, link)->id;
        c->calls++;
        store_renew_turn(c->s->store, &r->id, CYCLE_LEASE_MS, on_renewed, r);
    }
}

/* --- pings --- */

void watch_failed(struct sync_server *server)
{
    if (!server->failing)
        log_warn("second_server_unreachable", LOG_S("peer", server->route.login));
    server->failing = true;
    server->next_ping_ms = clock_mono_ms() + backoff_next(&server->backoff);
}

struct ping {
    struct cycle *c;
    struct sync_server *server;
};

static void on_ping(void *ctx, const struct peer_answer *a)
{
    struct ping *p = ctx;
    struct cycle *c = p->c;
    struct sync_server *server = p->server;
    free(p);
    server->pinging = false;
    c->calls--;
    if (c->stopping) {
        cycle_done_if_idle(c);
        return;
    }
    if (a->result != PEER_ANSWER) {
        watch_failed(server);
        return;
    }
    server->next_ping_ms = clock_mono_ms() + CYCLE_PING_MS;
    if (server->failing) {
        log_info("second_server_back", LOG_S("peer", server->route.login));
        server->failing = false;
        backoff_reset(&server->backoff);
        cycle_order(c, server->route.login, "");
    }
}

void watch_ping(struct cycle *c)
{
    int64_t now = clock_mono_ms();
    size_t it = 0;
    void *v;
    while (map_next(c->servers, &it, NULL, &v)) {
        struct sync_server *server = v;
        if (server->busy || server->pinging || now < server->next_ping_ms)
            continue;
        struct ping *p = xnew(struct ping);
        p->c = c;
        p->server = server;
        server->pinging = true;
        c->calls++;
        const struct peer_request r = {.login = server->route.login,
                                       .url = server->route.url,
                                       .lane = PEER_NORMAL,
                                       .flags = PEER_WAIT_DIAL,
                                       .op = "Ping",
                                       .payload = json_object(),
                                       .timeout_ms = PING_TIMEOUT_MS};
        peer_request(c->s->peers, &r, on_ping, p);
    }
}
