/*
 * Look-ups under way.
 *
 *   start -> knowing -> placing -> asking -> storing -> ended
 *               \__________\_________\___________________^
 *
 *   knowing   what does our own table say? (a local record ends it)
 *   placing   whom can we ask?
 *   asking    homes and partners; then, if nobody knows, the sender
 *   storing   the best answer goes into the table
 *
 * A look-up that has ended may still have calls open, whose answers are ignored; it is freed with
 * the last of them, in lookup_unref() and nowhere else.
 *
 * Raises: environment (logged, or told to who asked).
 */
#include "directory/import.h"

#include "directory/record.h"
#include "util/clock.h"
#include "util/list.h"
#include "util/log.h"
#include "util/map.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_MAX (DM_LOGIN_MAX + 1 + SHINE_SERVER_LOGIN_MAX + 2)
enum { PLACES_MAX = 40 };

const struct import_limits import_limits_default = {
    .max_running = 64,
    .per_second = 20,
    .burst = 100,
    .max_parallel = 8,
    .answer_ms = 5000,
    .total_ms = 8000,
    .copies_wait_ms = 300,
    .missing_ms = 30000,
    .fresh_ms = 3000,
    .unavailable_ms = 1000,
    .max_remembered = 20000,
};

/* Look-ups that may begin, in thousandths. */
struct bucket {
    int64_t tokens, at_ms;
};

struct importer {
    uv_loop_t *loop;
    struct store *store;
    struct peer_pool *peers;
    struct import_limits limits;
    bool stopped;
    struct map *running;      /* by key */
    struct map *remembered;   /* by key */
    struct list memories;     /* in the order in which they were made */
    struct bucket buckets[2]; /* of look-ups on sight, and of fresh ones: so strangers who send
                                 garbage cannot stop users from being added and deliveries from
                                 finding their new route */
    struct list later;        /* waiters whose answer was known when they asked */
    uv_timer_t timer;         /* tells them */
};

struct waiter {
    struct list link;
    import_cb cb;
    void *ctx;
    enum import_result result; /* on `later` */
};

/* A result that stands for a while. */
struct memory {
    struct list link;
    int64_t until_ms;
    enum import_result result;
    char key[KEY_MAX];
};

struct lookup {
    struct importer *im;
    char key[KEY_MAX];
    char login[DM_LOGIN_MAX + 1], sender[SHINE_SERVER_LOGIN_MAX + 1];
    bool fresh;
    struct list waiters;
    unsigned refs; /* one until it has ended, one per open call */
    bool ended;
    bool known, known_partner; /* there is a record; from a partner */
    uint8_t known_key[DM_KEY_BYTES];
    struct store_place places[PLACES_MAX];
    size_t n_places, next; /* the sender, if there is one, is the last */
    unsigned open, failed;
    int64_t end_ms;
    bool storing;
    int score; /* of the best answer; 0 = none */
    struct record best;
    char best_from[SHINE_SERVER_LOGIN_MAX + 1];
    uv_timer_t timer; /* the end of the wait for better answers, or for any */
};

struct call {
    struct lookup *lookup;
    const struct store_place *place;
};

static void on_known(void *ctx, enum db_status st, const struct store_user *user);
static void on_places(void *ctx, enum db_status st, const struct store_place *rows, size_t n);
static void ask(struct lookup *l);
static void on_answer(void *ctx, const struct peer_answer *a);
static void on_time(uv_timer_t *t);
static void store_best(struct lookup *l);
static void on_stored(void *ctx, enum db_status st, enum store_import verdict);
static void end(struct lookup *l, enum import_result r);

/* --- the importer --- */

struct importer *import_new(uv_loop_t *loop, struct store *store, struct peer_pool *peers,
                            const struct import_limits *limits)
{
    struct importer *im = xnew(struct importer);
    im->loop = loop;
    im->store = store;
    im->peers = peers;
    im->limits = *limits;
    im->running = map_new();
    im->remembered = map_new();
    list_init(&im->memories);
    list_init(&im->later);
    for (size_t i = 0; i < 2; i++)
        im->buckets[i] = (struct bucket){(int64_t)limits->burst * 1000, clock_mono_ms()};
    im->timer.data = im;
    shine_assert(uv_timer_init(loop, &im->timer) == 0);
    return im;
}

