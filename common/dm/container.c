/*
 * The codec of the signed message block `SHiNE_DM`.
 *
 * One rule keeps reader and writer from drifting apart: what a field may hold is decided by the
 * check_*() functions alone, and both dm_parse() and dm_build() go through them in the order of the
 * fields on the wire. The first field that is wrong names the error, so that every implementation
 * answers the same code.
 *
 * Failures: bad input is an answer (enum dm_error). The only abort is for our own bug, asking a
 * container of one type for the body of another. Nothing is allocated.
 */
#include "dm/container.h"

#include <sodium.h>
#include <string.h>

#include "util/mem.h"

#define CONTAINER_VERSION 1
#define BODY_VERSION      1

static const uint8_t magic[8] = {'S', 'H', 'i', 'N', 'E', '_', 'D', 'M'};

/* ---- big-endian integers ---- */

static uint32_t get_u32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static uint64_t get_u64(const uint8_t *p)
{
    return (uint64_t)get_u32(p) << 32 | get_u32(p + 4);
}

static uint8_t *put_u32(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)(v >> 24);
    p[1] = (uint8_t)(v >> 16);
    p[2] = (uint8_t)(v >> 8);
    p[3] = (uint8_t)v;
    return p + 4;
}

static uint8_t *put_u64(uint8_t *p, uint64_t v)
{
    return put_u32(put_u32(p, (uint32_t)(v >> 32)), (uint32_t)v);
}

/* ---- what a field may hold ---- */

const char *dm_error_name(enum dm_error e)
{
    switch (e) {
    case DM_OK:
        return "OK";
    case DM_BAD_MAGIC:
        return "BAD_MAGIC";
    case DM_BAD_VERSION:
        return "BAD_VERSION";
    case DM_BAD_TYPE:
        return "BAD_TYPE";
    case DM_BAD_FROM_LOGIN:
        return "BAD_FROM_LOGIN";
    case DM_BAD_TO_LOGIN:
        return "BAD_TO_LOGIN";
    case DM_BAD_LENGTH:
        return "BAD_LENGTH";
    case DM_BODY_TOO_LARGE:
        return "BODY_TOO_LARGE";
    case DM_BAD_BODY:
        return "BAD_BODY";
    case DM_BAD_TIME:
        return "BAD_TIME";
    }
    shine_assert_failed("unknown dm_error", __FILE__, __LINE__);
}

static bool login_chars_valid(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        /* Not isalnum(): a login must not depend on the locale of a server. */
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'))
            return false;
    }
    return true;
}

bool dm_login_valid(const char *s)
{
    size_t n = strnlen(s, DM_LOGIN_MAX + 1);
    return n >= 1 && n <= DM_LOGIN_MAX && login_chars_valid(s, n);
}

