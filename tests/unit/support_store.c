/*
 * See support_store.h. Raises: a failed check ends the test.
 */
#include "support_store.h"

#include "db/migrate.h"
#include "util/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

void store_fixture_open(struct store_fixture *f, const char *schema, unsigned connections)
{
    *f = (struct store_fixture){.pg = pg_new(NULL)};
    if (schema)
        pg_exec(f->pg, schema);
    for (size_t i = 0; !schema && i < sql_files_count; i++)
        pg_exec(f->pg, sql_files[i].text);
    assert_int_equal(uv_loop_init(&f->loop), 0);
    f->pool = db_pool_new(&f->loop, pg_conninfo(f->pg), "test_store", connections);
    f->store = store_new(f->pool,
                         &(struct store_identity){.server_login = "home", .process_id = "p1"}, 50);
    assert_true(run_until_ready(&f->loop, f->pool));
}

int store_fixture_setup(void **state)
{
    struct store_fixture *f = xnew(struct store_fixture);
    store_fixture_open(f, NULL, 2);
    *state = f;
    return 0;
}

int store_fixture_teardown(void **state)
{
    struct store_fixture *f = *state;
    close_pool_and_loop(f->pool, &f->loop);
    store_free(f->store);
    pg_free(f->pg);
    free(f);
    return 0;
}

void store_fixture_add_user(struct store_fixture *f, const char *login, const char *source,
                            const char *servers, const char *urls)
{
    char *sql = xasprintf("SELECT add_user('home', '%s', 'key', NULL, NULL, '%s', '%s', '%s')",
                          login, source, servers, urls);
    pg_exec(f->pg, sql);
    free(sql);
}

void store_answer_note(struct store_answer *a, enum db_status st)
{
    a->calls++;
    a->st = st;
}

bool store_answer_came(void *ctx)
{
    return ((struct store_answer *)ctx)->calls > 0;
}

void store_fixture_wait(struct store_fixture *f, struct store_answer *a)
{
    assert_int_equal(a->calls, 0); /* never synchronous */
    assert_true(run_until(&f->loop, store_answer_came, a));
    assert_int_equal(a->calls, 1);
    assert_int_equal(a->st, DB_OK);
}

void store_fixture_answered(struct store_fixture *f, enum db_status st)
{
    f->failed += st != DB_OK;
    f->pending--;
}

static bool all_answered(void *ctx)
{
    return ((struct store_fixture *)ctx)->pending == 0;
}

void store_fixture_wait_all(struct store_fixture *f)
{
    assert_int_not_equal(f->pending, 0); /* never synchronous */
    assert_true(run_until(&f->loop, all_answered, f));
    assert_int_equal(f->failed, 0);
}

void store_copy_fill(struct store_copy *c, enum dm_type type, const char *from, const char *to,
                     int64_t time_ms, uint32_t nonce, const void *blob, size_t len)
{
    *c = (struct store_copy){
        .c = {.type = type, .time_ms = time_ms, .nonce = nonce}, .blob = blob, .blob_len = len};
    (void)snprintf(c->c.from, sizeof c->c.from, "%s", from);
    (void)snprintf(c->c.to, sizeof c->c.to, "%s", to);
    if (blob)
        dm_sha256(c->blob, c->blob_len, c->sha256);
}
