/*
 * When to dial. See plan.h.
 *
 * Dials are counted by tenths of a second. A token bucket would do with less, but a bucket that
 * lets twenty begin at once lets forty begin within a second.
 *
 * Raises no failures.
 */
#include "peer/plan.h"

#include <sodium.h>
#include <string.h>

#define PEERS_PER     10u /* one of so many peers is dialled in a second, if that is more */
#define SLOT_MS       100
#define FIRST_EACH_MS 100u   /* eager connections open at this pace ... */
#define FIRST_MAX_MS  20000u /* ... or as fast as it takes to be ready in so long */
#define AGAIN_MAX_MS  40000u
#define STEP_MAX_MS   20000u /* a back-off of such steps and AGAIN_MAX_MS make 60 s */

unsigned dial_limit_most(unsigned least, unsigned n_peers)
{
    return n_peers / PEERS_PER > least ? n_peers / PEERS_PER : least;
}

/* Forget what is more than a second ago; returns how many are left. */
static unsigned roll(struct dial_limit *l, int64_t now_ms)
{
    int64_t slot = now_ms / SLOT_MS;
    unsigned sum = 0;
    if (slot >= l->slot + DIAL_SLOTS)
        memset(l->count, 0, sizeof l->count);
    else
        for (int64_t i = l->slot + 1; i <= slot; i++)
            l->count[i % DIAL_SLOTS] = 0;
    l->slot = slot;
    for (unsigned i = 0; i < DIAL_SLOTS; i++)
        sum += l->count[i];
    return sum;
}

uint32_t dial_limit_wait_ms(struct dial_limit *l, int64_t now_ms, unsigned most)
{
    unsigned sum = roll(l, now_ms);
    int64_t oldest = l->slot - DIAL_SLOTS + 1;
    if (sum < most)
        return 0;
    /* Slots leave one by one; enough have left when the sum is below the bound. */
    for (; sum >= most; oldest++)
        sum -= l->count[(oldest + DIAL_SLOTS) % DIAL_SLOTS];
    return (uint32_t)((oldest - 1 + DIAL_SLOTS) * SLOT_MS - now_ms);
}

bool dial_limit_take(struct dial_limit *l, int64_t now_ms, unsigned most)
{
    if (roll(l, now_ms) >= most)
        return false;
    l->count[l->slot % DIAL_SLOTS]++;
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
