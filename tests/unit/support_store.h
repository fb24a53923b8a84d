/*
 * The store over a private PostgreSQL inside a test: its loop, its pool, users, copies of messages,
 * and waiting for callbacks.
 *
 * A callback is waited for in one of two ways. A struct store_answer stands for one call: it
 * counts, so that a second answer is seen. The fixture's own count stands for many calls at once.
 */
#ifndef SHINE_TESTS_SUPPORT_STORE_H
#define SHINE_TESTS_SUPPORT_STORE_H

#include "store/messages.h"
#include "support_db.h"
#include "support_pg.h"

/* A test that keeps more puts this first into a struct of its own, from xnew(). */
struct store_fixture {
    struct pg *pg;
    uv_loop_t loop;
    struct db_pool *pool;
    struct store *store;
    int pending; /* calls without an answer, for store_fixture_wait_all() */
    int failed;  /* answers other than DB_OK */
};

/* Start a server and open a store of server "home", process "p1", when its pool is ready. `schema`
 * NULL = the project's own. */
void store_fixture_open(struct store_fixture *f, const char *schema, unsigned connections);
/* A cmocka setup that needs nothing else: a fixture with the project's schema. */
int store_fixture_setup(void **state);
/* A cmocka teardown: close the fixture that *state begins with and free *state. */
int store_fixture_teardown(void **state);
/* Add a user behind the store's back. `servers` and `urls` are array literals as "{x,y}". */
void store_fixture_add_user(struct store_fixture *f, const char *login, const char *source,
                            const char *servers, const char *urls);

/* What came of one call. */
struct store_answer {
    int calls;
    enum db_status st;
};
void store_answer_note(struct store_answer *a, enum db_status st);
/* A condition for run_until(); `ctx` is a struct store_answer. */
bool store_answer_came(void *ctx);
/* Wait for the answer to a call just made; it comes later, and with DB_OK. */
void store_fixture_wait(struct store_fixture *f, struct store_answer *a);

/* Called from a callback: one of `pending` has come. */
void store_fixture_answered(struct store_fixture *f, enum db_status st);
/* Wait for all of `pending`, which must not have come yet, and see that all were DB_OK. */
void store_fixture_wait_all(struct store_fixture *f);

/* Fill a copy that carries `blob`, which the caller keeps; NULL = a copy without one. */
void store_copy_fill(struct store_copy *c, enum dm_type type, const char *from, const char *to,
                     int64_t time_ms, uint32_t nonce, const void *blob, size_t len);

#endif
