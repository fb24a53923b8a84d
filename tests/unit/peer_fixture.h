/*
 * What the tests of common/peer share: a pool, a scripted server, and the ends of calls. For one
 * source file of a program.
 */
#ifndef SHINE_TESTS_PEER_FIXTURE_H
#define SHINE_TESTS_PEER_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "peer/internal.h"
#include "peer/peer.h"
#include "support_peer.h"

struct ended {
    unsigned calls;
    unsigned n; /* how many of them have ended */
    enum peer_result result;
    bool written, dial_failed;
    int status;
    char error[64];
    json_t *payload;
};

struct fixture {
    uv_loop_t loop;
    struct peer_config cfg;
    struct peer_pool *pool;
    struct fake_server server;
    bool in_call, closed;
    struct ended e[16];
};

static struct fixture *the; /* of the running test, for callbacks that get an `ended` */

static inline void on_end(void *ctx, const struct peer_answer *a)
{
    struct ended *e = ctx;
    assert_false(the->in_call); /* never from inside peer_call() */
    e->n++;
    assert_true(e->n <= e->calls);
    e->result = a->result;
    e->written = a->written;
    e->dial_failed = a->dial_failed;
    e->status = a->status;
    (void)snprintf(e->error, sizeof e->error, "%s", a->error);
    json_decref(e->payload);
    e->payload = a->payload ? json_deep_copy(a->payload) : NULL;
    assert_int_equal(a->result == PEER_ANSWER, a->payload != NULL);
}

static inline void call_lane(struct fixture *x, unsigned i, const char *op, enum peer_lane lane,
                             uint32_t timeout_ms)
{
    x->e[i].calls++;
    x->in_call = true;
    peer_call(x->pool, "server2", x->server.url, lane, op, json_object(), timeout_ms, on_end,
              &x->e[i]);
    x->in_call = false;
}

static inline void call(struct fixture *x, unsigned i, const char *op)
{
    call_lane(x, i, op, PEER_REALTIME, 0);
}

static inline void wait_end(struct fixture *x, unsigned i)
{
    loop_until_count(&x->loop, &x->e[i].n, x->e[i].calls);
}

static inline void start(struct fixture *x)
{
    x->pool = peer_pool_new(&x->loop, &x->cfg);
}

static inline int setup(void **state)
{
    struct fixture *x = calloc(1, sizeof *x);
    assert_non_null(x);
    the = x;
    assert_int_equal(0, uv_loop_init(&x->loop));
    fake_server_start(&x->server, &x->loop, "server2");
    x->cfg = (struct peer_config){.server_login = "server1",
                                  .ping_idle_ms = 60000,
                                  .pong_timeout_ms = 5000,
                                  .request_timeout_ms = 5000,
                                  .connect_timeout_ms = 5000,
                                  .caller_timeout_ms = 8000,
                                  .max_queue_per_peer = 100,
                                  .max_in_flight_per_peer = 8,
                                  .allow_private_addresses = true};
    *state = x;
    return 0;
}

static inline void on_pool_closed(void *ctx)
{
    struct fixture *x = ctx;
    x->closed = true;
}

static inline void close_pool(struct fixture *x)
{
    peer_pool_close(x->pool, on_pool_closed, x);
    x->pool = NULL;
}

static inline int teardown(void **state)
{
    struct fixture *x = *state;
    if (x->pool)
        close_pool(x);
    loop_until(&x->loop, &x->closed);
    fake_server_stop(&x->server);
    for (unsigned i = 0; i < sizeof x->e / sizeof *x->e; i++) {
        assert_int_equal(x->e[i].calls, x->e[i].n); /* every call ends exactly once */
        json_decref(x->e[i].payload);
    }
    loop_finish(&x->loop);
    free(x);
    return 0;
}

static inline struct peer *the_peer(struct fixture *x)
{
    return list_entry(x->pool->peers.next, struct peer, lru);
}

/* --- scripts --- */

/* "Never": no answer. "Hold": answered by release(). "Drop": the connection is closed. */
static inline void script(struct fake_server *s, struct ws_conn *conn, const char *op,
                          const char *id)
{
    (void)s;
    if (strcmp(op, "Never") == 0 || strcmp(op, "Hold") == 0)
        return;
    if (strcmp(op, "Drop") == 0)
        ws_close(conn, 1011, "scripted");
    else if (strcmp(op, "Refuse") == 0)
        fake_fail(conn, op, id, 503, "OVERLOADED", "{\"retryAfterMs\":1234}");
    else
        fake_answer(conn, op, id);
}

static inline void release(struct fixture *x, unsigned seen)
{
    fake_answer(fake_server_conn(&x->server), x->server.seen[seen], x->server.ids[seen]);
}

#endif
