/*
 * Help for tests of connections, see support_net.h.
 */
#include "support_net.h"

#include "util/mem.h"

#include <arpa/inet.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* --- certificates --- */

const char *net_pki_path(const struct net_pki *pki, const char *name)
{
    static char path[4][128];
    static unsigned n;
    n = (n + 1) % 4;
    (void)snprintf(path[n], sizeof(path[n]), "%s/%s", pki->dir, name);
    return path[n];
}

static void add_extension(X509 *cert, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX v3;
    X509V3_set_ctx(&v3, issuer, cert, NULL, NULL, 0);
    X509_EXTENSION *ext = X509V3_EXT_conf_nid(NULL, &v3, nid, value);
    assert_non_null(ext);
    assert_int_equal(X509_add_ext(cert, ext, -1), 1);
    X509_EXTENSION_free(ext);
}

/* A certificate for `key`; self-signed CA if `san` is NULL. Days relative to now. */
static X509 *make_cert(EVP_PKEY *key, const char *cn, const char *san, X509 *issuer,
                       EVP_PKEY *issuer_key, int from_days, int to_days)
{
    static long serial = 1;
    X509 *cert = X509_new();
    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), serial++);
    X509_gmtime_adj(X509_getm_notBefore(cert), from_days * 86400L);
    X509_gmtime_adj(X509_getm_notAfter(cert), to_days * 86400L);
    X509_set_pubkey(cert, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC,
                               (const unsigned char *)cn, -1, -1, 0);
    X509_set_issuer_name(cert, X509_get_subject_name(issuer ? issuer : cert));
    if (san)
        add_extension(cert, issuer, NID_subject_alt_name, san);
    else
        add_extension(cert, cert, NID_basic_constraints, "critical,CA:TRUE");
    assert_true(X509_sign(cert, issuer_key, EVP_sha256()) > 0);
    return cert;
}

static void write_pem(const char *path, X509 *cert, EVP_PKEY *key)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    if (cert)
        assert_int_equal(PEM_write_X509(f, cert), 1);
    else
        assert_int_equal(PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL), 1);
    assert_int_equal(fclose(f), 0);
}

void net_pki_make(struct net_pki *pki)
{
    memcpy(pki->dir, "/tmp/shine-net-XXXXXX", sizeof("/tmp/shine-net-XXXXXX"));
    assert_non_null(mkdtemp(pki->dir));
    EVP_PKEY *ca_key = EVP_EC_gen("P-256"), *other_key = EVP_EC_gen("P-256");
    X509 *ca = make_cert(ca_key, "Test CA", NULL, NULL, ca_key, -30, 30);
    X509 *other = make_cert(other_key, "Other CA", NULL, NULL, other_key, -30, 30);
    write_pem(net_pki_path(pki, "ca.pem"), ca, NULL);
    write_pem(net_pki_path(pki, "other-ca.pem"), other, NULL);
    static const struct {
        const char *name, *san;
        int from, to;
    } leaves[] = {
        {"good", "DNS:localhost,IP:127.0.0.1", -1, 30},
        {"wrongname", "DNS:elsewhere.example", -1, 30},
        {"expired", "DNS:localhost,IP:127.0.0.1", -20, -10},
    };
    for (size_t i = 0; i < sizeof(leaves) / sizeof(leaves[0]); i++) {
        char file[32];
        EVP_PKEY *key = EVP_EC_gen("P-256");
        X509 *cert =
            make_cert(key, leaves[i].name, leaves[i].san, ca, ca_key, leaves[i].from, leaves[i].to);
        (void)snprintf(file, sizeof(file), "%s.pem", leaves[i].name);
        write_pem(net_pki_path(pki, file), cert, NULL);
        (void)snprintf(file, sizeof(file), "%s.key", leaves[i].name);
        write_pem(net_pki_path(pki, file), NULL, key);
        X509_free(cert);
        EVP_PKEY_free(key);
    }
    X509_free(ca);
    X509_free(other);
    EVP_PKEY_free(ca_key);
    EVP_PKEY_free(other_key);
}

