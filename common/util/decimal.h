/*
 * Integers as decimal text. Several of them are in the keys of every message and in every event;
 * snprintf() takes ten times as long.
 */
#ifndef SHINE_UTIL_DECIMAL_H
#define SHINE_UTIL_DECIMAL_H

#include <stddef.h>
#include <stdint.h>

/* Characters of the longest: "-9223372036854775808". */
#define DECIMAL_MAX 20

/* Write `v` to `out` without a NUL; the number of characters, at most DECIMAL_MAX. */
size_t decimal_write(char *out, int64_t v);

#endif
