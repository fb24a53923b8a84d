/*
 * Schema migrations. The SQL files of sql/ are embedded in the program (sql/embed.py). Two kinds:
 *
 *   migrations/NNNN_name.sql   applied once, in order; never edited afterwards (a changed checksum
 *                              is an error);
 *   functions, views (.sql)    applied again whenever their checksum changed or a migration was
 *                              applied (it may have dropped them), after the migrations, in name
 *                              order.
 *
 * All of it is recorded in schema_migrations and done in one transaction under an advisory lock, so
 * two runs at once are harmless and a failed one leaves nothing behind. A file must not contain
 * COMMIT or ROLLBACK; that is noticed and fails. Blocking: for shinectl, not for a daemon's loop.
 *
 * A line `-- compatible_from: NNNN` among the first ten of a migration says that programs whose
 * newest migration is NNNN or later can go on running with it; without it, only programs that have
 * the migration itself.
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
/* Number of the newest embedded migration; "0000" if there is none. */
extern const char sql_newest_version[];

/* Bring the schema up to date. `note` is called for each file applied (may be NULL). false with
 * *error (freed with free()) naming file, line and PostgreSQL's message. A database that is newer
 * than this program is left as it is: true if its compatible_from allows us, else an error. */
bool db_migrate(const char *conninfo, void (*note)(void *ctx, const char *name), void *ctx,
                char **error);

/* Version of the newest embedded migration ("0001"): what this program needs at least. */
const char *db_schema_needed(void);

/* Is the database's schema usable for this program? True if it has every embedded migration with
 * the same checksum and every embedded function and view file in some version, or is newer with a
 * `compatible_from` that allows us. false with *error saying which command to run. Blocking. */
bool db_schema_check(const char *conninfo, char **error);

/* The same with a distinction: a database that cannot be reached may be waited for. */
enum db_schema_state { DB_SCHEMA_OK, DB_SCHEMA_UNREACHABLE, DB_SCHEMA_UNUSABLE };
enum db_schema_state db_schema_state(const char *conninfo, char **error);

/* What the three above do, with any set of files instead of the embedded ones. */
bool db_migrate_files(const char *conninfo, const struct sql_file *files, size_t n,
                      void (*note)(void *ctx, const char *name), void *ctx, char **error);
enum db_schema_state db_schema_state_files(const char *conninfo, const struct sql_file *files,
                                           size_t n, char **error);

#endif
