/*
 * Calls through a pool against a real PostgreSQL: values both ways, pipelining, errors in its
 * midst.
 */
#include "support_db.h"
#include "support_pg.h"

#include "util/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static struct pg *pg;

static int start_server(void **state)
{
    (void)state;
    pg = pg_new(NULL);
    return 0;
}

static int stop_server(void **state)
{
    (void)state;
    pg_free(pg);
    return 0;
}

/* --- values --- */

static const struct db_stmt stmt_scalars = {
    "scalars", "SELECT $1::bigint AS i8, $2::integer AS i4, $3::boolean AS b, $4::text AS t, "
               "$5::bytea AS y, $1::smallint AS i2"};

static void check_scalars(void *ctx, const struct db_result *r)
{
    size_t n;
    assert_int_equal(db_status(r), DB_OK);
    assert_string_equal(db_sqlstate(r), "");
    assert_int_equal(db_rows(r), 1);
    assert_true(db_int8(r, 0, db_col(r, "i8")) == -12345);
    assert_true(db_int8(r, 0, db_col(r, "i4")) == INT32_MIN);
    assert_true(db_int8(r, 0, db_col(r, "i2")) == -12345);
    assert_true(db_bool(r, 0, db_col(r, "b")));
    assert_string_equal(db_text(r, 0, db_col(r, "t")), "grüße ✓");
    const uint8_t *y = db_bytea(r, 0, db_col(r, "y"), &n);
    assert_int_equal(n, 4);
    assert_memory_equal(y, "\0\1\xff\0", 4);
    ++*(int *)ctx;
}

static void check_nulls(void *ctx, const struct db_result *r)
{
    size_t n = 99;
    assert_int_equal(db_status(r), DB_OK);
    assert_true(db_is_null(r, 0, db_col(r, "t")));
    assert_string_equal(db_text(r, 0, db_col(r, "t")), "");
    assert_true(db_is_null(r, 0, db_col(r, "y")));
    db_bytea(r, 0, db_col(r, "y"), &n);
    assert_int_equal(n, 0);
    assert_false(db_is_null(r, 0, db_col(r, "i8")));
    ++*(int *)ctx;
}

static bool is_two(void *ctx)
{
    return *(int *)ctx == 2;
}

static void test_scalars(void **state)
{
    (void)state;
    struct db_fixture f;
    db_fixture_open_ready(&f, pg_conninfo(pg), 1, NULL);
    int done = 0;
    struct db_params *p = db_params_new();
    db_add_int8(p, -12345);
    db_add_int4(p, INT32_MIN);
    db_add_bool(p, true);
    db_add_text(p, "grüße ✓");
    db_add_bytea(p, "\0\1\xff\0", 4);
    db_call(f.pool, &stmt_scalars, p, check_scalars, &done);
    p = db_params_new();
    db_add_int8(p, 1);
    db_add_int4(p, 1);
    db_add_bool(p, false);
    db_add_text(p, NULL);
    db_add_bytea(p, NULL, 0);
    db_call(f.pool, &stmt_scalars, p, check_nulls, &done);
    assert_int_equal(done, 0); /* never from inside */
    assert_true(run_until(&f.loop, is_two, &done));
    db_fixture_close(&f);
}

static const struct db_stmt stmt_arrays = {
    "arrays",
    "SELECT $1::bigint[]::text AS i8, $2::integer[]::text AS i4, $3::boolean[]::text AS b, "
    "$4::text[]::text AS t, $5::bytea[]::text AS y, "
    "(SELECT count(*) FROM unnest($4::text[]) AS u(x) WHERE x IS NULL) AS nulls"};

static void check_arrays(void *ctx, const struct db_result *r)
{
    assert_int_equal(db_status(r), DB_OK);
    assert_string_equal(db_text(r, 0, db_col(r, "i8")), "{-1,9223372036854775807}");
    assert_string_equal(db_text(r, 0, db_col(r, "i4")), "{7}");
    assert_string_equal(db_text(r, 0, db_col(r, "b")), "{t,f,t}");
    assert_string_equal(db_text(r, 0, db_col(r, "t")), "{a,NULL,\"\",\"NULL\",\"c,d\"}");
    assert_string_equal(db_text(r, 0, db_col(r, "y")), "{\"\\\\x00ff\",NULL,\"\\\\x\"}");
    assert_true(db_int8(r, 0, db_col(r, "nulls")) == 1);
    ++*(int *)ctx;
}

