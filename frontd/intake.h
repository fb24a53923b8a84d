/*
 * The way in of signed containers, the same for every operation that brings them: parse, find both
 * users, judge what binds clients only, check the signatures. A recipient who must be looked up is
 * looked up when the signatures have been checked.
 *
 *   read -> find users -> judge -> verify ----> accepted()
 *     \________\____________\________\_______-> refused()   (the call was answered)
 *                ^____________________/  once: a cached key that does not fit is read again; once
 *                                        more if it is provisional; then earlier keys, for a
 *                                        second server
 *
 * An operation keeps a struct intake in its own and gets exactly one of the two continuations, as
 * the last act of intake_start() or from the loop.
 */
#ifndef SHINE_FRONTD_INTAKE_H
#define SHINE_FRONTD_INTAKE_H

#include "frontd/frontd.h"
#include "store/messages.h"

#define INTAKE_MAX 2 /* containers of one request */

struct intake {
    /* --- set before intake_start() --- */
    struct frontd *f;
    struct rpc_call *call;
    unsigned n;
    const char *fields[INTAKE_MAX]; /* payload fields that hold the containers, in order */
    /* Is this combination of containers what the operation takes? Called with everything parsed,
     * before anything is looked up. Anything but RPC_OK refuses. */
    enum rpc_error (*check)(struct intake *in, const char **message);
    /* The same for the rules that bind clients only; called if it is one. May be NULL. */
    enum rpc_error (*check_client)(struct intake *in, const char **message);
    void (*accepted)(struct intake *in);
    void (*refused)(struct intake *in);
    void *ctx; /* the operation's own */

    /* --- results --- */
    struct store_copy copies[INTAKE_MAX]; /* their blobs belong to the intake */
    bool from_server;                     /* the caller is a server (docs/protocol.md) */

    /* --- its own --- */
    uint8_t *blobs[INTAKE_MAX];
    const char *source; /* sourceServerLogin, borrowed from the payload; "" if none */
    struct directory_user author, recipient;
    bool have_author, have_recipient;
    bool author_fresh;     /* its key was read for this request */
    bool author_confirmed; /* and, being provisional, looked up afresh */
    bool verified;         /* signed by the author */
    bool old_keys_tried;   /* every key the author ever had */
    bool by_old_key;       /* and it was one of the earlier ones */
};

/* Begin. Ends in one of the two continuations, possibly before this returns. */
void intake_start(struct intake *in);
/* Free the blobs; the copies must not be used afterwards. May be repeated. */
void intake_free(struct intake *in);

#endif
