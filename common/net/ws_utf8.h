/*
 * UTF-8 checked piece by piece (RFC 3629: no surrogates, no overlong forms, nothing above
 * U+10FFFF).
 */
#ifndef SHINE_NET_WS_UTF8_H
#define SHINE_NET_WS_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where a text stands; all zero at its beginning. */
struct ws_utf8 {
    uint8_t need;   /* continuation bytes still expected */
    uint8_t lo, hi; /* bounds of the next one */
};

/* Go on with `n` bytes. false: not UTF-8; the text is then lost. */
bool ws_utf8_feed(struct ws_utf8 *u, const uint8_t *p, size_t n);
/* May the text end here? */
static inline bool ws_utf8_complete(const struct ws_utf8 *u)
{
    return u->need == 0;
}

#endif
