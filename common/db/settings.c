/*
 * What a connection is opened with: the operator's conninfo for where and who, our own settings for
 * how.
 *
 * The host list is taken apart, because each address is dialled by itself: libpq would look names
 * up blocking, and without PQconnectdb() it has no time limit per address, so one silent host would
 * hide the living ones behind it.
 *
 * Raises: nothing; a bad conninfo is returned as text.
 */
#include "db/internal.h"

#include "util/mem.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Defaults an operator may change. */
static const char *const defaults[][2] = {
    {"keepalives_idle", "10"},     {"keepalives_interval", "5"}, {"keepalives_count", "3"},
    {"tcp_user_timeout", "15000"}, {"gssencmode", "disable"}, /* its "prefer" may ask a KDC,
                                                                 blocking */
};
/* What our code relies on; a value in the conninfo is ignored. */
static const char *const forced[][2] = {
    {"target_session_attrs", "read-write"},
    {"client_encoding", "UTF8"},
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static bool given(const PQconninfoOption *o)
{
    return o->val && o->val[0];
}

static const char *option_value(const PQconninfoOption *opts, const char *key)
{
    for (const PQconninfoOption *o = opts; o && o->keyword; o++)
        if (strcmp(o->keyword, key) == 0)
            return given(o) ? o->val : NULL;
    return NULL;
}

static void add(struct db_settings *s, const char *key, const char *value)
{
    size_t i = 0;
    while (i < s->count && strcmp(s->keys[i], key) != 0)
        i++;
    if (i == s->count) {
        s->count++;
        s->keys = xrealloc(s->keys, (s->count + 1) * sizeof(*s->keys));
        s->values = xrealloc(s->values, (s->count + 1) * sizeof(*s->values));
        s->keys[i] = xstrdup(key);
        s->keys[s->count] = NULL;
        s->values[s->count] = NULL;
    } else {
        free(s->values[i]);
    }
    s->values[i] = xstrdup(value);
}

/* Element `i` of a comma-separated list; NULL if it is empty or beyond the end. */
static char *element(const char *list, size_t i)
{
    while (list && i > 0) {
        list = strchr(list, ',');
        list = list ? list + 1 : NULL;
        i--;
    }
    size_t n = list ? strcspn(list, ",") : 0;
    return n ? xmemdup0(list, n) : NULL;
}

static size_t elements(const char *list)
{
    size_t n = list ? 1 : 0;
    for (; list && *list; list++)
        n += *list == ',';
    return n;
}

static bool parse_hosts(struct db_settings *s, const char *host, const char *addr, const char *port,
                        char **error)
{
    size_t n = addr ? elements(addr) : elements(host);
    if (n == 0)
        n = 1;
    if (host && addr && elements(host) != elements(addr)) {
        *error = xasprintf("host names %zu servers, but hostaddr %zu", elements(host), n);
        return false;
    }
    if (elements(port) > 1 && elements(port) != n) {
        *error = xasprintf("port lists %zu ports for %zu hosts", elements(port), n);
        return false;
    }
    s->hosts = xcalloc(n, sizeof(*s->hosts));
    s->host_count = n;
    for (size_t i = 0; i < n; i++) {
        s->hosts[i].host = element(host, i);
        s->hosts[i].hostaddr = element(addr, i);
        s->hosts[i].port = element(port, elements(port) > 1 ? i : 0);
    }
    return true;
}

static bool refuse_unsupported(const PQconninfoOption *opts, char **error)
{
    static const char *const unsupported[] = {"service", "replication"};
    for (size_t i = 0; i < COUNT(unsupported); i++) {
        if (option_value(opts, unsupported[i])) {
            *error = xasprintf("\"%s\" is not supported here", unsupported[i]);
            return false;
        }
    }
    const char *attrs = option_value(opts, "target_session_attrs");
    if (attrs && strcmp(attrs, "read-write") != 0 && strcmp(attrs, "any") != 0 &&
        strcmp(attrs, "primary") != 0) {
        *error = xasprintf("target_session_attrs=%s cannot work: the server writes", attrs);
        return false;
    }
    return true;
}

/* Seconds as libpq reads them; 0 or nothing keeps `fallback_ms`. */
static bool parse_timeout(const char *text, unsigned fallback_ms, unsigned *ms, char **error)
{
    *ms = fallback_ms;
    if (!text)
        return true;
    char *end;
    errno = 0;
    long v = strtol(text, &end, 10);
    if (errno || *end || v < 0 || v > 3600) {
        *error = xasprintf("connect_timeout=%s is not a number of seconds up to 3600", text);
        return false;
    }
    if (v > 0)
        *ms = (unsigned)v * 1000;
    return true;
}

static bool fill(struct db_settings *s, const PQconninfoOption *opts, const char *app,
                 const char *options, unsigned connect_timeout_ms, char **error)
{
    if (!refuse_unsupported(opts, error) ||
        !parse_timeout(option_value(opts, "connect_timeout"), connect_timeout_ms,
                       &s->connect_timeout_ms, error))
        return false;
    for (size_t i = 0; i < COUNT(defaults); i++)
        add(s, defaults[i][0], defaults[i][1]);
    static const char *const handled[] = {"host", "hostaddr", "port", "options", "connect_timeout"};
    for (const PQconninfoOption *o = opts; o->keyword; o++) {
        bool skip = !given(o);
        for (size_t i = 0; i < COUNT(handled); i++)
            skip = skip || strcmp(o->keyword, handled[i]) == 0;
        if (!skip)
            add(s, o->keyword, o->val);
    }
    for (size_t i = 0; i < COUNT(forced); i++)
        add(s, forced[i][0], forced[i][1]);
    if (app)
        add(s, "application_name", app);
    /* Counts where we connect blocking; otherwise libpq ignores it and dial.c sees to it. */
    char *seconds = xasprintf("%u", (s->connect_timeout_ms + 999) / 1000);
    add(s, "connect_timeout", seconds);
    free(seconds);
    const char *own = option_value(opts, "options");
    char *all = own ? xasprintf("%s %s", options, own) : xstrdup(options);
    add(s, "options", all);
    free(all);
    return true;
}

struct db_settings *db_settings_new(const char *conninfo, const char *application_name,
                                    const char *options, unsigned connect_timeout_ms, char **error)
{
    *error = NULL;
    PQconninfoOption *opts = PQconninfoParse(conninfo, NULL);
    if (!opts) {
        /* libpq's own message quotes what it stumbles over: with a password that lacks its quotes,
         * a part of the password. */
        *error = xstrdup("not a connection string that libpq understands: check the option names, "
                         "and that values with spaces are in single quotes");
        return NULL;
    }
    /* libpq's own defaults (PGHOST and its kind) count for what we take apart ourselves. */
    PQconninfoOption *env = PQconndefaults();
    const char *host = option_value(opts, "host");
    const char *addr = option_value(opts, "hostaddr");
    const char *port = option_value(opts, "port");
    if (!host && !addr) {
        host = option_value(env, "host");
        addr = option_value(env, "hostaddr");
    }
    if (!port)
        port = option_value(env, "port");
    struct db_settings *s = xnew(struct db_settings);
    if (!parse_hosts(s, host, addr, port, error) ||
        !fill(s, opts, application_name, options, connect_timeout_ms, error)) {
        db_settings_free(s);
        s = NULL;
    }
    PQconninfoFree(opts);
    PQconninfoFree(env);
    return s;
}

void db_settings_free(struct db_settings *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->count; i++) {
        free(s->keys[i]);
        free(s->values[i]);
    }
    for (size_t i = 0; i < s->host_count; i++) {
        free(s->hosts[i].host);
        free(s->hosts[i].hostaddr);
        free(s->hosts[i].port);
    }
    free(s->keys);
    free(s->values);
    free(s->hosts);
    free(s);
}

