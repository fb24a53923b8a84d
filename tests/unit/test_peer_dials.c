/*
 * Calls that wait for a dial of their own, probes of peers that make contact, shares of lanes, and
 * what is told about failures.
 */
#include "peer_fixture.h"

#include "peer/reason.h"
#include "util/clock.h"
#include "util/log.h"

static void call_waiting(struct fixture *x, unsigned i)
{
    const struct peer_request r = {.login = "server2",
                                   .url = x->server.url,
                                   .flags = PEER_WAIT_DIAL,
                                   .op = "Echo",
                                   .payload = json_object()};
    x->e[i].calls++;
    x->in_call = true;
    peer_request(x->pool, &r, on_end, &x->e[i]);
    x->in_call = false;
}

/* One failed dial, and a minute until the next one. */
static void fail_once(struct fixture *x)
{
    x->server.hello = FAKE_HELLO_REFUSE;
    start(x);
    call(x, 0, "Echo");
    wait_end(x, 0);
    assert_int_equal(PEER_UNREACHABLE, x->e[0].result);
    the_peer(x)->backoff.step = 20;
    peer_set_state(the_peer(x), PEER_BACKOFF);
}

/* As if the last dial had begun then. */
static void dialled_ago(struct fixture *x, int64_t ms)
{
    the_peer(x)->dial_ms = clock_mono_ms() - ms;
}

/* --- PEER_WAIT_DIAL --- */

static void test_one_dial_for_all_that_wait(void **state)
{
    struct fixture *x = *state;
    fail_once(x);
    assert_true(peer_pool_state(x->pool, "server2", x->server.url).down);
    dialled_ago(x, 6000);
    x->server.hello = FAKE_HELLO_OK;
    call(x, 1, "Echo"); /* is content with the last dial */
    for (unsigned i = 2; i <= 4; i++)
        call_waiting(x, i);
    wait_end(x, 1);
    assert_int_equal(PEER_UNREACHABLE, x->e[1].result);
    for (unsigned i = 2; i <= 4; i++) {
        wait_end(x, i);
        assert_int_equal(PEER_ANSWER, x->e[i].result);
    }
    assert_int_equal(2, x->server.accepted);
    assert_false(peer_pool_state(x->pool, "server2", x->server.url).down);
}

static void test_its_own_dial_ends_it(void **state)
{
    struct fixture *x = *state;
    fail_once(x);
    dialled_ago(x, 6000);
    call_waiting(x, 1);
    call_waiting(x, 2);
    wait_end(x, 1);
    wait_end(x, 2);
    assert_int_equal(PEER_UNREACHABLE, x->e[1].result);
    assert_true(x->e[1].dial_failed);
    assert_int_equal(2, x->server.accepted); /* 2 was one dial for both */
}

static void test_a_dial_under_way_does_not_count(void **state)
{
    struct fixture *x = *state;
    x->server.hello = FAKE_HELLO_REFUSE;
    start(x);
    call(x, 0, "Echo");
    while (!the_peer(x)->link)
        (void)uv_run(&x->loop, UV_RUN_ONCE);
    call(x, 1, "Echo");
    call_waiting(x, 2);
    wait_end(x, 1);
    assert_int_equal(PEER_UNREACHABLE, x->e[1].result);
    assert_int_equal(0, x->e[2].n);
    x->server.hello = FAKE_HELLO_OK;
    wait_end(x, 2); /* by the back-off, half a second at most */
    assert_int_equal(PEER_ANSWER, x->e[2].result);
    assert_int_equal(2, x->server.accepted);
}

static void test_dials_for_it_are_paced(void **state)
{
    struct fixture *x = *state;
    fail_once(x);
    dialled_ago(x, 4800);
    int64_t begun = clock_mono_ms();
    call_waiting(x, 1);
    call_waiting(x, 2);
    wait_end(x, 1);
    assert_in_range(clock_mono_ms() - begun, 150, 4000); /* at 5 s after the last one */
    dialled_ago(x, 0);
    x->e[3].calls++;
    const struct peer_request r = {.login = "server2",
                                   .url = x->server.url,
                                   .flags = PEER_WAIT_DIAL,
                                   .op = "Echo",
                                   .payload = json_object(),
                                   .timeout_ms = 100};
    the_peer(x)->backoff.step = 20;
    peer_set_state(the_peer(x), PEER_BACKOFF);
    peer_request(x->pool, &r, on_end, &x->e[3]);
    wait_end(x, 3); /* nothing was tried */
    assert_int_equal(PEER_TIMEOUT, x->e[3].result);
    assert_false(x->e[3].written || x->e[3].dial_failed);
    assert_int_equal(2, x->server.accepted);
}

