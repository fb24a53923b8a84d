/*
 * Bringing a schema up to date: one connection, one advisory lock, one transaction.
 *
 * Raises: nothing; every failure is returned as text for the person at the terminal.
 */
#include "db/migrate.h"

#include "db/internal.h"
#include "db/schema.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

/* Any number that nobody else is likely to lock. */
#define LOCK_SQL "SELECT pg_advisory_lock(83720736978)"
/* A migration that cannot get its table lock must not make everybody else queue behind it for long.
 */
#define BEGIN_SQL                                                                                  \
    "BEGIN; SET LOCAL lock_timeout = '30s'; SET LOCAL search_path = public; "                      \
    "CREATE TABLE IF NOT EXISTS public.schema_migrations ("                                        \
    "version text COLLATE \"C\" PRIMARY KEY, checksum text NOT NULL, "                             \
    "applied_at_ms bigint NOT NULL, compatible_from text); "                                       \
    "COMMENT ON TABLE public.schema_migrations IS "                                                \
    "'What shinectl migrate has applied: numbered migrations, and the files of functions and "     \
    "views with the checksum of their last application. compatible_from: oldest program that "     \
    "can run with the migration.'; "                                                               \
    "GRANT SELECT ON public.schema_migrations TO PUBLIC"
#define RECORD_SQL                                                                                 \
    "INSERT INTO public.schema_migrations (version, checksum, applied_at_ms, compatible_from) "    \
    "VALUES ($1, $2, (extract(epoch FROM clock_timestamp()) * 1000)::bigint, $3) "                 \
    "ON CONFLICT (version) DO UPDATE SET checksum = excluded.checksum, "                           \
    "applied_at_ms = excluded.applied_at_ms"

struct run {
    PGconn *pg;
    const struct sql_file *files;
    size_t count;
    void (*note)(void *ctx, const char *name);
    void *ctx;
    char **error;
    char *xid; /* of our transaction */
};

static bool exec(struct run *run, const char *sql)
{
    PGresult *res = PQexec(run->pg, sql);
    ExecStatusType s = PQresultStatus(res);
    PQclear(res);
    if (s == PGRES_COMMAND_OK || s == PGRES_TUPLES_OK)
        return true;
    *run->error = db_first_line(PQerrorMessage(run->pg));
    return false;
}

/* --- one file --- */

static char *describe_error(const struct sql_file *f, const PGresult *res, int statement)
{
    const char *position = PQresultErrorField(res, PG_DIAG_STATEMENT_POSITION);
    const char *message = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
    const char *detail = PQresultErrorField(res, PG_DIAG_MESSAGE_DETAIL);
    const char *hint = PQresultErrorField(res, PG_DIAG_MESSAGE_HINT);
    const char *state = PQresultErrorField(res, PG_DIAG_SQLSTATE);
    int line = position ? sql_line_of_position(f->text, (int)strtol(position, NULL, 10))
                        : sql_line_of_statement(f->text, statement);
    return xasprintf("%s:%d: %s%s%s%s%s (SQLSTATE %s)", f->name, line,
                     message ? message : PQresultErrorMessage(res), detail ? "; " : "",
                     detail ? detail : "", hint ? "; " : "", hint ? hint : "",
                     state ? state : "unknown");
}

static char *current_xid(PGconn *pg)
{
    PGresult *res = PQexec(pg, "SELECT pg_current_xact_id()");
    char *xid = PQresultStatus(res) == PGRES_TUPLES_OK ? xstrdup(PQgetvalue(res, 0, 0)) : NULL;
    PQclear(res);
    return xid;
}

/* A COMMIT in a file would make everything before it permanent, whatever fails later. */
static bool still_in_our_transaction(struct run *run, const struct sql_file *f)
{
    char *xid = current_xid(run->pg);
    bool same = xid && strcmp(xid, run->xid) == 0;
    free(xid);
    if (!same)
        *run->error = xasprintf("%s: ends or replaces the transaction it is applied in; "
                                "remove its COMMIT or ROLLBACK",
                                f->name);
    return same;
}

