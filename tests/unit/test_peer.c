/*
 * Calls to another server against a scripted one in the same loop: hello, matching, time limits,
 * losses, back-off, queues, shutdown.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "peer/internal.h"
#include "peer/peer.h"
#include "support_peer.h"
#include "util/log.h"

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

static void on_end(void *ctx, const struct peer_answer *a)
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

static void call_lane(struct fixture *x, unsigned i, const char *op, enum peer_lane lane,
                      uint32_t timeout_ms)
{
    x->e[i].calls++;
    x->in_call = true;
    peer_call(x->pool, "server2", x->server.url, lane, op, json_object(), timeout_ms, on_end,
              &x->e[i]);
    x->in_call = false;
}

static void call(struct fixture *x, unsigned i, const char *op)
{
    call_lane(x, i, op, PEER_REALTIME, 0);
}

static void wait_end(struct fixture *x, unsigned i)
{
    loop_until_count(&x->loop, &x->e[i].n, x->e[i].calls);
}

static void start(struct fixture *x)
{
    x->pool = peer_pool_new(&x->loop, &x->cfg);
}

static int setup(void **state)
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

static void on_pool_closed(void *ctx)
{
    struct fixture *x = ctx;
    x->closed = true;
}

static void close_pool(struct fixture *x)
{
    peer_pool_close(x->pool, on_pool_closed, x);
    x->pool = NULL;
}

static int teardown(void **state)
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

static struct peer *the_peer(struct fixture *x)
{
    return list_entry(x->pool->peers.next, struct peer, lru);
}

/* --- scripts --- */

/* "Never": no answer. "Hold": answered by release(). "Drop": the connection is closed. */
static void script(struct fake_server *s, struct ws_conn *conn, const char *op, const char *id)
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

static void release(struct fixture *x, unsigned seen)
{
    fake_answer(fake_server_conn(&x->server), x->server.seen[seen], x->server.ids[seen]);
}

/* --- hello --- */

static void test_hello_then_call(void **state)
{
    struct fixture *x = *state;
    start(x);
    call(x, 0, "Echo");
    wait_end(x, 0);
    assert_int_equal(PEER_ANSWER, x->e[0].result);
    assert_int_equal(200, x->e[0].status);
    assert_string_equal("", x->e[0].error);
    assert_true(x->e[0].written);
    json_t *want = json_pack("{s:s, s:i, s:[s]}", "serverLogin", "server1", "protocolVersion", 1,
                             "capabilities", "connection-pool");
    assert_true(json_equal(want, x->server.hello_payload));
    json_decref(want);
    /* The next call uses the same connection. */
    call(x, 1, "Echo");
    wait_end(x, 1);
    assert_int_equal(1, x->server.accepted);
    assert_string_not_equal(x->server.ids[0], x->server.ids[1]);
}

static void test_legacy_peer(void **state)
{
    struct fixture *x = *state;
    x->server.hello = FAKE_HELLO_UNKNOWN_OP;
    x->server.on_request = script;
    start(x);
    call(x, 0, "Hold");
    call(x, 1, "Echo");
    loop_until_count(&x->loop, &x->server.n_seen, 1);
    loop_for(&x->loop, 50);
    assert_int_equal(1, x->server.n_seen); /* one at a time */
    release(x, 0);
    wait_end(x, 0);
    wait_end(x, 1);
    assert_int_equal(PEER_ANSWER, x->e[1].result);
    assert_true(the_peer(x)->legacy);
    assert_int_equal(1, x->server.accepted);
}

static void test_wrong_login_is_a_failed_dial(void **state)
{
    struct fixture *x = *state;
    (void)snprintf(x->server.login, sizeof x->server.login, "somebody");
    start(x);
    call(x, 0, "Echo");
    call(x, 1, "Echo");
    wait_end(x, 0);
    wait_end(x, 1);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(PEER_UNREACHABLE, x->e[i].result);
        assert_string_equal("wrong_server_login", x->e[i].error);
        assert_true(x->e[i].dial_failed);
        assert_false(x->e[i].written);
    }
    assert_int_equal(0, x->server.n_seen);
    /* Calls before the next dial is due share the failed one. */
    call(x, 2, "Echo");
    wait_end(x, 2);
    assert_int_equal(PEER_UNREACHABLE, x->e[2].result);
    assert_true(x->e[2].dial_failed);
    assert_int_equal(1, x->server.accepted);
}

