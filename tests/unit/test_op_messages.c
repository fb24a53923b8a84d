/*
 * Sending and receiving messages in frontd, above a store, a directory and a delivery that the test
 * answers by hand: who is taken for a server, which key is asked for again, who is told what and
 * when the caller is answered. Run under the address sanitizer it also shows that an operation is
 * freed once, whichever of its waits ends last.
 */
#include "delivery/delivery.h"
#include "frontd/frontd.h"
#include "frontd/ops.h"
#include "frontd/pump.h"
#include "frontd/session.h"
#include "support_peer.h"
#include "util/base64.h"
#include "util/mem.h"

#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TOLD_MAX = 8 };

/* --- what stands in for the rest of the server --- */

struct known_user {
    struct directory_user user;
    bool cached;
};

static struct {
    struct frontd f;
    uv_loop_t loop;
    struct rpc_table *ops;
    struct rpc_conn conn;
    const char *peer, *session_id;

    struct known_user alice, bob;
    bool directory_down;
    unsigned fetches, forgotten;

    struct store_pair *pair; /* waiting for its verdict */
    struct store_incoming *incoming;

    delivery_cb attempt_cb; /* of the attempt under way */
    void *attempt_ctx;
    uint32_t attempt_deadline_ms;
    unsigned attempts;

    char told[TOLD_MAX][96];
    size_t n_told;

    json_t *answer; /* the last one */
    unsigned answers;
    bool answered; /* for loop_until() */
} t;

bool frontd_configured(struct rpc_call *call)
{
    (void)call;
    return true;
}

void frontd_fail_db(struct rpc_call *call, enum db_status st)
{
    rpc_fail(call, st == DB_UNAVAILABLE ? RPC_DB_UNAVAILABLE : RPC_INTERNAL_ERROR, NULL);
}

void frontd_fail_directory(struct rpc_call *call)
{
    rpc_fail(call, RPC_DIRECTORY_UNAVAILABLE, NULL);
}

struct session *session_of(const struct rpc_call *call)
{
    (void)call;
    return NULL;
}

const char *session_peer(const struct session *s)
{
    (void)s;
    return t.peer;
}

const char *session_id(const struct session *s)
{
    (void)s;
    return t.session_id;
}

static struct known_user *known(const char *login)
{
    if (strcmp(login, "alice") == 0)
        return &t.alice;
    return strcmp(login, "bob") == 0 ? &t.bob : NULL;
}

const struct directory_user *directory_peek(struct directory *d, const char *login)
{
    (void)d;
    const struct known_user *u = known(login);
    return u && u->cached ? &u->user : NULL;
}

void directory_fetch(struct directory *d, const char *login, directory_cb cb, void *ctx)
{
    (void)d;
    t.fetches++;
    struct known_user *u = known(login);
    if (t.directory_down) {
        cb(ctx, DIRECTORY_UNAVAILABLE, NULL);
    } else if (!u) {
        cb(ctx, DIRECTORY_NO_USER, NULL);
    } else {
        u->cached = true;
        cb(ctx, DIRECTORY_FOUND, &u->user);
    }
}

void directory_forget(struct directory *d, const char *login)
{
    (void)d;
    (void)login;
    t.forgotten++;
    /* What the table says now: the key that signs. */
    memcpy(t.alice.user.client_key, t.bob.user.client_key, DM_KEY_BYTES);
}

void store_accept_pair(struct store *s, struct store_pair *p)
{
    (void)s;
    assert_null(t.pair);
    t.pair = p;
}

void store_apply_incoming(struct store *s, struct store_incoming *p)
{
    (void)s;
    assert_null(t.incoming);
    t.incoming = p;
}

const char *dm_state_name(enum dm_state s)
{
    static const char *const names[] = {NULL, "accepted", "delivered", "failed"};
    return names[s];
}

