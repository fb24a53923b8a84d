/*
 * TLS of one connection. OpenSSL never sees the socket: a BIO of our own hands it the bytes that
 * libuv has read and collects what it wants to send. Compared with OpenSSL's memory BIOs this saves
 * two buffers and a copy in each direction for every connection.
 *
 * OpenSSL's error queue belongs to the thread, not to the connection: it is emptied before each
 * call, or one peer's garbage would be read as another's failure.
 *
 * Grades of failure: whatever a peer sends ends its connection only; OpenSSL without memory: exit.
 */
#include "net/ws_internal.h"
#include "util/mem.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <string.h>

enum {
    CIPHER_AHEAD = 64 * 1024, /* encrypted before the kernel has taken any */
    CIPHER_MAX = 256 * 1024,  /* more than that comes only from a flood of requests for answers */
    RECORD_MAX = 16 * 1024,   /* plain bytes in one record */
    RECORD_OVERHEAD = 64,     /* at most, all versions and ciphers we speak */
};

int ws_tls_bio_read(BIO *bio, char *p, size_t n, size_t *done)
{
    struct ws_conn *c = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (c->in_len == 0) {
        BIO_set_retry_read(bio);
        return 0;
    }
    if (n > c->in_len)
        n = c->in_len;
    memcpy(p, c->in, n);
    c->in += n;
    c->in_len -= n;
    *done = n;
    return 1;
}

int ws_tls_bio_write(BIO *bio, const char *p, size_t n, size_t *done)
{
    struct ws_conn *c = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    (void)buf_append(&c->cipher, p, n); /* has no bound of its own: ws_tls_encrypt() paces it */
    *done = n;
    return 1;
}

long ws_tls_bio_ctrl(BIO *bio, int cmd, long num, void *ptr)
{
    (void)bio, (void)num, (void)ptr;
    return cmd == BIO_CTRL_FLUSH; /* the rest does not apply */
}

/* For people: the oldest error in OpenSSL's queue. */
static const char *ssl_reason(void)
{
    unsigned long e = ERR_peek_error();
    const char *text = e ? ERR_reason_error_string(e) : NULL;
    return text ? text : "protocol violation";
}

/* Whom the certificate must name. */
static void expect_host(struct ws_conn *c)
{
    X509_VERIFY_PARAM *param = SSL_get0_param(c->ssl);
    struct in_addr a4;
    struct in6_addr a6;
    if (inet_pton(AF_INET, c->host, &a4) == 1 || inet_pton(AF_INET6, c->host, &a6) == 1) {
        shine_assert(X509_VERIFY_PARAM_set1_ip_asc(param, c->host) == 1);
        return; /* SNI carries names only (RFC 6066, section 3) */
    }
    X509_VERIFY_PARAM_set_hostflags(param, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    shine_assert(SSL_set1_host(c->ssl, c->host) == 1);
    shine_assert(SSL_set_tlsext_host_name(c->ssl, c->host) == 1);
}

bool ws_tls_start(struct ws_conn *c)
{
    ERR_clear_error();
    c->ssl = SSL_new(tls_ctx_ssl(c->tls));
    BIO *bio = BIO_new(tls_ctx_bio(c->tls));
    shine_assert(c->ssl && bio);
    BIO_set_data(bio, c);
    BIO_set_init(bio, 1);
    SSL_set_bio(c->ssl, bio, bio);
    if (c->server) {
        SSL_set_accept_state(c->ssl);
        return true; /* the client speaks first */
    }
    SSL_set_connect_state(c->ssl);
    expect_host(c);
    (void)ws_tls_handshake(c);
    return c->state != WS_CLOSED;
}

/* The handshake has failed: the alert goes out if the socket takes it at once. */
static void refuse(struct ws_conn *c)
{
    char *reason;
    long verify = SSL_get_verify_result(c->ssl);
    if (!c->server && tls_ctx_verifies(c->tls) && verify != X509_V_OK)
        reason = xasprintf("certificate refused: %s", X509_verify_cert_error_string(verify));
    else
        reason = xasprintf("TLS handshake: %s", ssl_reason());
    ERR_clear_error();
    if (buf_len(&c->cipher) > 0 && !c->writing) {
        uv_buf_t b =
            uv_buf_init((char *)(uintptr_t)buf_head(&c->cipher), (unsigned)buf_len(&c->cipher));
        (void)uv_try_write((uv_stream_t *)c->tcp, &b, 1); /* a courtesy */
    }
    ws_conn_end(c, WS_END_TLS, 1006, reason);
    free(reason);
}

bool ws_tls_handshake(struct ws_conn *c)
{
    ERR_clear_error();
    int r = SSL_do_handshake(c->ssl);
    if (r == 1) {
        ws_io_dirty(c);
        return true;
    }
    int err = SSL_get_error(c->ssl, r);
    if (err == SSL_ERROR_WANT_READ || err == SSL_ERROR_WANT_WRITE)
        ws_io_dirty(c);
    else
        refuse(c);
    return false;
}

size_t ws_tls_read(struct ws_conn *c, uint8_t *p, size_t n)
{
    size_t done = 0;
    ERR_clear_error();
    int r = SSL_read_ex(c->ssl, p, n, &done);
    /* Reading may produce answers: key updates, alerts. */
    if (buf_len(&c->cipher) > 0)
        ws_io_dirty(c);
    if (r == 1) {
        if (buf_len(&c->cipher) > CIPHER_MAX)
            ws_conn_lost(c, "TLS: too many requests for answers");
        return done;
    }
    switch (SSL_get_error(c->ssl, r)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        break;
    case SSL_ERROR_ZERO_RETURN:
        c->input_eof = true;
        ws_conn_lost(c, "end of stream");
        break;
    default: {
        char *reason = xasprintf("TLS: %s", ssl_reason());
        ERR_clear_error();
        ws_conn_lost(c, reason);
        free(reason);
    }
    }
    return 0;
}

void ws_tls_encrypt(struct ws_conn *c)
{
    size_t len = buf_len(&c->plain);
    if (len == 0)
        return;
    size_t now = len < CIPHER_AHEAD ? len : CIPHER_AHEAD;
    (void)buf_reserve(&c->cipher, now + (now / RECORD_MAX + 1) * RECORD_OVERHEAD);
    while ((len = buf_len(&c->plain)) > 0 && buf_len(&c->cipher) < CIPHER_AHEAD) {
        size_t done = 0;
        ERR_clear_error();
        int r =
            SSL_write_ex(c->ssl, buf_head(&c->plain), len < RECORD_MAX ? len : RECORD_MAX, &done);
        if (r != 1) {
            int err = SSL_get_error(c->ssl, r);
            if (err == SSL_ERROR_WANT_READ || err == SSL_ERROR_WANT_WRITE) {
                c->tls_retry = true; /* after the next input */
                return;
            }
            char *reason = xasprintf("TLS: %s", ssl_reason());
            ERR_clear_error();
            ws_conn_lost(c, reason);
            free(reason);
            return;
        }
        c->tls_retry = false;
        ws_io_leaving(c, done);
    }
}

void ws_tls_shutdown(struct ws_conn *c)
{
    ERR_clear_error();
    /* 0 means "sent, the peer's is not here yet": exactly what is wanted. An error changes nothing,
     * the connection is ending anyway. */
    (void)SSL_shutdown(c->ssl);
    ERR_clear_error();
}
