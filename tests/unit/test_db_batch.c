/*
 * Group commit against a real PostgreSQL: few statements for many items, and one verdict for each
 * whatever happens.
 */
#include "db/batch.h"

#include "support_db.h"
#include "support_pg.h"

#include "util/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct pg *pg;

static int start_server(void **state)
{
    (void)state;
    pg = pg_new(NULL);
    /* Stores each value, refusing 13; gives no row for 404, two for 405 and a strange `ord` for
     * 406. */
    pg_exec(pg,
            "CREATE TABLE stored (v bigint);"
            "CREATE FUNCTION store(vs bigint[], OUT ord bigint, OUT v bigint) RETURNS SETOF record "
            "LANGUAGE plpgsql AS $$ BEGIN "
            "IF 13 = ANY (vs) THEN RAISE 'unlucky'; END IF; "
            "INSERT INTO stored SELECT unnest(vs); "
            "RETURN QUERY SELECT CASE WHEN u.x = 406 THEN 99 ELSE u.o END, u.x "
            "FROM unnest(vs) WITH ORDINALITY u(x, o), "
            "generate_series(1, CASE u.x WHEN 404 THEN 0 WHEN 405 THEN 2 ELSE 1 END) "
            "ORDER BY u.o DESC; END $$;"
            /* Deadlocks by decree: the first `n` tries fail. */
            "CREATE SEQUENCE tries;"
            "CREATE FUNCTION deadlock(vs bigint[], OUT ord bigint, OUT v bigint) RETURNS SETOF "
            "record LANGUAGE plpgsql AS $$ BEGIN "
            "IF nextval('tries') <= vs[1] THEN RAISE 'lost' USING ERRCODE = '40P01'; END IF; "
            "RETURN QUERY SELECT o, x FROM unnest(vs) WITH ORDINALITY u(x, o); END $$;"
            /* Locks a row for each value: waits for it, or leaves the value out. */
            "CREATE TABLE rows AS SELECT generate_series(1000, 1100)::bigint AS v;"
            "CREATE FUNCTION lock_rows(vs bigint[], OUT ord bigint, OUT v bigint) RETURNS SETOF "
            "record LANGUAGE plpgsql AS $$ BEGIN "
            "PERFORM FROM rows r WHERE r.v = ANY (vs) ORDER BY r.v FOR UPDATE; "
            "RETURN QUERY SELECT o, x FROM unnest(vs) WITH ORDINALITY u(x, o); END $$;"
            "CREATE FUNCTION lock_free_rows(vs bigint[], OUT ord bigint, OUT v bigint) RETURNS "
            "SETOF record LANGUAGE sql AS $$ SELECT u.o, u.x FROM unnest(vs) WITH ORDINALITY "
            "u(x, o) JOIN (SELECT r.v FROM rows r WHERE r.v = ANY (vs) FOR UPDATE SKIP LOCKED) l "
            "ON l.v = u.x $$");
    return 0;
}

static int stop_server(void **state)
{
    (void)state;
    pg_free(pg);
    return 0;
}

struct item {
    struct db_batch_item base;
    struct fixture *f;
    int64_t value;
    int done;
    enum db_status status;
};

struct fixture {
    uv_loop_t loop;
    struct db_pool *pool;
    struct db_batcher *batcher;
    int statements; /* built */
    size_t largest;
    int done;
    int want;
    struct item *resubmit; /* by the next verdict */
};

static struct item *item_of(struct db_batch_item *b)
{
    return (struct item *)(void *)((char *)b - offsetof(struct item, base));
}

