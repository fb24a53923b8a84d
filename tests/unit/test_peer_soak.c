/*
 * Everything at once, at random: calls of all kinds, connections that break, servers that refuse,
 * tables that change, until the pool is closed in the middle of it. Whatever happens, every call
 * ends once, nothing is matched that was not asked, and all is freed (sanitizers).
 */
#include "peer_fixture.h"

#include "store/peers.h"
#include "util/log.h"
#include "util/mem.h"

enum { SERVERS = 3, CALLS = 600, RUNS = 4 };

static struct {
    uint64_t seed;
    struct fake_server servers[SERVERS];
    struct store_partner partners[SERVERS];
    size_t n_partners;
    unsigned made, ended;
    uint8_t told[CALLS];
    struct peer_pool *pool;
    bool stop;
} s;

static unsigned pick(unsigned n)
{
    s.seed = s.seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(s.seed >> 33) % n;
}

/* --- the store: answers in a later turn, from what the table says then --- */

struct later {
    uv_timer_t timer;
    void (*run)(struct later *l);
    void (*cb)(void);
    void *ctx;
    size_t n;
};
static uv_loop_t *db_loop;
static unsigned db_open;

static void free_later(uv_handle_t *h)
{
    db_open--;
    free(h->data);
}

static void run_later(uv_timer_t *t)
{
    struct later *l = t->data;
    l->run(l);
    uv_close((uv_handle_t *)t, free_later);
}

static void later(void (*run)(struct later *l), void (*cb)(void), void *ctx, size_t n)
{
    struct later *l = xnew(struct later);
    *l = (struct later){.run = run, .cb = cb, .ctx = ctx, .n = n};
    (void)uv_timer_init(db_loop, &l->timer);
    l->timer.data = l;
    db_open++;
    (void)uv_timer_start(&l->timer, run_later, pick(4), 0);
}

static enum db_status luck(void)
{
    return pick(5) == 0 ? DB_UNAVAILABLE : DB_OK;
}

static void tell_partners(struct later *l)
{
    ((store_partners_cb)l->cb)(l->ctx, luck(), s.partners, s.n_partners);
}

void store_read_partners(struct store *st, store_partners_cb cb, void *ctx)
{
    (void)st;
    later(tell_partners, (void (*)(void))cb, ctx, 0);
}

static void tell_unnamed(struct later *l)
{
    size_t which[64], n = 0;
    for (size_t i = 0; i < l->n && n < 64; i++)
        if (pick(3) == 0)
            which[n++] = i;
    ((store_unnamed_cb)l->cb)(l->ctx, luck(), which, n);
}

void store_unnamed_peers(struct store *st, const struct store_route *peers, size_t n,
                         store_unnamed_cb cb, void *ctx)
{
    (void)st, (void)peers;
    later(tell_unnamed, (void (*)(void))cb, ctx, n);
}

static void tell_known(struct later *l)
{
    struct store_route rows[SERVERS] = {0};
    for (size_t i = 0; i < SERVERS; i++) {
        (void)snprintf(rows[i].login, sizeof rows[i].login, "%s", s.servers[i].login);
        (void)snprintf(rows[i].url, sizeof rows[i].url, "%s", s.servers[i].url);
    }
    ((store_known_cb)l->cb)(l->ctx, luck(), rows, SERVERS);
}

void store_known_peers(struct store *st, unsigned limit, store_known_cb cb, void *ctx)
{
    (void)st, (void)limit;
    later(tell_known, (void (*)(void))cb, ctx, 0);
}

/* --- the servers --- */

static void answer_somehow(struct fake_server *server, struct ws_conn *conn, const char *op,
                           const char *id)
{
    server->n_seen = 0; /* a short memory */
    switch (pick(8)) {
    case 0:
        return;
    case 1:
        ws_close(conn, 1011, "scripted");
        return;
    case 2:
        fake_fail(conn, op, id, 503, "OVERLOADED", NULL);
        return;
    case 3:
        fake_answer(conn, op, "p1");
        return;
    case 4:
        fake_answer(conn, op, id);
        fake_answer(conn, op, id);
        return;
    default:
        fake_answer(conn, op, id);
    }
}

/* --- what happens --- */

