/*
 * Inside of common/net: the connection object and the seams between the files that drive it.
 * Nothing outside this folder includes it, except the tests of the send path.
 *
 *   ws_listen.c, ws_dial.c   make a connected socket
 *   ws_conn.c                life: states, timer, the funnel for teardown      (the map of the
 * states) ws_io.c                  bytes between the socket and the layers above, both directions
 *   ws_tls.c                 TLS between those bytes and the plain ones
 *   ws_http.c                the upgrade
 *   ws_frame.c               frames and messages
 *   ws_loop.c                what the connections of one loop share
 */
#ifndef SHINE_NET_WS_INTERNAL_H
#define SHINE_NET_WS_INTERNAL_H

#include "net/ws.h"
#include "util/buf.h"
#include "util/list.h"

#include "net/ws_utf8.h"

#include <openssl/ssl.h>
#include <wslay/wslay.h>

/* --- what the connections of one loop share (ws_loop.c) --- */

enum { WS_READ_SIZE = 64 * 1024, WS_MASK_POOL = 2048 };

struct ws_loop {
    uv_loop_t *uv;
    struct ws_loop *next; /* other loops of this thread */
    unsigned refs;        /* connections, listeners, lookups */
    unsigned handles;     /* handles of its own that are not closed yet */
    uv_prepare_t prepare;
    uv_check_t check;
    uv_idle_t idle;    /* active while there is work that must not wait for the next event */
    uint64_t turn;     /* counts loop turns: the budgets of fairness are per turn */
    struct list dirty; /* connections with bytes to send */
    struct list work;  /* connections with received bytes still to be worked on */
    unsigned lookups;  /* name lookups in flight */
    struct list lookup_queue;
    size_t mask_left;
    uint8_t mask_pool[WS_MASK_POOL];
    uint8_t read_buf[WS_READ_SIZE]; /* filled and emptied within one read callback */
};

/* The shared part of `uv`, made on first use. Each get is paired with a put. */
struct ws_loop *ws_loop_get(uv_loop_t *uv);
struct ws_loop *ws_loop_ref(struct ws_loop *l);
void ws_loop_put(struct ws_loop *l);
/* Do not block in the next poll. */
void ws_loop_wake(struct ws_loop *l);
/* Four unpredictable bytes to mask a frame with (RFC 6455, section 5.3). */
void ws_loop_mask(struct ws_loop *l, uint8_t out[4]);

/* --- the connection --- */

enum ws_state {
    WS_CONNECTING, /* client: name lookup and TCP connect */
    WS_TLS,        /* TLS handshake */
    WS_HTTP,       /* upgrade */
    WS_OPEN,
    WS_CLOSING,  /* our close frame is queued or sent, the peer's is awaited */
    WS_DRAINING, /* nothing more to say: what is queued goes out, then FIN; input is thrown away */
    WS_CLOSED,   /* handles are closing; on_close follows */
};

struct ws_conn {
    struct ws_loop *loop;
    uv_tcp_t *tcp; /* NULL while connecting; freed in its close callback */
    uv_timer_t timer;
    struct ws_limits limits;
    const struct ws_callbacks *cb; /* NULL: nobody wants to know */
    void *ctx;
    char remote[INET6_ADDRSTRLEN];

    enum ws_state state;
    bool server;
    bool paused;         /* by the owner */
    bool reading;        /* uv_read_start is in force */
    bool input_left;     /* the last turn stopped before all received bytes were worked on */
    bool input_eof;      /* the peer ended its stream (FIN or close_notify) */
    bool writing;        /* a uv_write is in flight */
    bool was_open;       /* on_open was called */
    bool ping_wait;      /* a ping is queued or sent and nothing was received since */
    bool ping_left;      /* the kernel has taken it */
    bool refused;        /* ws_send_text() has refused since the last on_drain */
    bool above_quarter;  /* the buffer was above a quarter since the last on_drain */
    bool tls_retry;      /* OpenSSL could not write; it wants the same bytes again */
    bool notify_sent;    /* TLS close_notify written */
    bool shutdown_begun; /* FIN asked for */
    unsigned handles;    /* not yet closed */

