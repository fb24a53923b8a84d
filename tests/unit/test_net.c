/*
 * WebSocket endpoints against each other over real sockets: echo, sizes, both transports, both
 * roles, ends.
 */
#include "support_net.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

static struct net_server server; /* large, and one at a time */

static void echo_sizes(struct net_tls *f, bool tls, const char *host)
{
    static const size_t sizes[] = {0, 1, 125, 126, 65535, 65536, 4 * 1024 * 1024};
    uv_loop_t loop;
    struct net_end e = {.keep_last = true};
    assert_int_equal(uv_loop_init(&loop), 0);
    net_server_start(&server, &loop, tls ? f->server_tls : NULL, &ws_limits_default, true);
    net_dial(&loop, &server, host, tls ? f->client_tls : NULL, &ws_limits_default, &e);
    net_run_until(&loop, &e.opened, 1, 10);
    char *text = malloc(4 * 1024 * 1024);
    for (size_t i = 0; i < 4 * 1024 * 1024; i++)
        text[i] = (char)('!' + i * 31 % 90);
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        assert_true(ws_send_text(e.conn, text, sizes[i]));
        net_run_until(&loop, &e.messages, i + 1, 20);
        assert_int_equal(buf_len(&e.last), sizes[i]);
        assert_memory_equal(buf_head(&e.last), text, sizes[i]);
    }
    free(text);
    ws_close(e.conn, 1000, "bye");
    assert_int_equal(e.closed, 0);
    net_run_until(&loop, &e.closed, 1, 10);
    net_run_until(&loop, &server.ends[0].closed, 1, 10);
    assert_int_equal(e.end, WS_END_CLOSED);
    assert_int_equal(e.code, 1000);
    assert_int_equal(server.ends[0].end, WS_END_CLOSED);
    assert_int_equal(server.ends[0].code, 1000);
    assert_string_equal(server.ends[0].reason, "bye");
    net_server_stop(&server);
    net_loop_end(&loop);
    net_end_free(&e);
}

static void test_echo_plain(void **state)
{
    echo_sizes(*state, false, "127.0.0.1");
}

static void test_echo_tls(void **state)
{
    echo_sizes(*state, true, "127.0.0.1");
}

static void test_echo_tls_by_name(void **state)
{
    echo_sizes(*state, true, "localhost");
}

/* --- ends --- */

static void close_with(struct net_tls *f, bool tls, int code, const char *reason, bool by_server)
{
    uv_loop_t loop;
    struct net_end e = {0};
    assert_int_equal(uv_loop_init(&loop), 0);
    net_server_start(&server, &loop, tls ? f->server_tls : NULL, &ws_limits_default, true);
    net_dial(&loop, &server, "127.0.0.1", tls ? f->client_tls : NULL, &ws_limits_default, &e);
    net_run_until(&loop, &e.opened, 1, 10);
    net_run_until(&loop, &server.ends[0].opened, 1, 10);
    struct net_end *from = by_server ? &server.ends[0] : &e;
    struct net_end *to = by_server ? &e : &server.ends[0];
    assert_true(ws_send_text(from->conn, "last words", 10));
    ws_close(from->conn, code, reason);
    net_run_until(&loop, &from->closed, 1, 10);
    net_run_until(&loop, &to->closed, 1, 10);
    assert_int_equal(to->messages, 1);
    assert_int_equal(from->end, WS_END_CLOSED);
    assert_int_equal(to->end, WS_END_CLOSED);
    assert_int_equal(from->code, code);
    assert_int_equal(to->code, code);
    assert_string_equal(to->reason, from->reason);
    if (strlen(reason) <= 123)
        assert_string_equal(to->reason, reason);
    else
        assert_true(strlen(to->reason) >= 120 && strlen(to->reason) <= 123);
    net_server_stop(&server);
    net_loop_end(&loop);
}

static void test_close_codes(void **state)
{
    static const int codes[] = {1000, 1001, 1008, 1011, 1012, 1013, 4001};
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
        for (int k = 0; k < 4; k++)
            close_with(*state, k & 1, codes[i], i ? "because" : "", k & 2);
    char reason[400] = "x";
    for (int i = 0; i < 100; i++)
        memcpy(reason + 1 + i * 3L, "\xe2\x82\xac", 4);
    close_with(*state, false, 1000, reason, true);
}

/* Closing before OPEN just cuts; so does a refusal, which nobody is told about. */
static void test_early_ends(void **state)
{
    struct net_tls *f = *state;
    uv_loop_t loop;
    struct net_end a = {0}, b = {0}, c = {0};
    assert_int_equal(uv_loop_init(&loop), 0);
    net_server_start(&server, &loop, f->server_tls, &ws_limits_default, true);
    net_dial(&loop, &server, "localhost", f->client_tls, &ws_limits_default, &a);
    ws_close(a.conn, 1000, "changed my mind");
    ws_close(a.conn, 1000, "twice");
    assert_int_equal(a.closed, 0);
    net_run_until(&loop, &a.closed, 1, 10);
    assert_int_equal(a.opened, 0);
    net_dial(&loop, &server, "127.0.0.1", f->client_tls, &ws_limits_default, &b);
    net_run_until(&loop, &server.accepted, server.accepted + 1, 10);
    ws_close(b.conn, 1000, "in the middle of the handshake");
    net_run_until(&loop, &b.closed, 1, 10);
    assert_int_equal(b.opened, 0);
    assert_int_equal(b.end, WS_END_CLOSED);
    server.refuse = true;
    net_dial(&loop, &server, "127.0.0.1", f->client_tls, &ws_limits_default, &c);
    net_run_until(&loop, &c.closed, 1, 10);
    assert_int_equal(c.end, WS_END_LOST);
    net_server_stop(&server);
    net_loop_end(&loop);
}

