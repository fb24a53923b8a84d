/*
 * The serving half of replication: what the second server of an owner fetches from the outbox
 * (table dm_sync_outbox) and from the settings, and the order to offer everything again.
 */
#ifndef SHINE_STORE_SYNC_H
#define SHINE_STORE_SYNC_H

#include "store/delivery.h"
#include "store/settings.h"

/* Bounds of one page, and what stands for them where a request says nothing. */
#define STORE_SYNC_LIMIT_MAX 500
#define STORE_SYNC_BYTES_MAX 3000000
/* primaryMessageKey:revisionTimeMs:reencryptedAtMs:digest, or name:timeMs:digest. */
#define STORE_SYNC_ID_MAX (DM_SETTING_NAME_MAX + 3 * 17 + 20)

struct store_pull {
    const char *owner;
    const char *caller;      /* login of the asking server as far as it is known; NULL = it has not
                                said it */
    bool trust_anonymous;    /* one that has not may pull, if the server it may be has no key */
    int64_t after_stored_ms; /* the cursor: what comes after it, */
    const char *after_key;   /* by stored time, then key or name */
    unsigned limit;          /* ≤ STORE_SYNC_LIMIT_MAX */
    int64_t max_bytes;       /* ≤ STORE_SYNC_BYTES_MAX of blobs or values; one item is returned
                                even if it alone is larger */
    const char *const *acks; /* sync ids, applied first; those that name nothing as it is now are
                                ignored */
    size_t n_acks;
};

enum store_pull_verdict {
    STORE_PULL_OK,
    STORE_PULL_NOT_SERVED, /* we do not serve the owner, and hold nothing from when we did */
    STORE_PULL_NOT_ALLOWED /* the caller does not serve the owner */
};

struct store_sync_item {
    const char *sync_id, *primary_key;
    int64_t stored_at_ms;
    unsigned n_blobs; /* 2: a pair, incoming then outgoing copy; 1: one copy or a tombstone */
    const uint8_t *blob[2];
    size_t blob_len[2];
};
/* Acknowledge, then read a page. `rows` is valid during the callback; `more`: others come after
 * them. */
typedef void (*store_sync_cb)(void *ctx, enum db_status st, enum store_pull_verdict verdict,
                              const struct store_sync_item *rows, size_t n, bool more);
void store_sync_page(struct store *s, const struct store_pull *p, store_sync_cb cb, void *ctx);

struct store_sync_setting {
    const char *sync_id;
    struct store_setting setting;
    int64_t stored_at_ms;
};
typedef void (*store_sync_settings_cb)(void *ctx, enum db_status st,
                                       enum store_pull_verdict verdict,
                                       const struct store_sync_setting *rows, size_t n, bool more);
/* The same for settings. */
void store_sync_settings_page(struct store *s, const struct store_pull *p,
                              store_sync_settings_cb cb, void *ctx);

/* Offer everything of `login` to their second server again. Settings are marked at once, messages
 * by housekeeping; the numbers tell how many there are, 0 where there is no second server. */
struct store_marked {
    int64_t users, settings, dms;
    const char
        *last; /* all users: where to go on; NULL = that was all. Valid during the callback */
};
typedef void (*store_marked_cb)(void *ctx, enum db_status st, const struct store_marked *m);
void store_mark_unsynced(struct store *s, const char *login, store_marked_cb cb, void *ctx);
/* The same for up to `limit` users after `after` ("" = from the first). */
void store_mark_all_unsynced(struct store *s, const char *after, unsigned limit, store_marked_cb cb,
                             void *ctx);

/* GetDmDeliveryStatuses: one row per key, in order. */
typedef void (*store_delivery_statuses_cb)(void *ctx, enum db_status st,
                                           const struct store_delivery_status *rows, size_t n);
void store_delivery_statuses(struct store *s, const struct dm_key *keys, size_t n,
                             store_delivery_statuses_cb cb, void *ctx);

#endif
