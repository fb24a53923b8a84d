/*
 * Shared by config.c (reading), config_value.c (types and access) and config_print.c (showing, and
 * hints in messages). Not for anybody else.
 */
#ifndef SHINE_UTIL_CONFIG_INTERNAL_H
#define SHINE_UTIL_CONFIG_INTERNAL_H

#include "util/config.h"

struct config_value {
    char *text;    /* as set, white space trimmed */
    int64_t num;   /* CONFIG_INT, CONFIG_BOOL, CONFIG_ENUM */
    char *origin;  /* see config_origin() */
    bool secret;   /* was read by key@file */
    unsigned load; /* the config_load_file() call that set it, to find duplicates */
};

struct config {
    const struct config_key *keys;
    struct config_value *values; /* parallel to keys */
    size_t n;
    unsigned loads;
};

/* Set the value of key `i` from `text`, which is copied like `origin`. false with *error, a new
 * string that begins with `origin`, if the type or bounds refuse it; then the old value stays. */
bool config_store(struct config *c, size_t i, const char *text, const char *origin, char **error);
/* Name of the environment variable of `key`: a new string, freed with free(). */
char *config_env_name(const char *key);
/* Name of the key most like `name` (length `len`), as written in the file or as variable. A new
 * string, freed with free(). */
char *config_nearest(const struct config *c, const char *name, size_t len, bool as_env);

#endif
