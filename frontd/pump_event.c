/*
 * Events as texts (docs/protocol.md, "Events"). Pure; a payload that cannot be built is our bug.
 */
#include "frontd/pump_internal.h"

#include "rpc/envelope.h"
#include "util/base64.h"
#include "util/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static json_t *message_payload(int64_t epoch, const struct store_event *e)
{
    char event_id[48];
    (void)snprintf(event_id, sizeof event_id, "%" PRId64 "-%" PRId64, epoch, e->pts);
    char *blob = base64_encode_new(e->blob, e->blob_len);
    /* "s*" leaves out a NULL: deliveryState is absent where there is none. */
    json_t *payload = json_pack(
        "{s:s, s:I, s:s, s:s, s:s, s:s, s:i, s:I, s:I, s:I, s:s*, s:s}", "eventId", event_id, "pts",
        (json_int_t)e->pts, "messageKey", e->message_key, "baseKey", e->base_key, "fromLogin",
        e->from, "toLogin", e->to, "messageType", e->type, "timeMs", (json_int_t)e->time_ms,
        "revisionTimeMs", (json_int_t)e->revision_time_ms, "reencryptedAtMs",
        (json_int_t)e->reencrypted_at_ms, "deliveryState", e->delivery_state, "blobB64", blob);
    free(blob);
    return payload;
}

static json_t *payload_of(int64_t epoch, const struct store_event *e)
{
    if (e->kind == STORE_EVENT_STATE)
        return json_pack("{s:s, s:s, s:s*, s:I}", "baseKey", e->base_key, "outgoingKey",
                         e->message_key, "deliveryState", e->delivery_state, "pts",
                         (json_int_t)e->pts);
    if (e->gone)
        return json_pack("{s:I, s:s, s:b}", "pts", (json_int_t)e->pts, "messageKey", e->message_key,
                         "deleted", 1);
    return message_payload(epoch, e);
}

char *pump_event_text(int64_t epoch, const struct store_event *e, size_t *len)
{
    json_t *payload = payload_of(epoch, e);
    shine_assert(payload);
    char *text =
        rpc_event(e->kind == STORE_EVENT_STATE ? "DmDeliveryStateChanged" : "IncomingDirectMessage",
                  payload, len);
    json_decref(payload);
    return text;
}
