/*
 * TLS: which certificates are refused and why, contexts and their reload, garbage from strangers.
 */
#include "support_net.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct net_server server; /* large, and one at a time */

/* --- certificates --- */

static void dial_certificate(struct net_tls *f, const char *leaf, const char *ca, bool verify,
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
    struct net_tls *f = *state;
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
    struct net_tls *f = *state;
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
    struct net_tls *f = *state;
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

/* --- noise --- */

static void test_garbage_beside_echo(void **state)
{
    struct net_tls *f = *state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_certificates),
        cmocka_unit_test(test_contexts),
        cmocka_unit_test(test_reload),
        cmocka_unit_test(test_garbage_beside_echo),
    };
    return cmocka_run_group_tests(tests, net_tls_setup, net_tls_teardown);
}
