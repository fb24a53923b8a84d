/*
 * A token bucket. See bucket.h. Raises: rates below one are our own bug.
 */
#include "util/bucket.h"

#include "util/mem.h"

struct bucket_rate bucket_rate_of(int64_t n, int64_t seconds, int64_t burst)
{
    shine_assert(seconds > 0 && burst > 0);
    int64_t us = n > 0 ? seconds * 1000000 / n : 0;
    shine_assert(n > 0);
    return (struct bucket_rate){.interval_us = us > 0 ? us : 1, .burst = burst};
}

int64_t bucket_take(struct bucket *b, const struct bucket_rate *r, int64_t now_us)
{
    int64_t full_us = b->full_us > now_us ? b->full_us : now_us;
    int64_t wait_us = full_us - now_us - (r->burst - 1) * r->interval_us;
    if (wait_us > 0)
        return wait_us;
    b->full_us = full_us + r->interval_us;
    return 0;
}