bool dm_server_login_valid(const char *s)
{
    static const char first[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    size_t n = strnlen(s, 64);
    return n <= 63 && strspn(s, first) > 0 &&
           strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_.-") == n;
}

static bool type_valid(unsigned type)
{
    return type >= DM_TEXT_IN && type <= DM_CLEAR_OWN;
}

static bool time_valid(int64_t t)
{
    return t >= 0 && t <= DM_INT_MAX;
}

static enum dm_error check_times(const struct dm_container *c)
{
    if (!time_valid(c->time_ms) || !time_valid(c->revision_time_ms) ||
        !time_valid(c->reencrypted_at_ms))
        return DM_BAD_TIME;
    /* Only a text can be edited or re-encrypted. */
    if (c->type > DM_TEXT_OUT && (c->revision_time_ms != 0 || c->reencrypted_at_ms != 0))
        return DM_BAD_TIME;
    return DM_OK;
}

/* A 64-bit time on the wire; what does not fit becomes a value that time_valid() refuses. */
static int64_t get_time(const uint8_t *p)
{
    uint64_t v = get_u64(p);
    return v > (uint64_t)DM_INT_MAX ? -1 : (int64_t)v;
}

static enum dm_error check_body(const struct dm_container *c)
{
    const uint8_t *b = c->body;
    size_t n = c->body_len;
    switch (c->type) {
    case DM_TEXT_IN:
    case DM_TEXT_OUT:
        return n >= 1 ? DM_OK : DM_BAD_BODY;
    case DM_RECEIPT_IN:
    case DM_RECEIPT_OUT:
        if (n != DM_RECEIPT_BODY || b[0] != BODY_VERSION)
            return DM_BAD_BODY;
        return time_valid(get_time(b + 1)) && time_valid(get_time(b + 13)) ? DM_OK : DM_BAD_TIME;
    case DM_DELETE_BOTH:
    case DM_DELETE_OWN:
        if (n != DM_DELETE_BODY || b[0] != BODY_VERSION || b[1] > 1)
            return DM_BAD_BODY;
        return time_valid(get_time(b + 2)) ? DM_OK : DM_BAD_TIME;
    case DM_CLEAR_BOTH:
    case DM_CLEAR_OWN:
        if (n != DM_CLEAR_BODY || b[0] != BODY_VERSION)
            return DM_BAD_BODY;
        /* A time out of range reads as -1, which must not pass as "not after timeMs". */
        return time_valid(get_time(b + 1)) && get_time(b + 1) <= c->time_ms ? DM_OK : DM_BAD_TIME;
    }
    return DM_BAD_TYPE;
}

/* ---- reading ---- */

/* Bytes not read yet. take() is the only way to move on, so no read can pass the end. */
struct reader {
    const uint8_t *p;
    size_t left;
};

static const uint8_t *take(struct reader *r, size_t n)
{
    if (n > r->left)
        return NULL;
    const uint8_t *at = r->p;
    r->p += n;
    r->left -= n;
    return at;
}

static enum dm_error take_login(struct reader *r, char out[DM_LOGIN_MAX + 1], enum dm_error bad)
{
    const uint8_t *len = take(r, 1);
    if (!len)
        return DM_BAD_LENGTH;
    if (*len == 0 || *len > DM_LOGIN_MAX)
        return bad;
    const uint8_t *s = take(r, *len);
    if (!s)
        return DM_BAD_LENGTH;
    if (!login_chars_valid((const char *)s, *len))
        return bad;
    memcpy(out, s, *len);
    out[*len] = '\0';
    return DM_OK;
}

/* Magic, version and type. */
static enum dm_error take_head(struct reader *r, struct dm_container *c)
{
    const uint8_t *f = take(r, sizeof(magic));
    if (!f)
        return DM_BAD_LENGTH;
    if (memcmp(f, magic, sizeof(magic)) != 0)
        return DM_BAD_MAGIC;
    f = take(r, 1);
    if (!f)
        return DM_BAD_LENGTH;
    if (*f != CONTAINER_VERSION)
        return DM_BAD_VERSION;
    f = take(r, 1);
    if (!f)
        return DM_BAD_LENGTH;
    if (!type_valid(*f))
        return DM_BAD_TYPE;
    c->type = (enum dm_type) * f;
    return DM_OK;
}

enum dm_error dm_parse(const uint8_t *p, size_t n, struct dm_container *c)
{
    struct reader r = {p, n};
    memset(c, 0, sizeof(*c));

    enum dm_error e = take_head(&r, c);
    if (e == DM_OK)
        e = take_login(&r, c->from, DM_BAD_FROM_LOGIN);
    if (e == DM_OK)
        e = take_login(&r, c->to, DM_BAD_TO_LOGIN);
    if (e != DM_OK)
        return e;

    const uint8_t *f = take(&r, 8 + 4 + 8 + 8);
    if (!f)
        return DM_BAD_LENGTH;
    c->time_ms = get_time(f);
    c->nonce = get_u32(f + 8);
    c->revision_time_ms = get_time(f + 12);
    c->reencrypted_at_ms = get_time(f + 20);
    e = check_times(c);
    if (e != DM_OK)
        return e;

    f = take(&r, 4);
    if (!f)
        return DM_BAD_LENGTH;
    c->body_len = get_u32(f);
    if (c->body_len > DM_BODY_MAX)
        return DM_BODY_TOO_LARGE;
    c->body = take(&r, c->body_len);
    c->sig = c->body ? take(&r, DM_SIG_BYTES) : NULL;
    if (!c->sig || r.left != 0)
        return DM_BAD_LENGTH;
    return check_body(c);
}

/* ---- bodies ---- */

struct dm_receipt dm_receipt_of(const struct dm_container *c)
{
    shine_assert((c->type == DM_RECEIPT_IN || c->type == DM_RECEIPT_OUT) &&
                 c->body_len == DM_RECEIPT_BODY);
    return (struct dm_receipt){
        .ref_time_ms = get_time(c->body + 1),
        .ref_nonce = get_u32(c->body + 9),
        .read_at_ms = get_time(c->body + 13),
    };
}

struct dm_delete dm_delete_of(const struct dm_container *c)
{
    shine_assert((c->type == DM_DELETE_BOTH || c->type == DM_DELETE_OWN) &&
                 c->body_len == DM_DELETE_BODY);
    return (struct dm_delete){
        .by_to = c->body[1] == 1,
        .ref_time_ms = get_time(c->body + 2),
        .ref_nonce = get_u32(c->body + 10),
    };
}

struct dm_clear dm_clear_of(const struct dm_container *c)
{
    shine_assert((c->type == DM_CLEAR_BOTH || c->type == DM_CLEAR_OWN) &&
                 c->body_len == DM_CLEAR_BODY);
    return (struct dm_clear){.until_time_ms = get_time(c->body + 1)};
}

size_t dm_receipt_body(const struct dm_receipt *r, uint8_t out[DM_RECEIPT_BODY])
{
    uint8_t *p = out;
    *p++ = BODY_VERSION;
    p = put_u64(p, (uint64_t)r->ref_time_ms);
    p = put_u32(p, r->ref_nonce);
    p = put_u64(p, (uint64_t)r->read_at_ms);
    return (size_t)(p - out);
}

size_t dm_delete_body(const struct dm_delete *d, uint8_t out[DM_DELETE_BODY])
{
    uint8_t *p = out;
    *p++ = BODY_VERSION;
    *p++ = d->by_to ? 1 : 0;
    p = put_u64(p, (uint64_t)d->ref_time_ms);
    p = put_u32(p, d->ref_nonce);
    return (size_t)(p - out);
}

size_t dm_clear_body(const struct dm_clear *d, uint8_t out[DM_CLEAR_BODY])
{
    uint8_t *p = out;
    *p++ = BODY_VERSION;
    p = put_u64(p, (uint64_t)d->until_time_ms);
    return (size_t)(p - out);
}

/* ---- writing ---- */

size_t dm_container_len(const struct dm_container *c)
{
    return sizeof(magic) + 2 + 1 + strnlen(c->from, sizeof(c->from)) + 1 +
           strnlen(c->to, sizeof(c->to)) + 8 + 4 + 8 + 8 + 4 + c->body_len + DM_SIG_BYTES;
}

/* The checks of dm_parse(), in its order, on a struct. */
static enum dm_error check_fields(const struct dm_container *c)
{
    if (!type_valid((unsigned)c->type))
        return DM_BAD_TYPE;
    if (!dm_login_valid(c->from))
        return DM_BAD_FROM_LOGIN;
    if (!dm_login_valid(c->to))
        return DM_BAD_TO_LOGIN;
    enum dm_error e = check_times(c);
    if (e != DM_OK)
        return e;
    if (c->body_len > DM_BODY_MAX)
        return DM_BODY_TOO_LARGE;
    return check_body(c);
}

static uint8_t *put_login(uint8_t *p, const char *s)
{
    size_t n = strnlen(s, DM_LOGIN_MAX); /* checked before: it is that long at most */
    *p++ = (uint8_t)n;
    memcpy(p, s, n);
    return p + n;
}

enum dm_error dm_build(const struct dm_container *c, const uint8_t seed[DM_KEY_BYTES], uint8_t *out)
{
    enum dm_error e = check_fields(c);
    if (e != DM_OK)
        return e;

    uint8_t *p = out;
    memcpy(p, magic, sizeof(magic));
    p += sizeof(magic);
    *p++ = CONTAINER_VERSION;
    *p++ = (uint8_t)c->type;
    p = put_login(p, c->from);
    p = put_login(p, c->to);
    p = put_u64(p, (uint64_t)c->time_ms);
    p = put_u32(p, c->nonce);
    p = put_u64(p, (uint64_t)c->revision_time_ms);
    p = put_u64(p, (uint64_t)c->reencrypted_at_ms);
    p = put_u32(p, (uint32_t)c->body_len);
    memcpy(p, c->body, c->body_len);
    p += c->body_len;

    uint8_t key[crypto_sign_PUBLICKEYBYTES];
    uint8_t secret[crypto_sign_SECRETKEYBYTES];
    /* Neither call can fail in libsodium; a container without its signature must never leave here.
     */
    shine_assert(crypto_sign_seed_keypair(key, secret, seed) == 0);
    shine_assert(crypto_sign_detached(p, NULL, out, (size_t)(p - out), secret) == 0);
    sodium_memzero(secret, sizeof(secret));
    return DM_OK;
}

/* ---- keys ---- */

_Static_assert(DM_KEY_BYTES == crypto_sign_PUBLICKEYBYTES, "Ed25519 public key");
_Static_assert(DM_KEY_BYTES == crypto_sign_SEEDBYTES, "Ed25519 seed");
_Static_assert(DM_SIG_BYTES == crypto_sign_BYTES, "Ed25519 signature");

bool dm_verify(const uint8_t *p, size_t n, const uint8_t key[DM_KEY_BYTES])
{
    if (n < DM_SIG_BYTES)
        return false;
    size_t len = n - DM_SIG_BYTES;
    return crypto_sign_verify_detached(p + len, p, len, key) == 0;
}

void dm_public_key(const uint8_t seed[DM_KEY_BYTES], uint8_t key[DM_KEY_BYTES])
{
    uint8_t secret[crypto_sign_SECRETKEYBYTES];
    shine_assert(crypto_sign_seed_keypair(key, secret, seed) == 0);
    sodium_memzero(secret, sizeof(secret));
}
