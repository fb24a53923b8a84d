/*
 * The one writer of JSON texts: front to back into a growing buffer, without a tree in between.
 * Commas, quotes and escapes are its business, so no other file pastes JSON together. What is
 * answered or told thousands of times a second is written member by member; everything else hands
 * over a tree of jansson.
 *
 * Strings must be UTF-8, as everything is that passed rpc_request_parse(). Member names are our own
 * constants and need no escapes.
 */
#ifndef SHINE_RPC_JSON_OUT_H
#define SHINE_RPC_JSON_OUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/buf.h"

struct json_out {
    struct buf text;
    unsigned depth; /* objects and arrays open, at most 64 */
    uint64_t lists; /* bit n: what is open at depth n is an array */
    bool comma;     /* the next member follows another */
};

/* Begin a text, which is one object, open for members. `expected`: its length, as far as it is
 * known; only saves allocations. Ended by json_out_end(). */
void json_out_begin(struct json_out *o, size_t expected);
/* Close what is open. The text with a NUL, freed with free(); *len without it. */
char *json_out_end(struct json_out *o, size_t *len);

/* The next member of the innermost open object. */
void json_out_string(struct json_out *o, const char *name, const char *s);
void json_out_int(struct json_out *o, const char *name, int64_t v);
void json_out_bool(struct json_out *o, const char *name, bool v);
/* A string, the Base64 of `n` bytes. */
void json_out_base64(struct json_out *o, const char *name, const uint8_t *p, size_t n);
/* A tree of jansson, borrowed. One that cannot be written is our bug. */
void json_out_tree(struct json_out *o, const char *name, const json_t *v);
/* An object, open for members until json_out_close(). */
void json_out_open(struct json_out *o, const char *name);
void json_out_close(struct json_out *o);
/* An array, open for items until json_out_close(): objects by json_out_item(), which are closed by
 * another json_out_close(), and Base64 strings. */
void json_out_list(struct json_out *o, const char *name);
void json_out_item(struct json_out *o);
void json_out_item_base64(struct json_out *o, const uint8_t *p, size_t n);

/* Bytes written so far. */
static inline size_t json_out_len(const struct json_out *o)
{
    return buf_len(&o->text);
}
/* Bytes that the string `s` takes, quotes and escapes included. */
size_t json_out_string_len(const char *s);

#endif
