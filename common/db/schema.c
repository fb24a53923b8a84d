/*
 * Comparing a program's SQL files with what a database has; the check daemons make at start.
 *
 * Raises: nothing; failures are returned as text.
 */
#include "db/schema.h"

#include "db/internal.h"
#include "util/mem.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#define MIGRATIONS "migrations/"
#define RUN_IT     "run \"shinectl migrate\" of this release"

enum { HEAD_LINES = 10 };
enum { COL_VERSION, COL_CHECKSUM, COL_COMPATIBLE_FROM };

/* --- what a file says about itself --- */

bool schema_is_migration(const struct sql_file *f)
{
    return strncmp(f->name, MIGRATIONS, strlen(MIGRATIONS)) == 0;
}

char *schema_version_of(const struct sql_file *f)
{
    if (!schema_is_migration(f))
        return xstrdup(f->name);
    const char *number = f->name + strlen(MIGRATIONS);
    return xmemdup0(number, strspn(number, "0123456789"));
}

void schema_checksum_of(const struct sql_file *f, char hex[SCHEMA_CHECKSUM_SIZE])
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    shine_assert(EVP_Digest(f->text, strlen(f->text), digest, &n, EVP_sha256(), NULL) == 1);
    shine_assert(n * 2 + 1 == SCHEMA_CHECKSUM_SIZE);
    for (unsigned i = 0; i < n; i++)
        snprintf(hex + i * 2, 3, "%02x", digest[i]);
}

char *schema_compatible_from_of(const struct sql_file *f)
{
    static const char marker[] = "-- compatible_from:";
    const char *line = f->text;
    for (int i = 0; i < HEAD_LINES && line; i++) {
        if (strncmp(line, marker, strlen(marker)) == 0) {
            line += strlen(marker);
            line += strspn(line, " \t");
            return xmemdup0(line, strcspn(line, " \t\r\n"));
        }
        line = strchr(line, '\n');
        line = line ? line + 1 : NULL;
    }
    return NULL;
}

/* --- what the database says --- */

PGresult *schema_read(PGconn *pg, char **error)
{
    PGresult *rows = PQexec(pg, "SELECT version, checksum, coalesce(compatible_from, version) "
                                "FROM public.schema_migrations ORDER BY version COLLATE \"C\"");
    if (PQresultStatus(rows) == PGRES_TUPLES_OK)
        return rows;
    const char *state = PQresultErrorField(rows, PG_DIAG_SQLSTATE);
    if (state && strcmp(state, "42P01") == 0)
        *error = xstrdup("the database has no schema yet: " RUN_IT);
    else
        *error = db_first_line(PQerrorMessage(pg));
    PQclear(rows);
    return NULL;
}

int schema_row(const PGresult *rows, const char *version)
{
    for (int i = 0; i < PQntuples(rows); i++)
        if (strcmp(PQgetvalue(rows, i, COL_VERSION), version) == 0)
            return i;
    return -1;
}

const char *schema_checksum(const PGresult *rows, int row)
{
    return PQgetvalue(rows, row, COL_CHECKSUM);
}

static bool is_number(const char *version)
{
    return version[0] >= '0' && version[0] <= '9';
}

/* The newest number among files or rows; "0000" if there is none. Freed with free(). */
static char *newest_file(const struct sql_file *files, size_t n)
{
    char *newest = xstrdup("0000");
    for (size_t i = 0; i < n; i++) {
        char *v = schema_version_of(&files[i]);
        if (schema_is_migration(&files[i]) && strcmp(v, newest) > 0) {
            free(newest);
            newest = v;
        } else {
            free(v);
        }
    }
    return newest;
}

static const char *newest_row(const PGresult *rows)
{
    const char *newest = "0000";
    for (int i = 0; i < PQntuples(rows); i++) {
        const char *v = PQgetvalue(rows, i, COL_VERSION);
        if (is_number(v) && strcmp(v, newest) > 0)
            newest = v;
    }
    return newest;
}

static enum schema_verdict compare_file(const PGresult *rows, const struct sql_file *f,
                                        const char *applied, char **error)
{
    char *version = schema_version_of(f);
    char sum[SCHEMA_CHECKSUM_SIZE];
    schema_checksum_of(f, sum);
    enum schema_verdict verdict = SCHEMA_EQUAL;
    int row = schema_row(rows, version);
    if (row < 0 && schema_is_migration(f) && strcmp(version, applied) < 0) {
        *error = xasprintf("%s was never applied, although the newer %s was: migrations are "
                           "applied in order, it needs a higher number",
                           f->name, applied);
        verdict = SCHEMA_BAD;
    } else if (row < 0) {
        verdict = SCHEMA_BEHIND;
    } else if (schema_is_migration(f) && strcmp(schema_checksum(rows, row), sum) != 0) {
        *error = xasprintf("%s was changed after it had been applied: put its text back and write "
                           "a new migration",
                           f->name);
        verdict = SCHEMA_BAD;
    }
    free(version);
    return verdict;
}

