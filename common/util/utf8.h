/*
 * UTF-8 as RFC 3629 defines it: no overlong forms, no surrogates, nothing above U+10FFFF. For whole
 * strings; net/ws_utf8.h checks a text that comes in pieces.
 */
#ifndef SHINE_UTIL_UTF8_H
#define SHINE_UTIL_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decode the character at `text`, which is NUL-terminated: *c gets it. Returns its length in bytes
 * (1 for the NUL), or 0 and *c = the first byte if the bytes there are not a character. */
size_t utf8_decode(const char *text, uint32_t *c);
/* True if all of `text` is UTF-8. */
bool utf8_valid(const char *text);

#endif
