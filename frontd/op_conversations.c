/*
 * ListConversations. Raises: environment (answered).
 */
#include "frontd/frontd.h"
#include "frontd/item.h"
#include "frontd/ops.h"
#include "frontd/session.h"
#include "rpc/fields.h"
#include "store/conversations.h"
#include "util/mem.h"

/* What a conversation takes beside its last message. */
#define CONVERSATION_OVERHEAD 320

static json_t *conversation_json(const struct store_conversation *c)
{
    json_t *o =
        json_pack("{s:s, s:s?, s:I, s:I, s:o}", "withLogin", c->with, "lastMessageKey",
                  c->last.message_key, "lastTimeMs", (json_int_t)c->last_time_ms, "unreadCount",
                  (json_int_t)c->unread, "lastReadAtMs", item_number_or_null(c->last_read_at_ms));
    shine_assert(o);
    if (c->last.message_key)
        (void)json_object_set_new(o, "lastMessage", item_json(&c->last));
    return o;
}

static void on_conversations(void *ctx, enum db_status st, const struct store_conversation *rows,
                             size_t n, bool has_more)
{
    struct rpc_call *call = ctx;
    if (st != DB_OK) {
        frontd_fail_db(call, st);
        return;
    }
    json_t *items = json_array();
    for (size_t i = 0; i < n; i++)
        (void)json_array_append_new(items, conversation_json(&rows[i]));
    rpc_reply(call, json_pack("{s:o, s:b}", "items", items, "hasMore", (int)has_more));
}

void frontd_list_conversations(struct rpc_call *call)
{
    struct frontd *f = frontd_of(call);
    struct rpc_fields fields = rpc_fields_of(rpc_payload(call));
    const char *before_with = "";
    int64_t limit = ITEM_PAGE_DEFAULT, before = -1;
    if (!rpc_int_opt(&fields, "limit", 1, ITEM_PAGE_MAX, &limit) ||
        !rpc_int_opt(&fields, "beforeTimeMs", 0, DM_INT_MAX, &before) ||
        !rpc_str_opt(&fields, "beforeLogin", DM_LOGIN_MAX, &before_with)) {
        rpc_fail(call, RPC_BAD_FIELDS, fields.problem);
        return;
    }
    if (before_with[0] != '\0' && !dm_login_valid(before_with)) {
        rpc_fail(call, RPC_BAD_FIELDS, "beforeLogin is not a login");
        return;
    }
    if (before < 0 && before_with[0] != '\0') {
        rpc_fail(call, RPC_BAD_FIELDS, "beforeLogin goes with beforeTimeMs");
        return;
    }
    int64_t blob_bytes = item_page_room(f, CONVERSATION_OVERHEAD, &limit);
    struct store_conversations_query q = {.owner = session_login(session_of(call)),
                                          .limit = (unsigned)limit,
                                          .before_time_ms = before,
                                          .before_with = before_with,
                                          .max_blob_bytes = blob_bytes};
    store_list_conversations(f->store, &q, on_conversations, call);
}
