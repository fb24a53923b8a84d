/*
 * The HTTP exchange: what a server answers to requests of all kinds, and what a client makes of
 * answers.
 */
#include "support_net.h"

#include "util/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define KEY    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
#define COMMON "Host: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
#define V13    "Sec-WebSocket-Version: 13\r\n"

/* Send `request` to a server, `piece` bytes at a time (0 = at once), and give back its whole
 * answer. */
static char *ask(const char *request, size_t len, size_t piece, struct net_end *end)
{
    uv_loop_t loop;
    static struct net_server s;
    struct net_raw r;
    struct ws_limits limits = ws_limits_default;
    limits.close_ms = 1000;
    assert_int_equal(uv_loop_init(&loop), 0);
    net_server_start(&s, &loop, NULL, &limits, true);
    net_raw_dial(&r, &loop, s.port);
    net_run_until(&loop, &r.connected, 1, 10);
    for (size_t at = 0; at < len;) {
        size_t n = piece && piece < len - at ? piece : len - at;
        net_raw_send(&r, request + at, n);
        at += n;
        if (piece)
            uv_run(&loop, UV_RUN_NOWAIT);
    }
    net_run_until(&loop, &r.bytes, 15, 10);
    if (memcmp(buf_head(&r.got), "HTTP/1.1 101", 12) != 0)
        net_run_until(&loop, &r.ended, 1, 10);
    char *answer = xmemdup0(buf_head(&r.got), buf_len(&r.got));
    net_raw_close(&r);
    net_run_until(&loop, &s.ends[0].closed, 1, 10);
    *end = s.ends[0];
    buf_init(&end->last, 0);
    net_server_stop(&s);
    net_loop_end(&loop);
    net_raw_free(&r);
    return answer;
}

static void expect(const char *request, const char *status, const char *header)
{
    struct net_end end;
    for (size_t piece = 0; piece < 2; piece++) {
        char *answer = ask(request, strlen(request), piece, &end);
        if (strncmp(answer, status, strlen(status)) != 0)
            fail_msg("%s -> %s", request, answer);
        if (header && !strstr(answer, header))
            fail_msg("%s -> %s", request, answer);
        bool upgraded = strncmp(status, "HTTP/1.1 101", 12) == 0;
        assert_int_equal(end.opened, upgraded);
        assert_int_equal(end.end, upgraded ? WS_END_LOST : WS_END_UPGRADE);
        assert_int_equal(end.code, 1006);
        assert_non_null(strstr(answer, "\r\n\r\n"));
        free(answer);
    }
}

static void test_upgrade(void **state)
{
    (void)state;
    /* The example of RFC 6455, section 1.3. */
    expect("GET /ws HTTP/1.1\r\n" COMMON V13 KEY "\r\n", "HTTP/1.1 101 ",
           "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n");
    /* Browsers send more, in other words. */
    expect("GET /ws?x HTTP/1.1\r\nhost: x\r\nUPGRADE: h2c, WebSocket\r\n"
           "connection: keep-alive , upgrade\r\nOrigin: https://evil.example\r\n"
           "Sec-WebSocket-Extensions: permessage-deflate\r\n" V13 KEY "\r\n",
           "HTTP/1.1 101 ", NULL);
}

static void test_deflate_is_not_negotiated(void **state)
{
    (void)state;
    struct net_end end;
    static const char request[] = "GET /ws HTTP/1.1\r\n" COMMON V13 KEY
                                  "Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n";
    char *answer = ask(request, sizeof(request) - 1, 0, &end);
    assert_null(strcasestr(answer, "extensions"));
    free(answer);
}

