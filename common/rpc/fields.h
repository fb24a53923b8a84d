/*
 * Strict reading of payload fields. Unknown fields are ignored (old and new sides mix); a field
 * that is there must have the right type. Each reader returns false on a missing (when required) or
 * wrong field and leaves in `f->problem` the sentence that the BAD_FIELDS answer carries; after the
 * first problem all further readers return false, so a handler may check once.
 */
#ifndef SHINE_RPC_FIELDS_H
#define SHINE_RPC_FIELDS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rpc_fields {
    const json_t *payload;
    char problem[160]; /* "" while all is well */
};

/* Start reading `payload`, which is borrowed. The first problem found stays. */
struct rpc_fields rpc_fields_of(const json_t *payload);
/* Required string of at most `max` bytes, not empty; borrowed from the payload. */
bool rpc_str(struct rpc_fields *f, const char *name, size_t max, const char **out);
/* Optional string: missing or null leaves *out unchanged. May be empty. */
bool rpc_str_opt(struct rpc_fields *f, const char *name, size_t max, const char **out);
/* Integers; optional ones leave *out unchanged when missing. Out of [min, max] is an error. */
bool rpc_int(struct rpc_fields *f, const char *name, int64_t min, int64_t max, int64_t *out);
bool rpc_int_opt(struct rpc_fields *f, const char *name, int64_t min, int64_t max, int64_t *out);
bool rpc_bool_opt(struct rpc_fields *f, const char *name, bool *out);
/* Required array, borrowed. */
bool rpc_array(struct rpc_fields *f, const char *name, size_t max_items, const json_t **out);
/* Required Base64 of at most `max` decoded bytes: *out is new (free()). */
bool rpc_blob(struct rpc_fields *f, const char *name, size_t max, uint8_t **out, size_t *len);
/* Required Base64 of exactly `n` bytes into `out`. */
bool rpc_bytes(struct rpc_fields *f, const char *name, uint8_t *out, size_t n);

#endif
