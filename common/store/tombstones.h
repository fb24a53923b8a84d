/*
 * Deleting: message tombstones (types 5, 6) and conversation tombstones (types 7, 8), applied by
 * the same code for every way in.
 */
#ifndef SHINE_STORE_TOMBSTONES_H
#define SHINE_STORE_TOMBSTONES_H

#include "store/messages.h"

/* One tombstone, verified before. Grouped. */
struct store_tombstone {
    struct db_batch_item item;
    struct store_copy copy;
    bool from_server;   /* brought by a server: client rules do not apply, the delivery is left to
                           deliveryd, due at once */
    const char *source; /* login of the server that brought it, if it was identified; else NULL */
    int64_t max_future_ms;  /* client rule for time_ms against now_ms(); a client's untilTimeMs may
                               not be ahead at all; servers 24 h */
    const char *session_id; /* the requesting session, not counted; NULL = none */
    bool proof;             /* store_pull_tombstone(): the source says that it is delivered */
    void (*done)(struct store_tombstone *t, enum db_status st);
    void *ctx;

    enum store_verdict
        verdict;         /* NOT_SERVED: neither party (6, 8: not the author) is served here */
    enum dm_state state; /* of its delivery row; ACCEPTED where there is none */
    struct store_told from, to; /* events in the logs of the owners served here */
    int64_t ws_sessions, push_sessions;
    /* The first attempt (types 5 and 7 to another user, author served here), as for a pair. */
    bool attempt;
    int64_t row_version;
    int64_t lease_ms;
    unsigned n_routes;
    struct store_route routes[2];
};
void store_apply_tombstone(struct store *s, struct store_tombstone *p);
/* The same for what comes in a page of a second server. */
void store_pull_tombstone(struct store *s, struct store_tombstone *p);

#endif