static void test_hello_refused(void **state)
{
    struct fixture *x = *state;
    x->server.hello = FAKE_HELLO_REFUSE;
    start(x);
    call(x, 0, "Echo");
    wait_end(x, 0);
    assert_int_equal(PEER_UNREACHABLE, x->e[0].result);
    assert_string_equal("hello_refused", x->e[0].error);
}

static void test_hello_unanswered(void **state)
{
    struct fixture *x = *state;
    x->server.hello = FAKE_HELLO_SILENT;
    x->cfg.request_timeout_ms = 100;
    start(x);
    call(x, 0, "Echo");
    wait_end(x, 0);
    assert_int_equal(PEER_UNREACHABLE, x->e[0].result);
    assert_string_equal("hello_timeout", x->e[0].error);
}

/* --- dialling --- */

static void test_nobody_listens_then_back(void **state)
{
    struct fixture *x = *state;
    int port;
    int fd = fake_listen(&port);
    (void)close(fd);
    char url[64];
    (void)snprintf(url, sizeof url, "ws://127.0.0.1:%d/ws", port);
    start(x);
    x->e[0].calls++;
    peer_call(x->pool, "server2", url, PEER_REALTIME, "Echo", json_object(), 0, on_end, &x->e[0]);
    wait_end(x, 0);
    assert_int_equal(PEER_UNREACHABLE, x->e[0].result);
    assert_true(x->e[0].dial_failed);
    assert_string_equal("unreachable", x->e[0].error);
    /* The same login at another URL is another peer, and not in back-off. */
    call(x, 1, "Echo");
    wait_end(x, 1);
    assert_int_equal(PEER_ANSWER, x->e[1].result);
}

static bool left_backoff(struct fixture *x)
{
    return the_peer(x)->state != PEER_BACKOFF;
}

static void test_backoff_ends(void **state)
{
    struct fixture *x = *state;
    x->server.hello = FAKE_HELLO_REFUSE;
    start(x);
    call(x, 0, "Echo");
    wait_end(x, 0);
    assert_int_equal(PEER_BACKOFF, the_peer(x)->state);
    x->server.hello = FAKE_HELLO_OK;
    while (!left_backoff(x))
        (void)uv_run(&x->loop, UV_RUN_ONCE);
    assert_int_equal(1, x->server.accepted); /* nobody waits: no dial of its own accord */
    call(x, 1, "Echo");
    wait_end(x, 1);
    assert_int_equal(PEER_ANSWER, x->e[1].result);
    assert_int_equal(2, x->server.accepted);
}

static void test_urls_refused(void **state)
{
    struct fixture *x = *state;
    char *error = NULL;
    x->cfg.allow_private_addresses = false;
    x->cfg.tls = tls_client_new(NULL, false, &error);
    assert_non_null(x->cfg.tls);
    start(x);
    static const struct {
        const char *url, *error;
    } cases[] = {{"http://example.org/", "bad_url"},
                 {"ws://8.8.8.8/ws", "plain_url"},
                 {"wss://127.0.0.1:1/ws", "address_refused"},
                 {"wss://localhost:1/ws", "address_refused"}};
    for (unsigned i = 0; i < 4; i++) {
        x->e[i].calls++;
        peer_call(x->pool, "server2", cases[i].url, PEER_REALTIME, "Echo", json_object(), 0, on_end,
                  &x->e[i]);
        wait_end(x, i);
        assert_int_equal(PEER_UNREACHABLE, x->e[i].result);
        assert_string_equal(cases[i].error, x->e[i].error);
        assert_true(x->e[i].dial_failed);
    }
    tls_ctx_free(x->cfg.tls);
}

static void test_caller_timeout_covers_the_dial(void **state)
{
    struct fixture *x = *state;
    int port;
    int fd = fake_listen(&port); /* the kernel accepts, nobody answers the upgrade */
    char url[64];
    (void)snprintf(url, sizeof url, "ws://127.0.0.1:%d/ws", port);
    start(x);
    x->e[0].calls++;
    peer_call(x->pool, "server2", url, PEER_REALTIME, "Echo", json_object(), 100, on_end, &x->e[0]);
    wait_end(x, 0);
    assert_int_equal(PEER_TIMEOUT, x->e[0].result);
    assert_false(x->e[0].written);
    assert_false(x->e[0].dial_failed);
    (void)close(fd);
}

/* --- answers --- */

