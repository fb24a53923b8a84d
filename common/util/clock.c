/*
 * The host's clocks. Grade of failure: clock_gettime cannot fail for these clocks; if it does, the
 * host is broken and the assertion says so.
 */
#include "util/clock.h"

#include "util/mem.h"

#include <time.h>

static int64_t read_us(clockid_t id)
{
    struct timespec ts;
    shine_assert(clock_gettime(id, &ts) == 0);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

int64_t clock_mono_ms(void)
{
    return read_us(CLOCK_MONOTONIC) / 1000;
}

int64_t clock_mono_us(void)
{
    return read_us(CLOCK_MONOTONIC);
}

int64_t clock_wall_ms(void)
{
    return read_us(CLOCK_REALTIME) / 1000;
}
