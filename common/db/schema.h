/*
 * What a program's SQL files and a database's schema_migrations say about each other. Internal to
 * common/db.
 */
#ifndef SHINE_DB_SCHEMA_H
#define SHINE_DB_SCHEMA_H

#include "db/migrate.h"

#include <libpq-fe.h>

enum { SCHEMA_CHECKSUM_SIZE = 65 }; /* SHA-256 in hex, with its NUL */

/* Is it applied once and in order, unlike a function or view? */
bool schema_is_migration(const struct sql_file *f);
/* The file's key in schema_migrations: "0001", or the whole name of a function or view file. Freed
 * with free(). */
char *schema_version_of(const struct sql_file *f);
void schema_checksum_of(const struct sql_file *f, char hex[SCHEMA_CHECKSUM_SIZE]);
/* The NNNN of its `-- compatible_from: NNNN`, or NULL. Freed with free(). */
char *schema_compatible_from_of(const struct sql_file *f);

/* The rows of schema_migrations, or NULL with *error. */
PGresult *schema_read(PGconn *pg, char **error);
/* Row of `version`, or -1. */
int schema_row(const PGresult *rows, const char *version);
const char *schema_checksum(const PGresult *rows, int row);

enum schema_verdict {
    SCHEMA_EQUAL,  /* nothing is missing, and nothing is newer */
    SCHEMA_BEHIND, /* files are missing in the database */
    SCHEMA_NEWER,  /* newer than the files, and it allows them */
    SCHEMA_BAD,    /* anything else: *error says what */
};
enum schema_verdict schema_compare(const PGresult *rows, const struct sql_file *files, size_t n,
                                   char **error);

/* Connect, blocking, to the first host of `conninfo` that accepts writes. NULL with *error. A
 * `statement_timeout_ms` of 0 is none. */
PGconn *schema_connect(const char *conninfo, unsigned statement_timeout_ms, char **error);

/* Line (from 1) in which statement number `index` (from 0) of a script begins. Approximate where
 * the script is odd: it only serves messages. */
int sql_line_of_statement(const char *script, int index);
/* Line of the character (from 1, counted in code points) that PostgreSQL complains about. */
int sql_line_of_position(const char *script, int position);

#endif
