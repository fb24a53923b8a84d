/*
 * Migrations against a real PostgreSQL: every test in a database of its own.
 */
#include "db/migrate.h"

#include "support_pg.h"

#include "util/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct pg *pg;
static char *db; /* conninfo of the test's own database */

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

static int new_database(void **state)
{
    (void)state;
    db = pg_new_database(pg, "m");
    return 0;
}

static int forget_database(void **state)
{
    (void)state;
    free(db);
    return 0;
}

static const struct sql_file base[] = {
    {"migrations/0001_base.sql", "CREATE TABLE t (a int);\n"},
    {"migrations/0002_more.sql", "-- adds b\n-- compatible_from: 0001\nALTER TABLE t ADD b int;\n"},
    {"functions/f.sql", "CREATE OR REPLACE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1';\n"},
    {"views/v.sql", "CREATE OR REPLACE VIEW v AS SELECT a, b FROM t;\n"},
};
enum { BASE = 4 };

static char notes[400];

static void note(void *ctx, const char *name)
{
    (void)ctx;
    size_t n = strlen(notes);
    snprintf(notes + n, sizeof(notes) - n, "%s\n", name);
}

static bool migrate(const struct sql_file *files, size_t n, char **error)
{
    notes[0] = '\0';
    return db_migrate_files(db, files, n, note, NULL, error);
}

static void must_migrate(const struct sql_file *files, size_t n)
{
    char *error;
    if (!migrate(files, n, &error))
        fail_msg("%s", error);
    assert_null(error);
}

/* It fails, and the message has `part` in it. */
static void must_refuse(const struct sql_file *files, size_t n, const char *part)
{
    char *error;
    assert_false(migrate(files, n, &error));
    if (!strstr(error, part))
        fail_msg("\"%s\" lacks \"%s\"", error, part);
    free(error);
}

static void must_check(const struct sql_file *files, size_t n, enum db_schema_state want,
                       const char *part)
{
    char *error;
    assert_int_equal(db_schema_state_files(db, files, n, &error), want);
    if (part && (!error || !strstr(error, part)))
        fail_msg("\"%s\" lacks \"%s\"", error ? error : "(none)", part);
    if (!part)
        assert_null(error);
    free(error);
}

static int64_t query(const char *sql)
{
    return pg_query_int_at(db, sql);
}

static void test_fresh_and_twice(void **state)
{
    (void)state;
    must_check(base, BASE, DB_SCHEMA_UNUSABLE, "shinectl migrate");
    must_migrate(base, BASE);
    assert_string_equal(notes, "migrations/0001_base.sql\nmigrations/0002_more.sql\n"
                               "functions/f.sql\nviews/v.sql\n");
    assert_int_equal(query("SELECT f() + count(*) FROM v"), 1);
    assert_int_equal(query("SELECT count(*) FROM schema_migrations WHERE length(checksum) = 64 AND "
                           "abs(applied_at_ms / 1000 - extract(epoch FROM now())) < 600"),
                     4);
    assert_int_equal(query("SELECT count(*) FROM schema_migrations WHERE version = '0002' AND "
                           "compatible_from = '0001'"),
                     1);
    must_check(base, BASE, DB_SCHEMA_OK, NULL);
    must_migrate(base, BASE);
    assert_string_equal(notes, "");
}

static void test_two_at_once(void **state)
{
    (void)state;
    const struct sql_file slow[] = {
        {"migrations/0001_base.sql", "SELECT pg_sleep(0.3); CREATE TABLE once (a int);"},
    };
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        char *error;
        bool ok = db_migrate_files(db, slow, 1, NULL, NULL, &error);
        free(error);
        _exit(ok ? 0 : 1);
    }
    must_migrate(slow, 1);
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(query("SELECT count(*) FROM schema_migrations"), 1);
}

static void test_failure_leaves_nothing(void **state)
{
    (void)state;
    const struct sql_file bad[] = {
        base[0],
        {"migrations/0002_bad.sql", "CREATE TABLE x (a int);\n\nCREATE TABLE t (a int);\n"},
    };
    must_refuse(bad, 2, "migrations/0002_bad.sql:3: relation \"t\" already exists");
    assert_int_equal(query("SELECT count(*) FROM pg_class WHERE relname IN "
                           "('t', 'x', 'schema_migrations')"),
                     0);
    must_migrate(base, BASE);
}

/* The line comes from the position if PostgreSQL gives one, else from counting statements. */
static void test_error_lines(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *where;
    } cases[] = {
        {"SELECT 1;\n-- ü ✓ ;\nSELEC 2;\n", ":3: syntax error"},
        {"SELECT 1;\nSELECT 'ä', 'é',\n  nonsense FROM pg_class;\n", ":3: column \"nonsense\""},
        {"SELECT ';', E'\\';', $$;\n$$, \";\" FROM (SELECT 1 AS \";\") q; /* ; /* ; */\n; */\n"
         "DO $x$ BEGIN\nPERFORM ';'; RAISE 'no'; END $x$;\n",
         ":4: no"},
        {"CREATE FUNCTION a() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT 1; SELECT CASE WHEN "
         "true "
         "THEN 2 END;\nEND;\n\nSELECT 1 / 0;\n",
         ":4: division by zero"},
        {"BEGIN;\nCOMMIT;\n", ": ends or replaces the transaction"},
        {"COMMIT; BEGIN;\n", ": ends or replaces the transaction"},
        {"SELECT 1;\nCOPY pg_class TO STDOUT;\n", ":2: COPY"},
        {"-- compatible_from: 2\n", "four digits"},
        {"-- compatible_from: 0002\n", "at most 0001"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct sql_file f = {"migrations/0001_x.sql", cases[i].text};
        must_refuse(&f, 1, cases[i].where);
    }
}

