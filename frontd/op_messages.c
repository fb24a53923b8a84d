/*
 * SendMessagePair (also as ReceiveOutcomingMessage) and ReceiveIncomingMessage: what op_send.c
 * needs to know of texts and receipts.
 *
 * Raises: environment (all of it goes to the caller as an answer).
 */
#include "frontd/frontd.h"
#include "frontd/op_send.h"
#include "frontd/ops.h"

#include <string.h>

static bool is_message(const struct dm_container *c)
{
    return c->type >= DM_TEXT_IN && c->type <= DM_RECEIPT_OUT;
}

static bool is_incoming(const struct dm_container *c)
{
    return c->type == DM_TEXT_IN || c->type == DM_RECEIPT_IN;
}

/* --- SendMessagePair --- */

static enum rpc_error check_pair(struct intake *in, const char **message)
{
    const struct dm_container *a = &in->copies[0].c, *b = &in->copies[1].c;
    if (!is_message(a) || !is_message(b)) {
        *message = "only types 1 and 2, or 3 and 4, are sent by this operation";
        return RPC_BAD_MESSAGE_TYPE;
    }
    char key_a[DM_BASE_KEY_MAX], key_b[DM_BASE_KEY_MAX];
    dm_base_key(a, key_a);
    dm_base_key(b, key_b);
    /* From a server the two may be of different revisions, but never of different messages. */
    if (!is_incoming(a) || (int)b->type != (int)a->type + 1 || strcmp(key_a, key_b) != 0) {
        *message = "not the incoming and the outgoing copy of one message";
        return RPC_PAIR_MISMATCH;
    }
    return RPC_OK;
}

static enum rpc_error check_client_pair(struct intake *in, const char **message)
{
    if (dm_is_pair(&in->copies[0].c, &in->copies[1].c))
        return RPC_OK;
    *message = "the two copies are of different revisions, or receipts of different content";
    return RPC_PAIR_MISMATCH;
}

static void pair_stored(struct store_pair *p, enum db_status st)
{
    struct send *s = p->ctx;
    s->result = (struct send_result){.verdict = p->verdict,
                                     .state = p->state,
                                     .from = p->from,
                                     .to = p->to,
                                     .ws_sessions = p->ws_sessions,
                                     .push_sessions = p->push_sessions,
                                     .attempt = p->attempt,
                                     .row_version = p->row_version,
                                     .lease_ms = p->lease_ms,
                                     .n_routes = p->n_routes,
                                     .routes = p->routes};
    send_stored(s, st);
}

static void pair_store(struct send *s)
{
    struct store_pair *p = &s->item.pair;
    list_init(&p->item.link);
    p->in = s->in.copies[0];
    p->out = s->in.copies[1];
    p->from_server = s->in.from_server;
    p->source = s->source;
    p->max_future_ms = s->f->max_future_ms;
    p->session_id = s->session_id;
    p->done = pair_stored;
    p->ctx = s;
    store_accept_pair(s->f->store, p);
}

static void pair_answer(const struct send *s, enum dm_state state, struct json_out *o)
{
    json_out_string(o, "incomingKey", s->key[0]);
    json_out_string(o, "outgoingKey", s->key[1]);
    send_answer_state(s, state, o);
}

void frontd_send_message_pair(struct rpc_call *call)
{
    static const struct send_kind kind = {.n = 2,
                                          .fields = {"incomingBlobB64", "outgoingBlobB64"},
                                          .check = check_pair,
                                          .check_client = check_client_pair,
                                          .store = pair_store,
                                          .answer = pair_answer};
    send_start(call, &kind);
}

/* --- ReceiveIncomingMessage --- */

static enum rpc_error check_incoming(struct intake *in, const char **message)
{
    if (is_incoming(&in->copies[0].c))
        return RPC_OK;
    *message = "only types 1 and 3 are received by this operation";
    return RPC_BAD_MESSAGE_TYPE;
}

static void incoming_stored(struct store_incoming *p, enum db_status st)
{
    struct send *s = p->ctx;
    s->result = (struct send_result){.verdict = p->verdict,
                                     .to = p->to,
                                     .turned = p->from,
                                     .ws_sessions = p->ws_sessions,
                                     .push_sessions = p->push_sessions};
    send_stored(s, st);
}

static void incoming_store(struct send *s)
{
    struct store_incoming *p = &s->item.incoming;
    list_init(&p->item.link);
    p->in = s->in.copies[0];
    p->source = s->source;
    p->done = incoming_stored;
    p->ctx = s;
    store_apply_incoming(s->f->store, p);
}

static void incoming_answer(const struct send *s, enum dm_state state, struct json_out *o)
{
    (void)state;
    json_out_string(o, "messageKey", s->key[0]);
}

void frontd_receive_incoming_message(struct rpc_call *call)
{
    static const struct send_kind kind = {.n = 1,
                                          .fields = {"incomingBlobB64"},
                                          .check = check_incoming,
                                          .store = incoming_store,
                                          .answer = incoming_answer};
    send_start(call, &kind);
}
