/*
 * Which peers there are: partners at the address of their row, pairs of others, and what becomes of
 * connections when the tables change. The store is answered by hand.
 */
#include "peer_fixture.h"

#include "store/peers.h"
#include "util/log.h"
#include "util/mem.h"

/* --- the store --- */

static struct {
    struct store_partner partners[4];
    size_t n_partners;
    bool hold; /* do not answer yet */
    store_partners_cb cb;
    void *ctx;
    /* Questions about names. */
    char asked[4][128];
    size_t n_asked;
    unsigned n_reads;
    size_t unnamed[4], n_unnamed;
    struct store_route known[4];
    size_t n_known;
} db;

static void *const SOME_STORE = &db; /* never looked into */
static uv_loop_t *db_loop;

struct later {
    uv_timer_t timer;
    void (*run)(void *ctx, void *cb);
    void (*cb)(void);
    void *ctx;
};

static void free_later(uv_handle_t *h)
{
    free(h->data);
}

static void run_later(uv_timer_t *t)
{
    struct later *l = t->data;
    if (l->run == NULL)
        ((store_partners_cb)l->cb)(l->ctx, DB_OK, db.partners, db.n_partners);
    else
        l->run(l->ctx, (void *)(uintptr_t)l->cb);
    uv_close((uv_handle_t *)t, free_later);
}

static void later(void (*run)(void *ctx, void *cb), void (*cb)(void), void *ctx)
{
    struct later *l = xnew(struct later);
    *l = (struct later){.run = run, .cb = cb, .ctx = ctx};
    (void)uv_timer_init(db_loop, &l->timer);
    l->timer.data = l;
    (void)uv_timer_start(&l->timer, run_later, 0, 0);
}

void store_read_partners(struct store *s, store_partners_cb cb, void *ctx)
{
    (void)s;
    db.n_reads++;
    db.cb = cb;
    db.ctx = ctx;
    if (!db.hold)
        later(NULL, (void (*)(void))cb, ctx);
}

static void answer_unnamed(void *ctx, void *cb)
{
    ((store_unnamed_cb)(uintptr_t)cb)(ctx, DB_OK, db.unnamed, db.n_unnamed);
    db.n_unnamed = 0;
}

void store_unnamed_peers(struct store *s, const struct store_route *peers, size_t n,
                         store_unnamed_cb cb, void *ctx)
{
    (void)s;
    db.n_asked = n;
    for (size_t i = 0; i < n && i < 4; i++)
        (void)snprintf(db.asked[i], sizeof db.asked[i], "%s %s", peers[i].login, peers[i].url);
    later(answer_unnamed, (void (*)(void))cb, ctx);
}

static void answer_known(void *ctx, void *cb)
{
    ((store_known_cb)(uintptr_t)cb)(ctx, DB_OK, db.known, db.n_known);
}

void store_known_peers(struct store *s, unsigned limit, store_known_cb cb, void *ctx)
{
    (void)s;
    (void)limit;
    later(answer_known, (void (*)(void))cb, ctx);
}

/* --- the fixture: a second server, and partners --- */

static struct fake_server second;
static struct partners *partners;
static bool partners_closed;

static void partner(const char *login, const char *url, bool blocked)
{
    db.partners[db.n_partners++] =
        (struct store_partner){.login = login, .url = url, .public_keys = "", .blocked = blocked};
}

static int setup_known(void **state)
{
    memset(&db, 0, sizeof db);
    assert_int_equal(0, setup(state));
    struct fixture *x = *state;
    db_loop = &x->loop;
    fake_server_start(&second, &x->loop, "server2");
    second.on_request = x->server.on_request = script;
    return 0;
}

/* With what the table says by now. */
static void start_known(struct fixture *x)
{
    partners = partners_new(&x->loop, SOME_STORE, 3600 * 1000);
    x->cfg.partners = partners;
    x->cfg.store = SOME_STORE;
    start(x);
}

static void on_partners_closed(void *ctx)
{
    *(bool *)ctx = true;
}

