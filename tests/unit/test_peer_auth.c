/*
 * Proofs of servers, and the hello as the dialler judges it, against answers made by hand.
 */
#include "peer/hello.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <sodium.h>

#include "util/base64.h"
#include "util/log.h"
#include "util/mem.h"

/* --- the partners: one row that the test fills --- */

static struct partner row;
static bool table_read;
static struct partners *const some_partners = (struct partners *)&row;

bool partners_loaded(const struct partners *p)
{
    (void)p;
    return table_read;
}

const struct partner *partners_find(const struct partners *p, const char *login)
{
    (void)p;
    return strcmp(login, row.login) == 0 ? &row : NULL;
}

/* --- proofs --- */

/* Made by PyNaCl: keys are the seeds 01…01 (alpha) and 02…02 (beta). */
static const char NONCE[] = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
static const char CHALLENGE[] = "ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8=";
static const char ANSWER_PROOF[] =
    "VseecUPIjnlBEDz9sU9FdBYvjBn3Br9nny5iJfEQR/rpF/uZ06jkymtfyjVHIzATTfZhvvebtK2XyPbNMqs3CQ==";
static const char DIAL_PROOF[] =
    "oAQjVGNvJRa6b8X0u2Ji005GT2tCen4wFi6o03enLen1tzI2QasZa2vg9Ab4+cPHLbt5Ng7F/fNwAYcmmo6VBg==";

static uint8_t alpha_seed[DM_KEY_BYTES], beta_seed[DM_KEY_BYTES];
static uint8_t alpha_key[DM_KEY_BYTES], beta_key[DM_KEY_BYTES];
static const struct peer_meeting meeting = {.dialler = "alpha",
                                            .answerer = "beta",
                                            .nonce = NONCE,
                                            .challenge = CHALLENGE,
                                            .host = "b.example:443"};

static bool fits(enum peer_side side, const struct peer_meeting *m, const char *proof,
                 const uint8_t *key)
{
    uint8_t sig[DM_SIG_BYTES];
    assert_true(base64_decode_exact(proof, sig, sizeof sig));
    return peer_proof_fits(side, m, sig, key);
}

static void proofs_are_those_of_the_document(void **state)
{
    (void)state;
    char proof[PEER_PROOF_TEXT + 1];
    peer_proof_make(PEER_SIDE_ANSWER, &meeting, beta_seed, proof);
    assert_string_equal(proof, ANSWER_PROOF);
    peer_proof_make(PEER_SIDE_DIAL, &meeting, alpha_seed, proof);
    assert_string_equal(proof, DIAL_PROOF);
    assert_true(fits(PEER_SIDE_ANSWER, &meeting, ANSWER_PROOF, beta_key));
    assert_true(fits(PEER_SIDE_DIAL, &meeting, DIAL_PROOF, alpha_key));
}

static void a_proof_fits_nothing_else(void **state)
{
    (void)state;
    assert_false(fits(PEER_SIDE_ANSWER, &meeting, ANSWER_PROOF, alpha_key));
    /* Reflected. */
    assert_false(fits(PEER_SIDE_DIAL, &meeting, ANSWER_PROOF, beta_key));
    assert_false(fits(PEER_SIDE_ANSWER, &meeting, DIAL_PROOF, alpha_key));
    struct peer_meeting m[5] = {meeting, meeting, meeting, meeting, meeting};
    m[0].dialler = "gamma";
    m[1].answerer = "gamma";
    m[2].nonce = CHALLENGE;
    m[3].challenge = NONCE;
    m[4].host = "b.example:444";
    for (size_t i = 0; i < 5; i++) {
        assert_false(fits(PEER_SIDE_ANSWER, &m[i], ANSWER_PROOF, beta_key));
        assert_false(fits(PEER_SIDE_DIAL, &m[i], DIAL_PROOF, alpha_key));
    }
}

