/*
 * Frames and messages (RFC 6455, sections 5 to 7) on top of wslay's frame functions.
 *
 * wslay reads and writes single frames here; what a sequence of frames means is decided in this
 * file. wslay's other interface, the event context, was rejected: once it has been fed, it delivers
 * everything it holds (up to 4 KiB, some 680 messages), which neither a pause nor a budget could
 * stop; it queues a pong for every ping, so that a flood of pings grows memory; it answers a broken
 * frame with a close frame without a code, and takes 1012 to 1014 for broken; and it costs twice
 * the memory per connection.
 *
 * All limits are applied to what a frame announces, before a byte of it is stored; memory then
 * grows with what has arrived. wslay reports a frame with its first payload byte, so an
 * announcement alone is neither stored nor answered.
 *
 * Grades of failure: whatever the peer sends ends its connection only.
 */
#include "net/ws_internal.h"
#include "net/ws_utf8.h"
#include "util/log.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>
#include <wslay/wslay.h>

enum {
    TURN_MESSAGES = 64, /* per connection and turn of the loop */
    TURN_BYTES = 256 * 1024,
    RESERVE_MAX = 64 * 1024, /* room made on the word of a header */
};

/* --- the context --- */

static ssize_t recv_cb(uint8_t *p, size_t n, int flags, void *user)
{
    (void)flags;
    struct ws_conn *c = user;
    size_t got = ws_io_take(c, p, n);
    c->frame->held += got;
    if (got > 0)
        return (ssize_t)got;
    c->frame->dry = true;
    return -1;
}

static ssize_t send_cb(const uint8_t *p, size_t n, int flags, void *user)
{
    (void)flags;
    ws_io_put(user, p, n);
    return (ssize_t)n;
}

static int mask_cb(uint8_t *p, size_t n, void *user)
{
    struct ws_conn *c = user;
    shine_assert(n == 4);
    ws_loop_mask(c->loop, p);
    return 0;
}

wslay_frame_context_ptr ws_frame_context(struct ws_conn *c)
{
    static const struct wslay_frame_callbacks callbacks = {
        .send_callback = send_cb,
        .recv_callback = recv_cb,
        .genmask_callback = mask_cb,
    };
    if (!c->frame->wslay && wslay_frame_context_init(&c->frame->wslay, &callbacks, c) != 0) {
        log_error("out_of_memory");
        exit(EXIT_FAILURE); /* the only way it fails */
    }
    return c->frame->wslay;
}

void ws_frame_rest(struct ws_conn *c)
{
    struct ws_frames *f = c->frame;
    if (!f || f->held > 0 || f->in_frame)
        return;
    wslay_frame_context_free(f->wslay);
    f->wslay = NULL;
    if (!f->in_message)
        buf_free(&f->message);
}

void ws_frame_attach(struct ws_conn *c)
{
    c->frame = xnew(struct ws_frames);
    c->frame->head_left = buf_len(&c->plain); /* the end of the HTTP exchange */
}

void ws_frame_detach(struct ws_conn *c)
{
    if (!c->frame)
        return;
    wslay_frame_context_free(c->frame->wslay);
    buf_free(&c->frame->message);
    free(c->frame);
    c->frame = NULL;
}

/* --- receiving --- */

/* The peer broke the rules: say which and stop listening. */
static void fail(struct ws_conn *c, int code, const char *reason)
{
    if (c->state == WS_OPEN)
        ws_frame_close(c, code, reason);
    ws_conn_drain(c, WS_END_PROTOCOL, code, reason);
}

/* Bytes of the header that announced `io`. */
static size_t header_len(const struct wslay_frame_iocb *io)
{
    size_t n = io->payload_length < 126 ? 2 : io->payload_length < 65536 ? 4 : 10;
    return io->mask ? n + 4 : n;
}

/* The first payload byte of a frame is here (or it has none). false: failed. */
static bool frame_begin(struct ws_conn *c, const struct wslay_frame_iocb *io)
{
    struct ws_frames *f = c->frame;
    const char *wrong = NULL;
    if (io->rsv != WSLAY_RSV_NONE)
        wrong = "reserved bit set";
    else if (!io->mask == c->server)
        wrong = c->server ? "frame not masked" : "frame masked";
    else if (io->opcode == WSLAY_CONTINUATION_FRAME && !f->in_message)
        wrong = "continuation of nothing";
    else if ((io->opcode == WSLAY_TEXT_FRAME || io->opcode == WSLAY_BINARY_FRAME) && f->in_message)
        wrong = "message within a message";
    else if ((io->opcode > WSLAY_BINARY_FRAME && io->opcode < WSLAY_CONNECTION_CLOSE) ||
             io->opcode > WSLAY_PONG)
        wrong = "unknown opcode";
    else if (io->opcode == WSLAY_CONNECTION_CLOSE && io->payload_length == 1)
        wrong = "half a close code";
    if (wrong) {
        fail(c, 1002, wrong);
        return false;
    }
    f->in_frame = true;
    f->opcode = io->opcode;
    f->fin = io->fin;
    f->frame_left = io->payload_length;
    f->control_len = 0;
    shine_assert(f->held >= header_len(io));
    f->held -= header_len(io);
    if (wslay_is_ctrl_frame(io->opcode))
        return true;

    if (io->opcode == WSLAY_BINARY_FRAME) {
        fail(c, 1003, "only text is understood");
        return false;
    }
    if (io->opcode == WSLAY_TEXT_FRAME) {
        f->in_message = true;
        f->fragments = 0;
        f->utf8 = (struct ws_utf8){0};
        c->message_at = uv_now(c->loop->uv);
        if (!f->fin || f->frame_left > io->data_length)
            ws_conn_arm(c); /* the rest will come in another read, or never */
    }
    if (++f->fragments > c->limits.max_fragments) {
        fail(c, 1009, "too many fragments");
        return false;
    }
    if (f->frame_left > c->limits.max_message - buf_len(&f->message)) {
        fail(c, 1009, "message too long");
        return false;
    }
    if (c->state == WS_OPEN)
        (void)buf_reserve(&f->message,
                          (f->frame_left < RESERVE_MAX ? (size_t)f->frame_left : RESERVE_MAX) + 1);
    return true;
}

