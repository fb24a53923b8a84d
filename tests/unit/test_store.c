/*
 * The store against a private PostgreSQL: what C hands over arrives, what comes back is decoded.
 * The rules themselves are tested in tests/sql.
 */
#include "db/migrate.h"
#include "store/delivery.h"
#include "store/sessions.h"
#include "store/users.h"
#include "support_db.h"
#include "support_pg.h"
#include "util/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct env {
    struct pg *pg;
    uv_loop_t loop;
    struct db_pool *pool;
    struct store *store;
};

static int setup(void **state)
{
    struct env *e = xnew(struct env);
    e->pg = pg_new(NULL);
    for (size_t i = 0; i < sql_files_count; i++)
        pg_exec(e->pg, sql_files[i].text);
    assert_int_equal(uv_loop_init(&e->loop), 0);
    e->pool = db_pool_new(&e->loop, pg_conninfo(e->pg), "test_store", 2);
    e->store = store_new(e->pool,
                         &(struct store_identity){.server_login = "home", .process_id = "p1"}, 50);
    assert_true(run_until_ready(&e->loop, e->pool));
    *state = e;
    return 0;
}

static int teardown(void **state)
{
    struct env *e = *state;
    close_pool_and_loop(e->pool, &e->loop);
    store_free(e->store);
    pg_free(e->pg);
    free(e);
    return 0;
}

/* --- waiting for one callback --- */

struct seen {
    int calls;
    enum db_status st;
    int verdict;
    struct store_user user;
    char enc_key[64], pwd[64], source[16];
    struct store_session session;
    struct store_server server;
    size_t n;
    bool flag;
    struct store_event event;
    struct store_history_item item;
    char key[DM_MESSAGE_KEY_MAX], state[16];
    uint8_t blob[64];
    size_t blob_len;
    struct store_delivery_status status;
};

static bool was_called(void *ctx)
{
    return ((struct seen *)ctx)->calls > 0;
}

static void wait_for(struct env *e, struct seen *s)
{
    assert_int_equal(s->calls, 0); /* never synchronous */
    assert_true(run_until(&e->loop, was_called, s));
    assert_int_equal(s->calls, 1);
    assert_int_equal(s->st, DB_OK);
}

static void on_user(void *ctx, enum db_status st, const struct store_user *u)
{
    struct seen *s = ctx;
    s->calls++;
    s->st = st;
    s->flag = u != NULL;
    if (!u)
        return;
    s->user = *u;
    (void)snprintf(s->enc_key, sizeof s->enc_key, "%s", u->enc_key ? u->enc_key : "");
    (void)snprintf(s->source, sizeof s->source, "%s", u->source);
}

static void on_verdict(void *ctx, enum db_status st, enum store_add v)
{
    struct seen *s = ctx;
    s->calls++;
    s->st = st;
    s->verdict = (int)v;
}

static void on_found(void *ctx, enum db_status st, bool found)
{
    struct seen *s = ctx;
    s->calls++;
    s->st = st;
    s->flag = found;
}

static void on_done(void *ctx, enum db_status st)
{
    struct seen *s = ctx;
    s->calls++;
    s->st = st;
}

static void on_servers(void *ctx, enum db_status st, const struct store_server *rows, size_t n)
{
    struct seen *s = ctx;
    s->calls++;
    s->st = st;
    s->n = n;
    if (n > 0)
        s->server = rows[0];
}

static void on_session(void *ctx, enum db_status st, const struct store_session *row)
{
    struct seen *s = ctx;
    s->calls++;
    s->st = st;
    if (!row)
        return;
    s->session = *row;
    (void)snprintf(s->pwd, sizeof s->pwd, "%s", row->storage_pwd ? row->storage_pwd : "");
}

static void add_user(struct env *e, const char *login, const char *server)
{
    struct store_user u = {.n_servers = 1};
    (void)snprintf(u.login, sizeof u.login, "%s", login);
    (void)snprintf(u.servers[0].login, sizeof u.servers[0].login, "%s", server);
    (void)snprintf(u.servers[0].url, sizeof u.servers[0].url, "wss://%s/ws", server);
    memset(u.client_key, login[0], sizeof u.client_key);
    struct seen s = {0};
    store_add_user(e->store, &u, on_verdict, &s);
    wait_for(e, &s);
}

