/*
 * Look-ups at other servers: through a real pool against scripted ones, over a store that the test
 * answers by hand.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <sodium.h>

#include "directory/import.h"
#include "directory/profile.h"
#include "support_peer.h"
#include "util/base64.h"
#include "util/log.h"
#include "util/mem.h"

enum { SERVERS = 3, TRUE_KEY = 100 };
static const uint8_t true_seed[DM_KEY_BYTES] = {1, 2, 3};

struct answerer {
    struct fake_server s;
    enum { SAYS_NO, SAYS_USER, SAYS_NOTHING, SAYS_NONSENSE, FAILS } says;
    int key; /* first byte of the user's key; TRUE_KEY: bob's, that signs profiles */
    const char *access, *source;
    int64_t
        profile_ms; /* a profile of that time comes with it, signed by bob's true key; 0 = none */
};

struct asker {
    unsigned n;
    enum import_result result;
};

static struct fixture {
    uv_loop_t loop;
    struct peer_pool *pool;
    struct importer *im;
    struct import_limits limits;
    struct answerer a[SERVERS];
    bool pool_closed;

    /* the store */
    const char *known_source; /* of the record that exists; NULL = none */
    int known_key;
    struct store_place places[SERVERS];
    size_t n_places;
    enum db_status st;
    char sender[64]; /* asked for */
    unsigned reads, stores;
    int stored_key;
    char stored_source[32], stored_from[64], stored_server[64];
    int64_t stored_profile_ms; /* 0 = none */
    unsigned confirms, hints;
    enum store_import verdict;
    bool changed;
} * x;

/* --- the store: answers in the next turn --- */

struct later {
    uv_timer_t timer;
    void (*cb)(void);
    void *ctx;
};

static void on_freed(uv_handle_t *h)
{
    free(h->data);
}

static void later(uv_timer_cb how, void (*cb)(void), void *ctx)
{
    struct later *l = xnew(struct later);
    l->cb = cb;
    l->ctx = ctx;
    l->timer.data = l;
    (void)uv_timer_init(&x->loop, &l->timer);
    (void)uv_timer_start(&l->timer, how, 0, 0);
}

static void tell_user(uv_timer_t *t)
{
    struct later *l = t->data;
    struct store_user u = {.source = x->known_source};
    memset(u.client_key, x->known_key, sizeof u.client_key);
    ((store_user_cb)l->cb)(l->ctx, x->st, x->st == DB_OK && x->known_source ? &u : NULL);
    uv_close((uv_handle_t *)t, on_freed);
}

void store_get_user(struct store *s, const char *login, store_user_cb cb, void *ctx)
{
    (void)s;
    assert_string_equal("bob", login);
    x->reads++;
    later(tell_user, (void (*)(void))cb, ctx);
}

static void tell_places(uv_timer_t *t)
{
    struct later *l = t->data;
    ((store_places_cb)l->cb)(l->ctx, DB_OK, x->places, x->n_places);
    uv_close((uv_handle_t *)t, on_freed);
}

void store_look_up_places(struct store *s, const char *login, const char *sender,
                          store_places_cb cb, void *ctx)
{
    (void)s;
    assert_string_equal("bob", login);
    (void)snprintf(x->sender, sizeof x->sender, "%s", sender);
    later(tell_places, (void (*)(void))cb, ctx);
}

static void tell_stored(uv_timer_t *t)
{
    struct later *l = t->data;
    ((store_import_cb)l->cb)(l->ctx, DB_OK, x->verdict, x->changed);
    uv_close((uv_handle_t *)t, on_freed);
}

void store_import_user(struct store *s, const struct store_user *user,
                       const struct store_profile *profile, const char *from, store_import_cb cb,
                       void *ctx)
{
    (void)s;
    x->stored_profile_ms = profile ? profile->time_ms : 0;
    x->stores++;
    x->stored_key = user->client_key[0];
    (void)snprintf(x->stored_source, sizeof x->stored_source, "%s", user->source);
    (void)snprintf(x->stored_from, sizeof x->stored_from, "%s", from);
    (void)snprintf(x->stored_server, sizeof x->stored_server, "%s", user->servers[0].login);
    later(tell_stored, (void (*)(void))cb, ctx);
}

void store_confirm_user(struct store *s, const char *login)
{
    (void)s;
    assert_string_equal("bob", login);
    x->confirms++;
}

