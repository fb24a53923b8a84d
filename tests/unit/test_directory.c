/*
 * The cache of users, over a store that the test answers by hand.
 */
#include "directory/directory.h"

#include "util/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TTL_MS = 60 * 1000, MAX_ENTRIES = 3, CALLS_MAX = 16 };

/* --- the store: remembers what was asked --- */

static struct {
    char login[DM_LOGIN_MAX + 1];
    store_user_cb cb;
    void *ctx;
} asked[CALLS_MAX];
static size_t n_asked;

void store_get_user(struct store *s, const char *login, store_user_cb cb, void *ctx)
{
    (void)s;
    assert_true(n_asked < CALLS_MAX);
    (void)snprintf(asked[n_asked].login, sizeof asked[n_asked].login, "%s", login);
    asked[n_asked].cb = cb;
    asked[n_asked++].ctx = ctx;
}

/* Answer question `i`: key filled with `key`, 0 = no such user. */
static void answer(size_t i, enum db_status st, int key)
{
    struct store_user u = {0};
    (void)snprintf(u.login, sizeof u.login, "%s", asked[i].login);
    memset(u.client_key, key, sizeof u.client_key);
    u.n_servers = 1;
    u.source = "local";
    (void)snprintf(u.servers[0].login, sizeof u.servers[0].login, "server%d", key);
    asked[i].cb(asked[i].ctx, st, st == DB_OK && key ? &u : NULL);
}

/* --- the askers --- */

struct asker {
    int calls;
    enum directory_result result;
    int key; /* first byte; 0 = no user */
};

static void told(void *ctx, enum directory_result r, const struct directory_user *user)
{
    struct asker *a = ctx;
    a->calls++;
    a->result = r;
    a->key = user ? user->client_key[0] : 0;
}

struct fixture {
    uv_loop_t loop;
    struct directory *dir;
};