void delivery_attempt(struct delivery *d, const struct delivery_task *task, delivery_cb cb,
                      void *ctx)
{
    (void)d;
    assert_string_equal(task->from_login, "alice");
    assert_int_equal(task->row_version, 77);
    assert_int_equal(task->n_routes, 1);
    assert_string_equal(task->routes[0].login, "server_b");
    struct dm_container c;
    assert_int_equal(dm_parse(task->blob, task->blob_len, &c), DM_OK);
    assert_int_equal(c.type, DM_TEXT_IN);
    t.attempts++;
    t.attempt_cb = cb;
    t.attempt_ctx = ctx;
    t.attempt_deadline_ms = task->deadline_ms;
}

static char *next_told(void)
{
    assert_true(t.n_told < TOLD_MAX);
    return t.told[t.n_told++];
}

void pump_told_message(struct pump *p, const char *owner, const struct store_told *told,
                       const struct store_copy *copy, enum dm_state state)
{
    (void)p;
    const char *name = dm_state_name(state);
    (void)snprintf(next_told(), sizeof t.told[0], "%s %lld type %d %s", owner, (long long)told->pts,
                   (int)copy->c.type, name ? name : "-");
}

void pump_told_state(struct pump *p, const char *owner, const struct store_told *told,
                     const char *outgoing_key, enum dm_state state)
{
    (void)p;
    assert_int_equal(outgoing_key[strlen(outgoing_key) - 1], '2');
    (void)snprintf(next_told(), sizeof t.told[0], "%s %lld state %s", owner, (long long)told->pts,
                   dm_state_name(state));
}

/* --- the caller --- */

static void take_answer(struct rpc_conn *c, const char *text, size_t len)
{
    (void)c;
    json_decref(t.answer);
    t.answer = json_loadb(text, len, 0, NULL);
    assert_non_null(t.answer);
    t.answers++;
    t.answered = true;
}

static void call_ended(struct rpc_conn *c)
{
    (void)c;
}

static const uint8_t alice_seed[DM_KEY_BYTES] = {1}, other_seed[DM_KEY_BYTES] = {2};

/* One signed container from alice to bob, in Base64. */
static char *container(enum dm_type type, int64_t revision, size_t body_len, const uint8_t *seed)
{
    uint8_t *body = xcalloc(1, body_len);
    struct dm_container c = {.type = type,
                             .from = "alice",
                             .to = "bob",
                             .time_ms = 1000,
                             .nonce = 7,
                             .revision_time_ms = revision,
                             .body = body,
                             .body_len = body_len};
    size_t len = dm_container_len(&c);
    uint8_t *blob = xmalloc(len);
    assert_int_equal(dm_build(&c, seed, blob), DM_OK);
    char *b64 = base64_encode_new(blob, len);
    free(blob);
    free(body);
    return b64;
}

static void call(const char *op, json_t *payload)
{
    json_t *root = json_pack("{s:s, s:s, s:o}", "op", op, "requestId", "r", "payload", payload);
    char *text = json_dumps(root, 0);
    struct rpc_request req;
    const char *message = NULL;
    enum rpc_error e = rpc_request_parse(text, strlen(text), &req, &message);
    t.answered = false;
    rpc_dispatch(t.ops, &t.conn, &req, e, message);
    free(text);
    json_decref(root);
}

static void send_pair(char *in, char *out, const char *source)
{
    json_t *p = json_pack("{s:s, s:s}", "incomingBlobB64", in, "outgoingBlobB64", out);
    if (source)
        (void)json_object_set_new(p, "sourceServerLogin", json_string(source));
    free(in);
    free(out);
    call("SendMessagePair", p);
}

static void send_plain(void)
{
    send_pair(container(DM_TEXT_IN, 0, 5, alice_seed), container(DM_TEXT_OUT, 0, 5, alice_seed),
              NULL);
}

static const char *answer_text(const char *name)
{
    const char *s = json_string_value(json_object_get(t.answer, name));
    return s ? s : "";
}

static const char *answered_state(void)
{
    return json_string_value(
        json_object_get(json_object_get(t.answer, "payload"), "deliveryState"));
}

static void assert_refused(const char *error)
{
    assert_true(t.answered);
    assert_string_equal(answer_text("error"), error);
    assert_null(t.pair);
    assert_null(t.incoming);
}

