/*
 * The way out: whatever portions the kernel takes bytes in, the peer sees the same stream.
 * uv_try_write() is replaced here by one that takes what the test says, which reaches every offset;
 * the rest goes the real way through uv_write().
 */
#include "support_frames.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* --- the shim --- */

static struct {
    enum { REAL, UP_TO, TRICKLE, FAIL } mode;
    size_t left;    /* UP_TO: bytes still taken, then would-block */
    bool every_2nd; /* TRICKLE: one byte, would-block, one byte ... */
    unsigned calls;
    int error; /* FAIL: once `left` bytes were taken */
} shim;

static int take(uv_stream_t *s, const uv_buf_t *b, size_t n)
{
    uv_os_fd_t fd;
    assert_int_equal(uv_fileno((uv_handle_t *)s, &fd), 0);
    ssize_t r = write(fd, b->base, n < b->len ? n : b->len);
    return r >= 0 ? (int)r : errno == EAGAIN ? UV_EAGAIN : -errno;
}

int uv_try_write(uv_stream_t *s, const uv_buf_t bufs[], unsigned nbufs)
{
    shim.calls++;
    assert_int_equal(nbufs, 1);
    assert_true(bufs[0].len > 0); /* a write of nothing is never issued */
    if (shim.mode == REAL)
        return take(s, bufs, bufs[0].len);
    if (shim.mode == TRICKLE) {
        shim.every_2nd = !shim.every_2nd;
        return shim.every_2nd ? take(s, bufs, 1) : UV_EAGAIN;
    }
    if (shim.left == 0)
        return shim.mode == FAIL ? shim.error : UV_EAGAIN;
    int r = take(s, bufs, shim.left);
    if (r > 0)
        shim.left -= (size_t)r;
    return r;
}

/* --- plain: the raw bytes --- */

/* Everything a server sends in a short life, as the peer received it. */
static void short_life(struct buf *got)
{
    uv_loop_t loop;
    static struct net_server s;
    struct net_raw r;
    struct ws_limits limits = ws_limits_default;
    limits.close_ms = 2000;
    assert_int_equal(uv_loop_init(&loop), 0);
    net_server_start(&s, &loop, NULL, &limits, false);
    net_raw_dial(&r, &loop, s.port);
    net_run_until(&loop, &r.connected, 1, 10);
    net_raw_send(&r, frames_upgrade, strlen(frames_upgrade));
    net_run_until(&loop, &s.ends[0].opened, 1, 10);
    struct ws_conn *c = s.ends[0].conn;
    char text[200];
    memset(text, 'm', sizeof(text));
    assert_true(ws_send_text(c, "first", 5));
    assert_true(ws_send_text(c, "", 0));
    assert_true(ws_send_text(c, text, sizeof(text)));
    net_run_until(&loop, &r.bytes, 129 + 7 + 2 + 204, 10);
    assert_true(ws_send_text(c, "second", 6));
    ws_close(c, 1013, "too slow");
    net_raw_send(&r, "\x88\x82\0\0\0\0\x03\xf5", 8);
    net_run_until(&loop, &r.ended, 1, 10);
    net_raw_close(&r);
    net_run_until(&loop, &s.ends[0].closed, 1, 10);
    assert_int_equal(s.ends[0].end, WS_END_CLOSED);
    assert_int_equal(s.ends[0].code, 1013);
    *got = r.got;
    net_server_stop(&s);
    net_loop_end(&loop);
}

static void test_every_offset(void **state)
{
    (void)state;
    struct buf want, got;
    shim.mode = REAL;
    short_life(&want);
    size_t n = buf_len(&want);
    assert_int_equal(n, 129 + 7 + 2 + 204 + 8 + 12);
    for (size_t at = 0; at <= n; at++) {
        shim.mode = UP_TO;
        shim.left = at;
        short_life(&got);
        assert_int_equal(buf_len(&got), n);
        assert_memory_equal(buf_head(&got), buf_head(&want), n);
        buf_free(&got);
    }
    shim.mode = TRICKLE;
    short_life(&got);
    assert_int_equal(buf_len(&got), n);
    assert_memory_equal(buf_head(&got), buf_head(&want), n);
    buf_free(&got);
    buf_free(&want);
}