static int teardown_known(void **state)
{
    struct fixture *x = *state;
    if (x->pool)
        close_pool(x);
    loop_until(&x->loop, &x->closed);
    partners_closed = false;
    partners_close(partners, on_partners_closed, &partners_closed);
    loop_until(&x->loop, &partners_closed);
    fake_server_stop(&second);
    return teardown(state);
}

/* The table has changed. */
static void table_read(struct fixture *x)
{
    unsigned reads = db.n_reads;
    partners_refresh(partners);
    loop_until_count(&x->loop, &db.n_reads, reads + 1);
    loop_for(&x->loop, 30);
}

static void call_at(struct fixture *x, unsigned i, const char *url, const char *op)
{
    x->e[i].calls++;
    peer_call(x->pool, "server2", url, PEER_REALTIME, op, json_object(), 0, on_end, &x->e[i]);
}

static unsigned n_peers(struct fixture *x)
{
    unsigned n = 0;
    list_each(i, &x->pool->peers)
        n++;
    return n;
}

/* --- tests --- */

static void test_a_partners_row_says_where_it_is(void **state)
{
    struct fixture *x = *state;
    partner("server2", second.url, false);
    start_known(x);
    call_at(x, 0, x->server.url, "Echo"); /* as some user's record says */
    call_at(x, 1, "wss://evil.example/ws", "Echo");
    wait_end(x, 0);
    wait_end(x, 1);
    assert_int_equal(PEER_ANSWER, x->e[0].result);
    assert_int_equal(PEER_ANSWER, x->e[1].result);
    assert_int_equal(0, x->server.accepted);
    assert_int_equal(1, second.accepted); /* one connection, whatever users say */
    assert_true(peer_pool_state(x->pool, "server2", "wss://anything/ws").connected);
}

static void test_a_record_redirects_its_own_messages_only(void **state)
{
    struct fixture *x = *state;
    start_known(x);
    call_at(x, 0, x->server.url, "Echo");
    call_at(x, 1, second.url, "Echo");
    wait_end(x, 0);
    wait_end(x, 1);
    assert_int_equal(1, x->server.n_seen);
    assert_int_equal(1, second.n_seen);
    assert_true(peer_pool_state(x->pool, "server2", x->server.url).connected);
    assert_true(peer_pool_state(x->pool, "server2", second.url).connected);
    assert_false(peer_pool_state(x->pool, "server2", "wss://anything/ws").connected);
}

static void test_calls_wait_until_partners_are_known(void **state)
{
    struct fixture *x = *state;
    db.hold = true;
    start_known(x);
    call_at(x, 0, x->server.url, "Echo");
    x->e[1].calls++;
    peer_call(x->pool, "server2", x->server.url, PEER_REALTIME, "Echo", json_object(), 80, on_end,
              &x->e[1]);
    wait_end(x, 1); /* their time runs on */
    assert_int_equal(PEER_TIMEOUT, x->e[1].result);
    assert_false(x->e[1].written || x->e[1].dial_failed);
    assert_int_equal(0, x->server.accepted + second.accepted);
    partner("server2", second.url, false);
    db.hold = false;
    db.cb(db.ctx, DB_OK, db.partners, db.n_partners);
    wait_end(x, 0);
    assert_int_equal(PEER_ANSWER, x->e[0].result);
    assert_int_equal(0, x->server.accepted);
    assert_int_equal(1, second.accepted);
}

static void test_a_changed_url_waits_for_what_is_in_flight(void **state)
{
    struct fixture *x = *state;
    partner("server2", x->server.url, false);
    start_known(x);
    call_at(x, 0, "", "Hold");
    loop_until_count(&x->loop, &x->server.n_seen, 1);
    call_at(x, 1, "", "Echo");
    db.partners[0].url = second.url;
    table_read(x);
    assert_int_equal(0, x->e[0].n + x->e[1].n);
    release(x, 0);
    wait_end(x, 0);
    assert_int_equal(PEER_ANSWER, x->e[0].result); /* from where it was asked */
    wait_end(x, 1);
    assert_int_equal(PEER_ANSWER, x->e[1].result);
    assert_int_equal(1, x->server.n_seen);
    assert_int_equal(1, second.n_seen);
    while (x->server.conns)
        (void)uv_run(&x->loop, UV_RUN_ONCE);
}

