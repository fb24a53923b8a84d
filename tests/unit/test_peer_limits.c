/*
 * Calls to another server: time limits, losses, queues, the end of a pool.
 */
#include "peer_fixture.h"

#include "util/clock.h"
#include "util/log.h"

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

/* --- silence --- */

static void test_pings_only_in_silence(void **state)
{
    struct fixture *x = *state;
    int64_t ping, pong;
    x->server.on_request = script;
    x->cfg.ping_idle_ms = 150;
    start(x);
    for (int64_t end = clock_mono_ms() + 400; clock_mono_ms() < end;) { /* useful traffic */
        call(x, 0, "Echo");
        wait_end(x, 0);
        loop_for(&x->loop, 10);
    }
    peer_link_ping_times(the_peer(x)->link, &ping, &pong);
    assert_int_equal(0, ping);
    do {
        loop_for(&x->loop, 10);
        peer_link_ping_times(the_peer(x)->link, &ping, &pong);
    } while (pong == 0);
    assert_true(ping > 0 && pong >= ping);
    assert_int_equal(PEER_READY, the_peer(x)->state);
    assert_int_equal(1, x->server.accepted);
}

static void test_no_pong_drops_the_connection(void **state)
{
    struct fixture *x = *state;
    x->server.on_request = script;
    x->cfg.ping_idle_ms = 80;
    x->cfg.pong_timeout_ms = 80;
    start(x);
    call(x, 0, "Hold");
    loop_until_count(&x->loop, &x->server.n_seen, 1);
    struct ws_conn *conn = fake_server_conn(&x->server);
    ws_pause(conn); /* as if its packets were swallowed */
    wait_end(x, 0);
    assert_int_equal(PEER_LOST, x->e[0].result); /* and did not wait for its own time limit */
    assert_true(x->e[0].written);
    assert_string_equal("pong_timeout", the_peer(x)->last_error);
    ws_close(conn, 1000, "");
    call(x, 1, "Echo");
    wait_end(x, 1);
    assert_int_equal(PEER_ANSWER, x->e[1].result);
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
        T(test_timeout_drops_the_connection),
        T(test_waiting_behind_a_timeout_is_not_written),
        T(test_bytes_extend_the_wait),
        T(test_bytes_extend_it_to_the_callers_limit_only),
        T(test_pings_only_in_silence),
        T(test_no_pong_drops_the_connection),
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
