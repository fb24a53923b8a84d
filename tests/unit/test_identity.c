/*
 * Whom a connection is believed to be, while the operator changes what is known of servers.
 */
#include "frontd/identity.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sodium.h>

#include "frontd/session_internal.h"
#include "peer/auth.h"
#include "util/base64.h"
#include "util/mem.h"

/* --- the partners, and the rest of a session --- */

static struct {
    struct partner row;
    bool table_read;
    const char *logged_in;
    struct frontd f;
    struct sessions all;
    struct session s;
} t;

static struct rpc_call *const the_call = (struct rpc_call *)&t;
static const char NONCE[] = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
static const char HOST[] = "us.example:443";
static uint8_t seeds[2][DM_KEY_BYTES], keys[2][DM_KEY_BYTES];

bool partners_loaded(const struct partners *p)
{
    (void)p;
    return t.table_read;
}

const struct partner *partners_find(const struct partners *p, const char *login)
{
    (void)p;
    return strcmp(login, t.row.login) == 0 ? &t.row : NULL;
}

struct session *session_of(const struct rpc_call *call)
{
    assert_ptr_equal(call, the_call);
    return &t.s;
}

void *rpc_server(const struct rpc_call *call)
{
    assert_ptr_equal(call, the_call);
    return &t.f;
}

const char *session_login(const struct session *s)
{
    (void)s;
    return t.logged_in;
}

void session_close(struct session *s, int code, const char *reason)
{
    (void)s;
    (void)reason;
    assert_int_equal(code, SESSION_CLOSE_REFUSED);
}

static void open_session(enum peer_trust trust)
{
    char *error = NULL;
    const struct peer_auth_config c = {
        .trust = trust, .key_file = "", .url = "wss://us.example/ws", .aliases = ""};
    peer_auth_free(t.f.auth);
    t.f.auth = peer_auth_new(&c, &error);
    assert_non_null(t.f.auth);
    peer_auth_use(t.f.auth, (struct partners *)&t.row);
    t.f.server_login = "us";
    t.all.f = &t.f;
    t.s.all = &t.all;
}

static int setup(void **state)
{
    (void)state;
    memset(&t, 0, sizeof t);
    t.table_read = true;
    open_session(PEER_TRUST_KNOWN);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    identity_free(&t.s);
    peer_auth_free(t.f.auth);
    return 0;
}

/* --- the operator --- */

static void row(const char *login, unsigned n_keys)
{
    t.row = (struct partner){.n_keys = n_keys};
    (void)snprintf(t.row.login, sizeof t.row.login, "%s", login);
    for (unsigned i = 0; i < n_keys; i++)
        memcpy(t.row.keys[i], keys[i], DM_KEY_BYTES);
}

/* --- the caller --- */

static bool prove(const char *login, const uint8_t *seed)
{
    session_set_peer(&t.s, login);
    const struct peer_meeting m = {.dialler = login,
                                   .answerer = "us",
                                   .nonce = NONCE,
                                   .challenge = identity_challenge(&t.s, NONCE, HOST),
                                   .host = HOST};
    char proof[PEER_PROOF_TEXT + 1];
    peer_proof_make(PEER_SIDE_DIAL, &m, seed, proof);
    return identity_prove(&t.s, login, NONCE, HOST, proof);
}

static const char *source(const char *named)
{
    const char *s = frontd_source_of(the_call, named);
    return s ? s : "nobody";
}

/* --- tests --- */

static void nobody_says_nothing(void **state)
{
    (void)state;
    assert_null(session_peer(&t.s));
    assert_false(session_peer_believed(&t.s));
    assert_string_equal(source(NULL), "nobody");
    assert_string_equal(source(""), "nobody");
    assert_string_equal(source("Not A Login"), "nobody");
    assert_string_equal(source("them"), "them");
    t.logged_in = "alice";
    assert_string_equal(source("them"), "nobody");
}

