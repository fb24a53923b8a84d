/*
 * TLS contexts (OpenSSL 3), TLS 1.2 and newer, for the listening side and for dialling peers.
 */
#ifndef SHINE_NET_TLS_H
#define SHINE_NET_TLS_H

#include <stdbool.h>

struct tls_ctx;

/* Server side: certificate chain and key from PEM files. NULL with *error (freed with free()) set
 * to what is wrong and with which file. The context is reference-counted by its connections. */
struct tls_ctx *tls_server_new(const char *cert_file, const char *key_file, char **error);

/* Client side: verifies the peer's certificate and host name against `ca_file`, or the system's
 * store if it is NULL or empty. With `verify` false nothing is verified (tests; the caller warns
 * loudly). */
struct tls_ctx *tls_client_new(const char *ca_file, bool verify, char **error);

/* Read certificate and key again (SIGHUP); connections made from now on use them. On failure the
 * old ones stay, and false is returned with *error set. */
bool tls_server_reload(struct tls_ctx *ctx, char **error);

/* Give up the caller's reference. NULL is allowed. */
void tls_ctx_free(struct tls_ctx *ctx);

#endif