static void on_call_end(void *ctx, const struct peer_answer *a)
{
    size_t i = (size_t)(uintptr_t)ctx;
    assert_int_equal(0, s.told[i]); /* once */
    s.told[i] = 1;
    s.ended++;
    if (a->result == PEER_ANSWER)
        assert_true(a->written && a->payload);
    if (a->result == PEER_OVERLOADED)
        assert_false(a->written || a->dial_failed);
}

static void make_call(void)
{
    const struct fake_server *to = &s.servers[pick(SERVERS)];
    const struct fake_server *where = pick(4) ? to : &s.servers[pick(SERVERS)];
    const struct peer_request r = {.login = to->login,
                                   .url = where->url,
                                   .lane = (enum peer_lane)pick(3),
                                   .flags = pick(3) == 0 ? PEER_WAIT_DIAL : 0,
                                   .op = "Echo",
                                   .payload = json_object(),
                                   .timeout_ms = 50 + pick(400)};
    size_t i = s.made++;
    peer_request(s.pool, &r, on_call_end, (void *)(uintptr_t)i);
}

static void change_table(void)
{
    s.n_partners = 0;
    for (unsigned i = 0; i < SERVERS; i++)
        if (pick(2))
            s.partners[s.n_partners++] = (struct store_partner){.login = s.servers[i].login,
                                                                .url = s.servers[pick(SERVERS)].url,
                                                                .public_keys = "",
                                                                .blocked = pick(4) == 0};
}

static void step(struct partners *partners)
{
    switch (pick(12)) {
    case 0:
        fake_server_drop_all(&s.servers[pick(SERVERS)]);
        break;
    case 1:
        s.servers[pick(SERVERS)].hello = (enum fake_hello)pick(4);
        break;
    case 2:
        change_table();
        partners_refresh(partners);
        break;
    case 3:
        peer_pool_heard_from(s.pool, s.servers[pick(SERVERS)].login);
        break;
    case 4:
        (void)peer_pool_state(s.pool, s.servers[0].login, s.servers[pick(SERVERS)].url);
        break;
    default:
        for (unsigned n = pick(6); n > 0 && s.made < CALLS; n--)
            make_call();
    }
}

static void on_flag(void *ctx)
{
    *(bool *)ctx = true;
}

static void run_once(uint64_t seed)
{
    uv_loop_t loop;
    bool pool_closed = false, partners_closed = false;
    memset(&s, 0, sizeof s);
    s.seed = seed;
    assert_int_equal(0, uv_loop_init(&loop));
    db_loop = &loop;
    for (unsigned i = 0; i < SERVERS; i++) {
        char login[16];
        (void)snprintf(login, sizeof login, "server%u", i + 2);
        fake_server_start(&s.servers[i], &loop, login);
        s.servers[i].on_request = answer_somehow;
    }
    struct partners *partners = partners_new(&loop, (struct store *)(void *)&s, 20);
    const struct peer_config cfg = {.server_login = "server1",
                                    .ping_idle_ms = 200,
                                    .pong_timeout_ms = 100,
                                    .request_timeout_ms = 60,
                                    .connect_timeout_ms = 100,
                                    .caller_timeout_ms = 300,
                                    .max_queue_per_peer = 20,
                                    .max_in_flight_per_peer = 8,
                                    .allow_private_addresses = true,
                                    .max_peers = 4,
                                    .dials_per_second = 50,
                                    .partners = partners,
                                    .store = (struct store *)(void *)&s,
                                    .eager = pick(2)};
    s.pool = peer_pool_new(&loop, &cfg);
    while (s.made < CALLS) {
        step(partners);
        loop_for(&loop, pick(8));
    }
    peer_pool_close(s.pool, on_flag, &pool_closed);
    partners_close(partners, on_flag, &partners_closed);
    loop_until(&loop, &pool_closed);
    loop_until(&loop, &partners_closed);
    assert_int_equal(CALLS, s.ended);
    for (unsigned i = 0; i < SERVERS; i++)
        fake_server_stop(&s.servers[i]);
    while (db_open > 0)
        (void)uv_run(&loop, UV_RUN_ONCE);
    loop_finish(&loop);
}

static void test_everything_at_once(void **state)
{
    (void)state;
    for (uint64_t run = 1; run <= RUNS; run++)
        run_once(run);
}

int main(void)
{
    log_setup("test", LOG_FORMAT_LOGFMT, LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_everything_at_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
