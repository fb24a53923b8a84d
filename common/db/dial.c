/*
 * One connection attempt: every address of every host of the conninfo, one after the other, each
 * with its own time limit, names looked up on the thread pool.
 *
 *   idle ──start──▶ HOST ──name──▶ LOOKUP ──addresses──▶ ADDRESS ──connected──▶ idle, callback(pg)
 *                    ▲  └──literal, socket──────────────▶   │
 *                    └── next host ◀─ no address left, lookup failed or timed out
 *                    └── no host left ──▶ idle, callback(NULL, why)
 *
 * At most one lookup is pending per dialer, even when it outlives its time limit (it cannot be
 * cancelled once it runs): a DNS server that never answers holds one thread of the pool, not all of
 * them. Until it ends, a further lookup waits in its own time limit.
 *
 * Raises: environment only, handed to the callback as text.
 */
#include "db/internal.h"

#include "util/mem.h"

#include <netdb.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ADDRESSES = 8 };

struct lookup {
    uv_getaddrinfo_t req;
    struct db_dialer *dialer; /* NULL: closed meanwhile */
    size_t host;
};

struct db_dialer {
    uv_loop_t *loop;
    struct db_settings *settings;
    db_dial_cb cb;
    void *ctx;
    uv_timer_t timer;
    bool busy;
    size_t host;               /* the one being tried */
    struct lookup *lookup;     /* pending, for this attempt or left over from an earlier one */
    bool waiting;              /* for `lookup` */
    char *addr[MAX_ADDRESSES]; /* of the current host; NULL = it needs none */
    size_t addr_count, addr_next;
    PGconn *pg;
    struct db_watch *watch;
    char *error; /* what went wrong so far */
    void (*on_closed)(void *ctx);
    void *closed_ctx;
};

static void next_host(struct db_dialer *d);
static void lookup_begin(struct db_dialer *d);
static void try_addresses(struct db_dialer *d);
static void step(struct db_dialer *d, PostgresPollingStatusType want);

static void forget_addresses(struct db_dialer *d)
{
    for (size_t i = 0; i < d->addr_count; i++)
        free(d->addr[i]);
    d->addr_count = d->addr_next = 0;
}

static void note_error(struct db_dialer *d, const char *message)
{
    const char *host = d->settings->hosts[d->host].host;
    if (!host)
        host = d->settings->hosts[d->host].hostaddr;
    if (!host)
        host = "local socket";
    char *line = db_first_line(message);
    char *all = d->error && strlen(d->error) < 400 ? xasprintf("%s; %s: %s", d->error, host, line)
                                                   : xasprintf("%s: %s", host, line);
    free(line);
    free(d->error);
    d->error = all;
}

static void abandon_connection(struct db_dialer *d)
{
    db_watch_free(d->watch);
    d->watch = NULL;
    PQfinish(d->pg);
    d->pg = NULL;
}

static void finish(struct db_dialer *d, PGconn *pg)
{
    uv_timer_stop(&d->timer);
    forget_addresses(d);
    d->busy = false;
    char *error = d->error;
    d->error = NULL;
    d->cb(d->ctx, pg, pg ? NULL : (error ? error : "no host to connect to"));
    free(error);
}

/* --- names --- */

static void on_lookup_timeout(uv_timer_t *t)
{
    struct db_dialer *d = t->data;
    d->waiting = false;
    note_error(d, "name lookup timed out");
    d->host++;
    next_host(d);
}

static void take_addresses(struct db_dialer *d, const struct addrinfo *list)
{
    for (const struct addrinfo *a = list; a && d->addr_count < MAX_ADDRESSES; a = a->ai_next) {
        char text[NI_MAXHOST];
        /* NI_NUMERICHOST asks no server; it keeps the zone of a link-local address. */
        if (getnameinfo(a->ai_addr, a->ai_addrlen, text, sizeof(text), NULL, 0, NI_NUMERICHOST) ==
            0)
            d->addr[d->addr_count++] = xstrdup(text);
    }
}

static void on_lookup(uv_getaddrinfo_t *req, int status, struct addrinfo *list)
{
    struct lookup *l = req->data;
    struct db_dialer *d = l->dialer;
    size_t host = l->host;
    free(l);
    if (d) {
        d->lookup = NULL;
        if (d->waiting && host != d->host) {
            lookup_begin(d); /* the left-over of an earlier attempt is out of the way */
        } else if (d->waiting) {
            d->waiting = false;
            uv_timer_stop(&d->timer);
            if (status == 0)
                take_addresses(d, list);
            else
                note_error(d, uv_strerror(status));
            try_addresses(d);
        }
    }
    uv_freeaddrinfo(list);
}

static void lookup_begin(struct db_dialer *d)
{
    static const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};
    struct lookup *l = xnew(struct lookup);
    l->dialer = d;
    l->host = d->host;
    l->req.data = l;
    int rc =
        uv_getaddrinfo(d->loop, &l->req, on_lookup, d->settings->hosts[d->host].host, NULL, &hints);
    if (rc == 0) {
        d->lookup = l;
        return;
    }
    free(l); /* the time limit, already set, leads on */
    note_error(d, uv_strerror(rc));
}