void import_stop(struct importer *im)
{
    im->stopped = true;
}

static void forget(struct importer *im, struct memory *m)
{
    (void)map_remove(im->remembered, m->key);
    list_remove(&m->link);
    free(m);
}

static void tell_later(struct importer *im)
{
    struct list now;
    list_init(&now);
    list_splice(&now, &im->later); /* a callback may ask again: next turn */
    struct list *n;
    while ((n = list_pop(&now))) {
        struct waiter *w = list_entry(n, struct waiter, link);
        w->cb(w->ctx, w->result);
        free(w);
    }
}

static void on_later(uv_timer_t *t)
{
    tell_later(t->data);
}

static void on_closed(uv_handle_t *h)
{
    free(h->data);
}

void import_free(struct importer *im)
{
    shine_assert(map_size(im->running) == 0);
    im->stopped = true;
    while (!list_empty(&im->later))
        tell_later(im);
    list_each_safe(n, &im->memories)
        forget(im, list_entry(n, struct memory, link));
    map_free(im->running);
    map_free(im->remembered);
    uv_close((uv_handle_t *)&im->timer, on_closed);
}

/* --- what bounds them --- */

static void remember(struct importer *im, const char *key, enum import_result r, int64_t ms)
{
    struct memory *old = map_get(im->remembered, key);
    if (old)
        forget(im, old);
    if (ms <= 0)
        return;
    if (map_size(im->remembered) >= im->limits.max_remembered)
        forget(im, list_entry(im->memories.next, struct memory, link));
    struct memory *m = xnew(struct memory);
    m->until_ms = clock_mono_ms() + ms;
    m->result = r;
    memcpy(m->key, key, strlen(key) + 1);
    list_init(&m->link);
    list_push(&im->memories, &m->link);
    (void)map_put(im->remembered, m->key, m);
}

/* May one more look-up begin? */
static bool take_token(struct importer *im, bool fresh)
{
    struct bucket *b = &im->buckets[fresh];
    int64_t now = clock_mono_ms();
    int64_t full = (int64_t)im->limits.burst * 1000;
    b->tokens += (now - b->at_ms) * im->limits.per_second;
    b->at_ms = now;
    if (b->tokens > full)
        b->tokens = full;
    if (b->tokens < 1000)
        return false;
    b->tokens -= 1000;
    return true;
}

static void answer_later(struct importer *im, struct waiter *w, enum import_result r)
{
    w->result = r;
    list_push(&im->later, &w->link);
    (void)uv_timer_start(&im->timer, on_later, 0, 0);
}

void import_start(struct importer *im, const char *login, const char *sender, bool fresh,
                  import_cb cb, void *ctx)
{
    struct waiter *w = xnew(struct waiter);
    w->cb = cb;
    w->ctx = ctx;
    list_init(&w->link);
    char key[KEY_MAX];
    (void)snprintf(key, sizeof key, "%s %s%s", login, sender, fresh ? "!" : "");
    struct lookup *l = map_get(im->running, key);
    if (l) {
        list_push(&l->waiters, &w->link);
        return;
    }
    const struct memory *m = map_get(im->remembered, key);
    if (m && m->until_ms > clock_mono_ms()) {
        answer_later(im, w, m->result);
        return;
    }
    if (im->stopped || map_size(im->running) >= im->limits.max_running * (fresh ? 2U : 1U) ||
        !take_token(im, fresh)) {
        log_debug("look_up_refused", LOG_S("login", login));
        answer_later(im, w, IMPORT_UNAVAILABLE);
        return;
    }
    l = xnew(struct lookup);
    l->im = im;
    l->refs = 1;
    l->fresh = fresh;
    memcpy(l->key, key, sizeof l->key);
    (void)snprintf(l->login, sizeof l->login, "%s", login);
    (void)snprintf(l->sender, sizeof l->sender, "%s", sender);
    list_init(&l->waiters);
    list_push(&l->waiters, &w->link);
    (void)map_put(im->running, l->key, l);
    l->timer.data = l;
    shine_assert(uv_timer_init(im->loop, &l->timer) == 0);
    store_get_user(im->store, l->login, on_known, l);
}