/* Does every migration that is newer than `needed` allow us? */
static enum schema_verdict compare_newer(const PGresult *rows, const char *needed, char **error)
{
    enum schema_verdict verdict = SCHEMA_EQUAL;
    for (int i = 0; i < PQntuples(rows); i++) {
        const char *version = PQgetvalue(rows, i, COL_VERSION);
        const char *from = PQgetvalue(rows, i, COL_COMPATIBLE_FROM);
        if (!is_number(version) || strcmp(version, needed) <= 0)
            continue;
        verdict = SCHEMA_NEWER;
        if (strcmp(from, needed) > 0) {
            *error = xasprintf("the database's schema is newer than this program (%s, we have %s) "
                               "and works only with programs from %s on: install the newer release",
                               version, needed, from);
            return SCHEMA_BAD;
        }
    }
    return verdict;
}

enum schema_verdict schema_compare(const PGresult *rows, const struct sql_file *files, size_t n,
                                   char **error)
{
    const char *applied = newest_row(rows);
    enum schema_verdict all = SCHEMA_EQUAL;
    for (size_t i = 0; i < n && all != SCHEMA_BAD; i++) {
        enum schema_verdict one = compare_file(rows, &files[i], applied, error);
        if (one != SCHEMA_EQUAL)
            all = one;
    }
    if (all == SCHEMA_BAD)
        return all;
    char *needed = newest_file(files, n);
    enum schema_verdict newer = compare_newer(rows, needed, error);
    free(needed);
    /* A newer release may have done away with a function file: then it is not ours to miss. */
    return newer == SCHEMA_EQUAL ? all : newer;
}

/* --- connecting, and the check --- */

PGconn *schema_connect(const char *conninfo, unsigned statement_timeout_ms, char **error)
{
    char *options = xasprintf("-c jit=off -c client_min_messages=warning -c lock_timeout=0 "
                              "-c statement_timeout=%u",
                              statement_timeout_ms);
    struct db_settings *s = db_settings_new(conninfo, "shine-schema", options,
                                            DB_LIMITS_DEFAULT.connect_timeout_ms, error);
    free(options);
    PGconn *pg = NULL;
    for (size_t i = 0; s && i < s->host_count; i++) {
        const char **keys;
        const char **values;
        db_settings_params(s, &s->hosts[i], s->hosts[i].hostaddr, &keys, &values);
        PQfinish(pg);
        pg = PQconnectdbParams(keys, values, 0);
        free(keys);
        free(values);
        if (PQstatus(pg) == CONNECTION_OK)
            break;
    }
    if (pg && PQstatus(pg) != CONNECTION_OK) {
        *error = db_first_line(PQerrorMessage(pg));
        PQfinish(pg);
        pg = NULL;
    }
    if (pg)
        db_quiet_notices(pg);
    db_settings_free(s);
    return pg;
}

enum db_schema_state db_schema_state_files(const char *conninfo, const struct sql_file *files,
                                           size_t n, char **error)
{
    *error = NULL;
    PGconn *pg = schema_connect(conninfo, 10000, error);
    if (!pg)
        return DB_SCHEMA_UNREACHABLE;
    enum db_schema_state state = DB_SCHEMA_UNUSABLE;
    PGresult *rows = schema_read(pg, error);
    if (!rows) {
        if (PQstatus(pg) == CONNECTION_BAD)
            state = DB_SCHEMA_UNREACHABLE;
    } else {
        enum schema_verdict v = schema_compare(rows, files, n, error);
        if (v == SCHEMA_BEHIND)
            *error = xasprintf("the database's schema is older than this program: " RUN_IT);
        else if (v != SCHEMA_BAD)
            state = DB_SCHEMA_OK;
    }
    PQclear(rows);
    PQfinish(pg);
    return state;
}

enum db_schema_state db_schema_state(const char *conninfo, char **error)
{
    return db_schema_state_files(conninfo, sql_files, sql_files_count, error);
}

bool db_schema_check(const char *conninfo, char **error)
{
    return db_schema_state(conninfo, error) == DB_SCHEMA_OK;
}

const char *db_schema_needed(void)
{
    return sql_newest_version;
}
