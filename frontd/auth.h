/*
 * What the operations that check a signature over a text share. Pure, but for the host's clock.
 */
#ifndef SHINE_FRONTD_AUTH_H
#define SHINE_FRONTD_AUTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dm/container.h"

/* How far a client's clock may be off, either way. */
#define AUTH_SKEW_MS (5 * 60 * INT64_C(1000))

/* True if `sig` is the Ed25519 signature of `text` (without its NUL) by `key`. About 70 µs. */
bool auth_verify(const char *text, const uint8_t sig[DM_SIG_BYTES],
                 const uint8_t key[DM_KEY_BYTES]);

/* True if the host's clock and `time_ms` differ by at most AUTH_SKEW_MS; otherwise `message` (of
 * `n` bytes) says by how many seconds the client's clock is off. */
bool auth_time_ok(int64_t time_ms, char *message, size_t n);

#endif
