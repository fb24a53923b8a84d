/*
 * What a peer can do wrong below the level of messages, sent byte by byte over a raw socket to a
 * server: each ends with the close code of RFC 6455, and the server's owner is told once.
 */
#include "support_net.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char upgrade[] = "GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n"
                              "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                              "Sec-WebSocket-Key: AAECAwQFBgcICQoLDA0ODw==\r\n\r\n";

enum { FIN = 0x80, RSV1 = 0x40, CONT = 0, TEXT = 1, BINARY = 2, CLOSE = 8, PING = 9, PONG = 10 };

struct fixture {
    uv_loop_t loop;
    struct net_server server;
    struct net_raw raw;
    struct ws_limits limits;
    struct buf out; /* what the raw side will send */
};

static void start(struct fixture *f)
{
    memset(f, 0, sizeof(*f));
    f->limits = ws_limits_default;
    f->limits.max_message = 100000;
    f->limits.max_fragments = 100;
    f->limits.close_ms = 1000;
    assert_int_equal(uv_loop_init(&f->loop), 0);
}

/* Append a frame; masked with zeros if `mask`, which leaves the payload as it is. */
static void put_header(struct fixture *f, unsigned first, uint64_t len, bool mask)
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

static void put(struct fixture *f, unsigned first, const void *p, size_t n)
{
    put_header(f, first, n, true);
    assert_true(buf_append(&f->out, p, n));
}

static void put_close(struct fixture *f, int code, const char *reason)
{
    uint8_t p[125] = {(uint8_t)(code >> 8), (uint8_t)code};
    memcpy(p + 2, reason, strlen(reason));
    put(f, FIN | CLOSE, p, 2 + strlen(reason));
}

