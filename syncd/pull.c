/*
 * One turn: pages of settings, then pages of messages, each fetched while the one before it is
 * being stored. Whatever is committed is acknowledged with the next request, the last page in one
 * of its own.
 *
 * turn_step() is the one place that decides what comes next; it may be called at any time.
 *
 * Grades of failure: environment (the turn ends, the next one tries again).
 */
#include <stdlib.h>
#include <string.h>

#include "syncd/syncd.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

enum {
    PAGE_MS = 2000, /* a page shall take about so long */
    BYTES_MIN = 64 * 1024,
};

static const char *const page_ops[] = {"UserSettingsSyncBatch", "DmSyncBatch"};
static const char *const after_names[] = {"afterName", "afterMessageKey"};
static const char *const next_names[] = {"nextName", "nextMessageKey"};

/* --- ends --- */

void turn_fail(struct turn *t, enum turn_result result, const char *error)
{
    if (t->result > TURN_LATER)
        return;
    t->result = result;
    t->error = error;
}

void turn_fail_answer(struct turn *t, const struct peer_answer *a)
{
    if (a->result != PEER_ANSWER)
        turn_fail(t,
                  a->result == PEER_OVERLOADED || a->result == PEER_SHUTDOWN ? TURN_BUSY
                                                                             : TURN_UNREACHABLE,
                  "unreachable");
    else if (a->status == 429 || a->status == 503)
        turn_fail(t, TURN_BUSY, "busy");
    else if (a->status == 403)
        turn_fail(t, TURN_REFUSED, "refused");
    else
        turn_fail(t, TURN_FAILED, "strange_answer");
}

void turn_ack(struct turn *t, const char *sync_id)
{
    t->moved++;
    (void)json_array_append_new(t->acks, json_string(sync_id));
}

void turn_reject(struct turn *t, struct turn_rejects *r, const char *sync_id, const char *reason)
{
    t->rejected++;
    r->ids = xrealloc((void *)r->ids, (r->n + 1) * sizeof *r->ids);
    r->reasons = xrealloc((void *)r->reasons, (r->n + 1) * sizeof *r->reasons);
    r->ids[r->n] = sync_id;
    r->reasons[r->n++] = reason;
}

static void on_noted(void *ctx, enum db_status st)
{
    struct turn *t = ctx;
    t->noting--;
    if (st != DB_OK)
        turn_fail(t, TURN_FAILED, "database");
    turn_step(t);
}

void turn_note_rejects(struct turn *t, struct turn_rejects *r)
{
    if (r->n > 0) {
        t->noting++;
        store_note_rejects(t->s->store, &t->id, r->ids, r->reasons, r->n, on_noted, t);
        log_error("sync_items_refused", LOG_S("owner", t->id.owner),
                  LOG_S("peer", t->id.server.login), LOG_I("items", r->n),
                  LOG_S("first_reason", r->reasons[0]));
    }
    free((void *)r->ids);
    free((void *)r->reasons);
    *r = (struct turn_rejects){0};
}

/* --- requests --- */

/* A page that took long was too large for this link. */
static void adapt(struct sync_server *server, int64_t took_ms, bool full)
{
    if (took_ms > PAGE_MS * 3 / 2)
        server->max_bytes /= 2;
    else if (full && took_ms < PAGE_MS / 2)
        server->max_bytes *= 2;
    if (server->max_bytes < BYTES_MIN)
        server->max_bytes = BYTES_MIN;
    if (server->max_bytes > STORE_SYNC_BYTES_MAX)
        server->max_bytes = STORE_SYNC_BYTES_MAX;
}

/* Take the cursor of an answer; false if it stands still although items came. */
static bool take_cursor(struct turn *t, const json_t *payload, size_t n)
{
    const char *key = json_string_value(json_object_get(payload, next_names[t->phase]));
    const json_t *ms = json_object_get(payload, "nextStoredAtMs");
    if (n == 0)
        return true;
    if (!key || strlen(key) >= sizeof t->after_key || !json_is_integer(ms))
        return false;
    int64_t at = json_integer_value(ms);
    if (at < t->after_ms || (at == t->after_ms && strcmp(key, t->after_key) <= 0))
        return false;
    t->after_ms = at;
    memcpy(t->after_key, key, strlen(key) + 1);
    return true;
}

