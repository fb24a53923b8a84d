/*
 * Delivery rows (table dm_delivery_state): results of attempts, and their state for peers and
 * people.
 */
#ifndef SHINE_STORE_DELIVERY_H
#define SHINE_STORE_DELIVERY_H

#include "store/messages.h"

enum store_outcome {
    STORE_ATTEMPT_DELIVERED, /* a route answered 2xx */
    STORE_ATTEMPT_FAILED,    /* some route was really tried, or there was none: the slot is used */
    STORE_ATTEMPT_GIVEN_BACK /* nothing was tried: due again after `retry_after_ms`, the slot is not
                                used */
};

/* The result of one attempt. Grouped. Recorded only if the row still is of this revision, row
 * version and lease; a success also turns an accepted row of the same revision delivered when the
 * lease was lost. */
struct store_finish {
    struct db_batch_item item;
    const char *from_login, *outgoing_key;
    int64_t revision_time_ms, reencrypted_at_ms, row_version;
    enum store_outcome outcome;
    const char *via;   /* server login that confirmed; "" otherwise */
    const char *error; /* short reason for people; "" otherwise */
    int64_t retry_after_ms;
    void (*done)(struct store_finish *f, enum db_status st);
    void *ctx;

    bool recorded; /* false: the lease was lost, or the row is final or gone; nothing was changed */
    enum dm_state state;    /* as it stands now; NONE if the row is gone */
    struct store_told from; /* the sender's DmDeliveryStateChanged, if one was appended */
};
void store_finish_attempt(struct store *s, struct store_finish *f);

/* GetDmDeliveryStatus: any key form (incoming, outgoing, tombstone). */
struct store_delivery_status {
    bool known, delivered;
    int64_t revision_time_ms, reencrypted_at_ms;
};
typedef void (*store_delivery_status_cb)(void *ctx, enum db_status st,
                                         const struct store_delivery_status *row);
void store_delivery_status(struct store *s, const struct dm_key *key, store_delivery_status_cb cb,
                           void *ctx);

/* One line of v_delivery as names and texts, for shinectl. `n` 0: no such row. */
struct store_text_row {
    size_t n;
    const char *const *names;
    const char *const *values; /* NULL = SQL NULL */
};
typedef void (*store_text_cb)(void *ctx, enum db_status st, const struct store_text_row *row);
void store_delivery_show(struct store *s, const struct dm_key *key, store_text_cb cb, void *ctx);

/* Let a row that was set aside be claimed like any other again, at once. */
enum store_release { STORE_RELEASE_NO_ROW, STORE_RELEASE_NOT_SET_ASIDE, STORE_RELEASED };
typedef void (*store_release_cb)(void *ctx, enum db_status st, enum store_release verdict);
void store_delivery_release(struct store *s, const struct dm_key *key, store_release_cb cb,
                            void *ctx);

#endif