static void test_a_changed_url_ends_the_backoff(void **state)
{
    struct fixture *x = *state;
    x->server.hello = FAKE_HELLO_REFUSE;
    partner("server2", x->server.url, false);
    start_known(x);
    call_at(x, 0, "", "Echo");
    wait_end(x, 0);
    assert_int_equal(PEER_UNREACHABLE, x->e[0].result);
    the_peer(x)->backoff.step = 20;
    peer_set_state(the_peer(x), PEER_BACKOFF); /* for up to a minute */
    db.partners[0].url = second.url;
    table_read(x);
    call_at(x, 1, "", "Echo");
    wait_end(x, 1);
    assert_int_equal(PEER_ANSWER, x->e[1].result);
}

static void test_a_blocked_server(void **state)
{
    struct fixture *x = *state;
    partner("server2", x->server.url, false);
    start_known(x);
    call_at(x, 0, "", "Hold");
    loop_until_count(&x->loop, &x->server.n_seen, 1);
    call_at(x, 1, "", "Echo");
    db.partners[0].blocked = true;
    table_read(x);
    wait_end(x, 0);
    assert_int_equal(PEER_LOST, x->e[0].result);
    wait_end(x, 1);
    call_at(x, 2, "wss://evil.example/ws", "Echo");
    wait_end(x, 2);
    for (unsigned i = 1; i <= 2; i++) {
        assert_int_equal(PEER_UNREACHABLE, x->e[i].result);
        assert_string_equal("blocked", x->e[i].error);
        assert_true(x->e[i].dial_failed);
    }
    assert_true(peer_pool_state(x->pool, "server2", "").blocked);
    assert_string_equal("blocked", the_peer(x)->last_error);
    assert_int_equal(1, x->server.accepted);
    db.partners[0].blocked = false;
    table_read(x);
    call_at(x, 3, "", "Echo");
    wait_end(x, 3);
    assert_int_equal(PEER_ANSWER, x->e[3].result);
}

static void test_a_pair_becomes_a_partner(void **state)
{
    struct fixture *x = *state;
    start_known(x);
    call_at(x, 0, x->server.url, "Hold");
    loop_until_count(&x->loop, &x->server.n_seen, 1);
    call_at(x, 1, x->server.url, "Echo");
    partner("server2", second.url, false);
    table_read(x);
    wait_end(x, 1); /* what waited goes to the partner */
    assert_int_equal(PEER_ANSWER, x->e[1].result);
    assert_int_equal(1, second.n_seen);
    release(x, 0); /* what was asked is answered */
    wait_end(x, 0);
    assert_int_equal(PEER_ANSWER, x->e[0].result);
    while (x->server.conns)
        (void)uv_run(&x->loop, UV_RUN_ONCE);
    assert_int_equal(1, map_size(x->pool->by_key));
}

static void test_a_vanished_peer_goes_when_it_is_done(void **state)
{
    struct fixture *x = *state;
    start_known(x);
    call_at(x, 0, x->server.url, "Hold");
    loop_until_count(&x->loop, &x->server.n_seen, 1);
    struct ws_conn *old = fake_server_conn(&x->server);
    call_at(x, 1, x->server.url, "Echo");
    db.unnamed[0] = 0;
    db.n_unnamed = 1;
    table_read(x);
    assert_int_equal(1, db.n_asked);
    assert_memory_equal("server2 ws://", db.asked[0], 13);
    assert_int_equal(0, x->e[0].n + x->e[1].n);
    assert_int_equal(0, map_size(x->pool->by_key));
    call_at(x, 2, x->server.url, "Echo"); /* named again: a new one */
    wait_end(x, 2);
    assert_int_equal(PEER_ANSWER, x->e[2].result);
    assert_int_equal(2, x->server.accepted);
    assert_int_equal(2, n_peers(x));
    fake_answer(old, x->server.seen[0], x->server.ids[0]);
    wait_end(x, 0);
    wait_end(x, 1);
    assert_int_equal(PEER_ANSWER, x->e[1].result);
    while (n_peers(x) > 1)
        (void)uv_run(&x->loop, UV_RUN_ONCE);
    assert_int_equal(1, map_size(x->pool->by_key));
    call_at(x, 3, x->server.url, "Echo");
    wait_end(x, 3);
    assert_int_equal(2, x->server.accepted);
}