    /* Times by uv_now(), which is clock_mono_ms() up to the start of the loop turn. */
    uint64_t deadline;    /* of the handshake, or of closing */
    uint64_t received_at; /* last byte received */
    uint64_t written_at;  /* last byte taken by the kernel */
    uint64_t ping_at;     /* ping queued, then: ping left */
    uint64_t pong_at;     /* something came back after a ping; 0 = never */
    uint64_t armed_for;   /* what the timer is set to */
    uint64_t message_at;  /* first byte of the message being received; 0 = none */

    /* Input. `in` are bytes from the socket, in loop->read_buf during a read callback, else in
     * `rx`. */
    const uint8_t *in;
    size_t in_len;
    struct buf rx;    /* left over when a turn stopped early; reading is off until it is empty */
    struct buf early; /* plain bytes that followed the HTTP head */
    uint64_t turn;    /* the turn the budgets below belong to */
    unsigned turn_messages;
    size_t turn_bytes;

    /* Output: frames or HTTP text in `plain`, then through TLS into `cipher`, then `out` during a
     * uv_write. */
    struct buf plain;
    struct buf cipher;
    struct buf out;
    uint64_t plain_out; /* bytes ever taken out of `plain` */
    uint64_t ping_pos;  /* plain_out when the ping will have left it */
    uv_write_t write_req;
    uv_shutdown_t shutdown_req;

    struct tls_ctx *tls; /* NULL: plain TCP */
    SSL *ssl;
    char *host;              /* client: host name, for TLS and HTTP */
    struct ws_http *http;    /* during WS_HTTP */
    struct ws_dial *dial;    /* during WS_CONNECTING */
    struct ws_frames *frame; /* from WS_OPEN on */
    char *path;              /* the HTTP path asked for, or served */
    uint16_t port;           /* client: for the Host header */

    struct list dirty; /* on loop->dirty */
    struct list work;  /* on loop->work */

    enum ws_end end; /* what on_close will say */
    int end_code;
    char *end_reason;
};

/* --- life (ws_conn.c) --- */

struct ws_conn *ws_conn_new(struct ws_loop *loop, bool server, struct tls_ctx *tls,
                            const struct ws_limits *limits);
/* The connected socket `tcp` (allocated with malloc) is the connection's from here on. */
void ws_conn_attach(struct ws_conn *c, uv_tcp_t *tcp);
/* Begin with TLS, or with HTTP where there is none. */
void ws_conn_start(struct ws_conn *c);
/* The upgrade has succeeded. */
void ws_conn_opened(struct ws_conn *c);
/* The funnel: the connection ends now; on_close follows from a close callback. The first call
 * counts. */
void ws_conn_end(struct ws_conn *c, enum ws_end end, int code, const char *reason);
/* A softer end: everything queued goes out, then FIN, then the end as given once the peer closes
 * too, after `close_ms` at most. Input is thrown away from here on, so that the kernel does not
 * answer it with a reset, which could destroy our last words on their way. */
void ws_conn_drain(struct ws_conn *c, enum ws_end end, int code, const char *reason);
/* The end of stream or an error of the socket or of TLS was seen. */
void ws_conn_lost(struct ws_conn *c, const char *reason);
/* Note that bytes arrived. */
void ws_conn_heard(struct ws_conn *c);
/* Arm the timer for the nearest deadline, if it is nearer than what it is armed for. */
void ws_conn_arm(struct ws_conn *c);

/* --- bytes (ws_io.c) --- */

/* Begin to read from the socket, or stop, as state and pauses ask for. */
void ws_io_read_update(struct ws_conn *c);
/* Work on what has been received, within this turn's budget. */
void ws_io_input(struct ws_conn *c);
/* Up to `n` plain bytes for the layers above. 0: none at the moment, or the stream has ended (the
 * state tells). */
size_t ws_io_take(struct ws_conn *c, uint8_t *p, size_t n);
/* There is something to send: flush at the end of this turn. */
void ws_io_dirty(struct ws_conn *c);
/* Work on the input again in the next turn. */
void ws_io_again(struct ws_conn *c);
/* Send what can be sent now. */
void ws_io_flush(struct ws_conn *c);
/* Append plain bytes (whole frames, or HTTP text). */
void ws_io_put(struct ws_conn *c, const void *p, size_t n);
/* Take `n` bytes off the head of `plain`. */
void ws_io_leaving(struct ws_conn *c, size_t n);
/* Bytes queued, in whatever form, that the kernel has not taken. */
size_t ws_io_queued(const struct ws_conn *c);

