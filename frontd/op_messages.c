/*
 * SendMessagePair (also as ReceiveOutcomingMessage) and ReceiveIncomingMessage.
 *
 * A send, as numbered continuations:
 *
 *   1 frontd_send_message_pair   fields, containers, users, signatures (intake.c)
 *   2 send_store                 one transaction: copies, delivery row, events
 *   3 send_stored                the verdict; events to the sessions; the first attempt
 *   4 send_reported / send_budget_over   whichever comes first answers
 *
 * The struct lives until the call is answered and the attempt has reported. send_release() alone
 * frees it, by way of its timer.
 *
 * Raises: environment (all of it goes to the caller as an answer).
 */
#include <stdlib.h>
#include <string.h>

#include "frontd/frontd.h"
#include "frontd/intake.h"
#include "frontd/ops.h"
#include "frontd/pump.h"
#include "frontd/session.h"
#include "util/mem.h"

/* What is kept of the lease for recording the result. */
#define LEASE_RESERVE_MS 3000

struct send {
    struct intake in;
    struct store_pair pair;
    struct frontd *f;
    struct rpc_call *call; /* NULL once answered */
    char session_id[SHINE_SESSION_ID_LEN + 1];
    char author[DM_LOGIN_MAX + 1];
    char base_key[DM_BASE_KEY_MAX];
    char in_key[DM_MESSAGE_KEY_MAX], out_key[DM_MESSAGE_KEY_MAX];
    bool attempt_open;
    uv_timer_t budget; /* the caller waits no longer than this for the first attempt */
};

static void send_store(struct intake *in);                             /* 2 */
static void send_refused(struct intake *in);                           /* 2, instead */
static void send_stored(struct store_pair *p, enum db_status st);      /* 3 */
static void send_attempt(struct send *s);                              /* 3 */
static void send_reported(void *ctx, const struct delivery_report *r); /* 4 */
static void send_budget_over(uv_timer_t *t);                           /* 4 */
static void send_release(struct send *s);

/* --- common to both operations --- */

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

static bool is_text(const struct dm_container *c)
{
    return c->type == DM_TEXT_IN || c->type == DM_TEXT_OUT;
}

/* --- 1: what is a pair --- */

static enum rpc_error check_pair(struct intake *in, const char **message)
{
    const struct dm_container *a = &in->copies[0].c, *b = &in->copies[1].c;
    if (!is_text(a) || !is_text(b)) {
        *message = "only types 1 and 2 are sent by this operation";
        return RPC_BAD_MESSAGE_TYPE;
    }
    char key_a[DM_BASE_KEY_MAX], key_b[DM_BASE_KEY_MAX];
    dm_base_key(a, key_a);
    dm_base_key(b, key_b);
    /* From a server the two may be of different revisions, but never of different messages. */
    if (a->type != DM_TEXT_IN || b->type != DM_TEXT_OUT || strcmp(key_a, key_b) != 0) {
        *message = "not the incoming and the outgoing copy of one message";
        return RPC_PAIR_MISMATCH;
    }
    return RPC_OK;
}

static enum rpc_error check_client_pair(struct intake *in, const char **message)
{
    if (dm_is_pair(&in->copies[0].c, &in->copies[1].c))
        return RPC_OK;
    *message = "the two copies are of different revisions";
    return RPC_PAIR_MISMATCH;
}

void frontd_send_message_pair(struct rpc_call *call)
{
    if (!frontd_configured(call))
        return;
    struct frontd *f = frontd_of(call);
    struct send *s = xnew(struct send);
    s->f = f;
    s->call = call;
    (void)uv_timer_init(f->loop, &s->budget);
    s->budget.data = s;
    s->in = (struct intake){.f = f,
                            .call = call,
                            .n = 2,
                            .fields = {"incomingBlobB64", "outgoingBlobB64"},
                            .check = check_pair,
                            .check_client = check_client_pair,
                            .accepted = send_store,
                            .refused = send_refused,
                            .ctx = s};
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
    const struct dm_container *c = &in->copies[0].c;
    memcpy(s->author, c->from, sizeof s->author);
    dm_base_key(c, s->base_key);
    dm_message_key(c, s->in_key);
    dm_message_key(&in->copies[1].c, s->out_key);

    struct store_pair *p = &s->pair;
    list_init(&p->item.link);
    p->in = in->copies[0];
    p->out = in->copies[1];
    p->from_server = in->from_server;
    p->max_future_ms = s->f->max_future_ms;
    const char *session = session_id(session_of(s->call));
    if (session && strlen(session) < sizeof s->session_id) {
        memcpy(s->session_id, session, strlen(session) + 1);
        p->session_id = s->session_id;
    }
    p->done = send_stored;
    p->ctx = s;
    store_accept_pair(s->f->store, p);
}

/* --- 3: stored --- */

