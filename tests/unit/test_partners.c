/*
 * The partner servers in memory, over a store that the test answers by hand.
 */
#include "peer/partners.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "store/peers.h"
#include "support_peer.h"
#include "util/base64.h"
#include "util/mem.h"

/* --- the store: remembers that it was asked --- */

static store_partners_cb asked_cb;
static void *asked_ctx;
static unsigned asked;

void store_read_partners(struct store *s, store_partners_cb cb, void *ctx)
{
    (void)s;
    assert_null(asked_cb); /* one read at a time */
    asked_cb = cb;
    asked_ctx = ctx;
    asked++;
}

static void answer(enum db_status st, const struct store_partner *rows, size_t n)
{
    store_partners_cb cb = asked_cb;
    assert_non_null(cb);
    asked_cb = NULL;
    cb(asked_ctx, st, rows, n);
}

struct fixture {
    uv_loop_t loop;
    struct partners *p;
    unsigned changes;
    bool closed;
};

static void on_change(void *ctx)
{
    ((struct fixture *)ctx)->changes++;
}

static void on_closed(void *ctx)
{
    *(bool *)ctx = true;
}

static int setup(void **state)
{
    struct fixture *f = xnew(struct fixture);
    asked = 0;
    asked_cb = NULL;
    assert_int_equal(uv_loop_init(&f->loop), 0);
    f->p = partners_new(&f->loop, NULL, 50);
    partners_watch(f->p, on_change, f);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    partners_close(f->p, on_closed, &f->closed);
    assert_false(f->closed);
    if (asked_cb) {
        loop_for(&f->loop, 20);
        assert_false(f->closed); /* a read is under way */
        answer(DB_UNAVAILABLE, NULL, 0);
    }
    loop_until(&f->loop, &f->closed);
    loop_finish(&f->loop);
    free(f);
    return 0;
}

/* --- tests --- */

static void rows_are_found_by_login(void **state)
{
    struct fixture *f = *state;
    char key[64], text[400] = "garbage";
    for (int i = 1; i <= 5; i++) {
        uint8_t raw[32];
        size_t len = strlen(text);
        memset(raw, i, sizeof raw);
        base64_encode(raw, sizeof raw, key);
        (void)snprintf(text + len, sizeof text - len, " %s", key);
    }
    assert_false(partners_loaded(f->p));
    assert_null(partners_find(f->p, "beta"));
    const struct store_partner rows[] = {
        {.login = "beta", .url = "wss://beta/ws", .public_keys = text},
        {.login = "bad", .url = "nonsense", .public_keys = ""},
        {.login = "evil", .url = "nonsense", .public_keys = "", .blocked = true},
        {.login = "NOT A LOGIN", .url = "wss://x/ws", .public_keys = ""}};
    answer(DB_OK, rows, 4);
    assert_true(partners_loaded(f->p));
    assert_int_equal(f->changes, 1);
    const struct partner *beta = partners_find(f->p, "beta");
    assert_non_null(beta);
    assert_string_equal(beta->url, "wss://beta/ws");
    assert_false(beta->blocked);
    assert_int_equal(beta->n_keys, PARTNER_KEYS_MAX);
    assert_int_equal(beta->keys[0][31], 1);
    assert_int_equal(beta->keys[3][0], 4);
    assert_null(partners_find(f->p, "bad"));
    assert_null(partners_find(f->p, "NOT A LOGIN"));
    assert_true(partners_find(f->p, "evil")->blocked);
    size_t it = 0;
    unsigned n = 0;
    while (partners_next(f->p, &it))
        n++;
    assert_int_equal(n, 2);
}

static void each_read_replaces_all(void **state)
{
    struct fixture *f = *state;
    const struct store_partner one = {.login = "one", .url = "wss://one/ws", .public_keys = ""};
    const struct store_partner two = {.login = "two", .url = "wss://two/ws", .public_keys = ""};
    answer(DB_OK, &one, 1);
    loop_until_count(&f->loop, &asked, 2); /* by its timer */
    answer(DB_OK, &two, 1);
    assert_null(partners_find(f->p, "one"));
    assert_non_null(partners_find(f->p, "two"));
    assert_int_equal(f->changes, 2);
}

static void a_failed_read_changes_nothing(void **state)
{
    struct fixture *f = *state;
    const struct store_partner one = {.login = "one", .url = "wss://one/ws", .public_keys = ""};
    answer(DB_UNAVAILABLE, NULL, 0);
    assert_false(partners_loaded(f->p));
    loop_until_count(&f->loop, &asked, 2);
    answer(DB_OK, &one, 1);
    loop_until_count(&f->loop, &asked, 3);
    answer(DB_ERROR, NULL, 0);
    assert_true(partners_loaded(f->p));
    assert_non_null(partners_find(f->p, "one"));
    assert_int_equal(f->changes, 1);
}

static void a_refresh_is_never_lost(void **state)
{
    struct fixture *f = *state;
    partners_refresh(f->p); /* during the first read: what it sees may be older than the hint */
    partners_refresh(f->p);
    assert_int_equal(asked, 1);
    answer(DB_OK, NULL, 0);
    loop_until_count(&f->loop, &asked, 2);
    answer(DB_OK, NULL, 0);
    partners_refresh(f->p);
    assert_int_equal(asked, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(rows_are_found_by_login, setup, teardown),
        cmocka_unit_test_setup_teardown(each_read_replaces_all, setup, teardown),
        cmocka_unit_test_setup_teardown(a_failed_read_changes_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(a_refresh_is_never_lost, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