char *db_session_options(unsigned statement_timeout_ms)
{
    /* synchronous_commit: what we acknowledge must be on disk even where somebody has turned the
     * default off. lock_timeout: our own transactions hold locks for milliseconds; whoever holds
     * one for longer must not keep all that comes after it on the connection. tcp_…: the server's
     * side of what `defaults` asks for on ours, so that a host that vanished gives back its locks.
     */
    unsigned lock_timeout_ms = statement_timeout_ms / 2 < 1000 ? statement_timeout_ms / 2 : 1000;
    return xasprintf("-c jit=off -c synchronous_commit=on -c statement_timeout=%u "
                     "-c lock_timeout=%u -c idle_in_transaction_session_timeout=10000 "
                     "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 "
                     "-c tcp_keepalives_count=3 -c tcp_user_timeout=15000",
                     statement_timeout_ms, lock_timeout_ms);
}

void db_settings_params(const struct db_settings *s, const struct db_host *host, const char *addr,
                        const char ***keys, const char ***values)
{
    const char **k = xcalloc(s->count + 4, sizeof(*k));
    const char **v = xcalloc(s->count + 4, sizeof(*v));
    size_t n = 0;
    for (; n < s->count; n++) {
        k[n] = s->keys[n];
        v[n] = s->values[n];
    }
    const char *const extra[][2] = {{"host", host->host}, {"hostaddr", addr}, {"port", host->port}};
    for (size_t i = 0; i < COUNT(extra); i++) {
        if (extra[i][1]) {
            k[n] = extra[i][0];
            v[n++] = extra[i][1];
        }
    }
    *keys = k;
    *values = v;
}

bool db_host_is_name(const struct db_host *h)
{
    if (h->hostaddr || !h->host || h->host[0] == '/' || h->host[0] == '@')
        return false;
    if (strchr(h->host, ':')) /* IPv6, perhaps with a zone; no host name has a colon */
        return false;
    struct sockaddr_in sa;
    return uv_ip4_addr(h->host, 0, &sa) != 0;
}

char *db_pool_check_conninfo(const char *conninfo)
{
    char *error;
    db_settings_free(db_settings_new(conninfo, NULL, "", 1000, &error));
    return error;
}
