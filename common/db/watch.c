/*
 * Watching a libpq socket from a libuv loop, and the small things every connection needs of libpq.
 *
 * Raises: nothing; failures are returned.
 */
#include "db/internal.h"

#include "util/log.h"
#include "util/mem.h"

#include <fcntl.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct db_watch {
    uv_poll_t poll;
    int fd; /* our duplicate */
    int events;
    db_watch_cb cb;
    void *ctx;
};

static void on_poll(uv_poll_t *poll, int status, int events)
{
    (void)events; /* libpq finds out itself; a spurious wake-up is harmless */
    struct db_watch *w = poll->data;
    w->cb(w->ctx, status);
}

static void on_poll_closed(uv_handle_t *h)
{
    free(h->data);
}

struct db_watch *db_watch_new(uv_loop_t *loop, int fd, db_watch_cb cb, void *ctx)
{
    int copy = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0)
        return NULL;
    struct db_watch *w = xnew(struct db_watch);
    if (uv_poll_init(loop, &w->poll, copy) != 0) {
        close(copy);
        free(w);
        return NULL;
    }
    w->poll.data = w;
    w->fd = copy;
    w->cb = cb;
    w->ctx = ctx;
    return w;
}

bool db_watch_set(struct db_watch *w, int events)
{
    if (events == w->events)
        return true;
    if (uv_poll_start(&w->poll, events, on_poll) != 0)
        return false;
    w->events = events;
    return true;
}

void db_watch_free(struct db_watch *w)
{
    if (!w)
        return;
    uv_close((uv_handle_t *)&w->poll, on_poll_closed);
    close(w->fd); /* allowed at once: uv_close() has taken it out of the loop's set */
}

bool db_consume(PGconn *pg)
{
    SSL *ssl;
    /* Needed where TLS records are larger than the room libpq makes for a read (8 KB): proxies, and
     * servers that send large values in one piece. */
    do {
        if (PQconsumeInput(pg) == 0)
            return false;
        ssl = PQsslStruct(pg, "OpenSSL");
    } while (ssl && SSL_pending(ssl) > 0);
    return true;
}

char *db_first_line(const char *message)
{
    return xmemdup0(message, strcspn(message, "\n"));
}

static void on_notice(void *arg, const PGresult *res)
{
    (void)arg;
    const char *text = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
    const char *severity = PQresultErrorField(res, PG_DIAG_SEVERITY_NONLOCALIZED);
    log_debug("db_notice", LOG_S("severity", severity), LOG_S("message", text));
}

void db_quiet_notices(PGconn *pg)
{
    PQsetNoticeReceiver(pg, on_notice, NULL);
}

bool db_sqlstate_is_fatal(const char *s)
{
    return strcmp(s, "25006") == 0 || strncmp(s, "08", 2) == 0 ||
           (strncmp(s, "57P0", 4) == 0 && s[4] >= '1' && s[4] <= '5');
}
