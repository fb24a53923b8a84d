/*
 * DeleteMessage and DeleteConversation: what op_send.c needs to know of tombstones.
 *
 * Raises: environment (all of it goes to the caller as an answer).
 */
#include "frontd/frontd.h"
#include "frontd/op_send.h"
#include "frontd/ops.h"

static enum rpc_error check_type(const struct intake *in, enum dm_type both, enum dm_type own,
                                 const char *refusal, const char **message)
{
    enum dm_type type = in->copies[0].c.type;
    if (type == both || type == own)
        return RPC_OK;
    *message = refusal;
    return RPC_BAD_MESSAGE_TYPE;
}

static enum rpc_error check_delete(struct intake *in, const char **message)
{
    return check_type(in, DM_DELETE_BOTH, DM_DELETE_OWN,
                      "only types 5 and 6 are taken by this operation", message);
}

static enum rpc_error check_clear(struct intake *in, const char **message)
{
    return check_type(in, DM_CLEAR_BOTH, DM_CLEAR_OWN,
                      "only types 7 and 8 are taken by this operation", message);
}

static void tombstone_stored(struct store_tombstone *t, enum db_status st)
{
    struct send *s = t->ctx;
    s->result = (struct send_result){.verdict = t->verdict,
                                     .state = t->state,
                                     .from = t->from,
                                     .to = t->to,
                                     .ws_sessions = t->ws_sessions,
                                     .push_sessions = t->push_sessions,
                                     .attempt = t->attempt,
                                     .row_version = t->row_version,
                                     .lease_ms = t->lease_ms,
                                     .n_routes = t->n_routes,
                                     .routes = t->routes};
    send_stored(s, st);
}

static void tombstone_store(struct send *s)
{
    struct store_tombstone *t = &s->item.tombstone;
    list_init(&t->item.link);
    t->copy = s->in.copies[0];
    t->from_server = s->in.from_server;
    t->source = s->source;
    t->max_future_ms = s->f->max_future_ms;
    t->session_id = s->session_id;
    t->done = tombstone_stored;
    t->ctx = s;
    store_apply_tombstone(s->f->store, t);
}

static void tombstone_answer(const struct send *s, enum dm_state state, struct json_out *o)
{
    json_out_string(o, "outgoingKey", s->key[0]);
    send_answer_state(s, state, o);
}

void frontd_delete_message(struct rpc_call *call)
{
    static const struct send_kind kind = {.n = 1,
                                          .fields = {"blobB64"},
                                          .check = check_delete,
                                          .store = tombstone_store,
                                          .answer = tombstone_answer};
    send_start(call, &kind);
}

void frontd_delete_conversation(struct rpc_call *call)
{
    static const struct send_kind kind = {.n = 1,
                                          .fields = {"blobB64"},
                                          .check = check_clear,
                                          .store = tombstone_store,
                                          .answer = tombstone_answer};
    send_start(call, &kind);
}
