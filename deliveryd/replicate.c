/*
 * Pushes: items of the outbox handed to their owner's second server as soon as they are there.
 *
 *   start -> [room] -> calling -> recording -> over
 *     \_________\__________________^   (nothing to hand over; no room)
 *
 * What counts as a try is judged as for deliveries (delivery/verdict.h). An item that fails is
 * repeated by the schedule in the store, and left to the pull in the end: so no item needs a last
 * dial, and none is ever lost.
 *
 * Raises: environment (a result that cannot be recorded is repeated by whoever gets the lease).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "delivery/verdict.h"
#include "deliveryd/deliveryd.h"
#include "deliveryd/pacer.h"
#include "util/base64.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#define BATCH_ROWS     200
#define BATCH_BYTES    ((int64_t)8 << 20)
#define OPEN_BYTES_MAX ((int64_t)32 << 20) /* blobs of all items taken */
#define SKIP_PEERS_MAX 1000
#define WAITING_MAX    200
#define GIVEN_BACK_MS  2000 /* when to come again if there was no room */

/* dm_sync_outbox.sync_id: a key, both halves of the revision, the digest. */
#define SYNC_ID_MAX (DM_MESSAGE_KEY_MAX + 64)

struct pushes {
    struct deliveryd *d;
    struct pacer *pacer;
    struct delivery_bounds *bounds;
    unsigned open;
    int64_t open_bytes;
    int64_t sent_ms;
};

struct push {
    struct pushes *p;
    struct delivery_waiter waiter;
    char owner[DM_LOGIN_MAX + 1], primary_key[DM_MESSAGE_KEY_MAX], sync_id[SYNC_ID_MAX];
    int64_t row_version, started_ms, ends_ms;
    unsigned tries;
    struct store_route second;
    const char *op; /* NULL = nothing that could be handed over */
    json_t *payload;
    size_t bytes;
    char reason[96];
    struct store_push_result result;
};

static enum pacer_begin claim(void *ctx);
static void on_claimed(void *ctx, enum db_status st, const struct store_push *rows, size_t n,
                       const struct store_claimed *claimed);
static void push_start(struct pushes *p, const struct store_push *row);
static void push_go(struct push *u);
static void on_waited(struct delivery_waiter *w, bool in_time);
static void push_call(struct push *u);
static void on_answer(void *ctx, const struct peer_answer *a);
static void record(struct push *u, enum store_push_outcome outcome, int64_t retry_after_ms);
static void on_recorded(struct store_push_result *r, enum db_status st);

static void on_room(void *ctx)
{
    pushes_wake(ctx);
}

struct pushes *pushes_new(struct deliveryd *d)
{
    struct pushes *p = xnew(struct pushes);
    p->d = d;
    p->pacer = pacer_new(d->loop, d->tick_ms, claim, p);
    p->bounds = delivery_bounds_new(
        d->loop, &(struct delivery_bounds_config){d->max_per_peer, WAITING_MAX, WAIT_MS});
    delivery_bounds_on_room(p->bounds, on_room, p);
    return p;
}

void pushes_stop(struct pushes *p)
{
    pacer_stop(p->pacer);
    delivery_bounds_stop(p->bounds);
}

bool pushes_idle(const struct pushes *p)
{
    return p->open == 0 && !pacer_claiming(p->pacer);
}

void pushes_free(struct pushes *p)
{
    if (!p)
        return;
    shine_assert(p->open == 0);
    pacer_free(p->pacer);
    delivery_bounds_free(p->bounds);
    free(p);
}

void pushes_wake(struct pushes *p)
{
    pacer_wake(p->pacer);
}

/* --- claims --- */