static void test_error_answer(void **state)
{
    struct fixture *x = *state;
    x->server.on_request = script;
    start(x);
    call(x, 0, "Refuse");
    wait_end(x, 0);
    assert_int_equal(PEER_ANSWER, x->e[0].result);
    assert_int_equal(503, x->e[0].status);
    assert_string_equal("OVERLOADED", x->e[0].error);
    assert_int_equal(1234, json_integer_value(json_object_get(x->e[0].payload, "retryAfterMs")));
}

static void test_answers_matched_by_id(void **state)
{
    struct fixture *x = *state;
    x->server.on_request = script;
    start(x);
    call(x, 0, "Hold");
    loop_until_count(&x->loop, &x->server.n_seen, 1);
    struct ws_conn *conn = fake_server_conn(&x->server);
    fake_answer(conn, "Hold", "p999");
    fake_answer(conn, "Hold", "");
    assert_true(ws_send_text(conn, "not json", 8));
    loop_for(&x->loop, 50);
    assert_int_equal(0, x->e[0].n);
    release(x, 0);
    wait_end(x, 0);
    assert_int_equal(PEER_ANSWER, x->e[0].result);
    release(x, 0); /* a second answer to the same request finds nobody */
    call(x, 1, "Echo");
    wait_end(x, 1);
    assert_int_equal(PEER_ANSWER, x->e[1].result);
}

static void test_pipelined_answers_out_of_order(void **state)
{
    struct fixture *x = *state;
    x->server.on_request = script;
    start(x);
    call(x, 0, "Echo");
    wait_end(x, 0);
    the_peer(x)->max_in_flight = 3; /* as if both sides listed `pipelining` */
    call_lane(x, 1, "Hold", PEER_REALTIME, 300);
    for (unsigned i = 2; i <= 4; i++)
        call(x, i, "Hold");
    loop_until_count(&x->loop, &x->server.n_seen, 4);
    loop_for(&x->loop, 50);
    assert_int_equal(4, x->server.n_seen); /* Echo and three */
    release(x, 3);
    wait_end(x, 3);
    assert_int_equal(0, x->e[1].n);
    assert_int_equal(0, x->e[2].n);
    release(x, 2);
    wait_end(x, 2);
    loop_until_count(&x->loop, &x->server.n_seen, 5);
    /* Call 1 runs out of time; here that does not cost the connection, and its late answer is
     * dropped. */
    wait_end(x, 1);
    assert_int_equal(PEER_TIMEOUT, x->e[1].result);
    assert_true(x->e[1].written);
    release(x, 1);
    release(x, 4);
    wait_end(x, 4);
    assert_int_equal(PEER_ANSWER, x->e[4].result);
    assert_int_equal(1, x->server.accepted);
    assert_int_equal(1, the_peer(x)->count.late);
}

/* --- time --- */

static void test_timeout_drops_the_connection(void **state)
{
    struct fixture *x = *state;
    x->server.on_request = script;
    x->cfg.request_timeout_ms = 150;
    start(x);
    call(x, 0, "Never");
    call(x, 1, "Echo");
    wait_end(x, 0);
    assert_int_equal(PEER_TIMEOUT, x->e[0].result);
    assert_true(x->e[0].written);
    assert_int_equal(0, x->e[1].n);
    wait_end(x, 1); /* what was not written goes on on the next connection */
    assert_int_equal(PEER_ANSWER, x->e[1].result);
    assert_int_equal(2, x->server.accepted);
}

static void test_waiting_behind_a_timeout_is_not_written(void **state)
{
    struct fixture *x = *state;
    x->server.on_request = script;
    start(x);
    call(x, 0, "Never");
    call_lane(x, 1, "Echo", PEER_REALTIME, 100);
    wait_end(x, 1);
    assert_int_equal(PEER_TIMEOUT, x->e[1].result);
    assert_false(x->e[1].written);
    assert_int_equal(0, x->e[0].n);
    assert_int_equal(1, x->server.n_seen);
}

struct chatter {
    struct fixture *x;
    uv_timer_t timer;
    unsigned left;
    bool closed;
};

static void on_chatter_closed(uv_handle_t *h)
{
    ((struct chatter *)h->data)->closed = true;
}