void store_tell_user_changed(struct store *s, const char *login, store_done_cb cb, void *ctx)
{
    (void)s;
    assert_string_equal("bob", login);
    assert_null(cb);
    assert_null(ctx);
    x->hints++;
}

/* --- the other servers --- */

/* Signed by bob, and naming server_p. */
static json_t *true_profile(int64_t time_ms)
{
    uint8_t key[DM_KEY_BYTES], sig[DM_SIG_BYTES];
    char key_text[64], sig_text[96];
    struct store_route route = {"server_p", "wss://p.example/ws"};
    dm_public_key(true_seed, key);
    base64_encode(key, sizeof key, key_text);
    char *text = profile_signed_text("bob", key_text, &route, 1, time_ms);
    uint8_t secret[64], public_key[32];
    assert_int_equal(0, crypto_sign_seed_keypair(public_key, secret, true_seed));
    (void)crypto_sign_detached(sig, NULL, (const unsigned char *)text, strlen(text), secret);
    free(text);
    base64_encode(sig, sizeof sig, sig_text);
    return json_pack("{s:s, s:s, s:[{s:s, s:s}], s:I, s:s}", "login", "bob", "clientKey", key_text,
                     "accessServers", "serverLogin", route.login, "url", route.url, "timeMs",
                     (json_int_t)time_ms, "signatureB64", sig_text);
}

static void answer_user(const struct answerer *a, struct ws_conn *conn, const char *op,
                        const char *id)
{
    uint8_t key[DM_KEY_BYTES];
    char text[64];
    memset(key, a->key, sizeof key);
    if (a->key == TRUE_KEY)
        dm_public_key(true_seed, key);
    base64_encode(key, sizeof key, text);
    json_t *p = json_pack("{s:b, s:s, s:s, s:[{s:s, s:s}], s:s*, s:o*}", "exists", 1, "login",
                          "bob", "clientKey", text, "accessServers", "serverLogin", a->access,
                          "url", "wss://x.example/ws", "source", a->source, "profile",
                          a->profile_ms ? true_profile(a->profile_ms) : NULL);
    size_t len;
    char *answer = rpc_answer_ok(op, id, p, &len);
    json_decref(p);
    assert_true(ws_send_text(conn, answer, len));
    free(answer);
}

static void on_request(struct fake_server *s, struct ws_conn *conn, const char *op, const char *id)
{
    const struct answerer *a = s->ctx;
    assert_string_equal("GetUser", op);
    assert_null(json_object_get(s->payload, "lookup"));
    switch (a->says) {
    case SAYS_NO: {
        json_t *p = json_pack("{s:b}", "exists", 0);
        size_t len;
        char *answer = rpc_answer_ok(op, id, p, &len);
        json_decref(p);
        assert_true(ws_send_text(conn, answer, len));
        free(answer);
        break;
    }
    case SAYS_USER:
        answer_user(a, conn, op, id);
        break;
    case SAYS_NOTHING:
        break;
    case SAYS_NONSENSE:
        fake_answer(conn, op, id);
        break;
    case FAILS:
        fake_fail(conn, op, id, 400, "UNKNOWN_OP", NULL);
        break;
    }
}

/* Server `i` is asked as a `kind`. */
static void place(unsigned i, enum store_place_kind kind, bool home)
{
    struct store_place *p = &x->places[x->n_places++];
    *p = (struct store_place){.kind = kind, .home = home};
    const struct fake_server *s = &x->a[i].s;
    memcpy(p->route.login, s->login, strlen(s->login) + 1);
    memcpy(p->route.url, s->url, strlen(s->url) + 1);
}

static void knows(unsigned i, int key, const char *access, const char *source)
{
    x->a[i].says = SAYS_USER;
    x->a[i].key = key;
    x->a[i].access = access;
    x->a[i].source = source;
}

/* --- fixture --- */

static void begin(void)
{
    x->im = import_new(&x->loop, NULL, x->pool, &x->limits);
}

