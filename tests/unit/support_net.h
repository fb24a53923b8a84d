/*
 * Help for tests of connections: certificates made on the spot, a loop that runs until a condition
 * holds, an echo server, a recording client, and a raw TCP socket for what no well-behaved client
 * would send.
 */
#ifndef SHINE_TESTS_SUPPORT_NET_H
#define SHINE_TESTS_SUPPORT_NET_H

#include "net/ws.h"
#include "util/buf.h"

#include <stdbool.h>
#include <stddef.h>

/* --- certificates --- */

/* A temporary folder with ca.pem, other-ca.pem (signs nothing here), and pairs NAME.pem, NAME.key
 * signed by ca.pem: "good" (localhost, 127.0.0.1), "wrongname" (elsewhere.example), "expired"
 * (localhost). Removed by net_pki_free(). */
struct net_pki {
    char dir[64];
};
void net_pki_make(struct net_pki *pki);
/* Path of a file in it; valid until the fourth next call. */
const char *net_pki_path(const struct net_pki *pki, const char *name);
void net_pki_free(struct net_pki *pki);

/* Group fixture of a test program: the certificates, a server's context with "good" and a client's
 * that trusts ca.pem. */
struct net_tls {
    struct net_pki pki;
    struct tls_ctx *server_tls, *client_tls;
};
int net_tls_setup(void **state);
int net_tls_teardown(void **state);

/* --- the loop --- */

/* Run `loop` until *done is at least `want`. Fails the test after `seconds`. */
void net_run_until(uv_loop_t *loop, const unsigned *done, unsigned want, unsigned seconds);
/* Run until nothing is left to do, and close the loop: fails if a handle is still there. */
void net_loop_end(uv_loop_t *loop);

/* A listening socket on a free port of 127.0.0.1. */
int net_listen_fd(uint16_t *port);

/* --- an endpoint that records what happens --- */

struct net_end {
    struct ws_conn *conn; /* NULL after the end */
    unsigned opened, messages, drained, closed;
    size_t bytes;
    bool echo;      /* send every message back */
    bool keep_last; /* keep the last message in `last` */
    struct buf last;
    enum ws_end end;
    int code;
    char reason[160];
};
extern const struct ws_callbacks net_end_callbacks;
void net_end_free(struct net_end *e);

/* A server that gives each accepted connection the next of `ends`. */
struct net_server {
    struct ws_listener *listener;
    uint16_t port;
    struct net_end ends[256];
    unsigned accepted;
    bool refuse;
};
void net_server_start(struct net_server *s, uv_loop_t *loop, struct tls_ctx *tls,
                      const struct ws_limits *limits, bool echo);
void net_server_stop(struct net_server *s);
/* Dial it by `host` (a name or address of the loopback). */
struct ws_conn *net_dial(uv_loop_t *loop, const struct net_server *s, const char *host,
                         struct tls_ctx *tls, const struct ws_limits *limits, struct net_end *e);

/* --- a raw socket --- */

struct net_raw {
    uv_tcp_t tcp;
    uv_connect_t connect;
    struct buf got;
    unsigned connected, bytes, ended, closed;
};
void net_raw_dial(struct net_raw *r, uv_loop_t *loop, uint16_t port);
void net_raw_send(struct net_raw *r, const void *p, size_t n);
/* Stop reading, and go on. */
void net_raw_pause(struct net_raw *r);
void net_raw_resume(struct net_raw *r);
void net_raw_close(struct net_raw *r);
void net_raw_free(struct net_raw *r);

#endif
