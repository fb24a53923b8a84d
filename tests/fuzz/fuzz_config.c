/*
 * Any text as a configuration file, as a --set, as a variable and as the file behind key@file.
 * Whatever comes in: types and bounds hold, a refusal has a message, what is printed holds no
 * secret and no control characters, and without secrets it gives the same values when it is read
 * again.
 */
#include "util/config.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct config_key keys[] = {
    {.name = "s", .dflt = "text", .help = "a text"},
    {.name = "a.longName", .dflt = ""},
    {.name = "n", .type = CONFIG_INT, .dflt = "7", .min = -9, .max = 900},
    {.name = "b", .type = CONFIG_BOOL, .dflt = "off"},
    {.name = "e", .type = CONFIG_ENUM, .dflt = "x", .choices = "x|yy|zzz"},
    {.name = "db.conninfo", .dflt = "dbname=shine"},
    {0},
};

static int memory_file(const void *data, size_t size, char path[32])
{
    int fd = memfd_create("fuzz_config", MFD_CLOEXEC);
    shine_assert(fd >= 0);
    shine_assert(size == 0 || write(fd, data, size) == (ssize_t)size);
    (void)snprintf(path, 32, "/proc/self/fd/%d", fd);
    return fd;
}

static void check_error(bool ok, char **error)
{
    shine_assert(ok == !*error);
    shine_assert(ok || **error);
    free(*error);
    *error = NULL;
}

static void check_values(const struct config *c)
{
    shine_assert(config_int(c, "n") >= -9 && config_int(c, "n") <= 900);
    shine_assert(config_enum(c, "e") >= 0 && config_enum(c, "e") <= 2);
    shine_assert(config_bool(c, "b") || !config_bool(c, "b"));
    for (const struct config_key *k = keys; k->name; k++)
        shine_assert(config_origin(c, k->name)[0]);
}

/* What config_print() writes: a new string. */
static char *printed(const struct config *c, size_t *len)
{
    struct stat st;
    int fd = memfd_create("fuzz_print", MFD_CLOEXEC);
    shine_assert(fd >= 0);
    config_print(c, fd);
    shine_assert(fstat(fd, &st) == 0);
    *len = (size_t)st.st_size;
    char *text = xcalloc(*len + 1, 1);
    shine_assert(pread(fd, text, *len, 0) == (ssize_t)*len);
    (void)close(fd);
    return text;
}

static bool has_controls(const char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            return true;
    return false;
}

/* What is shown of a configuration holds no secret, and lines break only where the printer broke
 * them. */
static void check_print(const char *text, size_t len)
{
    static const char secret[] = "\ndb.conninfo = (secret)\n";
    shine_assert(strlen(text) == len);
    shine_assert(strstr(text, secret));
    for (size_t i = 0; i < len; i++)
        shine_assert(text[i] == '\n' || !has_controls((char[]){text[i], '\0'}));
}

/* A configuration without secrets that is printed can be read again. */
static void check_reload(const struct config *c, const char *text, size_t len)
{
    static const char *const texts[] = {"s", "a.longName"};
    char path[32], *error = NULL;
    struct config *again = config_new(keys);
    int fd = memory_file(text, len, path);
    bool ok = config_load_file(again, path, &error);
    shine_assert(ok);
    check_error(ok, &error);
    (void)close(fd);
    shine_assert(config_int(again, "n") == config_int(c, "n"));
    shine_assert(config_bool(again, "b") == config_bool(c, "b"));
    shine_assert(config_enum(again, "e") == config_enum(c, "e"));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const char *was = config_str(c, texts[i]);
        shine_assert(strcmp(was, config_str(again, texts[i])) == 0 || has_controls(was));
    }
    config_free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[32], *error = NULL;
    char *text = xmemdup0(data, size);
    struct config *c = config_new(keys);
    int fd = memory_file(data, size, path);

    /* Not the file as written: "x@file = /dev/stdin" would wait for ever. */
    if (!strstr(text, "@file") && strlen(text) == size) {
        check_error(config_load_file(c, path, &error), &error);
        check_values(c);
        check_error(config_set(c, text, "--set", &error), &error);
        check_values(c);
    }
    char *variable = xasprintf("SHINE_%s", text);
    check_error(config_load_env(c, (char *[]){variable, NULL}, &error), &error);
    check_values(c);
    size_t len;
    char *shown = printed(c, &len);
    check_print(shown, len);
    check_reload(c, shown, len);
    free(shown);

    static const char *const names[] = {"s", "n", "b", "e", "a.longName"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *assignment = xasprintf("%s@file=%s", names[i], path);
        bool ok = config_set(c, assignment, "--set", &error);
        shine_assert(!ok || strlen(text) == size);
        check_error(ok, &error);
        free(assignment);
    }
    check_values(c);
    shown = printed(c, &len);
    check_print(shown, len);
    free(shown);

    (void)close(fd);
    config_free(c);
    free(variable);
    free(text);
    return 0;
}