static int setup(void **state)
{
    static const char *const logins[SERVERS] = {"server_a", "server_b", "server_c"};
    (void)state;
    x = xnew(struct fixture);
    assert_int_equal(0, uv_loop_init(&x->loop));
    for (unsigned i = 0; i < SERVERS; i++) {
        fake_server_start(&x->a[i].s, &x->loop, logins[i]);
        x->a[i].s.on_request = on_request;
        x->a[i].s.ctx = &x->a[i];
    }
    struct peer_config cfg = {.server_login = "home",
                              .ping_idle_ms = 60000,
                              .pong_timeout_ms = 5000,
                              .request_timeout_ms = 5000,
                              .connect_timeout_ms = 5000,
                              .caller_timeout_ms = 8000,
                              .max_queue_per_peer = 10,
                              .max_in_flight_per_peer = 8,
                              .allow_private_addresses = true};
    x->pool = peer_pool_new(&x->loop, &cfg);
    x->limits = import_limits_default;
    x->st = DB_OK;
    return 0;
}

static void on_pool_closed(void *ctx)
{
    (void)ctx;
    x->pool_closed = true;
}

static int teardown(void **state)
{
    (void)state;
    import_stop(x->im);
    if (!x->pool_closed) {
        peer_pool_close(x->pool, on_pool_closed, NULL);
        loop_until(&x->loop, &x->pool_closed);
    }
    import_free(x->im);
    for (unsigned i = 0; i < SERVERS; i++)
        fake_server_stop(&x->a[i].s);
    loop_finish(&x->loop);
    free(x);
    return 0;
}

static void told(void *ctx, enum import_result r)
{
    struct asker *a = ctx;
    a->n++;
    a->result = r;
}

static void ask(struct asker *a, const char *sender, enum import_kind kind)
{
    unsigned n = a->n;
    import_start(x->im, "bob", sender, kind, told, a);
    assert_int_equal(n, a->n); /* never from inside */
}

static enum import_result look_up(const char *sender, enum import_kind kind)
{
    struct asker a = {0};
    ask(&a, sender, kind);
    loop_until_count(&x->loop, &a.n, 1);
    return a.result;
}

/* --- who is asked, and what it comes to --- */

static void test_nobody_to_ask(void **state)
{
    (void)state;
    begin();
    assert_int_equal(IMPORT_NO_USER, look_up("", IMPORT_ON_SIGHT));
}

static void test_a_local_user_is_not_looked_up_on_sight(void **state)
{
    (void)state;
    begin();
    place(0, STORE_PLACE_PARTNER, false);
    x->known_source = "local";
    assert_int_equal(IMPORT_FOUND, look_up("", IMPORT_ON_SIGHT));
    assert_int_equal(0, x->a[0].s.accepted);
}

static void test_a_local_user_is_confirmed_whatever_comes(void **state)
{
    (void)state;
    x->limits.fresh_ms = 0;
    begin();
    x->known_source = "local";
    assert_int_equal(IMPORT_FOUND, look_up("", IMPORT_CONFIRM)); /* nobody to ask */
    assert_int_equal(1, x->confirms);
    place(0, STORE_PLACE_PARTNER, false);
    place(1, STORE_PLACE_PARTNER, false);
    x->a[1].says = FAILS;
    assert_int_equal(IMPORT_FOUND, look_up("", IMPORT_CONFIRM)); /* nobody knows, one cannot say */
    assert_int_equal(2, x->confirms);
    assert_int_equal(0, x->stores);
    knows(1, TRUE_KEY, "server_b", NULL);
    x->verdict = STORE_IMPORT_NOT_NEEDED; /* somebody knows, and nothing newer */
    assert_int_equal(IMPORT_FOUND, look_up("", IMPORT_CONFIRM));
    assert_int_equal(1, x->stores);
    assert_int_equal(3, x->confirms);
    assert_int_equal(0, x->hints);
}

static void test_a_partner_knows(void **state)
{
    (void)state;
    begin();
    place(0, STORE_PLACE_PARTNER, false);
    place(1, STORE_PLACE_PARTNER, false);
    knows(1, 7, "server_b", NULL);
    assert_int_equal(IMPORT_FOUND, look_up("", IMPORT_ON_SIGHT));
    assert_int_equal(7, x->stored_key);
    assert_string_equal("partner", x->stored_source);
    assert_string_equal("server_b", x->stored_from);
}

static void test_unavailable_unless_everybody_said_no(void **state)
{
    (void)state;
    x->limits.unavailable_ms = 0;
    x->limits.missing_ms = 0;
    begin();
    place(0, STORE_PLACE_PARTNER, false);
    place(1, STORE_PLACE_PARTNER, false);
    assert_int_equal(IMPORT_NO_USER, look_up("", IMPORT_ON_SIGHT));
    x->a[1].says = FAILS;
    assert_int_equal(IMPORT_UNAVAILABLE, look_up("", IMPORT_ON_SIGHT));
    x->a[1].says = SAYS_NONSENSE;
    assert_int_equal(IMPORT_UNAVAILABLE, look_up("", IMPORT_ON_SIGHT));
    x->st = DB_UNAVAILABLE;
    assert_int_equal(IMPORT_UNAVAILABLE, look_up("", IMPORT_ON_SIGHT));
    assert_int_equal(0, x->stores);
}

