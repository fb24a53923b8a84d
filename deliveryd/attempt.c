/*
 * A due row, from the claim to its result.
 *
 *   start -> [room to ask] -> asking -> [room to call] -> calling -> over
 *     \            \_____________^___________^               ^        ^
 *      \              (no time to wait for it, or attempts   |        |
 *       \              that do not ask)                      |        |
 *        \-> adopting (the recipient is served here now) --> recording
 *         \-> recording <- asked: delivered; or no room to call, or nothing left to deliver
 *
 * Calling is delivery_attempt(), which records by itself. Asking never stands in the way: whatever
 * goes wrong with it, the attempt goes on to its calls. One deadline holds for all of it, and ends
 * before the lease does.
 *
 * Raises: environment (a result that cannot be recorded is repeated by whoever gets the lease).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "deliveryd/deliveryd.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#define GIVEN_BACK_MS  2000                  /* when to come again if there was no room */
#define BUSY_COUNTS_MS ((int64_t)75 * 60000) /* after acceptance: 429 and 503 use the slot */

struct attempt {
    struct deliveryd *d;
    struct delivery_waiter waiter;
    char from_login[DM_LOGIN_MAX + 1], to_login[DM_LOGIN_MAX + 1];
    char outgoing_key[DM_MESSAGE_KEY_MAX];
    int64_t revision_time_ms, reencrypted_at_ms, row_version;
    unsigned number;
    int64_t accepted_ago_ms;
    int64_t started_ms, ends_ms; /* clock_mono_ms() */
    enum dm_type type;
    uint8_t *blob; /* until it is handed to delivery_attempt() */
    size_t blob_len;
    unsigned n_routes;
    struct store_route routes[2];
    struct store_route second;
    char reason[64];
    struct store_finish finish;
};

static void go_asking(struct attempt *a);                               /* 1 */
static void go_on_asking(struct delivery_waiter *w, bool in_time);      /* 1, having waited */
static void ask(struct attempt *a);                                     /* 2 */
static void on_told(void *ctx, const struct peer_answer *answer);       /* 3 */
static void go_calling(struct attempt *a);                              /* 4 */
static void go_on_calling(struct delivery_waiter *w, bool in_time);     /* 4, having waited */
static void call(struct attempt *a, bool granted);                      /* 5 */
static void on_report(void *ctx, const struct delivery_report *report); /* 6 */
static void adopt(struct attempt *a);
static void on_adopted(void *ctx, enum adopt_result r);
static void record(struct attempt *a, enum store_outcome outcome, const char *via,
                   const char *reason);
static void on_recorded(struct store_finish *f, enum db_status st);
static void over(struct attempt *a);

void attempt_start(struct deliveryd *d, const struct store_due *row, int64_t ends_ms)
{
    struct attempt *a = xnew(struct attempt);
    a->d = d;
    (void)snprintf(a->from_login, sizeof a->from_login, "%s", row->from_login);
    (void)snprintf(a->to_login, sizeof a->to_login, "%s", row->to_login);
    (void)snprintf(a->outgoing_key, sizeof a->outgoing_key, "%s", row->outgoing_key);
    a->revision_time_ms = row->revision_time_ms;
    a->reencrypted_at_ms = row->reencrypted_at_ms;
    a->row_version = row->row_version;
    a->number = row->attempt;
    a->accepted_ago_ms = row->accepted_ago_ms;
    a->started_ms = clock_mono_ms();
    a->ends_ms = ends_ms;
    a->type = row->type;
    a->blob = row->blob ? (uint8_t *)xmemdup0(row->blob, row->blob_len) : NULL;
    a->blob_len = row->blob_len;
    a->n_routes = row->n_routes;
    memcpy(a->routes, row->routes, sizeof a->routes);
    a->second = row->second;
    if (d->stopping)
        record(a, STORE_ATTEMPT_GIVEN_BACK, "", "stopping");
    else if (!a->blob)
        record(a, STORE_ATTEMPT_FAILED, "", "nothing_left_to_deliver");
    else if (row->served_here)
        adopt(a);
    else
        go_asking(a);
}

/* --- 1 to 3: the author's second server --- */