static void nothing_is_believed_before_the_table_is_read(void **state)
{
    (void)state;
    t.table_read = false;
    for (enum peer_trust trust = PEER_TRUST_PROOF; trust <= PEER_TRUST_WORD; trust++) {
        open_session(trust);
        session_set_peer(&t.s, "them");
        assert_string_equal(session_peer(&t.s), "them");
        assert_string_equal(source("them"), "nobody");
        identity_forget(&t.s);
        assert_string_equal(source("them"), "nobody");
        assert_true(frontd_peer_key_known(&t.f, "them"));
    }
}

static void keys_count_as_they_are_now(void **state)
{
    (void)state;
    assert_true(prove("them", seeds[1])); /* no key is known yet */
    assert_false(session_peer_proven(&t.s));
    assert_true(session_peer_believed(&t.s));
    row("them", 1); /* the operator adds another one */
    assert_false(session_peer_proven(&t.s));
    assert_string_equal(source("them"), "nobody");
    row("them", 2); /* and this one */
    assert_true(session_peer_proven(&t.s));
    assert_string_equal(source(NULL), "them");
    row("them", 1); /* and takes it away */
    assert_false(session_peer_believed(&t.s));
    row("them", 2);
    assert_true(session_peer_believed(&t.s));
    t.row.blocked = true;
    assert_false(session_peer_believed(&t.s));
    assert_true(frontd_caller_blocked(the_call, ""));
    t.row.blocked = false;
    session_set_peer(&t.s, "them"); /* a new hello */
    assert_false(session_peer_believed(&t.s));
}

static void what_each_mode_believes(void **state)
{
    (void)state;
    row("keyed", 1);
    static const struct {
        enum peer_trust trust;
        bool keyed, other, proven;
    } cases[] = {{PEER_TRUST_PROOF, false, false, true},
                 {PEER_TRUST_KNOWN, false, true, true},
                 {PEER_TRUST_WORD, true, true, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        open_session(cases[i].trust);
        identity_forget(&t.s);
        assert_int_equal(frontd_source_of(the_call, "keyed") != NULL, cases[i].keyed);
        assert_int_equal(frontd_source_of(the_call, "other") != NULL, cases[i].other);
        session_set_peer(&t.s, "keyed");
        assert_int_equal(session_peer_believed(&t.s), cases[i].keyed);
        session_set_peer(&t.s, "other");
        assert_int_equal(session_peer_believed(&t.s), cases[i].other);
        assert_true(prove("keyed", seeds[0]));
        assert_int_equal(session_peer_believed(&t.s), cases[i].proven);
        session_set_peer(&t.s, "us");
        assert_false(session_peer_believed(&t.s));
    }
}

static void a_wrong_proof_makes_nobody(void **state)
{
    (void)state;
    row("them", 1);
    assert_false(prove("them", seeds[1]));
    assert_null(session_peer(&t.s));
    /* No challenge, and one that is used up. */
    session_set_peer(&t.s, "them");
    assert_false(identity_prove(&t.s, "them", NONCE, HOST, ""));
    assert_null(session_peer(&t.s));
    assert_true(prove("them", seeds[0]));
    char proof[PEER_PROOF_TEXT + 1];
    base64_encode((const uint8_t[DM_SIG_BYTES]){0}, DM_SIG_BYTES, proof);
    assert_false(identity_prove(&t.s, "them", NONCE, HOST, proof));
    assert_null(session_peer(&t.s));
    identity_refuse(&t.s);
}

static void challenges_differ(void **state)
{
    (void)state;
    char first[PEER_NONCE_TEXT + 1];
    session_set_peer(&t.s, "them");
    (void)snprintf(first, sizeof first, "%s", identity_challenge(&t.s, NONCE, HOST));
    session_set_peer(&t.s, "them");
    assert_string_not_equal(first, identity_challenge(&t.s, NONCE, HOST));
}

int main(void)
{
    if (sodium_init() < 0)
        return 1;
    for (int i = 0; i < 2; i++) {
        memset(seeds[i], i + 1, DM_KEY_BYTES);
        dm_public_key(seeds[i], keys[i]);
    }
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(nobody_says_nothing),        T(nothing_is_believed_before_the_table_is_read),
        T(keys_count_as_they_are_now), T(what_each_mode_believes),
        T(a_wrong_proof_makes_nobody), T(challenges_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