/* --- a look-up --- */

static void lookup_unref(struct lookup *l)
{
    if (--l->refs == 0)
        uv_close((uv_handle_t *)&l->timer, on_closed);
}

static void end(struct lookup *l, enum import_result r)
{
    struct importer *im = l->im;
    const struct import_limits *lim = &im->limits;
    l->ended = true;
    (void)uv_timer_stop(&l->timer);
    (void)map_remove(im->running, l->key);
    int64_t ms = r == IMPORT_UNAVAILABLE ? lim->unavailable_ms
                 : l->fresh              ? lim->fresh_ms
                 : r == IMPORT_NO_USER   ? lim->missing_ms
                                         : 0; /* the table has it */
    remember(im, l->key, r, ms);
    struct list waiters, *n;
    list_init(&waiters);
    list_splice(&waiters, &l->waiters);
    while ((n = list_pop(&waiters))) {
        struct waiter *w = list_entry(n, struct waiter, link);
        w->cb(w->ctx, r);
        free(w);
    }
    lookup_unref(l);
}

static void on_known(void *ctx, enum db_status st, const struct store_user *user)
{
    struct lookup *l = ctx;
    if (st != DB_OK) {
        end(l, IMPORT_UNAVAILABLE);
        return;
    }
    if (user && strcmp(user->source, "local") == 0) {
        end(l, IMPORT_FOUND);
        return;
    }
    if (user) {
        l->known = true;
        l->known_partner = strcmp(user->source, "partner") == 0;
        memcpy(l->known_key, user->client_key, sizeof l->known_key);
    }
    store_look_up_places(l->im->store, l->login, l->sender, on_places, l);
}

static void on_places(void *ctx, enum db_status st, const struct store_place *rows, size_t n)
{
    struct lookup *l = ctx;
    if (st != DB_OK) {
        end(l, IMPORT_UNAVAILABLE);
        return;
    }
    l->n_places = n < PLACES_MAX ? n : PLACES_MAX;
    for (size_t i = 0; i < l->n_places; i++)
        l->places[i] = rows[i];
    l->end_ms = clock_mono_ms() + l->im->limits.total_ms;
    (void)uv_timer_start(&l->timer, on_time, l->im->limits.total_ms, 0);
    ask(l);
}

/* Ask as many as may be asked now; with nobody left to ask, conclude. */
static void ask(struct lookup *l)
{
    const struct import_limits *lim = &l->im->limits;
    while (!l->im->stopped && l->next < l->n_places && l->open < lim->max_parallel) {
        const struct store_place *p = &l->places[l->next];
        int64_t left = l->end_ms - clock_mono_ms();
        if (p->kind == STORE_PLACE_SENDER && (l->open > 0 || l->score > 0))
            break;
        if (left <= 0)
            break;
        l->next++;
        struct call *c = xnew(struct call);
        c->lookup = l;
        c->place = p;
        l->open++;
        l->refs++;
        peer_call(l->im->peers, p->route.login, p->route.url, PEER_NORMAL, "GetUser",
                  json_pack("{s:s}", "login", l->login),
                  left < lim->answer_ms ? (uint32_t)left : lim->answer_ms, on_answer, c);
    }
    if (l->open > 0)
        return;
    bool all_asked = l->next == l->n_places;
    if (l->score > 0)
        store_best(l);
    else
        end(l, l->failed > 0 || !all_asked ? IMPORT_UNAVAILABLE : IMPORT_NO_USER);
}

