/*
 * Events as texts (docs/protocol.md, "Events"). Pure.
 */
#include "frontd/pump_internal.h"

#include "rpc/envelope.h"
#include "util/base64.h"
#include "util/decimal.h"

/* Keys, names and numbers of a payload, more or less. */
enum { PAYLOAD_BYTES = 512 };

static void put_event_id(struct json_out *o, int64_t epoch, int64_t pts)
{
    char id[2 * DECIMAL_MAX + 2];
    size_t n = decimal_write(id, epoch);
    id[n++] = '-';
    n += decimal_write(id + n, pts);
    id[n] = '\0';
    json_out_string(o, "eventId", id);
}

static void put_message(struct json_out *o, int64_t epoch, const struct store_event *e)
{
    put_event_id(o, epoch, e->pts);
    json_out_int(o, "pts", e->pts);
    json_out_string(o, "messageKey", e->message_key);
    json_out_string(o, "baseKey", e->base_key);
    json_out_string(o, "fromLogin", e->from);
    json_out_string(o, "toLogin", e->to);
    json_out_int(o, "messageType", e->type);
    json_out_int(o, "timeMs", e->time_ms);
    json_out_int(o, "revisionTimeMs", e->revision_time_ms);
    json_out_int(o, "reencryptedAtMs", e->reencrypted_at_ms);
    if (e->delivery_state)
        json_out_string(o, "deliveryState", e->delivery_state);
    json_out_base64(o, "blobB64", e->blob, e->blob_len);
}

static void put_state(struct json_out *o, const struct store_event *e)
{
    json_out_string(o, "baseKey", e->base_key);
    json_out_string(o, "outgoingKey", e->message_key);
    if (e->delivery_state)
        json_out_string(o, "deliveryState", e->delivery_state);
    json_out_int(o, "pts", e->pts);
}

static void put_gone(struct json_out *o, const struct store_event *e)
{
    json_out_int(o, "pts", e->pts);
    json_out_string(o, "messageKey", e->message_key);
    json_out_bool(o, "deleted", true);
}

char *pump_event_text(int64_t epoch, const struct store_event *e, size_t *len)
{
    struct json_out o;
    bool is_state = e->kind == STORE_EVENT_STATE;
    rpc_event_begin(&o, is_state ? "DmDeliveryStateChanged" : "IncomingDirectMessage",
                    PAYLOAD_BYTES + base64_encoded_len(e->blob_len));
    if (is_state)
        put_state(&o, e);
    else if (e->gone)
        put_gone(&o, e);
    else
        put_message(&o, epoch, e);
    return json_out_end(&o, len);
}
