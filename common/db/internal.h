/*
 * Shared by the files of common/db only: settings of a connection, dialling, watching a socket, and
 * the parts of a call. Everybody else includes db.h, batch.h, listen.h or migrate.h.
 */
#ifndef SHINE_DB_INTERNAL_H
#define SHINE_DB_INTERNAL_H

#include "db/db.h"
#include "util/list.h"

#include <libpq-fe.h>
#include <uv.h>

/* --- settings.c: what a connection is opened with --- */

/* One entry of the conninfo's host list. `host` NULL = libpq's default socket directory. */
struct db_host {
    char *host;
    char *hostaddr; /* given by the operator: no lookup */
    char *port;
};

struct db_settings {
    char **keys; /* NULL-terminated, without host, hostaddr and port */
    char **values;
    size_t count;
    struct db_host *hosts;
    size_t host_count;
    unsigned connect_timeout_ms; /* per address, and per name lookup */
};

/* NULL with *error (freed with free()) for an unusable conninfo. `options` are the session's server
 * settings ("-c jit=off …"); the operator's own follow them and so win. */
struct db_settings *db_settings_new(const char *conninfo, const char *application_name,
                                    const char *options, unsigned connect_timeout_ms, char **error);
void db_settings_free(struct db_settings *s);
/* Server settings of a daemon's connection. Freed with free(). */
char *db_session_options(unsigned statement_timeout_ms);
/* Keys and values for PQconnect*Params with one host; `addr` (may be NULL) is its hostaddr. The
 * arrays (not the strings) are freed with free(). */
void db_settings_params(const struct db_settings *s, const struct db_host *host, const char *addr,
                        const char ***keys, const char ***values);
/* True if `host` is a name that must be looked up: no socket path and no IP literal. */
bool db_host_is_name(const struct db_host *host);

/* --- watch.c: readiness of libpq's socket --- */

struct db_watch;
typedef void (*db_watch_cb)(void *ctx, int status);
/* Watches a duplicate of `fd`, so that libpq may close its own at any time without leaving the loop
 * with a descriptor that is closed or already somebody else's. NULL if the socket cannot be
 * watched. */
struct db_watch *db_watch_new(uv_loop_t *loop, int fd, db_watch_cb cb, void *ctx);
/* `events`: UV_READABLE | UV_WRITABLE. False on failure. */
bool db_watch_set(struct db_watch *w, int events);
/* No callback comes afterwards. NULL is allowed. */
void db_watch_free(struct db_watch *w);

/* Read what has arrived, including what OpenSSL has decrypted already: that would wake no poll. */
bool db_consume(PGconn *pg);
/* The first line of libpq's message, for logs. Freed with free(). */
char *db_first_line(const char *message);
/* Server notices go to the log at debug level, not to stderr. */
void db_quiet_notices(PGconn *pg);
/* Does this SQLSTATE say that the connection (or its server) is of no more use? */
bool db_sqlstate_is_fatal(const char *sqlstate);

/* --- dial.c: one connection attempt at a time --- */

struct db_dialer;
/* A connected, read-write, non-blocking connection (yours, PQfinish), or NULL and why not. */
typedef void (*db_dial_cb)(void *ctx, PGconn *pg, const char *error);
/* `settings` pass to the dialer. */
struct db_dialer *db_dialer_new(uv_loop_t *loop, struct db_settings *settings, db_dial_cb cb,
                                void *ctx);
/* Try every address of every host once. The callback comes once, never from inside. */
void db_dialer_start(struct db_dialer *d);
bool db_dialer_busy(const struct db_dialer *d);
/* Give up whatever is under way, without a callback. `on_closed` may be NULL. */
void db_dialer_close(struct db_dialer *d, void (*on_closed)(void *ctx), void *ctx);

/* --- params.c --- */

struct db_wire_params {
    int count;
    const char *const *values;
    const int *lengths;
    const int *formats;
};
/* The parameters as libpq takes them; valid until `p` is changed or freed. NULL = none. */
struct db_wire_params db_params_wire(struct db_params *p);
size_t db_params_size(const struct db_params *p);

/* --- result.c --- */

struct db_result {
    enum db_status status;
    PGresult *pg; /* may be NULL */
    const char *message;
};

/* --- pool.c and conn.c --- */

/* A call: in flight on exactly one connection, or finished and waiting for its callback. */
struct db_request {
    struct list link;
    const struct db_stmt *stmt;
    struct db_params *params;
    db_cb cb;
    void *ctx;
    struct db_result res;
    bool prepares;      /* its pipeline segment begins with a PREPARE */
    bool uses_prepared; /* runs the named statement */
    bool repeated;      /* sent a second time because the prepared statement had gone stale */
    unsigned results;   /* received so far */
};

struct db_conn;
struct db_conn *db_conn_new(struct db_pool *pool, PGconn *pg);
/* The one way a connection ends: its calls finish as DB_UNAVAILABLE, it leaves the pool and is
 * freed. The reason is logged; NULL = we are closing. */
void db_conn_drop(struct db_conn *c, const char *reason);
/* Send one request. False if the connection turned out to be broken: it was dropped, with the
 * request. */
bool db_conn_send(struct db_conn *c, struct db_request *r);
size_t db_conn_in_flight(const struct db_conn *c);
/* True if its oldest call has waited for a while without a byte: for a lock, a slow disk, a frozen
 * server process. What is sent there now waits behind it. */
bool db_conn_hangs(const struct db_conn *c);
/* Drop the connection if its calls have waited longer than `answer_timeout_ms` without a byte. */
void db_conn_check(struct db_conn *c, uint64_t answer_timeout_ms);
struct db_conn *db_conn_from_link(struct list *link);
struct list *db_conn_link(struct db_conn *c);

uv_loop_t *db_pool_loop(struct db_pool *pool);
/* Hand a finished request over; its callback comes from the loop. */
void db_pool_finish(struct db_pool *pool, struct db_request *r, enum db_status status);
/* Run the callbacks of what is finished; called by a connection at the very end of its event. */
void db_pool_deliver(struct db_pool *pool);
/* Work put off: `run` is called once, from the loop, after whatever the present poll brings and
 * before the loop waits again. Embedded in its owner, its link initialised once; putting it off
 * again before it ran changes nothing. The pool is not freed before it has run. */
struct db_later {
    struct list link;
    void (*run)(struct db_later *work);
};
void db_pool_later(struct db_pool *pool, struct db_later *work);
/* The same a moment later: at the next of the pool's ticks, within DB_TICK_MS. For what must be
 * tried again without turning in circles. At once if the pool is being closed. */
#define DB_TICK_MS 50
void db_pool_at_tick(struct db_pool *pool, struct db_later *work);
/* A connection has left the pool; `healthy` if it had been of use before. */
void db_pool_lost(struct db_pool *pool, struct db_conn *c, bool healthy);

#endif
