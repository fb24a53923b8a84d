/*
 * What the second server of an owner asks: DmSyncBatch, UserSettingsSyncBatch, and the delivery
 * status of many messages at once.
 *
 * A page may fill a whole frame of 4 MiB: it is written from the database's result into the text
 * that is sent, with nothing between. Several at once are several times as much, so their number is
 * bounded for the process.
 *
 * Raises: environment (answered).
 */
#include "frontd/frontd.h"
#include "frontd/ops.h"
#include "frontd/session.h"
#include "rpc/fields.h"
#include "store/sync.h"
#include "util/base64.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

enum {
    ACKS_MAX = 1000, /* twice a page: a puller may have kept those of the page before */
    STATUSES_MAX = 500,
    PAGES_MAX = 8, /* under way in one process */
    BUSY_RETRY_MS = 500,
    FRAME_MAX = 4 * 1024 * 1024,
    PAGE_OVERHEAD = 1024, /* what an answer and each of its items take beside blobs and values */
    ITEM_OVERHEAD = 448,
};

/* One request for a page, from the fields to the answer. Texts are borrowed from the payload. */
struct pull {
    struct frontd *f;
    struct rpc_call *call;
    struct session *session;
    struct store_pull ask;
    const char **acks;
};

static void pull_free(struct pull *p)
{
    p->f->sync_pages--;
    session_release(p->session, FRAME_MAX);
    free((void *)p->acks);
    free(p);
}

static bool read_acks(struct rpc_fields *fields, const json_t *payload, struct pull *p)
{
    const json_t *list = json_object_get(payload, "ackSyncIds"), *id;
    size_t i;
    if (!list || json_is_null(list))
        return true;
    if (!rpc_array(fields, "ackSyncIds", ACKS_MAX, &list))
        return false;
    p->acks = xcalloc(json_array_size(list) + 1, sizeof *p->acks);
    json_array_foreach(list, i, id) {
        const char *s = json_string_value(id);
        if (!s)
            return false;
        if (strlen(s) <= STORE_SYNC_ID_MAX) /* a longer one names nothing */
            p->acks[p->ask.n_acks++] = s;
    }
    p->ask.acks = p->acks;
    return true;
}

/* Who it is can be said as soon as the partner servers are known; until then a moment is asked for.
 */
static bool caller_may_be_judged(struct rpc_call *call)
{
    if (partners_loaded(frontd_of(call)->partners))
        return true;
    rpc_fail_retry(call, RPC_DB_UNAVAILABLE, "the partner servers are not known yet",
                   BUSY_RETRY_MS);
    return false;
}

/* The request as far as the two operations are alike; NULL if the call was answered. */
static struct pull *pull_new(struct rpc_call *call, const char *after_key, size_t key_max)
{
    struct frontd *f = frontd_of(call);
    struct rpc_fields fields = rpc_fields_of(rpc_payload(call));
    struct store_pull ask = {.owner = "", .after_key = ""};
    int64_t limit = STORE_SYNC_LIMIT_MAX;
    const char *source = "";
    ask.max_bytes = STORE_SYNC_BYTES_MAX;
    if (!frontd_configured(call))
        return NULL;
    if (!rpc_str_opt(&fields, "ownerLogin", 255, &ask.owner) ||
        !rpc_int_opt(&fields, "afterStoredAtMs", 0, DM_INT_MAX, &ask.after_stored_ms) ||
        !rpc_str_opt(&fields, after_key, key_max, &ask.after_key) ||
        !rpc_int_opt(&fields, "limit", 1, DM_INT_MAX, &limit) ||
        !rpc_int_opt(&fields, "maxBytes", 1, DM_INT_MAX, &ask.max_bytes) ||
        !rpc_str_opt(&fields, "sourceServerLogin", SHINE_SERVER_LOGIN_MAX, &source)) {
        rpc_fail(call, RPC_BAD_FIELDS, fields.problem);
        return NULL;
    }
    if (ask.owner[0] == '\0') {
        rpc_fail(call, RPC_EMPTY_OWNER_LOGIN, "ownerLogin is missing or empty");
        return NULL;
    }
    if (!caller_may_be_judged(call))
        return NULL;
    if (f->sync_pages >= PAGES_MAX || !session_reserve(session_of(call), FRAME_MAX)) {
        rpc_fail_retry(call, RPC_OVERLOADED, "too many pages are under way", BUSY_RETRY_MS);
        return NULL;
    }
    struct pull *p = xnew(struct pull);
    f->sync_pages++;
    p->f = f;
    p->call = call;
    p->session = session_of(call);
    p->ask = ask;
    p->ask.limit = limit < STORE_SYNC_LIMIT_MAX ? (unsigned)limit : STORE_SYNC_LIMIT_MAX;
    if (ask.max_bytes > STORE_SYNC_BYTES_MAX)
        p->ask.max_bytes = STORE_SYNC_BYTES_MAX;
    p->ask.caller = frontd_source_of(call, source);
    /* Who says a name that is not believed is not taken for somebody without a name. */
    p->ask.trust_anonymous = !session_peer(session_of(call)) &&
                             config_enum(f->config, "server.auth") != PEER_TRUST_PROOF;
    if (read_acks(&fields, rpc_payload(call), p))
        return p;
    pull_free(p);
    rpc_fail(call, RPC_BAD_FIELDS,
             fields.problem[0] ? fields.problem : "ackSyncIds must be an array of strings");
    return NULL;
}

