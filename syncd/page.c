/*
 * One page of messages, from its texts to the database.
 *
 *   1 read      Base64, containers, what kind of item each is (page_read.c)
 *   2 users     who is in them; unknown ones are looked up
 *   3 keys      every key ever accepted of each author
 *   4 verify    on the thread pool
 *   5 proofs    which of them the other server knows to be delivered (page_proofs.c)
 *   6 store     by the same functions as everything else, some items in one transaction
 *   7 tell      the event about changed history; acknowledgements and refusals
 *
 * An item that is wrong is refused alone, one that cannot be judged now is left out and comes
 * again.
 *
 * Grades of failure: environment.
 */
#include "syncd/page.h"

#include <stdlib.h>
#include <string.h>

#include "store/profiles.h"
#include "store/sessions.h"
#include "util/mem.h"

static void page_users(struct page *p);              /* 2 */
static void page_keys(struct page *p);               /* 3 */
static void page_verify_work(uv_work_t *w);          /* 4 */
static void page_verified(uv_work_t *w, int status); /* 4 */
static void page_write(struct page *p);              /* 6 */
static void page_tell(struct page *p);               /* 7 */
static void page_end(struct page *p);

/* --- 1: read (page_read.c) --- */

void page_store(struct turn *t, json_t *items)
{
    struct page *p = xnew(struct page);
    p->t = t;
    p->items = json_incref(items);
    p->n = json_array_size(items);
    p->item = xcalloc(p->n + 1, sizeof *p->item);
    p->users = map_new();
    p->told = map_new();
    for (size_t i = 0; i < p->n; i++)
        if (!page_read_item(p, &p->item[i], json_array_get(items, i))) {
            p->item[i].reason = "BAD_ITEM";
            turn_fail(t, TURN_FAILED, "bad_page");
        }
    page_users(p);
}

/* --- 2, 3: who is in it --- */

/* Last look-up of a step: the next one follows. */
static bool closed(struct page *p)
{
    return --p->open == 0;
}

static void add_user(struct page *p, const char *login, bool author)
{
    struct page_user *u = map_get(p->users, login);
    if (!u) {
        u = xnew(struct page_user);
        u->page = p;
        (void)memccpy(u->login, login, '\0', sizeof u->login);
        (void)map_put(p->users, login, u);
    }
    u->author |= author;
}

static struct page_user *next_user(struct page *p, size_t *it)
{
    void *u;
    return map_next(p->users, it, NULL, &u) ? u : NULL;
}

static void on_user(void *ctx, enum directory_result r, const struct directory_user *user)
{
    struct page_user *u = ctx;
    (void)user;
    u->unknown = r == DIRECTORY_NO_USER;
    u->unavailable = directory_failed(r);
    if (closed(u->page))
        page_keys(u->page);
}

static void page_users(struct page *p)
{
    struct turn *t = p->t;
    size_t it = 0;
    struct page_user *u;
    add_user(p, t->id.owner, false);
    for (size_t i = 0; i < p->n; i++)
        if (page_item_good(&p->item[i])) {
            add_user(p, p->item[i].copy[p->item[i].n - 1].c.from, true);
            add_user(p, p->item[i].copy[p->item[i].n - 1].c.to, false);
        }
    p->open = map_size(p->users);
    while ((u = next_user(p, &it)))
        directory_fetch_from(t->s->directory, u->login, t->id.server.login, on_user, u);
}

static void page_verify(struct page *p)
{
    if (p->t->result > TURN_LATER) { /* without keys nothing is to be called forged */
        page_end(p);
        return;
    }
    size_t each = p->n / PAGE_SLICES + 1;
    p->open = PAGE_SLICES;
    for (size_t i = 0; i < PAGE_SLICES; i++) {
        struct page_slice *s = &p->slices[i];
        s->page = p;
        s->work.data = s;
        s->begin = i * each < p->n ? i * each : p->n;
        s->end = (i + 1) * each < p->n ? (i + 1) * each : p->n;
        shine_assert(uv_queue_work(p->t->s->loop, &s->work, page_verify_work, page_verified) == 0);
    }
}