static void test_users(void **state)
{
    struct env *e = *state;
    struct store_user u = {.n_servers = 2,
                           .enc_key = "ZW5j",
                           .enc_key_sig = "c2ln",
                           .servers = {{"home", "wss://home/ws"}, {"other", "wss://other/ws"}}};
    (void)snprintf(u.login, sizeof u.login, "uma");
    memset(u.client_key, 7, sizeof u.client_key);

    struct seen s = {0};
    store_get_user(e->store, "uma", on_user, &s);
    wait_for(e, &s);
    assert_false(s.flag);

    s = (struct seen){0};
    store_add_user(e->store, &u, on_verdict, &s);
    wait_for(e, &s);
    assert_int_equal(s.verdict, STORE_ADDED);
    s = (struct seen){0};
    store_add_user(e->store, &u, on_verdict, &s);
    wait_for(e, &s);
    assert_int_equal(s.verdict, STORE_SAME);
    u.client_key[0] = 8;
    s = (struct seen){0};
    store_add_user(e->store, &u, on_verdict, &s);
    wait_for(e, &s);
    assert_int_equal(s.verdict, STORE_OTHER_KEY);
    u.client_key[0] = 7;

    s = (struct seen){0};
    store_get_user(e->store, "uma", on_user, &s);
    wait_for(e, &s);
    assert_true(s.flag);
    assert_string_equal(s.user.login, "uma");
    assert_memory_equal(s.user.client_key, u.client_key, sizeof u.client_key);
    assert_int_equal(s.user.n_servers, 2);
    assert_string_equal(s.user.servers[0].login, "home");
    assert_string_equal(s.user.servers[1].url, "wss://other/ws");
    assert_string_equal(s.enc_key, "ZW5j");
    assert_string_equal(s.source, "local");

    s = (struct seen){0};
    store_set_servers(e->store, "uma", &(struct store_route){"third", "wss://third/"}, 1, on_found,
                      &s);
    wait_for(e, &s);
    assert_true(s.flag);
    s = (struct seen){0};
    store_set_servers(e->store, "nobody", &(struct store_route){"third", "wss://third/"}, 1,
                      on_found, &s);
    wait_for(e, &s);
    assert_false(s.flag);
    s = (struct seen){0};
    store_get_user(e->store, "uma", on_user, &s);
    wait_for(e, &s);
    assert_int_equal(s.user.n_servers, 1);
    assert_string_equal(s.user.servers[0].login, "third");

    /* A damaged key ends the call, not the process. */
    pg_exec(e->pg, "UPDATE users SET client_key = 'garbage' WHERE login = 'uma'");
    s = (struct seen){0};
    store_get_user(e->store, "uma", on_user, &s);
    assert_true(run_until(&e->loop, was_called, &s));
    assert_int_equal(s.st, DB_ERROR);
    assert_false(s.flag);
}

static void test_servers(void **state)
{
    struct env *e = *state;
    struct seen s = {0};
    store_add_server(e->store, "zed", "wss://zed/ws", NULL, on_done, &s);
    wait_for(e, &s);
    s = (struct seen){0};
    store_add_server(e->store, "zed", "wss://zed:444/ws", "a2V5", on_done, &s);
    wait_for(e, &s);
    s = (struct seen){0};
    store_list_servers(e->store, on_servers, &s);
    wait_for(e, &s);
    assert_int_equal(s.n, 1);
    assert_string_equal(s.server.login, "zed");
    assert_string_equal(s.server.url, "wss://zed:444/ws");
    assert_false(s.server.blocked);
    assert_int_equal(pg_query_int(e->pg, "SELECT cardinality(public_keys) FROM sync_servers"), 1);
}

