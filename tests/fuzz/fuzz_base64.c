/*
 * Any text into base64_decode(). What it accepts must be the canonical text of the bytes it gives,
 * apart from missing padding: two texts of one value would be two values to whoever compares texts.
 * A text that is refused must be refused for a reason.
 */
#include "util/base64.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* libsodium's strict decoder would be the obvious judge; this one is written from the RFC and so
 * slow that it can be read at a glance. */
static bool is_base64(const uint8_t *s, size_t n)
{
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t padding = 0;
    while (padding < 2 && padding < n && s[n - 1 - padding] == '=')
        padding++;
    if (padding > 0 && n % 4 != 0)
        return false;
    n -= padding;
    if (n % 4 == 1 || (padding > 0 && padding != 4 - n % 4))
        return false;
    size_t last = 0;
    for (size_t i = 0; i < n; i++) {
        const char *at = s[i] ? strchr(alphabet, s[i]) : NULL;
        if (!at)
            return false;
        last = (size_t)(at - alphabet);
    }
    return n % 4 == 0 || last % (n % 4 == 2 ? 16 : 4) == 0;
}

static void check_exact(const char *text, const uint8_t *bytes, size_t n)
{
    uint8_t *copy = xmalloc(n + 1); /* one more, to ask for the wrong length */
    shine_assert(base64_decode_exact(text, copy, n));
    shine_assert(memcmp(copy, bytes, n) == 0);
    shine_assert(!base64_decode_exact(text, copy, n + 1));
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = xmalloc(size); /* exactly sized and without a NUL: reading past it is seen */
    uint8_t *bytes = xmalloc(base64_decoded_max(size));
    size_t n = 0;
    if (size)
        memcpy(text, data, size);
    bool ok = base64_decode(text, size, bytes, &n);
    shine_assert(ok == is_base64(data, size));
    if (ok) {
        char *again = base64_encode_new(bytes, n);
        size_t len = strlen(again);
        shine_assert(len == base64_encoded_len(n) && len >= size && len - size <= 2);
        shine_assert(memcmp(again, text, size) == 0);
        shine_assert(strspn(again + size, "=") == len - size);
        check_exact(again, bytes, n);
        free(again);
    }
    free(bytes);

    /* And the other way round: every value comes back. */
    char *encoded = base64_encode_new(data, size);
    size_t len = strlen(encoded);
    bytes = xmalloc(base64_decoded_max(len));
    shine_assert(base64_decode(encoded, len, bytes, &n) && n == size);
    shine_assert(size == 0 || memcmp(bytes, data, size) == 0);
    free(encoded);
    free(bytes);
    free(text);
    return 0;
}
