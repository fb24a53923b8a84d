/*
 * Cost of a call: `SELECT $1::bigint` on one pipelined connection, 64 outstanding.
 *
 *   bench_db CONNINFO [CALLS]
 *
 * Prints calls per second, and CPU time of this process and of the elapsed wall time per call.
 */
#include "db/db.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

enum { OUTSTANDING = 64 };

static const struct db_stmt stmt = {"bench", "SELECT $1::bigint AS v"};

struct bench {
    struct db_pool *pool;
    long left; /* to be sent */
    long done, failed;
    long total;
    uint64_t begin_ns;
    double cpu_us;
};

static double cpu_us(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e6 +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void on_answer(void *ctx, const struct db_result *res);

static void send_one(struct bench *b)
{
    struct db_params *p = db_params_new();
    db_add_int8(p, b->left--);
    db_call(b->pool, &stmt, p, on_answer, b);
}

static void report(const struct bench *b)
{
    double seconds = (double)(uv_hrtime() - b->begin_ns) / 1e9;
    double calls = (double)b->total;
    printf("%ld calls, %d outstanding: %.0f calls/s, %.2f us elapsed and %.2f us CPU per call, "
           "%ld failed\n",
           b->total, OUTSTANDING, calls / seconds, seconds * 1e6 / calls,
           (cpu_us() - b->cpu_us) / calls, b->failed);
}

static void on_answer(void *ctx, const struct db_result *res)
{
    struct bench *b = ctx;
    b->failed += db_status(res) != DB_OK;
    if (++b->done == b->total) {
        report(b);
        db_pool_close(b->pool, NULL, NULL);
    } else if (b->left > 0) {
        send_one(b);
    }
}

static void on_change(void *ctx, bool ready)
{
    struct bench *b = ctx;
    if (!ready || b->begin_ns)
        return;
    b->begin_ns = uv_hrtime();
    b->cpu_us = cpu_us();
    for (int i = 0; i < OUTSTANDING && b->left > 0; i++)
        send_one(b);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: bench_db CONNINFO [CALLS]\n");
        return 2;
    }
    long calls = argc > 2 ? strtol(argv[2], NULL, 10) : 200000;
    char *error = db_pool_check_conninfo(argv[1]);
    if (error || calls < 1) {
        fprintf(stderr, "bench_db: %s\n", error ? error : "CALLS must be positive");
        free(error);
        return 2;
    }
    struct bench b = {.left = calls, .total = calls};
    uv_loop_t *loop = uv_default_loop();
    b.pool = db_pool_new(loop, argv[1], "bench_db", 1);
    db_pool_on_change(b.pool, on_change, &b);
    uv_run(loop, UV_RUN_DEFAULT);
    return uv_loop_close(loop) == 0 && b.failed == 0 ? 0 : 1;
}
