/*
 * One look-up.
 *
 *   start -> knowing -> placing -> asking -> storing -> ended
 *               \__________\_________\___________________^
 *
 *   knowing   what does our own table say? (a local record ends a look-up on sight)
 *   placing   whom can we ask?
 *   asking    homes and partners; then, if nobody knows, the sender
 *   storing   the best answer goes into the table, with the newest profile that came
 *
 * A look-up that has ended may still have calls open, whose answers are ignored; it is freed with
 * the last of them, in lookup_unref() and nowhere else.
 *
 * Raises: environment (logged, or told to who asked).
 */
#include "directory/import_internal.h"

#include "directory/record.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/map.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLACES_MAX = 40, BEST_SCORE = 4 };

struct lookup {
    struct importer *im;
    char key[IMPORT_KEY_MAX];
    char login[DM_LOGIN_MAX + 1], sender[SHINE_SERVER_LOGIN_MAX + 1];
    enum import_kind kind;
    struct list waiters;
    unsigned refs; /* one until it has ended, one per open call */
    bool ended;
    bool known, known_sure; /* there is a record; its key is not the word of a stranger */
    bool known_own;         /* added here: others have no say, but for a signed profile */
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
static void conclude(struct lookup *l);
static void on_stored(void *ctx, enum db_status st, enum store_import verdict, bool changed);
static void end(struct lookup *l, enum import_result r);

/* --- beginning and end --- */

struct lookup *lookup_new(struct importer *im, const char *key, const char *login,
                          const char *sender, enum import_kind kind)
{
    struct lookup *l = xnew(struct lookup);
    l->im = im;
    l->refs = 1;
    l->kind = kind;
    (void)snprintf(l->key, sizeof l->key, "%s", key);
    (void)snprintf(l->login, sizeof l->login, "%s", login);
    (void)snprintf(l->sender, sizeof l->sender, "%s", sender);
    list_init(&l->waiters);
    l->timer.data = l;
    shine_assert(uv_timer_init(im->loop, &l->timer) == 0);
    store_get_user(im->store, l->login, on_known, l);
    return l;
}

void lookup_join(struct lookup *l, struct import_waiter *w)
{
    list_push(&l->waiters, &w->link);
}

static void on_closed(uv_handle_t *h)
{
    free(h->data);
}

static void lookup_unref(struct lookup *l)
{
    if (--l->refs == 0)
        uv_close((uv_handle_t *)&l->timer, on_closed);
}

static void end(struct lookup *l, enum import_result r)
{
    l->ended = true;
    (void)uv_timer_stop(&l->timer);
    import_ended(l->im, l->key, l->kind, r);
    struct list waiters, *n;
    list_init(&waiters);
    list_splice(&waiters, &l->waiters);
    while ((n = list_pop(&waiters))) {
        struct import_waiter *w = list_entry(n, struct import_waiter, link);
        w->cb(w->ctx, r);
        free(w);
    }
    lookup_unref(l);
}

/* --- whom to ask --- */

static void on_known(void *ctx, enum db_status st, const struct store_user *user)
{
    struct lookup *l = ctx;
    if (st != DB_OK) {
        end(l, IMPORT_UNAVAILABLE);
        return;
    }
    if (user) {
        l->known = true;
        l->known_own = strcmp(user->source, "local") == 0 || strcmp(user->source, "profile") == 0;
        l->known_sure = strcmp(user->source, "provisional") != 0;
        memcpy(l->known_key, user->client_key, sizeof l->known_key);
    }
    if (l->known_own && l->kind == IMPORT_ON_SIGHT)
        end(l, IMPORT_FOUND);
    else
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
    conclude(l);
}

/* --- what they say --- */

static bool names(const struct store_user *u, const char *server)
{
    for (unsigned i = 0; i < u->n_servers; i++)
        if (strcmp(u->servers[i].login, server) == 0)
            return true;
    return false;
}

/* How good an answer is; BEST_SCORE cannot be bettered, 0 is none. */
static int score(const struct lookup *l, const struct store_place *p, const struct record *r)
{
    bool named = names(&r->user, p->route.login);
    bool must_know = p->home || r->local || named;
    bool partner = p->kind == STORE_PLACE_PARTNER && !r->provisional;
    bool same = l->known && memcmp(l->known_key, r->user.client_key, DM_KEY_BYTES) == 0;
    if (p->kind == STORE_PLACE_SENDER && !named)
        return 0; /* it is heard about its own users */
    if (l->known_sure) {
        if (!same)
            return 1; /* kept for the operator to see, if nothing better comes */
        return must_know ? BEST_SCORE : partner ? 3 : 2;
    }
    if (partner)
        return must_know ? BEST_SCORE : 3;
    return same || !l->known ? 2 : 1;
}

/* The newest profile of that key stays with the best record, whoever told it. */
static void take_profile(struct record *to, const struct record *from)
{
    if (!from->has_profile ||
        memcmp(to->user.client_key, from->user.client_key, DM_KEY_BYTES) != 0 ||
        (to->has_profile && profile_compare(&to->profile, &from->profile) >= 0))
        return;
    to->has_profile = true;
    profile_copy(&to->profile, &from->profile);
    to->user.n_servers = from->user.n_servers;
    memcpy(to->user.servers, from->user.servers, sizeof to->user.servers);
}

static void take(struct lookup *l, const struct store_place *p, const struct record *r)
{
    int s = score(l, p, r);
    if (s <= l->score) {
        if (l->score > 0)
            take_profile(&l->best, r);
        return;
    }
    if (l->score == 0 && l->kind != IMPORT_CONFIRM) /* others may know better, but not for long */
        (void)uv_timer_start(&l->timer, on_time, l->im->limits.copies_wait_ms, 0);
    struct record before;
    record_copy(&before, &l->best);
    record_copy(&l->best, r);
    if (l->score > 0)
        take_profile(&l->best, &before);
    l->score = s;
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
        if (got == RECORD_USER && r.bad_profile)
            log_warn("bad_user_profile", LOG_S("peer", p->route.login), LOG_S("login", l->login));
        if (got == RECORD_USER)
            take(l, p, &r);
        else if (got == RECORD_BAD)
            l->failed++;
        if (l->score >= BEST_SCORE && l->kind != IMPORT_CONFIRM)
            conclude(l);
        else
            ask(l);
    }
    lookup_unref(l);
}

