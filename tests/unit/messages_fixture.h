/*
 * What stands in for the rest of frontd when its message operations are tested: a store, a
 * directory, a pump and a delivery that the test answers by hand, and one caller. It defines their
 * functions, so that the real ones are not linked: for one source file of a program.
 */
#ifndef SHINE_TESTS_MESSAGES_FIXTURE_H
#define SHINE_TESTS_MESSAGES_FIXTURE_H

#include "delivery/delivery.h"
#include "frontd/due.h"
#include "frontd/frontd.h"
#include "frontd/ops.h"
#include "frontd/pump.h"
#include "frontd/session.h"
#include "store/profiles.h"
#include "store/tombstones.h"
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
    const char *key_known_of, *blocked, *partner; /* a server login each */
    bool limit_reached;
    char limit[128]; /* the one that was asked, "" = none */

    struct known_user alice, bob;
    bool directory_down;
    unsigned fetches, forgotten, refreshed;
    enum directory_result refresh_result;
    uint8_t refreshed_key[DM_KEY_BYTES];
    uint8_t old_seed[DM_KEY_BYTES]; /* of a key that alice had before */
    unsigned keys_asked;
    enum db_status keys_status;

    struct store_pair *pair; /* waiting for its verdict */
    struct store_incoming *incoming;
    struct store_tombstone *tombstone;

    delivery_cb attempt_cb; /* of the attempt under way */
    void *attempt_ctx;
    uint32_t attempt_deadline_ms;
    enum dm_type attempt_type;
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