static enum pacer_begin claim(void *ctx)
{
    struct pushes *p = ctx;
    const struct deliveryd *d = p->d;
    const char *skip[SKIP_PEERS_MAX];
    unsigned waiting = delivery_bounds_waiting(p->bounds);
    unsigned busy = p->open > waiting ? p->open - waiting : 0;
    int64_t bytes = OPEN_BYTES_MAX - p->open_bytes;
    if (!deliveryd_ready(d))
        return PACER_NOT_READY;
    if (busy >= d->max_in_flight || bytes <= 0)
        return PACER_NO_ROOM;
    unsigned room = d->max_in_flight - busy;
    struct store_claim want = {
        .max_rows = room < BATCH_ROWS ? room : BATCH_ROWS,
        .max_bytes = bytes < BATCH_BYTES ? bytes : BATCH_BYTES,
        .lease_ms = d->lease_ms,
        .skip_peers = skip,
        .n_skip = delivery_bounds_list_full(p->bounds, skip, SKIP_PEERS_MAX),
    };
    p->sent_ms = clock_mono_ms();
    store_claim_pushes(d->store, &want, on_claimed, p);
    return PACER_BEGUN;
}

static void on_claimed(void *ctx, enum db_status st, const struct store_push *rows, size_t n,
                       const struct store_claimed *claimed)
{
    struct pushes *p = ctx;
    if (n > 0)
        log_debug("pushes_claimed", LOG_I("items", n), LOG_I("open", p->open));
    for (size_t i = 0; i < n && st == DB_OK; i++)
        push_start(p, &rows[i]);
    pacer_claimed(p->pacer, st, claimed);
    deliveryd_part_idle(p->d);
}

/* --- one item --- */

static const char *single_op(enum dm_type type, const char **field)
{
    *field = "blobB64";
    switch (type) {
    case DM_TEXT_IN:
    case DM_RECEIPT_IN:
        *field = "incomingBlobB64";
        return "ReceiveIncomingMessage";
    case DM_DELETE_BOTH:
    case DM_DELETE_OWN:
        return "DeleteMessage";
    case DM_CLEAR_BOTH:
    case DM_CLEAR_OWN:
        return "DeleteConversation";
    case DM_TEXT_OUT:
    case DM_RECEIPT_OUT:
        break; /* a pair that lost its incoming copy: it goes by pull only */
    }
    return NULL;
}

static void add_blob(json_t *payload, const char *field, const uint8_t *blob, size_t len)
{
    char *text = base64_encode_new(blob, len);
    shine_assert(json_object_set_new(payload, field, json_string(text)) == 0);
    free(text);
}

static void compose(struct push *u, const struct store_push *row)
{
    const char *field = NULL;
    if (row->n_blobs == 0 || u->second.login[0] == '\0')
        return;
    u->op = row->n_blobs == 2 ? "ReceiveOutcomingMessage" : single_op(row->type[0], &field);
    if (!u->op)
        return;
    u->payload = json_pack("{s:s}", "sourceServerLogin", u->p->d->server_login);
    shine_assert(u->payload);
    add_blob(u->payload, row->n_blobs == 2 ? "incomingBlobB64" : field, row->blob[0],
             row->blob_len[0]);
    if (row->n_blobs == 2)
        add_blob(u->payload, "outgoingBlobB64", row->blob[1], row->blob_len[1]);
}

static void push_start(struct pushes *p, const struct store_push *row)
{
    struct push *u = xnew(struct push);
    u->p = p;
    (void)snprintf(u->owner, sizeof u->owner, "%s", row->owner);
    (void)snprintf(u->primary_key, sizeof u->primary_key, "%s", row->primary_key);
    (void)snprintf(u->sync_id, sizeof u->sync_id, "%s", row->sync_id);
    u->row_version = row->row_version;
    u->started_ms = clock_mono_ms();
    u->ends_ms = p->sent_ms + row->lease_ms;
    u->tries = row->tries;
    u->second = row->second;
    for (unsigned i = 0; i < row->n_blobs; i++)
        u->bytes += row->blob_len[i];
    compose(u, row);
    p->open++;
    p->open_bytes += (int64_t)u->bytes;
    push_go(u);
}

static void push_go(struct push *u)
{
    struct pushes *p = u->p;
    u->waiter.go = on_waited;
    if (p->d->stopping) {
        record(u, STORE_PUSH_GIVEN_BACK, 0);
    } else if (!u->op) {
        (void)snprintf(u->reason, sizeof u->reason, "nothing to hand over");
        record(u, STORE_PUSH_FAILED, 0);
    } else if (!delivery_bounds_full(p->bounds, u->second.login)) {
        push_call(u);
    } else if (!delivery_bounds_wait(p->bounds, u->second.login, &u->waiter)) {
        on_waited(&u->waiter, false);
    }
}

