/*
 * TLS contexts. Certificates and keys are read here and nowhere else; connections copy a reference
 * to the SSL_CTX of the moment they begin, so a reload touches only later ones.
 *
 * Grades of failure: unreadable or unfitting files are reported to the caller; OpenSSL without
 * memory: exit.
 */
#include "net/tls.h"

#include "net/ws_internal.h"
#include "util/mem.h"

#include <openssl/err.h>
#include <stdlib.h>

struct tls_ctx {
    unsigned refs;
    SSL_CTX *ssl;
    BIO_METHOD *bio;
    char *cert_file, *key_file; /* server side */
    bool verify;                /* client side */
};

/* What OpenSSL says about the oldest error in its queue, which is then emptied. */
static char *describe(const char *what, const char *file)
{
    unsigned long e = ERR_get_error();
    char text[256] = "no details";
    if (e)
        ERR_error_string_n(e, text, sizeof(text));
    ERR_clear_error();
    return xasprintf("%s %s: %s", what, file, text);
}

static SSL_CTX *new_ssl_ctx(const SSL_METHOD *method)
{
    ERR_clear_error();
    SSL_CTX *ctx = SSL_CTX_new(method);
    shine_assert(ctx);
    shine_assert(SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) == 1);
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    /* A retried write may come from another address (buffers move), and idle connections give back
     * the 32 KiB that OpenSSL would keep for their records. */
    SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                              SSL_MODE_RELEASE_BUFFERS);
    /* Tickets are enough; a cache in memory would grow with every visitor. */
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    return ctx;
}

static SSL_CTX *load_server(const char *cert_file, const char *key_file, char **error)
{
    SSL_CTX *ctx = new_ssl_ctx(TLS_server_method());
    SSL_CTX_set_num_tickets(ctx, 1);
    if (SSL_CTX_use_certificate_chain_file(ctx, cert_file) != 1)
        *error = describe("cannot use the certificate in", cert_file);
    else if (SSL_CTX_use_PrivateKey_file(ctx, key_file, SSL_FILETYPE_PEM) != 1)
        *error = describe("cannot use the key in", key_file);
    else if (SSL_CTX_check_private_key(ctx) != 1)
        *error = describe("the certificate does not belong to the key in", key_file);
    else
        return ctx;
    SSL_CTX_free(ctx);
    return NULL;
}

static struct tls_ctx *new_ctx(SSL_CTX *ssl)
{
    struct tls_ctx *ctx = xnew(struct tls_ctx);
    ctx->refs = 1;
    ctx->ssl = ssl;
    /* Without a type number of its own: nobody looks for this BIO by type, OpenSSL has only 128 of
     * them to give, and every context would use up one. */
    ctx->bio = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "shine connection");
    shine_assert(ctx->bio);
    shine_assert(BIO_meth_set_read_ex(ctx->bio, ws_tls_bio_read) == 1);
    shine_assert(BIO_meth_set_write_ex(ctx->bio, ws_tls_bio_write) == 1);
    shine_assert(BIO_meth_set_ctrl(ctx->bio, ws_tls_bio_ctrl) == 1);
    return ctx;
}

struct tls_ctx *tls_server_new(const char *cert_file, const char *key_file, char **error)
{
    SSL_CTX *ssl = load_server(cert_file, key_file, error);
    if (!ssl)
        return NULL;
    struct tls_ctx *ctx = new_ctx(ssl);
    ctx->cert_file = xstrdup(cert_file);
    ctx->key_file = xstrdup(key_file);
    return ctx;
}

struct tls_ctx *tls_client_new(const char *ca_file, bool verify, char **error)
{
    SSL_CTX *ssl = new_ssl_ctx(TLS_client_method());
    if (verify) {
        SSL_CTX_set_verify(ssl, SSL_VERIFY_PEER, NULL);
        if (ca_file && *ca_file) {
            if (SSL_CTX_load_verify_file(ssl, ca_file) != 1) {
                *error = describe("cannot use the CA certificates in", ca_file);
                SSL_CTX_free(ssl);
                return NULL;
            }
        } else if (SSL_CTX_set_default_verify_paths(ssl) != 1) {
            *error = describe("cannot use", "the system's CA certificates");
            SSL_CTX_free(ssl);
            return NULL;
        }
    } else {
        SSL_CTX_set_verify(ssl, SSL_VERIFY_NONE, NULL);
    }
    struct tls_ctx *ctx = new_ctx(ssl);
    ctx->verify = verify;
    return ctx;
}

bool tls_server_reload(struct tls_ctx *ctx, char **error)
{
    shine_assert(ctx->cert_file);
    SSL_CTX *fresh = load_server(ctx->cert_file, ctx->key_file, error);
    if (!fresh)
        return false;
    SSL_CTX_free(ctx->ssl);
    ctx->ssl = fresh;
    return true;
}

void tls_ctx_free(struct tls_ctx *ctx)
{
    if (!ctx || --ctx->refs > 0)
        return;
    SSL_CTX_free(ctx->ssl);
    BIO_meth_free(ctx->bio);
    free(ctx->cert_file);
    free(ctx->key_file);
    free(ctx);
}

struct tls_ctx *tls_ctx_ref(struct tls_ctx *ctx)
{
    if (ctx)
        ctx->refs++;
    return ctx;
}

SSL_CTX *tls_ctx_ssl(struct tls_ctx *ctx)
{
    return ctx->ssl;
}

bool tls_ctx_verifies(const struct tls_ctx *ctx)
{
    return ctx->verify;
}

const BIO_METHOD *tls_ctx_bio(const struct tls_ctx *ctx)
{
    return ctx->bio;
}
