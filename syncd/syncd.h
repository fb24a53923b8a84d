/*
 * syncd: fetches what second servers hold for our users and we lack.
 *
 * A turn is one owner and their second server: settings first, then messages, in pages. The turns
 * of one server follow each other; different servers are worked on at the same time. Which turns
 * are due, and who works on them, stands in the database (store/turns.h).
 *
 *   claimed -> settings pages -> message pages -> ended (finished, failed, or time is up)
 *
 * cycle.c begins and ends turns (watch.c: leases, pings); pull.c fetches pages one after the other
 * and acknowledges them; settings.c and page.c (with page_proofs.c) store one page.
 */
#ifndef SHINE_SYNCD_SYNCD_H
#define SHINE_SYNCD_SYNCD_H

#include <jansson.h>

#include "daemon/daemon.h"
#include "directory/directory.h"
#include "peer/peer.h"
#include "store/sync.h"
#include "store/turns.h"
#include "util/backoff.h"
#include "util/list.h"
#include "util/map.h"

/* A second server of our users, as this process knows it. Kept while the process runs: there are
 * few. */
struct sync_server {
    struct store_route route;
    bool busy;    /* a turn is under way */
    bool failing; /* it could not be reached; nothing is claimed until a ping comes back */
    bool pinging;
    int64_t next_ping_ms; /* clock_mono_ms() */
    struct backoff backoff;
    int64_t max_bytes;    /* of a page: what fits into about two seconds */
    bool no_status_batch; /* it does not know GetDmDeliveryStatuses */
};

struct cycle;

struct syncd {
    struct daemon *daemon;
    uv_loop_t *loop;
    struct store *store;
    struct directory *directory;
    struct peer_pool *peers;
    const char *server_login;
    int64_t interval_ms, max_turn_ms;
    bool once; /* one cycle with a summary on stdout, then the process ends */
    struct cycle *cycle;
};

enum turn_phase { TURN_SETTINGS, TURN_MESSAGES };

/* How a turn ended. */
enum turn_result {
    TURN_EQUAL,       /* everything was fetched and stored */
    TURN_REJECTS,     /* all but what is refused here */
    TURN_LATER,       /* some items could not be judged now */
    TURN_TIME_UP,     /* the rest comes in the next turn */
    TURN_BUSY,        /* it asked for a moment */
    TURN_REFUSED,     /* it will not give us the owner's data */
    TURN_UNREACHABLE, /* no answer */
    TURN_FAILED,      /* an answer that makes no sense, or our own database */
    TURN_LOST         /* another process has taken it over */
};

struct turn {
    struct syncd *s;
    struct store_turn id;
    struct sync_server *server;
    struct list link; /* cycle.c */
    int64_t began_ms;

    enum turn_phase phase;
    int64_t after_ms; /* cursor of the next request */
    char after_key[DM_SETTING_NAME_MAX + 1];
    bool asked; /* the phase's first request was answered */
    bool more;  /* so the last answer said */
    bool fetching, storing;
    unsigned noting; /* notes about refused items on their way to the database */
    int64_t asked_at_ms;
    json_t *next; /* a page that waits until the one before it is stored */
    json_t *acks; /* sync ids that are committed and not sent */
    bool final;   /* the request under way only acknowledges */
    bool time_up;

    enum turn_result result; /* TURN_EQUAL until something else is known */
    const char *error;       /* static, for the log; "" */
    int64_t moved, settings, rejected, later;
};

/* --- cycle.c --- */

/* Begin at once. */
struct cycle *cycle_new(struct syncd *s);
/* Begin no further turns; those under way end after their page. `on_done` follows. */
void cycle_stop(struct cycle *c, void (*on_done)(void *ctx), void *ctx);
void cycle_free(struct cycle *c);
/* The turn is over; it is recorded and freed. */
void cycle_turn_ended(struct turn *t);

/* --- pull.c --- */

/* Run a claimed turn. */
void turn_start(struct turn *t);
/* Something of the turn is over, or must end: go on. */
void turn_step(struct turn *t);
/* End the turn after what is under way. The first reason counts. `error` is static. */
void turn_fail(struct turn *t, enum turn_result result, const char *error);
/* An answer that is no success: end the turn as it says. */
void turn_fail_answer(struct turn *t, const struct peer_answer *a);
/* This item is committed. */
void turn_ack(struct turn *t, const char *sync_id);
/* This one will not be taken. */
struct turn_rejects {
    const char **ids, **reasons;
    size_t n;
};
void turn_reject(struct turn *t, struct turn_rejects *r, const char *sync_id, const char *reason);
/* Note them in the database; `r` is empty afterwards. */
void turn_note_rejects(struct turn *t, struct turn_rejects *r);

/* --- settings.c, page.c --- */

/* Store a page, an array of items; ends by setting t->storing to false and calling turn_step(), not
 * from inside. */
void settings_store(struct turn *t, json_t *items);
void page_store(struct turn *t, json_t *items);

#endif