/* True if there is a page to answer with; otherwise the call was answered, and `p` is gone. */
static bool pull_granted(struct pull *p, enum db_status st, enum store_pull_verdict v)
{
    struct rpc_call *call = p->call;
    if (st == DB_OK && v == STORE_PULL_OK)
        return true;
    pull_free(p);
    if (st != DB_OK)
        frontd_fail_db(call, st);
    else if (v == STORE_PULL_NOT_SERVED)
        rpc_fail(call, RPC_LOCAL_SERVER_NOT_ACCESS_SERVER,
                 "this server is not an access server of that user");
    else
        rpc_fail(call, RPC_PEER_NOT_ACCESS_SERVER,
                 "the caller is not known to be an access server of that user");
    return false;
}

/* The end of an answer, and of `p`. */
static void reply_page(struct pull *p, struct json_out *o, int64_t next_ms, const char *key_name,
                       const char *next_key, bool more)
{
    struct rpc_call *call = p->call;
    json_out_close(o);
    json_out_int(o, "nextStoredAtMs", next_ms);
    json_out_string(o, key_name, next_key);
    json_out_bool(o, "hasMore", more);
    pull_free(p);
    rpc_reply_end(call, o);
}

/* --- DmSyncBatch --- */

static void on_dm_page(void *ctx, enum db_status st, enum store_pull_verdict verdict,
                       const struct store_sync_item *rows, size_t n, bool more)
{
    struct pull *p = ctx;
    struct rpc_call *call = p->call;
    int64_t next_ms = p->ask.after_stored_ms;
    const char *next_key = p->ask.after_key;
    if (!pull_granted(p, st, verdict))
        return;
    size_t bytes = PAGE_OVERHEAD;
    for (size_t i = 0; i < n; i++)
        bytes += ITEM_OVERHEAD + base64_encoded_len(rows[i].blob_len[0]) +
                 base64_encoded_len(rows[i].blob_len[1]);
    struct json_out o;
    rpc_reply_begin(call, &o, bytes);
    json_out_list(&o, "items");
    for (size_t i = 0; i < n; i++) {
        json_out_item(&o);
        json_out_string(&o, "syncId", rows[i].sync_id);
        json_out_string(&o, "primaryMessageKey", rows[i].primary_key);
        json_out_int(&o, "storedAtMs", rows[i].stored_at_ms);
        json_out_list(&o, "blobsB64");
        for (unsigned b = 0; b < rows[i].n_blobs; b++)
            json_out_item_base64(&o, rows[i].blob[b], rows[i].blob_len[b]);
        json_out_close(&o);
        json_out_close(&o);
        next_ms = rows[i].stored_at_ms;
        next_key = rows[i].primary_key;
    }
    reply_page(p, &o, next_ms, "nextMessageKey", next_key, more);
}

void frontd_dm_sync_batch(struct rpc_call *call)
{
    struct pull *p = pull_new(call, "afterMessageKey", DM_MESSAGE_KEY_MAX - 1);
    if (p)
        store_sync_page(frontd_of(call)->store, &p->ask, on_dm_page, p);
}

/* --- UserSettingsSyncBatch --- */