static void check_empty_arrays(void *ctx, const struct db_result *r)
{
    static const char *const cols[] = {"i8", "i4", "b", "t", "y"};
    assert_int_equal(db_status(r), DB_OK);
    for (size_t i = 0; i < 5; i++)
        assert_string_equal(db_text(r, 0, db_col(r, cols[i])), "{}");
    ++*(int *)ctx;
}

static void test_arrays(void **state)
{
    (void)state;
    struct db_fixture f;
    db_fixture_open_ready(&f, pg_conninfo(pg), 1, NULL);
    int done = 0;
    struct db_params *p = db_params_new();
    db_array_begin(p, DB_INT8_ARRAY, 2);
    db_item_int8(p, -1);
    db_item_int8(p, INT64_MAX);
    db_array_begin(p, DB_INT4_ARRAY, 1);
    db_item_int4(p, 7);
    db_array_begin(p, DB_BOOL_ARRAY, 3);
    db_item_bool(p, true);
    db_item_bool(p, false);
    db_item_bool(p, true);
    db_array_begin(p, DB_TEXT_ARRAY, 5);
    db_item_text(p, "a");
    db_item_text(p, NULL);
    db_item_text(p, "");
    db_item_text(p, "NULL");
    db_item_text(p, "c,d");
    db_array_begin(p, DB_BYTEA_ARRAY, 3);
    db_item_bytea(p, "\0\xff", 2);
    db_item_bytea(p, NULL, 0);
    db_item_bytea(p, "", 0);
    db_call(f.pool, &stmt_arrays, p, check_arrays, &done);
    p = db_params_new();
    db_array_begin(p, DB_INT8_ARRAY, 0);
    db_array_begin(p, DB_INT4_ARRAY, 0);
    db_array_begin(p, DB_BOOL_ARRAY, 0);
    db_array_begin(p, DB_TEXT_ARRAY, 0);
    db_array_begin(p, DB_BYTEA_ARRAY, 0);
    db_call(f.pool, &stmt_arrays, p, check_empty_arrays, &done);
    assert_true(run_until(&f.loop, is_two, &done));
    db_fixture_close(&f);
}

/* --- the pipeline --- */

static const struct db_stmt stmt_id = {"id", "SELECT $1::bigint AS v"};

struct expect {
    struct answers *answers;
    int64_t value;
};

static void check_value(void *ctx, const struct db_result *r)
{
    struct expect *e = ctx;
    if (db_status(r) == DB_OK)
        assert_true(db_int8(r, 0, db_col(r, "v")) == e->value);
    answers_cb(e->answers, r);
    free(e);
}

static void call_id(struct db_fixture *f, struct answers *a, int64_t v)
{
    struct expect *e = xnew(struct expect);
    e->answers = a;
    e->value = v;
    struct db_params *p = db_params_new();
    db_add_int8(p, v);
    db_call(f->pool, &stmt_id, p, check_value, e);
}

static void test_thousands(void **state)
{
    (void)state;
    struct db_fixture f;
    db_fixture_open_ready(&f, pg_conninfo(pg), 2, NULL);
    struct answers a = {0};
    for (int i = 0; i < 5000; i++)
        call_id(&f, &a, i);
    db_fixture_wait(&f, &a, 5000);
    assert_int_equal(a.ok, 5000);
    db_fixture_close(&f);
}

static const struct db_stmt stmt_big = {"big", "SELECT repeat('x', $1::integer) AS t"};

static void check_big(void *ctx, const struct db_result *r)
{
    struct expect *e = ctx;
    assert_int_equal(db_status(r), DB_OK);
    assert_true(strlen(db_text(r, 0, db_col(r, "t"))) == (size_t)e->value);
    answers_cb(e->answers, r);
    free(e);
}

static void call_big(struct db_fixture *f, struct answers *a, int32_t n)
{
    struct expect *e = xnew(struct expect);
    e->answers = a;
    e->value = n;
    struct db_params *p = db_params_new();
    db_add_int4(p, n);
    db_call(f->pool, &stmt_big, p, check_big, e);
}

/* Around libpq's buffer and the TLS record, alone and packed; and far above both. */
static void results_of_all_sizes(const char *conninfo)
{
    struct db_fixture f;
    db_fixture_open_ready(&f, conninfo, 1, NULL);
    struct answers a = {0};
    int want = 0;
    for (int32_t n = 15 * 1024; n <= 17 * 1024; n += 128) {
        call_big(&f, &a, n);
        db_fixture_wait(&f, &a, ++want); /* alone: nothing follows that would wake us */
    }
    for (int32_t n = 7 * 1024; n <= 34 * 1024; n += 256, want++)
        call_big(&f, &a, n);
    call_big(&f, &a, 10 * 1000 * 1000);
    db_fixture_wait(&f, &a, want + 1);
    db_fixture_close(&f);
}

