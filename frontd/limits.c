/*
 * Buckets of users, addresses and servers. See limits.h.
 *
 * Full ones are swept away when a kind has grown to twice of what the last sweep left, once a
 * second at most, so that sweeping costs little for each bucket made.
 *
 * Raises: none.
 */
#include "frontd/limits.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "util/bucket.h"
#include "util/clock.h"
#include "util/map.h"
#include "util/mem.h"

#define SWEEP_MIN 256
#define SWEEP_US                                                                                   \
    1000000 /* between two sweeps, or a full table would be swept for each newcomer                \
             */

struct kind {
    bool limited;
    struct bucket_rate rate;
    struct map *by_key; /* of struct bucket */
    size_t sweep_at;    /* so many buckets */
    int64_t swept_us;
    struct bucket shared;
};

struct limits {
    size_t max_entries;
    struct kind kinds[LIMIT_KINDS];
};

static const struct {
    const char *rate, *burst;
    int64_t seconds; /* in which the rate is */
} keys[LIMIT_KINDS] = {
    [LIMIT_LOGIN] = {"limits.requestsPerLogin", "limits.requestsPerLoginBurst", 1},
    [LIMIT_ADDRESS] = {"limits.sendsPerAddress", "limits.sendsPerAddressBurst", 1},
    [LIMIT_PEER] = {"limits.sendsPerServer", "limits.sendsPerServer", 1},
    [LIMIT_HELLO] = {"limits.hellosPerAddress", "limits.hellosPerAddressBurst", 1},
    [LIMIT_ADD_USER] = {"limits.addUsersPerAddress", "limits.addUsersPerAddressBurst", 60},
};

struct limits *limits_new(const struct config *c, size_t max_entries)
{
    struct limits *l = xnew(struct limits);
    l->max_entries = max_entries;
    for (int i = 0; i < LIMIT_KINDS; i++) {
        struct kind *k = &l->kinds[i];
        int64_t n = config_int(c, keys[i].rate);
        k->by_key = map_new();
        k->sweep_at = SWEEP_MIN < max_entries ? SWEEP_MIN : max_entries;
        k->limited = n > 0;
        if (k->limited)
            k->rate = bucket_rate_of(n, keys[i].seconds, config_int(c, keys[i].burst));
    }
    return l;
}

static void kind_clear(struct kind *k)
{
    size_t it = 0;
    void *b;
    while (map_next(k->by_key, &it, NULL, &b))
        free(b);
    map_free(k->by_key);
}

void limits_free(struct limits *l)
{
    for (int i = 0; i < LIMIT_KINDS; i++)
        kind_clear(&l->kinds[i]);
    free(l);
}

/* Forget what is full. */
static void sweep(struct kind *k, int64_t now_us, size_t max_entries)
{
    size_t it = 0;
    const char *key;
    void *v;
    while (map_next(k->by_key, &it, &key, &v))
        if (bucket_is_full(v, now_us)) {
            (void)map_remove(k->by_key, key);
            free(v);
        }
    size_t next = 2 * map_size(k->by_key);
    if (next < SWEEP_MIN)
        next = SWEEP_MIN;
    k->sweep_at = next < max_entries ? next : max_entries;
    k->swept_us = now_us;
}

static struct bucket *bucket_of(struct limits *l, struct kind *k, const char *key, int64_t now_us)
{
    struct bucket *b = map_get(k->by_key, key);
    if (b)
        return b;
    if (map_size(k->by_key) >= k->sweep_at && now_us - k->swept_us >= SWEEP_US)
        sweep(k, now_us, l->max_entries);
    if (map_size(k->by_key) >= l->max_entries)
        return &k->shared;
    b = xnew(struct bucket);
    (void)map_put(k->by_key, key, b);
    return b;
}

/* What of an address counts, into `out`. */
static void address_key(const char *address, char out[INET6_ADDRSTRLEN])
{
    struct in6_addr a;
    if (inet_pton(AF_INET6, address, &a) != 1 || IN6_IS_ADDR_V4MAPPED(&a)) {
        size_t n = strnlen(address, INET6_ADDRSTRLEN - 1);
        memcpy(out, address, n);
        out[n] = '\0';
        return;
    }
    memset(&a.s6_addr[8], 0, 8);
    shine_assert(inet_ntop(AF_INET6, &a, out, INET6_ADDRSTRLEN) != NULL);
}

int64_t limits_take(struct limits *l, enum limit_kind kind, const char *key)
{
    struct kind *k = &l->kinds[kind];
    char address[INET6_ADDRSTRLEN];
    if (!k->limited)
        return 0;
    if (kind != LIMIT_LOGIN && kind != LIMIT_PEER) {
        address_key(key, address);
        key = address;
    }
    int64_t now_us = clock_mono_us();
    int64_t wait_us = bucket_take(bucket_of(l, k, key, now_us), &k->rate, now_us);
    return (wait_us + 999) / 1000;
}
