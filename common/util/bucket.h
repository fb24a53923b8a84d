/*
 * A token bucket: so many a second for ever, and a burst after a quiet while. It holds the moment
 * at which it will be full again, and nothing else (the "generic cell rate algorithm" of ATM), so
 * it needs neither a timer nor floating point, and a full one can be forgotten.
 */
#ifndef SHINE_UTIL_BUCKET_H
#define SHINE_UTIL_BUCKET_H

#include <stdbool.h>
#include <stdint.h>

struct bucket_rate {
    int64_t interval_us; /* between two tokens, at least 1 */
    int64_t burst;       /* tokens when full, at least 1 */
};
/* `n` tokens in `seconds`; both at least 1. More than a million a second are as many. */
struct bucket_rate bucket_rate_of(int64_t n, int64_t seconds, int64_t burst);

struct bucket {
    int64_t full_us; /* of the monotonic clock; 0 = full */
};

/* Take one token at `now_us`: 0, or, with nothing taken, in how many microseconds there is one. */
int64_t bucket_take(struct bucket *b, const struct bucket_rate *r, int64_t now_us);
/* True if it is full: as good as a new one. */
static inline bool bucket_is_full(const struct bucket *b, int64_t now_us)
{
    return b->full_us <= now_us;
}

#endif
