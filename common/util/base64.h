/*
 * Standard Base64 with padding (RFC 4648, section 4), accepted with or without it. Strict: other
 * characters, line breaks, misplaced padding and non-zero trailing bits are refused, so one value
 * has one text. Fast, not constant-time: secrets go through libsodium instead.
 */
#ifndef SHINE_UTIL_BASE64_H
#define SHINE_UTIL_BASE64_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Upper bound of the bytes that `text_len` characters decode to. */
static inline size_t base64_decoded_max(size_t text_len)
{
    return text_len / 4 * 3 + 3;
}
/* Characters of the padded encoding of `n` bytes, without the NUL. */
static inline size_t base64_encoded_len(size_t n)
{
    return (n + 2) / 3 * 4;
}
/* Decode into `out` (at least base64_decoded_max(text_len) bytes); *out_len gets the length.
 * false on malformed text. */
bool base64_decode(const char *text, size_t text_len, uint8_t *out, size_t *out_len);
/* Decode exactly `n` bytes (keys, signatures, nonces). false on malformed text or other length. */
bool base64_decode_exact(const char *text, uint8_t *out, size_t n);
/* Encode with padding into `out`, which must hold base64_encoded_len(n) + 1 characters. */
void base64_encode(const uint8_t *p, size_t n, char *out);
/* Encode into a new string; freed with free(). */
char *base64_encode_new(const uint8_t *p, size_t n);

#endif
