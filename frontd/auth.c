/*
 * Signatures over texts, and the freshness of what they sign. Raises no failures.
 */
#include "frontd/auth.h"

#include "util/clock.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

bool auth_verify(const char *text, const uint8_t sig[DM_SIG_BYTES], const uint8_t key[DM_KEY_BYTES])
{
    return crypto_sign_verify_detached(sig, (const unsigned char *)text, strlen(text), key) == 0;
}

bool auth_time_ok(int64_t time_ms, char *message, size_t n)
{
    int64_t ahead = time_ms - clock_wall_ms();
    int64_t off = ahead < 0 ? -ahead : ahead;
    if (off <= AUTH_SKEW_MS)
        return true;
    (void)snprintf(message, n, "your clock is %" PRId64 " s %s this server's; 300 s are allowed",
                   off / 1000, ahead < 0 ? "behind" : "ahead of");
    return false;
}
