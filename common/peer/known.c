/*
 * Which peers there are, by the tables: what becomes of a connection when somebody changes them.
 *
 *   it has become a partner      what waits goes on at the partner's address; then the pair goes
 *   its row has another URL      what is in flight ends, then the new address is dialled
 *   it is blocked                everything ends at once
 *   no row and no user names it  what it was called for is still done, then it goes
 *
 * Looked at whenever the table of partners has been read. The users' records are asked about the
 * pairs that are here, not read as a whole: there are many.
 *
 * Raises: environment (a question that fails is asked again the next time).
 */
#include <stdlib.h>
#include <string.h>

#include "peer/internal.h"
#include "store/peers.h"
#include "util/log.h"
#include "util/mem.h"

/* A question to the database; the answer finds peers by key, as they may have gone meanwhile. */
struct check {
    struct peer_pool *pool;
    char **keys;
    struct store_route *routes;
    size_t n;
};

/* --- one peer --- */

static void retire(struct peer *p)
{
    log_info("peer_retired", LOG_S("peer", p->login), LOG_S("url", p->url));
    (void)map_remove(p->pool->by_key, p->key);
    p->retired = true;
    p->wanted = false;
    peer_calls_fewer(p);
}

static void block(struct peer *p)
{
    log_warn("peer_blocked", LOG_S("peer", p->login));
    p->blocked = true;
    p->wanted = false;
    peer_note_error(p, "blocked");
    peer_link_drop(p, 1008, "blocked");
    peer_calls_end_flight(p, PEER_LOST, "blocked");
    peer_calls_end_queue(p, PEER_UNREACHABLE, "blocked", true);
    peer_set_state(p, PEER_IDLE);
}

static void take_new_url(struct peer *p)
{
    log_info("peer_url_changed", LOG_S("peer", p->login), LOG_S("url", p->new_url));
    free(p->url);
    p->url = p->new_url;
    p->new_url = NULL;
    p->dial_failed = false;
    backoff_reset(&p->backoff);
    peer_link_drop(p, 1000, "address changed");
    peer_set_state(p, PEER_IDLE);
    if (p->n_queued > 0)
        peer_want_dial(p);
}

void peer_calls_fewer(struct peer *p)
{
    bool over = (p->retired && !peer_has_calls(p)) || (p->new_url && p->n_flight == 0);
    if (!over || p->pool->closing)
        return;
    list_push(&p->pool->todo, &p->todo);
    peer_pool_later(p->pool);
}

void peer_do_todo(struct peer *p)
{
    if (p->retired && !peer_has_calls(p))
        peer_forget(p, 1000, "no longer needed");
    else if (p->new_url && p->n_flight == 0)
        take_new_url(p);
}

/* A partner as its row says now. */
static void follow_row(struct peer *p, const struct partner *row)
{
    if (row->blocked) {
        if (!p->blocked)
            block(p);
        return;
    }
    if (p->blocked) {
        p->blocked = false;
        p->dial_failed = false;
        backoff_reset(&p->backoff);
    }
    free(p->new_url);
    p->new_url = strcmp(p->url, row->url) != 0 ? xstrdup(row->url) : NULL;
    peer_calls_fewer(p);
}

static void become_partner(struct peer *pair)
{
    retire(pair); /* first: it makes the room */
    struct peer *p = peer_pool_get(pair->pool, pair->login, pair->url, false);
    if (p)
        peer_calls_move(pair, p);
}

static void reconcile(struct peer *p)
{
    const struct partner *row = partners_find(p->pool->cfg.partners, p->login);
    if (p->retired)
        return;
    if (row && p->partner)
        follow_row(p, row);
    else if (row)
        become_partner(p);
    else if (p->partner)
        retire(p);
}

/* --- all of them --- */

static void check_free(struct check *c)
{
    for (size_t i = 0; i < c->n; i++)
        free(c->keys[i]);
    free(c->keys);
    free(c->routes);
    free(c);
}

/* The end of the questions of one round. The pool may be closed and gone afterwards. */
static void round_over(struct peer_pool *pool)
{
    pool->checking = false;
    peer_pool_unref(pool);
}

static void on_known(void *ctx, enum db_status st, const struct store_route *rows, size_t n)
{
    struct peer_pool *pool = ctx;
    if (st != DB_OK || pool->closing)
        n = 0;
    /* All of them first: how long each waits for its first dial depends on their number. */
    for (size_t i = 0; i < n; i++)
        (void)peer_pool_get(pool, rows[i].login, rows[i].url, false);
    for (size_t i = 0; i < n; i++) {
        struct peer *p = peer_pool_get(pool, rows[i].login, rows[i].url, false);
        if (!p || p->wanted || p->blocked)
            continue;
        p->wanted = true;
        if (p->state == PEER_IDLE)
            peer_set_state(p, PEER_IDLE); /* arms its timer */
    }
    round_over(pool);
}

static void connect_all(struct peer_pool *pool)
{
    if (pool->cfg.eager && !pool->closing)
        store_known_peers(pool->cfg.store, pool->cfg.max_peers, on_known, pool);
    else
        round_over(pool);
}

static void on_unnamed(void *ctx, enum db_status st, const size_t *which, size_t n)
{
    struct check *c = ctx;
    struct peer_pool *pool = c->pool;
    for (size_t i = 0; st == DB_OK && !pool->closing && i < n; i++) {
        struct peer *p = which[i] < c->n ? map_get(pool->by_key, c->keys[which[i]]) : NULL;
        if (p)
            retire(p);
    }
    check_free(c);
    connect_all(pool);
}

static void check_pairs(struct peer_pool *pool)
{
    struct check *c = xnew(struct check);
    size_t most = map_size(pool->by_key);
    c->pool = pool;
    c->keys = xcalloc(most, sizeof *c->keys);
    c->routes = xcalloc(most, sizeof *c->routes);
    list_each(n, &pool->peers) {
        const struct peer *p = list_entry(n, struct peer, lru);
        /* Longer ones come from no table. */
        if (p->retired || p->partner || strlen(p->login) > SHINE_SERVER_LOGIN_MAX ||
            strlen(p->url) > SHINE_URL_MAX)
            continue;
        struct store_route *r = &c->routes[c->n];
        memcpy(r->login, p->login, strlen(p->login) + 1);
        memcpy(r->url, p->url, strlen(p->url) + 1);
        c->keys[c->n++] = xstrdup(p->key);
    }
    if (c->n > 0) {
        store_unnamed_peers(pool->cfg.store, c->routes, c->n, on_unnamed, c);
        return;
    }
    check_free(c);
    connect_all(pool);
}

void peer_pool_reconcile(void *ctx)
{
    struct peer_pool *pool = ctx;
    /* Peers that this makes come to the end of the list, and are as they should be. */
    list_each_safe(n, &pool->peers) {
        reconcile(list_entry(n, struct peer, lru));
    }
    peer_pool_later(pool); /* calls may have waited for the first read */
    if (!pool->cfg.store || pool->checking)
        return;
    pool->checking = true;
    peer_pool_ref(pool);
    check_pairs(pool);
}
