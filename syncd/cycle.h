/*
 * Shared by cycle.c (turns begin and end) and watch.c (leases and pings). Not for anybody else.
 */
#ifndef SHINE_SYNCD_CYCLE_H
#define SHINE_SYNCD_CYCLE_H

#include "syncd/syncd.h"

enum {
    CYCLE_LEASE_MS = 90 * 1000, /* of a turn */
    CYCLE_PING_MS = 30 * 1000, /* a server is asked for a sign of life so long after the last one */
};

struct cycle {
    struct syncd *s;
    struct list turns;
    unsigned n_turns;    /* claimed and not yet recorded */
    struct map *servers; /* login -> struct sync_server */
    uv_timer_t timer;
    unsigned calls; /* database calls and pings under way */
    bool started;   /* everybody was made due */
    bool claiming, stopping;
    int64_t renewed_ms, database_ms; /* clock_mono_ms(): the latter when it last answered */
    void (*on_done)(void *ctx);
    void *done_ctx;
    struct {
        unsigned owners, refused, failed;
        int64_t messages, settings, rejects;
    } sum; /* --once */
};

/* Make everybody whose second server is `server` due (NULL = everybody), after owner `after`. */
void cycle_order(struct cycle *c, const char *server, const char *after);
/* A call that was counted in c->calls has ended; false if the cycle stops. */
bool cycle_call_ended(struct cycle *c, enum db_status st);
/* The stop is over if nothing is under way any more. */
void cycle_done_if_idle(struct cycle *c);

/* Hold the leases of all turns under way. */
void watch_renew(struct cycle *c);
/* Ping the servers whose time has come. */
void watch_ping(struct cycle *c);
/* It could not be reached: nothing of it is claimed until a ping comes back. */
void watch_failed(struct sync_server *server);

#endif
