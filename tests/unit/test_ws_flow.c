/*
 * The course of a connection as a raw peer sees it: pings, cuts, slow messages, closing, pauses and
 * fair shares.
 */
#include "support_frames.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void test_ping(void **state)
{
    (void)state;
    struct frames f;
    frames_start(&f);
    frames_put(&f, FIN | PING, "abc", 3);
    frames_send(&f, 0);
    /* HTTP answer, then the pong */
    net_run_until(&f.loop, &f.raw.bytes, 129 + 5, 10);
    size_t n;
    const uint8_t *p = frames_got(&f, &n);
    assert_int_equal(n, 5);
    assert_memory_equal(p,
                        "\x8a\x03"
                        "abc",
                        5);
    net_raw_close(&f.raw);
    net_run_until(&f.loop, &f.server.ends[0].closed, 1, 10);
    assert_int_equal(f.server.ends[0].end, WS_END_LOST);
    assert_int_equal(f.server.ends[0].code, 1006);
    frames_finish(&f);
}

static void test_ping_flood(void **state)
{
    (void)state;
    struct frames f;
    frames_start(&f);
    char payload[125];
    memset(payload, 'p', sizeof(payload));
    for (int i = 0; i < 50000; i++) /* 6.5 MB of pings */
        frames_put(&f, FIN | PING, payload, sizeof(payload));
    frames_put(&f, FIN | PING, "last", 4);
    frames_put_close(&f, 1000, "");
    frames_send(&f, 0);
    size_t most = 0;
    while (!f.raw.ended) {
        uv_run(&f.loop, UV_RUN_ONCE);
        if (f.server.ends[0].conn && f.server.ends[0].opened &&
            ws_send_queued(f.server.ends[0].conn) > most)
            most = ws_send_queued(f.server.ends[0].conn);
    }
    assert_true(most < 4096);
    size_t last = frames_expect_close(&f, 1000, WS_END_CLOSED);
    assert_true(last < 50000u * 127 / 10); /* far fewer pongs than pings */
    frames_finish(&f);
}

static void test_cut_inside_message(void **state)
{
    (void)state;
    struct frames f;
    frames_start(&f);
    frames_put(&f, TEXT, "half a", 6);
    frames_put_header(&f, FIN | CONT, 10, true);
    assert_true(buf_append(&f.out, "mess", 4));
    frames_send(&f, 0);
    net_run_until(&f.loop, &f.server.ends[0].opened, 1, 10);
    net_raw_close(&f.raw);
    net_run_until(&f.loop, &f.server.ends[0].closed, 1, 10);
    assert_int_equal(f.server.ends[0].end, WS_END_LOST);
    assert_int_equal(f.server.ends[0].code, 1006);
    assert_int_equal(f.server.ends[0].messages, 0);
    frames_finish(&f);
}

static void test_message_takes_too_long(void **state)
{
    (void)state;
    struct frames f;
    frames_start(&f);
    f.limits.message_ms = 50;
    frames_put(&f, TEXT, "never ends", 10);
    frames_send(&f, 0);
    frames_expect_close(&f, 1008, WS_END_TIMEOUT);
    frames_finish(&f);
}

static void test_close_unanswered(void **state)
{
    (void)state;
    struct frames f;
    frames_start(&f);
    f.limits.close_ms = 50;
    frames_send(&f, 0);
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
    const uint8_t *p = frames_got(&f, &n);
    assert_memory_equal(p,
                        "\x88\x0c\x0f\xa1"
                        "taken over",
                        n);
    frames_finish(&f);
}

/* Messages that are in flight the other way when we close are read and dropped. */
static void test_messages_while_closing(void **state)
{
    (void)state;
    struct frames f;
    frames_start(&f);
    frames_send(&f, 0);
    struct net_end *e = &f.server.ends[0];
    net_run_until(&f.loop, &e->opened, 1, 10);
    ws_close(e->conn, 1001, "");
    frames_put(&f, FIN | TEXT, "late", 4);
    frames_put_close(&f, 1001, "");
    net_raw_send(&f.raw, buf_head(&f.out), buf_len(&f.out));
    frames_expect_close(&f, 1001, WS_END_CLOSED);
    assert_int_equal(e->messages, 0);
    frames_finish(&f);
}

/* A pause must not make us deaf for the answer to our close, whichever comes first. */
static void test_pause_and_close(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        struct frames f;
        frames_start(&f);
        frames_send(&f, 0);
        struct net_end *e = &f.server.ends[0];
        net_run_until(&f.loop, &e->opened, 1, 10);
        if (k == 0)
            ws_pause(e->conn);
        ws_close(e->conn, 1013, "");
        if (k == 1)
            ws_pause(e->conn);
        frames_put(&f, FIN | TEXT, "late", 4);
        frames_put_close(&f, 1013, "");
        net_raw_send(&f.raw, buf_head(&f.out), buf_len(&f.out));
        frames_expect_close(&f, 1013, WS_END_CLOSED);
        frames_finish(&f);
    }
}

/* Writing to a peer that is gone ends the connection, and not the process by a signal. */
static void test_peer_gone(void **state)
{
    (void)state;
    struct frames f;
    frames_start(&f);
    frames_send(&f, 0);
    struct net_end *e = &f.server.ends[0];
    net_run_until(&f.loop, &e->opened, 1, 10);
    ws_pause(e->conn); /* so that reading does not notice first */
    net_raw_close(&f.raw);
    net_run_until(&f.loop, &f.raw.closed, 1, 10);
    for (int i = 0; i < 1000 && !e->closed; i++) {
        (void)ws_send_text(e->conn, "anybody there?", 14);
        uv_run(&f.loop, UV_RUN_NOWAIT);
    }
    net_run_until(&f.loop, &e->closed, 1, 10);
    assert_int_equal(e->end, WS_END_LOST);
    frames_finish(&f);
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
    struct frames f;
    struct pauser p = {.pause_at = 10};
    char *error = NULL;
    uint16_t port;
    frames_start(&f);
    int fd = net_listen_fd(&port);
    struct ws_listener *l =
        ws_listen(&f.loop, fd, NULL, "/ws", &f.limits, pauser_accept, &p, &error);
    assert_non_null(l);
    for (int i = 0; i < 500; i++)
        frames_put(&f, FIN | TEXT, "x", 1);
    net_raw_dial(&f.raw, &f.loop, port);
    net_run_until(&f.loop, &f.raw.connected, 1, 10);
    net_raw_send(&f.raw, frames_upgrade, strlen(frames_upgrade));
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
        cmocka_unit_test(test_ping),
        cmocka_unit_test(test_ping_flood),
        cmocka_unit_test(test_cut_inside_message),
        cmocka_unit_test(test_message_takes_too_long),
        cmocka_unit_test(test_close_unanswered),
        cmocka_unit_test(test_messages_while_closing),
        cmocka_unit_test(test_pause_and_close),
        cmocka_unit_test(test_peer_gone),
        cmocka_unit_test(test_pause_and_fairness),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
