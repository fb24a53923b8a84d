/*
 * Any bytes as values of a log line. Whatever a peer sends, an event stays one line of at most
 * PIPE_BUF bytes, without control characters, of which a JSON line parses and is UTF-8.
 */
#include "util/log.h"
#include "util/mem.h"
#include "util/utf8.h"

#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const names[] = {"a", "b", "c", "d"};
enum { FIELDS = 4, HEAD_FIELDS = 5 };

/* Log one event with `values` and read back what was written: a new string. */
static char *logged(enum log_format format, char *const values[FIELDS], size_t *len)
{
    int fd = memfd_create("fuzz_log", MFD_CLOEXEC), real = dup(STDERR_FILENO);
    shine_assert(fd >= 0 && real >= 0);
    log_setup("fuzz", format, LOG_LEVEL_INFO);
    shine_assert(dup2(fd, STDERR_FILENO) >= 0);
    log_info("event", LOG_S(names[0], values[0]), LOG_S(names[1], values[1]),
             LOG_S(names[2], values[2]), LOG_S(names[3], values[3]), LOG_I("n", INT64_MIN));
    shine_assert(dup2(real, STDERR_FILENO) >= 0);
    char *text = xcalloc(4 * PIPE_BUF, 1);
    ssize_t n = pread(fd, text, 4 * PIPE_BUF - 1, 0);
    shine_assert(n > 0);
    *len = (size_t)n;
    (void)close(real);
    (void)close(fd);
    return text;
}

/* One line; whatever is in it can be shown on a terminal. */
static void check_line(const char *text, size_t len)
{
    shine_assert(len <= PIPE_BUF && strlen(text) == len && text[len - 1] == '\n');
    for (size_t i = 0; i + 1 < len; i++)
        shine_assert((unsigned char)text[i] >= 0x20 && text[i] != 0x7f);
    shine_assert(utf8_valid(text));
}

static void check_json(const char *text, size_t len, char *const values[FIELDS])
{
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
    shine_assert(root);
    size_t found = 0;
    for (size_t i = 0; i < FIELDS; i++) {
        const char *shown = json_string_value(json_object_get(root, names[i]));
        found += shown != NULL;
        /* A short text comes back as it is. */
        if (shown && strlen(values[i]) < 100 && utf8_valid(values[i]))
            shine_assert(strcmp(shown, values[i]) == 0);
    }
    const json_t *n = json_object_get(root, "n"), *cut = json_object_get(root, "cut");
    if (cut) { /* what did not fit is left out as a whole, from there to the end */
        shine_assert(!n && json_object_size(root) == HEAD_FIELDS + found + 1);
    } else {
        shine_assert(found == FIELDS && json_integer_value(n) == INT64_MIN);
        shine_assert(json_object_size(root) == HEAD_FIELDS + FIELDS + 1);
    }
    json_decref(root);
}

/* The first byte of the input says how often each part of the rest is repeated. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *values[FIELDS];
    if (size == 0)
        return 0;
    size_t each = (size - 1) / FIELDS;
    for (size_t i = 0; i < FIELDS; i++) {
        size_t times = (data[0] >> (2 * i) & 3) ? (size_t)16 << (2 * (data[0] >> (2 * i) & 3)) : 1;
        values[i] = xcalloc(each * times + 1, 1);
        for (size_t k = 0; k < times; k++)
            memcpy(values[i] + k * each, data + 1 + i * each, each);
    }
    size_t len;
    char *text = logged(LOG_FORMAT_LOGFMT, values, &len);
    check_line(text, len);
    free(text);
    text = logged(LOG_FORMAT_JSON, values, &len);
    check_line(text, len);
    check_json(text, len, values);
    free(text);
    for (size_t i = 0; i < FIELDS; i++)
        free(values[i]);
    return 0;
}
