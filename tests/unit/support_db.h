/*
 * Running a database pool inside a test: a loop, waiting for conditions with a time limit, and
 * counting answers.
 */
#ifndef SHINE_TESTS_SUPPORT_DB_H
#define SHINE_TESTS_SUPPORT_DB_H

#include "db/db.h"

#include <stdbool.h>
#include <uv.h>

/* Turn the loop until `cond` holds. False after 20 s. */
bool run_until(uv_loop_t *loop, bool (*cond)(void *ctx), void *ctx);
/* Turn the loop until the pool is ready, or is not. */
bool run_until_ready(uv_loop_t *loop, struct db_pool *pool);
bool run_until_not_ready(uv_loop_t *loop, struct db_pool *pool);
/* Close the pool, run the loop dry and close it; every callback has come afterwards. */
void close_pool_and_loop(struct db_pool *pool, uv_loop_t *loop);

/* Counts of answers; `cb` for calls whose content does not matter. */
struct answers {
    int total, ok, error, unavailable;
    int want;         /* for answers_complete() */
    char sqlstate[6]; /* of the last error */
};
void answers_cb(void *ctx, const struct db_result *res);
bool answers_complete(void *ctx);

/* A pool on a loop of its own. Checks that on_change tells every change of readiness, and only
 * changes. */
struct db_fixture {
    uv_loop_t loop;
    struct db_pool *pool;
    int changes; /* calls of on_change */
    bool told;
};
/* Open without waiting. `limits` NULL = the defaults. */
void db_fixture_open(struct db_fixture *f, const char *conninfo, unsigned size,
                     const struct db_limits *limits);
/* Open and wait for the first connection. */
void db_fixture_open_ready(struct db_fixture *f, const char *conninfo, unsigned size,
                           const struct db_limits *limits);
void db_fixture_close(struct db_fixture *f);
/* A call with one bigint parameter. */
void db_fixture_call(struct db_fixture *f, const struct db_stmt *stmt, int64_t v, db_cb cb,
                     void *ctx);
/* Wait until `a` counts exactly `want` answers. */
void db_fixture_wait(struct db_fixture *f, struct answers *a, int want);
/* Turn the loop `n` times, waiting for events at most as long as run_until()'s tick. */
void db_fixture_turn(struct db_fixture *f, int n);
/* Call until a call succeeds: the end of a connection may not have been noticed yet. */
void db_fixture_must_work_again(struct db_fixture *f);

#endif