static void test_silent_servers_end_with_the_time(void **state)
{
    (void)state;
    x->limits.total_ms = 150;
    begin();
    place(0, STORE_PLACE_PARTNER, false);
    x->a[0].says = SAYS_NOTHING;
    assert_int_equal(IMPORT_UNAVAILABLE, look_up("", IMPORT_ON_SIGHT));
}

static void test_the_sender_is_asked_last_about_its_own_users(void **state)
{
    (void)state;
    x->limits.missing_ms = 0;
    begin();
    place(0, STORE_PLACE_PARTNER, false);
    place(2, STORE_PLACE_SENDER, false);
    knows(2, 9, "elsewhere", "local");
    assert_int_equal(IMPORT_NO_USER, look_up("server_c", IMPORT_ON_SIGHT));
    assert_string_equal("server_c", x->sender);
    assert_int_equal(0, x->stores);
    x->a[2].access = "server_c";
    assert_int_equal(IMPORT_FOUND, look_up("server_c", IMPORT_ON_SIGHT));
    assert_string_equal("provisional", x->stored_source);
    unsigned asked = x->a[2].s.n_seen;
    knows(0, 7, "server_a", NULL); /* a partner knows: the sender is not asked */
    assert_int_equal(IMPORT_FOUND, look_up("server_c", IMPORT_ON_SIGHT));
    assert_int_equal(7, x->stored_key);
    assert_int_equal(asked, x->a[2].s.n_seen);
}

static void test_a_partners_guess_is_a_guess(void **state)
{
    (void)state;
    begin();
    place(0, STORE_PLACE_PARTNER, false);
    knows(0, 7, "server_x", "provisional");
    assert_int_equal(IMPORT_FOUND, look_up("", IMPORT_ON_SIGHT));
    assert_string_equal("provisional", x->stored_source);
}

/* --- which answer counts --- */

static void test_a_copy_waits_for_who_must_know(void **state)
{
    (void)state;
    x->limits.copies_wait_ms = 5000;
    begin();
    place(0, STORE_PLACE_PARTNER, false);
    place(1, STORE_PLACE_PARTNER, false);
    knows(0, 7, "old_home", "partner");
    x->a[1].says = SAYS_NOTHING;
    struct asker a = {0};
    ask(&a, "", IMPORT_ON_SIGHT);
    loop_until_count(&x->loop, &x->a[0].s.n_seen, 1);
    loop_until_count(&x->loop, &x->a[1].s.n_seen, 1);
    knows(1, 7, "new_home", "local");
    answer_user(&x->a[1], fake_server_conn(&x->a[1].s), "GetUser", x->a[1].s.ids[0]);
    loop_until_count(&x->loop, &a.n, 1);
    assert_string_equal("new_home", x->stored_server);
}

static void test_a_copy_does_not_wait_for_ever(void **state)
{
    (void)state;
    x->limits.copies_wait_ms = 50;
    begin();
    place(0, STORE_PLACE_PARTNER, false);
    place(1, STORE_PLACE_PARTNER, false);
    knows(0, 7, "old_home", "partner");
    x->a[1].says = SAYS_NOTHING;
    assert_int_equal(IMPORT_FOUND, look_up("", IMPORT_ON_SIGHT));
    assert_string_equal("old_home", x->stored_server);
}

static void test_an_old_home_says_where_the_user_went(void **state)
{
    (void)state;
    begin();
    x->known_source = "partner";
    x->known_key = 7;
    place(0, STORE_PLACE_HOME, true); /* is no partner */
    place(1, STORE_PLACE_PARTNER, false);
    knows(0, 7, "new_home", NULL);
    knows(1, 7, "server_a", "partner");
    assert_int_equal(IMPORT_FOUND, look_up("", IMPORT_FRESH));
    assert_string_equal("new_home", x->stored_server);
    assert_string_equal("provisional", x->stored_source); /* its word, not a partner's */
}

