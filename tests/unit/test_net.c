/*
 * WebSocket endpoints against each other over real sockets: echo, sizes, both transports, both
 * roles, ends.
 */
#include "support_net.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <wslay/wslay.h>

#include <cmocka.h>

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
    struct net_server s;
    struct net_end e = {.keep_last = true};
    assert_int_equal(uv_loop_init(&loop), 0);
    net_server_start(&s, &loop, tls ? f->server_tls : NULL, &ws_limits_default, true);
    net_dial(&loop, &s, host, tls ? f->client_tls : NULL, &ws_limits_default, &e);
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
    net_run_until(&loop, &s.ends[0].closed, 1, 10);
    assert_int_equal(e.end, WS_END_CLOSED);
    assert_int_equal(e.code, 1000);
    assert_int_equal(s.ends[0].end, WS_END_CLOSED);
    assert_int_equal(s.ends[0].code, 1000);
    assert_string_equal(s.ends[0].reason, "bye");
    net_server_stop(&s);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_echo_plain),
        cmocka_unit_test(test_echo_tls),
        cmocka_unit_test(test_echo_tls_by_name),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
