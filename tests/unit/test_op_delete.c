/*
 * Deleting: the parts that differ from sending (test_op_messages.c).
 */
#include "messages_fixture.h"

static char *tombstone(enum dm_type type)
{
    uint8_t body[DM_DELETE_BODY];
    struct dm_delete d = {.by_to = true, .ref_time_ms = 900, .ref_nonce = 5};
    struct dm_clear c = {.until_time_ms = 900};
    size_t n = type == DM_DELETE_BOTH || type == DM_DELETE_OWN ? dm_delete_body(&d, body)
                                                               : dm_clear_body(&c, body);
    return container_of(type, 0, body, n, alice_seed);
}

static void send_tombstone(const char *op, char *b64, const char *source)
{
    json_t *p = json_pack("{s:s, s:s*}", "blobB64", b64, "sourceServerLogin", source);
    free(b64);
    call(op, p);
}

/* The store's verdict on the waiting tombstone. */
static void applied(bool attempt)
{
    struct store_tombstone *p = t.tombstone;
    t.tombstone = NULL;
    assert_non_null(p);
    p->verdict = STORE_OK;
    p->state = DM_STATE_ACCEPTED;
    p->from.pts = 4;
    p->ws_sessions = 2;
    p->attempt = attempt;
    if (attempt) {
        p->row_version = 77;
        p->lease_ms = 30000;
        p->n_routes = 1;
        (void)snprintf(p->routes[0].login, sizeof p->routes[0].login, "server_b");
    }
    p->done(p, DB_OK);
}

static void test_delete_for_both(void **state)
{
    (void)state;
    static const struct {
        const char *op;
        enum dm_type type;
        const char *key, *told;
    } rows[] = {
        {"DeleteMessage", DM_DELETE_BOTH, "alice|bob|1000|7|5", "alice 4 type 5 -"},
        {"DeleteConversation", DM_CLEAR_BOTH, "alice|bob|1000|7|7", "alice 4 type 7 -"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        send_tombstone(rows[i].op, tombstone(rows[i].type), NULL);
        assert_false(t.tombstone->from_server);
        assert_int_equal(t.tombstone->max_future_ms, 900000);
        t.n_told = 0;
        applied(true);
        assert_false(t.answered);
        assert_int_equal(t.attempt_type, rows[i].type);
        assert_string_equal(t.told[0], rows[i].told);
        /* No state event of a tombstone: nobody is told. */
        struct delivery_report r = {.state = DM_STATE_DELIVERED, .recorded = true};
        delivery_cb cb = t.attempt_cb;
        t.attempt_cb = NULL;
        cb(t.attempt_ctx, &r);
        assert_int_equal(t.n_told, 1);
        json_t *want = json_pack("{s:s, s:s, s:s, s:i, s:i}", "baseKey", "alice|bob|1000|7",
                                 "outgoingKey", rows[i].key, "deliveryState", "delivered",
                                 "deliveredWsSessions", 2, "deliveredWebPushSessions", 0);
        assert_true(json_equal(want, json_object_get(t.answer, "payload")));
        json_decref(want);
    }
}

static void test_delete_for_the_author(void **state)
{
    (void)state;
    send_tombstone("DeleteMessage", tombstone(DM_DELETE_OWN), NULL);
    applied(false);
    assert_string_equal(answered_state(), "accepted");
    send_tombstone("DeleteConversation", tombstone(DM_CLEAR_OWN), NULL);
    applied(false);
    assert_string_equal(answered_state(), "accepted");
    assert_int_equal(t.attempts, 0);
}

static void test_from_a_server_nothing_is_told_of_the_state(void **state)
{
    (void)state;
    send_tombstone("DeleteMessage", tombstone(DM_DELETE_BOTH), "server_c");
    assert_true(t.tombstone->from_server);
    struct store_tombstone *p = t.tombstone;
    t.tombstone = NULL;
    p->verdict = STORE_OK;
    p->state = DM_STATE_DELIVERED;
    p->done(p, DB_OK);
    assert_string_equal(answered_state(), "accepted");
}

static void test_wrong_types(void **state)
{
    (void)state;
    static const enum dm_type tombstones[] = {DM_DELETE_BOTH, DM_DELETE_OWN, DM_CLEAR_BOTH,
                                              DM_CLEAR_OWN};
    for (size_t i = 0; i < 4; i++) {
        send_tombstone(i < 2 ? "DeleteConversation" : "DeleteMessage", tombstone(tombstones[i]),
                       NULL);
        assert_refused("BAD_MESSAGE_TYPE");
        send_pair(tombstone(tombstones[i]), tombstone(tombstones[i]), NULL);
        assert_refused("BAD_MESSAGE_TYPE");
    }
    send_tombstone("DeleteMessage", container(DM_TEXT_IN, 0, 5, alice_seed), NULL);
    assert_refused("BAD_MESSAGE_TYPE");
    send_tombstone("DeleteConversation", container(DM_TEXT_OUT, 0, 5, alice_seed), NULL);
    assert_refused("BAD_MESSAGE_TYPE");
}

static void test_verdicts(void **state)
{
    (void)state;
    send_tombstone("DeleteMessage", tombstone(DM_DELETE_BOTH), NULL);
    struct store_tombstone *p = t.tombstone;
    t.tombstone = NULL;
    p->verdict = STORE_NOT_SERVED;
    p->done(p, DB_OK);
    assert_refused("LOCAL_SERVER_NOT_ACCESS_SERVER");
    send_tombstone("DeleteMessage", tombstone(DM_DELETE_BOTH), NULL);
    p = t.tombstone;
    t.tombstone = NULL;
    p->done(p, DB_UNAVAILABLE);
    assert_refused("DB_UNAVAILABLE");
}

int main(void)
{
    if (sodium_init() < 0)
        return 1;
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_delete_for_both),
        T(test_delete_for_the_author),
        T(test_from_a_server_nothing_is_told_of_the_state),
        T(test_wrong_types),
        T(test_verdicts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
