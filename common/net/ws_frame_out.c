/*
 * Frames on their way out. A frame is appended to the output whole, header and payload together.
 * Long messages leave in fragments, and a ping or pong goes in at the next boundary between frames:
 * it waits for one fragment at most, and not for all that is queued, so a peer that insists on its
 * pong does not give us up in the middle of a long message over a slow link.
 *
 * Grades of failure: none.
 */
#include "net/ws_internal.h"
#include "util/mem.h"

#include <string.h>

enum { HEADER_MAX = 14, FRAGMENT = 64 * 1024 };

static void put_frame(struct ws_conn *c, bool fin, uint8_t opcode, const void *p, size_t n)
{
    (void)buf_reserve(&c->plain, n + HEADER_MAX);
    struct wslay_frame_iocb io = {
        .fin = fin,
        .opcode = opcode,
        .mask = !c->server,
        .payload_length = n,
        .data = p,
        .data_length = n,
    };
    /* The callback takes everything, so a frame never stays half-written. */
    shine_assert(wslay_frame_send(ws_frame_context(c), &io) == (ssize_t)n);
}

void ws_frame_text(struct ws_conn *c, const char *text, size_t len)
{
    uint8_t opcode = WSLAY_TEXT_FRAME;
    if (len > FRAGMENT) /* one allocation instead of several that grow */
        (void)buf_reserve(&c->plain, len + (len / FRAGMENT + 1) * HEADER_MAX);
    for (; len > FRAGMENT; text += FRAGMENT, len -= FRAGMENT) {
        put_frame(c, false, opcode, text, FRAGMENT);
        opcode = WSLAY_CONTINUATION_FRAME;
    }
    put_frame(c, true, opcode, text, len);
}

/* Bytes of the frame that begins at `p`. */
static size_t frame_size(const uint8_t *p)
{
    size_t len = p[1] & 0x7f, header = p[1] & 0x80 ? 6 : 2;
    if (len == 126)
        return header + 2 + ((size_t)p[2] << 8 | p[3]);
    if (len == 127) { /* a fragment needs no more than the lowest four of the eight bytes */
        return header + 8 + ((size_t)p[6] << 24 | (size_t)p[7] << 16 | (size_t)p[8] << 8 | p[9]);
    }
    return header + len;
}

void ws_frame_leaving(struct ws_conn *c, size_t n)
{
    struct ws_frames *f = c->frame;
    if (!f)
        return;
    const uint8_t *p = buf_head(&c->plain);
    while (n > f->head_left) {
        n -= f->head_left;
        p += f->head_left;
        f->head_left = frame_size(p);
    }
    f->head_left -= n;
}

/* Send a control frame ahead of the queue. Returns the bytes of output up to its end. */
static size_t put_ahead(struct ws_conn *c, uint8_t opcode, const void *p, size_t n)
{
    struct buf *b = &c->plain;
    size_t queued = buf_len(b), at = c->frame->head_left;
    put_frame(c, true, opcode, p, n);
    n = buf_len(b) - queued;
    if (at == queued || c->tls_retry) /* OpenSSL wants the bytes it refused again as they were */
        return buf_len(b);
    uint8_t frame[HEADER_MAX + WS_CONTROL_MAX], *head = b->data + b->off;
    memcpy(frame, head + queued, n);
    memmove(head + at + n, head + at, queued - at);
    memcpy(head + at, frame, n);
    return at + n;
}

void ws_frame_ping(struct ws_conn *c)
{
    c->ping_pos = c->plain_out + put_ahead(c, WSLAY_PING, NULL, 0);
}

void ws_frame_pong(struct ws_conn *c)
{
    struct ws_frames *f = c->frame;
    if (!f || !f->pong_owed || c->state != WS_OPEN)
        return;
    f->pong_owed = false;
    size_t end = put_ahead(c, WSLAY_PONG, f->pong, f->pong_len);
    if (c->ping_wait && !c->ping_left && c->ping_pos >= c->plain_out + end)
        c->ping_pos += 2u + f->pong_len + (c->server ? 0 : 4); /* a ping behind it has moved */
}

void ws_frame_close(struct ws_conn *c, int code, const char *reason)
{
    uint8_t p[WS_CONTROL_MAX];
    size_t n = strlen(reason);
    shine_assert(n <= sizeof(p) - 2);
    p[0] = (uint8_t)(code >> 8);
    p[1] = (uint8_t)code;
    memcpy(p + 2, reason, n);
    put_frame(c, true, WSLAY_CONNECTION_CLOSE, p, code == 1005 ? 0 : n + 2);
}
