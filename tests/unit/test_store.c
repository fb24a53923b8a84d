/*
 * Users, servers, sessions and processes in the store against a private PostgreSQL: what C hands
 * over arrives, what comes back is decoded. The rules themselves are tested in tests/sql.
 */
#include "store/sessions.h"
#include "store/users.h"
#include "support_store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* --- waiting for one callback --- */

struct seen {
    struct store_answer a;
    int verdict;
    struct store_user user;
    char enc_key[64], pwd[64], source[16];
    struct store_session session;
    struct store_server server;
    size_t n;
    bool flag;
};

static void on_user(void *ctx, enum db_status st, const struct store_user *u)
{
    struct seen *s = ctx;
    store_answer_note(&s->a, st);
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
    store_answer_note(&s->a, st);
    s->verdict = (int)v;
}

static void on_found(void *ctx, enum db_status st, bool found)
{
    struct seen *s = ctx;
    store_answer_note(&s->a, st);
    s->flag = found;
}

static void on_done(void *ctx, enum db_status st)
{
    struct seen *s = ctx;
    store_answer_note(&s->a, st);
}

static void on_servers(void *ctx, enum db_status st, const struct store_server *rows, size_t n)
{
    struct seen *s = ctx;
    store_answer_note(&s->a, st);
    s->n = n;
    if (n > 0)
        s->server = rows[0];
}

static void on_session(void *ctx, enum db_status st, const struct store_session *row)
{
    struct seen *s = ctx;
    store_answer_note(&s->a, st);
    if (!row)
        return;
    s->session = *row;
    (void)snprintf(s->pwd, sizeof s->pwd, "%s", row->storage_pwd ? row->storage_pwd : "");
}

static void test_users(void **state)
{
    struct store_fixture *e = *state;
    struct store_user u = {.n_servers = 2,
                           .enc_key = "ZW5j",
                           .enc_key_sig = "c2ln",
                           .servers = {{"home", "wss://home/ws"}, {"other", "wss://other/ws"}}};
    (void)snprintf(u.login, sizeof u.login, "uma");
    memset(u.client_key, 7, sizeof u.client_key);

    struct seen s = {0};
    store_get_user(e->store, "uma", on_user, &s);
    store_fixture_wait(e, &s.a);
    assert_false(s.flag);

    s = (struct seen){0};
    store_add_user(e->store, &u, on_verdict, &s);
    store_fixture_wait(e, &s.a);
    assert_int_equal(s.verdict, STORE_ADDED);
    s = (struct seen){0};
    store_add_user(e->store, &u, on_verdict, &s);
    store_fixture_wait(e, &s.a);
    assert_int_equal(s.verdict, STORE_SAME);
    u.client_key[0] = 8;
    s = (struct seen){0};
    store_add_user(e->store, &u, on_verdict, &s);
    store_fixture_wait(e, &s.a);
    assert_int_equal(s.verdict, STORE_OTHER_KEY);
    u.client_key[0] = 7;

    s = (struct seen){0};
    store_get_user(e->store, "uma", on_user, &s);
    store_fixture_wait(e, &s.a);
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
    store_fixture_wait(e, &s.a);
    assert_true(s.flag);
    s = (struct seen){0};
    store_set_servers(e->store, "nobody", &(struct store_route){"third", "wss://third/"}, 1,
                      on_found, &s);
    store_fixture_wait(e, &s.a);
    assert_false(s.flag);
    s = (struct seen){0};
    store_get_user(e->store, "uma", on_user, &s);
    store_fixture_wait(e, &s.a);
    assert_int_equal(s.user.n_servers, 1);
    assert_string_equal(s.user.servers[0].login, "third");

    /* A damaged key ends the call, not the process. */
    pg_exec(e->pg, "UPDATE users SET client_key = 'garbage' WHERE login = 'uma'");
    s = (struct seen){0};
    store_get_user(e->store, "uma", on_user, &s);
    assert_true(run_until(&e->loop, store_answer_came, &s.a));
    assert_int_equal(s.a.st, DB_ERROR);
    assert_false(s.flag);
}

