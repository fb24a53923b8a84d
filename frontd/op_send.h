/*
 * What every operation that stores signed containers does, written once: containers in, one
 * transaction, events to the sessions, where there is new work the first attempt to deliver,
 * answer. An operation (op_messages.c, op_delete.c) is a struct send_kind: which containers it
 * takes, how they are stored, and what the answer holds.
 *
 *   1 send_start           fields, containers, users, signatures (intake.c)
 *   2 kind->store          one transaction: copies, delivery row, events
 *   3 send_stored          the verdict; events to the sessions; the first attempt
 *   4 reported / budget_over   whichever comes first answers
 */
#ifndef SHINE_FRONTD_OP_SEND_H
#define SHINE_FRONTD_OP_SEND_H

#include "delivery/delivery.h"
#include "frontd/intake.h"
#include "store/tombstones.h"

struct send;

struct send_kind {
    unsigned n;                     /* containers of one request */
    const char *fields[INTAKE_MAX]; /* see struct intake */
    enum rpc_error (*check)(struct intake *in, const char **message);
    enum rpc_error (*check_client)(struct intake *in, const char **message); /* may be NULL */
    /* Hand s->item to the store, filled from s->in; ends in send_stored(). */
    void (*store)(struct send *s);
    /* Write into the answer what only this operation says: keys, and send_answer_state(). */
    void (*answer)(const struct send *s, enum dm_state state, struct json_out *o);
};

/* What the store says about any of them. */
struct send_result {
    enum store_verdict verdict;
    enum dm_state state;
    struct store_told from, to; /* copies in the author's and the recipient's log */
    struct store_told turned;   /* the author's event that an older row turned delivered */
    int64_t ws_sessions, push_sessions;
    bool attempt; /* the first attempt is ours, with what follows */
    int64_t row_version, lease_ms;
    unsigned n_routes;
    const struct store_route *routes; /* borrowed from the item */
};

/* Lives until the call is answered and the attempt has reported. */
struct send {
    struct intake in;
    const struct send_kind *kind;
    struct frontd *f;
    struct rpc_call *call; /* NULL once answered */
    union {                /* what the kind hands to the store */
        struct store_pair pair;
        struct store_incoming incoming;
        struct store_tombstone tombstone;
    } item;
    struct send_result result;
    const char *session_id; /* of the caller; NULL = none */
    const char *source;     /* the server it is believed to come from; NULL = none */
    char source_copy[SHINE_SERVER_LOGIN_MAX + 1];
    char session_id_copy[SHINE_SESSION_ID_LEN + 1];
    char base_key[DM_BASE_KEY_MAX];
    char key[INTAKE_MAX][DM_MESSAGE_KEY_MAX]; /* of each container */
    char author[DM_LOGIN_MAX + 1];
    bool attempt_open;
    uv_timer_t budget; /* the caller waits no longer than this for the first attempt */
};

/* Serve `call` as `kind` says. */
void send_start(struct rpc_call *call, const struct send_kind *kind);
/* The store is done with s->item; s->result is set if `st` is DB_OK. */
void send_stored(struct send *s, enum db_status st);
/* Add `deliveryState`: as it is for a client, always "accepted" for a server. */
void send_answer_state(const struct send *s, enum dm_state state, struct json_out *o);

#endif