void net_pki_free(struct net_pki *pki)
{
    static const char *const files[] = {"ca.pem",      "other-ca.pem",  "good.pem",
                                        "good.key",    "wrongname.pem", "wrongname.key",
                                        "expired.pem", "expired.key"};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        (void)unlink(net_pki_path(pki, files[i]));
    (void)rmdir(pki->dir);
}

int net_tls_setup(void **state)
{
    struct net_tls *f = xnew(struct net_tls);
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

int net_tls_teardown(void **state)
{
    struct net_tls *f = *state;
    tls_ctx_free(f->server_tls);
    tls_ctx_free(f->client_tls);
    net_pki_free(&f->pki);
    free(f);
    return 0;
}

/* --- the loop --- */

static void too_late(uv_timer_t *t)
{
    *(bool *)t->data = true;
}

void net_run_until(uv_loop_t *loop, const unsigned *done, unsigned want, unsigned seconds)
{
    bool late = false;
    uv_timer_t limit;
    uv_timer_init(loop, &limit);
    limit.data = &late;
    uv_update_time(loop);
    uv_timer_start(&limit, too_late, seconds * 1000, 0);
    while (*done < want && !late)
        uv_run(loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&limit, NULL);
    uv_run(loop, UV_RUN_NOWAIT);
    if (*done < want)
        fail_msg("waited %u s for %u, got %u", seconds, want, *done);
}

void net_loop_end(uv_loop_t *loop)
{
    uv_run(loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(loop), 0);
}

int net_listen_fd(uint16_t *port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(fd, 512), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

/* --- an endpoint that records what happens --- */

static void end_open(struct ws_conn *conn, void *ctx)
{
    struct net_end *e = ctx;
    e->conn = conn;
    e->opened++;
}

static void end_message(struct ws_conn *conn, void *ctx, const char *text, size_t len)
{
    struct net_end *e = ctx;
    assert_int_equal(text[len], '\0');
    assert_int_equal(e->opened, 1);
    assert_int_equal(e->closed, 0);
    e->messages++;
    e->bytes += len;
    if (e->keep_last) {
        buf_consume(&e->last, buf_len(&e->last));
        assert_true(buf_append(&e->last, text, len));
    }
    if (e->echo)
        assert_true(ws_send_text(conn, text, len));
}

static void end_drain(struct ws_conn *conn, void *ctx)
{
    (void)conn;
    ((struct net_end *)ctx)->drained++;
}

static void end_close(struct ws_conn *conn, void *ctx, enum ws_end end, int code,
                      const char *reason)
{
    (void)conn;
    struct net_end *e = ctx;
    assert_int_equal(e->closed, 0);
    e->closed++;
    e->conn = NULL;
    e->end = end;
    e->code = code;
    (void)snprintf(e->reason, sizeof(e->reason), "%s", reason);
}

const struct ws_callbacks net_end_callbacks = {
    .on_open = end_open,
    .on_message = end_message,
    .on_drain = end_drain,
    .on_close = end_close,
};

void net_end_free(struct net_end *e)
{
    buf_free(&e->last);
}

static bool server_accept(struct ws_listener *l, void *ctx, struct ws_conn *conn,
                          const char *remote, const struct ws_callbacks **callbacks,
                          void **conn_ctx)
{
    (void)l;
    struct net_server *s = ctx;
    assert_string_equal(remote, "127.0.0.1");
    assert_string_equal(ws_remote(conn), "127.0.0.1");
    if (s->refuse || s->accepted == sizeof(s->ends) / sizeof(s->ends[0]))
        return false;
    struct net_end *e = &s->ends[s->accepted++];
    e->conn = conn;
    *callbacks = &net_end_callbacks;
    *conn_ctx = e;
    return true;
}

void net_server_start(struct net_server *s, uv_loop_t *loop, struct tls_ctx *tls,
                      const struct ws_limits *limits, bool echo)
{
    memset(s, 0, sizeof(*s));
    for (size_t i = 0; i < sizeof(s->ends) / sizeof(s->ends[0]); i++)
        s->ends[i].echo = echo;
    char *error = NULL;
    int fd = net_listen_fd(&s->port);
    s->listener = ws_listen(loop, fd, tls, "/ws", limits, server_accept, s, &error);
    assert_non_null(s->listener);
}

void net_server_stop(struct net_server *s)
{
    ws_listener_close(s->listener);
    for (size_t i = 0; i < sizeof(s->ends) / sizeof(s->ends[0]); i++)
        net_end_free(&s->ends[i]);
}

struct ws_conn *net_dial(uv_loop_t *loop, const struct net_server *s, const char *host,
                         struct tls_ctx *tls, const struct ws_limits *limits, struct net_end *e)
{
    char text[128];
    struct ws_url url;
    (void)snprintf(text, sizeof(text), "%s://%s:%u/ws", tls ? "wss" : "ws", host,
                   (unsigned)s->port);
    assert_true(ws_url_parse(text, &url));
    e->conn = ws_dial(loop, &url, tls, limits, &net_end_callbacks, e);
    assert_int_equal(e->opened + e->closed, 0);
    return e->conn;
}

/* --- a raw socket --- */

static void raw_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *b)
{
    (void)suggested;
    struct net_raw *r = h->data;
    b->base = (char *)buf_reserve(&r->got, 65536);
    b->len = 65536;
}

static void raw_read(uv_stream_t *s, ssize_t n, const uv_buf_t *b)
{
    (void)b;
    struct net_raw *r = s->data;
    if (n > 0) {
        buf_commit(&r->got, (size_t)n);
        r->bytes += (unsigned)n;
    } else if (n < 0) {
        r->ended++;
        uv_read_stop(s);
    }
}

static void raw_connected(uv_connect_t *req, int status)
{
    struct net_raw *r = req->data;
    if (status == UV_ECANCELED)
        return;
    assert_int_equal(status, 0);
    r->connected++;
    assert_int_equal(uv_tcp_nodelay(&r->tcp, 1), 0);
    uv_read_start((uv_stream_t *)&r->tcp, raw_alloc, raw_read);
}

void net_raw_dial(struct net_raw *r, uv_loop_t *loop, uint16_t port)
{
    memset(r, 0, sizeof(*r));
    uv_tcp_init(loop, &r->tcp);
    r->tcp.data = r->connect.data = r;
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    assert_int_equal(
        uv_tcp_connect(&r->connect, &r->tcp, (const struct sockaddr *)&a, raw_connected), 0);
}

static void raw_written(uv_write_t *req, int status)
{
    (void)status; /* the other side may be gone: that is what the test is about */
    free(req);
}

void net_raw_send(struct net_raw *r, const void *p, size_t n)
{
    struct {
        uv_write_t req;
        char bytes[];
    } *w = xmalloc(sizeof(*w) + n);
    memcpy(w->bytes, p, n);
    uv_buf_t b = uv_buf_init(w->bytes, (unsigned)n);
    if (uv_write(&w->req, (uv_stream_t *)&r->tcp, &b, 1, raw_written) != 0)
        free(w);
}

void net_raw_pause(struct net_raw *r)
{
    uv_read_stop((uv_stream_t *)&r->tcp);
}

void net_raw_resume(struct net_raw *r)
{
    uv_read_start((uv_stream_t *)&r->tcp, raw_alloc, raw_read);
}

static void raw_closed(uv_handle_t *h)
{
    ((struct net_raw *)h->data)->closed++;
}

void net_raw_close(struct net_raw *r)
{
    uv_close((uv_handle_t *)&r->tcp, raw_closed);
}

void net_raw_free(struct net_raw *r)
{
    buf_free(&r->got);
}
