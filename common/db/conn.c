/*
 * One connection of a pool, in pipeline mode. Each call is a segment of its own, so that an error
 * stays within its call:
 *
 *   [PREPARE name] EXECUTE name … SYNC      first use on this connection
 *   EXECUTE (unnamed, with its text) SYNC   while that PREPARE has not been confirmed: it may yet
 * fail EXECUTE name … SYNC                     ever after
 *
 * A prepared statement that has gone stale (a migration changed its result type) is prepared again
 * under a new name and the call repeated once: the first try has certainly had no effect.
 *
 * Legal paths of a connection: db_conn_new() ──▶ live ──▶ db_conn_drop(), once; nothing leads back.
 *
 * Raises: environment (drops the connection, the pool reconnects); libpq out of step is treated
 * likewise.
 */
#include "db/internal.h"

#include "util/log.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

enum { HANGING_MS = 100 };

enum prepared { UNKNOWN, PENDING, READY };

struct prepared_stmt {
    const struct db_stmt *stmt;
    enum prepared state;
    unsigned generation; /* part of the name */
};

struct db_conn {
    struct list link; /* in the pool */
    struct db_pool *pool;
    PGconn *pg;
    struct db_watch *watch;
    struct list in_flight; /* in the order sent, which is the order answered */
    size_t in_flight_count;
    struct prepared_stmt *stmt;
    size_t stmt_count;
    uint64_t progress_ms; /* loop time of the last sign of life while calls were in flight */
    uint64_t born_ms;
    bool useful; /* has completed a call */
};

static void on_socket(void *ctx, int status);

struct db_conn *db_conn_from_link(struct list *link)
{
    return list_entry(link, struct db_conn, link);
}

struct list *db_conn_link(struct db_conn *c)
{
    return &c->link;
}

size_t db_conn_in_flight(const struct db_conn *c)
{
    return c->in_flight_count;
}

static uint64_t now_ms(const struct db_conn *c)
{
    return uv_now(db_pool_loop(c->pool));
}

struct db_conn *db_conn_new(struct db_pool *pool, PGconn *pg)
{
    struct db_watch *watch = NULL;
    struct db_conn *c = xnew(struct db_conn);
    if (PQenterPipelineMode(pg) == 1)
        watch = db_watch_new(db_pool_loop(pool), PQsocket(pg), on_socket, c);
    if (!watch || !db_watch_set(watch, UV_READABLE)) {
        db_watch_free(watch);
        PQfinish(pg);
        free(c);
        return NULL;
    }
    list_init(&c->link);
    list_init(&c->in_flight);
    c->pool = pool;
    c->pg = pg;
    c->watch = watch;
    c->born_ms = now_ms(c);
    return c;
}

void db_conn_drop(struct db_conn *c, const char *reason)
{
    if (reason) {
        char *line = db_first_line(reason);
        log_warn("db_connection_lost", LOG_S("reason", line), LOG_I("calls", c->in_flight_count));
        free(line);
    }
    struct list *l;
    while ((l = list_pop(&c->in_flight)))
        db_pool_finish(c->pool, list_entry(l, struct db_request, link), DB_UNAVAILABLE);
    db_watch_free(c->watch);
    PQfinish(c->pg);
    db_pool_lost(c->pool, c, c->useful || now_ms(c) - c->born_ms > 10000);
    free(c->stmt);
    free(c);
}

bool db_conn_hangs(const struct db_conn *c)
{
    return c->in_flight_count > 0 && now_ms(c) - c->progress_ms > HANGING_MS;
}

void db_conn_check(struct db_conn *c, uint64_t answer_timeout_ms)
{
    if (c->in_flight_count > 0 && now_ms(c) - c->progress_ms > answer_timeout_ms)
        db_conn_drop(c, "no answer in time");
}

/* --- sending --- */

static struct prepared_stmt *prepared(struct db_conn *c, const struct db_stmt *stmt)
{
    /* A few dozen statements, compared by address: faster than hashing their names. */
    for (size_t i = 0; i < c->stmt_count; i++)
        if (c->stmt[i].stmt == stmt)
            return &c->stmt[i];
    c->stmt = xrealloc(c->stmt, (c->stmt_count + 1) * sizeof(*c->stmt));
    struct prepared_stmt *p = &c->stmt[c->stmt_count++];
    *p = (struct prepared_stmt){.stmt = stmt};
    return p;
}

static void prepared_name(const struct prepared_stmt *p, char *name, size_t size)
{
    if (p->generation == 0)
        snprintf(name, size, "%s", p->stmt->name);
    else
        snprintf(name, size, "%u#%s", p->generation, p->stmt->name);
}

static bool send_segment(struct db_conn *c, struct db_request *r)
{
    struct prepared_stmt *p = prepared(c, r->stmt);
    struct db_wire_params w = db_params_wire(r->params);
    char name[64]; /* what the server keeps of a name is shorter still */
    prepared_name(p, name, sizeof(name));
    r->results = 0;
    r->prepares = p->state == UNKNOWN;
    r->uses_prepared = p->state != PENDING;
    if (r->prepares) {
        if (PQsendPrepare(c->pg, name, r->stmt->sql, 0, NULL) != 1)
            return false;
        p->state = PENDING;
    }
    int rc = r->uses_prepared
                 ? PQsendQueryPrepared(c->pg, name, w.count, w.values, w.lengths, w.formats, 1)
                 : PQsendQueryParams(c->pg, r->stmt->sql, w.count, NULL, w.values, w.lengths,
                                     w.formats, 1);
    return rc == 1 && PQpipelineSync(c->pg) == 1;
}