static void go_asking(struct attempt *a)
{
    const struct deliveryd *d = a->d;
    if (a->number < d->ask_from || a->second.login[0] == '\0') {
        go_calling(a);
        return;
    }
    a->waiter.go = go_on_asking;
    if (!delivery_bounds_full(d->asked, a->second.login))
        ask(a);
    else if (!delivery_bounds_wait(d->asked, a->second.login, &a->waiter))
        go_calling(a);
}

static void go_on_asking(struct delivery_waiter *w, bool in_time)
{
    struct attempt *a = list_entry(w, struct attempt, waiter);
    if (in_time)
        ask(a);
    else
        go_calling(a);
}

static void ask(struct attempt *a)
{
    json_t *payload = json_pack("{s:s}", "messageKey", a->outgoing_key);
    shine_assert(payload);
    delivery_bounds_begin(a->d->asked, a->second.login);
    peer_call(a->d->peers, a->second.login, a->second.url, PEER_REALTIME, "GetDmDeliveryStatus",
              payload, (uint32_t)a->d->ask_ms, on_told, a);
}

/* Half of a revision as another server names it; what is not named is 0. */
static bool is_half(const json_t *payload, const char *name, int64_t ours)
{
    const json_t *v = json_object_get(payload, name);
    return v ? json_is_integer(v) && json_integer_value(v) == ours : ours == 0;
}

/* Does the second server say that our revision was delivered? A result for another one says nothing
 * about ours. */
static bool says_delivered(const struct attempt *a, const struct peer_answer *answer)
{
    return answer->result == PEER_ANSWER && answer->status >= 200 && answer->status <= 299 &&
           json_is_true(json_object_get(answer->payload, "delivered")) &&
           is_half(answer->payload, "revisionTimeMs", a->revision_time_ms) &&
           is_half(answer->payload, "reencryptedAtMs", a->reencrypted_at_ms);
}

static void on_told(void *ctx, const struct peer_answer *answer)
{
    struct attempt *a = ctx;
    bool prompt = answer->result == PEER_ANSWER && answer->status != 429 && answer->status != 503;
    bool delivered = says_delivered(a, answer);
    delivery_bounds_end(a->d->asked, a->second.login, prompt);
    log_debug("second_server_asked", LOG_S("key", a->outgoing_key), LOG_S("peer", a->second.login),
              LOG_I("status", answer->status), LOG_S("reason", answer->error),
              LOG_I("delivered", delivered));
    if (delivered)
        record(a, STORE_ATTEMPT_DELIVERED, a->second.login, "");
    else
        go_calling(a);
}

/* --- 4 to 6: the recipient's servers --- */

static bool all_full(const struct attempt *a)
{
    for (unsigned i = 0; i < a->n_routes; i++)
        if (!delivery_bounds_full(a->d->routes, a->routes[i].login))
            return false;
    return a->n_routes > 0;
}

static void go_calling(struct attempt *a)
{
    a->waiter.go = go_on_calling;
    if (!all_full(a))
        call(a, false);
    else if (!delivery_bounds_wait(a->d->routes, a->routes[0].login, &a->waiter))
        record(a, STORE_ATTEMPT_GIVEN_BACK, "", "enough calls are open");
}

static void go_on_calling(struct delivery_waiter *w, bool in_time)
{
    struct attempt *a = list_entry(w, struct attempt, waiter);
    if (in_time)
        call(a, true);
    else
        record(a, STORE_ATTEMPT_GIVEN_BACK, "", "enough calls are open");
}

/* `granted`: we have waited for the first route. */
static void call(struct attempt *a, bool granted)
{
    int64_t left = a->ends_ms - RECORD_MS - clock_mono_ms();
    if (left <= 0) { /* we were frozen: whoever has the row now makes the attempt */
        record(a, STORE_ATTEMPT_GIVEN_BACK, "", "too late");
        return;
    }
    struct delivery_task t = {.from_login = a->from_login,
                              .outgoing_key = a->outgoing_key,
                              .revision_time_ms = a->revision_time_ms,
                              .reencrypted_at_ms = a->reencrypted_at_ms,
                              .row_version = a->row_version,
                              .type = a->type,
                              .blob = a->blob,
                              .blob_len = a->blob_len,
                              .n_routes = a->n_routes,
                              .deadline_ms =
                                  (uint32_t)(left < a->d->call_ms ? left : a->d->call_ms),
                              .granted = {granted, false},
                              .wait_dial = a->number >= a->d->last_attempt,
                              .busy_is_a_try = a->accepted_ago_ms >= BUSY_COUNTS_MS};
    memcpy(t.routes, a->routes, sizeof t.routes);
    delivery_attempt(a->d->delivery, &t, on_report, a);
    free(a->blob);
    a->blob = NULL;
}

