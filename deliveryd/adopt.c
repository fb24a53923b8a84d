/*
 * A recipient who has come to be served here while a message for him waited: what is carried is
 * stored again, by the way of everything that comes from a server, and so becomes his copy as if
 * newly stored, with its event, outbox item and conversation.
 *
 * Raises: environment (the database; a stored container that is damaged).
 */
#include <stdlib.h>

#include "deliveryd/deliveryd.h"
#include "store/tombstones.h"
#include "util/log.h"
#include "util/mem.h"

struct adoption {
    struct deliveryd *d;
    adopt_cb cb;
    void *ctx;
    struct store_incoming incoming;   /* for texts and receipts, */
    struct store_tombstone tombstone; /* for types 5 and 7 */
};

static void end(struct adoption *a, const struct store_copy *copy, enum db_status st,
                enum store_verdict verdict, const struct store_told *from,
                const struct store_told *to)
{
    enum adopt_result r = ADOPT_UNAVAILABLE;
    if (st == DB_OK && verdict == STORE_OK) {
        r = ADOPT_DONE;
        hints_tell(a->d->hints, copy->c.from, from);
        hints_tell(a->d->hints, copy->c.to, to);
    } else if (st == DB_OK) {
        r = ADOPT_REFUSED;
    }
    a->cb(a->ctx, r);
    free(a);
}

static void on_incoming(struct store_incoming *p, enum db_status st)
{
    end(p->ctx, &p->in, st, p->verdict, &p->from, &p->to);
}

static void on_tombstone(struct store_tombstone *t, enum db_status st)
{
    end(t->ctx, &t->copy, st, t->verdict, &t->from, &t->to);
}

bool adopt_start(struct deliveryd *d, const uint8_t *blob, size_t len, adopt_cb cb, void *ctx)
{
    struct store_copy copy = {.blob = blob, .blob_len = len};
    if (dm_parse(blob, len, &copy.c) != DM_OK)
        return false;
    dm_sha256(blob, len, copy.sha256);
    struct adoption *a = xnew(struct adoption);
    a->d = d;
    a->cb = cb;
    a->ctx = ctx;
    if (copy.c.type == DM_DELETE_BOTH || copy.c.type == DM_CLEAR_BOTH) {
        a->tombstone = (struct store_tombstone){
            .copy = copy, .from_server = true, .done = on_tombstone, .ctx = a};
        list_init(&a->tombstone.item.link);
        store_apply_tombstone(d->store, &a->tombstone);
    } else {
        a->incoming = (struct store_incoming){.in = copy, .done = on_incoming, .ctx = a};
        list_init(&a->incoming.item.link);
        store_apply_incoming(d->store, &a->incoming);
    }
    return true;
}
