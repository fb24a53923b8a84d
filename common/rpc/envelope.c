/*
 * Parsing and writing of the JSON envelope.
 *
 * A text is judged in three steps: its shape (nesting, number of values, "-0") before anything is
 * allocated for it, its syntax by jansson, its numbers in the finished tree.
 *
 * Grades of failure: bad input is returned as an error code; a payload of our own that cannot be
 * written is our bug.
 */
#include "rpc/envelope.h"

#include "util/mem.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define INT_MAX_JSON ((INT64_C(1) << 53) - 1)

/* --- reading --- */

/* The first byte after the string whose opening quote is text[i - 1]; `len` if it does not end. */
static size_t skip_string(const char *text, size_t len, size_t i)
{
    while (i < len) {
        const char *quote = memchr(text + i, '"', len - i);
        if (!quote)
            return len;
        size_t end = (size_t)(quote - text), slashes = 0;
        while (end - slashes > i && text[end - slashes - 1] == '\\')
            slashes++;
        i = end + 1;
        if (slashes % 2 == 0)
            break;
    }
    return i;
}

/* NULL, or what is wrong with the shape of the text. Says nothing about its syntax. */
static const char *shape_problem(const char *text, size_t len)
{
    size_t depth = 0, values = 1;
    for (size_t i = 0; i < len; i++) {
        switch (text[i]) {
        case '"':
            i = skip_string(text, len, i + 1) - 1;
            break;
        case '{':
        case '[':
            values++;
            if (++depth > RPC_NESTING_MAX)
                return "nested deeper than 32 levels";
            break;
        case '}':
        case ']':
            if (depth > 0)
                depth--;
            break;
        case ',':
            values++;
            break;
        case '-':
            if (i + 1 < len && text[i + 1] == '0')
                return "-0 and fractions are not integers";
            break;
        default:
            break;
        }
    }
    return values > RPC_VALUES_MAX ? "more than 16384 values" : NULL;
}

/* NULL, or what is wrong with the numbers below `v`. Recursion is bounded by RPC_NESTING_MAX. */
static const char *number_problem(json_t *v)
{
    const char *key, *problem = NULL;
    json_t *item;
    size_t i;
    switch (json_typeof(v)) {
    case JSON_REAL:
        return "numbers must be integers, without fraction or exponent";
    case JSON_INTEGER:
        if (json_integer_value(v) > INT_MAX_JSON || json_integer_value(v) < -INT_MAX_JSON)
            return "integers must lie within 2^53-1";
        return NULL;
    case JSON_OBJECT:
        json_object_foreach(v, key, item) {
            if (!problem)
                problem = number_problem(item);
        }
        return problem;
    case JSON_ARRAY:
        json_array_foreach(v, i, item) {
            if (!problem)
                problem = number_problem(item);
        }
        return problem;
    default:
        return NULL;
    }
}

/* The tree of `text`, or NULL with *message. A tree whose numbers are bad is returned with *message
 * set: its strings may still be read. */
static json_t *load(const char *text, size_t len, const char **message)
{
    json_error_t error;
    *message = shape_problem(text, len);
    if (*message)
        return NULL;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    if (!root) {
        switch (json_error_code(&error)) {
        case json_error_duplicate_key:
            *message = "a member stands twice in an object";
            break;
        case json_error_invalid_utf8:
            *message = "not valid UTF-8";
            break;
        case json_error_null_character:
        case json_error_null_byte_in_key:
            *message = "U+0000 is not allowed in strings";
            break;
        case json_error_numeric_overflow:
            *message = "integers must lie within 2^53-1";
            break;
        default:
            *message = "not valid JSON";
        }
        return NULL;
    }
    if (!json_is_object(root)) {
        *message = "the message is not an object";
        json_decref(root);
        return NULL;
    }
    *message = number_problem(root);
    return root;
}

static bool is_blank(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r' && text[i] != '\n')
            return false;
    return true;
}

/* Copy the string member `name` if it is one of at most `max` bytes. */
static bool read_name(const json_t *root, const char *name, size_t max, char *out)
{
    const json_t *v = json_object_get(root, name);
    if (!json_is_string(v) || json_string_length(v) > max)
        return false;
    memcpy(out, json_string_value(v), json_string_length(v) + 1);
    return true;
}