static void on_settings_page(void *ctx, enum db_status st, enum store_pull_verdict verdict,
                             const struct store_sync_setting *rows, size_t n, bool more)
{
    struct pull *p = ctx;
    struct rpc_call *call = p->call;
    int64_t next_ms = p->ask.after_stored_ms;
    const char *next_key = p->ask.after_key;
    if (!pull_granted(p, st, verdict))
        return;
    struct json_out o;
    rpc_reply_begin(call, &o, PAGE_OVERHEAD);
    json_out_list(&o, "items");
    for (size_t i = 0; i < n; i++) {
        const struct store_setting *s = &rows[i].setting;
        /* The store counted bytes of values; escapes may take six times as many. */
        size_t bytes = json_out_string_len(s->value) + ITEM_OVERHEAD + 2 * DM_SETTING_NAME_MAX;
        if (i > 0 && json_out_len(&o) + bytes + PAGE_OVERHEAD > FRAME_MAX) {
            more = true;
            break;
        }
        json_out_item(&o);
        json_out_string(&o, "syncId", rows[i].sync_id);
        json_out_string(&o, "name", s->name);
        json_out_string(&o, "value", s->value);
        json_out_int(&o, "timeMs", s->time_ms);
        json_out_int(&o, "storedAtMs", rows[i].stored_at_ms);
        json_out_base64(&o, "signatureB64", s->sig, sizeof s->sig);
        json_out_close(&o);
        next_ms = rows[i].stored_at_ms;
        next_key = s->name;
    }
    reply_page(p, &o, next_ms, "nextName", next_key, more);
}

void frontd_user_settings_sync_batch(struct rpc_call *call)
{
    struct pull *p = pull_new(call, "afterName", DM_SETTING_NAME_MAX);
    if (p)
        store_sync_settings_page(frontd_of(call)->store, &p->ask, on_settings_page, p);
}

/* --- GetDmDeliveryStatuses --- */

/* Keys as asked, and what is known of those that can name a row. */
struct statuses {
    struct rpc_call *call;
    const json_t *asked; /* borrowed from the payload */
    size_t n;
    struct dm_key keys[];
};

static void put_status(struct json_out *o, const char *key, const struct store_delivery_status *row)
{
    json_out_item(o);
    json_out_string(o, "messageKey", key);
    json_out_bool(o, "known", row && row->known);
    json_out_bool(o, "delivered", row && row->delivered);
    if (row && row->known) {
        json_out_int(o, "revisionTimeMs", row->revision_time_ms);
        json_out_int(o, "reencryptedAtMs", row->reencrypted_at_ms);
    }
    json_out_close(o);
}

static void on_statuses(void *ctx, enum db_status st, const struct store_delivery_status *rows,
                        size_t n)
{
    struct statuses *s = ctx;
    struct json_out o;
    struct dm_key key;
    size_t i, used = 0;
    const json_t *v;
    if (st != DB_OK) {
        frontd_fail_db(s->call, st);
        free(s);
        return;
    }
    rpc_reply_begin(s->call, &o, PAGE_OVERHEAD + 256 * json_array_size(s->asked));
    json_out_list(&o, "items");
    json_array_foreach(s->asked, i, v) {
        const char *text = json_string_value(v);
        bool is_key = dm_key_parse(text, &key);
        put_status(&o, text, is_key && used < n ? &rows[used] : NULL);
        used += is_key;
    }
    json_out_close(&o);
    rpc_reply_end(s->call, &o);
    free(s);
}

void frontd_get_dm_delivery_statuses(struct rpc_call *call)
{
    struct rpc_fields fields = rpc_fields_of(rpc_payload(call));
    const json_t *list, *v;
    size_t i;
    if (!rpc_array(&fields, "messageKeys", STATUSES_MAX, &list)) {
        rpc_fail(call, RPC_BAD_FIELDS, fields.problem);
        return;
    }
    struct statuses *s = xcalloc(1, sizeof *s + json_array_size(list) * sizeof s->keys[0]);
    s->call = call;
    s->asked = list;
    json_array_foreach(list, i, v) {
        const char *text = json_string_value(v);
        if (!text || text[0] == '\0' || strlen(text) > 255) {
            free(s);
            rpc_fail(call, text && text[0] == '\0' ? RPC_EMPTY_MESSAGE_KEY : RPC_BAD_FIELDS,
                     "messageKeys must be an array of message keys");
            return;
        }
        if (dm_key_parse(text, &s->keys[s->n]))
            s->n++;
    }
    store_delivery_statuses(frontd_of(call)->store, s->keys, s->n, on_statuses, s);
}
