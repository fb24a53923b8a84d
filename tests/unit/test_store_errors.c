/*
 * Which errors of the database a caller may wait out. The store's functions are replaced by ones
 * that raise what the test asks for.
 */
#include "store/delivery.h"
#include "support_store.h"
#include "util/log.h"
#include "util/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static const char schema[] =
    "CREATE TABLE next_error (state text);"
    "INSERT INTO next_error VALUES ('');"
    "CREATE FUNCTION raise_next() RETURNS void LANGUAGE plpgsql AS $$ BEGIN"
    "  RAISE EXCEPTION 'as asked' USING ERRCODE = (SELECT state FROM next_error);"
    "END $$;"
    "CREATE FUNCTION get_history(text, text, integer, bigint, text, bigint)"
    "  RETURNS TABLE (ord integer) LANGUAGE plpgsql AS $$ BEGIN PERFORM raise_next(); END $$;"
    "CREATE FUNCTION finish_attempts(text, text, text[], text[], bigint[], bigint[], bigint[],"
    "    integer[], text[], text[], bigint[], bigint[])"
    "  RETURNS TABLE (ord integer) LANGUAGE plpgsql AS $$ BEGIN PERFORM raise_next(); END $$;";

struct env {
    struct store_fixture f;
    struct store_answer a;
};

static int setup(void **state)
{
    struct env *e = xnew(struct env);
    store_fixture_open(&e->f, schema, 1);
    *state = e;
    return 0;
}

static void on_history(void *ctx, enum db_status st, const struct store_history_item *rows,
                       size_t n, bool has_more)
{
    struct env *e = ctx;
    (void)rows;
    assert_int_equal(n, 0);
    assert_false(has_more);
    store_answer_note(&e->a, st);
}

static void on_finished(struct store_finish *f, enum db_status st)
{
    struct env *e = f->ctx;
    store_answer_note(&e->a, st);
}

static void raise_next(struct env *e, const char *sqlstate)
{
    char sql[64];
    (void)snprintf(sql, sizeof sql, "UPDATE next_error SET state = '%s'", sqlstate);
    pg_exec(e->f.pg, sql);
    e->a.calls = 0;
}

static enum db_status status_of_call(struct env *e, const char *sqlstate)
{
    raise_next(e, sqlstate);
    const struct store_history_query q = {
        .owner = "alice", .with = "bob", .limit = 1, .before_time_ms = -1, .max_blob_bytes = 1};
    store_history(e->f.store, &q, on_history, e);
    assert_true(run_until(&e->f.loop, store_answer_came, &e->a));
    return e->a.st;
}

static enum db_status status_of_grouped(struct env *e, const char *sqlstate)
{
    raise_next(e, sqlstate);
    struct store_finish f = {.from_login = "alice",
                             .outgoing_key = "alice|bob|1|1|2",
                             .via = "",
                             .error = "",
                             .done = on_finished,
                             .ctx = e};
    store_finish_attempt(e->f.store, &f);
    assert_true(run_until(&e->f.loop, store_answer_came, &e->a));
    return e->a.st;
}

static void test_errors_that_pass(void **state)
{
    static const char *const passing[] = {"53000", "53100", "53200", "53300", "53400",
                                          "57014", "55P03", "40001", "40P01"};
    for (size_t i = 0; i < sizeof passing / sizeof *passing; i++) {
        assert_int_equal(status_of_call(*state, passing[i]), DB_UNAVAILABLE);
        assert_int_equal(status_of_grouped(*state, passing[i]), DB_UNAVAILABLE);
    }
}

static void test_errors_that_stay(void **state)
{
    static const char *const staying[] = {"23505", "22P05", "42P01", "42501", "XX000", "40002"};
    for (size_t i = 0; i < sizeof staying / sizeof *staying; i++) {
        assert_int_equal(status_of_call(*state, staying[i]), DB_ERROR);
        assert_int_equal(status_of_grouped(*state, staying[i]), DB_ERROR);
    }
}

int main(void)
{
    log_setup("test", LOG_FORMAT_LOGFMT, LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_errors_that_pass, setup, store_fixture_teardown),
        cmocka_unit_test_setup_teardown(test_errors_that_stay, setup, store_fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