static bool run_script(struct run *run, const struct sql_file *f)
{
    if (PQsendQuery(run->pg, f->text) != 1) {
        *run->error = db_first_line(PQerrorMessage(run->pg));
        return false;
    }
    PGresult *res;
    int statement = 0;
    while ((res = PQgetResult(run->pg))) {
        ExecStatusType s = PQresultStatus(res);
        if (s == PGRES_COPY_IN || s == PGRES_COPY_OUT) {
            *run->error = xasprintf("%s:%d: COPY from or to the client cannot be used here",
                                    f->name, sql_line_of_statement(f->text, statement));
            PQclear(res);
            return false; /* the connection is closed next, and the transaction with it */
        }
        if (s != PGRES_COMMAND_OK && s != PGRES_TUPLES_OK && s != PGRES_EMPTY_QUERY && !*run->error)
            *run->error = describe_error(f, res, statement);
        PQclear(res);
        statement++;
    }
    return !*run->error && still_in_our_transaction(run, f);
}

static bool valid_compatible_from(struct run *run, const struct sql_file *f, const char *version,
                                  const char *from)
{
    if (!from ||
        (strlen(from) == 4 && strspn(from, "0123456789") == 4 && strcmp(from, version) <= 0))
        return true;
    *run->error =
        xasprintf("%s: compatible_from must be four digits, at most %s", f->name, version);
    return false;
}

static bool record(struct run *run, const struct sql_file *f, const char *version, const char *sum,
                   const char *from)
{
    PGresult *res = PQexecParams(run->pg, RECORD_SQL, 3, NULL,
                                 (const char *const[]){version, sum, from}, NULL, NULL, 0);
    bool ok = PQresultStatus(res) == PGRES_COMMAND_OK;
    PQclear(res);
    if (!ok)
        *run->error = xasprintf("%s: cannot be recorded: %s", f->name, PQerrorMessage(run->pg));
    return ok;
}

/* Apply `f` if the database lacks it. *migrated: a migration was applied in this run, so functions
 * and views are applied again. */
static bool apply_if_needed(struct run *run, const PGresult *rows, const struct sql_file *f,
                            bool *migrated)
{
    char sum[SCHEMA_CHECKSUM_SIZE];
    schema_checksum_of(f, sum);
    char *version = schema_version_of(f);
    char *from = schema_is_migration(f) ? schema_compatible_from_of(f) : NULL;
    int row = schema_row(rows, version);
    bool needed = row < 0 || (!schema_is_migration(f) &&
                              (*migrated || strcmp(schema_checksum(rows, row), sum) != 0));
    bool ok = !needed || (valid_compatible_from(run, f, version, from) && run_script(run, f) &&
                          record(run, f, version, sum, from));
    if (needed && ok) {
        *migrated = *migrated || schema_is_migration(f);
        if (run->note)
            run->note(run->ctx, f->name);
    }
    free(version);
    free(from);
    return ok;
}

/* --- all of them --- */

static bool apply_all(struct run *run, const PGresult *rows)
{
    bool migrated = false;
    for (size_t i = 0; i < run->count; i++)
        if (!apply_if_needed(run, rows, &run->files[i], &migrated))
            return false;
    return exec(run, "COMMIT");
}

static bool run_all(struct run *run)
{
    if (!exec(run, LOCK_SQL) || !exec(run, BEGIN_SQL))
        return false;
    run->xid = current_xid(run->pg);
    PGresult *rows = run->xid ? schema_read(run->pg, run->error) : NULL;
    if (!rows) {
        if (!*run->error)
            *run->error = db_first_line(PQerrorMessage(run->pg));
        return false;
    }
    bool ok = false;
    switch (schema_compare(rows, run->files, run->count, run->error)) {
    case SCHEMA_EQUAL: /* functions and views may still have changed */
    case SCHEMA_BEHIND:
        ok = apply_all(run, rows);
        break;
    case SCHEMA_NEWER: /* its functions are newer too: ours must not replace them */
        ok = true;
        break;
    case SCHEMA_BAD:
        break;
    }
    PQclear(rows);
    return ok;
}

bool db_migrate_files(const char *conninfo, const struct sql_file *files, size_t n,
                      void (*note)(void *ctx, const char *name), void *ctx, char **error)
{
    *error = NULL;
    struct run run = {.files = files, .count = n, .note = note, .ctx = ctx, .error = error};
    run.pg = schema_connect(conninfo, 0, error);
    if (!run.pg)
        return false;
    bool ok = run_all(&run);
    free(run.xid);
    PQfinish(run.pg); /* rolls back what was not committed, and frees the lock */
    return ok;
}

bool db_migrate(const char *conninfo, void (*note)(void *ctx, const char *name), void *ctx,
                char **error)
{
    return db_migrate_files(conninfo, sql_files, sql_files_count, note, ctx, error);
}
