/*
 * The partner servers in memory. See partners.h.
 *
 * Each read replaces all of them: the table is small, and a row that was changed or removed needs
 * no other care.
 *
 * Raises: environment (reads that fail are repeated, rows that cannot be used are logged).
 */
#include "peer/partners.h"

#include <stdlib.h>
#include <string.h>

#include "dm/container.h"
#include "net/ws.h"
#include "store/peers.h"
#include "util/base64.h"
#include "util/log.h"
#include "util/map.h"
#include "util/mem.h"

/* Until the table was read once, when no server is believed: soon, while the database is not there;
 * later, if it refuses (a schema that does not fit). */
enum { FIRST_RETRY_MS = 50, REFUSED_RETRY_MS = 1000 };

struct partners {
    struct store *store;
    struct map *by_login; /* of struct partner */
    uv_timer_t timer;     /* to the next read; its close callback is the end of `timer_open` */
    uint32_t refresh_ms;
    bool loaded, reading, again, closing, timer_open;
    void (*watcher)(void *ctx);
    void *watcher_ctx;
    void (*on_closed)(void *ctx);
    void *closed_ctx;
};

static void read_table(struct partners *p);

static void map_drop(struct map *m)
{
    size_t it = 0;
    void *v;
    while (map_next(m, &it, NULL, &v))
        free(v);
    map_free(m);
}

/* Freed when neither a read nor the timer can come back to it. */
static void free_if_over(struct partners *p)
{
    if (!p->closing || p->reading || p->timer_open)
        return;
    void (*on_closed)(void *ctx) = p->on_closed;
    void *ctx = p->closed_ctx;
    map_drop(p->by_login);
    free(p);
    if (on_closed)
        on_closed(ctx);
}

static void on_timer_closed(uv_handle_t *h)
{
    struct partners *p = h->data;
    p->timer_open = false;
    free_if_over(p);
}

/* --- rows --- */

static void take_keys(struct partner *to, const char *text)
{
    char word[64];
    for (const char *s = text + strspn(text, " "); *s; s += strspn(s, " ")) {
        size_t len = strcspn(s, " ");
        bool fits = len < sizeof word;
        if (fits) {
            memcpy(word, s, len);
            word[len] = '\0';
        }
        s += len;
        if (to->n_keys == PARTNER_KEYS_MAX) {
            log_warn("partner_keys_left_out", LOG_S("peer", to->login),
                     LOG_I("used", PARTNER_KEYS_MAX));
            return;
        }
        if (fits && base64_decode_exact(word, to->keys[to->n_keys], PARTNER_KEY_LEN))
            to->n_keys++;
        else
            log_warn("partner_key_damaged", LOG_S("peer", to->login));
    }
}

/* NULL if the row cannot be used. A blocked server stays blocked whatever its URL looks like. */
static struct partner *take_row(const struct store_partner *row)
{
    struct ws_url url;
    if (!dm_server_login_valid(row->login)) {
        log_warn("partner_login_damaged", LOG_I("bytes", strlen(row->login)));
        return NULL;
    }
    bool url_ok = ws_url_parse(row->url, &url);
    if (!url_ok)
        log_warn("partner_url_damaged", LOG_S("peer", row->login));
    if (!url_ok && !row->blocked)
        return NULL;
    struct partner *to = xnew(struct partner);
    memcpy(to->login, row->login, strlen(row->login) + 1);
    if (url_ok)
        memcpy(to->url, row->url, strlen(row->url) + 1);
    to->blocked = row->blocked;
    take_keys(to, row->public_keys);
    return to;
}

/* --- reading --- */

static void on_timer(uv_timer_t *t)
{
    read_table(t->data);
}

static void on_rows(void *ctx, enum db_status st, const struct store_partner *rows, size_t n)
{
    struct partners *p = ctx;
    p->reading = false;
    if (p->closing) {
        free_if_over(p);
        return;
    }
    if (st == DB_OK) {
        map_drop(p->by_login);
        p->by_login = map_new();
        for (size_t i = 0; i < n; i++) {
            struct partner *one = take_row(&rows[i]);
            if (one)
                free(map_put(p->by_login, one->login, one));
        }
        p->loaded = true;
    }
    uint32_t first_ms = st == DB_ERROR ? REFUSED_RETRY_MS : FIRST_RETRY_MS;
    uint32_t wait_ms = p->loaded ? p->refresh_ms : first_ms;
    if (p->again)
        wait_ms = 0;
    p->again = false;
    (void)uv_timer_start(&p->timer, on_timer, wait_ms, 0);
    if (st == DB_OK && p->watcher)
        p->watcher(p->watcher_ctx); /* may do anything, closing included */
}

static void read_table(struct partners *p)
{
    (void)uv_timer_stop(&p->timer);
    p->reading = true;
    store_read_partners(p->store, on_rows, p);
}

struct partners *partners_new(uv_loop_t *loop, struct store *store, uint32_t refresh_ms)
{
    struct partners *p = xnew(struct partners);
    p->store = store;
    p->refresh_ms = refresh_ms;
    p->by_login = map_new();
    (void)uv_timer_init(loop, &p->timer);
    p->timer.data = p;
    p->timer_open = true;
    read_table(p);
    return p;
}

void partners_refresh(struct partners *p)
{
    if (p->reading)
        p->again = true;
    else
        read_table(p);
}

void partners_watch(struct partners *p, void (*cb)(void *ctx), void *ctx)
{
    p->watcher = cb;
    p->watcher_ctx = ctx;
}

bool partners_loaded(const struct partners *p)
{
    return p->loaded;
}

const struct partner *partners_find(const struct partners *p, const char *login)
{
    return map_get(p->by_login, login);
}

const struct partner *partners_next(const struct partners *p, size_t *it)
{
    void *v;
    return map_next(p->by_login, it, NULL, &v) ? v : NULL;
}

void partners_close(struct partners *p, void (*on_closed)(void *ctx), void *ctx)
{
    shine_assert(!p->closing);
    p->closing = true;
    p->on_closed = on_closed;
    p->closed_ctx = ctx;
    uv_close((uv_handle_t *)&p->timer, on_timer_closed);
}
