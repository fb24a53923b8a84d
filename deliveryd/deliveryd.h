/*
 * deliveryd: the retries of deliveries, the pushes to users' second servers, housekeeping. What its
 * modules share. Made by main.c, never global.
 *
 * Everything it does is found in the database and taken with a lease; its own memory may be lost at
 * any moment. Any number of these processes share the work.
 */
#ifndef SHINE_DELIVERYD_DELIVERYD_H
#define SHINE_DELIVERYD_DELIVERYD_H

#include "daemon/daemon.h"
#include "delivery/delivery.h"
#include "store/claims.h"

struct attempt;
struct claims;
struct hints;
struct housekeeping;
struct pushes;

struct deliveryd {
    struct daemon *daemon;
    uv_loop_t *loop;
    const struct config *config;
    struct store *store;
    struct directory *directory;
    struct peer_pool *peers;
    struct delivery *delivery;
    struct delivery_bounds *routes; /* calls to recipients' servers */
    struct delivery_bounds *asked;  /* questions to authors' second servers */
    struct claims *claims;
    struct pushes *pushes;
    struct hints *hints;
    struct housekeeping *housekeeping;
    bool stopping; /* nothing new is begun */

    /* Settings. */
    const char *server_login;
    int64_t tick_ms, lease_ms, ask_ms, call_ms;
    unsigned max_in_flight, max_per_peer;
    unsigned ask_from; /* attempts from this number on ask the author's second server first */
    unsigned last_attempt;
};

/* Waiting for room at a server happens at most twice in an attempt, for so long; with what
 * recording takes it is what SETTINGS_LEASE_RESERVE_MS keeps of a lease. */
enum { WAIT_MS = 1500, RECORD_MS = 2000 };

/* --- claim.c: rows that are due --- */

/* Begin to claim when the daemon's parts are there; claims_stop() ends it: what has not begun is
 * given back, what is under way goes on. claims_idle(): nothing is left of it. */
struct claims *claims_new(struct deliveryd *d);
void claims_stop(struct claims *c);
bool claims_idle(const struct claims *c);
void claims_free(struct claims *c);
/* Something may have become due. */
void claims_wake(struct claims *c);
/* For attempt.c: an attempt, made by claims, is over and freed. `bytes`: its blob. */
void claims_over(struct claims *c, size_t bytes);

/* --- attempt.c: what is done with a row --- */

/* Take a row (copied) whose lease ends not before `ends_ms` (clock_mono_ms()), and see it through
 * to its result; ends by claims_over(). */
void attempt_start(struct deliveryd *d, const struct store_due *row, int64_t ends_ms);

/* --- adopt.c: the recipient is served here now --- */

enum adopt_result {
    ADOPT_DONE,       /* the recipient has the message */
    ADOPT_REFUSED,    /* he is not served here any more, or unknown */
    ADOPT_UNAVAILABLE /* the database could not be reached, or failed */
};
typedef void (*adopt_cb)(void *ctx, enum adopt_result r);
/* Store what a due row carries as the recipient's; `blob` is borrowed until the callback, which is
 * never made synchronously. False, and no callback, if the stored bytes are damaged. */
bool adopt_start(struct deliveryd *d, const uint8_t *blob, size_t len, adopt_cb cb, void *ctx);

/* --- replicate.c: items for second servers --- */

/* Like their counterparts above. */
struct pushes *pushes_new(struct deliveryd *d);
void pushes_stop(struct pushes *p);
bool pushes_idle(const struct pushes *p);
void pushes_free(struct pushes *p);
void pushes_wake(struct pushes *p);

/* --- hints.c --- */

/* Tells other processes of new events, those of one turn of the loop together. */
struct hints *hints_new(struct deliveryd *d);
void hints_tell(struct hints *h, const char *login, const struct store_told *told);
/* Send what waits; nothing may be told afterwards but by a last hints_flush(). */
void hints_flush(struct hints *h);
void hints_free(struct hints *h);

/* --- housekeeping.c --- */

/* Clears up between everything else. After housekeeping_stop() no further piece is begun. */
struct housekeeping *housekeeping_new(struct deliveryd *d);
void housekeeping_stop(struct housekeeping *h);
bool housekeeping_idle(const struct housekeeping *h);
void housekeeping_free(struct housekeeping *h);

/* --- main.c --- */

/* The database is there and has our schema. */
bool deliveryd_ready(const struct deliveryd *d);
/* A part has become idle: the stop may be able to go on. */
void deliveryd_part_idle(struct deliveryd *d);

#endif