static struct db_params *build(void *ctx, struct db_batch_item *const *items, size_t n)
{
    struct fixture *f = ctx;
    f->statements++;
    if (n > f->largest)
        f->largest = n;
    struct db_params *p = db_params_new();
    db_array_begin(p, DB_INT8_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_int8(p, item_of(items[i])->value);
    return p;
}

static void done(void *ctx, struct db_batch_item *b, const struct db_result *res, int row)
{
    struct fixture *f = ctx;
    struct item *item = item_of(b);
    item->done++;
    item->status = db_status(res);
    f->done++;
    if (item->status == DB_OK)
        assert_true(db_int8(res, row, db_col(res, "v")) == item->value);
    else
        assert_int_equal(row, -1);
    if (f->resubmit) {
        struct item *next = f->resubmit;
        f->resubmit = NULL;
        int before = f->done;
        db_batch_submit(f->batcher, &next->base);
        assert_int_equal(f->done, before); /* never from inside */
    }
}

static const struct db_stmt stmt_store = {"store", "SELECT ord, v FROM store($1::bigint[])"};
static const struct db_stmt stmt_deadlock = {"deadlock",
                                             "SELECT ord, v FROM deadlock($1::bigint[])"};
static const struct db_stmt stmt_lock = {"lock", "SELECT ord, v FROM lock_rows($1::bigint[])"};
static const struct db_stmt stmt_lock_free = {"lock_free",
                                              "SELECT ord, v FROM lock_free_rows($1::bigint[])"};
static const struct db_batch_kind kind_lock = {&stmt_lock, build, done, &stmt_lock_free};
static const struct db_batch_kind kind_store = {&stmt_store, build, done, NULL};
static const struct db_batch_kind kind_deadlock = {&stmt_deadlock, build, done, NULL};

static void open_all(struct fixture *f, const struct db_batch_kind *kind, size_t max_items,
                     unsigned max_in_flight)
{
    *f = (struct fixture){0};
    pg_exec(pg, "TRUNCATE stored; ALTER SEQUENCE tries RESTART");
    assert_int_equal(uv_loop_init(&f->loop), 0);
    f->pool = db_pool_new(&f->loop, pg_conninfo(pg), "shine-test", 2);
    f->batcher = db_batcher_new(f->pool, kind, f, max_items, max_in_flight);
    assert_true(run_until_ready(&f->loop, f->pool));
}

static void close_all(struct fixture *f)
{
    close_pool_and_loop(f->pool, &f->loop);
    db_batcher_free(f->batcher);
}

static bool all_done(void *ctx)
{
    struct fixture *f = ctx;
    return f->done >= f->want;
}

static void submit(struct fixture *f, struct item *items, int n)
{
    for (int i = 0; i < n; i++) {
        items[i] = (struct item){.f = f, .value = items[i].value};
        db_batch_submit(f->batcher, &items[i].base);
    }
}

static void wait_done(struct fixture *f, const struct item *items, int n)
{
    f->want = n;
    assert_true(run_until(&f->loop, all_done, f));
    assert_int_equal(f->done, n);
    for (int i = 0; i < n; i++)
        assert_int_equal(items[i].done, 1);
}

/* One turn of the loop, which does not wait. */
static void turn(struct fixture *f)
{
    (void)uv_run(&f->loop, UV_RUN_NOWAIT);
}

static void number(struct item *items, int n)
{
    for (int i = 0; i < n; i++)
        items[i].value = 1000 + i;
}

static int64_t count_stored(void)
{
    return pg_query_int(pg, "SELECT count(*) FROM stored");
}

static void test_groups(void **state)
{
    (void)state;
    struct fixture f;
    struct item items[1001];
    open_all(&f, &kind_store, 50, 1);
    number(items, 1001);
    submit(&f, items, 1001);
    assert_int_equal(f.done, 0);
    assert_int_equal(f.statements, 0); /* not from inside: the first would go alone */
    assert_int_equal(db_batch_waiting(f.batcher), 1001);
    wait_done(&f, items, 1001);
    assert_int_equal(f.statements, 21);
    assert_int_equal(f.largest, 50);
    assert_int_equal(db_batch_waiting(f.batcher), 0);
    for (int i = 0; i < 1001; i++)
        assert_int_equal(items[i].status, DB_OK);
    assert_int_equal(count_stored(), 1001);
    close_all(&f);
}

/* The second statement begins only when a full batch waits. */
static void test_in_flight(void **state)
{
    (void)state;
    struct fixture f;
    struct item items[200];
    open_all(&f, &kind_store, 10, 3);
    number(items, 200);
    submit(&f, items, 19);
    turn(&f);
    assert_int_equal(f.statements, 1);
    wait_done(&f, items, 19);
    submit(&f, items + 19, 181);
    turn(&f);
    assert_int_equal(f.statements, 2 + 3);
    wait_done(&f, items, 200);
    assert_int_equal(count_stored(), 200);
    close_all(&f);
}

/* A lone item waits for nothing: it is under way before the loop waits. */
static void test_lone_item(void **state)
{
    (void)state;
    struct fixture f;
    struct item item = {.value = 1000};
    open_all(&f, &kind_store, 50, 1);
    submit(&f, &item, 1);
    turn(&f);
    assert_int_equal(f.statements, 1);
    assert_int_equal(db_batch_waiting(f.batcher), 0);
    wait_done(&f, &item, 1);
    close_all(&f);
}

static void test_one_bad_item(void **state)
{
    (void)state;
    struct fixture f;
    struct item items[51];
    open_all(&f, &kind_store, 50, 2);
    number(items, 51);
    items[30].value = 13;
    submit(&f, items, 51);
    wait_done(&f, items, 51);
    for (int i = 0; i < 51; i++)
        assert_int_equal(items[i].status, i == 30 ? DB_ERROR : DB_OK);
    assert_int_equal(count_stored(), 50);
    close_all(&f);
}

static void test_wrong_rows(void **state)
{
    (void)state;
    struct fixture f;
    struct item items[5];
    open_all(&f, &kind_store, 50, 1);
    number(items, 5);
    items[2].value = 404;
    items[3].value = 405;
    items[4].value = 406;
    submit(&f, items, 5);
    wait_done(&f, items, 5);
    assert_int_equal(items[1].status, DB_OK);
    assert_int_equal(items[2].status, DB_ERROR);
    assert_int_equal(items[3].status, DB_OK);
    assert_int_equal(items[4].status, DB_ERROR);
    close_all(&f);
}

static void test_deadlock(void **state)
{
    (void)state;
    struct fixture f;
    struct item items[10] = {0};
    for (int tries = 0; tries < 4; tries++) {
        open_all(&f, &kind_deadlock, 50, 1);
        items[0].value = tries;
        submit(&f, items, 1);
        wait_done(&f, items, 1);
        assert_int_equal(items[0].status, DB_OK);
        close_all(&f);
    }
    open_all(&f, &kind_deadlock, 50, 1);
    items[0].value = 1000; /* not for ever */
    submit(&f, items, 1);
    wait_done(&f, items, 1);
    assert_int_equal(items[0].status, DB_ERROR);
    close_all(&f);
    open_all(&f, &kind_deadlock, 50, 1);
    items[0].value = 0;
    for (int i = 1; i < 10; i++)
        items[i].value = 2; /* the group fails, then the items one by one succeed */
    submit(&f, items, 10);
    wait_done(&f, items, 10);
    for (int i = 0; i < 10; i++)
        assert_int_equal(items[i].status, DB_OK);
    close_all(&f);
}

static void test_killed_in_mid_batch(void **state)
{
    (void)state;
    static struct item items[400];
    struct fixture f;
    for (int turns = 0; turns < 12; turns++) {
        open_all(&f, &kind_store, 20, 2);
        number(items, 400);
        items[77].value = 13; /* single retries are killed as well */
        submit(&f, items, 400);
        for (int i = 0; i < turns * 2; i++)
            uv_run(&f.loop, UV_RUN_ONCE);
        pg_exec(pg, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = 'shine-test'");
        wait_done(&f, items, 400);
        int ok = 0;
        for (int i = 0; i < 400; i++)
            ok += items[i].status == DB_OK;
        assert_true(count_stored() >= ok); /* what was said to be stored is */
        close_all(&f);
    }
}

static void test_submit_from_done(void **state)
{
    (void)state;
    struct fixture f;
    struct item items[2] = {{.value = 1}, {.value = 2}};
    open_all(&f, &kind_store, 50, 1);
    items[1].f = &f;
    f.resubmit = &items[1];
    submit(&f, items, 1);
    wait_done(&f, items, 2);
    assert_int_equal(count_stored(), 2);
    close_all(&f);
}

/* Somebody's open transaction holds row 1030. */
static PGconn *hold_row(void)
{
    PGconn *c = PQconnectdb(pg_conninfo(pg));
    PQclear(PQexec(c, "BEGIN"));
    PGresult *r = PQexec(c, "SELECT FROM rows WHERE v = 1030 FOR UPDATE");
    assert_int_equal(PQresultStatus(r), PGRES_TUPLES_OK);
    PQclear(r);
    return c;
}

static void release_row(PGconn *c)
{
    PQclear(PQexec(c, "ROLLBACK"));
    PQfinish(c);
}

struct deadline {
    uv_loop_t *loop;
    uint64_t at;
};

static bool is_past(void *ctx)
{
    const struct deadline *d = ctx;
    return uv_now(d->loop) > d->at;
}

/* One locked row keeps nobody but its own item, and that one for little longer than lock_timeout.
 */
static void test_locked_row(void **state)
{
    (void)state;
    struct fixture f;
    struct item items[51], later[50];
    PGconn *holder = hold_row();
    open_all(&f, &kind_lock, 50, 2);
    number(items, 51);
    submit(&f, items, 51);
    wait_done(&f, items, 51);
    for (int i = 0; i < 51; i++)
        assert_int_equal(items[i].status, i == 30 ? DB_UNAVAILABLE : DB_OK);
    /* The batcher knows now: nobody waits for the lock again, until it is free. */
    int before = f.statements;
    f.done = 0;
    number(later, 50);
    submit(&f, later, 50);
    wait_done(&f, later, 50);
    for (int i = 0; i < 50; i++)
        assert_int_equal(later[i].status, i == 30 ? DB_UNAVAILABLE : DB_OK);
    assert_int_equal(f.statements - before, 5); /* the one item comes again four times */
    release_row(holder);
    f.done = 0;
    submit(&f, later, 50);
    wait_done(&f, later, 50);
    for (int i = 0; i < 50; i++)
        assert_int_equal(later[i].status, DB_OK);
    close_all(&f);
}

static bool is_left_out(void *ctx)
{
    const struct item *item = ctx;
    return item->base.left_out > 0;
}

/* The end does not forget an item that waits for the next tick. */
static void test_closed_with_locked_row(void **state)
{
    (void)state;
    struct fixture f;
    struct item locked = {.value = 1030};
    PGconn *holder = hold_row();
    open_all(&f, &kind_lock, 50, 2);
    submit(&f, &locked, 1);
    assert_true(run_until(&f.loop, is_left_out, &locked));
    assert_int_equal(db_batch_waiting(f.batcher), 1);
    close_all(&f);
    assert_int_equal(locked.done, 1);
    assert_int_equal(locked.status, DB_UNAVAILABLE);
    release_row(holder);
}

/* A statement that hangs does not keep the next one, though that is not full. */
static void test_hanging_statement(void **state)
{
    (void)state;
    struct fixture f;
    struct item locked = {.value = 1030}, others[2] = {{.value = 1001}, {.value = 1002}};
    PGconn *holder = hold_row();
    open_all(&f, &kind_lock, 50, 1);
    submit(&f, &locked, 1);
    struct deadline hangs = {&f.loop, uv_now(&f.loop) + 400};
    assert_true(run_until(&f.loop, is_past, &hangs));
    submit(&f, others, 2);
    wait_done(&f, others, 2);
    assert_int_equal(locked.done, 0);
    release_row(holder);
    f.want = 3;
    assert_true(run_until(&f.loop, all_done, &f));
    assert_int_equal(locked.status, DB_OK);
    close_all(&f);
}

static void test_closed_pool(void **state)
{
    (void)state;
    struct fixture f;
    struct item items[100];
    open_all(&f, &kind_store, 10, 1);
    number(items, 100);
    submit(&f, items, 100);
    close_all(&f); /* every item has its verdict before the pool is gone */
    assert_int_equal(f.done, 100);
    for (int i = 0; i < 100; i++)
        assert_int_equal(items[i].status, DB_UNAVAILABLE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_in_flight),
        cmocka_unit_test(test_lone_item),
        cmocka_unit_test(test_one_bad_item),
        cmocka_unit_test(test_wrong_rows),
        cmocka_unit_test(test_deadlock),
        cmocka_unit_test(test_killed_in_mid_batch),
        cmocka_unit_test(test_submit_from_done),
        cmocka_unit_test(test_closed_pool),
        cmocka_unit_test(test_locked_row),
        cmocka_unit_test(test_closed_with_locked_row),
        cmocka_unit_test(test_hanging_statement),
    };
    return cmocka_run_group_tests(tests, start_server, stop_server);
}
