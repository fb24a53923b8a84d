/*
 * Sending and receiving messages: who is told what, and when the caller is answered. Under the
 * address sanitizer it also shows that an operation is freed once, whichever of its waits ends
 * last.
 */
#include "messages_fixture.h"

/* --- when the caller is answered --- */

static void test_delivered_here(void **state)
{
    (void)state;
    send_plain();
    assert_false(t.pair->from_server);
    assert_int_equal(t.pair->max_future_ms, 900000);
    assert_null(t.pair->session_id);
    stored(DM_STATE_DELIVERED, false);
    assert_true(t.answered);
    json_t *want =
        json_pack("{s:s, s:s, s:s, s:s, s:i, s:i}", "baseKey", "alice|bob|1000|7", "incomingKey",
                  "alice|bob|1000|7|1", "outgoingKey", "alice|bob|1000|7|2", "deliveryState",
                  "delivered", "deliveredWsSessions", 3, "deliveredWebPushSessions", 0);
    assert_true(json_equal(want, json_object_get(t.answer, "payload")));
    json_decref(want);
    assert_int_equal(t.n_told, 2); /* the recipient's first: in a note to self it is the lower */
    assert_string_equal(t.told[0], "bob 9 type 1 -");
    assert_string_equal(t.told[1], "alice 4 type 2 delivered");
    assert_int_equal(t.attempts, 0);
}

static void test_session_is_named_to_the_store(void **state)
{
    (void)state;
    t.session_id = "0123456789012345678901234567890123456789012";
    send_plain();
    assert_string_equal(t.pair->session_id, t.session_id);
    stored(DM_STATE_DELIVERED, false);
}

static void test_success_of_the_first_attempt_is_the_answer(void **state)
{
    (void)state;
    send_plain();
    stored(DM_STATE_ACCEPTED, true);
    assert_int_equal(t.attempt_deadline_ms, 27000);
    assert_false(t.answered);
    report(DM_STATE_DELIVERED, true);
    assert_true(t.answered);
    assert_string_equal(answered_state(), "delivered");
    assert_string_equal(t.told[1], "alice 5 state delivered");
}

static void test_failed_first_attempt_answers_accepted(void **state)
{
    (void)state;
    send_plain();
    stored(DM_STATE_ACCEPTED, true);
    report(DM_STATE_ACCEPTED, true);
    assert_string_equal(answered_state(), "accepted");
}

static void test_result_that_was_not_recorded_tells_nobody(void **state)
{
    (void)state;
    send_plain();
    stored(DM_STATE_ACCEPTED, true);
    report(DM_STATE_ACCEPTED, false);
    assert_string_equal(answered_state(), "accepted");
    assert_int_equal(t.n_told, 1);
}

static void test_budget_over_then_success(void **state)
{
    (void)state;
    send_plain();
    stored(DM_STATE_ACCEPTED, true);
    loop_until(&t.loop, &t.answered);
    assert_string_equal(answered_state(), "accepted");
    report(DM_STATE_DELIVERED, true); /* comes as an event only */
    assert_string_equal(t.told[1], "alice 5 state delivered");
    assert_int_equal(t.answers, 1);
}

