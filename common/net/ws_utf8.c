/*
 * The UTF-8 check. Texts are mostly ASCII (JSON with Base64), so eight bytes at a time are tried
 * first.
 *
 * Grades of failure: none.
 */
#include "net/ws_utf8.h"

#include <string.h>

/* The first byte of a character of several. false: no such byte. */
static bool start(struct ws_utf8 *u, uint8_t b)
{
    u->lo = 0x80;
    u->hi = 0xbf;
    if (b >= 0xc2 && b <= 0xdf) {
        u->need = 1;
    } else if (b >= 0xe0 && b <= 0xef) {
        u->need = 2;
        if (b == 0xe0)
            u->lo = 0xa0; /* shorter forms exist below */
        if (b == 0xed)
            u->hi = 0x9f; /* surrogates above */
    } else if (b >= 0xf0 && b <= 0xf4) {
        u->need = 3;
        if (b == 0xf0)
            u->lo = 0x90;
        if (b == 0xf4)
            u->hi = 0x8f; /* U+10FFFF */
    } else {
        return false;
    }
    return true;
}

bool ws_utf8_feed(struct ws_utf8 *u, const uint8_t *p, size_t n)
{
    const uint8_t *end = p + n;
    while (p < end) {
        if (u->need > 0) {
            if (*p < u->lo || *p > u->hi)
                return false;
            u->need--;
            u->lo = 0x80;
            u->hi = 0xbf;
            p++;
            continue;
        }
        while (end - p >= 8) {
            uint64_t eight;
            memcpy(&eight, p, 8);
            if (eight & UINT64_C(0x8080808080808080))
                break;
            p += 8;
        }
        if (p == end)
            break;
        if (*p >= 0x80 && !start(u, *p))
            return false;
        p++;
    }
    return true;
}
