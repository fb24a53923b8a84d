/*
 * Schema migrations. The SQL files of sql/ are embedded in the program (sql/embed.py). Two kinds:
 *
 *   migrations/NNNN_name.sql   applied once, in order; never edited afterwards (a changed checksum
 * is an error); functions, views (.sql)    applied again whenever their checksum changed, after the
 * migrations, in name order.
 *
 * All of it is recorded in schema_migrations and done in one transaction under an advisory lock, so
 * two runs at once are harmless and a failed one leaves nothing behind. Blocking: for shinectl, not
 * for a daemon's loop.
 */
#ifndef SHINE_DB_MIGRATE_H
#define SHINE_DB_MIGRATE_H

#include <stdbool.h>
#include <stddef.h>

/* One embedded file: "migrations/0001_base.sql" and its text. Sorted as applied. */
struct sql_file {
    const char *name;
    const char *text;
};
extern const struct sql_file sql_files[];
extern const size_t sql_files_count;

/* Bring the schema up to date. `note` is called for each file applied (may be NULL). false with
 * *error (freed with free()) naming file, line and PostgreSQL's message. */
bool db_migrate(const char *conninfo, void (*note)(void *ctx, const char *name), void *ctx,
                char **error);

/* Version of the newest embedded migration ("0001"): what this program needs at least. */
const char *db_schema_needed(void);

/* Is the database's schema usable for this program? True if it has every embedded migration with
 * the same checksum, or is newer with a `compatible_from` that allows us. false with *error saying
 * which command to run. Blocking. */
bool db_schema_check(const char *conninfo, char **error);

#endif