/* --- TLS (ws_tls.c, contexts in tls.c) --- */

SSL_CTX *tls_ctx_ssl(struct tls_ctx *ctx);
struct tls_ctx *tls_ctx_ref(struct tls_ctx *ctx);
bool tls_ctx_verifies(const struct tls_ctx *ctx);
/* How OpenSSL reaches a connection's bytes, and the functions it consists of. */
const BIO_METHOD *tls_ctx_bio(const struct tls_ctx *ctx);
int ws_tls_bio_read(BIO *bio, char *p, size_t n, size_t *done);
int ws_tls_bio_write(BIO *bio, const char *p, size_t n, size_t *done);
long ws_tls_bio_ctrl(BIO *bio, int cmd, long num, void *ptr);

/* Make the SSL object. false: the connection has been ended. */
bool ws_tls_start(struct ws_conn *c);
/* Go on with the handshake. true when it is complete. */
bool ws_tls_handshake(struct ws_conn *c);
size_t ws_tls_read(struct ws_conn *c, uint8_t *p, size_t n);
/* Move bytes from `plain` to `cipher`, at most about 64 KiB. */
void ws_tls_encrypt(struct ws_conn *c);
/* Write close_notify into `cipher`. */
void ws_tls_shutdown(struct ws_conn *c);

/* --- HTTP upgrade (ws_http.c) --- */

/* Server: wait for a request. Client: send one. */
void ws_http_start(struct ws_conn *c);
void ws_http_input(struct ws_conn *c);
void ws_http_free(struct ws_http *h);

/* --- frames (ws_frame.c, ws_frame_out.c) --- */

enum { WS_CONTROL_MAX = 125 }; /* payload of a control frame */

struct ws_frames {
    wslay_frame_context_ptr wslay; /* NULL while there is nothing half done */
    size_t held;                   /* bytes wslay has been given and not reported yet */
    bool dry;                      /* the layer below had nothing more */
    bool in_frame;                 /* between the first and the last byte of a frame */
    uint8_t opcode;                /* of that frame */
    bool fin;                      /* of that frame */
    uint64_t frame_left;           /* payload bytes of it still to come */
    bool in_message;               /* between the first and the last frame of a message */
    uint32_t fragments;
    struct ws_utf8 utf8;
    struct buf message;
    size_t head_left; /* output: bytes of the frame at the head of `plain` still to leave */
    uint8_t control_len;
    bool pong_owed;
    uint8_t pong_len;
    uint8_t control[WS_CONTROL_MAX];
    uint8_t pong[WS_CONTROL_MAX]; /* only the latest ping is answered (RFC 6455, section 5.5.3) */
};

void ws_frame_attach(struct ws_conn *c);
void ws_frame_detach(struct ws_conn *c);
/* wslay's context, 4 KiB, is made when there is a frame to read or write (the first of these) and
 * freed when none is half done (the second): an idle connection has none. */
wslay_frame_context_ptr ws_frame_context(struct ws_conn *c);
void ws_frame_rest(struct ws_conn *c);
/* Work on received frames. true: stopped early (pause, budget), there may be more. */
bool ws_frame_input(struct ws_conn *c);
/* Append a message to the output. */
void ws_frame_text(struct ws_conn *c, const char *text, size_t len);
/* Append a close frame. Code 1005 stands for none. */
void ws_frame_close(struct ws_conn *c, int code, const char *reason);
/* Send a ping, ahead of what is queued; sets ping_pos. */
void ws_frame_ping(struct ws_conn *c);
/* Send the answer to the last ping, if one is owed, ahead of what is queued. */
void ws_frame_pong(struct ws_conn *c);
/* `n` bytes are about to be taken from the head of `plain`. */
void ws_frame_leaving(struct ws_conn *c, size_t n);

/* --- dialling (ws_dial.c) --- */

/* Give up what is under way (the connection ends). */
void ws_dial_cancel(struct ws_conn *c);
/* Start waiting lookups while there are slots. */
void ws_dial_next_lookup(struct ws_loop *l);

#endif
