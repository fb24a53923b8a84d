/*
 * Accepting containers and reading history. All ways in (client, peer, replication) end in these
 * functions.
 */
#ifndef SHINE_STORE_MESSAGES_H
#define SHINE_STORE_MESSAGES_H

#include "db/batch.h"
#include "store/store.h"

/* One container, verified before: its fields, bytes and hash. */
struct store_copy {
    struct dm_container c;
    const uint8_t *blob;
    size_t blob_len;
    uint8_t sha256[32];
};

enum store_verdict {
    STORE_OK,
    STORE_NOT_SERVED,   /* this server is not an access server of the owner: 403 */
    STORE_UNKNOWN_USER, /* an owner vanished meanwhile: 404 */
    STORE_TIME_AHEAD,   /* a time field is too far ahead of now_ms(): BAD_TIME */
    STORE_DELETED,      /* from a client, and tombstones cover both copies: 410 */
};

enum dm_state { DM_STATE_NONE, DM_STATE_ACCEPTED, DM_STATE_DELIVERED, DM_STATE_FAILED };
/* "accepted", "delivered", "failed"; NULL for NONE. */
const char *dm_state_name(enum dm_state s);

/* What storing a container told the sessions of one owner. */
struct store_told {
    int64_t pts; /* position in the owner's log of the event that shows the copy as it came; 0 = no
                    event (not served here, or nothing changed), or one that must be read from the
                    log (the state of an older row changed, a stored copy of a higher revision
                    became visible) */
    bool elsewhere; /* sessions of this owner are connected to other processes: send the hint */
};

/* A pair sent by its author (SendMessagePair, ReceiveOutcomingMessage): types 1+2 or 3+4. Grouped.
 */
struct store_pair {
    struct db_batch_item item;
    struct store_copy in, out;
    bool from_server; /* brought by a server: client-only rules do not apply, and the first attempt
                         is left to deliveryd, due at once */
    const char *source; /* login of the server that brought it, if it was identified; else NULL */
    int64_t max_future_ms;  /* client rule for time fields against now_ms(); servers always 24 h */
    const char *session_id; /* the requesting session, not counted; NULL = none */
    bool proof; /* store_pull_pair(): the source says that it is delivered, in this revision */
    void (*done)(struct store_pair *p, enum db_status st);
    void *ctx;

    enum store_verdict verdict;
    enum dm_state state;        /* as it stands after the call */
    struct store_told from, to; /* the author's and the recipient's log; for a note to self `to` has
                                   the incoming copy's event, the lower pts */
    int64_t ws_sessions; /* connected sessions of both parties for which an event was queued */
    int64_t push_sessions;
    /* The first attempt: set if the row is new work, leased to this process. */
    bool attempt;
    int64_t row_version;
    int64_t lease_ms;  /* how much of the lease is left, by the database's clock */
    unsigned n_routes; /* current routes of the recipient, read in the same transaction */
    struct store_route routes[2];
};
void store_accept_pair(struct store *s, struct store_pair *p);
/* The same for what comes in a page of the author's second server, as history (docs/protocol.md).
 * The incoming copy may be missing: its `blob` is NULL, its `c` that of the outgoing one with the
 * other type. */
void store_pull_pair(struct store *s, struct store_pair *p);

/* One incoming copy from a server (ReceiveIncomingMessage): type 1 or 3. Grouped. */
struct store_incoming {
    struct db_batch_item item;
    struct store_copy in;
    const char *source; /* login of the server that brought it, if it was identified; else NULL */
    void (*done)(struct store_incoming *p, enum db_status st);
    void *ctx;

    enum store_verdict verdict;
    struct store_told to;
    struct store_told from; /* the author is served here too and his row turned delivered: his
                               DmDeliveryStateChanged */
    int64_t ws_sessions, push_sessions;
};
void store_apply_incoming(struct store *s, struct store_incoming *p);
/* The same for what comes in a page of the recipient's second server. */
void store_pull_incoming(struct store *s, struct store_incoming *p);

/* One page of a conversation, newest first. */
struct store_history_query {
    const char *owner, *with;
    unsigned limit;         /* ≤ 200 */
    int64_t before_time_ms; /* -1 = from the newest */
    const char *before_key; /* with before_time_ms; "" = none of that time */
    int64_t
        max_blob_bytes; /* stop when the blobs exceed this; at least one item is always returned */
};
struct store_history_item {
    const char *message_key, *base_key, *from, *to;
    int type;
    int64_t time_ms, nonce, revision_time_ms, reencrypted_at_ms, created_at_ms;
    int64_t read_at_ms;         /* -1 = not read */
    const char *delivery_state; /* NULL = none or unknown */
    const uint8_t *blob;
    size_t blob_len;
};
/* The same cursor for the next page: `time_ms` and `message_key` of the last row. */
typedef void (*store_history_cb)(void *ctx, enum db_status st,
                                 const struct store_history_item *rows, size_t n, bool has_more);
void store_history(struct store *s, const struct store_history_query *q, store_history_cb cb,
                   void *ctx);

#endif