static void test_unreachable(void **state)
{
    (void)state;
    uv_loop_t loop;
    struct net_end e = {0}, n = {0};
    struct ws_url url = {.host = "localhost", .path = "/ws"};
    assert_int_equal(uv_loop_init(&loop), 0);
    int fd = net_listen_fd(&url.port); /* a port that is free again */
    (void)close(fd);
    ws_dial(&loop, &url, NULL, &ws_limits_default, &net_end_callbacks, &e);
    net_run_until(&loop, &e.closed, 1, 10);
    assert_int_equal(e.end, WS_END_UNREACHABLE);
    assert_int_equal(e.code, 1006);
    assert_non_null(strstr(e.reason, "refused"));
    memcpy(url.host, "no-such-host.invalid", sizeof("no-such-host.invalid"));
    ws_dial(&loop, &url, NULL, &ws_limits_default, &net_end_callbacks, &n);
    net_run_until(&loop, &n.closed, 1, 15);
    assert_true(n.end == WS_END_UNREACHABLE || n.end == WS_END_TIMEOUT);
    net_loop_end(&loop);
}

/* Many names at once: more than there are slots for lookups; some are given up while they wait. */
static void test_many_lookups(void **state)
{
    (void)state;
    uv_loop_t loop;
    static struct net_end ends[40];
    memset(ends, 0, sizeof(ends));
    assert_int_equal(uv_loop_init(&loop), 0);
    net_server_start(&server, &loop, NULL, &ws_limits_default, true);
    for (int i = 0; i < 40; i++) {
        net_dial(&loop, &server, "localhost", NULL, &ws_limits_default, &ends[i]);
        if (i % 4 == 3)
            ws_close(ends[i].conn, 1000, "");
    }
    for (int i = 0; i < 40; i++) {
        if (i % 4 != 3) {
            net_run_until(&loop, &ends[i].opened, 1, 10);
            ws_close(ends[i].conn, 1000, "");
        }
        net_run_until(&loop, &ends[i].closed, 1, 10);
        assert_int_equal(ends[i].end, WS_END_CLOSED);
    }
    net_server_stop(&server);
    net_loop_end(&loop);
}

static bool refuse_address(void *ctx, const struct sockaddr *addr)
{
    (void)ctx;
    assert_true(addr->sa_family == AF_INET || addr->sa_family == AF_INET6);
    return false;
}

static void test_address_refused(void **state)
{
    (void)state;
    uv_loop_t loop;
    struct net_end a = {0}, b = {0};
    struct ws_callbacks cb = net_end_callbacks;
    cb.address_ok = refuse_address;
    struct ws_url url = {.host = "127.0.0.1", .path = "/ws", .port = 1};
    assert_int_equal(uv_loop_init(&loop), 0);
    ws_dial(&loop, &url, NULL, &ws_limits_default, &cb, &a);
    memcpy(url.host, "localhost", sizeof("localhost"));
    ws_dial(&loop, &url, NULL, &ws_limits_default, &cb, &b);
    net_run_until(&loop, &a.closed, 1, 10);
    net_run_until(&loop, &b.closed, 1, 10);
    assert_int_equal(a.end, WS_END_UNREACHABLE);
    assert_string_equal(a.reason, "address_refused");
    assert_string_equal(b.reason, "address_refused");
    net_loop_end(&loop);
}

static void test_handshake_deadline(void **state)
{
    struct net_tls *f = *state;
    struct ws_limits limits = ws_limits_default;
    limits.handshake_ms = 100;
    for (int k = 0; k < 4; k++) { /* plain and TLS; says nothing, says half */
        uv_loop_t loop;
        struct net_raw r;
        assert_int_equal(uv_loop_init(&loop), 0);
        net_server_start(&server, &loop, k & 1 ? f->server_tls : NULL, &limits, true);
        net_raw_dial(&r, &loop, server.port);
        net_run_until(&loop, &r.connected, 1, 10);
        if (k & 2)
            net_raw_send(&r, k & 1 ? "\x16\x03\x01\x02\x00" : "GET /ws HTT", k & 1 ? 5 : 11);
        net_run_until(&loop, &server.ends[0].closed, 1, 10);
        assert_int_equal(server.ends[0].end, WS_END_TIMEOUT);
        assert_int_equal(server.ends[0].code, 1006);
        net_run_until(&loop, &r.ended, 1, 10);
        net_raw_close(&r);
        net_server_stop(&server);
        net_loop_end(&loop);
        net_raw_free(&r);
    }
    /* The client's side: a listener whose connections nobody answers. */
    uv_loop_t loop;
    struct net_end e = {0};
    struct ws_url url = {.tls = true, .host = "127.0.0.1", .path = "/ws"};
    assert_int_equal(uv_loop_init(&loop), 0);
    int fd = net_listen_fd(&url.port);
    ws_dial(&loop, &url, f->client_tls, &limits, &net_end_callbacks, &e);
    net_run_until(&loop, &e.closed, 1, 10);
    assert_int_equal(e.end, WS_END_TIMEOUT);
    (void)close(fd);
    net_loop_end(&loop);
}

