/*
 * Reconnect delays: exponential steps with full jitter, so that a thousand peers that lost the same
 * server do not come back in the same second.
 */
#ifndef SHINE_UTIL_BACKOFF_H
#define SHINE_UTIL_BACKOFF_H

#include <stdint.h>

struct backoff {
    uint32_t base_ms; /* upper end of the first delay */
    uint32_t max_ms;  /* upper end of every later one */
    uint32_t step;    /* failures in a row */
};

/* Start with no failures. `base_ms` and `max_ms` of 0 count as 1; a smaller maximum wins. */
void backoff_init(struct backoff *b, uint32_t base_ms, uint32_t max_ms);
/* Count one failure and return how long to wait: uniform in [base_ms / 2, min(max_ms,
 * base_ms * 2^step)], never 0. */
uint32_t backoff_next(struct backoff *b);
/* Things went well for a while: start again from the first step. */
void backoff_reset(struct backoff *b);

#endif