static void test_edited_file(void **state)
{
    (void)state;
    struct sql_file files[BASE];
    memcpy(files, base, sizeof(files));
    must_migrate(files, BASE);
    files[0].text = "CREATE TABLE t (a bigint);\n";
    must_refuse(files, BASE, "migrations/0001_base.sql was changed");
    must_check(files, BASE, DB_SCHEMA_UNUSABLE, "migrations/0001_base.sql was changed");
}

static void test_functions_again(void **state)
{
    (void)state;
    struct sql_file files[BASE];
    memcpy(files, base, sizeof(files));
    must_migrate(files, BASE);
    files[2].text = "CREATE OR REPLACE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 2';\n";
    must_check(files, BASE, DB_SCHEMA_OK, NULL); /* old daemons go on beside newer functions */
    must_migrate(files, BASE);
    assert_string_equal(notes, "functions/f.sql\n");
    assert_int_equal(query("SELECT f()"), 2);
    /* A migration that drops a view gets it back. */
    const struct sql_file more[] = {
        files[0],
        files[1],
        {"migrations/0003_c.sql", "DROP VIEW v; ALTER TABLE t ALTER a TYPE bigint;"},
        files[2],
        files[3],
    };
    must_check(more, 5, DB_SCHEMA_UNUSABLE, "older than this program");
    must_migrate(more, 5);
    assert_int_equal(query("SELECT count(*) FROM v"), 0);
}

static void test_newer_database(void **state)
{
    (void)state;
    struct sql_file old[] = {base[0], base[2]};
    must_migrate(base, BASE);
    /* 0002 allows programs from 0001 on; the older program's function must not come back. */
    old[1].text = "CREATE OR REPLACE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 0';\n";
    must_check(old, 2, DB_SCHEMA_OK, NULL);
    must_migrate(old, 2);
    assert_string_equal(notes, "");
    assert_int_equal(query("SELECT f()"), 1);
    const struct sql_file strict[] = {
        base[0], base[1], {"migrations/0003_contract.sql", "SELECT 1;"}, base[2], base[3]};
    must_migrate(strict, 5);
    must_refuse(old, 2, "newer than this program");
    must_refuse(base, BASE, "programs from 0003 on");
    must_check(base, BASE, DB_SCHEMA_UNUSABLE, "install the newer release");
}

static void test_out_of_order(void **state)
{
    (void)state;
    const struct sql_file with_gap[] = {base[0], {"migrations/0003_c.sql", "SELECT 1;"}};
    must_migrate(with_gap, 2);
    const struct sql_file filled[] = {with_gap[0], base[1], with_gap[1]};
    must_refuse(filled, 3, "migrations/0002_more.sql was never applied");
}

static void test_unreachable(void **state)
{
    (void)state;
    char *error;
    assert_int_equal(db_schema_state_files("host=/nonexistent port=1", base, BASE, &error),
                     DB_SCHEMA_UNREACHABLE);
    assert_non_null(error);
    free(error);
    assert_false(db_migrate_files("no such = thing", base, BASE, NULL, NULL, &error));
    assert_non_null(error);
    free(error);
}

/* A role without rights on the schema can still check. */
static void test_check_as_daemon(void **state)
{
    (void)state;
    must_migrate(base, BASE);
    pg_exec(pg, "DROP ROLE IF EXISTS plain; CREATE ROLE plain LOGIN");
    char *as_plain = xasprintf("%s user=plain", db);
    char *error;
    assert_int_equal(db_schema_state_files(as_plain, base, BASE, &error), DB_SCHEMA_OK);
    free(as_plain);
}

static void test_embedded(void **state)
{
    (void)state;
    for (size_t i = 0; i < sql_files_count; i++) {
        assert_non_null(sql_files[i].name);
        assert_non_null(sql_files[i].text);
    }
    assert_int_equal(strlen(db_schema_needed()), 4);
    char *error;
    if (!db_migrate(db, NULL, NULL, &error))
        fail_msg("%s", error);
    assert_true(db_schema_check(db, &error));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, new_database, forget_database)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_fresh_and_twice), TEST(test_two_at_once),  TEST(test_failure_leaves_nothing),
        TEST(test_error_lines),     TEST(test_edited_file),  TEST(test_functions_again),
        TEST(test_newer_database),  TEST(test_out_of_order), TEST(test_unreachable),
        TEST(test_check_as_daemon), TEST(test_embedded),
    };
    return cmocka_run_group_tests(tests, start_server, stop_server);
}
