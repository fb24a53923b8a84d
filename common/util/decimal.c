/*
 * Integers as decimal text. Raises no failures.
 */
#include "util/decimal.h"

#include <string.h>

size_t decimal_write(char *out, int64_t v)
{
    char digits[DECIMAL_MAX];
    size_t at = sizeof digits;
    uint64_t left = v < 0 ? -(uint64_t)v : (uint64_t)v;
    do {
        digits[--at] = (char)('0' + left % 10);
        left /= 10;
    } while (left > 0);
    if (v < 0)
        digits[--at] = '-';
    memcpy(out, digits + at, sizeof digits - at);
    return sizeof digits - at;
}