static void test_repeat_answers_the_current_state(void **state)
{
    (void)state;
    static const struct {
        enum dm_state state;
        const char *name;
    } cases[] = {
        {DM_STATE_FAILED, "failed"}, {DM_STATE_ACCEPTED, "accepted"}, {DM_STATE_NONE, "accepted"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        send_plain();
        stored(cases[i].state, false);
        assert_string_equal(answered_state(), cases[i].name);
    }
    assert_int_equal(t.attempts, 0);
}

/* --- verdicts --- */

static void test_verdicts(void **state)
{
    (void)state;
    static const struct {
        enum db_status st;
        enum store_verdict verdict;
        const char *error, *message;
    } cases[] = {
        {DB_UNAVAILABLE, STORE_OK, "DB_UNAVAILABLE", ""},
        {DB_ERROR, STORE_OK, "INTERNAL_ERROR", ""},
        {DB_OK, STORE_NOT_SERVED, "LOCAL_SERVER_NOT_ACCESS_SERVER", NULL},
        {DB_OK, STORE_UNKNOWN_USER, "USER_NOT_FOUND", NULL},
        {DB_OK, STORE_TIME_AHEAD, "BAD_BLOB", "BAD_TIME"},
        {DB_OK, STORE_DELETED, "DELETED", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        send_plain();
        struct store_pair *p = t.pair;
        t.pair = NULL;
        p->verdict = cases[i].verdict;
        p->done(p, cases[i].st);
        assert_refused(cases[i].error);
        if (cases[i].message)
            assert_string_equal(answer_text("message"), cases[i].message);
    }
    assert_int_equal(t.n_told, 0);
}

/* --- ReceiveIncomingMessage --- */

static void receive(enum dm_type type)
{
    char *b64 = container(type, 0, 5, alice_seed);
    call("ReceiveIncomingMessage",
         json_pack("{s:s, s:s}", "incomingBlobB64", b64, "sourceServerLogin", "server_c"));
    free(b64);
}

static void test_receive(void **state)
{
    (void)state;
    receive(DM_TEXT_IN);
    struct store_incoming *p = t.incoming;
    t.incoming = NULL;
    p->verdict = STORE_OK;
    p->to.pts = 6;
    p->ws_sessions = 2;
    p->done(p, DB_OK);
    json_t *want =
        json_pack("{s:s, s:s, s:i, s:i}", "messageKey", "alice|bob|1000|7|1", "baseKey",
                  "alice|bob|1000|7", "deliveredWsSessions", 2, "deliveredWebPushSessions", 0);
    assert_true(json_equal(want, json_object_get(t.answer, "payload")));
    json_decref(want);
    assert_int_equal(t.n_told, 1);
    assert_string_equal(t.told[0], "bob 6 type 1 -");
}

static void test_receive_turns_the_authors_row(void **state)
{
    (void)state;
    receive(DM_TEXT_IN);
    struct store_incoming *p = t.incoming;
    t.incoming = NULL;
    p->verdict = STORE_OK;
    p->to.pts = 6;
    p->from.pts = 8; /* the author is served here too */
    p->done(p, DB_OK);
    assert_int_equal(t.n_told, 2);
    assert_string_equal(t.told[0], "bob 6 type 1 -");
    assert_string_equal(t.told[1], "alice 8 state delivered");
}

/* --- receipts --- */

static char *receipt(enum dm_type type, int64_t read_at_ms)
{
    uint8_t body[DM_RECEIPT_BODY];
    struct dm_receipt r = {.ref_time_ms = 900, .ref_nonce = 5, .read_at_ms = read_at_ms};
    return container_of(type, 0, body, dm_receipt_body(&r, body), alice_seed);
}

static void test_receipts_go_the_same_way(void **state)
{
    (void)state;
    send_pair(receipt(DM_RECEIPT_IN, 950), receipt(DM_RECEIPT_OUT, 950), NULL);
    stored(DM_STATE_ACCEPTED, true);
    assert_int_equal(t.attempt_type, DM_RECEIPT_IN);
    report(DM_STATE_ACCEPTED, true);
    assert_string_equal(answered_state(), "accepted");
    assert_int_equal(t.n_told, 1);
    assert_string_equal(t.told[0], "alice 4 type 4 accepted");
}

static void test_pairs_that_are_none(void **state)
{
    (void)state;
    send_pair(receipt(DM_RECEIPT_IN, 950), receipt(DM_RECEIPT_OUT, 951), NULL);
    assert_refused("PAIR_MISMATCH");
    send_pair(receipt(DM_RECEIPT_OUT, 950), receipt(DM_RECEIPT_IN, 950), NULL);
    assert_refused("PAIR_MISMATCH");
    send_pair(receipt(DM_RECEIPT_IN, 950), container(DM_TEXT_OUT, 0, 5, alice_seed), NULL);
    assert_refused("PAIR_MISMATCH");
}

static void test_receive_refused(void **state)
{
    (void)state;
    receive(DM_TEXT_OUT);
    assert_refused("BAD_MESSAGE_TYPE");
    receive(DM_TEXT_IN);
    struct store_incoming *p = t.incoming;
    t.incoming = NULL;
    p->verdict = STORE_NOT_SERVED;
    p->done(p, DB_OK);
    assert_refused("LOCAL_SERVER_NOT_ACCESS_SERVER");
    assert_int_equal(t.n_told, 0);
}

int main(void)
{
    if (sodium_init() < 0)
        return 1;
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_delivered_here),
        T(test_session_is_named_to_the_store),
        T(test_success_of_the_first_attempt_is_the_answer),
        T(test_failed_first_attempt_answers_accepted),
        T(test_result_that_was_not_recorded_tells_nobody),
        T(test_budget_over_then_success),
        T(test_repeat_answers_the_current_state),
        T(test_verdicts),
        T(test_receive),
        T(test_receive_turns_the_authors_row),
        T(test_receipts_go_the_same_way),
        T(test_pairs_that_are_none),
        T(test_receive_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
