/*
 * The listening sockets of frontd, opened by the master from `listen`, `listen.plain` and
 * `admin.listen`.
 */
#ifndef SHINE_FRONTD_SOCKETS_H
#define SHINE_FRONTD_SOCKETS_H

#include <stdbool.h>
#include <stddef.h>

#include "util/config.h"

enum { SOCKETS_MAX = 32 };

struct sockets {
    size_t n; /* 0 = none open */
    int fds[SOCKETS_MAX];
    char kind[SOCKETS_MAX + 1]; /* WORKER_SOCKET_… of each, NUL-ended */
};

enum sockets_result {
    SOCKETS_OPEN,
    SOCKETS_IN_USE, /* an address is in use: it may become free */
    SOCKETS_FAILED
};

/* Open all of them, listening, or none; then *error (freed with free()) says why. Each one is
 * logged with its port: 0 in the configuration means any free one. */
enum sockets_result sockets_open(struct sockets *s, const struct config *c, char **error);
void sockets_close(struct sockets *s);

#endif
