/*
 * Help for tests that speak WebSocket byte by byte, see support_frames.h.
 */
#include "support_frames.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

const char frames_upgrade[] = "GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n"
                              "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                              "Sec-WebSocket-Key: AAECAwQFBgcICQoLDA0ODw==\r\n\r\n";

void frames_start(struct frames *f)
{
    memset(f, 0, sizeof(*f));
    f->limits = ws_limits_default;
    f->limits.max_message = 100000;
    f->limits.max_fragments = 100;
    f->limits.close_ms = 1000;
    assert_int_equal(uv_loop_init(&f->loop), 0);
}

/* Append a frame; masked with zeros if `mask`, which leaves the payload as it is. */
void frames_put_header(struct frames *f, unsigned first, uint64_t len, bool mask)
{
    uint8_t h[14] = {(uint8_t)first}, bit = mask ? 0x80 : 0;
    size_t n = 2;
    if (len < 126) {
        h[1] = (uint8_t)(bit | len);
    } else if (len < 65536) {
        h[1] = bit | 126;
        h[2] = (uint8_t)(len >> 8);
        h[3] = (uint8_t)len;
        n = 4;
    } else {
        h[1] = bit | 127;
        for (int i = 0; i < 8; i++)
            h[2 + i] = (uint8_t)(len >> (56 - 8 * i));
        n = 10;
    }
    if (mask)
        n += 4;
    assert_true(buf_append(&f->out, h, n));
}

void frames_put(struct frames *f, unsigned first, const void *p, size_t n)
{
    frames_put_header(f, first, n, true);
    assert_true(buf_append(&f->out, p, n));
}

void frames_put_close(struct frames *f, int code, const char *reason)
{
    uint8_t p[125] = {(uint8_t)(code >> 8), (uint8_t)code};
    memcpy(p + 2, reason, strlen(reason));
    frames_put(f, FIN | CLOSE, p, 2 + strlen(reason));
}

/* Connect, frames_upgrade, and send what was put (`piece` bytes at a time, 0 = all at once). */
void frames_send(struct frames *f, size_t piece)
{
    net_server_start(&f->server, &f->loop, NULL, &f->limits, true);
    net_raw_dial(&f->raw, &f->loop, f->server.port);
    net_run_until(&f->loop, &f->raw.connected, 1, 10);
    net_raw_send(&f->raw, frames_upgrade, strlen(frames_upgrade));
    size_t len = buf_len(&f->out);
    for (size_t at = 0; at < len;) {
        size_t n = piece && piece < len - at ? piece : len - at;
        net_raw_send(&f->raw, buf_head(&f->out) + at, n);
        at += n;
        if (piece)
            uv_run(&f->loop, UV_RUN_NOWAIT);
    }
}

/* The bytes behind the HTTP head. */
const uint8_t *frames_got(struct frames *f, size_t *n)
{
    const uint8_t *p = buf_head(&f->raw.got);
    const uint8_t *end = memmem(p, buf_len(&f->raw.got), "\r\n\r\n", 4);
    assert_non_null(end);
    *n = buf_len(&f->raw.got) - (size_t)(end + 4 - p);
    return end + 4;
}

void frames_finish(struct frames *f)
{
    net_server_stop(&f->server);
    if (!uv_is_closing((uv_handle_t *)&f->raw.tcp))
        net_raw_close(&f->raw);
    net_loop_end(&f->loop);
    net_raw_free(&f->raw);
    buf_free(&f->out);
}

/* The server ends the stream; its last frame is a close with `code`. Returns the frames before it.
 */
size_t frames_expect_close(struct frames *f, int code, enum ws_end end)
{
    struct net_end *e = &f->server.ends[0];
    net_run_until(&f->loop, &f->raw.ended, 1, 20);
    size_t n;
    const uint8_t *p = frames_got(f, &n);
    size_t at = 0, last = 0;
    while (at < n) { /* our frames here are all short */
        last = at;
        at += 2u + p[at + 1];
    }
    assert_int_equal(at, n);
    assert_int_equal(p[last], FIN | CLOSE);
    if (code == 1005) {
        assert_int_equal(p[last + 1], 0);
    } else {
        assert_true(p[last + 1] >= 2);
        assert_int_equal(p[last + 2] << 8 | p[last + 3], code);
    }
    net_raw_close(&f->raw);
    net_run_until(&f->loop, &e->closed, 1, 10);
    assert_int_equal(e->end, end);
    assert_int_equal(e->code, code);
    return last;
}

/* Send what was put; the server must say goodbye with `code` for a breach. Repeated byte by byte.
 */
void frames_expect_breach(struct frames *f, int code)
{
    frames_send(f, 0);
    frames_expect_close(f, code, WS_END_PROTOCOL);
    assert_int_equal(f->server.ends[0].messages, 0);
    struct buf again = f->out;
    buf_init(&f->out, 0);
    frames_finish(f);
    struct ws_limits limits = f->limits;
    if (buf_len(&again) < 2000) {
        frames_start(f);
        f->limits = limits;
        f->out = again;
        frames_send(f, 1);
        frames_expect_close(f, code, WS_END_PROTOCOL);
        assert_int_equal(f->server.ends[0].messages, 0);
        frames_finish(f);
    } else {
        buf_free(&again);
    }
}
