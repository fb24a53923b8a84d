/*
 * Attempts at delivery: whole ones through a real pool against scripted servers.
 */
#include "delivery_fixture.h"

/* --- attempts --- */

static void test_what_is_called_and_recorded(void **state)
{
    struct fixture *x = *state;
    start(x, 10);
    x->task.n_routes = 1;
    attempt(x);
    loop_until_count(&x->loop, &x->reports, 1);
    assert_string_equal("ReceiveIncomingMessage", x->a.seen[0]);
    json_t *want =
        json_pack("{s:s, s:s}", "incomingBlobB64", "AAEC+vv8/Q==", "sourceServerLogin", "home");
    assert_true(json_equal(want, x->a.payload));
    json_decref(want);
    assert_int_equal(0, x->b.accepted);
    assert_int_equal(STORE_ATTEMPT_DELIVERED, x->store.last.outcome);
    assert_string_equal("server_a", x->store.via);
    assert_string_equal("", x->store.error);
    assert_string_equal("alice|bob|5|6|2", x->store.key);
    assert_int_equal(11, x->store.last.revision_time_ms);
    assert_int_equal(12, x->store.last.reencrypted_at_ms);
    assert_int_equal(13, x->store.last.row_version);
    assert_true(x->report.recorded);
    assert_int_equal(DM_STATE_DELIVERED, x->report.state);
    assert_int_equal(7, x->report.from.pts);
}

static void test_operation_of_each_type(void **state)
{
    struct fixture *x = *state;
    static const struct {
        enum dm_type type;
        const char *op, *field;
    } rows[] = {{DM_TEXT_IN, "ReceiveIncomingMessage", "incomingBlobB64"},
                {DM_RECEIPT_IN, "ReceiveIncomingMessage", "incomingBlobB64"},
                {DM_DELETE_BOTH, "DeleteMessage", "blobB64"},
                {DM_CLEAR_BOTH, "DeleteConversation", "blobB64"}};
    start(x, 10);
    x->task.n_routes = 1;
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        x->task.type = rows[i].type;
        attempt(x);
        loop_until_count(&x->loop, &x->reports, i + 1);
        assert_string_equal(rows[i].op, x->a.seen[i]);
        json_t *want =
            json_pack("{s:s, s:s}", rows[i].field, "AAEC+vv8/Q==", "sourceServerLogin", "home");
        assert_true(json_equal(want, x->a.payload));
        json_decref(want);
    }
}

static void test_first_success_decides(void **state)
{
    struct fixture *x = *state;
    start(x, 10);
    x->a.on_request = silent;
    attempt(x);
    loop_until_count(&x->loop, &x->reports, 1); /* although the other one is silent */
    loop_until_count(&x->loop, &x->a.n_seen, 1);
    assert_string_equal("server_b", x->store.via);
    assert_int_equal(DM_STATE_DELIVERED, x->report.state);
    /* The silent one ends later and changes nothing. */
    fake_answer(fake_server_conn(&x->a), x->a.seen[0], x->a.ids[0]);
    delivery_drain(x->delivery, on_idle, x);
    loop_until(&x->loop, &x->idle);
    assert_int_equal(1, x->store.n);
    assert_int_equal(1, x->reports);
}

static void test_success_after_failure(void **state)
{
    struct fixture *x = *state;
    x->no_directory = true;
    start(x, 10);
    x->a.on_request = unserved;
    attempt(x);
    loop_until_count(&x->loop, &x->reports, 1);
    assert_int_equal(STORE_ATTEMPT_DELIVERED, x->store.last.outcome);
    assert_string_equal("server_b", x->store.via);
    assert_string_equal("", x->store.error);
}

static void test_both_fail(void **state)
{
    struct fixture *x = *state;
    x->no_directory = true;
    start(x, 10);
    x->a.on_request = unserved;
    x->b.hello = FAKE_HELLO_REFUSE;
    attempt(x);
    loop_until_count(&x->loop, &x->reports, 1);
    assert_int_equal(STORE_ATTEMPT_FAILED, x->store.last.outcome);
    assert_string_equal("", x->store.via);
    assert_non_null(strstr(x->store.error, "server_a: answered 403 LOCAL_SERVER_NOT_ACCESS"));
    assert_non_null(strstr(x->store.error, "server_b: wrong_host"));
    assert_int_equal(DM_STATE_ACCEPTED, x->report.state);
}

