/*
 * Configuration values: types, bounds, defaults, and access by name.
 *
 * Grades of failure: a bad value is returned as a message for the operator; asking for a key that
 * the table does not have, or for another type, and a default that breaks its own bounds are our
 * bugs.
 */
#include "util/config.h"

#include "util/config_internal.h"
#include "util/log.h"
#include "util/mem.h"
#include "util/utf8.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool refuse(char **error, char *message)
{
    *error = message;
    return false;
}

/* Index of `name` in "off|on|auto", or -1. */
static int choice_index(const char *choices, const char *name)
{
    size_t len = strlen(name);
    for (int i = 0; choices; i++) {
        const char *end = strchrnul(choices, '|');
        if ((size_t)(end - choices) == len && memcmp(choices, name, len) == 0)
            return i;
        choices = *end ? end + 1 : NULL;
    }
    return -1;
}

/* Convert `text` by the type of `key`; false with *error (without the place) if it is not one. */
static bool parse(const struct config_key *key, const char *text, int64_t *num, char **error)
{
    char *end;
    /* Whatever the type: values and messages go out in JSON and to terminals. */
    if (!utf8_valid(text))
        return refuse(error, xasprintf("%s is not valid UTF-8", key->name));
    switch (key->type) {
    case CONFIG_STRING:
        return true;
    case CONFIG_INT:
        errno = 0;
        *num = strtoll(text, &end, 10);
        if (end == text || *end || isspace((unsigned char)*text))
            return refuse(error, xasprintf("%s is not a number: '%.64s'", key->name, text));
        if (errno || *num < key->min || *num > key->max)
            return refuse(error, xasprintf("%s must be between %lld and %lld: '%.64s'", key->name,
                                           (long long)key->min, (long long)key->max, text));
        return true;
    case CONFIG_BOOL:
        *num = choice_index("false|true|no|yes|off|on|0|1", text);
        if (*num < 0)
            return refuse(error, xasprintf("%s must be true or false: '%.64s'", key->name, text));
        *num %= 2;
        return true;
    case CONFIG_ENUM:
        *num = choice_index(key->choices, text);
        if (*num < 0)
            return refuse(
                error, xasprintf("%s must be one of %s: '%.64s'", key->name, key->choices, text));
        return true;
    }
    shine_assert(!"a type of the table");
    return false;
}

bool config_store(struct config *c, size_t i, const char *text, const char *origin, char **error)
{
    int64_t num = 0;
    char *reason;
    if (!parse(&c->keys[i], text, &num, &reason)) {
        *error = xasprintf("%s: %s", origin, reason);
        free(reason);
        return false;
    }
    struct config_value *v = &c->values[i];
    char *new_text = xstrdup(text), *new_origin = xstrdup(origin); /* may be the old ones */
    free(v->text);
    free(v->origin);
    *v = (struct config_value){.text = new_text, .num = num, .origin = new_origin};
    return true;
}

struct config *config_new(const struct config_key *keys)
{
    struct config *c = xnew(struct config);
    c->keys = keys;
    while (keys[c->n].name)
        c->n++;
    c->values = xcalloc(c->n, sizeof *c->values);
    for (size_t i = 0; i < c->n; i++) {
        char *error = NULL;
        if (!config_store(c, i, keys[i].dflt ? keys[i].dflt : "", "default", &error)) {
            log_error("bad_default", LOG_S("reason", error));
            shine_assert(!"a valid default");
        }
    }
    return c;
}

void config_free(struct config *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->n; i++) {
        free(c->values[i].text);
        free(c->values[i].origin);
    }
    free(c->values);
    free(c);
}

/* The value of `name`; `type` < 0 for any type. */
static const struct config_value *value_of(const struct config *c, const char *name, int type)
{
    for (size_t i = 0; i < c->n; i++) {
        if (strcmp(c->keys[i].name, name) != 0)
            continue;
        shine_assert(type < 0 || (int)c->keys[i].type == type);
        return &c->values[i];
    }
    log_error("unknown_config_key", LOG_S("key", name));
    shine_assert(!"a key of the table");
    return NULL;
}

const char *config_str(const struct config *c, const char *name)
{
    return value_of(c, name, CONFIG_STRING)->text;
}

int64_t config_int(const struct config *c, const char *name)
{
    return value_of(c, name, CONFIG_INT)->num;
}

bool config_bool(const struct config *c, const char *name)
{
    return value_of(c, name, CONFIG_BOOL)->num != 0;
}

int config_enum(const struct config *c, const char *name)
{
    return (int)value_of(c, name, CONFIG_ENUM)->num;
}

const char *config_origin(const struct config *c, const char *name)
{
    return value_of(c, name, -1)->origin;
}