static void test_refusals(void **state)
{
    (void)state;
    expect("GET /other HTTP/1.1\r\n" COMMON V13 KEY "\r\n", "HTTP/1.1 404 ", NULL);
    expect("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 404 ", NULL);
    expect("GET /ws HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 426 ", "Upgrade: websocket\r\n");
    expect("GET /ws HTTP/1.1\r\nUpgrade: websocket\r\n" V13 KEY "\r\n", "HTTP/1.1 426 ", NULL);
    expect("GET /ws HTTP/1.1\r\n" COMMON "Sec-WebSocket-Version: 8\r\n" KEY "\r\n", "HTTP/1.1 426 ",
           "Sec-WebSocket-Version: 13\r\n");
    expect("GET /ws HTTP/1.1\r\n" COMMON KEY "\r\n", "HTTP/1.1 426 ",
           "Sec-WebSocket-Version: 13\r\n");
    expect("GET /ws HTTP/1.1\r\n" COMMON V13 "\r\n", "HTTP/1.1 400 ", NULL);
    expect("GET /ws HTTP/1.1\r\n" COMMON V13 "Sec-WebSocket-Key: short\r\n\r\n", "HTTP/1.1 400 ",
           NULL);
    expect("GET /ws HTTP/1.1\r\n" COMMON V13 "Sec-WebSocket-Key: !!!!!!!!!!!!!!!!!!!!!!!!\r\n\r\n",
           "HTTP/1.1 400 ", NULL);
    expect("POST /ws HTTP/1.1\r\nContent-Length: 3\r\n" COMMON V13 KEY "\r\nabc", "HTTP/1.1 405 ",
           "Allow: GET\r\n");
    expect("GET /ws HTTP/1.0\r\n" COMMON V13 KEY "\r\n", "HTTP/1.1 505 ", NULL);
    expect("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "HTTP/1.1 400 ", NULL);
    expect("this is no HTTP at all\r\n\r\n", "HTTP/1.1 400 ", NULL);
}

static void test_head_too_long(void **state)
{
    (void)state;
    struct net_end end;
    struct buf b;
    buf_init(&b, 0);
    static const char line[] = "X-Filler: 0123456789012345678901234567890123456789\r\n";
    static const char first[] = "GET /ws HTTP/1.1\r\n" COMMON V13 KEY;
    assert_true(buf_append(&b, first, sizeof(first) - 1));
    while (buf_len(&b) + sizeof(line) + 2 < 8192)
        assert_true(buf_append(&b, line, sizeof(line) - 1));
    struct buf fits;
    buf_init(&fits, 0);
    assert_true(buf_append(&fits, buf_head(&b), buf_len(&b)));
    assert_true(buf_append(&fits, "\r\n", 2));
    char *answer = ask((const char *)buf_head(&fits), buf_len(&fits), 0, &end);
    assert_memory_equal(answer, "HTTP/1.1 101", 12);
    free(answer);
    for (int i = 0; i < 2000; i++)
        assert_true(buf_append(&b, line, sizeof(line) - 1));
    answer = ask((const char *)buf_head(&b), buf_len(&b), 0, &end);
    assert_memory_equal(answer, "HTTP/1.1 431", 12);
    assert_int_equal(end.end, WS_END_UPGRADE);
    free(answer);
    /* One endless header counts like many. */
    buf_consume(&b, buf_len(&b));
    assert_true(buf_append(&b, "GET /ws HTTP/1.1\r\nX: ", 21));
    for (int i = 0; i < 2000; i++)
        assert_true(buf_append(&b, "0123456789", 10));
    answer = ask((const char *)buf_head(&b), buf_len(&b), 0, &end);
    assert_memory_equal(answer, "HTTP/1.1 431", 12);
    free(answer);
    buf_free(&b);
    buf_free(&fits);
}

/* --- the client side: a raw listener that answers what the test says --- */

struct fake {
    uv_tcp_t listener, tcp;
    uint16_t port;
    const char *answer; /* %s: the right Sec-WebSocket-Accept */
    char key[25];
    unsigned asked, closed;
    struct buf got;
};

static void fake_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *b)
{
    (void)suggested;
    struct fake *f = h->data;
    b->base = (char *)buf_reserve(&f->got, 4096);
    b->len = 4096;
}

static void fake_written(uv_write_t *req, int status)
{
    (void)status;
    free(req->data);
    free(req);
}