/* --- contact from the other side --- */

static void test_a_probe_for_who_was_heard_from(void **state)
{
    struct fixture *x = *state;
    fail_once(x);
    peer_pool_heard_from(x->pool, "server3");
    loop_for(&x->loop, 30);
    assert_int_equal(1, x->server.accepted);
    for (int i = 0; i < 20; i++) {
        peer_pool_heard_from(x->pool, "server2");
        loop_for(&x->loop, 10);
    }
    assert_int_equal(2, x->server.accepted);     /* one, however often */
    assert_true(the_peer(x)->backoff.step > 20); /* and it counted as a failure */
    assert_true(peer_pool_state(x->pool, "server2", x->server.url).down);
    the_peer(x)->probe_ms -= 30000;
    x->server.hello = FAKE_HELLO_OK;
    peer_pool_heard_from(x->pool, "server2");
    while (!peer_pool_state(x->pool, "server2", x->server.url).connected)
        (void)uv_run(&x->loop, UV_RUN_ONCE);
    assert_int_equal(3, x->server.accepted);
}

/* --- lanes --- */

enum { MANY = 40, MANY_PEERS = 25 };

static void ignore_end(void *ctx, const struct peer_answer *a)
{
    (void)a;
    ++*(unsigned *)ctx;
}

static void test_no_lane_starves(void **state)
{
    struct fixture *x = *state;
    unsigned ended = 0;
    x->server.on_request = script;
    start(x);
    call(x, 0, "Hold");
    loop_until_count(&x->loop, &x->server.n_seen, 1);
    call_lane(x, 1, "Bulk", PEER_BULK, 0);
    call_lane(x, 2, "Normal", PEER_NORMAL, 0);
    call_lane(x, 3, "Bulk", PEER_BULK, 0);
    for (int i = 0; i < MANY; i++)
        peer_call(x->pool, "server2", x->server.url, PEER_REALTIME, "Echo", json_object(), 0,
                  ignore_end, &ended);
    release(x, 0);
    loop_until_count(&x->loop, &ended, MANY);
    wait_end(x, 3);
    unsigned at[3], n = 0;
    for (unsigned i = 1; i < x->server.n_seen && n < 3; i++)
        if (strcmp(x->server.seen[i], "Echo") != 0)
            at[n++] = i;
    assert_int_equal(3, n);
    assert_string_equal("Normal", x->server.seen[at[0]]);
    assert_in_range(at[0], 7, 9);
    assert_in_range(at[1], 8, 10);
    assert_in_range(at[2], at[1] + 7, at[1] + 9);
}

static void test_each_lane_has_a_place_in_flight(void **state)
{
    struct fixture *x = *state;
    x->server.on_request = script;
    start(x);
    call(x, 0, "Echo");
    wait_end(x, 0);
    the_peer(x)->max_in_flight = 8; /* as if both sides listed `pipelining` */
    for (unsigned i = 1; i <= 8; i++)
        call_lane(x, i, "Hold", PEER_BULK, 0);
    loop_until_count(&x->loop, &x->server.n_seen, 7);
    assert_int_equal(6, the_peer(x)->n_flight);
    call(x, 9, "Echo"); /* and does not wait for one of them */
    wait_end(x, 9);
    call_lane(x, 10, "Echo", PEER_NORMAL, 0);
    wait_end(x, 10);
    assert_int_equal(6, the_peer(x)->n_flight);
    for (unsigned i = 1; i <= 6; i++)
        release(x, i);
    loop_until_count(&x->loop, &x->server.n_seen, 11);
    release(x, 9);
    release(x, 10);
    wait_end(x, 8);
}

/* --- reasons --- */

static void test_no_answer_and_another_id(void **state)
{
    struct fixture *x = *state;
    x->server.on_request = script;
    x->cfg.request_timeout_ms = 150;
    start(x);
    call(x, 0, "Never");
    wait_end(x, 0);
    assert_string_equal("no_answer", the_peer(x)->last_error);
    call(x, 1, "Never");
    loop_until_count(&x->loop, &x->server.n_seen, 2);
    fake_answer(fake_server_conn(&x->server), "Never", "somebody's");
    wait_end(x, 1);
    assert_string_equal("answered_another_id", the_peer(x)->last_error);
    assert_int_equal(1, the_peer(x)->count.late);
}

