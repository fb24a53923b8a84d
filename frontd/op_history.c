/*
 * What is read back: GetDirectMessages, GetDmDeliveryStatus. Raises: environment (answered).
 */
#include <stdlib.h>
#include <string.h>

#include "frontd/frontd.h"
#include "frontd/item.h"
#include "frontd/ops.h"
#include "frontd/session.h"
#include "rpc/fields.h"
#include "store/delivery.h"
#include "store/messages.h"
#include "util/mem.h"

/* --- GetDirectMessages --- */

static void on_history(void *ctx, enum db_status st, const struct store_history_item *rows,
                       size_t n, bool has_more)
{
    struct rpc_call *call = ctx;
    if (st != DB_OK) {
        frontd_fail_db(call, st);
        return;
    }
    json_t *items = json_array();
    for (size_t i = 0; i < n; i++)
        (void)json_array_append_new(items, item_json(&rows[i]));
    const struct store_history_item *last = n > 0 ? &rows[n - 1] : NULL;
    rpc_reply(call, json_pack("{s:o, s:b, s:o, s:s?}", "items", items, "hasMore", (int)has_more,
                              "nextBeforeTimeMs", item_number_or_null(last ? last->time_ms : -1),
                              "nextBeforeMessageKey", last ? last->message_key : NULL));
}

void frontd_get_direct_messages(struct rpc_call *call)
{
    struct frontd *f = frontd_of(call);
    struct rpc_fields fields = rpc_fields_of(rpc_payload(call));
    const char *with, *before_key = "";
    int64_t limit = ITEM_PAGE_DEFAULT, before = -1;
    if (!rpc_str(&fields, "withLogin", DM_LOGIN_MAX, &with) ||
        !rpc_int_opt(&fields, "limit", 1, ITEM_PAGE_MAX, &limit) ||
        !rpc_int_opt(&fields, "beforeTimeMs", 0, DM_INT_MAX, &before) ||
        !rpc_str_opt(&fields, "beforeMessageKey", DM_MESSAGE_KEY_MAX - 1, &before_key)) {
        rpc_fail(call, RPC_BAD_FIELDS, fields.problem);
        return;
    }
    if (!dm_login_valid(with)) {
        rpc_fail(call, RPC_BAD_FIELDS, "withLogin is not a login");
        return;
    }
    if (before < 0 && before_key[0] != '\0') {
        rpc_fail(call, RPC_BAD_FIELDS, "beforeMessageKey goes with beforeTimeMs");
        return;
    }
    int64_t blob_bytes = item_page_room(f, 0, &limit);
    struct store_history_query q = {.owner = session_login(session_of(call)),
                                    .with = with,
                                    .limit = (unsigned)limit,
                                    .before_time_ms = before,
                                    .before_key = before_key,
                                    .max_blob_bytes = blob_bytes};
    store_history(f->store, &q, on_history, call);
}

/* --- GetDmDeliveryStatus --- */

static void reply_status(struct rpc_call *call, const struct store_delivery_status *row)
{
    const char *key = json_string_value(json_object_get(rpc_payload(call), "messageKey"));
    json_t *o = json_pack("{s:s, s:b, s:b}", "messageKey", key, "known", row && row->known,
                          "delivered", row && row->known && row->delivered);
    shine_assert(o);
    if (row && row->known) {
        (void)json_object_set_new(o, "revisionTimeMs", json_integer(row->revision_time_ms));
        (void)json_object_set_new(o, "reencryptedAtMs", json_integer(row->reencrypted_at_ms));
    }
    rpc_reply(call, o);
}

static void on_status(void *ctx, enum db_status st, const struct store_delivery_status *row)
{
    struct rpc_call *call = ctx;
    if (st != DB_OK)
        frontd_fail_db(call, st);
    else
        reply_status(call, row);
}

void frontd_get_dm_delivery_status(struct rpc_call *call)
{
    struct rpc_fields fields = rpc_fields_of(rpc_payload(call));
    const char *text = "";
    if (!rpc_str_opt(&fields, "messageKey", 255, &text)) {
        rpc_fail(call, RPC_BAD_FIELDS, fields.problem);
        return;
    }
    if (text[0] == '\0') {
        rpc_fail(call, RPC_EMPTY_MESSAGE_KEY, "messageKey is missing or empty");
        return;
    }
    struct dm_key key;
    if (dm_key_parse(text, &key))
        store_delivery_status(frontd_of(call)->store, &key, on_status, call);
    else
        reply_status(call, NULL); /* no row can have such a key */
}