static bool names(const struct store_user *u, const char *server)
{
    for (unsigned i = 0; i < u->n_servers; i++)
        if (strcmp(u->servers[i].login, server) == 0)
            return true;
    return false;
}

/* How good an answer is; 4 cannot be bettered, 0 is none. */
static int score(const struct lookup *l, const struct store_place *p, const struct record *r)
{
    bool named = names(&r->user, p->route.login);
    bool must_know = p->home || r->local || named;
    bool partner = p->kind == STORE_PLACE_PARTNER && !r->provisional;
    bool same = l->known && memcmp(l->known_key, r->user.client_key, DM_KEY_BYTES) == 0;
    if (p->kind == STORE_PLACE_SENDER && !named)
        return 0; /* it is heard about its own users */
    if (l->known_partner) {
        if (!same)
            return 1; /* kept for the operator to see, if nothing better comes */
        return must_know ? 4 : partner ? 3 : 2;
    }
    if (partner)
        return must_know ? 4 : 3;
    return same || !l->known ? 2 : 1;
}

static void take(struct lookup *l, const struct store_place *p, const struct record *r)
{
    int s = score(l, p, r);
    if (s <= l->score)
        return;
    if (l->score == 0) /* others may know better, but not for long */
        (void)uv_timer_start(&l->timer, on_time, l->im->limits.copies_wait_ms, 0);
    l->score = s;
    l->best = *r;
    if (r->user.enc_key) { /* they point into the record */
        l->best.user.enc_key = l->best.enc_key;
        l->best.user.enc_key_sig = l->best.enc_key_sig;
    }
    bool partner = p->kind == STORE_PLACE_PARTNER && !r->provisional;
    l->best.user.source = partner ? "partner" : "provisional";
    (void)snprintf(l->best_from, sizeof l->best_from, "%s", p->route.login);
}

static void on_answer(void *ctx, const struct peer_answer *a)
{
    struct call *c = ctx;
    struct lookup *l = c->lookup;
    const struct store_place *p = c->place;
    free(c);
    l->open--;
    if (!l->ended && !l->storing) {
        struct record r;
        enum record_result got = RECORD_BAD;
        bool answered = a->result == PEER_ANSWER && a->status >= 200 && a->status <= 299;
        if (answered)
            got = record_read(a->payload, l->login, &r);
        log_debug("look_up_answer", LOG_S("login", l->login), LOG_S("peer", p->route.login),
                  LOG_I("status", a->status), LOG_I("result", got));
        if (answered && got == RECORD_BAD)
            log_warn("bad_user_record", LOG_S("peer", p->route.login), LOG_S("login", l->login));
        if (got == RECORD_USER)
            take(l, p, &r);
        else if (got == RECORD_BAD)
            l->failed++;
        if (l->score >= 4)
            store_best(l);
        else
            ask(l);
    }
    lookup_unref(l);
}

/* Nothing better came, or nothing at all. */
static void on_time(uv_timer_t *t)
{
    struct lookup *l = t->data;
    if (l->score > 0)
        store_best(l);
    else
        end(l, IMPORT_UNAVAILABLE);
}

static void store_best(struct lookup *l)
{
    l->storing = true;
    (void)uv_timer_stop(&l->timer);
    store_import_user(l->im->store, &l->best.user, l->best_from, on_stored, l);
}

static void on_stored(void *ctx, enum db_status st, enum store_import verdict)
{
    struct lookup *l = ctx;
    if (st != DB_OK) {
        end(l, IMPORT_UNAVAILABLE);
        return;
    }
    if (verdict == STORE_IMPORT_OTHER_KEY)
        log_warn("user_key_differs", LOG_S("login", l->login), LOG_S("peer", l->best_from));
    if (verdict == STORE_IMPORT_KEPT)
        log_info("user_imported", LOG_S("login", l->login), LOG_S("peer", l->best_from),
                 LOG_S("source", l->best.user.source));
    if (verdict == STORE_IMPORT_NOT_BELIEVED && !l->known)
        end(l, IMPORT_NO_USER);
    else
        end(l, IMPORT_FOUND);
}
