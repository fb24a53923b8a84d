/*
 * Turns through the store: what C hands over arrives, what comes back is decoded. The rules
 * themselves are tested in tests/sql.
 */
#include "store/turns.h"
#include "support_store.h"
#include "util/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

struct env {
    struct store_fixture f;

    /* --- what came back last --- */
    size_t n;
    bool flag;
    struct store_turn turn;
};

static int setup(void **state)
{
    struct env *e = xnew(struct env);
    store_fixture_open(&e->f, NULL, 2);
    store_fixture_add_user(&e->f, "ann", "local", "{home,twin}", "{wss://home/ws,wss://twin/ws}");
    store_fixture_add_user(&e->f, "ben", "local", "{home,twin}", "{wss://home/ws,wss://twin/ws}");
    store_fixture_add_user(&e->f, "far", "partner", "{x}", "{wss://x/ws}");
    *state = e;
    return 0;
}

static void on_ordered(void *ctx, enum db_status st, const char *last)
{
    struct env *e = ctx;
    e->flag = last != NULL;
    store_fixture_answered(&e->f, st);
}

static void on_turns(void *ctx, enum db_status st, const struct store_turn *rows, size_t n)
{
    struct env *e = ctx;
    e->n = n;
    if (n > 0)
        e->turn = rows[0];
    store_fixture_answered(&e->f, st);
}

static void on_renewed(void *ctx, enum db_status st, bool held)
{
    struct env *e = ctx;
    e->flag = held;
    store_fixture_answered(&e->f, st);
}

static void on_ended(void *ctx, enum db_status st)
{
    store_fixture_answered(ctx, st);
}

static void claim(struct env *e, const char *skip)
{
    e->f.pending = 1;
    store_claim_turns(e->f.store, &skip, skip ? 1 : 0, 5, 60000, on_turns, e);
    store_fixture_wait_all(&e->f);
}

static void test_turns(void **state)
{
    struct env *e = *state;
    e->f.pending = 1;
    store_order_turns(e->f.store, NULL, "", on_ordered, e);
    store_fixture_wait_all(&e->f);
    assert_false(e->flag);
    claim(e, "twin");
    assert_int_equal(e->n, 0);
    claim(e, NULL);
    assert_int_equal(e->n, 1); /* one owner of a server at a time */
    assert_string_equal(e->turn.server.login, "twin");
    assert_string_equal(e->turn.server.url, "wss://twin/ws");
    struct store_turn turn = e->turn, nobodys = {.owner = "ben", .server = turn.server};
    e->f.pending = 1;
    store_renew_turn(e->f.store, &turn, 60000, on_renewed, e);
    store_fixture_wait_all(&e->f);
    assert_true(e->flag);
    (void)snprintf(nobodys.owner, sizeof nobodys.owner, "%s",
                   strcmp(turn.owner, "ann") == 0 ? "ben" : "ann");
    e->f.pending = 1;
    store_renew_turn(e->f.store, &nobodys, 60000, on_renewed, e);
    store_fixture_wait_all(&e->f);
    assert_false(e->flag);
    const char *id = "x", *reason = "BAD";
    e->f.pending = 1;
    store_note_rejects(e->f.store, &turn, &id, &reason, 1, on_ended, e);
    store_fixture_wait_all(&e->f);
    struct store_turn_end end = {.moved = 3, .result = "equal", .next_ms = 60000};
    e->f.pending = 1;
    store_finish_turn(e->f.store, &turn, &end, on_ended, e);
    store_fixture_wait_all(&e->f);
    e->f.pending = 1;
    store_renew_turn(e->f.store, &turn, 60000, on_renewed, e);
    store_fixture_wait_all(&e->f);
    assert_false(e->flag);
    claim(e, NULL);
    assert_string_equal(e->turn.owner, nobodys.owner); /* the other one's turn */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_turns, setup, store_fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
