/*
 * The signed message block `SHiNE_DM`, version 1 (docs/protocol.md, "The container"): parse, build,
 * sign, verify. Pure functions, no I/O, no allocation, safe in any thread. The process has called
 * sodium_init().
 */
#ifndef SHINE_DM_CONTAINER_H
#define SHINE_DM_CONTAINER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DM_LOGIN_MAX 30
#define DM_BODY_MAX  1048576u /* 1 MiB */
#define DM_KEY_BYTES 32       /* Ed25519 public key, and the seed of a secret key */
#define DM_SIG_BYTES 64
#define DM_INT_MAX   ((INT64_C(1) << 53) - 1)
/* The longest container: 8+1+1 + 2*(1+30) + 8+4+8+8+4 + body + 64. */
#define DM_CONTAINER_MAX (168u + DM_BODY_MAX)

enum dm_type {
    DM_TEXT_IN = 1,
    DM_TEXT_OUT = 2,
    DM_RECEIPT_IN = 3,
    DM_RECEIPT_OUT = 4,
    DM_DELETE_BOTH = 5,
    DM_DELETE_OWN = 6,
    DM_CLEAR_BOTH = 7,
    DM_CLEAR_OWN = 8,
};

/* Why bytes are not a container, on the wire the `message` of `400 BAD_BLOB`. DM_OK is 0. Fields
 * are read in their order and the first wrong one names the error; the body is judged last. */
enum dm_error {
    DM_OK,
    DM_BAD_MAGIC,
    DM_BAD_VERSION, /* of the container; another version of a body is DM_BAD_BODY */
    DM_BAD_TYPE,
    DM_BAD_FROM_LOGIN, /* its length byte or its characters */
    DM_BAD_TO_LOGIN,
    DM_BAD_LENGTH,     /* the bytes end inside a field, or go on after the signature */
    DM_BODY_TOO_LARGE, /* bodyLen above DM_BODY_MAX, however many bytes follow */
    DM_BAD_BODY,       /* an empty text; types 3-8: wrong length, body version or refDirection */
    DM_BAD_TIME, /* a time above DM_INT_MAX, in the body too; revisionTimeMs or reencryptedAtMs
                  * not 0 for types 3-8; untilTimeMs above timeMs. 0 is a legal time. */
};

/* The fields of a parsed container. `body` and `sig` point into the parsed bytes, which must
 * outlive it. */
struct dm_container {
    enum dm_type type;
    char from[DM_LOGIN_MAX + 1];
    char to[DM_LOGIN_MAX + 1];
    int64_t time_ms;
    uint32_t nonce;
    int64_t revision_time_ms;
    int64_t reencrypted_at_ms;
    const uint8_t *body;
    size_t body_len;
    const uint8_t *sig; /* DM_SIG_BYTES */
};

/* Parsed bodies of types 3–8. */
struct dm_receipt { /* types 3, 4: the message read was written by `to` to `from` */
    int64_t ref_time_ms;
    uint32_t ref_nonce;
    int64_t read_at_ms;
};
struct dm_delete { /* types 5, 6 */
    bool by_to;    /* refDirection: the message was written by `to` */
    int64_t ref_time_ms;
    uint32_t ref_nonce;
};
struct dm_clear { /* types 7, 8 */
    int64_t until_time_ms;
};

/* The upper-case name of an error as sent on the wire ("BAD_MAGIC"); "OK" for DM_OK. */
const char *dm_error_name(enum dm_error e);

/* True if `s` (NUL-terminated) is a login: [a-z0-9_]{1,30}. At most DM_LOGIN_MAX + 1 bytes are
 * read. */
bool dm_login_valid(const char *s);
/* True if `s` is the login of a server: [a-z0-9][a-z0-9_.-]{0,62}. */
bool dm_server_login_valid(const char *s);

/* Parse `n` bytes into *c. Checks everything but the signature and what depends on a clock: every
 * length before it is used, no trailing bytes, integers within 2^53-1, revision fields zero for
 * types 3–8, the body of types 3–8 in its exact form. Never allocates, never reads past `n`. On an
 * error *c holds nothing to rely on. */
enum dm_error dm_parse(const uint8_t *p, size_t n, struct dm_container *c);

/* Bodies of a container that dm_parse() accepted; calling one for another type is a bug and aborts.
 */
struct dm_receipt dm_receipt_of(const struct dm_container *c);
struct dm_delete dm_delete_of(const struct dm_container *c);
struct dm_clear dm_clear_of(const struct dm_container *c);

/* Encode a body of types 3–8 into `out`; returns its length. Values are not judged here but by
 * dm_build(). */
#define DM_RECEIPT_BODY 21
#define DM_DELETE_BODY  14
#define DM_CLEAR_BODY   9
size_t dm_receipt_body(const struct dm_receipt *r, uint8_t out[DM_RECEIPT_BODY]);
size_t dm_delete_body(const struct dm_delete *d, uint8_t out[DM_DELETE_BODY]);
size_t dm_clear_body(const struct dm_clear *d, uint8_t out[DM_CLEAR_BODY]);

/* Bytes that dm_build() will write for *c; at most DM_CONTAINER_MAX if dm_build() accepts it. */
size_t dm_container_len(const struct dm_container *c);

/* Write and sign *c (its `sig` is ignored) with the 32-byte seed into `out` (dm_container_len()
 * bytes, apart from the body). Nothing is written on an error. Refuses exactly what dm_parse()
 * would refuse: a signer must never make what a verifier rejects. */
enum dm_error dm_build(const struct dm_container *c, const uint8_t seed[DM_KEY_BYTES],
                       uint8_t *out);

/* True if the `n` bytes (parsed before) carry a valid Ed25519 signature by `key` over all bytes
 * before it. Keys of small order, R of small order and non-canonical signatures are refused
 * (libsodium's rules), so that every server judges alike. About 50 µs for a small container, 150 µs
 * for 64 KiB, 2 ms for 1 MiB: large ones belong on the thread pool. */
bool dm_verify(const uint8_t *p, size_t n, const uint8_t key[DM_KEY_BYTES]);

/* Public key of a seed. */
void dm_public_key(const uint8_t seed[DM_KEY_BYTES], uint8_t key[DM_KEY_BYTES]);

#endif
