/*
 * Names of messages and the rules that compare them: message keys, revisions, the pair check
 * (docs/protocol.md).
 */
#ifndef SHINE_DM_KEY_H
#define SHINE_DM_KEY_H

#include "dm/container.h"

/* from(30) | to(30) | timeMs(16) | nonce(10) | type(1), four bars, NUL */
#define DM_BASE_KEY_MAX    (30 + 1 + 30 + 1 + 16 + 1 + 10 + 1)
#define DM_MESSAGE_KEY_MAX (DM_BASE_KEY_MAX + 2)

/* `from|to|timeMs|nonce`, the logical message. */
void dm_base_key(const struct dm_container *c, char out[DM_BASE_KEY_MAX]);
/* `baseKey|type`, one copy. */
void dm_message_key(const struct dm_container *c, char out[DM_MESSAGE_KEY_MAX]);

/* A message key taken apart. */
struct dm_key {
    char from[DM_LOGIN_MAX + 1];
    char to[DM_LOGIN_MAX + 1];
    int64_t time_ms;
    uint32_t nonce;
    enum dm_type type;
};
/* Parse a message key in its canonical form (decimal digits without leading zeros, type 1..8).
 * false if it is not one. */
bool dm_key_parse(const char *s, struct dm_key *k);
/* The key under which the delivery row of `k` is kept: outgoing for 1–4, its own for tombstones. */
void dm_delivery_key(const struct dm_key *k, char out[DM_MESSAGE_KEY_MAX]);

/* <0, 0, >0 as the revision (revisionTimeMs, then reencryptedAtMs) of `a` is lower, equal, higher.
 */
int dm_revision_cmp(const struct dm_container *a, const struct dm_container *b);

/* True if `in` and `out` are the two copies of one message: types 1 and 2, or 3 and 4; equal from,
 * to, timeMs, nonce and revisionTimeMs; for receipts equal bodies. Two tombstones are never a pair.
 */
bool dm_is_pair(const struct dm_container *in, const struct dm_container *out);

/* SHA-256 of a blob (`n` may be 0): stored beside it, and what decides between two texts of equal
 * revision (the larger one, compared as bytes, is kept). */
void dm_sha256(const uint8_t *p, size_t n, uint8_t out[32]);

#endif