static void on_chatter(uv_timer_t *t)
{
    struct chatter *c = t->data;
    struct ws_conn *conn = fake_server_conn(&c->x->server);
    if (!conn || c->left == 0) {
        if (conn && c->x->server.n_seen == 1 && strcmp(c->x->server.seen[0], "Hold") == 0)
            release(c->x, 0);
        uv_close((uv_handle_t *)t, on_chatter_closed);
        return;
    }
    c->left--;
    static const char event[] =
        "{\"op\":\"Noise\",\"event\":true,\"status\":200,\"ok\":true,\"payload\":{}}";
    (void)ws_send_text(conn, event, sizeof event - 1);
}

static void chatter_start(struct chatter *c, struct fixture *x, unsigned times)
{
    *c = (struct chatter){.x = x, .left = times};
    (void)uv_timer_init(&x->loop, &c->timer);
    c->timer.data = c;
    (void)uv_timer_start(&c->timer, on_chatter, 50, 50);
}

static void test_bytes_extend_the_wait(void **state)
{
    struct fixture *x = *state;
    x->server.on_request = script;
    x->cfg.request_timeout_ms = 250;
    start(x);
    call(x, 0, "Hold");
    loop_until_count(&x->loop, &x->server.n_seen, 1);
    struct chatter c;
    chatter_start(&c, x, 14); /* 700 ms of noise, then the answer */
    wait_end(x, 0);
    assert_int_equal(PEER_ANSWER, x->e[0].result);
    loop_until(&x->loop, &c.closed);
}

static void test_bytes_extend_it_to_the_callers_limit_only(void **state)
{
    struct fixture *x = *state;
    x->server.on_request = script;
    x->cfg.request_timeout_ms = 250;
    start(x);
    call_lane(x, 0, "Never", PEER_REALTIME, 500);
    loop_until_count(&x->loop, &x->server.n_seen, 1);
    struct chatter c;
    chatter_start(&c, x, 1000);
    wait_end(x, 0);
    assert_int_equal(PEER_TIMEOUT, x->e[0].result);
    loop_until(&x->loop, &c.closed);
}

/* --- losses --- */

static void test_lost_in_flight(void **state)
{
    struct fixture *x = *state;
    x->server.on_request = script;
    start(x);
    call(x, 0, "Drop");
    call(x, 1, "Echo");
    wait_end(x, 0);
    assert_int_equal(PEER_LOST, x->e[0].result);
    assert_true(x->e[0].written);
    assert_false(x->e[0].dial_failed);
    wait_end(x, 1);
    assert_int_equal(PEER_ANSWER, x->e[1].result);
    assert_int_equal(2, x->server.n_seen); /* the lost request was not repeated */
}

static void test_idle_loss_and_next_call(void **state)
{
    struct fixture *x = *state;
    start(x);
    call(x, 0, "Echo");
    wait_end(x, 0);
    fake_server_drop_all(&x->server);
    while (the_peer(x)->state == PEER_READY)
        (void)uv_run(&x->loop, UV_RUN_ONCE);
    /* The last dial worked, so the call waits for the next one instead of failing. */
    call(x, 1, "Echo");
    wait_end(x, 1);
    assert_int_equal(PEER_ANSWER, x->e[1].result);
    assert_int_equal(2, x->server.accepted);
}

/* --- queues --- */

static void test_queue_full(void **state)
{
    struct fixture *x = *state;
    x->server.on_request = script;
    x->cfg.max_queue_per_peer = 2;
    start(x);
    call(x, 0, "Hold");
    loop_until_count(&x->loop, &x->server.n_seen, 1);
    call(x, 1, "Echo");
    call(x, 2, "Echo");
    call(x, 3, "Echo");
    wait_end(x, 3);
    assert_int_equal(PEER_OVERLOADED, x->e[3].result);
    assert_false(x->e[3].written);
    assert_string_equal("queue_full", x->e[3].error);
    release(x, 0);
    wait_end(x, 2);
    assert_int_equal(PEER_ANSWER, x->e[2].result);
}

static void test_lanes_in_order(void **state)
{
    struct fixture *x = *state;
    x->server.on_request = script;
    start(x);
    call(x, 0, "Hold");
    loop_until_count(&x->loop, &x->server.n_seen, 1);
    call_lane(x, 1, "Bulk", PEER_BULK, 0);
    call_lane(x, 2, "Normal", PEER_NORMAL, 0);
    call_lane(x, 3, "First", PEER_REALTIME, 0);
    call_lane(x, 4, "Second", PEER_REALTIME, 0);
    release(x, 0);
    wait_end(x, 1);
    assert_int_equal(5, x->server.n_seen);
    assert_string_equal("First", x->server.seen[1]);
    assert_string_equal("Second", x->server.seen[2]);
    assert_string_equal("Normal", x->server.seen[3]);
    assert_string_equal("Bulk", x->server.seen[4]);
}

