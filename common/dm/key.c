/*
 * Names of messages and the rules that compare them. Keys are text because they travel as text and
 * are primary keys in the database; their one canonical form is what makes equal messages equal
 * strings.
 *
 * Failures: none but false from dm_key_parse(). Containers given here have passed dm_parse() or
 * dm_build(); a key that does not fit its buffer is our bug.
 */
#include "dm/key.h"

#include <sodium.h>
#include <string.h>

#include "util/decimal.h"
#include "util/mem.h"

/* from|to|timeMs|nonce, and |type unless that is 0. Without snprintf(): every message needs a dozen
 * of these. */
static void format_key(char *out, size_t size, const char *from, const char *to, int64_t time_ms,
                       uint32_t nonce, int type)
{
    size_t from_len = strlen(from), to_len = strlen(to);
    shine_assert(time_ms >= 0 && time_ms <= DM_INT_MAX); /* 16 digits; a nonce has 10 */
    shine_assert(from_len + to_len + 16 + 10 + (type ? 5 : 3) < size);
    char *p = out;
    memcpy(p, from, from_len);
    p += from_len;
    *p++ = '|';
    memcpy(p, to, to_len);
    p += to_len;
    *p++ = '|';
    p += decimal_write(p, time_ms);
    *p++ = '|';
    p += decimal_write(p, nonce);
    if (type != 0) {
        *p++ = '|';
        *p++ = (char)('0' + type); /* 1 to 8 */
    }
    *p = '\0';
}

void dm_base_key(const struct dm_container *c, char out[DM_BASE_KEY_MAX])
{
    format_key(out, DM_BASE_KEY_MAX, c->from, c->to, c->time_ms, c->nonce, 0);
}

void dm_message_key(const struct dm_container *c, char out[DM_MESSAGE_KEY_MAX])
{
    format_key(out, DM_MESSAGE_KEY_MAX, c->from, c->to, c->time_ms, c->nonce, (int)c->type);
}

/* A login and the bar after it; NULL if *s does not start with one. */
static const char *parse_login(const char *s, char out[DM_LOGIN_MAX + 1])
{
    /* The bar within the first 31 bytes, without looking past the NUL. */
    size_t n = strcspn(s, "|");
    if (n > DM_LOGIN_MAX || s[n] != '|')
        return NULL;
    memcpy(out, s, n);
    out[n] = '\0';
    return dm_login_valid(out) ? s + n + 1 : NULL;
}

/* Decimal digits in canonical form and the bar after them. strtoull() would take signs, blanks and
 * zeros. */
static const char *parse_number(const char *s, uint64_t max, uint64_t *out)
{
    uint64_t v = 0;
    const char *p = s;
    for (; *p >= '0' && *p <= '9'; p++) {
        if (p > s && *s == '0')
            return NULL;
        v = v * 10 + (uint64_t)(*p - '0');
        if (v > max)
            return NULL; /* before the next digit could overflow: max is far below 2^64 / 10 */
    }
    if (p == s || *p != '|')
        return NULL;
    *out = v;
    return p + 1;
}

bool dm_key_parse(const char *s, struct dm_key *k)
{
    uint64_t time_ms = 0;
    uint64_t nonce = 0;
    memset(k, 0, sizeof(*k));
    s = parse_login(s, k->from);
    if (s)
        s = parse_login(s, k->to);
    if (s)
        s = parse_number(s, (uint64_t)DM_INT_MAX, &time_ms);
    if (s)
        s = parse_number(s, UINT32_MAX, &nonce);
    if (!s || s[0] < '0' + DM_TEXT_IN || s[0] > '0' + DM_CLEAR_OWN || s[1] != '\0')
        return false;
    k->time_ms = (int64_t)time_ms;
    k->nonce = (uint32_t)nonce;
    k->type = (enum dm_type)(s[0] - '0');
    return true;
}

void dm_delivery_key(const struct dm_key *k, char out[DM_MESSAGE_KEY_MAX])
{
    enum dm_type type = k->type;
    if (type == DM_TEXT_IN)
        type = DM_TEXT_OUT;
    else if (type == DM_RECEIPT_IN)
        type = DM_RECEIPT_OUT;
    format_key(out, DM_MESSAGE_KEY_MAX, k->from, k->to, k->time_ms, k->nonce, (int)type);
}

static int cmp_i64(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

int dm_revision_cmp(const struct dm_container *a, const struct dm_container *b)
{
    int d = cmp_i64(a->revision_time_ms, b->revision_time_ms);
    return d != 0 ? d : cmp_i64(a->reencrypted_at_ms, b->reencrypted_at_ms);
}

bool dm_is_pair(const struct dm_container *in, const struct dm_container *out)
{
    /* Tombstones are odd and even too, but one blob each: two of them are no pair. */
    if (in->type != DM_TEXT_IN && in->type != DM_RECEIPT_IN)
        return false;
    if ((int)out->type != (int)in->type + 1 || strcmp(in->from, out->from) != 0 ||
        strcmp(in->to, out->to) != 0 || in->time_ms != out->time_ms || in->nonce != out->nonce ||
        in->revision_time_ms != out->revision_time_ms)
        return false;
    if (in->type == DM_TEXT_IN)
        return true; /* each copy is encrypted for its own reader */
    return in->body_len == out->body_len && memcmp(in->body, out->body, in->body_len) == 0;
}

void dm_sha256(const uint8_t *p, size_t n, uint8_t out[32])
{
    /* libsodium rather than OpenSSL, which allocates, can fail, and is quicker (four times at 64
     * KiB) only on what is much larger than the usual message. */
    crypto_hash_sha256(out, p, n);
}
