/*
 * The importer: whether a look-up may begin, who waits for it, and what was found out a moment ago.
 * One look-up is in lookup.c.
 *
 * Raises: environment (logged, or told to who asked).
 */
#include "directory/import.h"

#include "directory/import_internal.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/map.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* A result that stands for a while. */
struct memory {
    struct list link;
    int64_t until_ms;
    enum import_result result;
    char key[IMPORT_KEY_MAX];
};

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
    for (size_t i = 0; i < IMPORT_KINDS; i++)
        im->buckets[i] = (struct import_bucket){(int64_t)limits->burst * 1000, clock_mono_ms()};
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
        struct import_waiter *w = list_entry(n, struct import_waiter, link);
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
static bool take_token(struct importer *im, enum import_kind kind)
{
    struct import_bucket *b = &im->buckets[kind];
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

static void answer_later(struct importer *im, struct import_waiter *w, enum import_result r)
{
    w->result = r;
    list_push(&im->later, &w->link);
    (void)uv_timer_start(&im->timer, on_later, 0, 0);
}

void import_start(struct importer *im, const char *login, const char *sender, enum import_kind kind,
                  import_cb cb, void *ctx)
{
    static const char *const marks[IMPORT_KINDS] = {"", "!", "?"};
    struct import_waiter *w = xnew(struct import_waiter);
    w->cb = cb;
    w->ctx = ctx;
    list_init(&w->link);
    char key[IMPORT_KEY_MAX];
    (void)snprintf(key, sizeof key, "%s %s%s", login, sender, marks[kind]);
    struct lookup *l = map_get(im->running, key);
    if (l) {
        lookup_join(l, w);
        return;
    }
    const struct memory *m = map_get(im->remembered, key);
    if (m && m->until_ms > clock_mono_ms()) {
        answer_later(im, w, m->result);
        return;
    }
    if (im->stopped || im->n_running[kind] >= im->limits.max_running || !take_token(im, kind)) {
        log_debug("look_up_refused", LOG_S("login", login));
        answer_later(im, w, IMPORT_UNAVAILABLE);
        return;
    }
    l = lookup_new(im, key, login, sender, kind);
    im->n_running[kind]++;
    (void)map_put(im->running, key, l);
    lookup_join(l, w);
}

void import_ended(struct importer *im, const char *key, enum import_kind kind, enum import_result r)
{
    const struct import_limits *lim = &im->limits;
    int64_t ms = 0; /* found on sight: the table has it */
    if (r == IMPORT_UNAVAILABLE)
        ms = lim->unavailable_ms;
    else if (kind != IMPORT_ON_SIGHT)
        ms = lim->fresh_ms;
    else if (r == IMPORT_NO_USER)
        ms = lim->missing_ms;
    im->n_running[kind]--;
    (void)map_remove(im->running, key);
    remember(im, key, r, ms);
}