/* Connect, upgrade, and send what was put (`piece` bytes at a time, 0 = all at once). */
static void send_all(struct fixture *f, size_t piece)
{
    net_server_start(&f->server, &f->loop, NULL, &f->limits, true);
    net_raw_dial(&f->raw, &f->loop, f->server.port);
    net_run_until(&f->loop, &f->raw.connected, 1, 10);
    net_raw_send(&f->raw, upgrade, sizeof(upgrade) - 1);
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
static const uint8_t *frames(struct fixture *f, size_t *n)
{
    const uint8_t *p = buf_head(&f->raw.got);
    const uint8_t *end = memmem(p, buf_len(&f->raw.got), "\r\n\r\n", 4);
    assert_non_null(end);
    *n = buf_len(&f->raw.got) - (size_t)(end + 4 - p);
    return end + 4;
}

static void finish(struct fixture *f)
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
static size_t expect_close(struct fixture *f, int code, enum ws_end end)
{
    struct net_end *e = &f->server.ends[0];
    net_run_until(&f->loop, &f->raw.ended, 1, 20);
    size_t n;
    const uint8_t *p = frames(f, &n);
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
static void expect_breach(struct fixture *f, int code)
{
    send_all(f, 0);
    expect_close(f, code, WS_END_PROTOCOL);
    assert_int_equal(f->server.ends[0].messages, 0);
    struct buf again = f->out;
    buf_init(&f->out, 0);
    finish(f);
    struct ws_limits limits = f->limits;
    if (buf_len(&again) < 2000) {
        start(f);
        f->limits = limits;
        f->out = again;
        send_all(f, 1);
        expect_close(f, code, WS_END_PROTOCOL);
        assert_int_equal(f->server.ends[0].messages, 0);
        finish(f);
    } else {
        buf_free(&again);
    }
}

static void test_unmasked(void **state)
{
    (void)state;
    struct fixture f;
    start(&f);
    put_header(&f, FIN | TEXT, 5, false);
    assert_true(buf_append(&f.out, "hello", 5));
    expect_breach(&f, 1002);
}

static void test_reserved_bit(void **state)
{
    (void)state;
    struct fixture f;
    start(&f);
    put(&f, FIN | RSV1 | TEXT, "hello", 5);
    expect_breach(&f, 1002);
}

static void test_unknown_opcodes(void **state)
{
    (void)state;
    static const unsigned opcodes[] = {3, 7, 11, 15};
    for (size_t i = 0; i < sizeof(opcodes) / sizeof(opcodes[0]); i++) {
        struct fixture f;
        start(&f);
        put(&f, FIN | opcodes[i], "x", 1);
        expect_breach(&f, 1002);
    }
}

static void test_broken_sequences(void **state)
{
    (void)state;
    struct fixture f;
    start(&f); /* continuation of nothing */
    put(&f, FIN | CONT, "x", 1);
    expect_breach(&f, 1002);
    start(&f); /* a message within a message */
    put(&f, TEXT, "x", 1);
    put(&f, FIN | TEXT, "y", 1);
    expect_breach(&f, 1002);
    start(&f); /* a control frame in pieces */
    put(&f, PING, "x", 1);
    expect_breach(&f, 1002);
    start(&f); /* a control frame of more than 125 bytes */
    char big[126] = {0};
    put(&f, FIN | PING, big, sizeof(big));
    expect_breach(&f, 1002);
    start(&f); /* a length in more bytes than it needs */
    assert_true(buf_append(&f.out, "\x81\xfe\x00\x01\x00\x00\x00\x00x", 9));
    expect_breach(&f, 1002);
    start(&f); /* a length with the highest bit */
    put_header(&f, FIN | TEXT, UINT64_MAX, true);
    assert_true(buf_append(&f.out, "x", 1));
    expect_breach(&f, 1002);
}

static void test_binary(void **state)
{
    (void)state;
    struct fixture f;
    start(&f);
    put(&f, FIN | BINARY, "hello", 5);
    expect_breach(&f, 1003);
}

static void test_bad_utf8(void **state)
{
    (void)state;
    struct fixture f;
    start(&f);
    put(&f, FIN | TEXT, "a\xc3(", 3);
    expect_breach(&f, 1007);
    start(&f); /* cut off at the end of the message */
    put(&f, FIN | TEXT, "abc\xe2\x82", 5);
    expect_breach(&f, 1007);
    start(&f); /* a surrogate, split over fragments */
    put(&f, TEXT, "\xed", 1);
    put(&f, FIN | CONT, "\xa0\x80", 2);
    expect_breach(&f, 1007);
}

static void test_utf8_across_fragments(void **state)
{
    (void)state;
    struct fixture f;
    start(&f);
    f.server.ends[0].keep_last = true;
    put(&f, TEXT, "\xf0\x9f", 2);
    put(&f, FIN | PING, "p", 1);
    put(&f, CONT, "", 0);
    put(&f, FIN | CONT, "\x92\xa9!", 3);
    put_close(&f, 1000, "");
    send_all(&f, 0);
    expect_close(&f, 1000, WS_END_CLOSED);
    assert_int_equal(f.server.ends[0].messages, 1);
    assert_int_equal(f.server.ends[0].bytes, 5);
    finish(&f);
}

static void test_too_long(void **state)
{
    (void)state;
    struct fixture f;
    char *text = calloc(1, 200000);
    memset(text, 'x', 200000);
    start(&f); /* exactly the limit passes */
    put(&f, TEXT, text, 60000);
    put(&f, FIN | CONT, text, 40000);
    put_close(&f, 1000, "");
    send_all(&f, 0);
    net_run_until(&f.loop, &f.raw.ended, 1, 10);
    assert_int_equal(f.server.ends[0].messages, 1);
    assert_int_equal(f.server.ends[0].bytes, 100000);
    finish(&f);

    start(&f);
    put(&f, FIN | TEXT, text, 100001);
    expect_breach(&f, 1009);
    start(&f);
    put(&f, TEXT, text, 60000);
    put(&f, FIN | CONT, text, 40001);
    expect_breach(&f, 1009);
    free(text);
}

static void test_too_many_fragments(void **state)
{
    (void)state;
    struct fixture f;
    start(&f); /* the limit passes */
    put(&f, TEXT, "x", 1);
    for (int i = 0; i < 98; i++)
        put(&f, CONT, "x", 1);
    put(&f, FIN | CONT, "x", 1);
    put_close(&f, 1000, "");
    send_all(&f, 0);
    net_run_until(&f.loop, &f.raw.ended, 1, 10);
    assert_int_equal(f.server.ends[0].messages, 1);
    finish(&f);

    for (size_t size = 0; size < 2; size++) {
        start(&f);
        put(&f, TEXT, "x", 1);
        for (int i = 0; i < 100000; i++)
            put(&f, CONT, "x", size);
        expect_breach(&f, 1009);
    }
}

static void test_giant_announcement(void **state)
{
    (void)state;
    struct fixture f;
    start(&f);
    put_header(&f, FIN | TEXT, INT64_MAX, true);
    assert_true(buf_append(&f.out, "x", 1));
    size_t before = mallinfo2().uordblks;
    send_all(&f, 0);
    expect_close(&f, 1009, WS_END_PROTOCOL);
    assert_true(mallinfo2().uordblks < before + 512 * 1024);
    finish(&f);

    /* The same within a message whose length so far would overflow the sum. */
    start(&f);
    put(&f, TEXT, "hello", 5);
    put_header(&f, FIN | CONT, INT64_MAX, true);
    assert_true(buf_append(&f.out, "x", 1));
    expect_breach(&f, 1009);
}

static void test_close_codes(void **state)
{
    (void)state;
    static const int good[] = {1000, 1001, 1003, 1007, 1011, 1012, 1013, 1014, 3000, 4001, 4999};
    static const int bad[] = {0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000};
    struct fixture f;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        start(&f);
        put_close(&f, good[i], "за́чем");
        send_all(&f, i % 2);
        expect_close(&f, good[i], WS_END_CLOSED);
        assert_string_equal(f.server.ends[0].reason, "за́чем");
        finish(&f);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        start(&f);
        put_close(&f, bad[i], "");
        expect_breach(&f, 1002);
    }
    start(&f); /* without a code */
    put(&f, FIN | CLOSE, "", 0);
    send_all(&f, 0);
    expect_close(&f, 1005, WS_END_CLOSED);
    finish(&f);
    start(&f); /* half a code */
    put(&f, FIN | CLOSE, "\x03", 1);
    expect_breach(&f, 1002);
    start(&f); /* a reason that is no text */
    put_close(&f, 1000, "\xff");
    expect_breach(&f, 1007);
}

static void test_nothing_after_close(void **state)
{
    (void)state;
    struct fixture f;
    start(&f);
    put_close(&f, 1000, "");
    put(&f, FIN | TEXT, "late", 4);
    send_all(&f, 0);
    expect_close(&f, 1000, WS_END_CLOSED);
    assert_int_equal(f.server.ends[0].messages, 0);
    finish(&f);
}

static void test_ping(void **state)
{
    (void)state;
    struct fixture f;
    start(&f);
    put(&f, FIN | PING, "abc", 3);
    send_all(&f, 0);
    /* HTTP answer, then the pong */
    net_run_until(&f.loop, &f.raw.bytes, 129 + 5, 10);
    size_t n;
    const uint8_t *p = frames(&f, &n);
    assert_int_equal(n, 5);
    assert_memory_equal(p,
                        "\x8a\x03"
                        "abc",
                        5);
    net_raw_close(&f.raw);
    net_run_until(&f.loop, &f.server.ends[0].closed, 1, 10);
    assert_int_equal(f.server.ends[0].end, WS_END_LOST);
    assert_int_equal(f.server.ends[0].code, 1006);
    finish(&f);
}

static void test_ping_flood(void **state)
{
    (void)state;
    struct fixture f;
    start(&f);
    char payload[125];
    memset(payload, 'p', sizeof(payload));
    for (int i = 0; i < 50000; i++) /* 6.5 MB of pings */
        put(&f, FIN | PING, payload, sizeof(payload));
    put(&f, FIN | PING, "last", 4);
    put_close(&f, 1000, "");
    send_all(&f, 0);
    size_t most = 0;
    while (!f.raw.ended) {
        uv_run(&f.loop, UV_RUN_ONCE);
        if (f.server.ends[0].conn && f.server.ends[0].opened &&
            ws_send_queued(f.server.ends[0].conn) > most)
            most = ws_send_queued(f.server.ends[0].conn);
    }
    assert_true(most < 4096);
    size_t last = expect_close(&f, 1000, WS_END_CLOSED);
    assert_true(last < 50000u * 127 / 10); /* far fewer pongs than pings */
    finish(&f);
}

static void test_cut_inside_message(void **state)
{
    (void)state;
    struct fixture f;
    start(&f);
    put(&f, TEXT, "half a", 6);
    put_header(&f, FIN | CONT, 10, true);
    assert_true(buf_append(&f.out, "mess", 4));
    send_all(&f, 0);
    net_run_until(&f.loop, &f.server.ends[0].opened, 1, 10);
    net_raw_close(&f.raw);
    net_run_until(&f.loop, &f.server.ends[0].closed, 1, 10);
    assert_int_equal(f.server.ends[0].end, WS_END_LOST);
    assert_int_equal(f.server.ends[0].code, 1006);
    assert_int_equal(f.server.ends[0].messages, 0);
    finish(&f);
}

static void test_message_takes_too_long(void **state)
{
    (void)state;
    struct fixture f;
    start(&f);
    f.limits.message_ms = 50;
    put(&f, TEXT, "never ends", 10);
    send_all(&f, 0);
    expect_close(&f, 1008, WS_END_TIMEOUT);
    finish(&f);
}

static void test_close_unanswered(void **state)
{
    (void)state;
    struct fixture f;
    start(&f);
    f.limits.close_ms = 50;
    send_all(&f, 0);
    struct net_end *e = &f.server.ends[0];
    net_run_until(&f.loop, &e->opened, 1, 10);
    ws_close(e->conn, 4001, "taken over");
    ws_close(e->conn, 1000, "again");
    assert_false(ws_send_text(e->conn, "x", 1));
    net_run_until(&f.loop, &e->closed, 1, 10);
    assert_int_equal(e->end, WS_END_TIMEOUT);
    assert_int_equal(e->code, 4001);
    net_run_until(&f.loop, &f.raw.ended, 1, 10);
    size_t n;
    const uint8_t *p = frames(&f, &n);
    assert_memory_equal(p,
                        "\x88\x0c\x0f\xa1"
                        "taken over",
                        n);
    finish(&f);
}

/* Messages that are in flight the other way when we close are read and dropped. */
static void test_messages_while_closing(void **state)
{
    (void)state;
    struct fixture f;
    start(&f);
    send_all(&f, 0);
    struct net_end *e = &f.server.ends[0];
    net_run_until(&f.loop, &e->opened, 1, 10);
    ws_close(e->conn, 1001, "");
    put(&f, FIN | TEXT, "late", 4);
    put_close(&f, 1001, "");
    net_raw_send(&f.raw, buf_head(&f.out), buf_len(&f.out));
    expect_close(&f, 1001, WS_END_CLOSED);
    assert_int_equal(e->messages, 0);
    finish(&f);
}

/* Many messages in one read: a share of them a turn, all of them in the end, and a pause in the
 * middle holds. */
struct pauser {
    unsigned messages, opened, closed;
    struct ws_conn *conn;
    unsigned pause_at;
};

static void pauser_open(struct ws_conn *c, void *ctx)
{
    ((struct pauser *)ctx)->conn = c;
    ((struct pauser *)ctx)->opened++;
}

static void pauser_message(struct ws_conn *c, void *ctx, const char *text, size_t len)
{
    (void)text, (void)len;
    struct pauser *p = ctx;
    if (++p->messages == p->pause_at)
        ws_pause(c);
}

static void pauser_close(struct ws_conn *c, void *ctx, enum ws_end end, int code, const char *r)
{
    (void)c, (void)end, (void)code, (void)r;
    ((struct pauser *)ctx)->closed++;
}

static bool pauser_accept(struct ws_listener *l, void *ctx, struct ws_conn *c, const char *remote,
                          const struct ws_callbacks **cb, void **conn_ctx)
{
    static const struct ws_callbacks callbacks = {
        .on_open = pauser_open, .on_message = pauser_message, .on_close = pauser_close};
    (void)l, (void)c, (void)remote;
    *cb = &callbacks;
    *conn_ctx = ctx;
    return true;
}

static void test_pause_and_fairness(void **state)
{
    (void)state;
    struct fixture f;
    struct pauser p = {.pause_at = 10};
    char *error = NULL;
    uint16_t port;
    start(&f);
    int fd = net_listen_fd(&port);
    struct ws_listener *l =
        ws_listen(&f.loop, fd, NULL, "/ws", &f.limits, pauser_accept, &p, &error);
    assert_non_null(l);
    for (int i = 0; i < 500; i++)
        put(&f, FIN | TEXT, "x", 1);
    net_raw_dial(&f.raw, &f.loop, port);
    net_run_until(&f.loop, &f.raw.connected, 1, 10);
    net_raw_send(&f.raw, upgrade, sizeof(upgrade) - 1);
    net_raw_send(&f.raw, buf_head(&f.out), buf_len(&f.out));
    net_run_until(&f.loop, &p.messages, 10, 10);
    for (int i = 0; i < 20; i++)
        uv_run(&f.loop, UV_RUN_NOWAIT);
    assert_int_equal(p.messages, 10);
    ws_resume(p.conn);
    assert_int_equal(p.messages, 10); /* not from inside */
    while (p.messages < 500) {
        unsigned before = p.messages;
        uv_run(&f.loop, UV_RUN_ONCE);
        assert_true(p.messages - before <= 64);
    }
    /* A second pause while nothing is left over, and a peer that goes away meanwhile: told after
     * the resume. */
    ws_pause(p.conn);
    ws_pause(p.conn);
    net_raw_close(&f.raw);
    for (int i = 0; i < 20; i++)
        uv_run(&f.loop, UV_RUN_NOWAIT);
    assert_int_equal(p.closed, 0);
    ws_resume(p.conn);
    net_run_until(&f.loop, &p.closed, 1, 10);
    ws_listener_close(l);
    net_loop_end(&f.loop);
    net_raw_free(&f.raw);
    buf_free(&f.out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unmasked),
        cmocka_unit_test(test_reserved_bit),
        cmocka_unit_test(test_unknown_opcodes),
        cmocka_unit_test(test_broken_sequences),
        cmocka_unit_test(test_binary),
        cmocka_unit_test(test_bad_utf8),
        cmocka_unit_test(test_utf8_across_fragments),
        cmocka_unit_test(test_too_long),
        cmocka_unit_test(test_too_many_fragments),
        cmocka_unit_test(test_giant_announcement),
        cmocka_unit_test(test_close_codes),
        cmocka_unit_test(test_nothing_after_close),
        cmocka_unit_test(test_ping),
        cmocka_unit_test(test_ping_flood),
        cmocka_unit_test(test_cut_inside_message),
        cmocka_unit_test(test_message_takes_too_long),
        cmocka_unit_test(test_close_unanswered),
        cmocka_unit_test(test_messages_while_closing),
        cmocka_unit_test(test_pause_and_fairness),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