enum rpc_error rpc_request_parse(const char *text, size_t len, struct rpc_request *req,
                                 const char **message)
{
    *req = (struct rpc_request){0};
    *message = "";
    if (is_blank(text, len)) {
        *message = "the message is empty";
        return RPC_EMPTY_JSON;
    }
    const char *problem;
    req->root = load(text, len, &problem);
    const json_t *op = json_object_get(req->root, "op"), *id;
    id = json_object_get(req->root, "requestId");
    (void)read_name(req->root, "op", RPC_OP_MAX, req->op);
    bool id_ok = read_name(req->root, "requestId", RPC_REQUEST_ID_MAX, req->request_id) || !id;
    if (problem) {
        *message = problem;
        return RPC_BAD_JSON;
    }
    if (!json_is_string(op) || json_string_length(op) == 0) {
        *message = "op is missing";
        return RPC_NO_OP;
    }
    json_t *payload = json_object_get(req->root, "payload");
    if (!payload || json_is_null(payload)) {
        *message = "payload is missing";
        return RPC_NO_PAYLOAD;
    }
    if (!json_is_object(payload)) {
        *message = "payload is not an object";
        return RPC_BAD_PAYLOAD;
    }
    if (!id_ok) {
        *message = "requestId must be a string of at most 128 bytes";
        return RPC_BAD_FIELDS;
    }
    req->payload = payload;
    return RPC_OK;
}

void rpc_request_free(struct rpc_request *req)
{
    json_decref(req->root);
    *req = (struct rpc_request){0};
}

static const char *string_or(const json_t *root, const char *name, const char *other)
{
    const char *s = json_string_value(json_object_get(root, name));
    return s ? s : other;
}

int rpc_answer_parse(const char *text, size_t len, struct rpc_answer *a)
{
    const char *problem;
    *a = (struct rpc_answer){0};
    json_t *root = load(text, len, &problem);
    const json_t *status = json_object_get(root, "status");
    const char *op = string_or(root, "op", NULL);
    bool is_event = json_is_true(json_object_get(root, "event"));
    /* Events of old servers may come without a status; an answer without one decides nothing. */
    if (problem || !op || (!json_is_integer(status) && !is_event) ||
        json_integer_value(status) < 0 || json_integer_value(status) > 999) {
        json_decref(root);
        return 0;
    }
    json_t *payload = json_object_get(root, "payload");
    if (!json_is_object(payload)) {
        payload = json_object();
        shine_assert(json_object_set_new(root, "payload", payload) == 0);
    }
    *a = (struct rpc_answer){
        .root = root,
        .op = op,
        .request_id = string_or(root, "requestId", ""),
        .is_event = is_event,
        .status = json_is_integer(status) ? (int)json_integer_value(status) : 200,
        .error = string_or(root, "error", ""),
        .message = string_or(root, "message", ""),
        .payload = payload,
    };
    return 1;
}

void rpc_answer_free(struct rpc_answer *a)
{
    json_decref(a->root);
    *a = (struct rpc_answer){0};
}

/* --- writing --- */

/* What an envelope takes without its payload, more or less. */
enum { ENVELOPE_BYTES = 160 };

static char *finish(struct json_out *o, const json_t *payload, size_t *len)
{
    shine_assert(!payload || json_is_object(payload));
    if (payload)
        json_out_tree(o, "payload", payload);
    else
        json_out_open(o, "payload");
    return json_out_end(o, len);
}

static void begin(struct json_out *o, const char *op, size_t payload_bytes)
{
    json_out_begin(o, ENVELOPE_BYTES + payload_bytes);
    json_out_string(o, "op", op);
}

static void begin_answer(struct json_out *o, const char *op, const char *request_id,
                         enum rpc_error e, size_t payload_bytes)
{
    begin(o, op, payload_bytes);
    json_out_string(o, "requestId", request_id);
    json_out_int(o, "status", rpc_error_status(e));
    json_out_bool(o, "ok", e == RPC_OK);
}

char *rpc_answer_ok(const char *op, const char *request_id, const json_t *payload, size_t *len)
{
    struct json_out o;
    begin_answer(&o, op, request_id, RPC_OK, 0);
    return finish(&o, payload, len);
}

void rpc_answer_begin(struct json_out *o, const char *op, const char *request_id,
                      size_t payload_bytes)
{
    begin_answer(o, op, request_id, RPC_OK, payload_bytes);
    json_out_open(o, "payload");
}

char *rpc_answer_error(const char *op, const char *request_id, enum rpc_error e,
                       const char *message, const json_t *payload, size_t *len)
{
    struct json_out o;
    begin_answer(&o, op, request_id, e, 0);
    json_out_string(&o, "error", rpc_error_name(e));
    json_out_string(&o, "message", message ? message : "");
    return finish(&o, payload, len);
}

void rpc_event_begin(struct json_out *o, const char *op, size_t payload_bytes)
{
    begin(o, op, payload_bytes);
    json_out_bool(o, "event", true);
    json_out_int(o, "status", 200);
    json_out_bool(o, "ok", true);
    json_out_open(o, "payload");
}

char *rpc_request_text(const char *op, const char *request_id, const json_t *payload, size_t *len)
{
    struct json_out o;
    begin(&o, op, 0);
    json_out_string(&o, "requestId", request_id);
    return finish(&o, payload, len);
}
