/*
 * Signed profiles (table user_profiles), every key of a user (user_keys), and the hint that a
 * user's record has changed.
 */
#ifndef SHINE_STORE_PROFILES_H
#define SHINE_STORE_PROFILES_H

#include "dm/container.h"
#include "store/users.h"

/* What a signed profile has beyond a user's record. All borrowed. */
struct store_profile {
    int64_t time_ms;
    uint8_t signature[DM_SIG_BYTES];
    const char *enc_key, *enc_key_sig; /* Base64, or NULL: it carries none */
    const char *record;                /* its fields as JSON, told to others unchanged */
};

enum store_profile_verdict {
    STORE_PROFILE_APPLIED,   /* it holds now; everything that depends on the servers has changed */
    STORE_PROFILE_NOT_NEWER, /* the one we have stays */
    STORE_PROFILE_OTHER_KEY,
    STORE_PROFILE_NO_USER,
    STORE_PROFILE_TOO_EARLY,   /* its time is further ahead than allowed */
    STORE_PROFILE_NOT_BELIEVED /* it names this server, and the key is the word of a stranger */
};

#define STORE_PROFILE_READERS 4

struct store_published {
    enum store_profile_verdict verdict;
    bool provisional; /* the key that we have is the word of a server that is no partner */
    unsigned n;       /* applied: the other servers that must hear of it, those of up to now and */
    struct store_route readers[STORE_PROFILE_READERS]; /* those it names, at the URLs to dial */
};

/* Let a profile hold if it is the newest. `user`: login, key and servers that it names. The caller
 * has checked its signatures. `max_future_ms`: how far its time may be ahead of the database's
 * clock, -1 = as far as it likes. */
typedef void (*store_published_cb)(void *ctx, enum db_status st, const struct store_published *r);
void store_publish_profile(struct store *s, const struct store_user *user,
                           const struct store_profile *profile, int64_t max_future_ms,
                           store_published_cb cb, void *ctx);

/* Every client key ever accepted for `login`, the newest first, at most 100. `keys` is valid during
 * the callback. Old containers, as replication brings them, may be signed by any of them. */
typedef void (*store_keys_cb)(void *ctx, enum db_status st, const uint8_t (*keys)[DM_KEY_BYTES],
                              size_t n);
void store_get_keys(struct store *s, const char *login, store_keys_cb cb, void *ctx);

/* Other servers were asked about a record that is not theirs, and had nothing newer: it counts as
 * confirmed now. Nobody waits. */
void store_confirm_user(struct store *s, const char *login);

/* Tell every process that the record of `login` has changed: an entry STORE_USER_CHANGED followed
 * by the login in a NOTIFY on channel shine_events, outside any other transaction. A hint: it may
 * be lost, and whoever keeps records drops them after a while anyway. `cb` may be NULL. */
#define STORE_USER_CHANGED '~'
void store_tell_user_changed(struct store *s, const char *login, store_done_cb cb, void *ctx);

#endif