static int setup(void **state)
{
    struct fixture *f = xnew(struct fixture);
    n_asked = 0;
    assert_int_equal(uv_loop_init(&f->loop), 0);
    f->dir = directory_new(&f->loop, NULL, TTL_MS, TTL_MS, MAX_ENTRIES);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    directory_free(f->dir);
    assert_int_equal(uv_run(&f->loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    free(f);
    return 0;
}

static struct asker ask(struct fixture *f, const char *login, int key)
{
    struct asker a = {0};
    size_t i = n_asked;
    directory_fetch(f->dir, login, told, &a);
    assert_int_equal(n_asked, i + 1);
    answer(i, DB_OK, key);
    assert_int_equal(a.calls, 1);
    return a;
}

/* --- tests --- */

static void a_user_is_asked_for_once(void **state)
{
    struct fixture *f = *state;
    struct asker a = {0}, b = {0};
    assert_null(directory_peek(f->dir, "alice"));
    directory_fetch(f->dir, "alice", told, &a);
    directory_fetch(f->dir, "alice", told, &b);
    assert_int_equal(n_asked, 1);
    assert_string_equal(asked[0].login, "alice");
    answer(0, DB_OK, 7);
    assert_int_equal(a.calls + b.calls, 2);
    assert_int_equal(a.result, DIRECTORY_FOUND);
    assert_int_equal(b.key, 7);
    assert_int_equal(directory_peek(f->dir, "alice")->client_key[0], 7);
    assert_string_equal(directory_peek(f->dir, "alice")->login, "alice");
}

static void access_servers_are_kept_as_last_read(void **state)
{
    struct fixture *f = *state;
    (void)ask(f, "alice", 7);
    assert_string_equal(directory_peek(f->dir, "alice")->servers[0], "server7");
    assert_string_equal(directory_peek(f->dir, "alice")->servers[1], "");
    directory_forget(f->dir, "alice");
    (void)ask(f, "alice", 8);
    assert_string_equal(directory_peek(f->dir, "alice")->servers[0], "server8");
}

static void known_answers_come_later_without_asking(void **state)
{
    struct fixture *f = *state;
    struct asker a = {0}, b = {0};
    assert_int_equal(ask(f, "alice", 7).result, DIRECTORY_FOUND);
    assert_int_equal(ask(f, "nobody", 0).result, DIRECTORY_NO_USER);
    assert_null(directory_peek(f->dir, "nobody"));
    directory_fetch(f->dir, "alice", told, &a);
    directory_fetch(f->dir, "nobody", told, &b);
    assert_int_equal(a.calls + b.calls, 0); /* never from inside */
    assert_int_equal(uv_run(&f->loop, UV_RUN_NOWAIT), 0);
    assert_int_equal(n_asked, 2);
    assert_int_equal(a.result, DIRECTORY_FOUND);
    assert_int_equal(a.key, 7);
    assert_int_equal(b.result, DIRECTORY_NO_USER);
    assert_int_equal(b.calls, 1);
}

static void an_unreachable_database_is_not_kept(void **state)
{
    struct fixture *f = *state;
    struct asker a = {0};
    directory_fetch(f->dir, "alice", told, &a);
    answer(0, DB_UNAVAILABLE, 0);
    assert_int_equal(a.result, DIRECTORY_DB_UNAVAILABLE);
    directory_fetch(f->dir, "alice", told, &a);
    answer(1, DB_ERROR, 0);
    assert_int_equal(a.result, DIRECTORY_DB_ERROR);
    assert_int_equal(ask(f, "alice", 7).result, DIRECTORY_FOUND);
}

static void a_forgotten_user_is_asked_for_again(void **state)
{
    struct fixture *f = *state;
    struct asker a = {0};
    (void)ask(f, "alice", 0);
    directory_forget(f->dir, "alice");
    directory_forget(f->dir, "never_heard_of");
    assert_int_equal(ask(f, "alice", 7).key, 7);

    /* Forgotten while being fetched: the answer under way may be from before. */
    directory_fetch(f->dir, "bob", told, &a);
    directory_forget(f->dir, "bob");
    answer(2, DB_OK, 0);
    assert_int_equal(a.calls, 0);
    assert_int_equal(n_asked, 4);
    answer(3, DB_OK, 9);
    assert_int_equal(a.key, 9);
}

static void all_may_be_forgotten(void **state)
{
    struct fixture *f = *state;
    struct asker a = {0};
    (void)ask(f, "alice", 7);
    (void)ask(f, "bob", 8);
    directory_fetch(f->dir, "carol", told, &a);
    directory_forget_all(f->dir);
    assert_null(directory_peek(f->dir, "alice"));
    assert_null(directory_peek(f->dir, "bob"));
    answer(2, DB_OK, 1); /* may be from before */
    assert_int_equal(a.calls, 0);
    answer(3, DB_OK, 2);
    assert_int_equal(a.key, 2);
    assert_int_equal(ask(f, "alice", 9).key, 9);
}

static void the_least_recently_used_makes_room(void **state)
{
    struct fixture *f = *state;
    (void)ask(f, "a", 1);
    (void)ask(f, "b", 2);
    (void)ask(f, "c", 3);
    assert_non_null(directory_peek(f->dir, "a"));
    (void)ask(f, "d", 4);
    assert_null(directory_peek(f->dir, "b"));
    assert_non_null(directory_peek(f->dir, "a"));
    assert_non_null(directory_peek(f->dir, "d"));
}

static void expired_entries_are_asked_for_again(void **state)
{
    struct fixture *f = *state;
    struct directory *d = directory_new(&f->loop, NULL, 0, 0, MAX_ENTRIES);
    struct asker a = {0};
    for (size_t i = 0; i < 2; i++) {
        directory_fetch(d, "alice", told, &a);
        assert_int_equal(n_asked, i + 1);
        answer(i, DB_OK, 7);
        assert_null(directory_peek(d, "alice"));
    }
    assert_int_equal(a.calls, 2);
    directory_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_user_is_asked_for_once, setup, teardown),
        cmocka_unit_test_setup_teardown(access_servers_are_kept_as_last_read, setup, teardown),
        cmocka_unit_test_setup_teardown(known_answers_come_later_without_asking, setup, teardown),
        cmocka_unit_test_setup_teardown(an_unreachable_database_is_not_kept, setup, teardown),
        cmocka_unit_test_setup_teardown(a_forgotten_user_is_asked_for_again, setup, teardown),
        cmocka_unit_test_setup_teardown(all_may_be_forgotten, setup, teardown),
        cmocka_unit_test_setup_teardown(the_least_recently_used_makes_room, setup, teardown),
        cmocka_unit_test_setup_teardown(expired_entries_are_asked_for_again, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
