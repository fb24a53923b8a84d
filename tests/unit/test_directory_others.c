/*
 * The directory when it asks other servers, over a store and an importer that the test answers by
 * hand.
 */
#include "directory/directory.h"

#include "util/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TTL_MS = 60 * 1000, CALLS_MAX = 16 };

/* --- the store and the importer: remember what was asked --- */

static struct {
    store_user_cb cb;
    void *ctx;
} reads[CALLS_MAX];
static struct {
    char sender[SHINE_SERVER_LOGIN_MAX + 1];
    enum import_kind kind;
    import_cb cb;
    void *ctx;
} imports[CALLS_MAX];
static unsigned n_reads, n_imports;

void store_get_user(struct store *s, const char *login, store_user_cb cb, void *ctx)
{
    (void)s;
    assert_string_equal("bob", login);
    assert_true(n_reads < CALLS_MAX);
    reads[n_reads].cb = cb;
    reads[n_reads++].ctx = ctx;
}

const struct import_limits import_limits_default;
struct importer {
    bool stopped;
};

struct importer *import_new(uv_loop_t *loop, struct store *store, struct peer_pool *peers,
                            const struct import_limits *limits)
{
    (void)loop;
    (void)store;
    (void)peers;
    (void)limits;
    return xnew(struct importer);
}

void import_stop(struct importer *im)
{
    im->stopped = true;
}

void import_free(struct importer *im)
{
    assert_true(im->stopped);
    free(im);
}

void import_start(struct importer *im, const char *login, const char *sender, enum import_kind kind,
                  import_cb cb, void *ctx)
{
    (void)im;
    assert_string_equal("bob", login);
    assert_true(n_imports < CALLS_MAX);
    (void)snprintf(imports[n_imports].sender, sizeof imports[0].sender, "%s", sender);
    imports[n_imports].kind = kind;
    imports[n_imports].cb = cb;
    imports[n_imports++].ctx = ctx;
}

/* Answer the newest question. `source` NULL = no such user. */
static void table_says(const char *source, int key, int64_t age_ms)
{
    struct store_user u = {.source = source, .age_ms = age_ms};
    memset(u.client_key, key, sizeof u.client_key);
    reads[n_reads - 1].cb(reads[n_reads - 1].ctx, DB_OK, source ? &u : NULL);
}

static void others_say(enum import_result r)
{
    imports[n_imports - 1].cb(imports[n_imports - 1].ctx, r);
}

static void asked(unsigned r, unsigned i)
{
    assert_int_equal(r, n_reads);
    assert_int_equal(i, n_imports);
}

/* --- the askers --- */