static void fake_closed(uv_handle_t *h)
{
    ((struct fake *)h->data)->closed++;
}

static void fake_read(uv_stream_t *s, ssize_t n, const uv_buf_t *b)
{
    (void)b;
    struct fake *f = s->data;
    if (n < 0) {
        uv_close((uv_handle_t *)&f->tcp, fake_closed);
        return;
    }
    buf_commit(&f->got, (size_t)n);
    if (f->asked || !memmem(buf_head(&f->got), buf_len(&f->got), "\r\n\r\n", 4))
        return;
    f->asked++;
    char *answer = xstrdup(f->answer);
    uv_write_t *w = xnew(uv_write_t);
    w->data = answer;
    uv_buf_t out = uv_buf_init(answer, (unsigned)strlen(answer));
    assert_int_equal(uv_write(w, s, &out, 1, fake_written), 0);
}

static void fake_accept(uv_stream_t *s, int status)
{
    struct fake *f = s->data;
    assert_int_equal(status, 0);
    uv_tcp_init(s->loop, &f->tcp);
    f->tcp.data = f;
    assert_int_equal(uv_accept(s, (uv_stream_t *)&f->tcp), 0);
    uv_read_start((uv_stream_t *)&f->tcp, fake_alloc, fake_read);
}

static void client_meets(const char *answer, enum ws_end end, const char *reason)
{
    uv_loop_t loop;
    struct fake f = {.answer = answer};
    struct net_end e = {0};
    struct ws_limits limits = ws_limits_default;
    limits.handshake_ms = 300;
    assert_int_equal(uv_loop_init(&loop), 0);
    uv_tcp_init(&loop, &f.listener);
    f.listener.data = &f;
    int fd = net_listen_fd(&f.port);
    assert_int_equal(uv_tcp_open(&f.listener, fd), 0);
    assert_int_equal(uv_listen((uv_stream_t *)&f.listener, 1, fake_accept), 0);
    struct ws_url url = {.host = "127.0.0.1", .port = f.port, .path = "/ws"};
    ws_dial(&loop, &url, NULL, &limits, &net_end_callbacks, &e);
    net_run_until(&loop, &e.closed, 1, 10);
    assert_int_equal(e.opened, 0);
    assert_int_equal(e.end, end);
    if (!strstr(e.reason, reason))
        fail_msg("%s -> %s", answer, e.reason);
    char host[64];
    (void)snprintf(host, sizeof(host), "\r\nHost: 127.0.0.1:%u\r\n", (unsigned)f.port);
    assert_non_null(memmem(buf_head(&f.got), buf_len(&f.got), host, strlen(host)));
    uv_close((uv_handle_t *)&f.listener, NULL);
    net_run_until(&loop, &f.closed, 1, 10);
    net_loop_end(&loop);
    buf_free(&f.got);
}

static void test_client_refuses(void **state)
{
    (void)state;
    client_meets("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", WS_END_UPGRADE,
                 "HTTP status 404");
    client_meets("HTTP/1.1 200 OK\r\n\r\n<html>", WS_END_UPGRADE, "HTTP status 200");
    client_meets("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                 "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
                 WS_END_UPGRADE, "wrong Sec-WebSocket-Accept");
    client_meets("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: "
                 "Upgrade\r\n\r\n",
                 WS_END_UPGRADE, "wrong Sec-WebSocket-Accept");
    client_meets("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\r\n", WS_END_UPGRADE,
                 "not an upgrade");
    client_meets("SSH-2.0-OpenSSH_9.2\r\n", WS_END_UPGRADE, "not HTTP");
    client_meets("", WS_END_TIMEOUT, "handshake");
    client_meets("HTTP/1.1 101 Switching Protocols\r\nUpgrade: webso", WS_END_TIMEOUT, "handshake");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_upgrade),        cmocka_unit_test(test_deflate_is_not_negotiated),
        cmocka_unit_test(test_refusals),       cmocka_unit_test(test_head_too_long),
        cmocka_unit_test(test_client_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
