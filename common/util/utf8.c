/*
 * The UTF-8 decoder for whole strings. Raises no failures.
 */
#include "util/utf8.h"

size_t utf8_decode(const char *text, uint32_t *c)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *s = (const unsigned char *)text;
    size_t n = s[0] < 0x80   ? 1
               : s[0] < 0xc2 ? 0
               : s[0] < 0xe0 ? 2
               : s[0] < 0xf0 ? 3
               : s[0] < 0xf5 ? 4
                             : 0;
    *c = s[0];
    if (n <= 1)
        return n;
    uint32_t v = s[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) /* the NUL, too: nothing is read behind it */
            return 0;
        v = v << 6 | (s[i] & 0x3f);
    }
    if (v < least[n] || v > 0x10ffff || (v >= 0xd800 && v <= 0xdfff))
        return 0;
    *c = v;
    return n;
}

bool utf8_valid(const char *text)
{
    uint32_t c;
    while (*text) {
        size_t n = utf8_decode(text, &c);
        if (n == 0)
            return false;
        text += n;
    }
    return true;
}