static void test_the_key_we_know_is_preferred(void **state)
{
    (void)state;
    begin();
    x->known_source = "partner";
    x->known_key = 7;
    place(0, STORE_PLACE_PARTNER, false);
    place(1, STORE_PLACE_PARTNER, false);
    knows(0, 8, "server_a", "local");
    knows(1, 7, "server_b", "local");
    assert_int_equal(IMPORT_FOUND, look_up("", IMPORT_ON_SIGHT));
    assert_int_equal(7, x->stored_key);
    x->a[1].says = SAYS_NO; /* nobody else: shown to the operator */
    x->verdict = STORE_IMPORT_OTHER_KEY;
    assert_int_equal(IMPORT_FOUND, look_up("", IMPORT_ON_SIGHT));
    assert_int_equal(8, x->stored_key);
}

static void test_the_newest_profile_is_kept_whoever_tells_it(void **state)
{
    (void)state;
    x->limits.fresh_ms = 0;
    begin();
    x->known_source = "partner";
    x->known_key = 7;
    for (unsigned i = 0; i < SERVERS; i++) {
        place(i, STORE_PLACE_PARTNER, false);
        knows(i, TRUE_KEY, "server_x", NULL);
    }
    x->a[0].source = "local"; /* the best record, with an old profile */
    x->a[0].profile_ms = 1000;
    x->a[1].profile_ms = 3000;
    x->a[2].profile_ms = 2000;
    x->changed = true;
    assert_int_equal(IMPORT_FOUND, look_up("", IMPORT_CONFIRM)); /* hears everybody out */
    assert_int_equal(3000, x->stored_profile_ms);
    assert_string_equal("server_p", x->stored_server);
    assert_int_equal(1, x->hints);
    x->a[1].key = 9; /* not signed by the key it comes with */
    assert_int_equal(IMPORT_FOUND, look_up("", IMPORT_CONFIRM));
    assert_int_equal(2000, x->stored_profile_ms);
    x->a[0].profile_ms = x->a[1].profile_ms = x->a[2].profile_ms = 0;
    assert_int_equal(IMPORT_FOUND, look_up("", IMPORT_CONFIRM));
    assert_int_equal(0, x->stored_profile_ms);
    assert_string_equal("server_x", x->stored_server);
}

/* --- no storm --- */

static void test_look_ups_of_one_login_are_joined(void **state)
{
    (void)state;
    begin();
    place(0, STORE_PLACE_PARTNER, false);
    struct asker a = {0};
    for (int i = 0; i < 5; i++)
        ask(&a, "", IMPORT_ON_SIGHT);
    loop_until_count(&x->loop, &a.n, 5);
    assert_int_equal(1, x->a[0].s.n_seen);
}

static void test_what_nobody_knew_is_remembered(void **state)
{
    (void)state;
    begin();
    place(0, STORE_PLACE_PARTNER, false);
    for (int i = 0; i < 3; i++)
        assert_int_equal(IMPORT_NO_USER, look_up("", IMPORT_ON_SIGHT));
    assert_int_equal(1, x->a[0].s.n_seen);
    assert_int_equal(IMPORT_NO_USER, look_up("server_b", IMPORT_ON_SIGHT)); /* who may know */
    assert_int_equal(2, x->a[0].s.n_seen);
    assert_int_equal(IMPORT_NO_USER, look_up("", IMPORT_FRESH));
    assert_int_equal(3, x->a[0].s.n_seen);
    assert_int_equal(IMPORT_NO_USER, look_up("", IMPORT_FRESH)); /* fresh enough */
    assert_int_equal(3, x->a[0].s.n_seen);
}

static void test_memory_is_bounded(void **state)
{
    (void)state;
    x->limits.max_remembered = 1;
    begin();
    place(0, STORE_PLACE_PARTNER, false);
    assert_int_equal(IMPORT_NO_USER, look_up("", IMPORT_ON_SIGHT));
    assert_int_equal(IMPORT_NO_USER,
                     look_up("server_b", IMPORT_ON_SIGHT)); /* pushes the first one out */
    assert_int_equal(IMPORT_NO_USER, look_up("", IMPORT_ON_SIGHT));
    assert_int_equal(3, x->a[0].s.n_seen);
}

