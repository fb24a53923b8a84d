/*
 * PostgreSQL on a libuv loop: a small pool of asynchronous libpq connections in pipeline mode.
 *
 * One call = one prepared statement = one implicit transaction, committed when its result arrives.
 * Calls on one connection do not wait for each other's round trips. No transaction is ever open
 * while anything else is waited for.
 *
 * A lost connection is a state: every call in flight ends with DB_UNAVAILABLE (its outcome is
 * unknown; all our statements may be repeated), new calls end with DB_UNAVAILABLE at once while
 * there is no usable connection, and the pool reconnects with backoff, looking names up again.
 * Connections are opened with target_session_attrs=read-write, jit=off, and statement and
 * idle-in-transaction timeouts; SQLSTATE 25006, 57P01–57P03 and class 08 drop the connection.
 */
#ifndef SHINE_DB_DB_H
#define SHINE_DB_DB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct db_pool;
struct db_params;
struct db_result;

enum db_status {
    DB_OK,
    DB_UNAVAILABLE, /* not connected, or the connection was lost: 503, try again */
    DB_ERROR,       /* the statement failed; see db_sqlstate() */
};

/* A statement, prepared on first use on each connection and again after a reconnect. Static
 * storage. */
struct db_stmt {
    const char *name; /* unique */
    const char *sql;  /* parameters $1… with their types cast in the text */
};

/* The result of one call; valid during the callback only. */
typedef void (*db_cb)(void *ctx, const struct db_result *res);

/* Connect `size` connections in the background. `conninfo` as libpq takes it (copied),
 * `application_name` shows in pg_stat_activity. Never NULL: an unusable conninfo is reported by
 * db_pool_check_conninfo() beforehand. */
struct db_pool *db_pool_new(uv_loop_t *loop, const char *conninfo, const char *application_name,
                            unsigned size);
/* The time limits and bounds of a pool; db_pool_new() takes the defaults given here. */
struct db_limits {
    unsigned connect_timeout_ms; /* per address and per name lookup, unless conninfo says it: 5 s */
    unsigned statement_timeout_ms; /* enforced by the server: 30 s */
    unsigned answer_timeout_ms;    /* calls in flight, and not a byte for so long: the connection is
                                      dropped. Longer than a statement may take: 40 s */
    unsigned reconnect_min_ms;     /* first and last step of the backoff: 100 ms and 5 s */
    unsigned reconnect_max_ms;
    size_t max_calls; /* unfinished calls; further ones end with DB_UNAVAILABLE: 20,000 */
    size_t max_bytes; /* of their parameters, likewise: 256 MiB */
};
#define DB_LIMITS_DEFAULT                                                                          \
    ((struct db_limits){5000, 30000, 40000, 100, 5000, 20000, (size_t)256 << 20})
struct db_pool *db_pool_new_limited(uv_loop_t *loop, const char *conninfo,
                                    const char *application_name, unsigned size,
                                    const struct db_limits *limits);
/* NULL, or a new string saying what is wrong with `conninfo` (freed with free()). */
char *db_pool_check_conninfo(const char *conninfo);
/* Close all connections; calls in flight end with DB_UNAVAILABLE; `on_closed` (may be NULL) follows
 * when everything is freed. Callbacks that still come may call db_call(), nothing may afterwards.
 * Only a name lookup that hangs can keep the loop alive longer. */
void db_pool_close(struct db_pool *pool, void (*on_closed)(void *ctx), void *ctx);
/* True if at least one connection is usable now. */
bool db_pool_ready(const struct db_pool *pool);
/* Called whenever db_pool_ready() changes. */
void db_pool_on_change(struct db_pool *pool, void (*cb)(void *ctx, bool ready), void *ctx);

/* Send `stmt` with `params` (ownership passes; NULL = none) on the connection with the fewest calls
 * in flight among those that answer. The callback comes exactly once, never from inside this
 * function. */
void db_call(struct db_pool *pool, const struct db_stmt *stmt, struct db_params *params, db_cb cb,
             void *ctx);

/* --- parameters, sent in binary --- */

/* Empty parameters, freed by db_params_free() unless db_call() took them. */
struct db_params *db_params_new(void);
void db_params_free(struct db_params *p);
/* Each adds the next parameter. A NULL string or pointer is SQL NULL. Bytes are copied. */
void db_add_int8(struct db_params *p, int64_t v);
void db_add_int4(struct db_params *p, int32_t v);
void db_add_bool(struct db_params *p, bool v);
void db_add_text(struct db_params *p, const char *s);
void db_add_bytea(struct db_params *p, const void *data, size_t n);
/* One-dimensional arrays: begin, then exactly `n` items, for bigint[], text[], bytea[], boolean[],
 * integer[]. */
enum db_array_type { DB_INT8_ARRAY, DB_INT4_ARRAY, DB_BOOL_ARRAY, DB_TEXT_ARRAY, DB_BYTEA_ARRAY };
void db_array_begin(struct db_params *p, enum db_array_type type, size_t n);
void db_item_int8(struct db_params *p, int64_t v);
void db_item_int4(struct db_params *p, int32_t v);
void db_item_bool(struct db_params *p, bool v);
void db_item_text(struct db_params *p, const char *s);
void db_item_bytea(struct db_params *p, const void *data, size_t n);

/* --- results, received in binary --- */

enum db_status db_status(const struct db_result *r);
/* Five characters, or "" if there is none. */
const char *db_sqlstate(const struct db_result *r);
/* PostgreSQL's message, for the log only. */
const char *db_message(const struct db_result *r);
int db_rows(const struct db_result *r);
/* Column number by name; an unknown name is a bug and aborts. */
int db_col(const struct db_result *r, const char *name);
bool db_is_null(const struct db_result *r, int row, int col);
/* NULL values give 0, false, "" and length 0. A column of another type is a bug and aborts. */
int64_t db_int8(const struct db_result *r, int row, int col); /* bigint, integer, smallint */
bool db_bool(const struct db_result *r, int row, int col);
const char *db_text(const struct db_result *r, int row, int col);
const uint8_t *db_bytea(const struct db_result *r, int row, int col, size_t *len);

#endif
