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
/* Turn the loop until the pool is ready. */
bool run_until_ready(uv_loop_t *loop, struct db_pool *pool);
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

#endif