static void test_sessions(void **state)
{
    struct env *e = *state;
    add_user(e, "sara", "home");
    struct store_new_session n = {.session_id = "sess-1",
                                  .login = "sara",
                                  .storage_pwd = "pwd",
                                  .client_info = "{}",
                                  .mode = STORE_EVENTS_PTS,
                                  .max_per_user = 1};
    memset(n.session_key, 9, sizeof n.session_key);
    struct seen s = {0};
    store_create_session(e->store, &n, on_session, &s);
    wait_for(e, &s);
    assert_int_equal(s.session.verdict, STORE_SESSION_OK);
    assert_string_equal(s.session.login, "sara");
    assert_int_equal(s.session.epoch, 1);
    assert_int_equal(s.session.generation, 1);

    n.session_id = "sess-2";
    s = (struct seen){0};
    store_create_session(e->store, &n, on_session, &s);
    wait_for(e, &s);
    assert_int_equal(s.session.verdict, STORE_SESSION_TOO_MANY);
    n.login = "nobody";
    s = (struct seen){0};
    store_create_session(e->store, &n, on_session, &s);
    wait_for(e, &s);
    assert_int_equal(s.session.verdict, STORE_SESSION_NOT_FOUND);

    s = (struct seen){0};
    store_get_session(e->store, "sess-0", on_session, &s);
    wait_for(e, &s);
    assert_int_equal(s.session.verdict, STORE_SESSION_NOT_FOUND);
    s = (struct seen){0};
    store_get_session(e->store, "sess-1", on_session, &s);
    wait_for(e, &s);
    assert_int_equal(s.session.verdict, STORE_SESSION_OK);
    assert_memory_equal(s.session.session_key, n.session_key, sizeof n.session_key);
    assert_string_equal(s.pwd, "pwd");

    s = (struct seen){0};
    store_login_session(e->store, "sess-1", "{\"v\":2}", STORE_EVENTS_LIVE, on_session, &s);
    wait_for(e, &s);
    assert_int_equal(s.session.generation, 2);
    const char *connected = "SELECT count(*) FROM active_sessions WHERE connected_to = 'p1'";
    assert_int_equal(pg_query_int(e->pg, connected), 1);

    /* The end of an older connection does not disconnect the newer one. */
    store_disconnect_session(e->store, "sess-1", 1);
    s = (struct seen){0};
    store_get_session(e->store, "sess-1", on_session, &s);
    wait_for(e, &s);
    assert_int_equal(pg_query_int(e->pg, connected), 1);
}

static void test_processes(void **state)
{
    struct env *e = *state;
    struct seen s = {0};
    store_process_register(e->store, "frontd", "host", 42, on_done, &s);
    wait_for(e, &s);
    assert_int_equal(pg_query_int(e->pg, "SELECT pid FROM processes WHERE process_id = 'p1'"), 42);
    store_process_heartbeat(e->store, "frontd", "host", 42);
    const char *const owners[] = {"sara", "tom"};
    store_notify_events(e->store, owners, 2);
    s = (struct seen){0};
    store_process_unregister(e->store, on_done, &s);
    wait_for(e, &s);
    /* Calls on two connections have no order among them, so a late heartbeat may re-register. */
}

/* --- messages --- */

struct pair_case {
    struct store_pair pair;
    int calls;
    enum db_status st;
};

static void fill_copy(struct store_copy *c, enum dm_type type, const char *from, const char *to,
                      int64_t time_ms, uint32_t nonce, const char *blob)
{
    c->c = (struct dm_container){.type = type, .time_ms = time_ms, .nonce = nonce};
    (void)snprintf(c->c.from, sizeof c->c.from, "%s", from);
    (void)snprintf(c->c.to, sizeof c->c.to, "%s", to);
    c->blob = (const uint8_t *)blob;
    c->blob_len = strlen(blob);
    dm_sha256(c->blob, c->blob_len, c->sha256);
}

static void pair_done(struct store_pair *p, enum db_status st)
{
    struct pair_case *c = p->ctx;
    c->calls++;
    c->st = st;
}

static void fill_pair(struct pair_case *c, const char *from, const char *to, uint32_t nonce)
{
    *c = (struct pair_case){.pair = {.max_future_ms = 900000, .done = pair_done}};
    c->pair.ctx = c;
    list_init(&c->pair.item.link);
    fill_copy(&c->pair.in, DM_TEXT_IN, from, to, 1000, nonce, "the incoming copy");
    fill_copy(&c->pair.out, DM_TEXT_OUT, from, to, 1000, nonce, "the outgoing copy");
}

static bool pair_called(void *ctx)
{
    return ((struct pair_case *)ctx)->calls > 0;
}

static void on_events(void *ctx, enum db_status st, const struct store_event *rows, size_t n)
{
    struct seen *s = ctx;
    s->calls++;
    s->st = st;
    s->n = n;
    if (n == 0)
        return;
    s->event = rows[0];
    (void)snprintf(s->key, sizeof s->key, "%s", rows[0].message_key);
    (void)snprintf(s->state, sizeof s->state, "%s",
                   rows[0].delivery_state ? rows[0].delivery_state : "");
    s->blob_len = rows[0].blob_len;
    memcpy(s->blob, rows[0].blob, rows[0].blob_len);
}

