/*
 * Work taken from the database with a lease: delivery rows that are due (table dm_delivery_state),
 * and outbox items to be handed to their owner's second server (table dm_sync_outbox).
 *
 * A claim is one statement. It skips what others hold, never touches final rows, and its cost grows
 * neither with what is stored nor with what waits for peers that the caller leaves out. Every time
 * is the database's; what the caller gets is how much of the lease is left.
 */
#ifndef SHINE_STORE_CLAIMS_H
#define SHINE_STORE_CLAIMS_H

#include "store/delivery.h"

/* How much to take, and for how long. */
struct store_claim {
    unsigned max_rows; /* 1..500 */
    int64_t max_bytes; /* of all blobs together; one row is returned even if it alone is larger */
    int64_t lease_ms;
    const char *const *skip_peers; /* peers at their bound (route_hint; for pushes the second
                                      server): their rows stay */
    size_t n_skip;
};

struct store_claimed {
    bool more;           /* the batch was full: claim again at once */
    int64_t next_due_ms; /* until the next row that is not taken here becomes due, peers left out
                            not counted; 0 = now, -1 = nothing waits */
};

/* --- deliveries --- */

/* A due row, leased to this process. Valid during the callback. */
struct store_due {
    const char *from_login, *to_login, *outgoing_key, *incoming_key;
    int64_t revision_time_ms, reencrypted_at_ms, row_version;
    unsigned attempt; /* which one to make now: the latest slot of the schedule that has passed */
    int64_t accepted_ago_ms, lease_ms;
    unsigned claims; /* leases in a row that ran out, this one not counted */
    enum dm_type type;
    const uint8_t *blob; /* what is to be carried; NULL = it is gone: nothing is left to deliver */
    size_t blob_len;
    unsigned n_routes; /* current ones of the recipient, this server left out */
    struct store_route routes[2];
    bool served_here; /* this server serves the recipient now: what is carried becomes his copy */
    struct store_route second; /* the author's second server, whom to ask first; login "" = none */
};
typedef void (*store_due_cb)(void *ctx, enum db_status st, const struct store_due *rows, size_t n,
                             const struct store_claimed *c);
/* The order is that in which they became due. Rows that ten leases in a row ran out on are set
 * aside: such a row comes alone, at most once in ten minutes and after all others. */
void store_claim_due(struct store *s, const struct store_claim *c, store_due_cb cb, void *ctx);

/* The schedule of all results recorded from now on: `n` offsets from acceptance in ms, 1..16,
 * ascending from 0; without it the default. */
void store_set_schedule(struct store *s, const int64_t *offsets_ms, size_t n);

/* --- pushes --- */

/* An outbox item, leased to this process. Valid during the callback. */
struct store_push {
    const char *owner, *primary_key, *sync_id;
    int64_t row_version, lease_ms;
    unsigned tries;            /* that failed before */
    struct store_route second; /* the owner's second server; login "" = there is none any more */
    unsigned n_blobs;          /* 2: a pair, incoming then outgoing copy; 1: an incoming copy or a
                                  tombstone; 0: what it names is gone */
    enum dm_type type[2];
    const uint8_t *blob[2];
    size_t blob_len[2];
};
typedef void (*store_push_cb)(void *ctx, enum db_status st, const struct store_push *rows, size_t n,
                              const struct store_claimed *c);
void store_claim_pushes(struct store *s, const struct store_claim *c, store_push_cb cb, void *ctx);

enum store_push_outcome {
    STORE_PUSH_ACKED,  /* a 2xx acknowledged this sync_id: synced; other waiting items of the owner
                          that failed before become due */
    STORE_PUSH_FAILED, /* again after 30 s, 5 min, 25 min and 1 h, then left to the pull */
    STORE_PUSH_GIVEN_BACK /* nothing was tried: due again after retry_after_ms */
};
/* The result of one push. Grouped. Recorded only for the lease and row version it was claimed with;
 * an acknowledgement of the current sync_id counts whoever holds the row. */
struct store_push_result {
    struct db_batch_item item;
    const char *owner, *primary_key, *sync_id;
    int64_t row_version;
    enum store_push_outcome outcome;
    int64_t retry_after_ms;
    void (*done)(struct store_push_result *r, enum db_status st);
    void *ctx;

    bool recorded;
};
void store_finish_push(struct store *s, struct store_push_result *r);

/* --- both --- */

/* Tell deliveryd that something may be due: a NOTIFY on channel shine_due outside any other
 * transaction. A hint: its tick finds what was not told. Fire and forget. */
void store_notify_due(struct store *s);

/* Give back, due at once, all delivery rows and outbox items that this process holds; for an
 * orderly stop, when nothing is under way. `lease_ms`: the longest lease it has asked for. */
typedef void (*store_done_cb)(void *ctx, enum db_status st);
void store_release_claims(struct store *s, int64_t lease_ms, store_done_cb cb, void *ctx);

#endif
