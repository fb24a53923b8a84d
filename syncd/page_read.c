/*
 * The items of a page as they came: Base64, containers, what kind each is, and whether it is the
 * owner's at all. See page.h.
 *
 * Raises: none; what is wrong is noted in the item.
 */
#include "syncd/page.h"

#include <string.h>

#include "util/base64.h"
#include "util/mem.h"

static bool read_blob(struct page_item *it, const json_t *text)
{
    struct store_copy *c = &it->copy[it->n];
    size_t len = json_string_length(text);
    if (!json_is_string(text) || len > base64_encoded_len(DM_CONTAINER_MAX))
        return false;
    uint8_t *bytes = it->blob[it->n] = xmalloc(base64_decoded_max(len));
    it->n++;
    c->blob = bytes;
    if (!base64_decode(json_string_value(text), len, bytes, &c->blob_len)) {
        it->reason = "BAD_BASE64";
        return true;
    }
    enum dm_error e = dm_parse(bytes, c->blob_len, &c->c);
    if (e != DM_OK)
        it->reason = dm_error_name(e);
    return true;
}

static bool is_incoming(enum dm_type type)
{
    return type == DM_TEXT_IN || type == DM_RECEIPT_IN;
}

/* Which kind of item these containers are; NULL, or why they are none of this owner. */
static const char *judge_kind(struct page_item *it, const char *owner)
{
    const struct dm_container *a = &it->copy[0].c, *b = &it->copy[it->n - 1].c;
    bool from = strcmp(b->from, owner) == 0, to = strcmp(b->to, owner) == 0;
    char base[2][DM_BASE_KEY_MAX];
    dm_base_key(a, base[0]);
    dm_base_key(b, base[1]);
    it->kind = PAGE_PAIR;
    if (it->n == 2)
        return is_incoming(a->type) && (int)b->type == (int)a->type + 1 && from &&
                       strcmp(base[0], base[1]) == 0
                   ? NULL
                   : "PAIR_MISMATCH";
    if (b->type == DM_TEXT_OUT || b->type == DM_RECEIPT_OUT)
        return from ? NULL : "NOT_THE_OWNERS";
    it->kind = is_incoming(b->type) ? PAGE_INCOMING : PAGE_TOMBSTONE;
    if (it->kind == PAGE_INCOMING)
        return to ? NULL : "NOT_THE_OWNERS";
    return from || (to && (b->type == DM_DELETE_BOTH || b->type == DM_CLEAR_BOTH))
               ? NULL
               : "NOT_THE_OWNERS";
}

/* Where a pair comes without its incoming copy: what the store wants in its place. */
static void fill_missing(struct page_item *it)
{
    it->copy[1] = it->copy[0];
    it->blob[1] = it->blob[0];
    it->blob[0] = NULL;
    it->copy[0].blob = NULL;
    it->copy[0].blob_len = 0;
    it->copy[0].c.type = it->copy[1].c.type == DM_TEXT_OUT ? DM_TEXT_IN : DM_RECEIPT_IN;
    it->n = 2;
}

bool page_read_item(struct page *p, struct page_item *it, const json_t *json)
{
    const json_t *blobs = json_object_get(json, "blobsB64"), *text;
    size_t i, n = json_array_size(blobs);
    it->page = p;
    it->sync_id = json_string_value(json_object_get(json, "syncId"));
    if (!it->sync_id || n < 1 || n > 2)
        return false;
    json_array_foreach(blobs, i, text) {
        if (!read_blob(it, text))
            return false;
    }
    if (!it->reason)
        it->reason = judge_kind(it, p->t->id.owner);
    if (!it->reason && it->kind == PAGE_PAIR && it->n == 1)
        fill_missing(it);
    return true;
}
