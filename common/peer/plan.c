/*
 * When to dial. See plan.h.
 *
 * The limit is a leaky bucket kept as one time (the "virtual scheduling" of cell rates): each dial
 * moves `until_ms` on by one interval, and a dial may begin while `until_ms` is at most a burst
 * ahead of the clock.
 *
 * Raises no failures.
 */
#include "peer/plan.h"

#include <sodium.h>

#define DIALS_MIN     8u     /* per second, and at once */
#define PEERS_PER     20u    /* of so many peers one is dialled per second, if that is more */
#define FIRST_EACH_MS 100u   /* eager connections open at this pace ... */
#define FIRST_MAX_MS  20000u /* ... or as fast as it takes to be ready in so long */
#define AGAIN_MAX_MS  40000u
#define STEP_MAX_MS   20000u /* a back-off of such steps and AGAIN_MAX_MS make 60 s */

/* Per second, and at once. */
static int64_t dials(unsigned n_peers)
{
    return n_peers / PEERS_PER > DIALS_MIN ? n_peers / PEERS_PER : DIALS_MIN;
}

/* The intervals of a burst: what may begin at once, less the dial that is asked for. */
static int64_t ahead_ms(unsigned n_peers)
{
    int64_t n = dials(n_peers);
    return 1000 * (n - 1) / n;
}

uint32_t dial_limit_wait_ms(const struct dial_limit *l, int64_t now_ms, unsigned n_peers)
{
    int64_t wait = l->until_ms - ahead_ms(n_peers) - now_ms;
    return wait > 0 ? (uint32_t)wait : 0;
}

bool dial_limit_take(struct dial_limit *l, int64_t now_ms, unsigned n_peers)
{
    if (dial_limit_wait_ms(l, now_ms, n_peers) > 0)
        return false;
    if (l->until_ms < now_ms)
        l->until_ms = now_ms;
    int64_t n = dials(n_peers);
    l->until_ms += (1000 + n - 1) / n; /* rounded up: the bound holds */
    return true;
}

static uint32_t up_to(uint32_t ms)
{
    return ms > 0 ? randombytes_uniform(ms) : 0;
}

uint32_t dial_first_ms(unsigned n_peers)
{
    uint32_t spread = FIRST_MAX_MS;
    if (n_peers < FIRST_MAX_MS / FIRST_EACH_MS)
        spread = n_peers * FIRST_EACH_MS;
    return up_to(spread);
}

uint32_t dial_again_ms(const struct backoff *b)
{
    uint64_t high = b->step < 32 ? (uint64_t)b->base_ms << b->step : UINT64_MAX;
    return high < STEP_MAX_MS ? up_to(AGAIN_MAX_MS) : 0;
}