static void test_unused_peer_makes_room(void **state)
{
    struct fixture *x = *state;
    struct fake_server other;
    fake_server_start(&other, &x->loop, "server3");
    x->cfg.max_peers = 1;
    x->server.on_request = script;
    start(x);
    call(x, 0, "Hold");
    loop_until_count(&x->loop, &x->server.n_seen, 1);
    x->e[1].calls++;
    peer_call(x->pool, "server3", other.url, PEER_REALTIME, "Echo", json_object(), 0, on_end,
              &x->e[1]);
    wait_end(x, 1);
    assert_int_equal(PEER_OVERLOADED, x->e[1].result); /* the only place is busy */
    release(x, 0);
    wait_end(x, 0);
    x->e[2].calls++;
    peer_call(x->pool, "server3", other.url, PEER_REALTIME, "Echo", json_object(), 0, on_end,
              &x->e[2]);
    wait_end(x, 2);
    assert_int_equal(PEER_ANSWER, x->e[2].result);
    while (x->server.conns) /* the unused connection was closed */
        (void)uv_run(&x->loop, UV_RUN_ONCE);
    close_pool(x);
    loop_until(&x->loop, &x->closed);
    fake_server_stop(&other);
}

/* --- the end --- */

static void test_close_ends_calls(void **state)
{
    struct fixture *x = *state;
    x->server.on_request = script;
    start(x);
    call(x, 0, "Never");
    call(x, 1, "Echo");
    loop_until_count(&x->loop, &x->server.n_seen, 1);
    struct peer_pool *pool = x->pool;
    x->in_call = true;
    close_pool(x);
    assert_false(x->closed);
    x->e[2].calls++;
    peer_call(pool, "server2", x->server.url, PEER_REALTIME, "Echo", json_object(), 0, on_end,
              &x->e[2]);
    x->in_call = false;
    loop_until(&x->loop, &x->closed);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(1, x->e[i].n);
        assert_int_equal(PEER_SHUTDOWN, x->e[i].result);
    }
    assert_true(x->e[0].written);
    assert_false(x->e[1].written);
    assert_false(x->e[2].written);
}

static void test_close_while_connecting(void **state)
{
    struct fixture *x = *state;
    start(x);
    call(x, 0, "Echo");
    close_pool(x);
    loop_until(&x->loop, &x->closed);
    assert_int_equal(PEER_SHUTDOWN, x->e[0].result);
}

static void close_on_answer(void *ctx, const struct peer_answer *a)
{
    struct fixture *x = ctx;
    assert_int_equal(PEER_ANSWER, a->result);
    close_pool(x);
}

static void test_close_from_a_callback(void **state)
{
    struct fixture *x = *state;
    start(x);
    peer_call(x->pool, "server2", x->server.url, PEER_REALTIME, "Echo", json_object(), 0,
              close_on_answer, x);
    call(x, 1, "Echo");
    loop_until(&x->loop, &x->closed);
    assert_int_equal(PEER_SHUTDOWN, x->e[1].result);
}

int main(void)
{
    log_setup("test", LOG_FORMAT_LOGFMT, LOG_LEVEL_ERROR);
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_hello_then_call),
        T(test_legacy_peer),
        T(test_wrong_login_is_a_failed_dial),
        T(test_hello_refused),
        T(test_hello_unanswered),
        T(test_nobody_listens_then_back),
        T(test_backoff_ends),
        T(test_urls_refused),
        T(test_caller_timeout_covers_the_dial),
        T(test_error_answer),
        T(test_answers_matched_by_id),
        T(test_pipelined_answers_out_of_order),
        T(test_timeout_drops_the_connection),
        T(test_waiting_behind_a_timeout_is_not_written),
        T(test_bytes_extend_the_wait),
        T(test_bytes_extend_it_to_the_callers_limit_only),
        T(test_lost_in_flight),
        T(test_idle_loss_and_next_call),
        T(test_queue_full),
        T(test_lanes_in_order),
        T(test_unused_peer_makes_room),
        T(test_close_ends_calls),
        T(test_close_while_connecting),
        T(test_close_from_a_callback),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
