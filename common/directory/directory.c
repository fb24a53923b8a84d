/*
 * The cache of users, with joined look-ups.
 *
 * An entry is in one of these states, which is which list it is on:
 *
 *   (new) -> fetching -> kept -> (dropped: expired, pushed out, forgotten)
 *               ^_________/  an expired entry that is asked for again
 *
 * Fetching is one read of the table; if the user is not there, one look-up at other servers and a
 * second read. Those who wait may name different senders, of whom a look-up asks one: a miss is
 * final for those who named it or none, and the others' turns follow.
 *
 * Grades of failure: a database that is away is environment (DIRECTORY_DB_UNAVAILABLE, not kept);
 * freeing a directory with a look-up under way is our bug.
 */
#include "directory/directory.h"

#include "util/clock.h"
#include "util/list.h"
#include "util/map.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REFRESH_AGAIN_MS    30000 /* until a record that could not be confirmed is tried again */
#define PROVISIONAL_TTL_MAX 60000 /* a provisional key waits for a partner's word */

struct waiter {
    struct list link;
    directory_cb cb;
    void *ctx;
    char sender[SHINE_SERVER_LOGIN_MAX + 1];
};

struct entry {
    struct list link; /* on `fetching` or `kept`; kept ones in order of last use */
    struct list waiters;
    struct directory *dir;
    bool found;
    bool again;    /* forgotten while being fetched: the answer under way may be stale */
    bool imported; /* other servers were asked during this fetch */
    char sender[SHINE_SERVER_LOGIN_MAX + 1]; /* asked, or to be asked, in this fetch or the last */
    int64_t expires_ms;
    struct directory_user user; /* login always; key only if found */
};

