/*
 * What a pool tells people: one line a minute in the log, all peers on SIGUSR1, and table
 * peer_connections (v_peers).
 */
#ifndef SHINE_PEER_REPORT_H
#define SHINE_PEER_REPORT_H

#include <uv.h>

#include "peer/peer.h"

struct store;
struct peer_report;

/* Begin to tell about `pool`. `store` NULL: in the log only. Both are borrowed until
 * peer_report_close(). */
struct peer_report *peer_report_new(uv_loop_t *loop, struct peer_pool *pool, struct store *store);
/* Log all peers now: a line for each. */
void peer_report_log(struct peer_report *r);
/* Log the sums over all peers, and what was done since the last time: the line of every minute. */
void peer_report_sum(struct peer_report *r);
/* Write what has changed now, instead of within seconds. */
void peer_report_write(struct peer_report *r);
/* Tell nothing more; the pool may be closed afterwards. `on_closed` (may be NULL) follows when all
 * is freed, which is not before the write under way has ended. */
void peer_report_close(struct peer_report *r, void (*on_closed)(void *ctx), void *ctx);

#endif
