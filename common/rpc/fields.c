/*
 * Strict readers of payload fields. Raises no failures but the BAD_FIELDS sentence in `problem`.
 */
#include "rpc/fields.h"

#include "util/base64.h"
#include "util/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rpc_fields rpc_fields_of(const json_t *payload)
{
    return (struct rpc_fields){.payload = payload};
}

static bool wrong(struct rpc_fields *f, const char *name, const char *what)
{
    (void)snprintf(f->problem, sizeof f->problem, "%s %s", name, what);
    return false;
}

/* The value of `name`, or NULL with the problem noted (`required`) or because it is missing or
 * null. Check f->problem first: no reader works after a problem. */
static const json_t *value_of(struct rpc_fields *f, const char *name, bool required)
{
    const json_t *v = json_object_get(f->payload, name);
    if (json_is_null(v))
        v = NULL;
    if (!v && required)
        (void)wrong(f, name, "is missing");
    return v;
}

static bool read_string(struct rpc_fields *f, const char *name, size_t max, bool required,
                        const char **out)
{
    if (f->problem[0])
        return false;
    const json_t *v = value_of(f, name, required);
    if (!v)
        return !required;
    if (!json_is_string(v))
        return wrong(f, name, "must be a string");
    if (required && json_string_length(v) == 0)
        return wrong(f, name, "is empty");
    if (json_string_length(v) > max)
        return wrong(f, name, "is too long");
    *out = json_string_value(v);
    return true;
}

bool rpc_str(struct rpc_fields *f, const char *name, size_t max, const char **out)
{
    return read_string(f, name, max, true, out);
}

bool rpc_str_opt(struct rpc_fields *f, const char *name, size_t max, const char **out)
{
    return read_string(f, name, max, false, out);
}

static bool read_int(struct rpc_fields *f, const char *name, int64_t min, int64_t max,
                     bool required, int64_t *out)
{
    if (f->problem[0])
        return false;
    const json_t *v = value_of(f, name, required);
    if (!v)
        return !required;
    if (!json_is_integer(v))
        return wrong(f, name, "must be an integer");
    if (json_integer_value(v) < min || json_integer_value(v) > max) {
        char what[80];
        (void)snprintf(what, sizeof what, "must lie between %" PRId64 " and %" PRId64, min, max);
        return wrong(f, name, what);
    }
    *out = json_integer_value(v);
    return true;
}

bool rpc_int(struct rpc_fields *f, const char *name, int64_t min, int64_t max, int64_t *out)
{
    return read_int(f, name, min, max, true, out);
}

bool rpc_int_opt(struct rpc_fields *f, const char *name, int64_t min, int64_t max, int64_t *out)
{
    return read_int(f, name, min, max, false, out);
}

bool rpc_bool_opt(struct rpc_fields *f, const char *name, bool *out)
{
    if (f->problem[0])
        return false;
    const json_t *v = value_of(f, name, false);
    if (v && !json_is_boolean(v))
        return wrong(f, name, "must be true or false");
    if (v)
        *out = json_is_true(v);
    return true;
}

bool rpc_array(struct rpc_fields *f, const char *name, size_t max_items, const json_t **out)
{
    if (f->problem[0])
        return false;
    const json_t *v = value_of(f, name, true);
    if (!v)
        return false;
    if (!json_is_array(v))
        return wrong(f, name, "must be an array");
    if (json_array_size(v) > max_items)
        return wrong(f, name, "has too many items");
    *out = v;
    return true;
}

bool rpc_blob(struct rpc_fields *f, const char *name, size_t max, uint8_t **out, size_t *len)
{
    const char *text;
    if (!rpc_str(f, name, base64_encoded_len(max), &text))
        return false;
    size_t text_len = strlen(text);
    uint8_t *bytes = xmalloc(base64_decoded_max(text_len));
    if (!base64_decode(text, text_len, bytes, len) || *len > max) {
        free(bytes);
        return wrong(f, name, "is not Base64 of a permitted length");
    }
    *out = bytes;
    return true;
}

bool rpc_bytes(struct rpc_fields *f, const char *name, uint8_t *out, size_t n)
{
    const char *text;
    if (!rpc_str(f, name, base64_encoded_len(n), &text))
        return false;
    if (!base64_decode_exact(text, out, n))
        return wrong(f, name, "is not Base64 of the right length");
    return true;
}
