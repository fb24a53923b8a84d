/*
 * The two clocks of a host. Neither is ever compared with a time that is stored in the database:
 * stored times come from, and are judged by, the database's now_ms().
 */
#ifndef SHINE_UTIL_CLOCK_H
#define SHINE_UTIL_CLOCK_H

#include <stdint.h>

/* Milliseconds since an arbitrary start, never going back: for timers and durations. */
int64_t clock_mono_ms(void);
/* The same in microseconds. */
int64_t clock_mono_us(void);
/* Unix time in milliseconds by the host's clock: only for the freshness of log-ins and for logs. */
int64_t clock_wall_ms(void);

#endif
