/*
 * Hash map with open addressing and linear probing. Removal leaves a mark instead of moving
 * neighbours (backward shift would be tidier), because the iteration contract allows removing the
 * current entry. Marks are swept out whenever the table is rebuilt, at the latest when entries and
 * marks fill three quarters of it, and the new size follows the live entries, so it shrinks, too.
 *
 * Grades of failure: a NULL value is our bug; no entropy source = cannot continue.
 */
#include "util/map.h"

#include "util/log.h"
#include "util/mem.h"

#include <sodium.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

enum { MIN_SLOTS = 16 };

/* The states of a slot: free (no key, not removed), removed (no key), used. */
struct slot {
    char *key;
    void *value;
    uint64_t hash;
    bool removed;
};

struct map {
    struct slot *slots;
    size_t cap;    /* a power of two, or 0 before the first put */
    size_t used;   /* live entries */
    size_t filled; /* live entries and removed marks */
    uint8_t secret[crypto_shorthash_KEYBYTES];
};

struct map *map_new(void)
{
    if (sodium_init() < 0) {
        log_error("no_entropy", LOG_S("library", "libsodium"));
        exit(EX_OSERR);
    }
    struct map *m = xnew(struct map);
    randombytes_buf(m->secret, sizeof m->secret);
    return m;
}

void map_free(struct map *m)
{
    if (!m)
        return;
    for (size_t i = 0; i < m->cap; i++)
        free(m->slots[i].key);
    free(m->slots);
    free(m);
}

static uint64_t hash_of(const struct map *m, const char *key)
{
    uint64_t h;
    _Static_assert(crypto_shorthash_BYTES == sizeof h, "SipHash gives 64 bits");
    uint8_t out[crypto_shorthash_BYTES];
    crypto_shorthash(out, (const uint8_t *)key, strlen(key), m->secret);
    memcpy(&h, out, sizeof h);
    return h;
}

/* The used slot of `key`, or NULL. Ends because a table always has free slots. */
static struct slot *find(const struct map *m, const char *key, uint64_t hash)
{
    if (m->used == 0)
        return NULL;
    for (size_t i = hash & (m->cap - 1);; i = (i + 1) & (m->cap - 1)) {
        struct slot *s = &m->slots[i];
        if (!s->key && !s->removed)
            return NULL;
        if (s->key && s->hash == hash && strcmp(s->key, key) == 0)
            return s;
    }
}

/* The first slot without an entry on the path of `hash`. */
static struct slot *first_vacant(const struct map *m, uint64_t hash)
{
    size_t i = hash & (m->cap - 1);
    while (m->slots[i].key)
        i = (i + 1) & (m->cap - 1);
    return &m->slots[i];
}

/* Rebuild at a size that leaves the table at most half full, without marks. */
static void rebuild(struct map *m)
{
    struct slot *old = m->slots;
    size_t old_cap = m->cap;
    size_t cap = MIN_SLOTS;
    while (cap < (m->used + 1) * 2)
        cap *= 2;
    m->slots = xcalloc(cap, sizeof *m->slots);
    m->cap = cap;
    m->filled = m->used;
    for (size_t i = 0; i < old_cap; i++)
        if (old[i].key)
            *first_vacant(m, old[i].hash) = old[i];
    free(old);
}

void *map_get(const struct map *m, const char *key)
{
    const struct slot *s = find(m, key, hash_of(m, key));
    return s ? s->value : NULL;
}

void *map_put(struct map *m, const char *key, void *value)
{
    shine_assert(value);
    uint64_t hash = hash_of(m, key);
    struct slot *s = find(m, key, hash);
    if (s) {
        void *before = s->value;
        s->value = value;
        return before;
    }
    if (m->filled + 1 > m->cap / 4 * 3)
        rebuild(m);
    s = first_vacant(m, hash);
    if (!s->removed)
        m->filled++;
    m->used++;
    *s = (struct slot){.key = xstrdup(key), .value = value, .hash = hash};
    return NULL;
}

void *map_remove(struct map *m, const char *key)
{
    struct slot *s = find(m, key, hash_of(m, key));
    if (!s)
        return NULL;
    void *value = s->value;
    free(s->key);
    *s = (struct slot){.removed = true};
    m->used--;
    return value;
}

size_t map_size(const struct map *m)
{
    return m->used;
}

bool map_next(const struct map *m, size_t *it, const char **key, void **value)
{
    while (*it < m->cap) {
        const struct slot *s = &m->slots[(*it)++];
        if (!s->key)
            continue;
        if (key)
            *key = s->key;
        *value = s->value;
        return true;
    }
    return false;
}
