/*
 * A private PostgreSQL for tests: its own data directory in a temporary folder, reachable over a
 * Unix socket and over TCP with TLS on a free loopback port. Stopped and removed by pg_free(). As
 * root it runs as user "postgres".
 *
 * Everything here is blocking, and ends the test program with a message if it fails.
 */
#ifndef SHINE_TESTS_SUPPORT_PG_H
#define SHINE_TESTS_SUPPORT_PG_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct pg;

/* Create and start a server. `extra_conf`: lines for postgresql.conf, or NULL. */
struct pg *pg_new(const char *extra_conf);
/* A hot standby that streams from `of`. */
struct pg *pg_new_standby(struct pg *of);
void pg_free(struct pg *pg);
/* Stop at once, as a crash would (SIGQUIT), or start again. */
void pg_stop(struct pg *pg);
void pg_start(struct pg *pg);
/* The conninfo of database `dbname`, over the socket or over TLS; each lives until pg_free(). */
const char *pg_conninfo(struct pg *pg);
const char *pg_conninfo_tls(struct pg *pg);
int pg_port(const struct pg *pg);
const char *pg_socket_dir(const struct pg *pg);
/* A new empty database; its conninfo is freed with free(). */
char *pg_new_database(struct pg *pg, const char *name);
/* Run SQL in the main database, on one connection that is kept. pg_query_int() returns the first
 * column of the first row. */
void pg_exec(struct pg *pg, const char *sql);
int64_t pg_query_int(struct pg *pg, const char *sql);
/* The same in any database. */
void pg_exec_at(const char *conninfo, const char *sql);
int64_t pg_query_int_at(const char *conninfo, const char *sql);

#endif
