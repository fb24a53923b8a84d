/*
 * What the tests of common/delivery share: a pool, two scripted servers, and a store and a
 * directory of the test's own (they define the functions that are called, so that the library's are
 * not linked). For one source file of a program.
 */
#ifndef SHINE_TESTS_DELIVERY_FIXTURE_H
#define SHINE_TESTS_DELIVERY_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "delivery/delivery.h"
#include "store/peers.h"
#include "support_peer.h"
#include "util/log.h"
#include "util/mem.h"

/* --- a store of our own --- */

struct store {
    uv_loop_t *loop;
    struct store_user routes; /* what store_get_user() finds; login "" = nobody */
    unsigned reads;           /* of it */
    store_user_cb read_cb;
    void *read_ctx;
    uv_timer_t read_timer;
    unsigned n;
    struct store_finish last; /* what was recorded */
    char via[64], error[400], key[DM_MESSAGE_KEY_MAX];
    enum db_status status; /* what the recording comes to */
    struct store_finish *pending;
    uv_timer_t timer;
};

static inline void on_store_timer(uv_timer_t *t)
{
    struct store *s = t->data;
    struct store_finish *f = s->pending;
    s->pending = NULL;
    f->recorded = true;
    f->state = f->outcome == STORE_ATTEMPT_DELIVERED ? DM_STATE_DELIVERED : DM_STATE_ACCEPTED;
    f->from = (struct store_told){.pts = f->outcome == STORE_ATTEMPT_DELIVERED ? 7 : 0};
    f->done(f, s->status);
}

void store_finish_attempt(struct store *s, struct store_finish *f)
{
    assert_null(s->pending);
    s->n++;
    s->last = *f;
    (void)snprintf(s->via, sizeof s->via, "%s", f->via);
    (void)snprintf(s->error, sizeof s->error, "%s", f->error);
    (void)snprintf(s->key, sizeof s->key, "%s", f->outgoing_key);
    s->pending = f;
    (void)uv_timer_start(&s->timer, on_store_timer, 0, 0);
}

static inline void on_read_timer(uv_timer_t *t)
{
    struct store *s = t->data;
    store_user_cb cb = s->read_cb;
    s->read_cb = NULL;
    cb(s->read_ctx, DB_OK, s->routes.login[0] ? &s->routes : NULL);
}

/* The pool here knows of no tables; the real functions would bring the real store along. */
void store_read_partners(struct store *s, store_partners_cb cb, void *ctx)
{
    (void)s;
    (void)cb;
    (void)ctx;
    fail();
}

void store_unnamed_peers(struct store *s, const struct store_route *peers, size_t n,
                         store_unnamed_cb cb, void *ctx)
{
    (void)peers;
    (void)n;
    (void)s;
    (void)cb;
    (void)ctx;
    fail();
}

void store_known_peers(struct store *s, unsigned limit, store_known_cb cb, void *ctx)
{
    (void)limit;
    (void)s;
    (void)cb;
    (void)ctx;
    fail();
}

void store_get_user(struct store *s, const char *login, store_user_cb cb, void *ctx)
{
    assert_string_equal("bob", login);
    assert_null(s->read_cb);
    s->reads++;
    s->read_cb = cb;
    s->read_ctx = ctx;
    (void)uv_timer_start(&s->read_timer, on_read_timer, 0, 0);
}

/* --- a directory that is answered by hand --- */

struct directory {
    unsigned asked;
    directory_cb cb;
    void *ctx;
};

void directory_refresh(struct directory *d, const char *login, directory_cb cb, void *ctx)
{
    assert_string_equal("bob", login);
    d->asked++;
    d->cb = cb;
    d->ctx = ctx;
}

/* --- fixture --- */

struct fixture {
    uv_loop_t loop;
    struct store store;
    struct directory directory;
    struct peer_pool *pool;
    struct delivery *delivery;
    struct delivery_bounds *bounds; /* made by the test; freed here */
    bool no_directory;
    struct fake_server a, b;
    bool idle, pool_closed, in_attempt;
    unsigned reports;
    struct delivery_report report;
    struct delivery_task task;
};

static const uint8_t blob[] = {0, 1, 2, 250, 251, 252, 253};