/* Write what can be written; go on watching for reading in any case, or both sides may fill up and
 * stand still. */
static bool flush(struct db_conn *c)
{
    int rc = PQflush(c->pg);
    return rc >= 0 && db_watch_set(c->watch, rc > 0 ? UV_READABLE | UV_WRITABLE : UV_READABLE);
}

bool db_conn_send(struct db_conn *c, struct db_request *r)
{
    if (c->in_flight_count == 0)
        c->progress_ms = now_ms(c);
    list_push(&c->in_flight, &r->link);
    c->in_flight_count++;
    if (send_segment(c, r) && flush(c))
        return true;
    db_conn_drop(c, PQerrorMessage(c->pg));
    return false;
}

/* --- receiving --- */

static bool is_error(const PGresult *res)
{
    ExecStatusType s = PQresultStatus(res);
    return s != PGRES_TUPLES_OK && s != PGRES_COMMAND_OK;
}

static const char *sqlstate(const PGresult *res)
{
    const char *s = PQresultErrorField(res, PG_DIAG_SQLSTATE);
    return s ? s : "";
}

/* The statement must be prepared anew: the server has forgotten it, or its result type has changed.
 */
static bool is_stale(const PGresult *res)
{
    const char *state = sqlstate(res);
    const char *routine = PQresultErrorField(res, PG_DIAG_SOURCE_FUNCTION);
    return strcmp(state, "26000") == 0 || (strcmp(state, "0A000") == 0 && routine &&
                                           strcmp(routine, "RevalidateCachedQuery") == 0);
}

/* One result of the oldest request. False if it means the end of the connection. */
static bool take_result(struct db_conn *c, struct db_request *r, PGresult *res)
{
    bool failed = is_error(res);
    bool of_prepare = r->prepares && r->results == 0;
    r->results++;
    if (of_prepare)
        prepared(c, r->stmt)->state = failed ? UNKNOWN : READY;
    if (failed && PQresultStatus(res) != PGRES_PIPELINE_ABORTED &&
        (sqlstate(res)[0] == '\0' || db_sqlstate_is_fatal(sqlstate(res)))) {
        db_conn_drop(c, PQresultErrorMessage(res));
        PQclear(res);
        return false;
    }
    if (r->res.pg || (of_prepare && !failed))
        PQclear(res); /* "aborted" after the prepare's error, or the prepare's success */
    else
        r->res.pg = res;
    return true;
}

/* The segment's SYNC has come: the request is finished, or goes round once more. */
static bool finish_oldest(struct db_conn *c)
{
    struct db_request *r = list_entry(list_pop(&c->in_flight), struct db_request, link);
    c->in_flight_count--;
    if (!r->res.pg) {
        list_push_front(&c->in_flight, &r->link);
        c->in_flight_count++;
        db_conn_drop(c, "a call ended without a result");
        return false;
    }
    bool failed = is_error(r->res.pg);
    if (failed && r->uses_prepared && !r->prepares && !r->repeated && is_stale(r->res.pg)) {
        struct prepared_stmt *p = prepared(c, r->stmt);
        if (p->state == READY) {
            p->state = UNKNOWN;
            p->generation++;
        }
        PQclear(r->res.pg);
        r->res.pg = NULL;
        r->repeated = true;
        return db_conn_send(c, r);
    }
    c->useful = true;
    db_pool_finish(c->pool, r, failed ? DB_ERROR : DB_OK);
    return true;
}

/* Take in all results that are complete. False if the connection is gone. */
static bool receive(struct db_conn *c)
{
    int nulls =
        0; /* one NULL ends each statement's results; more mean that we and libpq disagree */
    /* PQisBusy() also digests what comes unasked, so it is called even with nothing in flight. */
    while (!PQisBusy(c->pg) && !list_empty(&c->in_flight)) {
        struct db_request *r = list_entry(c->in_flight.next, struct db_request, link);
        PGresult *res = PQgetResult(c->pg);
        if (!res) {
            if (++nulls < 3)
                continue;
            db_conn_drop(c, PQstatus(c->pg) == CONNECTION_BAD ? PQerrorMessage(c->pg)
                                                              : "out of step with the server");
            return false;
        }
        nulls = 0;
        if (PQresultStatus(res) != PGRES_PIPELINE_SYNC) {
            if (!take_result(c, r, res))
                return false;
            continue;
        }
        PQclear(res);
        if (!finish_oldest(c))
            return false;
    }
    return true;
}

static void on_socket(void *ctx, int status)
{
    struct db_conn *c = ctx;
    struct db_pool *pool = c->pool;
    c->progress_ms = now_ms(c);
    char *why = NULL;
    if (!db_consume(c->pg))
        why = xstrdup(PQerrorMessage(c->pg));
    else if (status < 0)
        why = xstrdup(uv_strerror(status));
    /* What came before the end may still hold answers, and the server's last words. */
    if (receive(c)) {
        if (!why && !flush(c))
            why = xstrdup(PQerrorMessage(c->pg));
        if (why)
            db_conn_drop(c, why);
    }
    free(why);
    db_pool_deliver(pool);
}
