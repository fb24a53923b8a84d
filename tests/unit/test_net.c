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

struct fixture {
    struct net_pki pki;
    struct tls_ctx *server_tls, *client_tls;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    char *error = NULL;
    net_pki_make(&f->pki);
    f->server_tls = tls_server_new(net_pki_path(&f->pki, "good.pem"),
                                   net_pki_path(&f->pki, "good.key"), &error);
    assert_non_null(f->server_tls);
    f->client_tls = tls_client_new(net_pki_path(&f->pki, "ca.pem"), true, &error);
    assert_non_null(f->client_tls);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    tls_ctx_free(f->server_tls);
    tls_ctx_free(f->client_tls);
    net_pki_free(&f->pki);
    free(f);
    return 0;
}

static void echo_sizes(struct fixture *f, bool tls, const char *host)
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

/* --- certificates --- */

static void dial_certificate(struct fixture *f, const char *leaf, const char *ca, bool verify,
                             const char *host, const char *reason)
{
    char cert[32], key[32], *error = NULL;
    (void)snprintf(cert, sizeof(cert), "%s.pem", leaf);
    (void)snprintf(key, sizeof(key), "%s.key", leaf);
    struct tls_ctx *st =
        tls_server_new(net_pki_path(&f->pki, cert), net_pki_path(&f->pki, key), &error);
    struct tls_ctx *ct = tls_client_new(ca ? net_pki_path(&f->pki, ca) : NULL, verify, &error);
    assert_non_null(st);
    assert_non_null(ct);
    uv_loop_t loop;
    struct net_end e = {0};
    assert_int_equal(uv_loop_init(&loop), 0);
    net_server_start(&server, &loop, st, &ws_limits_default, true);
    net_dial(&loop, &server, host, ct, &ws_limits_default, &e);
    if (reason) {
        net_run_until(&loop, &e.closed, 1, 10);
        assert_int_equal(e.opened, 0);
        assert_int_equal(e.end, WS_END_TLS);
        assert_int_equal(e.code, 1006);
        if (!strstr(e.reason, reason))
            fail_msg("%s", e.reason);
        net_run_until(&loop, &server.ends[0].closed, 1, 10);
        assert_int_equal(server.ends[0].opened, 0);
        assert_int_equal(server.ends[0].end, WS_END_TLS); /* our alert has reached it */
    } else {
        net_run_until(&loop, &e.opened, 1, 10);
        ws_close(e.conn, 1000, "");
        net_run_until(&loop, &e.closed, 1, 10);
    }
    net_server_stop(&server);
    net_loop_end(&loop);
    tls_ctx_free(st);
    tls_ctx_free(ct);
}

static void test_certificates(void **state)
{
    struct fixture *f = *state;
    dial_certificate(f, "good", "ca.pem", true, "localhost", NULL);
    dial_certificate(f, "good", "ca.pem", true, "127.0.0.1", NULL);
    dial_certificate(f, "wrongname", "ca.pem", true, "localhost", "ostname mismatch");
    dial_certificate(f, "wrongname", "ca.pem", true, "127.0.0.1", "IP address mismatch");
    dial_certificate(f, "expired", "ca.pem", true, "localhost", "expired");
    dial_certificate(f, "good", "other-ca.pem", true, "localhost", "issuer certificate");
    dial_certificate(f, "good", NULL, true, "localhost", "issuer certificate");
    dial_certificate(f, "expired", "other-ca.pem", false, "127.0.0.1", NULL);
    dial_certificate(f, "wrongname", NULL, false, "localhost", NULL);
}

static void test_contexts(void **state)
{
    struct fixture *f = *state;
    char *error = NULL;
    assert_null(tls_server_new("/nonexistent.pem", net_pki_path(&f->pki, "good.key"), &error));
    assert_non_null(strstr(error, "/nonexistent.pem"));
    free(error);
    assert_null(tls_server_new(net_pki_path(&f->pki, "good.pem"),
                               net_pki_path(&f->pki, "expired.key"), &error));
    assert_non_null(strstr(error, "expired.key"));
    free(error);
    assert_null(tls_client_new("/nonexistent.pem", true, &error));
    assert_non_null(strstr(error, "/nonexistent.pem"));
    free(error);
    tls_ctx_free(NULL);
}

static void copy_file(const char *from, const char *to)
{
    char text[4096];
    FILE *in = fopen(from, "r"), *out = fopen(to, "w");
    assert_non_null(in);
    assert_non_null(out);
    size_t n = fread(text, 1, sizeof(text), in);
    assert_int_equal(fwrite(text, 1, n, out), n);
    assert_int_equal(fclose(out), 0);
    (void)fclose(in);
}