static inline void start(struct fixture *x, unsigned max_in_flight)
{
    struct delivery_config cfg = {.server_login = "home",
                                  .max_in_flight = max_in_flight,
                                  .directory = x->no_directory ? NULL : &x->directory,
                                  .bounds = x->bounds};
    x->delivery = delivery_new(&x->loop, &x->store, x->pool, &cfg);
}

static inline int setup(void **state)
{
    struct fixture *x = xnew(struct fixture);
    assert_int_equal(0, uv_loop_init(&x->loop));
    fake_server_start(&x->a, &x->loop, "server_a");
    fake_server_start(&x->b, &x->loop, "server_b");
    x->store = (struct store){.loop = &x->loop, .status = DB_OK};
    (void)uv_timer_init(&x->loop, &x->store.timer);
    (void)uv_timer_init(&x->loop, &x->store.read_timer);
    x->store.timer.data = x->store.read_timer.data = &x->store;
    struct peer_config cfg = {.server_login = "home",
                              .ping_idle_ms = 60000,
                              .pong_timeout_ms = 5000,
                              .request_timeout_ms = 5000,
                              .connect_timeout_ms = 5000,
                              .caller_timeout_ms = 8000,
                              .max_queue_per_peer = 10,
                              .allow_private_addresses = true};
    x->pool = peer_pool_new(&x->loop, &cfg);
    x->task = (struct delivery_task){.from_login = "alice",
                                     .outgoing_key = "alice|bob|5|6|2",
                                     .revision_time_ms = 11,
                                     .reencrypted_at_ms = 12,
                                     .row_version = 13,
                                     .type = DM_TEXT_IN,
                                     .blob = blob,
                                     .blob_len = sizeof blob,
                                     .n_routes = 2,
                                     .deadline_ms = 5000};
    (void)snprintf(x->task.routes[0].login, sizeof x->task.routes[0].login, "server_a");
    (void)snprintf(x->task.routes[0].url, sizeof x->task.routes[0].url, "%s", x->a.url);
    (void)snprintf(x->task.routes[1].login, sizeof x->task.routes[1].login, "server_b");
    (void)snprintf(x->task.routes[1].url, sizeof x->task.routes[1].url, "%s", x->b.url);
    *state = x;
    return 0;
}

static inline void on_idle(void *ctx)
{
    ((struct fixture *)ctx)->idle = true;
}

static inline void on_pool_closed(void *ctx)
{
    ((struct fixture *)ctx)->pool_closed = true;
}

static inline int teardown(void **state)
{
    struct fixture *x = *state;
    peer_pool_close(x->pool, on_pool_closed, x);
    loop_until(&x->loop, &x->pool_closed);
    if (!x->idle) {
        delivery_drain(x->delivery, on_idle, x);
        assert_false(x->idle);
        loop_until(&x->loop, &x->idle);
    }
    delivery_free(x->delivery);
    delivery_bounds_free(x->bounds);
    uv_close((uv_handle_t *)&x->store.timer, NULL);
    uv_close((uv_handle_t *)&x->store.read_timer, NULL);
    fake_server_stop(&x->a);
    fake_server_stop(&x->b);
    loop_finish(&x->loop);
    free(x);
    return 0;
}

static inline void on_report(void *ctx, const struct delivery_report *r)
{
    struct fixture *x = ctx;
    assert_false(x->in_attempt);
    x->reports++;
    x->report = *r;
}

static inline void attempt(struct fixture *x)
{
    x->in_attempt = true;
    delivery_attempt(x->delivery, &x->task, on_report, x);
    x->in_attempt = false;
}

static inline void unserved(struct fake_server *s, struct ws_conn *conn, const char *op,
                            const char *id)
{
    (void)s;
    fake_fail(conn, op, id, 403, "LOCAL_SERVER_NOT_ACCESS_SERVER", NULL);
}

static inline void busy(struct fake_server *s, struct ws_conn *conn, const char *op, const char *id)
{
    fake_fail(conn, op, id, 503, "OVERLOADED", s->ctx);
}

static inline void silent(struct fake_server *s, struct ws_conn *conn, const char *op,
                          const char *id)
{
    (void)s;
    (void)conn;
    (void)op;
    (void)id;
}

#endif