static void test_sizes_socket(void **state)
{
    (void)state;
    results_of_all_sizes(pg_conninfo(pg));
}

static void test_sizes_tls(void **state)
{
    (void)state;
    results_of_all_sizes(pg_conninfo_tls(pg));
}

static const struct db_stmt stmt_len = {"len", "SELECT length($1::bytea)::bigint AS v"};

static void test_big_params(void **state)
{
    (void)state;
    struct db_fixture f;
    db_fixture_open_ready(&f, pg_conninfo_tls(pg), 1, NULL);
    struct answers a = {0};
    size_t n = 10 * 1000 * 1000;
    char *bytes = xcalloc(1, n);
    for (int i = 0; i < 5; i++) {
        struct db_params *p = db_params_new();
        db_add_bytea(p, bytes, n);
        db_call(f.pool, &stmt_len, p, answers_cb, &a);
        call_big(&f, &a, 1000 * 1000); /* both directions full at once */
    }
    free(bytes);
    db_fixture_wait(&f, &a, 10);
    assert_int_equal(a.ok, 10);
    db_fixture_close(&f);
}

static const struct db_stmt stmt_divide = {"divide", "SELECT 10 / $1::bigint AS v"};

static void test_error_in_pipeline(void **state)
{
    (void)state;
    struct db_fixture f;
    db_fixture_open_ready(&f, pg_conninfo(pg), 1, NULL);
    struct answers good = {0}, bad = {0};
    for (int i = 0; i < 100; i++) {
        struct db_params *p = db_params_new();
        db_add_int8(p, 0);
        db_call(f.pool, &stmt_divide, p, answers_cb, &bad);
        call_id(&f, &good, i);
    }
    db_fixture_wait(&f, &good, 100);
    db_fixture_wait(&f, &bad, 100);
    assert_int_equal(good.ok, 100);
    assert_int_equal(bad.error, 100);
    assert_string_equal(bad.sqlstate, "22012");
    assert_true(db_pool_ready(f.pool));
    db_fixture_close(&f);
}

static const struct db_stmt stmt_later = {"later", "SELECT v FROM later WHERE v = $1::bigint"};

static void call_later(struct db_fixture *f, struct answers *a)
{
    struct db_params *p = db_params_new();
    db_add_int8(p, 1);
    db_call(f->pool, &stmt_later, p, answers_cb, a);
}

static void test_prepare_fails_then_works(void **state)
{
    (void)state;
    struct db_fixture f;
    pg_exec(pg, "DROP TABLE IF EXISTS later");
    db_fixture_open_ready(&f, pg_conninfo(pg), 1, NULL);
    struct answers a = {0};
    for (int i = 0; i < 3; i++)
        call_later(&f, &a);
    db_fixture_wait(&f, &a, 3);
    assert_int_equal(a.error, 3);
    assert_string_equal(a.sqlstate, "42P01"); /* each its own error, none "no such statement" */
    pg_exec(pg, "CREATE TABLE later (v bigint)");
    for (int i = 0; i < 3; i++)
        call_later(&f, &a);
    db_fixture_wait(&f, &a, 6);
    assert_int_equal(a.ok, 3);
    db_fixture_close(&f);
}

static void test_result_type_changes(void **state)
{
    (void)state;
    struct db_fixture f;
    pg_exec(pg, "DROP TABLE IF EXISTS later; CREATE TABLE later (v bigint)");
    db_fixture_open_ready(&f, pg_conninfo(pg), 1, NULL);
    struct answers a = {0};
    call_later(&f, &a);
    db_fixture_wait(&f, &a, 1);
    for (int round = 0; round < 2; round++) {
        pg_exec(pg, round == 0 ? "ALTER TABLE later ALTER v TYPE integer"
                               : "ALTER TABLE later ALTER v TYPE bigint");
        for (int i = 0; i < 10; i++)
            call_later(&f, &a);
        db_fixture_wait(&f, &a, 11 + 10 * round);
    }
    assert_int_equal(a.ok, 21);
    db_fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scalars),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_thousands),
        cmocka_unit_test(test_sizes_socket),
        cmocka_unit_test(test_sizes_tls),
        cmocka_unit_test(test_big_params),
        cmocka_unit_test(test_error_in_pipeline),
        cmocka_unit_test(test_prepare_fails_then_works),
        cmocka_unit_test(test_result_type_changes),
    };
    return cmocka_run_group_tests(tests, start_server, stop_server);
}