static void on_history(void *ctx, enum db_status st, const struct store_history_item *rows,
                       size_t n, bool more)
{
    struct seen *s = ctx;
    s->calls++;
    s->st = st;
    s->n = n;
    s->flag = more;
    if (n == 0)
        return;
    s->item = rows[0];
    (void)snprintf(s->key, sizeof s->key, "%s", rows[0].message_key);
    (void)snprintf(s->state, sizeof s->state, "%s",
                   rows[0].delivery_state ? rows[0].delivery_state : "");
}

static void test_pair_served_here(void **state)
{
    struct env *e = *state;
    add_user(e, "anna", "home");
    add_user(e, "ben", "home");
    enum { N = 120 }; /* more than one batch */
    static struct pair_case c[N];
    for (uint32_t i = 0; i < N; i++) {
        fill_pair(&c[i], "anna", "ben", i + 1);
        store_accept_pair(e->store, &c[i].pair);
        assert_int_equal(c[i].calls, 0);
    }
    for (uint32_t i = 0; i < N; i++) {
        assert_true(run_until(&e->loop, pair_called, &c[i]));
        assert_int_equal(c[i].st, DB_OK);
        assert_int_equal(c[i].pair.verdict, STORE_OK);
        assert_int_equal(c[i].pair.state, DM_STATE_DELIVERED);
        assert_false(c[i].pair.attempt);
        assert_true(c[i].pair.from.pts > 0 && c[i].pair.to.pts > 0);
    }

    struct seen s = {0};
    store_events_since(e->store, (const char *const[]){"anna", "ben"}, (const int64_t[]){N - 1, N},
                       2, 100, on_events, &s);
    wait_for(e, &s);
    assert_int_equal(s.n, 1);
    assert_int_equal(s.event.pts, N);
    assert_int_equal(s.event.kind, STORE_EVENT_MESSAGE);
    assert_int_equal(s.event.type, DM_TEXT_OUT);
    assert_int_equal(s.event.time_ms, 1000);
    assert_false(s.event.more);
    assert_false(s.event.gone);
    assert_string_equal(s.state, "delivered");
    assert_int_equal(s.blob_len, strlen("the outgoing copy"));
    assert_memory_equal(s.blob, "the outgoing copy", s.blob_len);

    s = (struct seen){0};
    store_history(e->store,
                  &(struct store_history_query){.owner = "ben",
                                                .with = "anna",
                                                .limit = 10,
                                                .before_time_ms = -1,
                                                .max_blob_bytes = 1 << 20},
                  on_history, &s);
    wait_for(e, &s);
    assert_int_equal(s.n, 10);
    assert_true(s.flag);
    assert_string_equal(s.key, "anna|ben|1000|9|1"); /* by bytes: a bar is above any digit */
    assert_int_equal(s.item.read_at_ms, -1);
    assert_string_equal(s.state, "");
}

static void on_status(void *ctx, enum db_status st, const struct store_delivery_status *row)
{
    struct seen *s = ctx;
    s->calls++;
    s->st = st;
    s->status = *row;
}

static void on_shown(void *ctx, enum db_status st, const struct store_text_row *row)
{
    struct seen *s = ctx;
    s->calls++;
    s->st = st;
    s->n = row->n;
    for (size_t i = 0; i < row->n; i++)
        if (strcmp(row->names[i], "state") == 0)
            (void)snprintf(s->state, sizeof s->state, "%s", row->values[i]);
}

struct finish_case {
    struct store_finish f;
    int calls;
    enum db_status st;
};

static void finish_done(struct store_finish *f, enum db_status st)
{
    struct finish_case *c = f->ctx;
    c->calls++;
    c->st = st;
}

static bool finish_called(void *ctx)
{
    return ((struct finish_case *)ctx)->calls > 0;
}