static void test_one_try_among_busy_ones_counts(void **state)
{
    struct fixture *x = *state;
    start(x, 10);
    x->a.on_request = busy;
    x->b.hello = FAKE_HELLO_REFUSE;
    attempt(x);
    loop_until_count(&x->loop, &x->reports, 1);
    assert_int_equal(STORE_ATTEMPT_FAILED, x->store.last.outcome);
}

static void test_all_busy_gives_back(void **state)
{
    struct fixture *x = *state;
    start(x, 10);
    char ten[] = "{\"retryAfterMs\":10000}", three[] = "{\"retryAfterMs\":3000}";
    x->a.on_request = x->b.on_request = busy;
    x->a.ctx = ten;
    x->b.ctx = three;
    attempt(x);
    loop_until_count(&x->loop, &x->reports, 1);
    assert_int_equal(STORE_ATTEMPT_GIVEN_BACK, x->store.last.outcome);
    assert_int_equal(3000, x->store.last.retry_after_ms);
}

static void test_no_route_is_a_failed_attempt(void **state)
{
    struct fixture *x = *state;
    start(x, 10);
    x->task.n_routes = 0;
    attempt(x);
    loop_until_count(&x->loop, &x->reports, 1);
    assert_int_equal(STORE_ATTEMPT_FAILED, x->store.last.outcome);
    assert_string_equal("no_route", x->store.error);
}

static void test_deadline(void **state)
{
    struct fixture *x = *state;
    start(x, 10);
    x->a.on_request = x->b.on_request = silent;
    x->task.deadline_ms = 300;
    attempt(x);
    loop_until_count(&x->loop, &x->reports, 1);
    assert_int_equal(STORE_ATTEMPT_FAILED, x->store.last.outcome); /* both were written */
}

static void test_too_many_at_once_are_handed_over(void **state)
{
    struct fixture *x = *state;
    start(x, 1);
    x->a.on_request = silent;
    x->task.n_routes = 1;
    attempt(x);
    loop_until_count(&x->loop, &x->a.n_seen, 1);
    attempt(x);
    loop_until_count(&x->loop, &x->reports, 1);
    assert_int_equal(STORE_ATTEMPT_GIVEN_BACK, x->store.last.outcome);
    assert_int_equal(0, x->store.last.retry_after_ms);
    assert_int_equal(1, x->a.n_seen);
    fake_answer(fake_server_conn(&x->a), x->a.seen[0], x->a.ids[0]);
    loop_until_count(&x->loop, &x->reports, 2);
    assert_int_equal(STORE_ATTEMPT_DELIVERED, x->store.last.outcome);
    x->a.on_request = NULL;
    attempt(x); /* there is room again */
    loop_until_count(&x->loop, &x->reports, 3);
    assert_int_equal(STORE_ATTEMPT_DELIVERED, x->store.last.outcome);
}

static void test_lost_database(void **state)
{
    struct fixture *x = *state;
    start(x, 10);
    x->store.status = DB_UNAVAILABLE;
    attempt(x);
    loop_until_count(&x->loop, &x->reports, 1);
    assert_false(x->report.recorded);
    assert_int_equal(DM_STATE_ACCEPTED, x->report.state);
}

static void test_drain_hands_over(void **state)
{
    struct fixture *x = *state;
    start(x, 10);
    delivery_drain(x->delivery, on_idle, x);
    attempt(x);
    loop_until_count(&x->loop, &x->reports, 1);
    assert_int_equal(STORE_ATTEMPT_GIVEN_BACK, x->store.last.outcome);
    assert_int_equal(0, x->a.accepted);
    loop_until(&x->loop, &x->idle);
}

int main(void)
{
    log_setup("test", LOG_FORMAT_LOGFMT, LOG_LEVEL_ERROR);
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_what_is_called_and_recorded),
        T(test_operation_of_each_type),
        T(test_first_success_decides),
        T(test_success_after_failure),
        T(test_both_fail),
        T(test_one_try_among_busy_ones_counts),
        T(test_all_busy_gives_back),
        T(test_no_route_is_a_failed_attempt),
        T(test_deadline),
        T(test_too_many_at_once_are_handed_over),
        T(test_lost_database),
        T(test_drain_hands_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