struct asker {
    int calls;
    enum directory_result result;
    int key;
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
    n_reads = n_imports = 0;
    assert_int_equal(uv_loop_init(&f->loop), 0);
    f->dir = directory_new(&f->loop, NULL, TTL_MS, TTL_MS, 10);
    directory_ask_others(f->dir, NULL, &import_limits_default);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    directory_stop(f->dir);
    directory_free(f->dir);
    assert_int_equal(uv_run(&f->loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    free(f);
    return 0;
}

/* --- tests --- */

static void an_unknown_user_is_asked_for_elsewhere(void **state)
{
    struct fixture *f = *state;
    struct asker a = {0};
    directory_fetch_from(f->dir, "bob", "server_x", told, &a);
    table_says(NULL, 0, 0);
    asked(1, 1);
    assert_string_equal("server_x", imports[0].sender);
    assert_int_equal(IMPORT_ON_SIGHT, imports[0].kind);
    assert_int_equal(0, a.calls);
    others_say(IMPORT_FOUND);
    asked(2, 1);
    table_says("provisional", 7, 0);
    assert_int_equal(DIRECTORY_FOUND, a.result);
    assert_int_equal(7, a.key);
    assert_true(directory_peek(f->dir, "bob")->provisional);
}

static void nobody_to_ask_is_not_no(void **state)
{
    struct fixture *f = *state;
    struct asker a = {0};
    directory_fetch(f->dir, "bob", told, &a);
    table_says(NULL, 0, 0);
    others_say(IMPORT_UNAVAILABLE);
    assert_int_equal(DIRECTORY_UNAVAILABLE, a.result);
    directory_fetch(f->dir, "bob", told, &a); /* and is not kept */
    asked(2, 1);
    table_says(NULL, 0, 0);
    others_say(IMPORT_NO_USER);
    assert_int_equal(DIRECTORY_NO_USER, a.result);
    directory_fetch(f->dir, "bob", told, &a); /* a miss is */
    asked(2, 2);
    assert_int_equal(0, uv_run(&f->loop, UV_RUN_NOWAIT));
    assert_int_equal(3, a.calls);
}

static void added_here_while_others_are_asked(void **state)
{
    struct fixture *f = *state;
    struct asker a = {0};
    directory_fetch(f->dir, "bob", told, &a);
    table_says(NULL, 0, 0);
    directory_forget(f->dir, "bob");
    others_say(IMPORT_NO_USER);
    asked(2, 1);
    table_says("local", 3, 0);
    assert_int_equal(3, a.key);
}

static void a_record_that_vanishes_makes_no_loop(void **state)
{
    struct fixture *f = *state;
    struct asker a = {0};
    directory_fetch(f->dir, "bob", told, &a);
    table_says(NULL, 0, 0);
    others_say(IMPORT_FOUND);
    table_says(NULL, 0, 0);
    asked(2, 1);
    assert_int_equal(DIRECTORY_NO_USER, a.result);
}

static void a_miss_is_final_for_whoever_named_nobody_else(void **state)
{
    struct fixture *f = *state;
    struct asker a = {0}, b = {0}, c = {0};
    directory_fetch(f->dir, "bob", told, &a);
    directory_fetch_from(f->dir, "bob", "server_x", told, &b);
    directory_fetch_from(f->dir, "bob", "server_y", told, &c);
    table_says(NULL, 0, 0);
    assert_string_equal("", imports[0].sender);
    others_say(IMPORT_NO_USER);
    assert_int_equal(DIRECTORY_NO_USER, a.result);
    assert_int_equal(1, a.calls);
    table_says(NULL, 0, 0);
    assert_string_equal("server_x", imports[1].sender);
    others_say(IMPORT_NO_USER);
    assert_int_equal(1, b.calls);
    assert_int_equal(0, c.calls);
    table_says(NULL, 0, 0);
    assert_string_equal("server_y", imports[2].sender);
    others_say(IMPORT_FOUND);
    table_says("provisional", 5, 0);
    assert_int_equal(5, c.key);
}

static void a_remembered_miss_does_not_stop_another_sender(void **state)
{
    struct fixture *f = *state;
    struct asker a = {0}, b = {0};
    directory_fetch(f->dir, "bob", told, &a);
    table_says(NULL, 0, 0);
    others_say(IMPORT_NO_USER);
    directory_fetch_from(f->dir, "bob", "server_x", told, &b);
    asked(2, 1);
    table_says(NULL, 0, 0);
    assert_string_equal("server_x", imports[1].sender);
    others_say(IMPORT_NO_USER);
    assert_int_equal(1, b.calls);
}

static void an_old_record_is_confirmed_while_it_serves(void **state)
{
    struct fixture *f = *state;
    struct asker a = {0};
    directory_fetch(f->dir, "bob", told, &a);
    table_says("partner", 7, TTL_MS + 1);
    assert_int_equal(7, a.key);
    asked(1, 1);
    assert_int_equal(7, directory_peek(f->dir, "bob")->client_key[0]);
    others_say(IMPORT_FOUND); /* the next one who asks reads what the table says now */
    assert_null(directory_peek(f->dir, "bob"));
    directory_fetch(f->dir, "bob", told, &a);
    table_says("partner", 8, 0);
    asked(2, 1);
    assert_int_equal(8, a.key);
}

static void a_record_that_cannot_be_confirmed_stays(void **state)
{
    struct fixture *f = *state;
    struct asker a = {0};
    directory_fetch(f->dir, "bob", told, &a);
    table_says("partner", 7, TTL_MS + 1);
    others_say(IMPORT_NO_USER);
    assert_non_null(directory_peek(f->dir, "bob"));
    asked(1, 1);
}

static void records_are_confirmed_when_they_are_old(void **state)
{
    static const char *const sources[] = {"local", "partner", "profile"};
    struct fixture *f = *state;
    struct asker a = {0};
    for (unsigned i = 0; i < 3; i++) {
        directory_fetch(f->dir, "bob", told, &a);
        table_says(sources[i], 7, TTL_MS - 1);
        asked(2 * i + 1, i);
        directory_forget(f->dir, "bob");
        directory_fetch(f->dir, "bob", told, &a);
        table_says(sources[i], 7, TTL_MS + 1);
        asked(2 * i + 2, i + 1);
        assert_int_equal(IMPORT_CONFIRM, imports[i].kind);
        others_say(IMPORT_FOUND);
    }
}

static void a_fresh_look_up_asks_whatever_is_cached(void **state)
{
    struct fixture *f = *state;
    struct asker a = {0}, b = {0};
    directory_fetch(f->dir, "bob", told, &a);
    table_says("partner", 7, 0);
    directory_refresh(f->dir, "bob", told, &b);
    asked(1, 1);
    assert_int_equal(IMPORT_FRESH, imports[0].kind);
    others_say(IMPORT_FOUND);
    asked(2, 1);
    table_says("partner", 8, 0);
    assert_int_equal(8, b.key);
    directory_refresh(f->dir, "bob", told, &b);
    others_say(IMPORT_NO_USER);
    assert_int_equal(DIRECTORY_NO_USER, b.result);
    directory_refresh(f->dir, "bob", told, &b);
    others_say(IMPORT_UNAVAILABLE);
    assert_int_equal(DIRECTORY_UNAVAILABLE, b.result);
    assert_int_equal(3, b.calls);
    asked(2, 3);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(an_unknown_user_is_asked_for_elsewhere),
        T(nobody_to_ask_is_not_no),
        T(added_here_while_others_are_asked),
        T(a_record_that_vanishes_makes_no_loop),
        T(a_miss_is_final_for_whoever_named_nobody_else),
        T(a_remembered_miss_does_not_stop_another_sender),
        T(an_old_record_is_confirmed_while_it_serves),
        T(a_record_that_cannot_be_confirmed_stays),
        T(records_are_confirmed_when_they_are_old),
        T(a_fresh_look_up_asks_whatever_is_cached),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