static void test_a_peer_that_hangs_up_after_each_answer(void **state)
{
    struct fixture *x = *state;
    x->server.on_request = script;
    start(x);
    for (unsigned i = 0; i < 5; i++) {
        call(x, i, "Echo");
        wait_end(x, i);
        assert_int_equal(PEER_ANSWER, x->e[i].result); /* served, at the pace of the first step */
        fake_server_drop_all(&x->server);
        while (the_peer(x)->state == PEER_READY)
            (void)uv_run(&x->loop, UV_RUN_ONCE);
        assert_string_equal("closed_after_one_request", the_peer(x)->last_error);
        assert_true(the_peer(x)->backoff.step <= 1);
    }
    assert_int_equal(5, x->server.accepted);
}

static void test_words(void **state)
{
    (void)state;
    static const struct {
        enum ws_end end;
        const char *text, *word;
    } cases[] = {
        {WS_END_UNREACHABLE, "lookup: unknown node or service", "unreachable_unknown_host"},
        {WS_END_UNREACHABLE, "connect: connection refused", "unreachable_refused"},
        {WS_END_UNREACHABLE, "connect: no route to host", "unreachable"},
        {WS_END_TLS, "certificate refused: certificate has expired", "tls_certificate_expired"},
        {WS_END_TLS, "certificate refused: hostname mismatch", "tls_certificate_for_another_name"},
        {WS_END_TLS, "certificate refused: self-signed certificate", "tls_certificate_not_trusted"},
        {WS_END_TLS, "TLS handshake: wrong version number", "tls_handshake_failed"},
        {WS_END_LOST, "TLS handshake: connection reset by peer", "reset_in_tls_handshake"},
        {WS_END_LOST, "TLS handshake: end of stream", "closed_in_tls_handshake"},
        {WS_END_LOST, "HTTP upgrade: end of stream", "lost_before_upgrade"},
        {WS_END_LOST, "end of stream", "lost"},
        {WS_END_UPGRADE, "HTTP status 404", "upgrade_refused"},
        {WS_END_UPGRADE, "not HTTP", "upgrade_not_websocket"},
        {WS_END_TIMEOUT, "connect took too long", "connect_timeout"},
        {WS_END_TIMEOUT, "handshake took too long", "handshake_timeout"},
        {WS_END_TIMEOUT, "no answer to ping", "pong_timeout"},
        {WS_END_TIMEOUT, "anything", "timeout"},
        {WS_END_CLOSED, "anything", "closed"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(cases[i].word, peer_reason(cases[i].end, cases[i].text, false));
    assert_string_equal("address_refused", peer_reason(WS_END_UNREACHABLE, "connect: x", true));
}

/* --- many at once --- */

static void test_many_peers_are_dialled_in_turn(void **state)
{
    struct fixture *x = *state;
    unsigned ended = 0;
    start(x);
    for (unsigned i = 0; i < MANY_PEERS; i++) {
        char url[80];
        (void)snprintf(url, sizeof url, "%s%u", x->server.url, i); /* 404, each another peer */
        peer_call(x->pool, "server2", url, PEER_REALTIME, "Echo", json_object(), 0, ignore_end,
                  &ended);
    }
    int64_t begun = clock_mono_ms();
    loop_until_count(&x->loop, &ended, MANY_PEERS);
    assert_true(clock_mono_ms() - begun >= 1000); /* 20 in a second */
    assert_string_equal("upgrade_refused", the_peer(x)->last_error);
    assert_int_equal(MANY_PEERS, x->server.accepted);
}

int main(void)
{
    log_setup("test", LOG_FORMAT_LOGFMT, LOG_LEVEL_ERROR);
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_one_dial_for_all_that_wait),
        T(test_its_own_dial_ends_it),
        T(test_a_dial_under_way_does_not_count),
        T(test_dials_for_it_are_paced),
        T(test_a_probe_for_who_was_heard_from),
        T(test_no_lane_starves),
        T(test_each_lane_has_a_place_in_flight),
        T(test_no_answer_and_another_id),
        T(test_a_peer_that_hangs_up_after_each_answer),
        cmocka_unit_test(test_words),
        T(test_many_peers_are_dialled_in_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
