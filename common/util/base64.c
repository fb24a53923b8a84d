/*
 * Base64 on top of OpenSSL's block functions, which are fast but lenient: they strip white space at
 * the ends and take '=' as a zero anywhere. So the text is judged here first, and only whole
 * groups of characters known to be good are handed over. Raises no failures of its own.
 */
#include "util/base64.h"

#include "util/mem.h"

#include <limits.h>
#include <openssl/evp.h>
#include <string.h>

/* The six bits of a character, or BAD. A table, because branches on random text are mispredicted:
 * 4 MB would take tens of milliseconds. Characters above 127 are caught in bits_of(). */
enum { BAD = 0x40 };

/* clang-format off */
static const uint8_t sextets[128] = {
    BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD,
    BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD,
    BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, 62, BAD, BAD, BAD, 63,
    52, 53, 54, 55, 56, 57, 58, 59, 60, 61, BAD, BAD, BAD, BAD, BAD, BAD,
    BAD,  0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13, 14,
    15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, BAD, BAD, BAD, BAD, BAD,
    BAD, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40,
    41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, BAD, BAD, BAD, BAD, BAD,
};
/* clang-format on */

static unsigned bits_of(unsigned char c)
{
    return sextets[c & 0x7f] | (c >> 7) * (unsigned)BAD;
}

/* Length without correct padding: "QQ==" and "QQ" give 2, "QQ=" stays 3 and fails later. */
static size_t unpadded_len(const char *text, size_t len)
{
    if (len == 0 || len % 4 != 0 || text[len - 1] != '=')
        return len;
    return text[len - 2] == '=' ? len - 2 : len - 1;
}

/* Bytes that `len` characters without padding stand for. */
static size_t decoded_len(size_t len)
{
    return len / 4 * 3 + (len % 4 * 3) / 4;
}

/* Decode text without padding; writes exactly decoded_len(len) bytes if it is valid. */
static bool decode_unpadded(const char *text, size_t len, uint8_t *out)
{
    size_t tail = len % 4, body = len - tail;
    if (tail == 1 || len > INT_MAX)
        return false;
    unsigned seen = 0;
    for (size_t i = 0; i < len; i++)
        seen |= bits_of((unsigned char)text[i]);
    if (seen & BAD)
        return false;
    if (body > 0 && EVP_DecodeBlock(out, (const unsigned char *)text, (int)body) < 0)
        return false;
    if (tail == 0)
        return true;
    unsigned v = bits_of((unsigned char)text[body]) << 12;
    v |= bits_of((unsigned char)text[body + 1]) << 6;
    if (tail == 3)
        v |= bits_of((unsigned char)text[body + 2]);
    if (v & (tail == 3 ? 0x3u : 0x3ffu))
        return false; /* trailing bits */
    out += body / 4 * 3;
    out[0] = (uint8_t)(v >> 10);
    if (tail == 3)
        out[1] = (uint8_t)(v >> 2);
    return true;
}

bool base64_decode(const char *text, size_t text_len, uint8_t *out, size_t *out_len)
{
    size_t len = unpadded_len(text, text_len);
    *out_len = decoded_len(len);
    return decode_unpadded(text, len, out);
}

bool base64_decode_exact(const char *text, uint8_t *out, size_t n)
{
    size_t len = unpadded_len(text, strlen(text));
    return decoded_len(len) == n && decode_unpadded(text, len, out);
}

void base64_encode(const uint8_t *p, size_t n, char *out)
{
    /* The block function counts in int; whole groups of three can be encoded apart. */
    enum { CHUNK = 3 << 20 };
    out[0] = '\0';
    while (n > 0) {
        size_t take = n < CHUNK ? n : CHUNK;
        out += EVP_EncodeBlock((unsigned char *)out, p, (int)take);
        p += take;
        n -= take;
    }
}

char *base64_encode_new(const uint8_t *p, size_t n)
{
    char *out = xmalloc(base64_encoded_len(n) + 1);
    base64_encode(p, n, out);
    return out;
}
