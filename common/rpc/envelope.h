/*
 * The JSON envelope: requests, answers and events as texts (docs/protocol.md, "Envelope"). Strict
 * both ways: duplicate members, U+0000, lone surrogates, numbers that are not integers within
 * ±(2^53-1) and trailing text are refused, so that whatever passes here can be stored and sent
 * again unchanged. "-0" is refused with them: it would come back as 0. Nesting is limited to 32
 * levels and a text to 16,384 values (a page of 500 items needs about 4,000): 4 MiB of "[[],[],"
 * would otherwise become 200 MiB of tree.
 */
#ifndef SHINE_RPC_ENVELOPE_H
#define SHINE_RPC_ENVELOPE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "rpc/error.h"
#include "rpc/json_out.h"

#define RPC_REQUEST_ID_MAX 128 /* bytes */
#define RPC_OP_MAX         128 /* bytes */
#define RPC_NESTING_MAX    32
#define RPC_VALUES_MAX     16384

/* A request taken apart. `root` owns everything; freed with rpc_request_free(). */
struct rpc_request {
    json_t *root;
    char op[RPC_OP_MAX + 1];                 /* "" if missing, or too long to be one of ours */
    char request_id[RPC_REQUEST_ID_MAX + 1]; /* "" if missing */
    json_t *payload;                         /* object, borrowed from root; NULL on error */
};

/* Parse one request. On an error `op` and `request_id` are filled as far as they could be read, so
 * that the answer can carry them; *message then says what is wrong in a sentence (static storage).
 * The first error in this order is returned: EMPTY_JSON, BAD_JSON, NO_OP, (UNKNOWN_OP, found by
 * rpc_dispatch()), NO_PAYLOAD (missing or null), BAD_PAYLOAD, BAD_FIELDS (requestId). `*req` may be
 * freed in every case. Pure: may run on the thread pool. */
enum rpc_error rpc_request_parse(const char *text, size_t len, struct rpc_request *req,
                                 const char **message);
void rpc_request_free(struct rpc_request *req);

/* Texts to send, freed with free(). `payload` is borrowed; NULL means {}. *len gets the length. */
char *rpc_answer_ok(const char *op, const char *request_id, const json_t *payload, size_t *len);
char *rpc_answer_error(const char *op, const char *request_id, enum rpc_error e,
                       const char *message, const json_t *payload, size_t *len);
char *rpc_request_text(const char *op, const char *request_id, const json_t *payload, size_t *len);

/* The two that are sent for every message, to be written without a tree: after the beginning come
 * the members of the payload, then json_out_end(). `payload_bytes`: about how long it will be. */
void rpc_answer_begin(struct json_out *o, const char *op, const char *request_id,
                      size_t payload_bytes);
void rpc_event_begin(struct json_out *o, const char *op, size_t payload_bytes);

/* An answer (or event) received by a client of the protocol. `root` owns everything. */
struct rpc_answer {
    json_t *root;
    const char *op;         /* borrowed from root */
    const char *request_id; /* "" for events */
    int is_event;
    int status;
    const char *error; /* "" if ok */
    const char *message;
    json_t *payload; /* object, borrowed; never NULL */
};
/* false if the text is not an answer or event. */
int rpc_answer_parse(const char *text, size_t len, struct rpc_answer *a);
void rpc_answer_free(struct rpc_answer *a);

#endif