/* The store's verdict on the waiting pair: stored, state as given. */
static void stored(enum dm_state state, bool attempt)
{
    struct store_pair *p = t.pair;
    t.pair = NULL;
    assert_non_null(p);
    p->verdict = STORE_OK;
    p->state = state;
    p->from.pts = 4;
    p->to.pts = state == DM_STATE_DELIVERED ? 9 : 0;
    p->ws_sessions = 3;
    p->attempt = attempt;
    if (attempt) {
        p->row_version = 77;
        p->lease_ms = 30000;
        p->n_routes = 1;
        (void)snprintf(p->routes[0].login, sizeof p->routes[0].login, "server_b");
    }
    p->done(p, DB_OK);
}

static void report(enum dm_state state, bool recorded)
{
    struct delivery_report r = {.state = state, .recorded = recorded, .from = {.pts = 5}};
    t.attempt_cb(t.attempt_ctx, &r);
    t.attempt_cb = NULL;
}

static int setup(void **state)
{
    (void)state;
    static const struct rpc_op ops[] = {
        {"SendMessagePair", 0, frontd_send_message_pair},
        {"ReceiveIncomingMessage", 0, frontd_receive_incoming_message},
        {0}};
    memset(&t, 0, sizeof t);
    assert_int_equal(uv_loop_init(&t.loop), 0);
    t.f = (struct frontd){.loop = &t.loop,
                          .server_login = "server_a",
                          .max_future_ms = 900000,
                          .client_body_bytes = 1000,
                          .first_reply_budget_ms = 50};
    t.ops = rpc_table_new(ops);
    t.conn = (struct rpc_conn){.send = take_answer, .ended = call_ended, .server = &t.f};
    (void)snprintf(t.alice.user.login, sizeof t.alice.user.login, "alice");
    (void)snprintf(t.alice.user.servers[0], sizeof t.alice.user.servers[0], "server_a");
    (void)snprintf(t.alice.user.servers[1], sizeof t.alice.user.servers[1], "server_c");
    (void)snprintf(t.bob.user.login, sizeof t.bob.user.login, "bob");
    (void)snprintf(t.bob.user.servers[0], sizeof t.bob.user.servers[0], "server_b");
    dm_public_key(alice_seed, t.alice.user.client_key);
    dm_public_key(other_seed, t.bob.user.client_key);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    assert_null(t.attempt_cb);
    json_decref(t.answer);
    rpc_table_free(t.ops);
    loop_finish(&t.loop); /* every operation has let go of its timer */
    return 0;
}

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
    assert_string_equal(t.told[2], "alice 5 state delivered");
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
    assert_int_equal(t.n_told, 2);
}

