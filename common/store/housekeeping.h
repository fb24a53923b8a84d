/*
 * What daemons do beside their work: filling the outbox for a new second server, trimming logs,
 * clearing up. Every call is one short transaction that does a bounded piece and says whether more
 * is left, so that it may be stopped at any time and continued by anybody.
 */
#ifndef SHINE_STORE_HOUSEKEEPING_H
#define SHINE_STORE_HOUSEKEEPING_H

#include "store/store.h"

struct store_retention {
    int64_t events_ms;       /* event log: keep so long, */
    int64_t events_per_user; /* and at most so many of one user */
    int64_t rejects_ms;      /* notes about refused replication items */
};

/* One piece of whatever is most wanted. `what` names it (static), `did` counts rows; `more` = call
 * again at once. */
typedef void (*store_housekeep_cb)(void *ctx, enum db_status st, const char *what, int64_t did,
                                   bool more);
void store_housekeep(struct store *s, const struct store_retention *r, unsigned max_rows,
                     store_housekeep_cb cb, void *ctx);

#endif
