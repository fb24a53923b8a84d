/*
 * A user's own devices: ListSessions, CloseActiveSession.
 *
 * Both are judged by the database for the asking session in its generation, not for this
 * connection, which may not yet know that it lost the session (store/devices.h).
 *
 * Grades of failure: environment (answered).
 */
#include "frontd/frontd.h"
#include "frontd/ops.h"
#include "frontd/pump.h"
#include "frontd/session.h"
#include "rpc/fields.h"
#include "store/devices.h"
#include "util/log.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

/* What a page and each of its items take beside clientInfo: names, id, numbers, punctuation. */
#define PAGE_OVERHEAD 1024
#define ITEM_OVERHEAD 256

static struct store_asking asking(const struct rpc_call *call)
{
    const struct session *s = session_of(call);
    return (struct store_asking){
        .login = session_login(s),
        .session_id = session_id(s),
        .generation = session_generation(s),
    };
}

static void fail_not_valid(struct rpc_call *call)
{
    rpc_fail(call, RPC_NOT_AUTHENTICATED, "this session was closed or taken over");
}

/* --- ListSessions --- */

/* As the device said it; what an operator made unreadable shows as null. */
static json_t *client_info_json(const char *text)
{
    json_t *info = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
    return info ? info : json_null();
}

static json_t *device_json(const struct store_device *d, const char *own_id)
{
    json_t *o = json_pack("{s:s, s:o, s:s, s:I, s:I, s:b, s:b, s:I}", "sessionId", d->session_id,
                          "clientInfo", client_info_json(d->client_info), "eventMode",
                          d->mode == STORE_EVENTS_PTS ? "pts" : "live", "createdAtMs",
                          (json_int_t)d->created_at_ms, "seenAtMs", (json_int_t)d->seen_at_ms,
                          "connected", (int)d->connected, "current",
                          strcmp(d->session_id, own_id) == 0, "ackedPts", (json_int_t)d->acked_pts);
    shine_assert(o);
    return o;
}

static void on_list(void *ctx, enum db_status st, bool valid, const struct store_device *rows,
                    size_t n, bool more)
{
    struct rpc_call *call = ctx;
    const char *own_id = session_id(session_of(call));
    if (st != DB_OK) {
        frontd_fail_db(call, st);
        return;
    }
    if (!valid || !own_id) { /* no id: the connection has ended meanwhile */
        fail_not_valid(call);
        return;
    }
    json_t *sessions = json_array();
    for (size_t i = 0; i < n; i++)
        (void)json_array_append_new(sessions, device_json(&rows[i], own_id));
    rpc_reply(call, json_pack("{s:o, s:b}", "sessions", sessions, "hasMore", (int)more));
}

void frontd_list_sessions(struct rpc_call *call)
{
    struct frontd *f = frontd_of(call);
    struct rpc_fields fields = rpc_fields_of(rpc_payload(call));
    const struct store_asking who = asking(call);
    const char *after = "";
    if (!rpc_str_opt(&fields, "afterSessionId", SHINE_SESSION_ID_LEN, &after)) {
        rpc_fail(call, RPC_BAD_FIELDS, fields.problem);
        return;
    }
    store_list_sessions(f->store, &who, after, ITEM_OVERHEAD, f->max_answer_bytes - PAGE_OVERHEAD,
                        on_list, call);
}

/* --- CloseActiveSession --- */

struct closing {
    struct rpc_call *call;
    char id[SHINE_SESSION_ID_LEN + 1];
};

static void on_closed(void *ctx, enum db_status st, enum store_close verdict)
{
    struct closing *c = ctx;
    struct frontd *f = frontd_of(c->call);
    if (st != DB_OK) {
        frontd_fail_db(c->call, st);
    } else if (verdict == STORE_CLOSE_NOT_FOUND) {
        rpc_fail(c->call, RPC_SESSION_NOT_FOUND, "no such session");
    } else if (verdict == STORE_CLOSE_OF_ANOTHER) {
        rpc_fail(c->call, RPC_SESSION_OF_ANOTHER_USER, "the session belongs to another user");
    } else if (verdict == STORE_CLOSE_NOT_VALID) {
        fail_not_valid(c->call);
    } else {
        rpc_reply(c->call, json_object()); /* before its own connection is closed */
        sessions_taken_over(f->sessions, c->id, SESSION_CLOSED);
        pump_told_log_in(f->pump, c->id, SESSION_CLOSED);
    }
    free(c);
}

void frontd_close_active_session(struct rpc_call *call)
{
    struct rpc_fields fields = rpc_fields_of(rpc_payload(call));
    const struct store_asking who = asking(call);
    const char *id = who.session_id;
    if (!rpc_str_opt(&fields, "sessionId", 256, &id)) {
        rpc_fail(call, RPC_BAD_FIELDS, fields.problem);
        return;
    }
    if (strlen(id) != SHINE_SESSION_ID_LEN) {
        rpc_fail(call, RPC_SESSION_NOT_FOUND, "no such session");
        return;
    }
    struct closing *c = xnew(struct closing);
    c->call = call;
    memcpy(c->id, id, sizeof c->id);
    store_close_session(frontd_of(call)->store, &who, id, on_closed, c);
}
