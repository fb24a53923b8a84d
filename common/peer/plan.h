/*
 * When to dial: limits that keep a process which lost all its peers, or has just started, from
 * dialling them in one moment, and delays that keep a thousand servers which lost the same peer
 * from coming back to it in one moment. Pure functions of the time given, in milliseconds of any
 * steady clock; random numbers come from libsodium.
 */
#ifndef SHINE_PEER_PLAN_H
#define SHINE_PEER_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "util/backoff.h"

#define DIAL_SLOTS 11 /* tenths of a second: any whole second lies within them */

/* The dials of a process in the last second. All zero = none was made yet. */
struct dial_limit {
    int64_t slot;               /* the tenth of a second of the newest count */
    unsigned count[DIAL_SLOTS]; /* by slot, modulo their number */
};

/* How many dials a second may hold, in a pool of `n_peers`: `least` (20 by default) or a tenth of
 * the peers, whichever is more. Few peers never wait for each other. */
unsigned dial_limit_most(unsigned least, unsigned n_peers);
/* May a dial begin now, where a second may hold `most`? Counts it if so. */
bool dial_limit_take(struct dial_limit *l, int64_t now_ms, unsigned most);
/* When dial_limit_take() may say yes, counted from `now_ms`; 0 = now. */
uint32_t dial_limit_wait_ms(struct dial_limit *l, int64_t now_ms, unsigned most);

/* How long a connection that nobody waits for (server.pool.eager) is left closed.
 *
 * For the first time: spread, so that `n_peers` of them are opened over some time. */
uint32_t dial_first_ms(unsigned n_peers);
/* After it was lost or could not be made, when the back-off has run out: the other servers that
 * lost this peer must not all come back at once, and nobody waits here. With the back-off at most
 * 60 s.
 */
uint32_t dial_again_ms(const struct backoff *b);

#endif