static void test_pair_elsewhere(void **state)
{
    struct env *e = *state;
    add_user(e, "cara", "home");
    add_user(e, "dan", "far");
    struct pair_case c;
    fill_pair(&c, "cara", "dan", UINT32_MAX);
    store_accept_pair(e->store, &c.pair);
    assert_true(run_until(&e->loop, pair_called, &c));
    assert_int_equal(c.pair.verdict, STORE_OK);
    assert_int_equal(c.pair.state, DM_STATE_ACCEPTED);
    assert_true(c.pair.attempt);
    assert_int_equal(c.pair.to.pts, 0);
    assert_in_range(c.pair.lease_ms, 1, 30000);
    assert_int_equal(c.pair.n_routes, 1);
    assert_string_equal(c.pair.routes[0].login, "far");
    assert_string_equal(c.pair.routes[0].url, "wss://far/ws");

    struct finish_case f = {.f = {.from_login = "cara",
                                  .outgoing_key = "cara|dan|1000|4294967295|2",
                                  .row_version = c.pair.row_version,
                                  .outcome = STORE_ATTEMPT_DELIVERED,
                                  .via = "far",
                                  .error = "",
                                  .done = finish_done}};
    f.f.ctx = &f;
    list_init(&f.f.item.link);
    store_finish_attempt(e->store, &f.f);
    assert_true(run_until(&e->loop, finish_called, &f));
    assert_int_equal(f.st, DB_OK);
    assert_true(f.f.recorded);
    assert_int_equal(f.f.state, DM_STATE_DELIVERED);
    assert_int_equal(f.f.from.pts, 2);

    struct dm_key key;
    assert_true(dm_key_parse("cara|dan|1000|4294967295|1", &key));
    struct seen s = {0};
    store_delivery_status(e->store, &key, on_status, &s);
    wait_for(e, &s);
    assert_true(s.status.known && s.status.delivered);
    s = (struct seen){0};
    store_delivery_show(e->store, &key, on_shown, &s);
    wait_for(e, &s);
    assert_true(s.n > 5);
    assert_string_equal(s.state, "delivered");

    s = (struct seen){0};
    store_events_since(e->store, (const char *const[]){"cara"}, (const int64_t[]){1}, 1, 100,
                       on_events, &s);
    wait_for(e, &s);
    assert_int_equal(s.n, 1);
    assert_int_equal(s.event.kind, STORE_EVENT_STATE);
    assert_string_equal(s.state, "delivered");
    assert_string_equal(s.key, "cara|dan|1000|4294967295|2");
}

static void test_refusals(void **state)
{
    struct env *e = *state;
    add_user(e, "eve", "home");
    add_user(e, "fay", "far");
    struct pair_case unserved, unknown, ahead;
    fill_pair(&unserved, "fay", "eve", 1);
    fill_pair(&unknown, "eve", "nobody", 1);
    fill_pair(&ahead, "eve", "fay", 1);
    ahead.pair.in.c.time_ms = ahead.pair.out.c.time_ms = DM_INT_MAX;
    store_accept_pair(e->store, &unserved.pair);
    store_accept_pair(e->store, &unknown.pair);
    store_accept_pair(e->store, &ahead.pair);
    assert_true(run_until(&e->loop, pair_called, &unserved));
    assert_true(run_until(&e->loop, pair_called, &unknown));
    assert_true(run_until(&e->loop, pair_called, &ahead));
    assert_int_equal(unserved.pair.verdict, STORE_NOT_SERVED);
    assert_int_equal(unknown.pair.verdict, STORE_UNKNOWN_USER);
    assert_int_equal(ahead.pair.verdict, STORE_TIME_AHEAD);
}

struct incoming_case {
    struct store_incoming in;
    int calls;
    enum db_status st;
};

static void incoming_done(struct store_incoming *p, enum db_status st)
{
    struct incoming_case *c = p->ctx;
    c->calls++;
    c->st = st;
}

static bool incoming_called(void *ctx)
{
    return ((struct incoming_case *)ctx)->calls > 0;
}

static void test_incoming(void **state)
{
    struct env *e = *state;
    add_user(e, "gil", "far");
    add_user(e, "hana", "home");
    struct incoming_case c = {.in = {.done = incoming_done, .source = "far"}};
    c.in.ctx = &c;
    list_init(&c.in.item.link);
    fill_copy(&c.in.in, DM_TEXT_IN, "gil", "hana", 1000, 3, "blob");
    store_apply_incoming(e->store, &c.in);
    assert_true(run_until(&e->loop, incoming_called, &c));
    assert_int_equal(c.st, DB_OK);
    assert_int_equal(c.in.verdict, STORE_OK);
    assert_int_equal(c.in.to.pts, 1);
    assert_int_equal(c.in.from.pts, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_users),
        cmocka_unit_test(test_servers),
        cmocka_unit_test(test_sessions),
        cmocka_unit_test(test_processes),
        cmocka_unit_test(test_pair_served_here),
        cmocka_unit_test(test_pair_elsewhere),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_incoming),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
