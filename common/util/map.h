/*
 * Hash map from NUL-terminated strings to pointers. Keys come from the network, so the hash is
 * keyed with a random secret per map (SipHash by libsodium): chosen keys cannot make it slow.
 */
#ifndef SHINE_UTIL_MAP_H
#define SHINE_UTIL_MAP_H

#include <stdbool.h>
#include <stddef.h>

struct map;

/* A new empty map, freed by map_free() (which does not free the values). */
struct map *map_new(void);
void map_free(struct map *m);
/* The value stored under `key`, or NULL. */
void *map_get(const struct map *m, const char *key);
/* Store `value` (not NULL) under a copy of `key`; returns the value it replaced, or NULL. */
void *map_put(struct map *m, const char *key, void *value);
/* Remove `key`; returns its value, or NULL if there was none. */
void *map_remove(struct map *m, const char *key);
size_t map_size(const struct map *m);
/* Iterate in no particular order: `size_t it = 0; while (map_next(m, &it, &key, &value)) …`. Only
 * the entry just returned may be removed meanwhile, nothing may be added. `key` may be NULL. */
bool map_next(const struct map *m, size_t *it, const char **key, void **value);

#endif
