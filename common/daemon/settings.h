/*
 * Every configuration key of the three daemons, in one table: they share one file.
 * docs/operations.md explains them; a test compares the two. A key stands here only if something
 * reads it.
 */
#ifndef SHINE_DAEMON_SETTINGS_H
#define SHINE_DAEMON_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "util/config.h"

#define SETTINGS_DEFAULT_FILE "/etc/shine/shine.conf"

extern const struct config_key settings_keys[];

/* Rules between keys (what one key alone cannot show). NULL, or a new string with what is wrong
 * (freed with free()). */
char *settings_check(const struct config *c);

/* True if `s` is a server login: [a-z0-9][a-z0-9_.-]{0,62}. */
bool settings_server_login_valid(const char *s);

/* Values of key `log.format` (enum log_format), `log.level` (enum log_level) and
 * `directory.addUser`. */
enum { SETTINGS_ADD_USER_OFF, SETTINGS_ADD_USER_OPEN };

/* `delivery.scheduleMs`: offsets from acceptance in ms, ascending from 0. Returns how many, 0 if
 * the text is not of that form (never after settings_check()). */
enum { SETTINGS_ATTEMPTS_MAX = 16 };
size_t settings_schedule(const struct config *c, int64_t out[SETTINGS_ATTEMPTS_MAX]);

/* What one attempt of deliveryd may take: asking the author's other server, then calling the
 * recipient's; both fit into the lease, with the reserve for waiting for room and for recording. */
struct settings_attempt {
    int64_t ask_ms, call_ms, lease_ms;
};
enum { SETTINGS_LEASE_RESERVE_MS = 5000 };
struct settings_attempt settings_attempt(const struct config *c);

/* One entry of `listen` or `listen.plain`: a numeric address and a port. */
struct settings_address {
    char host[64]; /* without brackets */
    uint16_t port; /* 0 = any free one (tests) */
};
/* Take the next entry of "ADDR:PORT[, ADDR:PORT]" ("[::1]:443" for IPv6) off *rest. Returns 1, 0 at
 * the end, -1 if the text is not of that form. */
int settings_next_address(const char **rest, struct settings_address *out);

#endif
