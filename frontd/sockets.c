/*
 * Listening sockets. Grades of failure: environment, returned to the caller.
 */
#include "frontd/sockets.h"

#include "daemon/settings.h"
#include "frontd/worker.h"
#include "util/log.h"
#include "util/mem.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

enum { BACKLOG = 4096 }; /* the kernel lowers it to net.core.somaxconn */

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static int bound_port(int fd)
{
    union address a = {0};
    socklen_t n = sizeof a;
    if (getsockname(fd, &a.any, &n) != 0)
        return 0;
    return ntohs(a.any.sa_family == AF_INET6 ? a.v6.sin6_port : a.v4.sin_port);
}

/* The listening descriptor, or -1 with errno set. */
static int open_one(const struct settings_address *at)
{
    union address a;
    int one = 1;
    memset(&a, 0, sizeof a);
    bool is_v6 = strchr(at->host, ':');
    socklen_t len = is_v6 ? sizeof a.v6 : sizeof a.v4;
    /* settings_check() has parsed the address before */
    shine_assert((is_v6 ? uv_ip6_addr(at->host, at->port, &a.v6)
                        : uv_ip4_addr(at->host, at->port, &a.v4)) == 0);
    int fd = socket(a.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    /* SO_REUSEADDR: connections of a former process in TIME_WAIT are no hindrance. IPV6_V6ONLY: an
     * IPv4 address is a socket of its own, or "[::]" and "0.0.0.0" could not stand side by side. */
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
        (!is_v6 || setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one) == 0) &&
        bind(fd, &a.any, len) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int saved = errno;
    (void)close(fd);
    errno = saved;
    return -1;
}

static enum sockets_result open_list(struct sockets *s, const char *key, char kind,
                                     const struct config *c, char **error)
{
    struct settings_address at;
    const char *list = config_str(c, key);
    while (settings_next_address(&list, &at) > 0) {
        int fd = s->n < SOCKETS_MAX ? open_one(&at) : (errno = EMFILE, -1);
        if (fd < 0) {
            int reason = errno;
            *error = xasprintf("%s port %d: %s", at.host, (int)at.port, strerror(reason));
            return reason == EADDRINUSE ? SOCKETS_IN_USE : SOCKETS_FAILED;
        }
        s->fds[s->n] = fd;
        s->kind[s->n++] = kind;
        s->kind[s->n] = '\0';
        log_info("listening", LOG_S("address", at.host), LOG_I("port", bound_port(fd)),
                 LOG_S("key", key));
    }
    return SOCKETS_OPEN;
}

enum sockets_result sockets_open(struct sockets *s, const struct config *c, char **error)
{
    s->n = 0;
    enum sockets_result r = open_list(s, "listen", WORKER_SOCKET_TLS, c, error);
    if (r == SOCKETS_OPEN)
        r = open_list(s, "listen.plain", WORKER_SOCKET_PLAIN, c, error);
    if (r == SOCKETS_OPEN && s->n == 0) {
        *error = xstrdup("neither listen nor listen.plain names an address");
        r = SOCKETS_FAILED;
    }
    if (r == SOCKETS_OPEN)
        r = open_list(s, "admin.listen", WORKER_SOCKET_ADMIN, c, error);
    if (r != SOCKETS_OPEN)
        sockets_close(s);
    return r;
}

void sockets_close(struct sockets *s)
{
    while (s->n > 0)
        (void)close(s->fds[--s->n]);
}
