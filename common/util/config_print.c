/*
 * Showing a configuration, and the hints in messages about names that do not exist. Raises no
 * failures: output that cannot be written is the reader's loss.
 */
#include "util/config.h"

#include "util/config_internal.h"
#include "util/mem.h"

#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_LEN = 128 };

char *config_env_name(const char *key)
{
    char *name = xasprintf("SHINE_%s", key);
    for (char *p = name; *p; p++)
        *p = *p == '.' ? '_' : (char)toupper((unsigned char)*p);
    return name;
}

static bool same_letter(char a, char b)
{
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* Levenshtein distance, ignoring case: single letters added, dropped or changed. */
static size_t edit_distance(const char *a, size_t a_len, const char *b, size_t b_len)
{
    size_t row[NAME_MAX_LEN + 1];
    for (size_t j = 0; j <= b_len; j++)
        row[j] = j;
    for (size_t i = 1; i <= a_len; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_len; j++) {
            size_t best = diagonal + (same_letter(a[i - 1], b[j - 1]) ? 0 : 1);
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[b_len];
}

char *config_nearest(const struct config *c, const char *name, size_t len, bool as_env)
{
    char *nearest = NULL;
    size_t least = SIZE_MAX;
    if (len > NAME_MAX_LEN)
        len = NAME_MAX_LEN;
    for (size_t i = 0; i < c->n; i++) {
        char *key = as_env ? config_env_name(c->keys[i].name) : xstrdup(c->keys[i].name);
        size_t key_len = strnlen(key, NAME_MAX_LEN);
        size_t distance = edit_distance(name, len, key, key_len);
        if (distance < least) {
            least = distance;
            free(nearest);
            nearest = key;
        } else {
            free(key);
        }
    }
    return nearest ? nearest : xstrdup("");
}

/* The connection string usually carries a password. The one key whose name is known here: a flag in
 * the table could be forgotten just where it matters most. */
static bool is_secret(const struct config *c, size_t i)
{
    return c->values[i].secret || strcmp(c->keys[i].name, "db.conninfo") == 0;
}

void config_print(const struct config *c, int fd)
{
    for (size_t i = 0; i < c->n; i++) {
        const char *help = c->keys[i].help ? c->keys[i].help : "";
        char *text = xstrdup(is_secret(c, i) ? "(secret)" : c->values[i].text);
        for (char *p = text; *p; p++) /* a variable may hold line breaks or terminal codes */
            if ((unsigned char)*p < 0x20 || *p == 0x7f)
                *p = '?';
        (void)dprintf(fd, "# %s [%s]\n%s = %s\n", help, c->values[i].origin, c->keys[i].name, text);
        free(text);
    }
}
