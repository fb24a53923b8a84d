/*
 * Results of a call, received in PostgreSQL's binary formats.
 *
 * Raises: only our own bugs (a column that does not exist or is of another type) by shine_assert.
 */
#include "db/internal.h"

#include "util/log.h"
#include "util/mem.h"

#include <string.h>

enum {
    OID_BOOL = 16,
    OID_BYTEA = 17,
    OID_NAME = 19,
    OID_INT8 = 20,
    OID_INT2 = 21,
    OID_INT4 = 23,
    OID_TEXT = 25,
    OID_JSON = 114,
    OID_BPCHAR = 1042,
    OID_VARCHAR = 1043
};

enum db_status db_status(const struct db_result *r)
{
    return r->status;
}

const char *db_sqlstate(const struct db_result *r)
{
    const char *s = r->pg ? PQresultErrorField(r->pg, PG_DIAG_SQLSTATE) : NULL;
    return s ? s : "";
}

const char *db_message(const struct db_result *r)
{
    if (r->message)
        return r->message;
    const char *s = r->pg ? PQresultErrorField(r->pg, PG_DIAG_MESSAGE_PRIMARY) : NULL;
    return s ? s : "";
}

int db_rows(const struct db_result *r)
{
    return r->status == DB_OK && r->pg ? PQntuples(r->pg) : 0;
}

int db_col(const struct db_result *r, const char *name)
{
    shine_assert(r->status == DB_OK && r->pg);
    int col = PQfnumber(r->pg, name);
    if (col < 0)
        log_error("db_unknown_column", LOG_S("column", name));
    shine_assert(col >= 0);
    return col;
}

bool db_is_null(const struct db_result *r, int row, int col)
{
    shine_assert(r->status == DB_OK && r->pg);
    shine_assert(row >= 0 && row < PQntuples(r->pg) && col >= 0 && col < PQnfields(r->pg));
    return PQgetisnull(r->pg, row, col) != 0;
}

static uint64_t big_endian(const struct db_result *r, int row, int col)
{
    const unsigned char *p = (const unsigned char *)PQgetvalue(r->pg, row, col);
    int n = PQgetlength(r->pg, row, col);
    uint64_t v = 0;
    for (int i = 0; i < n; i++)
        v = v << 8 | p[i];
    return v;
}

int64_t db_int8(const struct db_result *r, int row, int col)
{
    bool is_null = db_is_null(r, row, col);
    Oid type = PQftype(r->pg, col);
    shine_assert(type == OID_INT8 || type == OID_INT4 || type == OID_INT2);
    if (is_null)
        return 0;
    uint64_t v = big_endian(r, row, col);
    if (type == OID_INT4)
        return (int32_t)(uint32_t)v;
    if (type == OID_INT2)
        return (int16_t)(uint16_t)v;
    return (int64_t)v;
}

bool db_bool(const struct db_result *r, int row, int col)
{
    bool is_null = db_is_null(r, row, col);
    shine_assert(PQftype(r->pg, col) == OID_BOOL);
    return !is_null && big_endian(r, row, col) != 0;
}

const char *db_text(const struct db_result *r, int row, int col)
{
    bool is_null = db_is_null(r, row, col);
    Oid type = PQftype(r->pg, col);
    shine_assert(type == OID_TEXT || type == OID_VARCHAR || type == OID_NAME ||
                 type == OID_BPCHAR || type == OID_JSON);
    return is_null ? "" : PQgetvalue(r->pg, row, col);
}

const uint8_t *db_bytea(const struct db_result *r, int row, int col, size_t *len)
{
    bool is_null = db_is_null(r, row, col);
    shine_assert(PQftype(r->pg, col) == OID_BYTEA);
    *len = is_null ? 0 : (size_t)PQgetlength(r->pg, row, col);
    return (const uint8_t *)(is_null ? "" : PQgetvalue(r->pg, row, col));
}
