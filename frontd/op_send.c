/*
 * The common way of the operations that store signed containers. See op_send.h.
 *
 * The struct is freed by send_release() alone, by way of its timer: answer and attempt may end in
 * either order.
 *
 * Raises: environment (all of it goes to the caller as an answer).
 */
#include "frontd/op_send.h"

#include <stdlib.h>
#include <string.h>

#include "frontd/due.h"
#include "frontd/pump.h"
#include "frontd/session.h"
#include "util/mem.h"

/* What is kept of the lease for recording the result. */
#define LEASE_RESERVE_MS 3000
/* The payload of an answer, more or less. */
#define ANSWER_BYTES 512

static void send_store(struct intake *in);                             /* 2 */
static void send_refused(struct intake *in);                           /* 2, instead */
static void send_attempt(struct send *s);                              /* 3 */
static void send_reported(void *ctx, const struct delivery_report *r); /* 4 */
static void send_budget_over(uv_timer_t *t);                           /* 4 */
static void send_release(struct send *s);

/* --- 1 --- */

void send_start(struct rpc_call *call, const struct send_kind *kind)
{
    if (!frontd_configured(call))
        return;
    struct send *s = xnew(struct send);
    s->kind = kind;
    s->f = frontd_of(call);
    s->call = call;
    (void)uv_timer_init(s->f->loop, &s->budget);
    s->budget.data = s;
    s->in = (struct intake){.f = s->f,
                            .call = call,
                            .n = kind->n,
                            .check = kind->check,
                            .check_client = kind->check_client,
                            .accepted = send_store,
                            .refused = send_refused,
                            .ctx = s};
    memcpy(s->in.fields, kind->fields, sizeof s->in.fields);
    intake_start(&s->in);
}

static void send_refused(struct intake *in)
{
    struct send *s = in->ctx;
    s->call = NULL;
    send_release(s);
}

/* --- 2: into the database --- */

static void send_store(struct intake *in)
{
    struct send *s = in->ctx;
    memcpy(s->author, in->copies[0].c.from, sizeof s->author);
    dm_base_key(&in->copies[0].c, s->base_key);
    for (unsigned i = 0; i < in->n; i++)
        dm_message_key(&in->copies[i].c, s->key[i]);
    const char *session = session_id(session_of(s->call));
    if (session && strlen(session) < sizeof s->session_id_copy) {
        memcpy(s->session_id_copy, session, strlen(session) + 1);
        s->session_id = s->session_id_copy;
    }
    const char *source = frontd_source_of(s->call, in->source);
    if (source) {
        memcpy(s->source_copy, source, strlen(source) + 1);
        s->source = s->source_copy;
    }
    s->kind->store(s);
}

/* --- 3: stored --- */

/* The call's answer to a verdict other than STORE_OK. */
static void fail_verdict(struct rpc_call *call, enum store_verdict v)
{
    switch (v) {
    case STORE_NOT_SERVED:
        rpc_fail(call, RPC_LOCAL_SERVER_NOT_ACCESS_SERVER,
                 "this server is not an access server of that user");
        return;
    case STORE_UNKNOWN_USER:
        rpc_fail(call, RPC_USER_NOT_FOUND, "the author or the recipient is unknown here");
        return;
    case STORE_TIME_AHEAD:
        rpc_fail(call, RPC_BAD_BLOB, dm_error_name(DM_BAD_TIME));
        return;
    case STORE_DELETED:
        rpc_fail(call, RPC_DELETED, "this message was deleted");
        return;
    case STORE_OK:
        break;
    }
    shine_assert(false);
}

void send_answer_state(const struct send *s, enum dm_state state, struct json_out *o)
{
    /* Results are never passed between servers in these operations. */
    const char *name = s->in.from_server ? NULL : dm_state_name(state);
    if (!name)
        name = dm_state_name(DM_STATE_ACCEPTED);
    json_out_string(o, "deliveryState", name);
}

static void send_answer(struct send *s, enum dm_state state)
{
    if (!s->call)
        return;
    struct rpc_call *call = s->call;
    s->call = NULL;
    (void)uv_timer_stop(&s->budget);
    struct json_out o;
    rpc_reply_begin(call, &o, ANSWER_BYTES);
    json_out_string(&o, "baseKey", s->base_key);
    json_out_int(&o, "deliveredWsSessions", s->result.ws_sessions);
    json_out_int(&o, "deliveredWebPushSessions", s->result.push_sessions);
    s->kind->answer(s, state, &o);
    rpc_reply_end(call, &o);
}

