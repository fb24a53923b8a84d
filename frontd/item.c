/*
 * Messages as items of an answer. Raises: a value that cannot be sent is our bug.
 */
#include "frontd/item.h"

#include <stdlib.h>

#include "util/base64.h"
#include "util/mem.h"

/* What a page and each message in it take beside the blobs: names, keys, numbers, padding. */
#define PAGE_OVERHEAD 1024
#define ITEM_OVERHEAD 640

json_t *item_number_or_null(int64_t n)
{
    return n < 0 ? json_null() : json_integer(n);
}

json_t *item_json(const struct store_history_item *it)
{
    char *b64 = base64_encode_new(it->blob, it->blob_len);
    json_t *o = json_pack(
        "{s:s, s:s, s:s, s:s, s:i, s:I, s:I, s:I, s:I, s:I, s:o, s:s?, s:o}", "messageKey",
        it->message_key, "baseKey", it->base_key, "fromLogin", it->from, "toLogin", it->to,
        "messageType", it->type, "timeMs", (json_int_t)it->time_ms, "nonce", (json_int_t)it->nonce,
        "revisionTimeMs", (json_int_t)it->revision_time_ms, "reencryptedAtMs",
        (json_int_t)it->reencrypted_at_ms, "createdAtMs", (json_int_t)it->created_at_ms, "readAtMs",
        item_number_or_null(it->read_at_ms), "deliveryState", it->delivery_state, "blobB64",
        json_string_nocheck(b64));
    shine_assert(o);
    free(b64);
    return o;
}

int64_t item_page_room(const struct frontd *f, int64_t extra, int64_t *limit)
{
    /* The store counts blob bytes alone, so what else an answer holds is set aside first. Where the
     * bound is so small that it would leave nothing, fewer items are asked for. */
    int64_t room = (int64_t)f->max_answer_bytes - PAGE_OVERHEAD;
    int64_t item = ITEM_OVERHEAD + extra;
    if (*limit * item > room / 2)
        *limit = room / 2 / item > 1 ? room / 2 / item : 1;
    int64_t blobs = (room - *limit * item) / 4 * 3;
    return blobs > 1 ? blobs : 1;
}
