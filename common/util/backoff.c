/*
 * Reconnect delays with full jitter. Raises no failures.
 */
#include "util/backoff.h"

#include <sodium.h>

void backoff_init(struct backoff *b, uint32_t base_ms, uint32_t max_ms)
{
    *b = (struct backoff){.base_ms = base_ms ? base_ms : 1, .max_ms = max_ms ? max_ms : 1};
}

uint32_t backoff_next(struct backoff *b)
{
    uint64_t high = b->step < 32 ? (uint64_t)b->base_ms << b->step : UINT64_MAX;
    if (high > b->max_ms)
        high = b->max_ms;
    if (b->step < 32)
        b->step++;
    uint64_t low = b->base_ms / 2 > 0 ? b->base_ms / 2 : 1;
    if (low > high)
        low = high;
    uint64_t span = high - low + 1;
    /* libsodium's generator needs no seeding and is safe after fork: workers that were forked
     * together must not share a sequence. The span is at most 2^32 - 1, as low is at least 1. */
    return (uint32_t)(low + randombytes_uniform((uint32_t)span));
}

void backoff_reset(struct backoff *b)
{
    b->step = 0;
}