/* An outgoing copy shows how far the message got, as a read of the log does. */
static enum dm_state state_shown(const struct send *s, const struct store_copy *copy)
{
    bool outgoing = copy->c.type == DM_TEXT_OUT || copy->c.type == DM_RECEIPT_OUT;
    return outgoing ? s->result.state : DM_STATE_NONE;
}

static void tell_sessions(struct send *s)
{
    const struct send_result *r = &s->result;
    const struct store_copy *first = &s->in.copies[0], *last = &s->in.copies[s->in.n - 1];
    /* The recipient's first: in a note to self it has the lower pts. */
    pump_told_message(s->f->pump, first->c.to, &r->to, first, state_shown(s, first));
    pump_told_message(s->f->pump, last->c.from, &r->from, last, state_shown(s, last));
    if (r->turned.pts > 0) {
        char row_key[DM_MESSAGE_KEY_MAX];
        struct dm_key k;
        shine_assert(dm_key_parse(s->key[0], &k));
        dm_delivery_key(&k, row_key);
        pump_told_state(s->f->pump, s->author, &r->turned, row_key, DM_STATE_DELIVERED);
    }
}

void send_stored(struct send *s, enum db_status st)
{
    if (st != DB_OK || s->result.verdict != STORE_OK) {
        if (st != DB_OK)
            frontd_fail_db(s->call, st);
        else
            fail_verdict(s->call, s->result.verdict);
        s->call = NULL;
        send_release(s);
        return;
    }
    tell_sessions(s);
    if (s->result.attempt) {
        send_attempt(s);
    } else {
        due_tell(s->f->due); /* an attempt that deliveryd makes, a copy for a second server */
        send_answer(s, s->result.state);
    }
    intake_free(&s->in); /* an attempt may last half a minute, and has its own copy */
    send_release(s);
}

static void send_attempt(struct send *s)
{
    const struct send_result *r = &s->result;
    const struct store_copy *copy = &s->in.copies[0]; /* the one for the recipient */
    struct delivery_task t = {.from_login = s->author,
                              .outgoing_key = s->key[s->in.n - 1],
                              .revision_time_ms = copy->c.revision_time_ms,
                              .reencrypted_at_ms = copy->c.reencrypted_at_ms,
                              .row_version = r->row_version,
                              .type = copy->c.type,
                              .blob = copy->blob,
                              .blob_len = copy->blob_len,
                              .n_routes = r->n_routes};
    memcpy(t.routes, r->routes, sizeof t.routes);
    /* A lease that is nearly over leaves no time to call; the attempt then gives the row back. */
    t.deadline_ms = r->lease_ms > LEASE_RESERVE_MS ? (uint32_t)(r->lease_ms - LEASE_RESERVE_MS) : 1;
    s->attempt_open = true;
    delivery_attempt(s->f->delivery, &t, send_reported, s);
    if (s->in.from_server)
        send_answer(s, DM_STATE_ACCEPTED);
    else
        (void)uv_timer_start(&s->budget, send_budget_over, s->f->first_reply_budget_ms, 0);
}

/* --- 4: the first attempt has ended, or the caller has waited long enough --- */

static void send_reported(void *ctx, const struct delivery_report *r)
{
    struct send *s = ctx;
    s->attempt_open = false;
    if (r->recorded)
        pump_told_state(s->f->pump, s->author, &r->from, s->key[s->in.n - 1], r->state);
    due_tell(s->f->due);
    send_answer(s, r->state);
    send_release(s);
}

static void send_budget_over(uv_timer_t *t)
{
    struct send *s = t->data;
    send_answer(s, DM_STATE_ACCEPTED);
    send_release(s);
}

static void on_budget_closed(uv_handle_t *h)
{
    struct send *s = h->data;
    free(s);
}

static void send_release(struct send *s)
{
    if (s->call || s->attempt_open)
        return;
    intake_free(&s->in);
    uv_close((uv_handle_t *)&s->budget, on_budget_closed);
}
