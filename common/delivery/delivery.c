/*
 * Attempts under way.
 *
 *   start -> calling -> recording -> reported -> freed
 *      \________________^     (no routes, or too many attempts at once)
 *
 * While calling, a route may say that it does not serve the recipient. Then, once, the recipient is
 * looked up afresh, the routes are read again, and the new ones are called: this goes on beside the
 * other call, and counts as an open call itself.
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
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

struct delivery {
    uv_loop_t *loop;
    struct store *store;
    struct peer_pool *peers;
    struct directory *directory;    /* may be NULL */
    struct delivery_bounds *bounds; /* may be NULL */
    char *server_login;
    unsigned max_in_flight;
    unsigned calling; /* attempts that reached for a route and are not freed yet */
    unsigned open;    /* all attempts not freed yet */
    uv_timer_t idle;  /* tells on_idle, never from inside delivery_drain() */
    bool draining;
    void (*on_idle)(void *ctx);
    void *idle_ctx;
};

/* What takes a container of one type to a recipient's server. */
struct carrier {
    const char *op;
    const char *field;
};

struct attempt;

/* Two routes, and two more if the recipient has moved. */
enum { ROUTES_MAX = 2, CALLS_MAX = 2 * ROUTES_MAX };
#define LEAST_CALL_MS 200  /* a call that could not last longer is not begun */
#define AT_BOUND_MS   2000 /* when to come again if a route was left out */

struct attempt_call {
    struct attempt *attempt;
    struct store_route route;
};

struct attempt {
    struct delivery *d;
    char from_login[DM_LOGIN_MAX + 1];
    char outgoing_key[DM_MESSAGE_KEY_MAX];
    char to_login[DM_LOGIN_MAX + 1];
    unsigned n_calls, calls_open; /* a look-up under way is one of the open ones */
    struct attempt_call calls[CALLS_MAX];
    struct carrier by;
    char *blob_b64;
    int64_t ends_ms;
    bool looked;     /* the recipient was looked up afresh, or that has begun */
    bool moved_here; /* and turned out to be served by this server */
    bool counted;    /* in d->calling */
    bool decided, reported;
    bool tried;                    /* by any ended call */
    bool left_out;                 /* a route was, because its server is at its bound */
    bool wait_dial, busy_is_a_try; /* as in the task */
    int64_t retry_after_ms;        /* the shortest asked for; -1 = none yet */
    char reason[CALLS_MAX * (96 + SHINE_SERVER_LOGIN_MAX + 4) + 64];
    char via[SHINE_SERVER_LOGIN_MAX + 1];
    struct store_finish finish;
    delivery_cb cb;
    void *ctx;
};

static void on_answer(void *ctx, const struct peer_answer *a);
static void attempt_record(struct attempt *at, enum store_outcome outcome, int64_t retry_after_ms);
static void on_recorded(struct store_finish *f, enum db_status st);
static void attempt_release(struct attempt *at);
static void look_again(struct attempt *at);
static void on_looked(void *ctx, enum directory_result r, const struct directory_user *user);
static void on_routes(void *ctx, enum db_status st, const struct store_user *user);
static void decide_if_over(struct attempt *at);

/* --- life of the module --- */