static void nonces(void **state)
{
    (void)state;
    char a[PEER_NONCE_TEXT + 1], b[PEER_NONCE_TEXT + 1];
    peer_nonce_make(a);
    peer_nonce_make(b);
    assert_string_not_equal(a, b);
    assert_true(peer_nonce_valid(a));
    assert_true(peer_nonce_valid("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"));
    static const char *const bad[] = {"", "AAEC", "x:y",
                                      "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh9"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(peer_nonce_valid(bad[i]));
}

static void hosts_of_urls(void **state)
{
    (void)state;
    static const char *const cases[][2] = {{"wss://B.Example/ws", "b.example:443"},
                                           {"wss://b.example:8443", "b.example:8443"},
                                           {"ws://127.0.0.1/ws", "127.0.0.1:80"},
                                           {"wss://[::1]/ws", "[::1]:443"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ws_url url;
        char host[PEER_HOST_MAX + 1];
        assert_true(ws_url_parse(cases[i][0], &url));
        peer_host_of(&url, host);
        assert_string_equal(host, cases[i][1]);
    }
}

/* --- configuration --- */

static char *file_of(const char *text)
{
    char *path = xstrdup("/tmp/shine-key-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    assert_int_equal(close(fd), 0);
    return path;
}

/* What is wrong with a configuration; "" if nothing is. */
static const char *refused(const char *key_text, const char *url, const char *aliases)
{
    static char message[512];
    char *error = NULL, *path = key_text ? file_of(key_text) : xstrdup("");
    const struct peer_auth_config c = {.key_file = path, .url = url, .aliases = aliases};
    struct peer_auth *a = peer_auth_new(&c, &error);
    (void)snprintf(message, sizeof message, "%s", error ? error : "");
    assert_int_equal(a == NULL, error != NULL);
    if (*path)
        assert_int_equal(unlink(path), 0);
    free(path);
    free(error);
    peer_auth_free(a);
    return message;
}

static void key_files(void **state)
{
    (void)state;
    char secret[64], good[64], wrong[64], text[256];
    base64_encode(alpha_seed, sizeof alpha_seed, secret);
    base64_encode(alpha_key, sizeof alpha_key, good);
    base64_encode(beta_key, sizeof beta_key, wrong);
    (void)snprintf(text, sizeof text, "secret %s\npublic %s\n", secret, good);
    assert_string_equal(refused(text, "", ""), "");
    (void)snprintf(text, sizeof text, "secret %s\npublic %s\n", secret, wrong);
    assert_non_null(strstr(refused(text, "", ""), "does not belong"));
    (void)snprintf(text, sizeof text, "public %s\n", good);
    assert_non_null(strstr(refused(text, "", ""), "no line \"secret BASE64\""));
    assert_non_null(strstr(refused("secret AAAA\n", "", ""), "no line \"secret BASE64\""));
    assert_non_null(strstr(refused("", "", ""), "server.keyFile: /tmp/shine-key-"));
    char *error = NULL;
    const struct peer_auth_config c = {.key_file = "/nowhere/key", .url = "", .aliases = ""};
    assert_null(peer_auth_new(&c, &error));
    assert_string_equal(error, "server.keyFile: /nowhere/key: No such file or directory");
    free(error);
}

static void addresses(void **state)
{
    (void)state;
    char *error = NULL;
    const struct peer_auth_config c = {.key_file = "",
                                       .url = "wss://a.example/ws",
                                       .aliases = " wss://Alias.example:444/ws,wss://[::1]:5 "};
    struct peer_auth *a = peer_auth_new(&c, &error);
    assert_non_null(a);
    assert_true(peer_auth_has_hosts(a));
    assert_true(peer_auth_is_our_host(a, "a.example:443"));
    assert_true(peer_auth_is_our_host(a, "alias.example:444"));
    assert_true(peer_auth_is_our_host(a, "[::1]:5"));
    assert_false(peer_auth_is_our_host(a, "alias.example:443"));
    assert_false(peer_auth_is_our_host(a, "A.example:443"));
    assert_false(peer_auth_is_our_host(a, ""));
    peer_auth_free(a);
    assert_non_null(strstr(refused(NULL, "", "wss://a/ws, b.example"), "server.urlAliases: \"b.e"));
}

/* --- the dialler --- */

struct dial {
    struct peer_auth *auth;
    struct peer_hello hello;
    const char *reason;
};

static struct dial dial_of(enum peer_trust trust, bool with_key)
{
    static const struct ws_url url = {.tls = true, .host = "b.example", .port = 443};
    char secret[64], text[128], *error = NULL;
    base64_encode(alpha_seed, sizeof alpha_seed, secret);
    (void)snprintf(text, sizeof text, "secret %s\n", secret);
    char *path = with_key ? file_of(text) : xstrdup("");
    const struct peer_auth_config c = {.trust = trust, .key_file = path, .url = "", .aliases = ""};
    struct dial d = {.auth = peer_auth_new(&c, &error)};
    assert_non_null(d.auth);
    if (with_key)
        assert_int_equal(unlink(path), 0);
    free(path);
    peer_auth_use(d.auth, some_partners);
    peer_hello_begin(&d.hello, d.auth, "alpha", "beta", &url);
    return d;
}

static int teardown(void **state)
{
    (void)state;
    row = (struct partner){0};
    table_read = true;
    return 0;
}

static void beta_has_key(const uint8_t key[DM_KEY_BYTES])
{
    (void)snprintf(row.login, sizeof row.login, "beta");
    memcpy(row.keys[row.n_keys++], key, DM_KEY_BYTES);
}

/* `payload` is consumed. */
static enum peer_hello_next take(struct dial *d, int status, const char *error, json_t *payload)
{
    const struct rpc_answer a = {.status = status, .error = error, .payload = payload};
    d->reason = "";
    enum peer_hello_next next = peer_hello_answered(&d->hello, &a, &d->reason);
    json_decref(payload);
    return next;
}

static json_t *accepted(const char *challenge, const char *proof)
{
    json_t *p = json_pack("{s:b, s:s, s:[s, s, i]}", "accepted", 1, "serverLogin", "beta",
                          "capabilities", "pipelining", "telepathy", 7);
    if (challenge)
        (void)json_object_set_new(p, "challenge", json_string(challenge));
    if (proof)
        (void)json_object_set_new(p, "proofB64", json_string(proof));
    return p;
}

/* An answer with the proof that `seed` makes for this dial. */
static json_t *proven(const struct dial *d, enum peer_side side, const uint8_t *seed)
{
    char proof[PEER_PROOF_TEXT + 1];
    struct peer_meeting m = meeting;
    m.nonce = d->hello.nonce;
    peer_proof_make(side, &m, seed, proof);
    return accepted(CHALLENGE, proof);
}

static void fails(struct dial d, int status, const char *error, json_t *payload, const char *reason)
{
    assert_int_equal(take(&d, status, error, payload), PEER_HELLO_FAILED);
    assert_string_equal(d.reason, reason);
    peer_auth_free(d.auth);
}

static void both_prove(void **state)
{
    (void)state;
    struct dial d = dial_of(PEER_TRUST_KNOWN, true);
    beta_has_key(alpha_key); /* it changes keys: two are valid */
    beta_has_key(beta_key);
    json_t *first = peer_hello_payload(&d.hello);
    assert_string_equal(json_string_value(json_object_get(first, "dialledHost")), "b.example:443");
    assert_string_equal(json_string_value(json_object_get(first, "helloNonce")), d.hello.nonce);
    assert_null(json_object_get(first, "proofB64"));
    assert_int_equal(take(&d, 200, "", proven(&d, PEER_SIDE_ANSWER, beta_seed)), PEER_HELLO_SECOND);
    assert_true(peer_capabilities_have(d.hello.capabilities, "pipelining"));
    assert_false(peer_capabilities_have(d.hello.capabilities, "dm-sync"));
    /* The second is the first with our proof. */
    json_t *second = peer_hello_payload(&d.hello);
    struct peer_meeting m = meeting;
    m.nonce = d.hello.nonce;
    assert_true(fits(PEER_SIDE_DIAL, &m, json_string_value(json_object_get(second, "proofB64")),
                     alpha_key));
    assert_int_equal(json_object_del(second, "proofB64"), 0);
    assert_true(json_equal(first, second));
    assert_int_equal(take(&d, 200, "", accepted(NULL, NULL)), PEER_HELLO_DONE);
    json_decref(first);
    json_decref(second);
    peer_auth_free(d.auth);
}

static void who_does_not_prove_is_not_used(void **state)
{
    (void)state;
    beta_has_key(beta_key);
    for (enum peer_trust t = PEER_TRUST_PROOF; t <= PEER_TRUST_KNOWN; t++) {
        fails(dial_of(t, true), 200, "", accepted(NULL, NULL), "server_not_proven");
        fails(dial_of(t, true), 200, "", accepted(CHALLENGE, NULL), "server_not_proven");
        fails(dial_of(t, true), 400, "UNKNOWN_OP", json_object(), "server_not_proven");
    }
    struct dial d = dial_of(PEER_TRUST_WORD, false);
    assert_int_equal(take(&d, 200, "", accepted(NULL, NULL)), PEER_HELLO_DONE);
    peer_auth_free(d.auth);
}

static void wrong_proofs(void **state)
{
    (void)state;
    beta_has_key(beta_key);
    for (enum peer_trust t = PEER_TRUST_PROOF; t <= PEER_TRUST_WORD; t++) {
        struct dial d = dial_of(t, true);
        fails(d, 200, "", proven(&d, PEER_SIDE_ANSWER, alpha_seed), "bad_server_proof");
        d = dial_of(t, true);
        fails(d, 200, "", proven(&d, PEER_SIDE_DIAL, beta_seed), "bad_server_proof");
        /* Recorded when another nonce was asked. */
        fails(dial_of(t, true), 200, "", accepted(CHALLENGE, ANSWER_PROOF), "bad_server_proof");
        fails(dial_of(t, true), 200, "", accepted(CHALLENGE, "AAAA"), "bad_server_proof");
    }
}

static void unknown_keys_are_no_hindrance(void **state)
{
    (void)state;
    struct dial d = dial_of(PEER_TRUST_PROOF, false);
    assert_int_equal(take(&d, 200, "", accepted(NULL, NULL)), PEER_HELLO_DONE);
    peer_auth_free(d.auth);
    d = dial_of(PEER_TRUST_KNOWN, true);
    assert_int_equal(take(&d, 200, "", proven(&d, PEER_SIDE_ANSWER, alpha_seed)),
                     PEER_HELLO_SECOND);
    fails(d, 403, "BAD_SERVER_PROOF", json_object(), "proof_refused");
    d = dial_of(PEER_TRUST_KNOWN, true);
    assert_int_equal(take(&d, 400, "UNKNOWN_OP", json_object()), PEER_HELLO_DONE);
    assert_true(d.hello.legacy);
    peer_auth_free(d.auth);
}

/* Nobody could do anything with them; and a base peer may be dialled under any name. */
static void without_keys_no_proofs_are_asked_for(void **state)
{
    (void)state;
    struct dial d = dial_of(PEER_TRUST_KNOWN, false);
    json_t *first = peer_hello_payload(&d.hello);
    assert_null(json_object_get(first, "helloNonce"));
    assert_null(json_object_get(first, "dialledHost"));
    assert_int_equal(take(&d, 200, "", accepted(CHALLENGE, ANSWER_PROOF)), PEER_HELLO_DONE);
    peer_auth_free(d.auth);
    json_decref(first);
    beta_has_key(beta_key);
    d = dial_of(PEER_TRUST_KNOWN, false);
    assert_int_equal(take(&d, 200, "", proven(&d, PEER_SIDE_ANSWER, beta_seed)), PEER_HELLO_DONE);
    peer_auth_free(d.auth);
}

static void nothing_is_known_before_the_table_is_read(void **state)
{
    (void)state;
    table_read = false;
    fails(dial_of(PEER_TRUST_KNOWN, true), 200, "", accepted(NULL, NULL), "partners_not_read");
}

static void refusals_have_their_reasons(void **state)
{
    (void)state;
    fails(dial_of(PEER_TRUST_KNOWN, true), 403, "WRONG_HOST", json_object(), "wrong_host");
    fails(dial_of(PEER_TRUST_KNOWN, true), 403, "PEER_BLOCKED", json_object(), "blocked_there");
    fails(dial_of(PEER_TRUST_KNOWN, true), 503, "DB_UNAVAILABLE", json_object(), "hello_refused");
    fails(dial_of(PEER_TRUST_KNOWN, true), 200, "",
          json_pack("{s:b, s:s}", "accepted", 1, "serverLogin", "gamma"), "wrong_server_login");
}

static void what_is_listed(void **state)
{
    (void)state;
    struct dial with = dial_of(PEER_TRUST_KNOWN, true), without = dial_of(PEER_TRUST_KNOWN, false);
    assert_true(peer_lists(with.auth, "server-auth"));
    assert_false(peer_lists(without.auth, "server-auth"));
    assert_true(peer_lists(NULL, "pipelining"));
    peer_auth_free(with.auth);
    peer_auth_free(without.auth);
}

int main(void)
{
    if (sodium_init() < 0)
        return 1;
    log_setup("test", LOG_FORMAT_LOGFMT, LOG_LEVEL_ERROR);
    memset(alpha_seed, 1, sizeof alpha_seed);
    memset(beta_seed, 2, sizeof beta_seed);
    dm_public_key(alpha_seed, alpha_key);
    dm_public_key(beta_seed, beta_key);
    table_read = true;
#define T(name) cmocka_unit_test_teardown(name, teardown)
    const struct CMUnitTest tests[] = {
        T(proofs_are_those_of_the_document),
        T(a_proof_fits_nothing_else),
        T(nonces),
        T(hosts_of_urls),
        T(key_files),
        T(addresses),
        T(both_prove),
        T(who_does_not_prove_is_not_used),
        T(wrong_proofs),
        T(unknown_keys_are_no_hindrance),
        T(without_keys_no_proofs_are_asked_for),
        T(nothing_is_known_before_the_table_is_read),
        T(refusals_have_their_reasons),
        T(what_is_listed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
