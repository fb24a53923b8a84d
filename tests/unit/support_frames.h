/*
 * Help for tests that speak WebSocket byte by byte to a server: frames are put together, sent over
 * a raw socket, and what comes back is looked at.
 */
#ifndef SHINE_TESTS_SUPPORT_FRAMES_H
#define SHINE_TESTS_SUPPORT_FRAMES_H

#include "support_net.h"

enum { FIN = 0x80, RSV1 = 0x40, CONT = 0, TEXT = 1, BINARY = 2, CLOSE = 8, PING = 9, PONG = 10 };

/* A request that is upgraded. */
extern const char frames_upgrade[];

struct frames {
    uv_loop_t loop;
    struct net_server server;
    struct net_raw raw;
    struct ws_limits limits;
    struct buf out; /* what the raw side will send */
};

/* Small limits, a loop; nothing is connected yet. */
void frames_start(struct frames *f);
/* Append to what will be sent: a header alone, a frame (masked with zeros, which leave the payload
 * as it is), a close frame. */
void frames_put_header(struct frames *f, unsigned first, uint64_t len, bool mask);
void frames_put(struct frames *f, unsigned first, const void *p, size_t n);
void frames_put_close(struct frames *f, int code, const char *reason);
/* Start an echo server, connect, upgrade, and send what was put: `piece` bytes at a time, 0 = at
 * once. */
void frames_send(struct frames *f, size_t piece);
/* The *n bytes received behind the HTTP head. */
const uint8_t *frames_got(struct frames *f, size_t *n);
void frames_finish(struct frames *f);
/* The server ends the stream, its last frame is a close with `code`, and its owner is told `end`.
 * Returns how many bytes of frames came before that frame. */
size_t frames_expect_close(struct frames *f, int code, enum ws_end end);
/* Send what was put; the server must say goodbye with `code` for a breach. Done twice, the second
 * time byte by byte. Ends with frames_finish(). */
void frames_expect_breach(struct frames *f, int code);

#endif