static void send_answer(struct send *s, enum dm_state state)
{
    if (!s->call)
        return;
    struct rpc_call *call = s->call;
    s->call = NULL;
    (void)uv_timer_stop(&s->budget);
    /* Results are never passed between servers in these operations. */
    const char *name = s->pair.from_server ? NULL : dm_state_name(state);
    rpc_reply(call, json_pack("{s:s, s:s, s:s, s:s, s:I, s:I}", "baseKey", s->base_key,
                              "incomingKey", s->in_key, "outgoingKey", s->out_key, "deliveryState",
                              name ? name : dm_state_name(DM_STATE_ACCEPTED), "deliveredWsSessions",
                              (json_int_t)s->pair.ws_sessions, "deliveredWebPushSessions",
                              (json_int_t)s->pair.push_sessions));
}

static void send_stored(struct store_pair *p, enum db_status st)
{
    struct send *s = p->ctx;
    if (st != DB_OK || p->verdict != STORE_OK) {
        if (st != DB_OK)
            frontd_fail_db(s->call, st);
        else
            fail_verdict(s->call, p->verdict);
        s->call = NULL;
        send_release(s);
        return;
    }
    /* The recipient's first: in a note to self it has the lower pts. */
    pump_told_message(s->f->pump, p->in.c.to, &p->to, &p->in, DM_STATE_NONE);
    pump_told_message(s->f->pump, p->in.c.from, &p->from, &p->out, p->state);
    if (p->attempt)
        send_attempt(s);
    else
        send_answer(s, p->state);
    intake_free(&s->in); /* an attempt may last half a minute, and has its own copy */
    send_release(s);
}

static void send_attempt(struct send *s)
{
    struct store_pair *p = &s->pair;
    struct delivery_task t = {.from_login = s->author,
                              .outgoing_key = s->out_key,
                              .revision_time_ms = p->in.c.revision_time_ms,
                              .reencrypted_at_ms = p->in.c.reencrypted_at_ms,
                              .row_version = p->row_version,
                              .blob = p->in.blob,
                              .blob_len = p->in.blob_len,
                              .n_routes = p->n_routes};
    memcpy(t.routes, p->routes, sizeof t.routes);
    /* A lease that is nearly over leaves no time to call; the attempt then gives the row back. */
    t.deadline_ms = p->lease_ms > LEASE_RESERVE_MS ? (uint32_t)(p->lease_ms - LEASE_RESERVE_MS) : 1;
    s->attempt_open = true;
    delivery_attempt(s->f->delivery, &t, send_reported, s);
    if (p->from_server)
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
        pump_told_state(s->f->pump, s->author, &r->from, s->out_key, r->state);
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

/* --- ReceiveIncomingMessage --- */

struct receive {
    struct intake in;
    struct store_incoming item;
    struct frontd *f;
    struct rpc_call *call;
};

static void receive_free(struct receive *r)
{
    intake_free(&r->in);
    free(r);
}

static void receive_stored(struct store_incoming *p, enum db_status st)
{
    struct receive *r = p->ctx;
    if (st != DB_OK) {
        frontd_fail_db(r->call, st);
    } else if (p->verdict != STORE_OK) {
        fail_verdict(r->call, p->verdict);
    } else {
        pump_told_message(r->f->pump, p->in.c.to, &p->to, &p->in, DM_STATE_NONE);
        char base_key[DM_BASE_KEY_MAX], key[DM_MESSAGE_KEY_MAX];
        dm_base_key(&p->in.c, base_key);
        dm_message_key(&p->in.c, key);
        rpc_reply(r->call, json_pack("{s:s, s:s, s:I, s:I}", "messageKey", key, "baseKey", base_key,
                                     "deliveredWsSessions", (json_int_t)p->ws_sessions,
                                     "deliveredWebPushSessions", (json_int_t)p->push_sessions));
    }
    receive_free(r);
}

static void receive_store(struct intake *in)
{
    struct receive *r = in->ctx;
    list_init(&r->item.item.link);
    r->item.in = in->copies[0];
    r->item.done = receive_stored;
    r->item.ctx = r;
    store_apply_incoming(r->f->store, &r->item);
}

static void receive_refused(struct intake *in)
{
    receive_free(in->ctx);
}

static enum rpc_error check_incoming(struct intake *in, const char **message)
{
    if (in->copies[0].c.type == DM_TEXT_IN)
        return RPC_OK;
    *message = "only type 1 is received by this operation";
    return RPC_BAD_MESSAGE_TYPE;
}

void frontd_receive_incoming_message(struct rpc_call *call)
{
    if (!frontd_configured(call))
        return;
    struct receive *r = xnew(struct receive);
    r->f = frontd_of(call);
    r->call = call;
    r->in = (struct intake){.f = r->f,
                            .call = call,
                            .n = 1,
                            .fields = {"incomingBlobB64"},
                            .check = check_incoming,
                            .accepted = receive_store,
                            .refused = receive_refused,
                            .ctx = r};
    intake_start(&r->in);
}
