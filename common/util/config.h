/*
 * The configuration reader: `key = value` lines, environment, `--set`. It knows types and bounds
 * but not the meaning of any key; the table of keys is handed in (common/daemon/settings.h).
 *
 * Order of precedence: default < file < environment < --set. `key@file = path` reads the value from
 * a file (for secrets); one trailing newline is dropped. '#' starts a comment only at the beginning
 * of a line, so that values may contain it. Values are UTF-8, others are refused. Environment:
 * `server.pool.pingIdleSeconds` is SHINE_SERVER_POOL_PINGIDLESECONDS.
 */
#ifndef SHINE_UTIL_CONFIG_H
#define SHINE_UTIL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum config_type { CONFIG_STRING, CONFIG_INT, CONFIG_BOOL, CONFIG_ENUM };

struct config_key {
    const char *name; /* as written in the file; NULL ends the table */
    enum config_type type;
    const char *dflt;    /* default, in the syntax of the file */
    int64_t min, max;    /* CONFIG_INT: inclusive bounds */
    const char *choices; /* CONFIG_ENUM: "off|on"; the value stored is the index */
    const char *help;    /* one line for --print-config and the docs */
};

struct config;

/* A configuration with every key at its default. The table must outlive it. */
struct config *config_new(const struct config_key *keys);
void config_free(struct config *c);

/* Each loader returns true, or false with *error set to a new string (freed with free()) that names
 * the file and line, variable or option, and for an unknown key the nearest valid one. Nothing is
 * changed on failure of a single assignment; earlier ones of the same file stay. */
bool config_load_file(struct config *c, const char *path, char **error);
bool config_load_env(struct config *c, char **environ_, char **error);
bool config_set(struct config *c, const char *assignment, const char *origin, char **error);

/* Values by key name; an unknown name or other type is a bug and aborts. Strings live as long as
 * `c` or until the key is set again. */
const char *config_str(const struct config *c, const char *name);
int64_t config_int(const struct config *c, const char *name);
bool config_bool(const struct config *c, const char *name);
int config_enum(const struct config *c, const char *name);
/* Where the value came from: "default", "FILE:LINE", "environment", "--set". */
const char *config_origin(const struct config *c, const char *name);
/* Print every key, value and origin to `fd`; values read by key@file, and those of `db.conninfo`,
 * show as "(secret)". */
void config_print(const struct config *c, int fd);

#endif
