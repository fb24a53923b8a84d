/*
 * The cache of users, with joined look-ups.
 *
 * An entry is in one of these states, which is which list it is on:
 *
 *   (new) -> fetching -> kept -> (dropped: expired, pushed out, forgotten)
 *               ^_________/  an expired entry that is asked for again
 *
 * Grades of failure: a database that is away is environment (DIRECTORY_UNAVAILABLE, not kept);
 * freeing a directory with a look-up under way is our bug.
 */
#include "directory/directory.h"

#include "util/clock.h"
#include "util/list.h"
#include "util/map.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

struct waiter {
    struct list link;
    directory_cb cb;
    void *ctx;
};

struct entry {
    struct list link; /* on `fetching` or `kept`; kept ones in order of last use */
    struct list waiters;
    struct directory *dir;
    bool found;
    bool again; /* forgotten while being fetched: the answer under way may be stale */
    int64_t expires_ms;
    struct directory_user user; /* login always; key only if found */
};

struct directory {
    struct store *store;
    int64_t ttl_ms, missing_ttl_ms;
    size_t max_entries;
    struct map *by_login;
    struct list fetching, kept;
    struct list answered; /* waiters whose entry was kept when they asked: see answer_later() */
    uv_timer_t timer;
};

/* A waiter together with what it is told, when no fetch is needed. */
struct ready {
    struct waiter w;
    bool found;
    struct directory_user user;
};

struct directory *directory_new(uv_loop_t *loop, struct store *store, int64_t ttl_ms,
                                int64_t missing_ttl_ms, size_t max_entries)
{
    struct directory *d = xnew(struct directory);
    d->store = store;
    d->ttl_ms = ttl_ms;
    d->missing_ttl_ms = missing_ttl_ms;
    d->max_entries = max_entries;
    d->by_login = map_new();
    list_init(&d->fetching);
    list_init(&d->kept);
    list_init(&d->answered);
    d->timer.data = d;
    shine_assert(uv_timer_init(loop, &d->timer) == 0);
    return d;
}

static void drop(struct entry *e)
{
    list_remove(&e->link);
    (void)map_remove(e->dir->by_login, e->user.login);
    free(e);
}

static void tell_ready(struct list *waiters)
{
    struct list *n;
    while ((n = list_pop(waiters))) {
        struct ready *r = list_entry(list_entry(n, struct waiter, link), struct ready, w);
        r->w.cb(r->w.ctx, r->found ? DIRECTORY_FOUND : DIRECTORY_NO_USER,
                r->found ? &r->user : NULL);
        free(r);
    }
}

static void closed(uv_handle_t *h)
{
    free(h->data);
}

void directory_free(struct directory *d)
{
    shine_assert(list_empty(&d->fetching));
    tell_ready(&d->answered);
    list_each_safe(n, &d->kept)
        drop(list_entry(n, struct entry, link));
    map_free(d->by_login);
    uv_close((uv_handle_t *)&d->timer, closed);
}

static struct entry *fresh_entry(struct directory *d, const char *login)
{
    struct entry *e = map_get(d->by_login, login);
    if (!e || e->expires_ms <= clock_mono_ms())
        return NULL;
    list_push(&d->kept, &e->link);
    return e;
}

const struct directory_user *directory_peek(struct directory *d, const char *login)
{
    const struct entry *e = fresh_entry(d, login);
    return e && e->found ? &e->user : NULL;
}

static void fetch(struct entry *e);

/* The result of a fetch: keep it, then tell everybody who waited. */
static void fetched(void *ctx, enum db_status st, const struct store_user *user)
{
    struct entry *e = ctx;
    struct directory *d = e->dir;
    if (e->again && st == DB_OK) {
        fetch(e);
        return;
    }
    struct list waiters;
    list_init(&waiters);
    list_splice(&waiters, &e->waiters);
    struct directory_user copy = e->user;
    e->found = st == DB_OK && user;
    memset(copy.servers, 0, sizeof copy.servers);
    if (e->found) {
        memcpy(copy.client_key, user->client_key, sizeof copy.client_key);
        for (unsigned i = 0; i < user->n_servers; i++)
            memcpy(copy.servers[i], user->servers[i].login, sizeof copy.servers[i]);
    }
    e->user = copy;
    enum directory_result r = st != DB_OK ? DIRECTORY_UNAVAILABLE
                              : e->found  ? DIRECTORY_FOUND
                                          : DIRECTORY_NO_USER;
    if (st == DB_OK) {
        e->expires_ms = clock_mono_ms() + (e->found ? d->ttl_ms : d->missing_ttl_ms);
        list_push(&d->kept, &e->link);
        if (map_size(d->by_login) > d->max_entries)
            drop(list_entry(d->kept.next, struct entry, link));
    } else {
        drop(e);
    }
    struct list *n;
    while ((n = list_pop(&waiters))) {
        struct waiter *w = list_entry(n, struct waiter, link);
        w->cb(w->ctx, r, r == DIRECTORY_FOUND ? &copy : NULL);
        free(w);
    }
}

static void fetch(struct entry *e)
{
    e->again = false;
    e->expires_ms = 0;
    list_push(&e->dir->fetching, &e->link);
    store_get_user(e->dir->store, e->user.login, fetched, e);
}

static void on_timer(uv_timer_t *t)
{
    struct directory *d = t->data;
    struct list waiters;
    list_init(&waiters);
    list_splice(&waiters, &d->answered); /* a callback may ask again: next turn */
    tell_ready(&waiters);
}

/* The answer is known, but must not come from inside directory_fetch(). */
static void answer_later(struct directory *d, const struct entry *e, directory_cb cb, void *ctx)
{
    struct ready *r = xnew(struct ready);
    r->w.cb = cb;
    r->w.ctx = ctx;
    r->found = e->found;
    r->user = e->user;
    list_init(&r->w.link);
    list_push(&d->answered, &r->w.link);
    (void)uv_timer_start(&d->timer, on_timer, 0, 0);
}

void directory_fetch(struct directory *d, const char *login, directory_cb cb, void *ctx)
{
    struct entry *e = fresh_entry(d, login);
    if (e) {
        answer_later(d, e, cb, ctx);
        return;
    }
    struct waiter *w = xnew(struct waiter);
    w->cb = cb;
    w->ctx = ctx;
    list_init(&w->link);
    e = map_get(d->by_login, login);
    bool is_fetching = e && e->expires_ms == 0;
    if (!e) {
        shine_assert(dm_login_valid(login));
        e = xnew(struct entry);
        list_init(&e->link);
        list_init(&e->waiters);
        e->dir = d;
        memcpy(e->user.login, login, strlen(login) + 1);
        (void)map_put(d->by_login, login, e);
    }
    list_push(&e->waiters, &w->link);
    if (!is_fetching)
        fetch(e);
}

void directory_forget(struct directory *d, const char *login)
{
    struct entry *e = map_get(d->by_login, login);
    if (!e)
        return;
    if (e->expires_ms == 0)
        e->again = true;
    else
        drop(e);
}
