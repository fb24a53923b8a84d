/*
 * Events as texts (docs/protocol.md, "Events"). Pure.
 */
#include "frontd/pump_internal.h"

#include "rpc/envelope.h"
#include "util/base64.h"
#include "util/decimal.h"

#include <string.h>

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

static void put_setting(struct json_out *o, const struct store_event *e)
{
    json_out_string(o, "name", e->message_key);
    json_out_string(o, "value", e->value ? e->value : "");
    json_out_int(o, "timeMs", e->time_ms);
    json_out_base64(o, "signatureB64", e->blob, e->blob_len);
    json_out_int(o, "pts", e->pts);
}

static void put_history(struct json_out *o, const struct store_event *e)
{
    json_t *logins = json_array();
    for (const char *s = e->message_key; *s;) {
        size_t n = strcspn(s, ",");
        (void)json_array_append_new(logins, json_stringn(s, n));
        s += n + (s[n] == ',');
    }
    json_out_tree(o, "withLogins", logins);
    json_decref(logins);
    json_out_int(o, "pts", e->pts);
}

char *pump_event_text(int64_t epoch, const struct store_event *e, size_t *len)
{
    static const char *const ops[] = {[STORE_EVENT_MESSAGE] = "IncomingDirectMessage",
                                      [STORE_EVENT_STATE] = "DmDeliveryStateChanged",
                                      [STORE_EVENT_SETTING] = "UserSettingChanged",
                                      [STORE_EVENT_HISTORY] = "HistoryChanged"};
    struct json_out o;
    size_t bytes = PAYLOAD_BYTES + base64_encoded_len(e->blob_len);
    rpc_event_begin(&o, ops[e->kind], bytes + (e->value ? strlen(e->value) : 0));
    if (e->kind == STORE_EVENT_STATE)
        put_state(&o, e);
    else if (e->kind == STORE_EVENT_SETTING)
        put_setting(&o, e);
    else if (e->kind == STORE_EVENT_HISTORY)
        put_history(&o, e);
    else if (e->gone)
        put_gone(&o, e);
    else
        put_message(&o, epoch, e);
    return json_out_end(&o, len);
}
