/*
 * WebSocket endpoints over TLS or plain TCP on a libuv loop, server and client side (RFC 6455;
 * framing by wslay, TLS by OpenSSL over a BIO on our own buffers, HTTP request heads by
 * http_parser).
 *
 * Life of a connection, both sides:
 *
 *   connecting/accepted -> TLS handshake -> HTTP upgrade -> OPEN -> closing -> closed (freed)
 *        \_____________________\_________________\___________________^
 *
 * on_open is called once at OPEN; on_close exactly once, at the end, for every connection whose
 * callbacks were ever installed, whether or not it got as far as OPEN. After on_close has returned
 * the connection is gone. No callback is made from within a function that the owner calls (never
 * synchronously), except as said below.
 *
 * Everything is bounded: the handshake by a deadline, a message by size, fragments and time, the
 * outgoing bytes by `max_send_buffer`. permessage-deflate is never negotiated. Only text messages
 * are accepted (1003 otherwise) and they are valid UTF-8 (1007).
 *
 * Messages above 64 KiB leave in fragments, so that pings and pongs need not wait for all of one.
 * The first use sets SIGPIPE to be ignored, unless the program handles it.
 */
#ifndef SHINE_NET_WS_H
#define SHINE_NET_WS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "net/tls.h"

struct ws_conn;
struct ws_listener;

struct ws_limits {
    size_t max_message;     /* bytes of one message, all fragments; beyond: close 1009 */
    uint32_t max_fragments; /* frames of one message, empty ones included; beyond: close 1009 */
    size_t max_send_buffer; /* bytes waiting to be sent; beyond: ws_send_text() refuses */
    uint32_t handshake_ms;  /* TCP connect (client) + TLS + HTTP upgrade */
    uint32_t idle_ms;       /* no byte received for so long: a ping is sent; 0 = never */
    uint32_t pong_ms;       /* no byte received for so long after the ping: connection lost */
    uint32_t close_ms;      /* our close frame sent, nothing comes back: cut */
    uint32_t message_ms;    /* one message takes longer to arrive: close 1008; 0 = never */
};
/* The defaults of docs/operations.md: 4 MiB, 4,096 fragments, 1 MiB, 10 s, 10 min, 15 s, 5 s,
 * 2 min. */
extern const struct ws_limits ws_limits_default;

/* Why a connection ended, beside the close code. */
enum ws_end {
    WS_END_CLOSED,      /* close handshake, whoever began */
    WS_END_LOST,        /* reset or end of stream without a close frame */
    WS_END_UNREACHABLE, /* client: name lookup or TCP connect failed */
    WS_END_TLS,         /* TLS handshake or certificate refused */
    WS_END_UPGRADE,     /* the HTTP exchange was not a WebSocket upgrade */
    WS_END_TIMEOUT,     /* handshake deadline, missing pong, unfinished close */
    WS_END_PROTOCOL,    /* the peer broke RFC 6455 or a limit */
};
/* A short snake_case name for logs and views. */
const char *ws_end_name(enum ws_end end);

struct ws_callbacks {
    /* Ready for messages. */
    void (*on_open)(struct ws_conn *conn, void *ctx);
    /* One complete text message; `text` (NUL-terminated for convenience, `len` counts) is valid
     * during the call only. */
    void (*on_message)(struct ws_conn *conn, void *ctx, const char *text, size_t len);
    /* The send buffer has fallen below half of its bound after a refusal, or below a quarter. May
     * be NULL. */
    void (*on_drain)(struct ws_conn *conn, void *ctx);
    /* The end. `code`: the close code received or sent (1006 if none), `reason`: UTF-8, for people.
     */
    void (*on_close)(struct ws_conn *conn, void *ctx, enum ws_end end, int code,
                     const char *reason);
    /* Client side, may be NULL (all are tried): asked for each address that the name resolved to,
     * just before it is connected to; false leaves it out. Here and not before the look-up, because
     * a name may resolve differently the next time. No function of `conn` may be called inside. If
     * none is left: WS_END_UNREACHABLE, reason "address_refused". */
    bool (*address_ok)(void *ctx, const struct sockaddr *addr);
};