/* --- silence --- */

static void test_idle_pings_keep_alive(void **state)
{
    struct net_tls *f = *state;
    uv_loop_t loop;
    struct net_end e = {0};
    struct ws_limits limits = ws_limits_default;
    limits.idle_ms = 20;
    limits.pong_ms = 2000;
    assert_int_equal(uv_loop_init(&loop), 0);
    net_server_start(&server, &loop, f->server_tls, &limits, true);
    net_dial(&loop, &server, "localhost", f->client_tls, &ws_limits_default, &e);
    net_run_until(&loop, &e.opened, 1, 10);
    int64_t first = ws_last_received_ms(e.conn);
    while (ws_last_received_ms(e.conn) < first + 200) /* the pings are all that arrives */
        uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(e.closed + server.ends[0].closed, 0);
    ws_close(e.conn, 1000, "");
    net_run_until(&loop, &e.closed, 1, 10);
    net_server_stop(&server);
    net_loop_end(&loop);
}

static void do_nothing(uv_timer_t *t)
{
    (void)t;
}

static void test_missing_pong(void **state)
{
    struct net_tls *f = *state;
    uv_loop_t loop;
    struct net_end e = {0};
    struct ws_limits limits = ws_limits_default;
    limits.idle_ms = 30;
    limits.pong_ms = 60;
    assert_int_equal(uv_loop_init(&loop), 0);
    net_server_start(&server, &loop, f->server_tls, &limits, true);
    net_dial(&loop, &server, "localhost", f->client_tls, &ws_limits_default, &e);
    net_run_until(&loop, &e.opened, 1, 10);
    net_run_until(&loop, &server.ends[0].opened, 1, 10);
    /* A paused server cannot hear pongs, and must not take that for death. */
    ws_pause(server.ends[0].conn);
    int64_t until = (int64_t)uv_now(&loop) + 300;
    uv_timer_t tick;
    uv_timer_init(&loop, &tick);
    uv_timer_start(&tick, do_nothing, 10, 10);
    while ((int64_t)uv_now(&loop) < until)
        uv_run(&loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&tick, NULL);
    assert_int_equal(server.ends[0].closed, 0);
    ws_resume(server.ends[0].conn);
    ws_pause(e.conn); /* now it is the client that does not answer */
    net_run_until(&loop, &server.ends[0].closed, 1, 10);
    assert_int_equal(server.ends[0].end, WS_END_TIMEOUT);
    assert_int_equal(server.ends[0].code, 1006);
    ws_resume(e.conn);
    net_run_until(&loop, &e.closed, 1, 10);
    net_server_stop(&server);
    net_loop_end(&loop);
}

/* --- descriptors --- */

static void test_out_of_descriptors(void **state)
{
    (void)state;
    uv_loop_t loop;
    struct net_end e = {0}, late = {0};
    struct rlimit old, low;
    assert_int_equal(uv_loop_init(&loop), 0);
    net_server_start(&server, &loop, NULL, &ws_limits_default, true);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    int top = open("/dev/null", O_RDONLY | O_CLOEXEC);
    low = old;
    low.rlim_cur = (rlim_t)top + 1; /* one is left, which the dialler takes */
    (void)close(top);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    net_dial(&loop, &server, "127.0.0.1", NULL, &ws_limits_default, &e);
    net_run_until(&loop, &e.closed, 1, 10);
    assert_int_equal(e.opened, 0);
    assert_int_equal(server.accepted, 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    net_dial(&loop, &server, "127.0.0.1", NULL, &ws_limits_default, &late);
    net_run_until(&loop, &late.opened, 1, 10);
    ws_close(late.conn, 1000, "");
    net_run_until(&loop, &late.closed, 1, 10);
    net_server_stop(&server);
    net_loop_end(&loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_echo_plain),         cmocka_unit_test(test_echo_tls),
        cmocka_unit_test(test_echo_tls_by_name),   cmocka_unit_test(test_close_codes),
        cmocka_unit_test(test_early_ends),         cmocka_unit_test(test_unreachable),
        cmocka_unit_test(test_many_lookups),       cmocka_unit_test(test_address_refused),
        cmocka_unit_test(test_handshake_deadline), cmocka_unit_test(test_idle_pings_keep_alive),
        cmocka_unit_test(test_missing_pong),       cmocka_unit_test(test_out_of_descriptors),
    };
    return cmocka_run_group_tests(tests, net_tls_setup, net_tls_teardown);
}
