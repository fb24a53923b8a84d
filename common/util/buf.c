/*
 * The growable byte buffer. Appending and consuming cost amortised constant time per byte, also
 * when the buffer is never empty: bytes are moved to the front only when at least as many were
 * consumed since the last move.
 *
 * Grades of failure: a full buffer is reported to the caller; misuse (consuming or committing more
 * than there is) is our bug.
 */
#include "util/buf.h"

#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_CAP = 256, KEEP_CAP = 64 * 1024 };

void buf_init(struct buf *b, size_t max)
{
    *b = (struct buf){.max = max};
}

void buf_free(struct buf *b)
{
    free(b->data);
    buf_init(b, b->max);
}

/* Get a larger allocation, with the unread bytes at its start. */
static void grow(struct buf *b, size_t need)
{
    /* The first fill takes what it needs; later ones double, which also leaves so much room that
     * compacting stays rare. An overflow of the doubling is caught by the allocator. */
    size_t cap = b->len == 0 ? need : need > SIZE_MAX / 2 ? SIZE_MAX : need * 2;
    if (cap < FIRST_CAP)
        cap = FIRST_CAP;
    if (!b->data || b->off == 0) {
        b->data = xrealloc(b->data, cap);
    } else {
        uint8_t *data = xmalloc(cap);
        memcpy(data, b->data + b->off, b->len);
        free(b->data);
        b->data = data;
        b->off = 0;
    }
    b->cap = cap;
}

uint8_t *buf_reserve(struct buf *b, size_t n)
{
    size_t bound = b->max ? b->max : SIZE_MAX;
    if (b->len > bound || n > bound - b->len)
        return NULL;
    size_t need = b->len + n;
    if (!b->data) {
        grow(b, need);
    } else if (need > b->cap - b->off) {
        if (need <= b->cap / 2) {
            memmove(b->data, b->data + b->off, b->len);
            b->off = 0;
        } else {
            grow(b, need);
        }
    }
    return b->data + b->off + b->len;
}

void buf_commit(struct buf *b, size_t n)
{
    shine_assert(n <= b->cap - b->off - b->len);
    shine_assert(!b->max || n <= b->max - b->len);
    b->len += n;
}

bool buf_append(struct buf *b, const void *p, size_t n)
{
    if (n == 0)
        return true;
    uint8_t *room = buf_reserve(b, n);
    if (!room)
        return false;
    memcpy(room, p, n);
    buf_commit(b, n);
    return true;
}

void buf_consume(struct buf *b, size_t n)
{
    shine_assert(n <= b->len);
    b->off += n;
    b->len -= n;
    if (b->len > 0)
        return;
    b->off = 0;
    if (b->cap > KEEP_CAP)
        buf_free(b);
}