/* --- server side --- */

/* Called for each accepted connection, before the handshake; gives its callbacks and context.
 * Return false to refuse (the socket is closed at once). `remote` is the numeric address without
 * port. This one is called from the accept callback; ws_close() may not be called inside. */
typedef bool (*ws_accept_cb)(struct ws_listener *l, void *ctx, struct ws_conn *conn,
                             const char *remote, const struct ws_callbacks **callbacks,
                             void **conn_ctx);

/* Accept on an already listening socket `fd` (ownership passes). `tls` NULL = plain. `path`: the
 * only HTTP path that is upgraded ("/ws"), others get 404. NULL with *error set on failure. */
struct ws_listener *ws_listen(uv_loop_t *loop, int fd, struct tls_ctx *tls, const char *path,
                              const struct ws_limits *limits, ws_accept_cb on_accept, void *ctx,
                              char **error);
/* Stop accepting and free the listener; its connections go on. */
void ws_listener_close(struct ws_listener *l);

/* --- client side --- */

/* A URL taken apart: wss://host[:port][/path], or ws:// (tests, plain proxies). */
struct ws_url {
    bool tls;
    char host[256];
    uint16_t port;
    char path[256];
};
/* false if `url` is not of that form, or longer than 255 characters. The host comes out in lower
 * case and without the brackets of an IPv6 address; the port is 443 or 80, and the path "/ws" (the
 * one endpoint of this protocol), where the URL has none. Only printable ASCII, no user info, no
 * fragment, none of `,` `=`. */
bool ws_url_parse(const char *url, struct ws_url *out);

/* Open a connection; the result comes by on_open or on_close. All addresses of both families are
 * tried within the handshake deadline. `tls` may be NULL only for ws:// URLs. Never NULL. */
struct ws_conn *ws_dial(uv_loop_t *loop, const struct ws_url *url, struct tls_ctx *tls,
                        const struct ws_limits *limits, const struct ws_callbacks *callbacks,
                        void *ctx);

/* --- both --- */

/* Queue one text message (copied; valid UTF-8). false, and nothing queued, if the bound would be
 * exceeded or the connection is not OPEN. An empty buffer takes one message of any length: a bound
 * below the size of a message must not make that message unsendable. Messages leave in order; those
 * queued in one loop turn share TLS records where possible. */
bool ws_send_text(struct ws_conn *conn, const char *text, size_t len);
/* Bytes queued and not yet handed to the kernel. */
size_t ws_send_queued(const struct ws_conn *conn);
/* Raise `max_send_buffer` of this connection; a lower value than the present one changes nothing.
 */
void ws_raise_send_buffer(struct ws_conn *conn, size_t max);
/* Stop and resume reading from the socket (nested calls do not count). While paused nothing is
 * received, not even a close, nothing more is delivered of what already was, and no pings are sent.
 * A pause inside on_message holds from the next message on; after a resume, delivery goes on in a
 * later loop turn. ws_close() ends a pause. */
void ws_pause(struct ws_conn *conn);
void ws_resume(struct ws_conn *conn);
/* The one way to end a connection: send what is queued, a close frame with `code`, wait for the
 * peer's at most `close_ms`. Before OPEN it just cuts. Repeating it changes nothing. on_close
 * follows later. */
void ws_close(struct ws_conn *conn, int code, const char *reason);
/* Numeric remote address. Valid while the connection lives. */
const char *ws_remote(const struct ws_conn *conn);
/* Clock (clock_mono_ms) of the last byte received. */
int64_t ws_last_received_ms(const struct ws_conn *conn);
/* When the last ping was sent, and when one was last answered (by any byte); 0 = never. */
void ws_ping_times(const struct ws_conn *conn, int64_t *ping_ms, int64_t *pong_ms);

#endif
