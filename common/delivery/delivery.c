/*
 * Attempts under way.
 *
 *   start -> calling -> recording -> reported -> freed
 *      \________________^     (no routes, or too many attempts at once)
 *
 * The result is decided by the first success, or when the last call has ended. After a success a
 * second call may still be open while the result is recorded and reported: the attempt is freed
 * when both the report was made and the last call has ended, in attempt_release() and nowhere else.
 *
 * Raises: environment (a result that cannot be recorded is repeated by whoever gets the lease).
 */
#include "delivery/delivery.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "delivery/verdict.h"
#include "util/base64.h"
#include "util/log.h"
#include "util/mem.h"

struct delivery {
    uv_loop_t *loop;
    struct store *store;
    struct peer_pool *peers;
    char *server_login;
    unsigned max_in_flight;
    unsigned calling; /* attempts that reached for a route and are not freed yet */
    unsigned open;    /* all attempts not freed yet */
    uv_timer_t idle;  /* tells on_idle, never from inside delivery_drain() */
    bool draining;
    void (*on_idle)(void *ctx);
    void *idle_ctx;
};

struct attempt;

struct attempt_call {
    struct attempt *attempt;
    struct store_route route;
};

struct attempt {
    struct delivery *d;
    char from_login[DM_LOGIN_MAX + 1];
    char outgoing_key[DM_MESSAGE_KEY_MAX];
    unsigned n_calls, calls_open;
    struct attempt_call calls[2];
    bool counted; /* in d->calling */
    bool decided, reported;
    bool tried;             /* by any ended call */
    int64_t retry_after_ms; /* the shortest asked for; -1 = none yet */
    char reason[2 * 96 + 2 * SHINE_SERVER_LOGIN_MAX + 8];
    char via[SHINE_SERVER_LOGIN_MAX + 1];
    struct store_finish finish;
    delivery_cb cb;
    void *ctx;
};

static void on_answer(void *ctx, const struct peer_answer *a);
static void attempt_record(struct attempt *at, enum store_outcome outcome, int64_t retry_after_ms);
static void on_recorded(struct store_finish *f, enum db_status st);
static void attempt_release(struct attempt *at);

/* --- life of the module --- */

struct delivery *delivery_new(uv_loop_t *loop, struct store *store, struct peer_pool *peers,
                              const struct delivery_config *cfg)
{
    struct delivery *d = xnew(struct delivery);
    d->loop = loop;
    d->store = store;
    d->peers = peers;
    d->server_login = xstrdup(cfg->server_login);
    d->max_in_flight = cfg->max_in_flight;
    (void)uv_timer_init(loop, &d->idle);
    d->idle.data = d;
    return d;
}

static void on_idle_timer(uv_timer_t *t)
{
    struct delivery *d = t->data;
    if (d->open > 0 || !d->on_idle) /* an attempt came meanwhile, or it was told before */
        return;
    void (*on_idle)(void *ctx) = d->on_idle;
    d->on_idle = NULL;
    on_idle(d->idle_ctx);
}

static void tell_if_idle(struct delivery *d)
{
    if (d->draining && d->open == 0)
        (void)uv_timer_start(&d->idle, on_idle_timer, 0, 0);
}

void delivery_drain(struct delivery *d, void (*on_idle)(void *ctx), void *ctx)
{
    d->draining = true;
    d->on_idle = on_idle;
    d->idle_ctx = ctx;
    tell_if_idle(d);
}

static void on_idle_closed(uv_handle_t *h)
{
    struct delivery *d = h->data;
    free(d->server_login);
    free(d);
}

void delivery_free(struct delivery *d)
{
    if (!d)
        return;
    shine_assert(d->open == 0);
    uv_close((uv_handle_t *)&d->idle, on_idle_closed);
}

/* --- one attempt --- */

/* What takes a container of one type to a recipient's server. */
struct carrier {
    const char *op;
    const char *field;
};

static struct carrier carrier_of(enum dm_type type)
{
    switch (type) {
    case DM_TEXT_IN:
    case DM_RECEIPT_IN:
        return (struct carrier){"ReceiveIncomingMessage", "incomingBlobB64"};
    case DM_DELETE_BOTH:
        return (struct carrier){"DeleteMessage", "blobB64"};
    case DM_CLEAR_BOTH:
        return (struct carrier){"DeleteConversation", "blobB64"};
    case DM_TEXT_OUT:
    case DM_RECEIPT_OUT:
    case DM_DELETE_OWN:
    case DM_CLEAR_OWN:
        break; /* the author's own: no recipient ever gets them */
    }
    shine_assert(false);
}

static void call_route(struct attempt *at, unsigned i, struct carrier by, const char *blob_b64,
                       uint32_t deadline_ms)
{
    struct attempt_call *c = &at->calls[i];
    json_t *payload =
        json_pack("{s:s, s:s}", by.field, blob_b64, "sourceServerLogin", at->d->server_login);
    shine_assert(payload);
    peer_call(at->d->peers, c->route.login, c->route.url, PEER_REALTIME, by.op, payload,
              deadline_ms, on_answer, c);
}