static void test_servers(void **state)
{
    struct store_fixture *e = *state;
    struct seen s = {0};
    store_add_server(e->store, "zed", "wss://zed/ws", NULL, on_done, &s);
    store_fixture_wait(e, &s.a);
    s = (struct seen){0};
    store_add_server(e->store, "zed", "wss://zed:444/ws", "a2V5", on_done, &s);
    store_fixture_wait(e, &s.a);
    s = (struct seen){0};
    store_list_servers(e->store, on_servers, &s);
    store_fixture_wait(e, &s.a);
    assert_int_equal(s.n, 1);
    assert_string_equal(s.server.login, "zed");
    assert_string_equal(s.server.url, "wss://zed:444/ws");
    assert_false(s.server.blocked);
    assert_int_equal(pg_query_int(e->pg, "SELECT cardinality(public_keys) FROM sync_servers"), 1);
}

static void test_sessions(void **state)
{
    struct store_fixture *e = *state;
    store_fixture_add_user(e, "sara", "local", "{home}", "{wss://home/ws}");
    struct store_new_session n = {.session_id = "sess-1",
                                  .login = "sara",
                                  .storage_pwd = "pwd",
                                  .client_info = "{}",
                                  .mode = STORE_EVENTS_PTS,
                                  .max_per_user = 1};
    memset(n.session_key, 9, sizeof n.session_key);
    struct seen s = {0};
    store_create_session(e->store, &n, on_session, &s);
    store_fixture_wait(e, &s.a);
    assert_int_equal(s.session.verdict, STORE_SESSION_OK);
    assert_string_equal(s.session.login, "sara");
    assert_int_equal(s.session.epoch, 1);
    assert_int_equal(s.session.generation, 1);

    n.session_id = "sess-2";
    s = (struct seen){0};
    store_create_session(e->store, &n, on_session, &s);
    store_fixture_wait(e, &s.a);
    assert_int_equal(s.session.verdict, STORE_SESSION_TOO_MANY);
    n.login = "nobody";
    s = (struct seen){0};
    store_create_session(e->store, &n, on_session, &s);
    store_fixture_wait(e, &s.a);
    assert_int_equal(s.session.verdict, STORE_SESSION_NOT_FOUND);

    s = (struct seen){0};
    store_get_session(e->store, "sess-0", on_session, &s);
    store_fixture_wait(e, &s.a);
    assert_int_equal(s.session.verdict, STORE_SESSION_NOT_FOUND);
    s = (struct seen){0};
    store_get_session(e->store, "sess-1", on_session, &s);
    store_fixture_wait(e, &s.a);
    assert_int_equal(s.session.verdict, STORE_SESSION_OK);
    assert_memory_equal(s.session.session_key, n.session_key, sizeof n.session_key);
    assert_string_equal(s.pwd, "pwd");

    s = (struct seen){0};
    store_login_session(e->store, "sess-1", "{\"v\":2}", STORE_EVENTS_LIVE, on_session, &s);
    store_fixture_wait(e, &s.a);
    assert_int_equal(s.session.generation, 2);
    const char *connected = "SELECT count(*) FROM active_sessions WHERE connected_to = 'p1'";
    assert_int_equal(pg_query_int(e->pg, connected), 1);

    /* The end of an older connection does not disconnect the newer one. */
    store_disconnect_session(e->store, "sess-1", 1);
    s = (struct seen){0};
    store_get_session(e->store, "sess-1", on_session, &s);
    store_fixture_wait(e, &s.a);
    assert_int_equal(pg_query_int(e->pg, connected), 1);
}

static void test_processes(void **state)
{
    struct store_fixture *e = *state;
    struct seen s = {0};
    store_process_register(e->store, "frontd", "host", 42, on_done, &s);
    store_fixture_wait(e, &s.a);
    assert_int_equal(pg_query_int(e->pg, "SELECT pid FROM processes WHERE process_id = 'p1'"), 42);
    store_process_heartbeat(e->store, "frontd", "host", 42);
    const char *const owners[] = {"sara", "tom"};
    store_notify_events(e->store, owners, 2);
    s = (struct seen){0};
    store_process_unregister(e->store, on_done, &s);
    store_fixture_wait(e, &s.a);
    /* Calls on two connections have no order among them, so a late heartbeat may re-register. */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_users),
        cmocka_unit_test(test_servers),
        cmocka_unit_test(test_sessions),
        cmocka_unit_test(test_processes),
    };
    return cmocka_run_group_tests(tests, store_fixture_setup, store_fixture_teardown);
}
