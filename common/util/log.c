/*
 * The log writer: builds a line in a fixed buffer on the stack and writes it with one write(2). It
 * allocates nothing, so it works when memory has run out, and may be called from any thread.
 * A line is at most PIPE_BUF bytes, because only that much is written to a pipe undivided.
 *
 * Grade of failure: environment. A line that cannot be written is dropped; a daemon must not die,
 * or wait, because its log reader is slow.
 */
#include "util/log.h"

#include "util/clock.h"
#include "util/utf8.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = PIPE_BUF, VALUE_BYTES = 1024, NAME_BYTES = 32 };

/* The process-wide settings of the writer: set once before threads start, except the level. */
static struct {
    char daemon[NAME_BYTES];
    enum log_format format;
    atomic_int level;
} settings = {.daemon = "shine", .level = LOG_LEVEL_INFO};

static const char *const level_names[] = {"debug", "info", "warn", "error"};

/* A line under construction. `cut` = something did not fit; the room for the end is kept free. */
struct line {
    char text[LINE_BYTES];
    size_t len;
    size_t bound;
    bool cut;
};

void log_setup(const char *daemon, enum log_format format, enum log_level level)
{
    (void)snprintf(settings.daemon, sizeof settings.daemon, "%s", daemon);
    settings.format = format;
    log_set_level(level);
}

void log_set_level(enum log_level level)
{
    atomic_store_explicit(&settings.level, (int)level, memory_order_relaxed);
}

bool log_enabled(enum log_level level)
{
    return (int)level >= atomic_load_explicit(&settings.level, memory_order_relaxed);
}

static void put_bytes(struct line *l, const char *p, size_t n)
{
    if (l->cut || l->len + n > l->bound) {
        l->cut = true;
        return;
    }
    memcpy(l->text + l->len, p, n);
    l->len += n;
}

static void put(struct line *l, const char *s)
{
    put_bytes(l, s, strlen(s));
}

/* Characters that break a line, steer a terminal or reorder the text around them (Unicode's
 * Bidi_Control). */
static bool is_unprintable(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x61c || (c >= 0x200e && c <= 0x200f) ||
           (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069) || c == 0xfeff;
}

/* Put one character in escaped form. The escapes are those of JSON in both formats. */
static void put_escaped(struct line *l, uint32_t c, const char *bytes, size_t n)
{
    char esc[12];
    if (c == '"' || c == '\\')
        (void)snprintf(esc, sizeof esc, "\\%c", (char)c);
    else if (c == '\n' || c == '\r' || c == '\t')
        (void)snprintf(esc, sizeof esc, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
    else if (is_unprintable(c))
        (void)snprintf(esc, sizeof esc, "\\u%04x", (unsigned)c);
    else {
        put_bytes(l, bytes, n);
        return;
    }
    put(l, esc);
}

/* Put a quoted string, cut after about VALUE_BYTES of output. A byte that is not UTF-8 becomes
 * U+FFFD in JSON, which knows only characters, and \xNN in logfmt, where it is worth more. */
static void put_quoted(struct line *l, const char *s)
{
    size_t end = l->len + VALUE_BYTES;
    put(l, "\"");
    l->bound -= 1; /* the closing quote always fits */
    for (size_t i = 0; s[i] && !l->cut;) {
        uint32_t c = 0;
        size_t n = utf8_decode(s + i, &c);
        if (l->len > end) {
            put(l, "...");
            break;
        }
        if (n > 0) {
            put_escaped(l, c, s + i, n);
        } else {
            char esc[12];
            bool json = settings.format == LOG_FORMAT_JSON;
            (void)snprintf(esc, sizeof esc, json ? "\\ufffd" : "\\x%02x", (unsigned)c);
            put(l, esc);
        }
        i += n ? n : 1;
    }
    l->bound += 1;
    put(l, "\"");
}

/* logfmt leaves plain words without quotes; everything else is quoted. */
static bool is_plain(const char *s)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_-.:/+@,;()[]{}<>*%&$#!?|~^";
    size_t n = strspn(s, plain);
    return n > 0 && n <= VALUE_BYTES && s[n] == '\0';
}

static void put_key(struct line *l, const char *key)
{
    if (settings.format == LOG_FORMAT_JSON) {
        put(l, l->len ? "," : "{");
        put_quoted(l, key);
        put(l, ":");
    } else {
        if (l->len)
            put(l, " ");
        put(l, key);
        put(l, "=");
    }
}

/* Put a whole field or, if it does not fit, none of it: half a field could be read as a whole one.
 */
static void put_field(struct line *l, const struct log_field *f)
{
    size_t start = l->len;
    if (l->cut)
        return;
    put_key(l, f->key);
    if (f->is_int) {
        char number[24];
        (void)snprintf(number, sizeof number, "%" PRId64, f->num);
        put(l, number);
    } else {
        const char *s = f->str ? f->str : "";
        if (settings.format == LOG_FORMAT_LOGFMT && is_plain(s))
            put(l, s);
        else
            put_quoted(l, s);
    }
    if (l->cut)
        l->len = start;
}

static void put_time(struct line *l)
{
    int64_t ms = clock_wall_ms();
    time_t seconds = (time_t)(ms / 1000);
    struct tm tm;
    char day[32], stamp[40];
    if (!gmtime_r(&seconds, &tm) || !strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &tm))
        return;
    (void)snprintf(stamp, sizeof stamp, "%s.%03dZ", day, (int)(ms % 1000));
    put_field(l, &LOG_S("ts", stamp));
}

/* stderr may be non-blocking and full: then the line is lost, by intent (see the file's header). */
static void write_line(const struct line *l)
{
    ssize_t n;
    do
        n = write(STDERR_FILENO, l->text, l->len);
    while (n < 0 && errno == EINTR);
}

void log_event(enum log_level level, const char *event, const struct log_field *fields)
{
    int saved_errno = errno; /* callers log before they look at errno */
    struct line l;
    l.len = 0;
    l.cut = false;
    l.bound = sizeof l.text - sizeof ",\"cut\":1}\n";
    put_time(&l);
    put_field(&l, &LOG_S("level", level_names[level]));
    put_field(&l, &LOG_S("daemon", settings.daemon));
    put_field(&l, &LOG_I("pid", getpid())); /* asked each time: workers are forked */
    put_field(&l, &LOG_S("event", event));
    for (const struct log_field *f = fields; f && f->key; f++)
        put_field(&l, f);
    bool cut = l.cut;
    l.cut = false;
    l.bound = sizeof l.text;
    if (cut)
        put_field(&l, &LOG_I("cut", 1));
    put(&l, settings.format == LOG_FORMAT_JSON ? "}\n" : "\n");
    write_line(&l);
    errno = saved_errno;
}