static bool frame_data(struct ws_conn *c, const uint8_t *p, size_t n)
{
    struct ws_frames *f = c->frame;
    f->frame_left -= n;
    f->held -= n;
    if (wslay_is_ctrl_frame(f->opcode)) {
        shine_assert(n <= sizeof(f->control) - f->control_len); /* wslay has checked the length */
        if (n > 0)
            memcpy(f->control + f->control_len, p, n);
        f->control_len = (uint8_t)(f->control_len + n);
        return true;
    }
    if (!ws_utf8_feed(&f->utf8, p, n)) {
        fail(c, 1007, "not UTF-8");
        return false;
    }
    if (c->state == WS_OPEN) /* while closing, messages are dropped */
        (void)buf_append(&f->message, p, n);
    return true;
}

static void message_end(struct ws_conn *c)
{
    struct ws_frames *f = c->frame;
    f->in_message = false;
    c->message_at = 0;
    if (!ws_utf8_complete(&f->utf8)) {
        fail(c, 1007, "not UTF-8");
        return;
    }
    if (c->state != WS_OPEN)
        return;
    c->turn_messages++;
    size_t len = buf_len(&f->message);
    char *end = (char *)buf_reserve(&f->message, 1);
    *end = '\0';
    c->cb->on_message(c, c->ctx, (const char *)buf_head(&f->message), len);
    buf_consume(&f->message, len);
}

static bool close_code_valid(int code)
{
    /* 1004, 1005, 1006 and 1015 must not be sent; 1012 to 1014 are registered since RFC 6455. */
    return (code >= 1000 && code <= 1003) || (code >= 1007 && code <= 1014) ||
           (code >= 3000 && code <= 4999);
}

static void close_received(struct ws_conn *c)
{
    struct ws_frames *f = c->frame;
    int code = 1005;
    char reason[WS_CONTROL_MAX + 1] = "";
    if (f->control_len >= 2) {
        size_t n = f->control_len - 2u;
        code = f->control[0] << 8 | f->control[1];
        struct ws_utf8 u = {0};
        if (!close_code_valid(code)) {
            fail(c, 1002, "invalid close code");
            return;
        }
        if (!ws_utf8_feed(&u, f->control + 2, n) || !ws_utf8_complete(&u)) {
            fail(c, 1007, "not UTF-8");
            return;
        }
        memcpy(reason, f->control + 2, n);
        reason[n] = '\0';
    }
    if (c->state == WS_CLOSING) {
        ws_conn_drain(c, WS_END_CLOSED, c->end_code, NULL); /* our close, answered */
        return;
    }
    ws_frame_close(c, code, "");
    ws_conn_drain(c, WS_END_CLOSED, code, reason);
}

static void frame_end(struct ws_conn *c)
{
    struct ws_frames *f = c->frame;
    f->in_frame = false;
    switch (f->opcode) {
    case WSLAY_CONNECTION_CLOSE:
        close_received(c);
        break;
    case WSLAY_PING:
        memcpy(f->pong, f->control, f->control_len);
        f->pong_len = f->control_len;
        f->pong_owed = true;
        ws_io_dirty(c);
        break;
    case WSLAY_PONG:
        break; /* any byte counts as life, so a pong needs no matching */
    default:
        if (f->fin)
            message_end(c);
    }
}

bool ws_frame_input(struct ws_conn *c)
{
    struct ws_frames *f = c->frame;
    while (c->state == WS_OPEN || c->state == WS_CLOSING) {
        if (c->paused || c->turn_messages >= TURN_MESSAGES || c->turn_bytes >= TURN_BYTES)
            return true;
        struct wslay_frame_iocb io = {0};
        f->dry = false;
        ssize_t n = wslay_frame_recv(ws_frame_context(c), &io);
        if (c->state != WS_OPEN && c->state != WS_CLOSING)
            break; /* the stream ended below */
        if (n == WSLAY_ERR_WANT_READ) {
            if (!f->dry)
                continue; /* wslay asks once per call, and got only a part of a header */
            ws_frame_rest(c);
            return false;
        }
        if (n < 0) {
            fail(c, 1002, "malformed frame");
            break;
        }
        if (!f->in_frame && !frame_begin(c, &io))
            break;
        if (!frame_data(c, io.data, io.data_length))
            break;
        if (f->frame_left == 0)
            frame_end(c);
    }
    if (c->state == WS_DRAINING)
        buf_free(&f->message);
    return false;
}
