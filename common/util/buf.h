/*
 * A growable byte buffer with an upper bound. Consumed from the front, appended at the end;
 * used for socket input and output, so the bound is what keeps a slow peer from eating memory.
 */
#ifndef SHINE_UTIL_BUF_H
#define SHINE_UTIL_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf {
    uint8_t *data; /* start of the allocation */
    size_t off;    /* first unread byte */
    size_t len;    /* unread bytes from `off` */
    size_t cap;    /* allocated bytes */
    size_t max;    /* bound on `len`; 0 = none */
};

/* An empty buffer holding at most `max` unread bytes (0 = unbounded). Allocates nothing. */
void buf_init(struct buf *b, size_t max);
/* Free the storage; the buffer is empty and usable afterwards. */
void buf_free(struct buf *b);
/* Append `n` bytes. false, and nothing appended, if the bound would be exceeded. */
bool buf_append(struct buf *b, const void *p, size_t n);
/* Room for at least `n` more bytes, to be written at the returned address and then announced by
 * buf_commit(). NULL if the bound would be exceeded. Valid until the next call on `b`. */
uint8_t *buf_reserve(struct buf *b, size_t n);
void buf_commit(struct buf *b, size_t n);
/* The unread bytes: buf_head(b) points at buf_len(b) of them. Valid until the next change. */
static inline const uint8_t *buf_head(const struct buf *b)
{
    return b->data ? b->data + b->off : (const uint8_t *)"";
}
static inline size_t buf_len(const struct buf *b)
{
    return b->len;
}
/* Drop `n` bytes (at most buf_len()) from the front. An emptied buffer keeps its storage unless it
 * is larger than 64 KiB: idle connections must not hold what one large message needed. */
void buf_consume(struct buf *b, size_t n);

#endif