void frontd_fail_directory(struct rpc_call *call, enum directory_result r)
{
    assert_true(directory_failed(r));
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

/* Believed, whoever it is. */
const char *frontd_source_of(struct rpc_call *call, const char *source_server_login)
{
    (void)call;
    if (t.peer)
        return t.peer;
    return source_server_login && *source_server_login ? source_server_login : NULL;
}

bool frontd_peer_key_known(const struct frontd *f, const char *server_login)
{
    (void)f;
    return t.key_known_of && strcmp(server_login, t.key_known_of) == 0;
}

bool frontd_is_partner(const struct frontd *f, const char *server_login)
{
    (void)f;
    return t.partner && strcmp(server_login, t.partner) == 0;
}

/* Answers like the real one; notes which limit was asked. */
bool frontd_within_limit(struct rpc_call *call, enum limit_kind kind, const char *key)
{
    (void)snprintf(t.limit, sizeof t.limit, "%s %s", kind == LIMIT_PEER ? "peer" : "address", key);
    if (t.limit_reached)
        rpc_fail_retry(call, RPC_RATE_LIMITED, NULL, 100);
    return !t.limit_reached;
}

const char *session_remote(const struct session *s)
{
    (void)s;
    return "192.0.2.1";
}

const char *session_login(const struct session *s)
{
    (void)s;
    return t.session_id ? "alice" : NULL;
}

bool frontd_caller_blocked(struct rpc_call *call, const char *source_server_login)
{
    (void)call;
    return t.blocked && ((t.peer && strcmp(t.peer, t.blocked) == 0) ||
                         strcmp(source_server_login, t.blocked) == 0);
}

/* The only key that alice had before. */
void store_get_keys(struct store *s, const char *login, store_keys_cb cb, void *ctx)
{
    uint8_t keys[2][DM_KEY_BYTES];
    (void)s;
    assert_string_equal(login, "alice");
    t.keys_asked++;
    memcpy(keys[0], t.alice.user.client_key, sizeof keys[0]);
    dm_public_key(t.old_seed, keys[1]);
    cb(ctx, t.keys_status, (const uint8_t(*)[DM_KEY_BYTES])keys, 2);
}

const char *session_id(const struct session *s)
{
    (void)s;
    return t.session_id;
}

static inline struct known_user *known(const char *login)
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

void directory_fetch_from(struct directory *d, const char *login, const char *sender,
                          directory_cb cb, void *ctx)
{
    (void)d;
    assert_string_equal(sender, t.peer ? t.peer : "");
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

void directory_refresh(struct directory *d, const char *login, directory_cb cb, void *ctx)
{
    (void)d;
    assert_string_equal(login, "alice");
    t.refreshed++;
    if (t.refresh_result == DIRECTORY_FOUND)
        memcpy(t.alice.user.client_key, t.refreshed_key, DM_KEY_BYTES);
    cb(ctx, t.refresh_result, t.refresh_result == DIRECTORY_FOUND ? &t.alice.user : NULL);
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

void store_apply_tombstone(struct store *s, struct store_tombstone *p)
{
    (void)s;
    assert_null(t.tombstone);
    t.tombstone = p;
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
    assert_int_equal(c.type, task->type);
    t.attempt_type = task->type;
    t.attempts++;
    t.attempt_cb = cb;
    t.attempt_ctx = ctx;
    t.attempt_deadline_ms = task->deadline_ms;
}

static inline char *next_told(void)
{
    assert_true(t.n_told < TOLD_MAX);
    return t.told[t.n_told++];
}

void due_tell(struct due *d)
{
    (void)d;
}

void pump_told_message(struct pump *p, const char *owner, const struct store_told *told,
                       const struct store_copy *copy, enum dm_state state)
{
    (void)p;
    if (told->pts == 0)
        return;
    const char *name = dm_state_name(state);
    (void)snprintf(next_told(), sizeof t.told[0], "%s %lld type %d %s", owner, (long long)told->pts,
                   (int)copy->c.type, name ? name : "-");
}

void pump_told_state(struct pump *p, const char *owner, const struct store_told *told,
                     const char *outgoing_key, enum dm_state state)
{
    (void)p;
    if (told->pts == 0)
        return;
    assert_int_equal(outgoing_key[strlen(outgoing_key) - 1], '2');
    (void)snprintf(next_told(), sizeof t.told[0], "%s %lld state %s", owner, (long long)told->pts,
                   dm_state_name(state));
}

/* --- the caller --- */

static inline void take_answer(struct rpc_conn *c, const char *text, size_t len)
{
    (void)c;
    json_decref(t.answer);
    t.answer = json_loadb(text, len, 0, NULL);
    assert_non_null(t.answer);
    t.answers++;
    t.answered = true;
}

static inline void call_ended(struct rpc_conn *c)
{
    (void)c;
}

static const uint8_t alice_seed[DM_KEY_BYTES] = {1}, other_seed[DM_KEY_BYTES] = {2};

/* One signed container from alice to bob, in Base64. */
static inline char *container_of(enum dm_type type, int64_t revision, const uint8_t *body,
                                 size_t body_len, const uint8_t *seed)
{
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
    return b64;
}

/* The same with a body of zeros: a text. */
static inline char *container(enum dm_type type, int64_t revision, size_t body_len,
                              const uint8_t *seed)
{
    uint8_t *body = xcalloc(1, body_len);
    char *b64 = container_of(type, revision, body, body_len, seed);
    free(body);
    return b64;
}

static inline void call(const char *op, json_t *payload)
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

static inline void send_pair(char *in, char *out, const char *source)
{
    json_t *p = json_pack("{s:s, s:s}", "incomingBlobB64", in, "outgoingBlobB64", out);
    if (source)
        (void)json_object_set_new(p, "sourceServerLogin", json_string(source));
    free(in);
    free(out);
    call("SendMessagePair", p);
}

static inline void send_plain(void)
{
    send_pair(container(DM_TEXT_IN, 0, 5, alice_seed), container(DM_TEXT_OUT, 0, 5, alice_seed),
              NULL);
}

static inline const char *answer_text(const char *name)
{
    const char *s = json_string_value(json_object_get(t.answer, name));
    return s ? s : "";
}

static inline const char *answered_state(void)
{
    return json_string_value(
        json_object_get(json_object_get(t.answer, "payload"), "deliveryState"));
}

static inline void assert_refused(const char *error)
{
    assert_true(t.answered);
    assert_string_equal(answer_text("error"), error);
    assert_null(t.pair);
    assert_null(t.incoming);
    assert_null(t.tombstone);
}

/* The store's verdict on the waiting pair: stored, state as given. */
static inline void stored(enum dm_state state, bool attempt)
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

static inline void report(enum dm_state state, bool recorded)
{
    struct delivery_report r = {
        .state = state, .recorded = recorded, .from = {.pts = state == DM_STATE_DELIVERED ? 5 : 0}};
    t.attempt_cb(t.attempt_ctx, &r);
    t.attempt_cb = NULL;
}

static inline int setup(void **state)
{
    (void)state;
    static const struct rpc_op ops[] = {
        {"SendMessagePair", 0, frontd_send_message_pair},
        {"ReceiveIncomingMessage", 0, frontd_receive_incoming_message},
        {"DeleteMessage", 0, frontd_delete_message},
        {"DeleteConversation", 0, frontd_delete_conversation},
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

static inline int teardown(void **state)
{
    (void)state;
    assert_null(t.attempt_cb);
    json_decref(t.answer);
    rpc_table_free(t.ops);
    loop_finish(&t.loop); /* every operation has let go of its timer */
    return 0;
}

#endif
