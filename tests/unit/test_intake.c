/*
 * The way in of containers: which key is asked for again, who is taken for a server, and what
 * binds clients only.
 */
#include "messages_fixture.h"

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
    assert_int_equal(t.fetches, 1); /* the author: nobody else is looked up for a forger */
}

static void test_provisional_key_is_confirmed_before_a_refusal(void **state)
{
    (void)state;
    t.alice.user.provisional = true;
    dm_public_key(other_seed, t.refreshed_key);
    t.refresh_result = DIRECTORY_UNAVAILABLE;
    send_pair(container(DM_TEXT_IN, 0, 5, other_seed), container(DM_TEXT_OUT, 0, 5, other_seed),
              NULL);
    assert_refused("DIRECTORY_UNAVAILABLE");
    t.alice.cached = false;
    t.refresh_result = DIRECTORY_NO_USER;
    send_pair(container(DM_TEXT_IN, 0, 5, other_seed), container(DM_TEXT_OUT, 0, 5, other_seed),
              NULL);
    assert_refused("BAD_SIGNATURE");
    t.alice.cached = false;
    t.refresh_result = DIRECTORY_FOUND;
    send_pair(container(DM_TEXT_IN, 0, 5, other_seed), container(DM_TEXT_OUT, 0, 5, other_seed),
              NULL);
    assert_non_null(t.pair);
    stored(DM_STATE_DELIVERED, false);
    assert_int_equal(t.refreshed, 3); /* once for each */
}

static void send_with_old_key(const char *source)
{
    send_pair(container(DM_TEXT_IN, 0, 5, t.old_seed), container(DM_TEXT_OUT, 0, 5, t.old_seed),
              source);
}

static void test_earlier_keys_count_for_second_servers_only(void **state)
{
    static const char *const second[] = {"server_c", "server_b"}; /* alice's, bob's */
    static const char *const others[] = {NULL, "", "server_x"};
    (void)state;
    t.old_seed[0] = 9;
    for (unsigned i = 0; i < 2; i++) {
        t.alice.cached = t.bob.cached = i == 0;
        send_with_old_key(second[i]);
        assert_non_null(t.pair);
        stored(DM_STATE_DELIVERED, false);
    }
    assert_int_equal(t.keys_asked, 2);
    for (unsigned i = 0; i < 3; i++) {
        send_with_old_key(others[i]);
        assert_refused("BAD_SIGNATURE");
    }
    assert_int_equal(t.keys_asked, 3); /* who is no server at all does not make us look */
    send_pair(container(DM_TEXT_IN, 0, 5, other_seed), container(DM_TEXT_OUT, 0, 5, t.old_seed),
              "server_c"); /* one key for both */
    assert_refused("BAD_SIGNATURE");
    t.keys_status = DB_UNAVAILABLE;
    send_with_old_key("server_c");
    assert_refused("DB_UNAVAILABLE");
}

static void test_peer_is_named_to_the_directory(void **state)
{
    (void)state;
    t.peer = "server_x"; /* the fixture compares */
    send_plain();
    assert_non_null(t.pair);
    assert_int_equal(t.fetches, 2);
    stored(DM_STATE_DELIVERED, false);
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

static void test_a_name_with_a_known_key_makes_no_server(void **state)
{
    (void)state;
    t.key_known_of = "server_c";
    send_mixed_revisions("server_c");
    assert_refused("PAIR_MISMATCH");
    send_mixed_revisions("server_b");
    assert_true(t.pair->from_server);
    stored(DM_STATE_DELIVERED, false);
}

/* Before anything is parsed or looked up. */
static void test_a_blocked_server_is_refused_first(void **state)
{
    (void)state;
    t.blocked = "server_c";
    send_pair(xstrdup("AAAA"), xstrdup("AAAA"), "server_c");
    assert_refused("PEER_BLOCKED");
    t.peer = "server_c";
    send_plain();
    assert_refused("PEER_BLOCKED");
    assert_int_equal(t.fetches, 0);
}

static void test_the_source_goes_to_the_store(void **state)
{
    (void)state;
    send_plain();
    assert_null(t.pair->source);
    stored(DM_STATE_DELIVERED, false);
    send_pair(container(DM_TEXT_IN, 0, 5, alice_seed), container(DM_TEXT_OUT, 0, 5, alice_seed),
              "server_c");
    assert_string_equal(t.pair->source, "server_c");
    stored(DM_STATE_DELIVERED, false);
    t.peer = "server_x";
    char *in = container(DM_TEXT_IN, 0, 5, alice_seed);
    call("ReceiveIncomingMessage",
         json_pack("{s:s, s:s}", "incomingBlobB64", in, "sourceServerLogin", "server_c"));
    free(in);
    assert_string_equal(t.incoming->source, "server_x");
    struct store_incoming *p = t.incoming;
    t.incoming = NULL;
    p->verdict = STORE_OK;
    p->done(p, DB_OK);
}

static void send_as(const char *source, const char *limit)
{
    t.limit[0] = '\0';
    send_pair(container(DM_TEXT_IN, 0, 5, alice_seed), container(DM_TEXT_OUT, 0, 5, alice_seed),
              source);
    assert_string_equal(t.limit, limit);
    stored(DM_STATE_DELIVERED, false);
    t.n_told = 0;
}

static void test_whose_limit_counts(void **state)
{
    (void)state;
    send_as(NULL, "address 192.0.2.1");
    send_as("server_x", "address 192.0.2.1"); /* nobody knows it */
    send_as("server_b", "peer server_b");     /* it serves bob */
    t.alice.cached = t.bob.cached = false;
    send_as("server_b", "address 192.0.2.1"); /* which is not looked up for this */
    t.partner = "server_x";
    send_as("server_x", "peer server_x");
    t.peer = "server_x";
    send_as(NULL, "peer server_x");
    t.peer = NULL;
    t.session_id = "s"; /* counted by the login already */
    send_as(NULL, "");
}

static void test_too_much_costs_nothing(void **state)
{
    (void)state;
    t.limit_reached = true;
    send_plain();
    assert_refused("RATE_LIMITED");
    assert_int_equal(t.fetches, 0);
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

int main(void)
{
    if (sodium_init() < 0)
        return 1;
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_unknown_users),
        T(test_replaced_key_is_read_again_once),
        T(test_fresh_key_is_not_read_again),
        T(test_provisional_key_is_confirmed_before_a_refusal),
        T(test_earlier_keys_count_for_second_servers_only),
        T(test_peer_is_named_to_the_directory),
        T(test_each_copy_must_be_signed),
        T(test_only_access_servers_are_believed),
        T(test_a_name_with_a_known_key_makes_no_server),
        T(test_a_blocked_server_is_refused_first),
        T(test_the_source_goes_to_the_store),
        T(test_whose_limit_counts),
        T(test_too_much_costs_nothing),
        T(test_hello_makes_a_server),
        T(test_bodies),
        T(test_never_two_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