void delivery_attempt(struct delivery *d, const struct delivery_task *t, delivery_cb cb, void *ctx)
{
    struct attempt *at = xnew(struct attempt);
    at->d = d;
    at->cb = cb;
    at->ctx = ctx;
    at->retry_after_ms = -1;
    (void)snprintf(at->from_login, sizeof at->from_login, "%s", t->from_login);
    (void)snprintf(at->outgoing_key, sizeof at->outgoing_key, "%s", t->outgoing_key);
    at->finish = (struct store_finish){.from_login = at->from_login,
                                       .outgoing_key = at->outgoing_key,
                                       .revision_time_ms = t->revision_time_ms,
                                       .reencrypted_at_ms = t->reencrypted_at_ms,
                                       .row_version = t->row_version};
    list_init(&at->finish.item.link);
    d->open++;

    if (t->n_routes == 0) {
        (void)snprintf(at->reason, sizeof at->reason, "no_route");
        attempt_record(at, STORE_ATTEMPT_FAILED, 0);
        return;
    }
    if (d->calling >= d->max_in_flight || d->draining) {
        (void)snprintf(at->reason, sizeof at->reason, "handed_over");
        attempt_record(at, STORE_ATTEMPT_GIVEN_BACK, 0);
        return;
    }
    at->counted = true;
    d->calling++;
    at->n_calls = t->n_routes < 2 ? t->n_routes : 2;
    at->calls_open = at->n_calls;
    struct carrier by = carrier_of(t->type);
    char *b64 = base64_encode_new(t->blob, t->blob_len);
    for (unsigned i = 0; i < at->n_calls; i++) {
        at->calls[i] = (struct attempt_call){.attempt = at, .route = t->routes[i]};
        call_route(at, i, by, b64, t->deadline_ms);
    }
    free(b64);
}

static void add_reason(struct attempt *at, const char *login, const char *reason)
{
    size_t n = strlen(at->reason);
    (void)snprintf(at->reason + n, sizeof at->reason - n, "%s%s: %s", n ? "; " : "", login, reason);
}

static void on_answer(void *ctx, const struct peer_answer *a)
{
    struct attempt_call *c = ctx;
    struct attempt *at = c->attempt;
    struct delivery_judgement j = delivery_judge(a);
    at->calls_open--;
    log_debug("delivery_call_ended", LOG_S("key", at->outgoing_key), LOG_S("peer", c->route.login),
              LOG_I("status", a->status), LOG_S("reason", j.reason));
    if (at->decided) {
        attempt_release(at);
        return;
    }
    if (j.verdict == DELIVERY_OK) {
        (void)snprintf(at->via, sizeof at->via, "%s", c->route.login);
        at->reason[0] = '\0';
        attempt_record(at, STORE_ATTEMPT_DELIVERED, 0);
        return;
    }
    add_reason(at, c->route.login, j.reason);
    if (j.verdict != DELIVERY_NOT_TRIED)
        at->tried = true;
    else if (at->retry_after_ms < 0 || j.retry_after_ms < at->retry_after_ms)
        at->retry_after_ms = j.retry_after_ms;
    if (at->calls_open > 0)
        return;
    if (at->tried)
        attempt_record(at, STORE_ATTEMPT_FAILED, 0);
    else
        attempt_record(at, STORE_ATTEMPT_GIVEN_BACK, at->retry_after_ms);
}

static void attempt_record(struct attempt *at, enum store_outcome outcome, int64_t retry_after_ms)
{
    shine_assert(!at->decided);
    at->decided = true;
    at->finish.outcome = outcome;
    at->finish.via = at->via;
    at->finish.error = at->reason;
    at->finish.retry_after_ms = retry_after_ms;
    at->finish.done = on_recorded;
    at->finish.ctx = at;
    store_finish_attempt(at->d->store, &at->finish);
}

static void on_recorded(struct store_finish *f, enum db_status st)
{
    struct attempt *at = f->ctx;
    struct delivery_report r = {.state = DM_STATE_ACCEPTED};
    if (st == DB_OK) {
        r.recorded = f->recorded;
        r.state = f->state;
        r.from = f->from;
    } else {
        log_warn("delivery_not_recorded", LOG_S("key", at->outgoing_key), LOG_S("via", at->via));
    }
    at->reported = true;
    at->cb(at->ctx, &r);
    attempt_release(at);
}

static void attempt_release(struct attempt *at)
{
    if (!at->reported || at->calls_open > 0)
        return;
    struct delivery *d = at->d;
    if (at->counted)
        d->calling--;
    d->open--;
    free(at);
    tell_if_idle(d);
}
