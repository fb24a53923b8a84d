/*
 * What the other server knows of deliveries: asked before old messages are stored, so that history
 * shows as delivered where it was, and never as failed. See page.h.
 *
 * Many at once where it can, otherwise one by one. Not to know is an answer; no answer ends the
 * turn.
 *
 * Grades of failure: environment.
 */
#include "syncd/page.h"

#include <string.h>

#include "util/mem.h"

static void ask_one(struct page *p);

/* What is delivered to somebody: pairs, and tombstones for both of another party. */
static bool has_delivery(const struct page_item *it, const char *owner)
{
    if (!page_item_good(it) || it->kind == PAGE_INCOMING)
        return false;
    const struct dm_container *c = &it->copy[it->n - 1].c;
    if (strcmp(c->from, owner) != 0)
        return false;
    return it->kind == PAGE_PAIR ||
           ((c->type == DM_DELETE_BOTH || c->type == DM_CLEAR_BOTH) && strcmp(c->to, owner) != 0);
}

static void key_of(const struct page_item *it, char key[DM_MESSAGE_KEY_MAX])
{
    dm_message_key(&it->copy[it->n - 1].c, key);
}

static int64_t integer_or_0(const json_t *o, const char *name)
{
    return json_integer_value(json_object_get(o, name));
}

/* Take an answer about one item. It counts for the revision it names, 0:0 if it names none. */
static void take_status(struct page_item *it, const json_t *status)
{
    struct dm_container *c = &it->copy[0].c;
    int64_t rev = integer_or_0(status, "revisionTimeMs");
    int64_t reenc = integer_or_0(status, "reencryptedAtMs");
    if (!json_is_true(json_object_get(status, "known")) ||
        !json_is_true(json_object_get(status, "delivered")))
        return;
    if (!it->copy[0].blob && rev >= 0 && rev <= DM_INT_MAX && reenc >= 0 && reenc <= DM_INT_MAX) {
        c->revision_time_ms = rev; /* the incoming copy is gone: whichever it was */
        c->reencrypted_at_ms = reenc;
    }
    it->proof = c->revision_time_ms == rev && c->reencrypted_at_ms == reenc;
}

static bool unknown_op(const struct peer_answer *a)
{
    return a->result == PEER_ANSWER && a->status == 400 && strcmp(a->error, "UNKNOWN_OP") == 0;
}

static bool success(const struct peer_answer *a)
{
    return a->result == PEER_ANSWER && a->status >= 200 && a->status <= 299;
}

/* --- many at once --- */

static void on_statuses(void *ctx, const struct peer_answer *a)
{
    struct page *p = ctx;
    const json_t *rows = json_object_get(a->payload, "items");
    size_t row = 0;
    if (unknown_op(a)) {
        p->t->server->no_status_batch = true;
        ask_one(p);
        return;
    }
    if (!success(a))
        turn_fail_answer(p->t, a);
    for (size_t i = 0; i < p->n && success(a); i++) {
        struct page_item *it = &p->item[i];
        char key[DM_MESSAGE_KEY_MAX];
        if (!has_delivery(it, p->t->id.owner))
            continue;
        const json_t *status = json_array_get(rows, row++);
        const char *named = json_string_value(json_object_get(status, "messageKey"));
        key_of(it, key);
        if (named && strcmp(named, key) == 0)
            take_status(it, status);
    }
    page_proven(p);
}

static void ask_all(struct page *p)
{
    struct turn *t = p->t;
    json_t *keys = json_array();
    for (size_t i = 0; i < p->n; i++) {
        char key[DM_MESSAGE_KEY_MAX];
        if (!has_delivery(&p->item[i], t->id.owner))
            continue;
        key_of(&p->item[i], key);
        (void)json_array_append_new(keys, json_string(key));
    }
    peer_call(t->s->peers, t->id.server.login, t->id.server.url, PEER_NORMAL,
              "GetDmDeliveryStatuses", json_pack("{s:o}", "messageKeys", keys), 0, on_statuses, p);
}

/* --- one by one --- */

static void on_status(void *ctx, const struct peer_answer *a)
{
    struct page *p = ctx;
    if (success(a)) {
        take_status(&p->item[p->asked], a->payload);
    } else if (!unknown_op(a)) {
        turn_fail_answer(p->t, a);
        page_proven(p);
        return;
    }
    p->asked++;
    ask_one(p);
}

static void ask_one(struct page *p)
{
    struct turn *t = p->t;
    char key[DM_MESSAGE_KEY_MAX];
    while (p->asked < p->n && !has_delivery(&p->item[p->asked], t->id.owner))
        p->asked++;
    if (p->asked == p->n) {
        page_proven(p);
        return;
    }
    key_of(&p->item[p->asked], key);
    peer_call(t->s->peers, t->id.server.login, t->id.server.url, PEER_REALTIME,
              "GetDmDeliveryStatus", json_pack("{s:s}", "messageKey", key), 0, on_status, p);
}

void page_prove(struct page *p)
{
    bool any = false;
    for (size_t i = 0; i < p->n && !any; i++)
        any = has_delivery(&p->item[i], p->t->id.owner);
    if (!any)
        page_proven(p);
    else if (p->t->server->no_status_batch)
        ask_one(p);
    else
        ask_all(p);
}
