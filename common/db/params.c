/*
 * Parameters of a call in PostgreSQL's binary formats: one growing buffer, and per parameter where
 * it begins and ends.
 *
 * Raises: only our own bugs (items that do not match their array) by shine_assert.
 */
#include "db/internal.h"

#include "util/buf.h"
#include "util/mem.h"

#include <arpa/inet.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { OID_BOOL = 16, OID_BYTEA = 17, OID_INT8 = 20, OID_INT4 = 23, OID_TEXT = 25 };

struct param {
    size_t start;
    size_t len;
    bool is_null;
};

struct db_params {
    struct buf data;
    struct param *param;
    size_t count, cap;
    /* The array being filled. */
    enum db_array_type array_type;
    size_t items_left;
    size_t has_null_at; /* offset of its has-NULL flag */
    /* What libpq wants, built once by db_params_wire(). */
    const char **values;
    int *lengths;
    int *formats;
};

struct db_params *db_params_new(void)
{
    struct db_params *p = xnew(struct db_params);
    buf_init(&p->data, 0);
    return p;
}

void db_params_free(struct db_params *p)
{
    if (!p)
        return;
    buf_free(&p->data);
    free(p->param);
    free(p->values);
    free(p->lengths);
    free(p->formats);
    free(p);
}

size_t db_params_size(const struct db_params *p)
{
    return p ? buf_len(&p->data) : 0;
}

static struct param *param_begin(struct db_params *p)
{
    shine_assert(p->items_left == 0);
    if (p->count == p->cap) {
        p->cap = p->cap ? p->cap * 2 : 8;
        p->param = xrealloc(p->param, p->cap * sizeof(*p->param));
    }
    struct param *q = &p->param[p->count++];
    *q = (struct param){.start = buf_len(&p->data)};
    return q;
}

static void put(struct db_params *p, const void *data, size_t n)
{
    shine_assert(n <= INT_MAX);
    shine_assert(buf_append(&p->data, data, n));
    p->param[p->count - 1].len += n;
}

static void put_int4(struct db_params *p, int32_t v)
{
    uint32_t be = htonl((uint32_t)v);
    put(p, &be, sizeof(be));
}

static void put_int8(struct db_params *p, int64_t v)
{
    put_int4(p, (int32_t)(uint32_t)((uint64_t)v >> 32));
    put_int4(p, (int32_t)(uint32_t)((uint64_t)v & 0xffffffffU));
}

static void put_bool(struct db_params *p, bool v)
{
    put(p, v ? "\1" : "\0", 1);
}

void db_add_int8(struct db_params *p, int64_t v)
{
    param_begin(p);
    put_int8(p, v);
}

void db_add_int4(struct db_params *p, int32_t v)
{
    param_begin(p);
    put_int4(p, v);
}

void db_add_bool(struct db_params *p, bool v)
{
    param_begin(p);
    put_bool(p, v);
}

void db_add_text(struct db_params *p, const char *s)
{
    db_add_bytea(p, s, s ? strlen(s) : 0);
}

void db_add_bytea(struct db_params *p, const void *data, size_t n)
{
    struct param *q = param_begin(p);
    if (data)
        put(p, data, n);
    else
        q->is_null = true;
}

void db_array_begin(struct db_params *p, enum db_array_type type, size_t n)
{
    static const int32_t oids[] = {[DB_INT8_ARRAY] = OID_INT8,
                                   [DB_INT4_ARRAY] = OID_INT4,
                                   [DB_BOOL_ARRAY] = OID_BOOL,
                                   [DB_TEXT_ARRAY] = OID_TEXT,
                                   [DB_BYTEA_ARRAY] = OID_BYTEA};
    shine_assert(n <= INT_MAX);
    param_begin(p);
    put_int4(p, n > 0 ? 1 : 0); /* dimensions: an empty array has none */
    p->has_null_at = buf_len(&p->data);
    put_int4(p, 0);
    put_int4(p, oids[type]);
    if (n > 0) {
        put_int4(p, (int32_t)n);
        put_int4(p, 1); /* lower bound */
    }
    p->array_type = type;
    p->items_left = n;
}

static void item_begin(struct db_params *p, enum db_array_type type, size_t n)
{
    shine_assert(p->items_left > 0 && p->array_type == type);
    shine_assert(n <= INT_MAX);
    p->items_left--;
    put_int4(p, (int32_t)n);
}

void db_item_int8(struct db_params *p, int64_t v)
{
    item_begin(p, DB_INT8_ARRAY, sizeof(v));
    put_int8(p, v);
}

void db_item_int4(struct db_params *p, int32_t v)
{
    item_begin(p, DB_INT4_ARRAY, sizeof(v));
    put_int4(p, v);
}

void db_item_bool(struct db_params *p, bool v)
{
    item_begin(p, DB_BOOL_ARRAY, 1);
    put_bool(p, v);
}

static void item_bytes(struct db_params *p, enum db_array_type type, const void *data, size_t n)
{
    if (data) {
        item_begin(p, type, n);
        put(p, data, n);
        return;
    }
    shine_assert(p->items_left > 0 && p->array_type == type);
    p->items_left--;
    put_int4(p, -1);
    /* The flag is big-endian like everything else. */
    p->data.data[p->data.off + p->has_null_at + 3] = 1;
}

void db_item_text(struct db_params *p, const char *s)
{
    item_bytes(p, DB_TEXT_ARRAY, s, s ? strlen(s) : 0);
}

void db_item_bytea(struct db_params *p, const void *data, size_t n)
{
    item_bytes(p, DB_BYTEA_ARRAY, data, n);
}

struct db_wire_params db_params_wire(struct db_params *p)
{
    if (!p)
        return (struct db_wire_params){0};
    shine_assert(p->items_left == 0);
    shine_assert(p->count <= UINT16_MAX);
    if (!p->values) {
        p->values = xcalloc(p->count, sizeof(*p->values));
        p->lengths = xcalloc(p->count, sizeof(*p->lengths));
        p->formats = xcalloc(p->count, sizeof(*p->formats));
    }
    const char *base = (const char *)buf_head(&p->data);
    for (size_t i = 0; i < p->count; i++) {
        p->values[i] = p->param[i].is_null ? NULL : base + p->param[i].start;
        p->lengths[i] = (int)p->param[i].len;
        p->formats[i] = 1;
    }
    return (struct db_wire_params){
        .count = (int)p->count, .values = p->values, .lengths = p->lengths, .formats = p->formats};
}
