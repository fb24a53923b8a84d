/* What shinectl's commands share: options, waiting, the database, key files. */
#include "deploy/ctl/ctl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/ws.h"
#include "peer/auth.h"
#include "util/mem.h"

const char *ctl_option(const struct ctl *c, const char *name, unsigned nth)
{
    for (unsigned i = 0; i < c->n_options; i++) {
        if (strcmp(c->options[i].name, name) == 0 && nth-- == 0)
            return c->options[i].value;
    }
    return NULL;
}

bool ctl_flag(const struct ctl *c, const char *name)
{
    return ctl_option(c, name, 0) != NULL;
}

bool ctl_option_int(const struct ctl *c, const char *name, int64_t min, int64_t max, int64_t dflt,
                    int64_t *out)
{
    const char *text = ctl_option(c, name, 0);
    char *end;
    *out = dflt;
    if (!text)
        return true;
    errno = 0;
    *out = strtoll(text, &end, 10);
    if (errno == 0 && end != text && *end == '\0' && *out >= min && *out <= max)
        return true;
    ctl_fail(CTL_USAGE, "--%s takes a whole number from %" PRId64 " to %" PRId64, name, min, max);
    return false;
}

int ctl_fail(int code, const char *fmt, ...)
{
    va_list ap;
    char line[2048]; /* what is longer is cut */
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    fflush(stdout);
    fputs("shinectl: ", stderr);
    ctl_print_string(stderr, line); /* a server's words may be in it */
    fputc('\n', stderr);
    return code;
}

static void on_wait_timeout(uv_timer_t *t)
{
    *(bool *)t->data = true;
}

static void on_timer_closed(uv_handle_t *h)
{
    free(h);
}

bool ctl_wait(struct ctl *c, const bool *done, uint64_t timeout_ms)
{
    bool expired = false;
    uv_timer_t *timer = xnew(uv_timer_t);
    uv_timer_init(c->loop, timer);
    timer->data = &expired;
    if (timeout_ms)
        uv_timer_start(timer, on_wait_timeout, timeout_ms, 0);
    while (!*done && !expired && uv_run(c->loop, UV_RUN_ONCE))
        ;
    uv_close((uv_handle_t *)timer, on_timer_closed);
    return *done;
}

static void on_pool_change(void *ctx, bool ready)
{
    *(bool *)ctx = ready;
}

int ctl_store(struct ctl *c)
{
    const char *conninfo = config_str(c->config, "db.conninfo");
    char *problem = db_pool_check_conninfo(conninfo);
    if (problem) {
        int code = ctl_fail(CTL_CONFIG, "db.conninfo: %s", problem);
        free(problem);
        return code;
    }
    bool ready = false;
    c->db = db_pool_new(c->loop, conninfo, "shinectl", 1);
    db_pool_on_change(c->db, on_pool_change, &ready);
    bool ok = db_pool_ready(c->db) || ctl_wait(c, &ready, 10000);
    db_pool_on_change(c->db, NULL, NULL);
    if (!ok)
        return ctl_fail(CTL_DATABASE, "the database cannot be reached (db.conninfo)");
    struct store_identity id = {config_str(c->config, "server.SHiNE.login"), "shinectl"};
    c->store = store_new(c->db, &id, 1);
    return CTL_OK;
}

int ctl_db_result(enum db_status st)
{
    if (st == DB_OK)
        return CTL_OK;
    if (st == DB_UNAVAILABLE)
        return ctl_fail(CTL_DATABASE, "the connection to the database was lost");
    return ctl_fail(CTL_DATABASE,
                    "the database refused it; is the schema up to date (shinectl migrate)?");
}

bool ctl_server_login_valid(const char *s)
{
    size_t n = strlen(s);
    if (n < 1 || n > SHINE_SERVER_LOGIN_MAX || strchr("_.-", s[0]))
        return false;
    return strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_.-") == n;
}

int ctl_access_servers(const struct ctl *c, struct store_route routes[2], unsigned *n)
{
    const char *text;
    struct ws_url url;
    for (*n = 0; (text = ctl_option(c, "access", *n)); (*n)++) {
        if (*n == 2)
            return ctl_fail(CTL_USAGE, "a user has at most two access servers");
        const char *eq = strchr(text, '=');
        if (!eq || (size_t)(eq - text) > SHINE_SERVER_LOGIN_MAX)
            return ctl_fail(CTL_USAGE, "--access takes SERVERLOGIN=URL");
        struct store_route *r = &routes[*n];
        snprintf(r->login, sizeof r->login, "%.*s", (int)(eq - text), text);
        if (!ctl_server_login_valid(r->login))
            return ctl_fail(CTL_USAGE, "%s is not a server login", r->login);
        if (!ws_url_parse(eq + 1, &url) || strlen(eq + 1) > SHINE_URL_MAX || strpbrk(eq + 1, ",= "))
            return ctl_fail(CTL_USAGE, "%s is not a URL of the form wss://host[:port]/path",
                            eq + 1);
        snprintf(r->url, sizeof r->url, "%s", eq + 1);
    }
    if (*n == 2 && strcmp(routes[0].login, routes[1].login) == 0)
        return ctl_fail(CTL_USAGE, "the two access servers must be different");
    return *n ? CTL_OK : ctl_fail(CTL_USAGE, "--access SERVERLOGIN=URL is missing");
}

int ctl_read_key(const char *path, uint8_t seed[DM_KEY_BYTES], uint8_t public_key[DM_KEY_BYTES])
{
    char *error = peer_key_read(path, seed);
    if (error) {
        int status = ctl_fail(CTL_CONFIG, "%s", error);
        free(error);
        return status;
    }
    dm_public_key(seed, public_key);
    return CTL_OK;
}