static void on_time(uv_timer_t *t)
{
    conclude(t->data);
}

/* --- what comes of it --- */

/* Nothing better will come, or nothing at all. */
static void conclude(struct lookup *l)
{
    (void)uv_timer_stop(&l->timer);
    if (l->score > 0) {
        l->storing = true;
        store_import_user(l->im->store, &l->best.user,
                          l->best.has_profile ? &l->best.profile.own : NULL, l->best_from,
                          on_stored, l);
    } else if (l->known_own && !l->im->stopped) {
        /* Partners need not know our own users, and who could not be asked will be next time. */
        store_confirm_user(l->im->store, l->login);
        end(l, IMPORT_FOUND);
    } else {
        bool all_asked = l->next == l->n_places && l->open == 0 && l->failed == 0;
        end(l, all_asked ? IMPORT_NO_USER : IMPORT_UNAVAILABLE);
    }
}

static void on_stored(void *ctx, enum db_status st, enum store_import verdict, bool changed)
{
    struct lookup *l = ctx;
    struct importer *im = l->im;
    if (st != DB_OK) {
        end(l, IMPORT_UNAVAILABLE);
        return;
    }
    if (verdict == STORE_IMPORT_OTHER_KEY)
        log_warn("user_key_differs", LOG_S("login", l->login), LOG_S("peer", l->best_from));
    if (changed) {
        log_info("user_imported", LOG_S("login", l->login), LOG_S("peer", l->best_from),
                 LOG_S("source", l->best.user.source));
        store_tell_user_changed(im->store, l->login, NULL, NULL);
    } else if (l->known_own) {
        store_confirm_user(im->store, l->login);
    }
    if (verdict == STORE_IMPORT_NOT_BELIEVED && !l->known)
        end(l, IMPORT_NO_USER);
    else
        end(l, IMPORT_FOUND);
}
