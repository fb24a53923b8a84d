/*
 * Calls to another server: hello, dialling, answers.
 */
#include "peer_fixture.h"

#include <unistd.h>

#include "util/log.h"

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
    json_t *want = json_pack("{s:s, s:i, s:o}", "serverLogin", "server1", "protocolVersion", 1,
                             "capabilities", peer_capabilities(NULL));
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
    assert_string_equal("wrong_host", x->e[0].error);
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
    assert_string_equal("unreachable_refused", x->e[0].error);
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
    x->server.pipelining = true;
    x->cfg.max_in_flight_per_peer = 3;
    start(x);
    call(x, 0, "Echo");
    wait_end(x, 0);
    assert_true(peer_pool_lists(x->pool, "server2", x->server.url, "pipelining"));
    assert_false(peer_pool_lists(x->pool, "server2", x->server.url, "dm-sync"));
    assert_false(peer_pool_lists(x->pool, "server3", x->server.url, "pipelining"));
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