/* --- addresses --- */

static void on_connect_timeout(uv_timer_t *t)
{
    struct db_dialer *d = t->data;
    abandon_connection(d);
    note_error(d, "connecting timed out");
    try_addresses(d);
}

static void on_socket(void *ctx, int status)
{
    struct db_dialer *d = ctx;
    /* The socket may change with every step: watch anew after each. */
    db_watch_free(d->watch);
    d->watch = NULL;
    step(d, status < 0 ? PGRES_POLLING_FAILED : PQconnectPoll(d->pg));
}

static bool connected(struct db_dialer *d)
{
    if (PQsetnonblocking(d->pg, 1) != 0)
        return false;
    PGconn *pg = d->pg;
    d->pg = NULL;
    finish(d, pg);
    return true;
}

static void step(struct db_dialer *d, PostgresPollingStatusType want)
{
    if (want == PGRES_POLLING_OK && connected(d))
        return;
    if (want == PGRES_POLLING_READING || want == PGRES_POLLING_WRITING) {
        d->watch = db_watch_new(d->loop, PQsocket(d->pg), on_socket, d);
        if (d->watch &&
            db_watch_set(d->watch, want == PGRES_POLLING_READING ? UV_READABLE : UV_WRITABLE))
            return;
    }
    note_error(d, PQerrorMessage(d->pg));
    abandon_connection(d);
    try_addresses(d);
}

/* Begin with the next address, or go on to the next host. */
static void try_addresses(struct db_dialer *d)
{
    if (d->addr_next == d->addr_count) {
        d->host++;
        next_host(d);
        return;
    }
    const char **keys;
    const char **values;
    db_settings_params(d->settings, &d->settings->hosts[d->host], d->addr[d->addr_next++], &keys,
                       &values);
    d->pg = PQconnectStartParams(keys, values, 0);
    free(keys);
    free(values);
    uv_timer_start(&d->timer, on_connect_timeout, d->settings->connect_timeout_ms, 0);
    if (d->pg)
        db_quiet_notices(d->pg);
    /* libpq: "behave as if PQconnectPoll() had just said WRITING". */
    step(d,
         d->pg && PQstatus(d->pg) != CONNECTION_BAD ? PGRES_POLLING_WRITING : PGRES_POLLING_FAILED);
}

static void next_host(struct db_dialer *d)
{
    forget_addresses(d);
    if (d->host == d->settings->host_count) {
        finish(d, NULL);
        return;
    }
    const struct db_host *h = &d->settings->hosts[d->host];
    if (!db_host_is_name(h)) {
        const char *literal = h->hostaddr ? h->hostaddr : h->host;
        bool is_path = !literal || literal[0] == '/' || literal[0] == '@';
        d->addr[d->addr_count++] = is_path ? NULL : xstrdup(literal);
        try_addresses(d);
        return;
    }
    d->waiting = true;
    uv_timer_start(&d->timer, on_lookup_timeout, d->settings->connect_timeout_ms, 0);
    if (!d->lookup)
        lookup_begin(d);
}

/* --- the outside --- */

static void on_start(uv_timer_t *t)
{
    struct db_dialer *d = t->data;
    d->host = 0;
    next_host(d);
}

struct db_dialer *db_dialer_new(uv_loop_t *loop, struct db_settings *settings, db_dial_cb cb,
                                void *ctx)
{
    struct db_dialer *d = xnew(struct db_dialer);
    d->loop = loop;
    d->settings = settings;
    d->cb = cb;
    d->ctx = ctx;
    shine_assert(uv_timer_init(loop, &d->timer) == 0);
    d->timer.data = d;
    return d;
}

void db_dialer_start(struct db_dialer *d)
{
    shine_assert(!d->busy);
    d->busy = true;
    uv_timer_start(&d->timer, on_start, 0, 0);
}

bool db_dialer_busy(const struct db_dialer *d)
{
    return d->busy;
}

static void on_timer_closed(uv_handle_t *h)
{
    struct db_dialer *d = h->data;
    void (*on_closed)(void *ctx) = d->on_closed;
    void *ctx = d->closed_ctx;
    db_settings_free(d->settings);
    free(d->error);
    free(d);
    if (on_closed)
        on_closed(ctx);
}

void db_dialer_close(struct db_dialer *d, void (*on_closed)(void *ctx), void *ctx)
{
    d->on_closed = on_closed;
    d->closed_ctx = ctx;
    d->waiting = false;
    if (d->lookup) {
        d->lookup->dialer = NULL;
        uv_cancel((uv_req_t *)&d->lookup->req); /* succeeds only if it has not begun */
        d->lookup = NULL;
    }
    abandon_connection(d);
    forget_addresses(d);
    uv_close((uv_handle_t *)&d->timer, on_timer_closed);
}
