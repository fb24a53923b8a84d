/*
 * Who a login is: client key and access servers, from this server's own table, through a small
 * cache; and for users who are not in the table, from other servers (import.h), if the process asks
 * them.
 *
 * Keys do not change in protocol version 1, so a cached key may be used; access servers do change,
 * so decisions that depend on them (served here? routes?) are made by the store inside its
 * transactions, never from this cache. Look-ups of one login are joined. A missing user is
 * remembered for a short while only.
 *
 * A record older than `ttl_ms` is compared in the background with what other servers say when it is
 * next read; meanwhile it is used as it is. So a signed profile reaches every server in the end,
 * whoever missed it, the user's own ones included.
 */
#ifndef SHINE_DIRECTORY_DIRECTORY_H
#define SHINE_DIRECTORY_DIRECTORY_H

#include <uv.h>

#include "directory/import.h"
#include "store/users.h"

struct directory;

/* What the cache keeps of a user. */
struct directory_user {
    char login[DM_LOGIN_MAX + 1];
    uint8_t client_key[DM_KEY_BYTES];
    /* Logins of the access servers as they were when last read, "" where there is none. Only to
     * tell servers from clients: what is served here, and where messages go, is the store's word.
     */
    char servers[2][SHINE_SERVER_LOGIN_MAX + 1];
    bool provisional; /* the key is the word of a server that is no partner */
};

enum directory_result {
    DIRECTORY_FOUND,
    DIRECTORY_NO_USER,
    /* The rest are failures: nothing is known, nothing is kept. */
    DIRECTORY_UNAVAILABLE,    /* no other server could be asked: try again */
    DIRECTORY_DB_UNAVAILABLE, /* our own table could not be read just now: try again */
    DIRECTORY_DB_ERROR        /* our own table cannot be read; the store has logged why */
};
static inline bool directory_failed(enum directory_result r)
{
    return r >= DIRECTORY_UNAVAILABLE;
}

/* `ttl_ms` for users found, `missing_ttl_ms` for those not found; at most `max_entries` are kept.
 */
struct directory *directory_new(uv_loop_t *loop, struct store *store, int64_t ttl_ms,
                                int64_t missing_ttl_ms, size_t max_entries);
/* No look-up may be under way. */
void directory_free(struct directory *d);
/* From now on ask other servers about users who are not in the table; `peers` is borrowed. Once. */
void directory_ask_others(struct directory *d, struct peer_pool *peers,
                          const struct import_limits *limits);
/* Stop asking them, before the pool is closed. */
void directory_stop(struct directory *d);

/* The cached user, or NULL if it must be fetched. Valid until control returns to the loop. */
const struct directory_user *directory_peek(struct directory *d, const char *login);
/* Look up, joined with others for the same login. `user` is NULL unless DIRECTORY_FOUND. Never
 * synchronous. */
typedef void (*directory_cb)(void *ctx, enum directory_result r, const struct directory_user *user);
void directory_fetch(struct directory *d, const char *login, directory_cb cb, void *ctx);
/* The same for a user whom the server `sender` ("" = none) wants known here: if nobody else knows
 * the login, it is asked too. */
void directory_fetch_from(struct directory *d, const char *login, const char *sender,
                          directory_cb cb, void *ctx);
/* Look up afresh: other servers are asked whatever is cached and whether the table has the user or
 * not (but not twice within a few seconds), and the table is brought up to date; of a local user
 * only a newer signed profile is taken. FOUND does not say that anything changed; NO_USER: no other
 * server knows the login. */
void directory_refresh(struct directory *d, const char *login, directory_cb cb, void *ctx);
/* Forget one login (it was added or changed here, or by another process: STORE_USER_CHANGED), or
 * all of them (such a hint may have been missed). */
void directory_forget(struct directory *d, const char *login);
void directory_forget_all(struct directory *d);

#endif
