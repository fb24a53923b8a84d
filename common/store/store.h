/*
 * The store: one C function per SQL function, typed rows in, typed rows out. With common/db the
 * only place that names SQL.
 *
 * Two calling styles. Hot paths are grouped (db/batch.h): the caller embeds the request struct in
 * its own, fills it, submits it, and gets `done` with the results in the same struct; everything it
 * points to must stay valid until then. The others take a callback that gets a row struct valid
 * during the call only. No callback is ever made synchronously.
 *
 * Every callback gets an enum db_status first: DB_UNAVAILABLE is 503 for the client, DB_ERROR was
 * logged here and is 500. Errors of the database that pass (class 53: disk full, out of memory, too
 * many connections; a deadlock, a lock or a statement that took too long) are DB_UNAVAILABLE too.
 */
#ifndef SHINE_STORE_STORE_H
#define SHINE_STORE_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "db/db.h"
#include "dm/key.h"

#define SHINE_SERVER_LOGIN_MAX 63
#define SHINE_URL_MAX          255
#define SHINE_SESSION_ID_LEN   43
#define SHINE_PROCESS_ID_MAX   95

struct store;

/* What every state-changing function needs to know about this server. */
struct store_identity {
    const char *server_login; /* server.SHiNE.login */
    const char *process_id;   /* fresh per process start */
};

/* `max_batch` items per grouped statement (db.maxBatch). Strings of `id` are copied. */
struct store *store_new(struct db_pool *pool, const struct store_identity *id, unsigned max_batch);
void store_free(struct store *s);

/* A server as it stands in a user's record. */
struct store_route {
    char login[SHINE_SERVER_LOGIN_MAX + 1];
    char url[SHINE_URL_MAX + 1];
};

#endif