static void test_reload(void **state)
{
    struct fixture *f = *state;
    const char *cert = net_pki_path(&f->pki, "live.pem");
    char *error = NULL;
    char key[128];
    (void)snprintf(key, sizeof(key), "%s", net_pki_path(&f->pki, "live.key"));
    copy_file(net_pki_path(&f->pki, "good.pem"), cert);
    copy_file(net_pki_path(&f->pki, "good.key"), key);
    char cert_path[128];
    (void)snprintf(cert_path, sizeof(cert_path), "%s", net_pki_path(&f->pki, "live.pem"));
    struct tls_ctx *st = tls_server_new(cert_path, key, &error);
    assert_non_null(st);
    uv_loop_t loop;
    struct net_end old = {0}, fresh = {0}, after = {0};
    assert_int_equal(uv_loop_init(&loop), 0);
    net_server_start(&server, &loop, st, &ws_limits_default, true);
    net_dial(&loop, &server, "localhost", f->client_tls, &ws_limits_default, &old);
    net_run_until(&loop, &old.opened, 1, 10);

    copy_file(net_pki_path(&f->pki, "expired.pem"), cert_path); /* does not fit the key */
    assert_false(tls_server_reload(st, &error));
    assert_non_null(error);
    free(error);
    net_dial(&loop, &server, "localhost", f->client_tls, &ws_limits_default, &fresh);
    net_run_until(&loop, &fresh.opened, 1, 10);

    copy_file(net_pki_path(&f->pki, "expired.key"), key);
    assert_true(tls_server_reload(st, &error));
    net_dial(&loop, &server, "localhost", f->client_tls, &ws_limits_default, &after);
    net_run_until(&loop, &after.closed, 1, 10);
    assert_int_equal(after.end, WS_END_TLS);
    assert_true(ws_send_text(old.conn, "still here", 10)); /* an old connection lives on */
    net_run_until(&loop, &old.messages, 1, 10);
    ws_close(old.conn, 1000, "");
    ws_close(fresh.conn, 1000, "");
    net_run_until(&loop, &old.closed, 1, 10);
    net_run_until(&loop, &fresh.closed, 1, 10);
    net_server_stop(&server);
    net_loop_end(&loop);
    tls_ctx_free(st);
    (void)unlink(cert_path);
    (void)unlink(key);
}

/* --- ends --- */

static void close_with(struct fixture *f, bool tls, int code, const char *reason, bool by_server)
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
    struct fixture *f = *state;
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
    struct fixture *f = *state;
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
    struct fixture *f = *state;
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
    struct fixture *f = *state;
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

/* --- noise --- */

static void test_garbage_beside_echo(void **state)
{
    struct fixture *f = *state;
    uv_loop_t loop;
    struct net_end e = {0};
    static struct net_raw raw[200];
    assert_int_equal(uv_loop_init(&loop), 0);
    net_server_start(&server, &loop, f->server_tls, &ws_limits_default, true);
    net_dial(&loop, &server, "localhost", f->client_tls, &ws_limits_default, &e);
    net_run_until(&loop, &e.opened, 1, 10);
    unsigned seed = 1;
    for (unsigned i = 0; i < 200; i++) {
        char noise[300];
        for (size_t k = 0; k < sizeof(noise); k++)
            noise[k] = (char)((seed = seed * 1103515245 + 12345) >> 16);
        if (i % 2) /* looks like a ClientHello at first */
            memcpy(noise, "\x16\x03\x01\x01\x27\x01\x00\x01\x23\x03\x03", 11);
        net_raw_dial(&raw[i], &loop, server.port);
        net_run_until(&loop, &raw[i].connected, 1, 10);
        net_raw_send(&raw[i], noise, sizeof(noise));
        assert_true(ws_send_text(e.conn, "in between", 10));
        net_run_until(&loop, &e.messages, i + 1, 10);
    }
    for (unsigned i = 0; i < 200; i++) {
        net_run_until(&loop, &server.ends[i + 1].closed, 1, 10);
        assert_int_equal(server.ends[i + 1].end, WS_END_TLS);
        net_raw_close(&raw[i]);
        net_run_until(&loop, &raw[i].closed, 1, 10);
        net_raw_free(&raw[i]);
    }
    assert_int_equal(e.closed, 0);
    ws_close(e.conn, 1000, "");
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
        cmocka_unit_test(test_echo_plain),
        cmocka_unit_test(test_echo_tls),
        cmocka_unit_test(test_echo_tls_by_name),
        cmocka_unit_test(test_certificates),
        cmocka_unit_test(test_contexts),
        cmocka_unit_test(test_reload),
        cmocka_unit_test(test_close_codes),
        cmocka_unit_test(test_early_ends),
        cmocka_unit_test(test_unreachable),
        cmocka_unit_test(test_many_lookups),
        cmocka_unit_test(test_address_refused),
        cmocka_unit_test(test_handshake_deadline),
        cmocka_unit_test(test_idle_pings_keep_alive),
        cmocka_unit_test(test_missing_pong),
        cmocka_unit_test(test_garbage_beside_echo),
        cmocka_unit_test(test_out_of_descriptors),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
