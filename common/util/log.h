/*
 * Logging: one line per event on stderr, logfmt or JSON. An event is a short snake_case name plus
 * fields. Never pass blobs, keys, signatures, passwords or message text: a log line is read by
 * people who may not see them.
 *
 *   log_info("peer_connected", LOG_S("peer", login), LOG_I("ms", elapsed));
 */
#ifndef SHINE_UTIL_LOG_H
#define SHINE_UTIL_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_INFO, LOG_LEVEL_WARN, LOG_LEVEL_ERROR };
enum log_format { LOG_FORMAT_LOGFMT, LOG_FORMAT_JSON };

struct log_field {
    const char *key; /* NULL ends the list */
    const char *str; /* string value; NULL with `is_int` false is shown as empty */
    int64_t num;
    bool is_int;
};

/* The two kinds of field. Strings are borrowed until the call returns. */
#define LOG_S(k, v) ((struct log_field){.key = (k), .str = (v)})
#define LOG_I(k, v) ((struct log_field){.key = (k), .num = (int64_t)(v), .is_int = true})

/* Name of the daemon as shown in every line (`daemon=frontd`), and its process id. Both copied. */
void log_setup(const char *daemon, enum log_format format, enum log_level level);
/* Change the level at run time. */
void log_set_level(enum log_level level);
bool log_enabled(enum log_level level);
/* Write one event. Values are escaped so that a line stays one line; a line is written with one
 * write(2), so lines of several processes do not mix. */
void log_event(enum log_level level, const char *event, const struct log_field *fields);

#define LOG_END ((struct log_field){0})

#define LOG_AT(level, event, ...)                                                                  \
    do {                                                                                           \
        if (log_enabled(level))                                                                    \
            log_event(level, event, (const struct log_field[]){__VA_ARGS__});                      \
    } while (0)
/* Each takes the event's name, then any number of LOG_S / LOG_I fields. */
#define log_debug(...) LOG_AT(LOG_LEVEL_DEBUG, __VA_ARGS__, LOG_END)
#define log_info(...)  LOG_AT(LOG_LEVEL_INFO, __VA_ARGS__, LOG_END)
#define log_warn(...)  LOG_AT(LOG_LEVEL_WARN, __VA_ARGS__, LOG_END)
#define log_error(...) LOG_AT(LOG_LEVEL_ERROR, __VA_ARGS__, LOG_END)

#endif