static void test_budget_over_then_success(void **state)
{
    (void)state;
    send_plain();
    stored(DM_STATE_ACCEPTED, true);
    loop_until(&t.loop, &t.answered);
    assert_string_equal(answered_state(), "accepted");
    report(DM_STATE_DELIVERED, true); /* comes as an event only */
    assert_string_equal(t.told[2], "alice 5 state delivered");
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

/* --- users and keys --- */

static void test_unknown_users(void **state)
{
    (void)state;
    t.directory_down = true;
    send_plain();
    assert_refused("DIRECTORY_UNAVAILABLE");
    t.alice.cached = true; /* now the recipient cannot be asked for */
    send_plain();
    assert_refused("DIRECTORY_UNAVAILABLE");
}

static void test_replaced_key_is_read_again_once(void **state)
{
    (void)state;
    t.alice.cached = t.bob.cached = true;
    /* Signed by what the table says now, while an older key is remembered. */
    send_pair(container(DM_TEXT_IN, 0, 5, other_seed), container(DM_TEXT_OUT, 0, 5, other_seed),
              NULL);
    assert_int_equal(t.forgotten, 1);
    assert_int_equal(t.fetches, 1);
    assert_non_null(t.pair);
    stored(DM_STATE_DELIVERED, false);
    /* Signed by neither: read again, and refused. */
    send_plain();
    assert_int_equal(t.forgotten, 2);
    assert_refused("BAD_SIGNATURE");
}

static void test_fresh_key_is_not_read_again(void **state)
{
    (void)state;
    send_pair(container(DM_TEXT_IN, 0, 5, other_seed), container(DM_TEXT_OUT, 0, 5, other_seed),
              NULL);
    assert_refused("BAD_SIGNATURE");
    assert_int_equal(t.forgotten, 0);
    assert_int_equal(t.fetches, 2); /* author and recipient */
}

static void test_each_copy_must_be_signed(void **state)
{
    (void)state;
    send_pair(container(DM_TEXT_IN, 0, 5, alice_seed), container(DM_TEXT_OUT, 0, 5, other_seed),
              NULL);
    assert_refused("BAD_SIGNATURE");
    send_pair(container(DM_TEXT_IN, 0, 5, other_seed), container(DM_TEXT_OUT, 0, 5, alice_seed),
              NULL);
    assert_refused("BAD_SIGNATURE");
}

/* --- servers and clients --- */

static void send_mixed_revisions(const char *source)
{
    send_pair(container(DM_TEXT_IN, 2000, 5, alice_seed), container(DM_TEXT_OUT, 0, 5, alice_seed),
              source);
}

static void test_only_access_servers_are_believed(void **state)
{
    (void)state;
    static const char *const not_servers[] = {NULL, "", "server_x"};
    for (size_t i = 0; i < sizeof not_servers / sizeof *not_servers; i++) {
        send_mixed_revisions(not_servers[i]);
        assert_refused("PAIR_MISMATCH");
    }
    static const char *const servers[] = {"server_a", "server_b", "server_c"};
    for (size_t i = 0; i < sizeof servers / sizeof *servers; i++) {
        send_mixed_revisions(servers[i]);
        assert_non_null(t.pair);
        assert_true(t.pair->from_server);
        /* No result is passed between servers. */
        stored(DM_STATE_DELIVERED, false);
        assert_string_equal(answered_state(), "accepted");
    }
}

static void test_hello_makes_a_server(void **state)
{
    (void)state;
    t.peer = "server_x";
    send_mixed_revisions(NULL);
    assert_true(t.pair->from_server);
    stored(DM_STATE_FAILED, false);
    assert_string_equal(answered_state(), "accepted");
}

static void test_bodies(void **state)
{
    (void)state;
    send_pair(container(DM_TEXT_IN, 0, 1000, alice_seed),
              container(DM_TEXT_OUT, 0, 1000, alice_seed), NULL);
    stored(DM_STATE_DELIVERED, false);
    send_pair(container(DM_TEXT_IN, 0, 5, alice_seed), container(DM_TEXT_OUT, 0, 1001, alice_seed),
              NULL);
    assert_refused("PAYLOAD_TOO_LARGE");
    t.peer = "server_x";
    send_pair(container(DM_TEXT_IN, 0, 1001, alice_seed),
              container(DM_TEXT_OUT, 0, 1001, alice_seed), NULL);
    stored(DM_STATE_DELIVERED, false);
}

static void test_never_two_messages(void **state)
{
    (void)state;
    t.peer = "server_x"; /* not even from a server */
    send_pair(container(DM_TEXT_OUT, 0, 5, alice_seed), container(DM_TEXT_IN, 0, 5, alice_seed),
              NULL);
    assert_refused("PAIR_MISMATCH");
    send_pair(container(DM_TEXT_IN, 0, 5, alice_seed), container(DM_TEXT_IN, 0, 5, alice_seed),
              NULL);
    assert_refused("PAIR_MISMATCH");
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
        T(test_unknown_users),
        T(test_replaced_key_is_read_again_once),
        T(test_fresh_key_is_not_read_again),
        T(test_each_copy_must_be_signed),
        T(test_only_access_servers_are_believed),
        T(test_hello_makes_a_server),
        T(test_bodies),
        T(test_never_two_messages),
        T(test_receive),
        T(test_receive_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