static void test_a_partner_without_its_row(void **state)
{
    struct fixture *x = *state;
    partner("server2", second.url, false);
    start_known(x);
    call_at(x, 0, x->server.url, "Echo");
    wait_end(x, 0);
    db.n_partners = 0;
    table_read(x);
    while (second.conns)
        (void)uv_run(&x->loop, UV_RUN_ONCE);
    call_at(x, 1, x->server.url, "Echo");
    wait_end(x, 1);
    assert_int_equal(1, x->server.n_seen); /* where the user says now */
}

static void test_private_addresses_are_for_partners(void **state)
{
    struct fixture *x = *state;
    char *error = NULL;
    x->cfg.allow_private_addresses = false;
    x->cfg.tls = tls_client_new(NULL, false, &error);
    partner("server2", "wss://127.0.0.1:1/ws", false);
    start_known(x);
    call_at(x, 0, "", "Echo");
    wait_end(x, 0);
    assert_string_equal("unreachable_refused", x->e[0].error); /* dialled */
    x->e[1].calls++;
    peer_call(x->pool, "server3", "wss://127.0.0.1:1/ws", PEER_REALTIME, "Echo", json_object(), 0,
              on_end, &x->e[1]);
    wait_end(x, 1);
    assert_string_equal("address_refused", x->e[1].error);
    tls_ctx_free(x->cfg.tls);
}

static void test_eager(void **state)
{
    struct fixture *x = *state;
    x->cfg.eager = true;
    partner("server2", x->server.url, false);
    (void)snprintf(db.known[0].login, sizeof db.known[0].login, "server2");
    (void)snprintf(db.known[0].url, sizeof db.known[0].url, "%s", x->server.url);
    db.n_known = 1;
    start_known(x);
    loop_until_count(&x->loop, &x->server.accepted, 1);
    while (!peer_pool_state(x->pool, "server2", "").connected)
        (void)uv_run(&x->loop, UV_RUN_ONCE);
    /* Lost: it comes back by itself, but not at once. Being heard from brings that forward. */
    fake_server_drop_all(&x->server);
    while (peer_pool_state(x->pool, "server2", "").connected)
        (void)uv_run(&x->loop, UV_RUN_ONCE);
    while (the_peer(x)->state != PEER_IDLE)
        (void)uv_run(&x->loop, UV_RUN_ONCE);
    assert_true(uv_is_active((uv_handle_t *)&the_peer(x)->timer));
    peer_pool_heard_from(x->pool, "server2");
    loop_until_count(&x->loop, &x->server.accepted, 2);
}

int main(void)
{
    log_setup("test", LOG_FORMAT_LOGFMT, LOG_LEVEL_ERROR);
#define T(name) cmocka_unit_test_setup_teardown(name, setup_known, teardown_known)
    const struct CMUnitTest tests[] = {
        T(test_a_partners_row_says_where_it_is),
        T(test_a_record_redirects_its_own_messages_only),
        T(test_calls_wait_until_partners_are_known),
        T(test_a_changed_url_waits_for_what_is_in_flight),
        T(test_a_changed_url_ends_the_backoff),
        T(test_a_blocked_server),
        T(test_a_pair_becomes_a_partner),
        T(test_a_vanished_peer_goes_when_it_is_done),
        T(test_a_partner_without_its_row),
        T(test_private_addresses_are_for_partners),
        T(test_eager),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