static void on_keys(void *ctx, enum db_status st, const uint8_t (*keys)[DM_KEY_BYTES], size_t n)
{
    struct page_user *u = ctx;
    struct page *p = u->page;
    if (st != DB_OK)
        turn_fail(p->t, TURN_FAILED, "database");
    u->keys = xcalloc(n + 1, DM_KEY_BYTES);
    u->n_keys = n;
    if (n > 0)
        memcpy(u->keys, keys, n * DM_KEY_BYTES);
    if (closed(p))
        page_verify(p);
}

static void page_keys(struct page *p)
{
    size_t it = 0;
    struct page_user *u;
    p->open = 1; /* this function */
    while ((u = next_user(p, &it)))
        if (u->author && !u->unknown && !u->unavailable) {
            p->open++;
            store_get_keys(p->t->s->store, u->login, on_keys, u);
        }
    if (closed(p))
        page_verify(p);
}

/* --- 4: signatures --- */

static void verify_item(struct page *p, struct page_item *it)
{
    const struct page_user *from = map_get(p->users, it->copy[it->n - 1].c.from);
    const struct page_user *to = map_get(p->users, it->copy[it->n - 1].c.to);
    if (from->unknown || to->unknown) {
        it->reason = "USER_NOT_FOUND";
        return;
    }
    it->later = from->unavailable || to->unavailable;
    for (unsigned b = 0; b < it->n && page_item_good(it); b++) {
        struct store_copy *c = &it->copy[b];
        bool ok = !c->blob;
        for (size_t k = 0; k < from->n_keys && !ok; k++)
            ok = dm_verify(c->blob, c->blob_len, from->keys[k]);
        if (!ok)
            it->reason = "BAD_SIGNATURE";
        else if (c->blob)
            dm_sha256(c->blob, c->blob_len, c->sha256);
    }
}

static void page_verify_work(uv_work_t *w)
{
    const struct page_slice *s = w->data;
    struct page *p = s->page;
    for (size_t i = s->begin; i < s->end; i++)
        if (page_item_good(&p->item[i]))
            verify_item(p, &p->item[i]);
}

static void page_verified(uv_work_t *w, int status)
{
    struct page *p = ((struct page_slice *)w->data)->page;
    shine_assert(status == 0); /* never cancelled */
    if (!closed(p))
        return;
    if (p->t->result > TURN_LATER)
        page_end(p);
    else
        page_prove(p);
}

void page_proven(struct page *p)
{
    if (p->t->result > TURN_LATER)
        page_end(p);
    else
        page_write(p);
}

/* --- 6: into the database --- */

static void note_told(struct page *p, const char *owner, const struct store_told *told)
{
    if (told->pts > 0 && told->elsewhere)
        (void)map_put(p->told, owner, p);
}

static void item_stored(struct page_item *it, enum db_status st, enum store_verdict v)
{
    struct turn *t = it->page->t;
    if (st == DB_UNAVAILABLE)
        turn_fail(t, TURN_FAILED, "database");
    else if (st != DB_OK)
        it->reason = "NOT_STORABLE"; /* alone, too: the store has logged why */
    else if (v == STORE_NOT_SERVED)
        turn_fail(t, TURN_REFUSED, "not_served_here");
    else if (v == STORE_TIME_AHEAD)
        it->later = true;
    else if (v != STORE_OK)
        it->reason = "USER_NOT_FOUND";
    else
        turn_ack(t, it->sync_id);
    if (closed(it->page))
        page_tell(it->page);
}

static void on_pair(struct store_pair *r, enum db_status st)
{
    struct page_item *it = r->ctx;
    if (st == DB_OK) {
        note_told(it->page, r->in.c.from, &r->from);
        note_told(it->page, r->in.c.to, &r->to);
    }
    item_stored(it, st, r->verdict);
}

static void on_incoming(struct store_incoming *r, enum db_status st)
{
    struct page_item *it = r->ctx;
    if (st == DB_OK) {
        note_told(it->page, r->in.c.from, &r->from);
        note_told(it->page, r->in.c.to, &r->to);
    }
    item_stored(it, st, r->verdict);
}