static void on_waited(struct delivery_waiter *w, bool in_time)
{
    struct push *u = list_entry(w, struct push, waiter);
    if (in_time) {
        push_call(u);
        return;
    }
    (void)snprintf(u->reason, sizeof u->reason, "enough calls are open");
    record(u, STORE_PUSH_GIVEN_BACK, u->p->d->stopping ? 0 : GIVEN_BACK_MS);
}

/* A new item is what the user's other devices wait for at this moment, as much as its recipient
 * does: it goes before settings and pages of history. One that failed before has missed that
 * moment, and does not keep new ones of others waiting. */
static void push_call(struct push *u)
{
    const struct deliveryd *d = u->p->d;
    int64_t left = u->ends_ms - RECORD_MS - clock_mono_ms();
    if (left <= 0) {
        (void)snprintf(u->reason, sizeof u->reason, "too late");
        record(u, STORE_PUSH_GIVEN_BACK, 0);
        return;
    }
    delivery_bounds_begin(u->p->bounds, u->second.login);
    json_t *payload = u->payload;
    u->payload = NULL;
    peer_call(d->peers, u->second.login, u->second.url, u->tries == 0 ? PEER_REALTIME : PEER_NORMAL,
              u->op, payload, (uint32_t)(left < d->call_ms ? left : d->call_ms), on_answer, u);
}

static void on_answer(void *ctx, const struct peer_answer *a)
{
    struct push *u = ctx;
    struct delivery_judgement j = delivery_judge(a);
    delivery_bounds_end(u->p->bounds, u->second.login, a->result == PEER_ANSWER && !j.asks_to_wait);
    (void)snprintf(u->reason, sizeof u->reason, "%s", j.reason);
    if (j.verdict == DELIVERY_OK)
        record(u, STORE_PUSH_ACKED, 0);
    else if (j.verdict == DELIVERY_NOT_TRIED)
        record(u, STORE_PUSH_GIVEN_BACK, u->p->d->stopping ? 0 : j.retry_after_ms);
    else
        record(u, STORE_PUSH_FAILED, 0);
}

static void record(struct push *u, enum store_push_outcome outcome, int64_t retry_after_ms)
{
    u->result = (struct store_push_result){.owner = u->owner,
                                           .primary_key = u->primary_key,
                                           .sync_id = u->sync_id,
                                           .row_version = u->row_version,
                                           .outcome = outcome,
                                           .retry_after_ms = retry_after_ms,
                                           .done = on_recorded,
                                           .ctx = u};
    store_finish_push(u->p->d->store, &u->result);
}

static void log_result(const struct push *u, enum db_status st)
{
    static const char *const names[] = {[STORE_PUSH_ACKED] = "acknowledged",
                                        [STORE_PUSH_FAILED] = "failed",
                                        [STORE_PUSH_GIVEN_BACK] = "given_back"};
    enum store_push_outcome outcome = u->result.outcome;
    LOG_AT(outcome == STORE_PUSH_FAILED ? LOG_LEVEL_INFO : LOG_LEVEL_DEBUG, "push_ended",
           LOG_S("owner", u->owner), LOG_S("key", u->primary_key), LOG_S("peer", u->second.login),
           LOG_S("outcome", names[outcome]), LOG_S("reason", u->reason),
           LOG_I("recorded", st == DB_OK && u->result.recorded),
           LOG_I("ms", clock_mono_ms() - u->started_ms), LOG_END);
}

static void on_recorded(struct store_push_result *r, enum db_status st)
{
    struct push *u = r->ctx;
    struct pushes *p = u->p;
    if (st != DB_OK)
        log_warn("push_not_recorded", LOG_S("key", u->primary_key));
    log_result(u, st);
    /* The server is back: what waited for it is due now. */
    if (r->outcome == STORE_PUSH_ACKED && u->tries > 0)
        pushes_wake(p);
    p->open--;
    p->open_bytes -= (int64_t)u->bytes;
    json_decref(u->payload);
    free(u);
    pacer_room(p->pacer);
    deliveryd_part_idle(p->d);
}
