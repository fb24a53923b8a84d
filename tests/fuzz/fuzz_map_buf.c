/*
 * Any sequence of operations on a map and on a buffer, beside a model too simple to be wrong: an
 * array for each key, and a flat copy of the bytes.
 */
#include "util/buf.h"
#include "util/map.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { KEYS = 256, BOUND = 5000 };

/* Every entry once, and with its own value; the current one may be removed on the way. */
static void walk(struct map *m, uint8_t *values[KEYS], bool remove)
{
    size_t it = 0, n = 0, before = map_size(m);
    const char *key;
    void *value;
    bool seen[KEYS] = {false};
    while (map_next(m, &it, &key, &value)) {
        unsigned k = (unsigned)strtoul(key, NULL, 10);
        shine_assert(k < KEYS && values[k] == value && !seen[k]);
        seen[k] = true;
        n++;
        if (remove && k % 2) {
            shine_assert(map_remove(m, key) == value);
            values[k] = NULL;
        }
    }
    shine_assert(n == before);
}

static void check_map(const uint8_t *data, size_t size)
{
    struct map *m = map_new();
    uint8_t things[KEYS], *values[KEYS] = {NULL};
    size_t live = 0;
    for (size_t i = 0; i + 1 < size; i += 2) {
        unsigned k = data[i + 1];
        char key[8];
        (void)snprintf(key, sizeof key, "%u", k);
        shine_assert(map_get(m, key) == values[k]);
        switch (data[i] % 8) {
        case 0:
        case 1:
        case 2:
        case 3: {
            uint8_t *value = &things[data[i]];
            shine_assert(map_put(m, key, value) == values[k]);
            values[k] = value;
            break;
        }
        case 7:
            walk(m, values, data[i] > 200);
            break;
        default:
            shine_assert(map_remove(m, key) == values[k]);
            values[k] = NULL;
            break;
        }
        live = 0;
        for (size_t n = 0; n < KEYS; n++)
            live += values[n] != NULL;
        shine_assert(map_size(m) == live);
    }
    walk(m, values, false);
    map_free(m);
}

static void check_buf(const uint8_t *data, size_t size)
{
    static uint8_t model[BOUND];
    size_t len = 0;
    struct buf b;
    buf_init(&b, BOUND);
    for (size_t i = 0; i + 1 < size; i += 2) {
        size_t n = (size_t)(data[i] / 3) * (data[i + 1] + 1u);
        uint8_t piece[86 * 256];
        memset(piece, data[i + 1], sizeof piece);
        if (data[i] % 3 == 0) {
            n = n < len ? n : len;
            buf_consume(&b, n);
            memmove(model, model + n, len - n);
            len -= n;
        } else {
            bool fits = n <= BOUND - len;
            uint8_t *room = data[i] % 3 == 1 ? NULL : buf_reserve(&b, n);
            if (data[i] % 3 == 1) {
                shine_assert(buf_append(&b, piece, n) == fits);
            } else {
                shine_assert((room != NULL) == fits);
                if (fits) {
                    memcpy(room, piece, n);
                    buf_commit(&b, n);
                }
            }
            if (fits) {
                memcpy(model + len, piece, n);
                len += n;
            }
        }
        shine_assert(buf_len(&b) == len && memcmp(buf_head(&b), model, len) == 0);
        shine_assert(b.cap <= 2 * BOUND);
    }
    buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check_map(data, size);
    check_buf(data, size);
    return 0;
}