static void take_page(struct turn *t, const struct peer_answer *a)
{
    json_t *items = json_object_get(a->payload, "items");
    size_t n = json_array_size(items);
    bool more = json_is_true(json_object_get(a->payload, "hasMore"));
    adapt(t->server, clock_mono_ms() - t->asked_at_ms, more);
    t->asked = true;
    if (!json_is_array(items) || n > STORE_SYNC_LIMIT_MAX) {
        turn_fail(t, TURN_FAILED, "bad_page");
    } else if (!t->final) {
        if (!take_cursor(t, a->payload, n) || (n == 0 && more))
            turn_fail(t, TURN_FAILED, "cursor_stands_still");
        else if (n > 0)
            t->next = json_incref(items);
        t->more = more;
    }
}

static void on_page(void *ctx, const struct peer_answer *a)
{
    struct turn *t = ctx;
    t->fetching = false;
    if (a->result == PEER_ANSWER && a->status >= 200 && a->status <= 299) {
        take_page(t, a);
    } else if (a->result == PEER_ANSWER && a->status == 400 &&
               strcmp(a->error, "UNKNOWN_OP") == 0 && t->phase == TURN_SETTINGS) {
        t->asked = true; /* it keeps no settings */
        t->more = false;
    } else {
        if (a->result == PEER_TIMEOUT)
            adapt(t->server, 2 * (int64_t)PAGE_MS, true);
        turn_fail_answer(t, a);
    }
    turn_step(t);
}

static void ask(struct turn *t)
{
    json_t *p = json_pack("{s:s, s:I, s:s, s:i, s:I, s:o, s:s}", "ownerLogin", t->id.owner,
                          "afterStoredAtMs", (json_int_t)t->after_ms, after_names[t->phase],
                          t->after_key, "limit", t->final ? 1 : STORE_SYNC_LIMIT_MAX, "maxBytes",
                          (json_int_t)t->server->max_bytes, "ackSyncIds", t->acks,
                          "sourceServerLogin", t->s->server_login);
    shine_assert(p);
    t->acks = json_array(); /* if they are lost, the items come again */
    t->fetching = true;
    t->asked_at_ms = clock_mono_ms();
    peer_call(t->s->peers, t->id.server.login, t->id.server.url, PEER_NORMAL, page_ops[t->phase], p,
              0, on_page, t);
}

/* --- what comes next --- */

static void store_next(struct turn *t)
{
    json_t *items = t->next;
    t->next = NULL;
    t->storing = true;
    if (t->phase == TURN_SETTINGS)
        settings_store(t, items);
    else
        page_store(t, items);
    json_decref(items); /* whoever stores it has its own reference */
}

/* The phase is over: the next one, or the end. */
static bool next_phase(struct turn *t)
{
    if (t->phase == TURN_MESSAGES || t->time_up)
        return false;
    t->phase = TURN_MESSAGES;
    t->after_ms = 0;
    t->after_key[0] = '\0';
    t->asked = t->more = t->final = false;
    return true;
}

static void end(struct turn *t)
{
    json_decref(t->next);
    t->next = NULL;
    if (t->result == TURN_EQUAL && t->time_up)
        t->result = TURN_TIME_UP;
    else if (t->result == TURN_EQUAL && t->later > 0)
        t->result = TURN_LATER;
    else if (t->result == TURN_EQUAL && t->rejected > 0)
        t->result = TURN_REJECTS;
    cycle_turn_ended(t);
}

void turn_step(struct turn *t)
{
    bool failed = t->result > TURN_LATER;
    if (clock_mono_ms() - t->began_ms > t->s->max_turn_ms)
        t->time_up = true;
    if (!failed && !t->storing && t->next)
        store_next(t);
    if (t->fetching || failed) {
        if (!t->fetching && !t->storing && t->noting == 0)
            end(t);
        return;
    }
    if (!t->asked || (t->more && !t->time_up && !t->next)) {
        ask(t);
    } else if (!t->storing && !t->next) {
        if (json_array_size(t->acks) > 0) {
            t->final = t->time_up; /* otherwise it also asks for what came meanwhile */
            ask(t);
        } else if (next_phase(t)) {
            ask(t);
        } else if (t->noting == 0) {
            end(t);
        }
    }
}

void turn_start(struct turn *t)
{
    t->began_ms = clock_mono_ms();
    t->acks = json_array();
    t->error = "";
    turn_step(t);
}