struct directory {
    uv_loop_t *loop;
    struct store *store;
    struct importer *importer; /* NULL = nobody is asked */
    unsigned refreshing;       /* look-ups of refresh() under way */
    bool closing;
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
    d->loop = loop;
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

void directory_ask_others(struct directory *d, struct peer_pool *peers,
                          const struct import_limits *limits)
{
    shine_assert(!d->importer);
    d->importer = import_new(d->loop, d->store, peers, limits);
}

void directory_stop(struct directory *d)
{
    if (d->importer)
        import_stop(d->importer);
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
    d->closing = true; /* those whom the importer still has to tell may not read any more */
    if (d->importer)
        import_free(d->importer);
    shine_assert(list_empty(&d->fetching) && d->refreshing == 0);
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
static void refresh(struct directory *d, const char *login, enum import_kind kind, directory_cb cb,
                    void *ctx);

/* How long an answer of the table is kept; *confirm: it is time to ask its source again. */
static int64_t keep_ms(const struct directory *d, const struct store_user *user, bool *confirm)
{
    *confirm = false;
    if (!user)
        return d->missing_ttl_ms;
    if (!d->importer)
        return d->ttl_ms;
    int64_t ttl = d->ttl_ms;
    if (strcmp(user->source, "provisional") == 0 && ttl > PROVISIONAL_TTL_MAX)
        ttl = PROVISIONAL_TTL_MAX;
    if (user->age_ms < ttl)
        return user->age_ms > 0 ? ttl - user->age_ms : ttl;
    *confirm = true;
    return ttl < REFRESH_AGAIN_MS ? ttl : REFRESH_AGAIN_MS;
}

static void fill(struct entry *e, const struct store_user *user)
{
    struct directory_user u = {0};
    memcpy(u.login, e->user.login, sizeof u.login);
    if (user) {
        memcpy(u.client_key, user->client_key, sizeof u.client_key);
        u.provisional = strcmp(user->source, "provisional") == 0;
        for (unsigned i = 0; i < user->n_servers; i++)
            memcpy(u.servers[i], user->servers[i].login, sizeof u.servers[i]);
    }
    e->found = user != NULL;
    e->user = u;
}

static void tell(struct list *waiters, enum directory_result r, const struct directory_user *user)
{
    struct list *n;
    while ((n = list_pop(waiters))) {
        struct waiter *w = list_entry(n, struct waiter, link);
        w->cb(w->ctx, r, r == DIRECTORY_FOUND ? user : NULL);
        free(w);
    }
}

/* Nobody knows the user, the sender that was asked included: the others' turn. False if there are
 * none. */
static bool ask_next_sender(struct entry *e)
{
    struct list told;
    list_init(&told);
    list_each_safe(n, &e->waiters) {
        const struct waiter *w = list_entry(n, struct waiter, link);
        if (w->sender[0] == '\0' || strcmp(w->sender, e->sender) == 0)
            list_push(&told, n);
    }
    bool others = !list_empty(&e->waiters);
    if (others) {
        const struct waiter *w = list_entry(e->waiters.next, struct waiter, link);
        memcpy(e->sender, w->sender, sizeof e->sender);
        e->imported = false;
        fetch(e);
        tell(&told, DIRECTORY_NO_USER, NULL);
    } else {
        list_splice(&e->waiters, &told);
    }
    return others;
}

/* The result of a fetch: keep it, if it is one, then tell everybody who waited. */
static void finish(struct entry *e, enum directory_result r, const struct store_user *user)
{
    struct directory *d = e->dir;
    if (r == DIRECTORY_NO_USER && d->importer && ask_next_sender(e))
        return;
    bool confirm = false;
    struct list waiters;
    list_init(&waiters);
    list_splice(&waiters, &e->waiters);
    fill(e, user);
    struct directory_user copy = e->user;
    if (!directory_failed(r)) {
        e->expires_ms = clock_mono_ms() + keep_ms(d, user, &confirm);
        list_push(&d->kept, &e->link);
        if (map_size(d->by_login) > d->max_entries)
            drop(list_entry(d->kept.next, struct entry, link));
    } else {
        drop(e);
    }
    if (confirm)
        refresh(d, copy.login, IMPORT_CONFIRM, NULL, NULL);
    tell(&waiters, r, &copy);
}

static void on_imported(void *ctx, enum import_result r)
{
    struct entry *e = ctx;
    if (r == IMPORT_UNAVAILABLE || e->dir->closing)
        finish(e, DIRECTORY_UNAVAILABLE, NULL);
    else if (r == IMPORT_FOUND || e->again)
        fetch(e);
    else
        finish(e, DIRECTORY_NO_USER, NULL);
}

static void on_read(void *ctx, enum db_status st, const struct store_user *user)
{
    struct entry *e = ctx;
    struct directory *d = e->dir;
    if (st != DB_OK) {
        finish(e, st == DB_UNAVAILABLE ? DIRECTORY_DB_UNAVAILABLE : DIRECTORY_DB_ERROR, NULL);
    } else if (e->again) {
        fetch(e);
    } else if (!user && d->importer && !e->imported) {
        e->imported = true;
        import_start(d->importer, e->user.login, e->sender, IMPORT_ON_SIGHT, on_imported, e);
    } else {
        finish(e, user ? DIRECTORY_FOUND : DIRECTORY_NO_USER, user);
    }
}

/* One read of the table, or the next one. */
static void fetch(struct entry *e)
{
    e->again = false;
    e->expires_ms = 0;
    list_push(&e->dir->fetching, &e->link);
    store_get_user(e->dir->store, e->user.login, on_read, e);
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

/* A miss says nothing to somebody who names another server to ask. */
static bool answers(const struct entry *e, const char *sender)
{
    return e->found || !e->dir->importer || *sender == '\0' || strcmp(e->sender, sender) == 0;
}

void directory_fetch_from(struct directory *d, const char *login, const char *sender,
                          directory_cb cb, void *ctx)
{
    struct entry *e = fresh_entry(d, login);
    if (e && answers(e, sender)) {
        answer_later(d, e, cb, ctx);
        return;
    }
    struct waiter *w = xnew(struct waiter);
    w->cb = cb;
    w->ctx = ctx;
    (void)snprintf(w->sender, sizeof w->sender, "%s", sender);
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
    if (is_fetching)
        return;
    memcpy(e->sender, w->sender, sizeof e->sender);
    e->imported = false;
    fetch(e);
}

void directory_fetch(struct directory *d, const char *login, directory_cb cb, void *ctx)
{
    directory_fetch_from(d, login, "", cb, ctx);
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

void directory_forget_all(struct directory *d)
{
    list_each_safe(n, &d->fetching)
        list_entry(n, struct entry, link)->again = true;
    list_each_safe(n, &d->kept)
        drop(list_entry(n, struct entry, link));
}

/* --- looking up afresh --- */

struct refresh {
    struct directory *dir;
    char login[DM_LOGIN_MAX + 1];
    directory_cb cb; /* NULL = nobody waits */
    void *ctx;
};

static void on_refreshed(void *ctx, enum import_result result)
{
    struct refresh *r = ctx;
    struct directory *d = r->dir;
    d->refreshing--;
    if (result == IMPORT_FOUND)
        directory_forget(d, r->login);
    if (r->cb && result == IMPORT_FOUND && !d->closing)
        directory_fetch(d, r->login, r->cb, r->ctx);
    else if (r->cb)
        r->cb(r->ctx, result == IMPORT_NO_USER ? DIRECTORY_NO_USER : DIRECTORY_UNAVAILABLE, NULL);
    free(r);
}

static void refresh(struct directory *d, const char *login, enum import_kind kind, directory_cb cb,
                    void *ctx)
{
    struct refresh *r = xnew(struct refresh);
    r->dir = d;
    r->cb = cb;
    r->ctx = ctx;
    (void)snprintf(r->login, sizeof r->login, "%s", login);
    d->refreshing++;
    import_start(d->importer, login, "", kind, on_refreshed, r);
}

void directory_refresh(struct directory *d, const char *login, directory_cb cb, void *ctx)
{
    if (d->importer) {
        refresh(d, login, IMPORT_FRESH, cb, ctx);
        return;
    }
    directory_forget(d, login);
    directory_fetch(d, login, cb, ctx);
}
