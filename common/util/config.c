/*
 * The configuration reader: file, environment and single assignments. Lines may have any length; a
 * value is everything after the first '=' without the white space at its ends, so nothing needs
 * quoting.
 *
 * Grades of failure: bad input is returned as a message for the operator, never more.
 */
#include "util/config.h"

#include "util/config_internal.h"
#include "util/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VALUE_FILE_MAX = 64 * 1024 };

static bool fail(char **error, char *message)
{
    *error = message;
    return false;
}

static char *trim(char *s)
{
    s += strspn(s, " \t\r\n");
    size_t n = strlen(s);
    while (n > 0 && strchr(" \t\r\n", s[n - 1]))
        s[--n] = '\0';
    return s;
}

/* Store the content of the file `path` as a value. */
static bool store_file(struct config *c, size_t i, const char *path, const char *origin,
                       char **error)
{
    char *text = xmalloc(VALUE_FILE_MAX + 2);
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(text, 1, VALUE_FILE_MAX + 1, f) : 0;
    const char *reason = !f || ferror(f) ? strerror(errno) : NULL;
    if (f)
        (void)fclose(f);
    text[n] = '\0';
    if (!reason && n > VALUE_FILE_MAX)
        reason = "larger than 64 KiB";
    if (!reason && strlen(text) != n)
        reason = "holds a NUL byte";
    if (n > 0 && text[n - 1] == '\n')
        text[--n] = '\0';
    if (n > 0 && text[n - 1] == '\r')
        text[--n] = '\0';
    bool ok = reason ? fail(error, xasprintf("%s: %s@file: cannot read %s: %s", origin,
                                             c->keys[i].name, path, reason))
                     : config_store(c, i, text, origin, error);
    if (ok)
        c->values[i].secret = true;
    free(text);
    return ok;
}

/* `key = value` or `key@file = path`. `load` > 0 refuses a key that this load has set before. */
static bool assign(struct config *c, const char *text, unsigned load, const char *origin,
                   char **error)
{
    const char *equals = strchr(text, '=');
    if (!equals)
        return fail(error, xasprintf("%s: '=' is missing: expected 'key = value'", origin));
    char *copy = xstrdup(text);
    copy[equals - text] = '\0';
    char *name = trim(copy), *value = trim(copy + (equals - text) + 1);
    size_t len = strlen(name), i = 0;
    bool from_file = len > 5 && strcmp(name + len - 5, "@file") == 0;
    if (from_file)
        name[len -= 5] = '\0';
    while (i < c->n && strcmp(c->keys[i].name, name) != 0)
        i++;
    bool ok = false;
    if (i == c->n) {
        char *nearest = config_nearest(c, name, len, false);
        *error = xasprintf("%s: unknown key '%.128s'; did you mean '%s'?", origin, name, nearest);
        free(nearest);
    } else if (load > 0 && c->values[i].load == load) {
        *error = xasprintf("%s: %s was set before, in %s", origin, name, c->values[i].origin);
    } else {
        ok = from_file ? store_file(c, i, value, origin, error)
                       : config_store(c, i, value, origin, error);
        if (ok)
            c->values[i].load = load;
    }
    free(copy);
    return ok;
}

bool config_set(struct config *c, const char *assignment, const char *origin, char **error)
{
    return assign(c, assignment, 0, origin, error);
}

bool config_load_file(struct config *c, const char *path, char **error)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return fail(error, xasprintf("%s: %s", path, strerror(errno)));
    char *line = NULL;
    size_t size = 0;
    ssize_t n;
    bool ok = true;
    c->loads++;
    for (int number = 1; ok && (n = getline(&line, &size, f)) >= 0; number++) {
        char *origin = xasprintf("%s:%d", path, number);
        bool has_bom = number == 1 && strncmp(line, "\xef\xbb\xbf", 3) == 0;
        bool has_nul = memchr(line, '\0', (size_t)n);
        const char *text = trim(line + (has_bom ? 3 : 0));
        if (has_nul)
            ok = fail(error, xasprintf("%s: the line holds a NUL byte", origin));
        else if (*text && *text != '#')
            ok = assign(c, text, c->loads, origin, error);
        free(origin);
    }
    if (ok && ferror(f))
        ok = fail(error, xasprintf("%s: %s", path, strerror(errno)));
    free(line);
    (void)fclose(f);
    return ok;
}

/* The key whose variable is `name` (length `len`); c->n if there is none. */
static size_t find_env(const struct config *c, const char *name, size_t len)
{
    size_t i = 0;
    for (bool found = false; i < c->n; i++) {
        char *env = config_env_name(c->keys[i].name);
        found = strlen(env) == len && memcmp(env, name, len) == 0;
        free(env);
        if (found)
            break;
    }
    return i;
}

bool config_load_env(struct config *c, char **environ_, char **error)
{
    for (char **e = environ_; *e; e++) {
        const char *equals = strchr(*e, '=');
        if (!equals || strncmp(*e, "SHINE_", 6) != 0 || strncmp(*e, "SHINE_TEST_", 11) == 0)
            continue;
        size_t len = (size_t)(equals - *e);
        size_t i = find_env(c, *e, len);
        if (i == c->n) {
            char *nearest = config_nearest(c, *e, len, true);
            *error = xasprintf("environment: unknown variable '%.*s'; did you mean '%s'?",
                               len < 128 ? (int)len : 128, *e, nearest);
            free(nearest);
            return false;
        }
        char *value = xstrdup(equals + 1);
        bool ok = config_store(c, i, trim(value), "environment", error);
        free(value);
        if (!ok)
            return false;
    }
    return true;
}