/* One line for each attempt. Deliveries are the normal case, and many. */
static void log_result(const struct attempt *a, enum store_outcome outcome, const char *via,
                       const char *reason, bool recorded, enum dm_state state)
{
    static const char *const names[] = {[STORE_ATTEMPT_DELIVERED] = "delivered",
                                        [STORE_ATTEMPT_FAILED] = "failed",
                                        [STORE_ATTEMPT_GIVEN_BACK] = "given_back"};
    LOG_AT(outcome == STORE_ATTEMPT_FAILED ? LOG_LEVEL_INFO : LOG_LEVEL_DEBUG, "attempt_ended",
           LOG_S("key", a->outgoing_key), LOG_I("attempt", a->number),
           LOG_S("outcome", names[outcome]), LOG_S("via", via), LOG_S("reason", reason),
           LOG_I("recorded", recorded), LOG_S("state", recorded ? dm_state_name(state) : ""),
           LOG_I("ms", clock_mono_ms() - a->started_ms), LOG_END);
}

static void on_report(void *ctx, const struct delivery_report *report)
{
    struct attempt *a = ctx;
    log_result(a, report->outcome, report->via, report->reason, report->recorded, report->state);
    hints_tell(a->d->hints, a->from_login, &report->from);
    over(a);
}

/* --- the recipient is served here now --- */

static void adopt(struct attempt *a)
{
    if (!adopt_start(a->d, a->blob, a->blob_len, on_adopted, a))
        record(a, STORE_ATTEMPT_FAILED, "", "the stored copy is damaged");
}

/* Mostly the row has turned delivered with that. If not, because his copy was here before the row
 * was, this success does it. */
static void on_adopted(void *ctx, enum adopt_result r)
{
    struct attempt *a = ctx;
    if (r == ADOPT_DONE) {
        record(a, STORE_ATTEMPT_DELIVERED, a->d->server_login, "");
    } else if (r == ADOPT_REFUSED) {
        record(a, STORE_ATTEMPT_GIVEN_BACK, "", "not served here");
    } else {
        log_warn("row_not_adopted", LOG_S("key", a->outgoing_key));
        over(a);
    }
}

/* --- results that need no call --- */

static void record(struct attempt *a, enum store_outcome outcome, const char *via,
                   const char *reason)
{
    (void)snprintf(a->reason, sizeof a->reason, "%s", reason);
    a->finish = (struct store_finish){.from_login = a->from_login,
                                      .outgoing_key = a->outgoing_key,
                                      .revision_time_ms = a->revision_time_ms,
                                      .reencrypted_at_ms = a->reencrypted_at_ms,
                                      .row_version = a->row_version,
                                      .outcome = outcome,
                                      .via = via,
                                      .error = a->reason,
                                      .retry_after_ms = a->d->stopping ? 0 : GIVEN_BACK_MS,
                                      .done = on_recorded,
                                      .ctx = a};
    store_finish_attempt(a->d->store, &a->finish);
}

static void on_recorded(struct store_finish *f, enum db_status st)
{
    struct attempt *a = f->ctx;
    if (st != DB_OK)
        log_warn("attempt_not_recorded", LOG_S("key", a->outgoing_key));
    log_result(a, f->outcome, f->via, a->reason, st == DB_OK && f->recorded, f->state);
    if (st == DB_OK)
        hints_tell(a->d->hints, a->from_login, &f->from);
    over(a);
}

static void over(struct attempt *a)
{
    struct claims *claims = a->d->claims;
    size_t bytes = a->blob_len;
    /* The first attempt is over: the author's second server may have the message now. */
    if (a->number == 1)
        pushes_wake(a->d->pushes);
    free(a->blob);
    free(a);
    claims_over(claims, bytes);
}