static void test_errors(void **state)
{
    (void)state;
    for (size_t at = 0; at < 150; at += 7) {
        uv_loop_t loop;
        static struct net_server s;
        struct net_raw r;
        assert_int_equal(uv_loop_init(&loop), 0);
        net_server_start(&s, &loop, NULL, &ws_limits_default, false);
        net_raw_dial(&r, &loop, s.port);
        net_run_until(&loop, &r.connected, 1, 10);
        shim.mode = FAIL;
        shim.error = UV_EPIPE;
        shim.left = at;
        net_raw_send(&r, frames_upgrade, strlen(frames_upgrade));
        for (int i = 0; i < 50 && !s.ends[0].closed; i++) {
            uv_run(&loop, UV_RUN_NOWAIT);
            if (s.ends[0].opened && !s.ends[0].closed)
                (void)ws_send_text(s.ends[0].conn, "0123456789", 10);
        }
        net_run_until(&loop, &s.ends[0].closed, 1, 10);
        assert_int_equal(s.ends[0].end, WS_END_LOST);
        assert_int_equal(s.ends[0].code, 1006);
        net_raw_close(&r);
        net_server_stop(&s);
        net_loop_end(&loop);
        net_raw_free(&r);
    }
    shim.mode = REAL;
}

/* --- TLS: the messages --- */

static void tls_life(struct net_pki *pki, unsigned messages, size_t size)
{
    char *error = NULL;
    struct tls_ctx *st =
        tls_server_new(net_pki_path(pki, "good.pem"), net_pki_path(pki, "good.key"), &error);
    struct tls_ctx *ct = tls_client_new(net_pki_path(pki, "ca.pem"), true, &error);
    uv_loop_t loop;
    static struct net_server s;
    struct net_end e = {.keep_last = true};
    assert_int_equal(uv_loop_init(&loop), 0);
    net_server_start(&s, &loop, st, &ws_limits_default, true);
    net_dial(&loop, &s, "localhost", ct, &ws_limits_default, &e);
    net_run_until(&loop, &e.opened, 1, 10);
    char *text = malloc(size + 1);
    for (size_t i = 0; i < size; i++)
        text[i] = (char)('a' + i * 7 % 26);
    for (unsigned i = 0; i < messages; i++)
        assert_true(ws_send_text(e.conn, text, size));
    net_run_until(&loop, &e.messages, messages, 30);
    assert_int_equal(e.bytes, messages * size);
    assert_memory_equal(buf_head(&e.last), text, size);
    free(text);
    ws_close(e.conn, 1000, "");
    net_run_until(&loop, &e.closed, 1, 10);
    assert_int_equal(e.end, WS_END_CLOSED);
    net_server_stop(&s);
    net_loop_end(&loop);
    net_end_free(&e);
    tls_ctx_free(st);
    tls_ctx_free(ct);
}

static void test_tls_portions(void **state)
{
    (void)state;
    struct net_pki pki;
    net_pki_make(&pki);
    /* The handshake is cut too, at offsets that fall into each of its flights. */
    for (size_t at = 0; at < 6000; at += 37) {
        shim.mode = UP_TO;
        shim.left = at;
        tls_life(&pki, 3, 500);
    }
    shim.mode = TRICKLE;
    tls_life(&pki, 3, 100);
    shim.mode = UP_TO;
    shim.left = 0;
    tls_life(&pki, 10, 100000);
    shim.mode = REAL;
    tls_life(&pki, 10, 100000);
    net_pki_free(&pki);
}

/* What is queued in one turn leaves with one call. */
static void test_coalescing(void **state)
{
    (void)state;
    struct net_pki pki;
    net_pki_make(&pki);
    char *error = NULL;
    struct tls_ctx *st =
        tls_server_new(net_pki_path(&pki, "good.pem"), net_pki_path(&pki, "good.key"), &error);
    struct tls_ctx *ct = tls_client_new(net_pki_path(&pki, "ca.pem"), true, &error);
    uv_loop_t loop;
    static struct net_server s;
    struct net_end e = {0};
    shim.mode = REAL;
    assert_int_equal(uv_loop_init(&loop), 0);
    net_server_start(&s, &loop, st, &ws_limits_default, false);
    net_dial(&loop, &s, "localhost", ct, &ws_limits_default, &e);
    net_run_until(&loop, &e.opened, 1, 10);
    net_run_until(&loop, &s.ends[0].opened, 1, 10);
    for (int i = 0; i < 10; i++)
        uv_run(&loop, UV_RUN_NOWAIT); /* the handshake's last words */
    shim.calls = 0;
    for (int i = 0; i < 100; i++)
        assert_true(ws_send_text(s.ends[0].conn, "0123456789", 10));
    assert_int_equal(shim.calls, 0); /* nothing leaves from inside the call */
    net_run_until(&loop, &e.messages, 100, 10);
    assert_int_equal(shim.calls, 1);
    ws_close(e.conn, 1000, "");
    net_run_until(&loop, &e.closed, 1, 10);
    net_server_stop(&s);
    net_loop_end(&loop);
    net_end_free(&e);
    tls_ctx_free(st);
    tls_ctx_free(ct);
    net_pki_free(&pki);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_offset),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_tls_portions),
        cmocka_unit_test(test_coalescing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