static void test_beyond_the_bounds_it_is_not_no(void **state)
{
    (void)state;
    x->limits.burst = 2;
    x->limits.per_second = 0;
    begin();
    place(0, STORE_PLACE_PARTNER, false);
    assert_int_equal(IMPORT_NO_USER, look_up("", IMPORT_ON_SIGHT));
    assert_int_equal(IMPORT_NO_USER, look_up("s1", IMPORT_ON_SIGHT));
    assert_int_equal(IMPORT_UNAVAILABLE, look_up("s2", IMPORT_ON_SIGHT));
    assert_int_equal(IMPORT_NO_USER, look_up("", IMPORT_FRESH));   /* counts apart, */
    assert_int_equal(IMPORT_NO_USER, look_up("", IMPORT_CONFIRM)); /* as this does */
    assert_int_equal(4, x->a[0].s.n_seen);
}

static void test_number_at_once_is_bounded(void **state)
{
    (void)state;
    x->limits.max_running = 1;
    begin();
    place(0, STORE_PLACE_PARTNER, false);
    struct asker a = {0}, b = {0}, c = {0};
    ask(&a, "", IMPORT_ON_SIGHT);
    ask(&b, "s1", IMPORT_ON_SIGHT);
    ask(&c, "", IMPORT_FRESH); /* has a place of its own */
    loop_until_count(&x->loop, &b.n, 1);
    loop_until_count(&x->loop, &a.n, 1);
    loop_until_count(&x->loop, &c.n, 1);
    assert_int_equal(IMPORT_UNAVAILABLE, b.result);
    assert_int_equal(IMPORT_NO_USER, a.result);
    assert_int_equal(IMPORT_NO_USER, c.result);
}

static void test_parallel_calls_are_bounded(void **state)
{
    (void)state;
    x->limits.max_parallel = 1;
    begin();
    for (unsigned i = 0; i < SERVERS; i++)
        place(i, STORE_PLACE_PARTNER, false);
    knows(1, 7, "server_b", NULL);
    assert_int_equal(IMPORT_FOUND, look_up("", IMPORT_ON_SIGHT));
    assert_int_equal(1, x->a[0].s.n_seen);
    assert_int_equal(0, x->a[2].s.accepted); /* it was not needed any more */
}

/* --- the stop --- */

static void test_stop_while_asking(void **state)
{
    (void)state;
    begin();
    place(0, STORE_PLACE_PARTNER, false);
    place(1, STORE_PLACE_SENDER, false);
    x->a[0].says = SAYS_NOTHING;
    struct asker a = {0}, b = {0};
    ask(&a, "server_b", IMPORT_ON_SIGHT);
    loop_until_count(&x->loop, &x->a[0].s.n_seen, 1);
    ask(&b, "", IMPORT_FRESH); /* still reads the table when the pool is closed */
    import_stop(x->im);
    peer_pool_close(x->pool, on_pool_closed, NULL);
    loop_until(&x->loop, &x->pool_closed);
    loop_until_count(&x->loop, &a.n, 1);
    loop_until_count(&x->loop, &b.n, 1);
    assert_int_equal(IMPORT_UNAVAILABLE, a.result);
    assert_int_equal(IMPORT_UNAVAILABLE, b.result);
    assert_int_equal(0, x->a[1].s.accepted);
    assert_int_equal(IMPORT_UNAVAILABLE, look_up("s1", IMPORT_ON_SIGHT));
}

int main(void)
{
    log_setup("test", LOG_FORMAT_LOGFMT, LOG_LEVEL_ERROR);
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_nobody_to_ask),
        T(test_a_local_user_is_not_looked_up_on_sight),
        T(test_a_local_user_is_confirmed_whatever_comes),
        T(test_a_partner_knows),
        T(test_unavailable_unless_everybody_said_no),
        T(test_silent_servers_end_with_the_time),
        T(test_the_sender_is_asked_last_about_its_own_users),
        T(test_a_partners_guess_is_a_guess),
        T(test_a_copy_waits_for_who_must_know),
        T(test_a_copy_does_not_wait_for_ever),
        T(test_an_old_home_says_where_the_user_went),
        T(test_the_key_we_know_is_preferred),
        T(test_the_newest_profile_is_kept_whoever_tells_it),
        T(test_look_ups_of_one_login_are_joined),
        T(test_what_nobody_knew_is_remembered),
        T(test_memory_is_bounded),
        T(test_beyond_the_bounds_it_is_not_no),
        T(test_number_at_once_is_bounded),
        T(test_parallel_calls_are_bounded),
        T(test_stop_while_asking),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