static void on_tombstone(struct store_tombstone *r, enum db_status st)
{
    struct page_item *it = r->ctx;
    if (st == DB_OK) {
        note_told(it->page, r->copy.c.from, &r->from);
        note_told(it->page, r->copy.c.to, &r->to);
    }
    item_stored(it, st, r->verdict);
}

static void write_item(struct store *s, struct page_item *it, const char *source)
{
    switch (it->kind) {
    case PAGE_PAIR:
        it->req.pair = (struct store_pair){.in = it->copy[0],
                                           .out = it->copy[1],
                                           .from_server = true,
                                           .source = source,
                                           .proof = it->proof,
                                           .done = on_pair,
                                           .ctx = it};
        list_init(&it->req.pair.item.link);
        store_pull_pair(s, &it->req.pair);
        break;
    case PAGE_INCOMING:
        it->req.incoming = (struct store_incoming){
            .in = it->copy[0], .source = source, .done = on_incoming, .ctx = it};
        list_init(&it->req.incoming.item.link);
        store_pull_incoming(s, &it->req.incoming);
        break;
    case PAGE_TOMBSTONE:
        it->req.tombstone = (struct store_tombstone){.copy = it->copy[0],
                                                     .from_server = true,
                                                     .source = source,
                                                     .proof = it->proof,
                                                     .done = on_tombstone,
                                                     .ctx = it};
        list_init(&it->req.tombstone.item.link);
        store_pull_tombstone(s, &it->req.tombstone);
        break;
    }
}

static void page_write(struct page *p)
{
    struct turn *t = p->t;
    p->open = 0;
    for (size_t i = 0; i < p->n; i++)
        if (page_item_good(&p->item[i])) {
            p->open++;
            write_item(t->s->store, &p->item[i], t->id.server.login);
        }
    if (p->open == 0)
        page_tell(p);
}

/* --- 7: told, noted, over --- */

static void on_history_told(void *ctx, enum db_status st, const char *const *owners, size_t n)
{
    struct page *p = ctx;
    if (st != DB_OK) /* the next page, or the next start, tells it */
        turn_fail(p->t, TURN_FAILED, "database");
    for (size_t i = 0; i < n; i++)
        (void)map_put(p->told, owners[i], p);
    page_end(p);
}

static const char **keys_of(struct map *m, size_t *n)
{
    const char **keys = xcalloc(map_size(m) + 1, sizeof *keys);
    const char *key;
    void *value;
    size_t it = 0;
    for (*n = 0; map_next(m, &it, &key, &value); ++*n)
        keys[*n] = key;
    return keys;
}

static void page_tell(struct page *p)
{
    size_t n;
    const char **logins = keys_of(p->users, &n);
    store_tell_history(p->t->s->store, logins, n, on_history_told, p);
    free((void *)logins);
}

static void note_items(struct page *p)
{
    struct turn_rejects rejects = {0};
    for (size_t i = 0; i < p->n; i++) {
        const struct page_item *it = &p->item[i];
        if (it->reason)
            turn_reject(p->t, &rejects, it->sync_id, it->reason);
        else if (it->later)
            p->t->later++;
    }
    turn_note_rejects(p->t, &rejects);
}

static void page_end(struct page *p)
{
    struct turn *t = p->t;
    size_t n, it = 0;
    struct page_user *u;
    const char **told = keys_of(p->told, &n);
    if (n > 0)
        store_notify_events(t->s->store, told, n);
    free((void *)told);
    if (t->result <= TURN_LATER)
        note_items(p);
    while ((u = next_user(p, &it))) {
        free(u->keys);
        free(u);
    }
    for (size_t i = 0; i < p->n; i++) {
        free(p->item[i].blob[0]);
        free(p->item[i].blob[1]);
    }
    map_free(p->users);
    map_free(p->told);
    json_decref(p->items);
    free(p->item);
    free(p);
    t->storing = false;
    turn_step(t);
}