struct delivery *delivery_new(uv_loop_t *loop, struct store *store, struct peer_pool *peers,
                              const struct delivery_config *cfg)
{
    struct delivery *d = xnew(struct delivery);
    d->loop = loop;
    d->store = store;
    d->peers = peers;
    d->directory = cfg->directory;
    d->bounds = cfg->bounds;
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

unsigned delivery_in_flight(const struct delivery *d)
{
    return d->calling;
}

void delivery_free(struct delivery *d)
{
    if (!d)
        return;
    shine_assert(d->open == 0);
    uv_close((uv_handle_t *)&d->idle, on_idle_closed);
}

/* --- one attempt --- */

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

static void add_reason(struct attempt *at, const char *login, const char *reason)
{
    size_t n = strlen(at->reason);
    (void)snprintf(at->reason + n, sizeof at->reason - n, "%s%s: %s", n ? "; " : "", login, reason);
}

/* Call one more route, with what is left of the time. False if too little is, or if its server is
 * at its bound and the call not granted. */
static bool call_route(struct attempt *at, const struct store_route *route, bool granted)
{
    int64_t left = at->ends_ms - clock_mono_ms();
    if (at->n_calls > 0 && left < LEAST_CALL_MS)
        return false;
    if (at->d->bounds && !granted && delivery_bounds_full(at->d->bounds, route->login)) {
        at->left_out = true;
        add_reason(at, route->login, "left out, enough calls are open");
        return false;
    }
    shine_assert(at->n_calls < CALLS_MAX);
    struct attempt_call *c = &at->calls[at->n_calls++];
    *c = (struct attempt_call){.attempt = at, .route = *route};
    json_t *payload = json_pack("{s:s, s:s}", at->by.field, at->blob_b64, "sourceServerLogin",
                                at->d->server_login);
    shine_assert(payload);
    at->calls_open++;
    if (at->d->bounds)
        delivery_bounds_begin(at->d->bounds, route->login);
    const struct peer_request r = {.login = c->route.login,
                                   .url = c->route.url,
                                   .lane = PEER_REALTIME,
                                   .flags = at->wait_dial ? PEER_WAIT_DIAL : 0,
                                   .op = at->by.op,
                                   .payload = payload,
                                   .timeout_ms = left > 0 ? (uint32_t)left : 1};
    peer_request(at->d->peers, &r, on_answer, c);
    return true;
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
    at->by = carrier_of(t->type);
    at->blob_b64 = base64_encode_new(t->blob, t->blob_len);
    at->ends_ms = clock_mono_ms() + t->deadline_ms;
    at->wait_dial = t->wait_dial;
    at->busy_is_a_try = t->busy_is_a_try;
    for (unsigned i = 0; i < t->n_routes && i < ROUTES_MAX; i++)
        (void)call_route(at, &t->routes[i], t->granted[i]);
    decide_if_over(at);
}

static void on_answer(void *ctx, const struct peer_answer *a)
{
    struct attempt_call *c = ctx;
    struct attempt *at = c->attempt;
    struct delivery_judgement j = delivery_judge(a);
    at->calls_open--;
    if (at->d->bounds)
        delivery_bounds_end(at->d->bounds, c->route.login,
                            a->result == PEER_ANSWER && !j.asks_to_wait);
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
    if (j.verdict != DELIVERY_NOT_TRIED || (j.asks_to_wait && at->busy_is_a_try))
        at->tried = true;
    else if (at->retry_after_ms < 0 || j.retry_after_ms < at->retry_after_ms)
        at->retry_after_ms = j.retry_after_ms;
    if (j.verdict == DELIVERY_NOT_SERVED)
        look_again(at);
    decide_if_over(at);
}

/* Without a success, the result is what the calls came to when the last has ended. */
static void decide_if_over(struct attempt *at)
{
    if (at->calls_open > 0)
        return;
    if (at->moved_here)
        attempt_record(at, STORE_ATTEMPT_GIVEN_BACK, 0);
    else if (at->tried && !at->left_out)
        attempt_record(at, STORE_ATTEMPT_FAILED, 0);
    else if (at->left_out && (at->tried || at->retry_after_ms < 0))
        attempt_record(at, STORE_ATTEMPT_GIVEN_BACK, AT_BOUND_MS);
    else
        attempt_record(at, STORE_ATTEMPT_GIVEN_BACK, at->retry_after_ms);
}

/* --- the recipient has moved --- */

static void look_again(struct attempt *at)
{
    struct dm_key key;
    if (at->looked || at->d->draining || !dm_key_parse(at->outgoing_key, &key))
        return;
    at->looked = true;
    at->calls_open++;
    memcpy(at->to_login, key.to, sizeof at->to_login);
    log_debug("delivery_route_old", LOG_S("key", at->outgoing_key));
    if (at->d->directory)
        directory_refresh(at->d->directory, at->to_login, on_looked, at);
    else
        store_get_user(at->d->store, at->to_login, on_routes, at);
}

/* Whatever came of it: the table may have been changed by somebody else, too. */
static void on_looked(void *ctx, enum directory_result r, const struct directory_user *user)
{
    struct attempt *at = ctx;
    (void)r;
    (void)user;
    if (at->decided || at->d->draining)
        on_routes(at, DB_UNAVAILABLE, NULL);
    else
        store_get_user(at->d->store, at->to_login, on_routes, at);
}

static bool was_called(const struct attempt *at, const struct store_route *r)
{
    for (unsigned i = 0; i < at->n_calls; i++)
        if (strcmp(at->calls[i].route.login, r->login) == 0 &&
            strcmp(at->calls[i].route.url, r->url) == 0)
            return true;
    return false;
}

static void on_routes(void *ctx, enum db_status st, const struct store_user *user)
{
    struct attempt *at = ctx;
    bool found_new = false;
    at->calls_open--;
    if (at->decided) {
        attempt_release(at);
        return;
    }
    for (unsigned i = 0; st == DB_OK && user && i < user->n_servers && !at->d->draining; i++) {
        const struct store_route *r = &user->servers[i];
        if (strcmp(r->login, at->d->server_login) == 0)
            at->moved_here = true;
        else if (!was_called(at, r))
            found_new = call_route(at, r, false) || found_new;
    }
    if (at->moved_here)
        add_reason(at, at->d->server_login, "serves the recipient now");
    else if (!found_new)
        add_reason(at, "looked_again", "no other server");
    decide_if_over(at);
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
    struct delivery_report r = {
        .outcome = f->outcome, .via = at->via, .reason = at->reason, .state = DM_STATE_ACCEPTED};
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
    free(at->blob_b64);
    free(at);
    tell_if_idle(d);
}
