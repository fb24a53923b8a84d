/*
 * Both roles against an independent implementation (Python's websockets, see ws_interop.py).
 */
#include "support_net.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct python {
    uv_process_t process;
    uv_pipe_t in, out;
    char text[256]; /* what it has printed */
    unsigned printed, exited;
    int64_t status;
    char chunk[128];
};

static void on_exit_cb(uv_process_t *p, int64_t status, int sig)
{
    struct python *py = p->data;
    py->status = sig ? 128 + sig : status;
    py->exited++;
}

static void alloc_cb(uv_handle_t *h, size_t suggested, uv_buf_t *b)
{
    (void)suggested;
    struct python *py = h->data;
    *b = uv_buf_init(py->chunk, sizeof(py->chunk));
}

static void read_cb(uv_stream_t *s, ssize_t n, const uv_buf_t *b)
{
    struct python *py = s->data;
    if (n <= 0)
        return;
    size_t have = strlen(py->text);
    (void)snprintf(py->text + have, sizeof(py->text) - have, "%.*s", (int)n, b->base);
    if (strchr(py->text, '\n'))
        py->printed = 1;
}

/* Run the script beside this file. */
static void start(struct python *py, uv_loop_t *loop, char *mode, char *arg1, char *arg2)
{
    static const char here[] = __FILE__;
    char script[256];
    memset(py, 0, sizeof(*py));
    (void)snprintf(script, sizeof(script), "%.*sws_interop.py",
                   (int)(sizeof(here) - sizeof("test_ws_interop.c")), here);
    char python[] = "/usr/bin/python3";
    char *args[] = {python, script, mode, arg1, arg2, NULL};
    uv_pipe_init(loop, &py->in, 0);
    uv_pipe_init(loop, &py->out, 0);
    py->process.data = py->in.data = py->out.data = py;
    uv_stdio_container_t stdio[] = {
        {.flags = UV_CREATE_PIPE | UV_READABLE_PIPE, .data.stream = (uv_stream_t *)&py->in},
        {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&py->out},
        {.flags = UV_INHERIT_FD, .data.fd = 2},
    };
    uv_process_options_t options = {
        .exit_cb = on_exit_cb, .file = python, .args = args, .stdio_count = 3, .stdio = stdio};
    assert_int_equal(uv_spawn(loop, &py->process, &options), 0);
    uv_read_start((uv_stream_t *)&py->out, alloc_cb, read_cb);
}

static void finish(struct python *py, uv_loop_t *loop)
{
    uv_close((uv_handle_t *)&py->in, NULL); /* tells the server to end */
    net_run_until(loop, &py->exited, 1, 60);
    assert_int_equal(py->status, 0);
    uv_close((uv_handle_t *)&py->out, NULL);
    uv_close((uv_handle_t *)&py->process, NULL);
}

static void test_their_client(void **state)
{
    struct net_pki *pki = *state;
    uv_loop_t loop;
    struct python py;
    static struct net_server s;
    char *error = NULL, url[64], ca[128], mode[] = "client";
    struct tls_ctx *tls =
        tls_server_new(net_pki_path(pki, "good.pem"), net_pki_path(pki, "good.key"), &error);
    assert_int_equal(uv_loop_init(&loop), 0);
    net_server_start(&s, &loop, tls, &ws_limits_default, true);
    (void)snprintf(url, sizeof(url), "wss://localhost:%u/ws", (unsigned)s.port);
    (void)snprintf(ca, sizeof(ca), "%s", net_pki_path(pki, "ca.pem"));
    start(&py, &loop, mode, url, ca);
    finish(&py, &loop);
    assert_string_equal(py.text, "fine\n");
    for (unsigned i = 0; i < 3; i++)
        net_run_until(&loop, &s.ends[i].closed, 1, 10);
    assert_int_equal(s.ends[0].end, WS_END_CLOSED);
    assert_int_equal(s.ends[0].code, 4001);
    assert_string_equal(s.ends[0].reason, "пока");
    assert_int_equal(s.ends[1].end, WS_END_PROTOCOL);
    assert_int_equal(s.ends[1].code, 1003);
    assert_int_equal(s.ends[2].end, WS_END_UPGRADE);
    net_server_stop(&s);
    net_loop_end(&loop);
    tls_ctx_free(tls);
}

static void echo(uv_loop_t *loop, struct net_end *e, const char *text, size_t len)
{
    assert_true(ws_send_text(e->conn, text, len));
    net_run_until(loop, &e->messages, e->messages + 1, 30);
    assert_int_equal(buf_len(&e->last), len);
    assert_memory_equal(buf_head(&e->last), text, len);
}

static void test_their_server(void **state)
{
    static const size_t sizes[] = {0, 1, 125, 126, 65535, 65536, 65537, 4 << 20};
    struct net_pki *pki = *state;
    uv_loop_t loop;
    struct python py;
    char *error = NULL, cert[128], key[128], mode[] = "serve";
    struct tls_ctx *tls = tls_client_new(net_pki_path(pki, "ca.pem"), true, &error);
    struct ws_limits limits = ws_limits_default;
    limits.idle_ms = 50; /* pings between the messages */
    assert_int_equal(uv_loop_init(&loop), 0);
    (void)snprintf(cert, sizeof(cert), "%s", net_pki_path(pki, "good.pem"));
    (void)snprintf(key, sizeof(key), "%s", net_pki_path(pki, "good.key"));
    start(&py, &loop, mode, cert, key);
    net_run_until(&loop, &py.printed, 1, 60);
    struct ws_url url = {.tls = true, .host = "localhost", .path = "/ws"};
    assert_memory_equal(py.text, "port ", 5);
    url.port = (uint16_t)strtoul(py.text + 5, NULL, 10);

    char *text = malloc(4 << 20);
    memset(text, 'y', 4 << 20);
    for (int round = 0; round < 2; round++) { /* they close, then we do */
        struct net_end e = {.keep_last = true};
        ws_dial(&loop, &url, tls, &limits, &net_end_callbacks, &e);
        net_run_until(&loop, &e.opened, 1, 10);
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
            echo(&loop, &e, text, sizes[i]);
        echo(&loop, &e, "ping me", 7);
        if (round == 0)
            assert_true(ws_send_text(e.conn, "close me", 8));
        else
            ws_close(e.conn, 1000, "enough");
        net_run_until(&loop, &e.closed, 1, 10);
        assert_int_equal(e.end, WS_END_CLOSED);
        assert_int_equal(e.code, round == 0 ? 1013 : 1000);
        assert_string_equal(e.reason, round == 0 ? "zu langsam, вот" : "enough");
        net_end_free(&e);
    }
    free(text);
    finish(&py, &loop);
    net_loop_end(&loop);
    tls_ctx_free(tls);
}

static int setup(void **state)
{
    static struct net_pki pki;
    net_pki_make(&pki);
    *state = &pki;
    return 0;
}

static int teardown(void **state)
{
    net_pki_free(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_their_client),
        cmocka_unit_test(test_their_server),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
