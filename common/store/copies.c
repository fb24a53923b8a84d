/*
 * What the calls that store containers share: how they become parameters, and how verdicts, events
 * and routes come back. See internal.h.
 *
 * Raises: a verdict that this program does not know is our own bug.
 */
#include "store/internal.h"
#include "util/mem.h"

#include <string.h>

const char *dm_state_name(enum dm_state s)
{
    static const char *const names[] = {NULL, "accepted", "delivered", "failed"};
    return names[s];
}

enum dm_state store_state_of(const struct db_result *res, int row, int col)
{
    const char *name = db_text(res, row, col);
    for (enum dm_state s = DM_STATE_ACCEPTED; s <= DM_STATE_FAILED; s++)
        if (strcmp(name, dm_state_name(s)) == 0)
            return s;
    return DM_STATE_NONE;
}

enum store_verdict store_verdict_of(const struct db_result *res, int row)
{
    int64_t v = db_int8(res, row, db_col(res, "verdict"));
    shine_assert(v >= STORE_OK && v <= STORE_DELETED);
    return (enum store_verdict)v;
}

struct store_told store_told_of(const struct db_result *res, int row, const char *pts,
                                const char *elsewhere)
{
    return (struct store_told){.pts = db_int8(res, row, db_col(res, pts)),
                               .elsewhere = db_bool(res, row, db_col(res, elsewhere))};
}

unsigned store_routes_of(const struct db_result *res, int row, struct store_route out[2])
{
    static const char *const names[2][2] = {{"route1", "url1"}, {"route2", "url2"}};
    unsigned n = 0;
    for (size_t i = 0; i < 2; i++) {
        int col = db_col(res, names[i][0]);
        if (db_is_null(res, row, col))
            continue;
        store_copy_text(out[n].login, sizeof out[n].login, res, row, col);
        store_copy_text(out[n].url, sizeof out[n].url, res, row, db_col(res, names[i][1]));
        n++;
    }
    return n;
}

/* --- parameters: parallel arrays, one element per message, then one per copy --- */

void store_add_messages(struct db_params *p, struct db_batch_item *const *items, size_t n,
                        store_copy_of copy)
{
    db_array_begin(p, DB_TEXT_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_text(p, copy(items[i], 0)->c.from);
    db_array_begin(p, DB_TEXT_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_text(p, copy(items[i], 0)->c.to);
    db_array_begin(p, DB_TEXT_ARRAY, n);
    for (size_t i = 0; i < n; i++) {
        char base[DM_BASE_KEY_MAX];
        dm_base_key(&copy(items[i], 0)->c, base);
        db_item_text(p, base);
    }
    db_array_begin(p, DB_INT4_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_int4(p, (int32_t)copy(items[i], 0)->c.type);
    db_array_begin(p, DB_INT8_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_int8(p, copy(items[i], 0)->c.time_ms);
    db_array_begin(p, DB_INT8_ARRAY, n);
    for (size_t i = 0; i < n; i++)
        db_item_int8(p, copy(items[i], 0)->c.nonce);
}

void store_add_copies(struct db_params *p, struct db_batch_item *const *items, size_t n, size_t per,
                      store_copy_of copy)
{
    db_array_begin(p, DB_INT8_ARRAY, n * per);
    for (size_t i = 0; i < n * per; i++)
        db_item_int8(p, copy(items[i / per], i % per)->c.revision_time_ms);
    db_array_begin(p, DB_INT8_ARRAY, n * per);
    for (size_t i = 0; i < n * per; i++)
        db_item_int8(p, copy(items[i / per], i % per)->c.reencrypted_at_ms);
    store_add_bytes(p, items, n, per, copy);
}

void store_add_bytes(struct db_params *p, struct db_batch_item *const *items, size_t n, size_t per,
                     store_copy_of copy)
{
    db_array_begin(p, DB_BYTEA_ARRAY, n * per);
    for (size_t i = 0; i < n * per; i++) {
        const struct store_copy *c = copy(items[i / per], i % per);
        db_item_bytea(p, c->blob ? c->sha256 : NULL, sizeof c->sha256);
    }
    db_array_begin(p, DB_BYTEA_ARRAY, n * per);
    for (size_t i = 0; i < n * per; i++) {
        const struct store_copy *c = copy(items[i / per], i % per);
        db_item_bytea(p, c->blob, c->blob_len);
    }
}

static bool is_receipt(const struct store_copy *c)
{
    return c->c.type == DM_RECEIPT_IN || c->c.type == DM_RECEIPT_OUT;
}

void store_add_receipts(struct db_params *p, struct db_batch_item *const *items, size_t n,
                        size_t per, store_copy_of copy)
{
    bool any = false;
    for (size_t i = 0; i < n && !any; i++)
        any = is_receipt(copy(items[i], 0));
    size_t copies = any ? n * per : 0;
    for (int field = 0; field < 3; field++) {
        db_array_begin(p, DB_INT8_ARRAY, copies);
        for (size_t i = 0; i < copies; i++) {
            const struct store_copy *c = copy(items[i / per], i % per);
            struct dm_receipt r = {0};
            if (is_receipt(c))
                r = dm_receipt_of(&c->c);
            db_item_int8(p, field == 0   ? r.ref_time_ms
                            : field == 1 ? (int64_t)r.ref_nonce
                                         : r.read_at_ms);
        }
    }
}
