/*
 * Any bytes into rpc_request_parse() and rpc_answer_parse(). Whatever is accepted is stored, sent
 * to other servers and sent back, so it must come out of our own writer as an equal value; and
 * whatever was refused must still be answered with a text that a client can read.
 */
#include "rpc/envelope.h"
#include "rpc/fields.h"
#include "util/base64.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define NUMBER_MAX ((INT64_C(1) << 53) - 1)

/* A second judge of UTF-8: jansson refuses to make a string of anything else. */
static void check_text(const char *s, size_t max)
{
    json_t *v = json_string(s);
    shine_assert(v && json_string_length(v) <= max);
    json_decref(v);
}

/* A tree that was let in: only integers that every language can hold, bounded nesting, no NUL. */
static void check_tree(const json_t *v, int depth)
{
    const char *key;
    json_t *item;
    size_t i;
    shine_assert(depth <= RPC_NESTING_MAX || !(json_is_object(v) || json_is_array(v)));
    shine_assert(!json_is_real(v));
    if (json_is_integer(v))
        shine_assert(json_integer_value(v) <= NUMBER_MAX && json_integer_value(v) >= -NUMBER_MAX);
    if (json_is_string(v))
        shine_assert(strlen(json_string_value(v)) == json_string_length(v));
    json_object_foreach((json_t *)(uintptr_t)v, key, item) {
        check_text(key, SIZE_MAX);
        check_tree(item, depth + 1);
    }
    json_array_foreach(v, i, item) {
        check_tree(item, depth + 1);
    }
}

/* Parse an answer of ours; it must carry the names and the payload it was made from. Consumes
 * `text`. */
static void check_answer(char *text, size_t len, const struct rpc_request *req,
                         const json_t *payload, enum rpc_error e)
{
    struct rpc_answer a;
    shine_assert(strlen(text) == len);
    shine_assert(rpc_answer_parse(text, len, &a));
    shine_assert(strcmp(a.op, req->op) == 0);
    shine_assert(strcmp(a.request_id, req->request_id) == 0);
    shine_assert(a.status == rpc_error_status(e));
    shine_assert(strcmp(a.error, rpc_error_name(e)) == 0);
    if (payload)
        shine_assert(json_equal(a.payload, payload));
    else
        shine_assert(json_object_size(a.payload) == 0);
    rpc_answer_free(&a);
    free(text);
}

/* What is written without a tree comes back as well. */
static void check_event(const struct rpc_request *req)
{
    struct json_out o;
    struct rpc_answer a;
    size_t len;
    rpc_event_begin(&o, req->op, 0);
    json_out_string(&o, "text", req->request_id);
    json_out_tree(&o, "tree", req->payload);
    char *text = json_out_end(&o, &len);
    shine_assert(strlen(text) == len && rpc_answer_parse(text, len, &a));
    shine_assert(a.is_event && strcmp(a.op, req->op) == 0 && json_object_size(a.payload) == 2);
    shine_assert(json_equal(json_object_get(a.payload, "tree"), req->payload));
    const char *s = json_string_value(json_object_get(a.payload, "text"));
    shine_assert(s && strcmp(s, req->request_id) == 0);
    rpc_answer_free(&a);
    free(text);
}

static void check_accepted(const struct rpc_request *req)
{
    size_t len;
    const char *message;
    struct rpc_request again;
    check_tree(req->root, 1);
    shine_assert(json_object_get(req->root, "payload") == req->payload);
    check_answer(rpc_answer_ok(req->op, req->request_id, req->payload, &len), len, req,
                 req->payload, RPC_OK);
    check_event(req);

    char *text = rpc_request_text(req->op, req->request_id, req->payload, &len);
    enum rpc_error e = rpc_request_parse(text, len, &again, &message);
    /* A name longer than any of ours is not kept. */
    shine_assert(e == (req->op[0] ? RPC_OK : RPC_NO_OP));
    if (e == RPC_OK)
        shine_assert(json_equal(again.payload, req->payload));
    shine_assert(strcmp(again.op, req->op) == 0);
    shine_assert(strcmp(again.request_id, req->request_id) == 0);
    rpc_request_free(&again);
    free(text);
}

static void check_strings(const json_t *payload, const char *key)
{
    struct rpc_fields f = rpc_fields_of(payload);
    const char *s = NULL;
    if (rpc_str(&f, key, 64, &s))
        shine_assert(s && *s && strlen(s) <= 64);
    shine_assert(!s == (f.problem[0] != '\0'));
    check_text(f.problem, sizeof f.problem);

    f = rpc_fields_of(payload);
    uint8_t *blob = NULL, bytes[32];
    size_t n = 0;
    if (rpc_blob(&f, key, 48, &blob, &n)) {
        shine_assert(n > 0 && n <= 48);
        char *text = base64_encode_new(blob, n);
        shine_assert(base64_decode(text, strlen(text), blob, &n));
        free(text);
        free(blob);
    } else {
        shine_assert(!blob && f.problem[0]);
    }
    f = rpc_fields_of(payload);
    shine_assert(rpc_bytes(&f, key, bytes, sizeof bytes) == !f.problem[0]);
}

/* Every reader over every field: each answers or names a problem, and only once. */
static void check_fields(const json_t *payload)
{
    const char *key;
    json_t *item;
    json_object_foreach((json_t *)(uintptr_t)payload, key, item) {
        struct rpc_fields f = rpc_fields_of(payload);
        int64_t i = 7;
        bool b;
        const char *s = key;
        const json_t *a = NULL;
        check_strings(payload, key);
        shine_assert(rpc_int(&f, key, -5, NUMBER_MAX, &i) ==
                     (json_is_integer(item) && i >= -5 && !f.problem[0]));
        f = rpc_fields_of(payload);
        shine_assert(rpc_bool_opt(&f, key, &b) == (json_is_boolean(item) || json_is_null(item)));
        f = rpc_fields_of(payload);
        if (rpc_array(&f, key, 3, &a))
            shine_assert(a == item && json_array_size(a) <= 3);
        f = rpc_fields_of(payload);
        if (!rpc_str_opt(&f, key, 8, &s) || !rpc_int_opt(&f, key, 0, 1, &i)) {
            shine_assert(f.problem[0]);
            shine_assert(!rpc_str_opt(&f, "", 1, &s)); /* nothing is read after a problem */
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct rpc_request req;
    struct rpc_answer a;
    const char *message = NULL;
    size_t len;
    char *text = xmalloc(size); /* exactly sized and without a NUL: reading past it is seen */
    if (size)
        memcpy(text, data, size);

    enum rpc_error e = rpc_request_parse(text, size, &req, &message);
    check_text(req.op, RPC_OP_MAX);
    check_text(req.request_id, RPC_REQUEST_ID_MAX);
    check_text(message, 128);
    shine_assert((e == RPC_OK) == (*message == '\0'));
    shine_assert((e == RPC_OK) == json_is_object(req.payload));
    if (e == RPC_OK) {
        check_accepted(&req);
        check_fields(req.payload);
    } else {
        check_answer(rpc_answer_error(req.op, req.request_id, e, message, NULL, &len), len, &req,
                     NULL, e);
    }
    rpc_request_free(&req);

    if (rpc_answer_parse(text, size, &a)) {
        check_tree(a.root, 1);
        shine_assert(a.op && a.request_id && a.error && a.message && json_is_object(a.payload));
        shine_assert(a.status >= 0 && a.status <= 999);
        rpc_answer_free(&a);
    }
    free(text);
    return 0;
}
