/*
 * Users, their keys and access servers, and the servers we know (tables users, user_keys,
 * user_access_servers_current, sync_servers).
 */
#ifndef SHINE_STORE_USERS_H
#define SHINE_STORE_USERS_H

#include "store/store.h"

struct store_user {
    char login[DM_LOGIN_MAX + 1];
    uint8_t client_key[DM_KEY_BYTES];
    unsigned n_servers; /* 0..2, in slot order */
    struct store_route servers[2];
    const char *enc_key;     /* Base64, or NULL; valid during the callback */
    const char *enc_key_sig; /* Base64, or NULL */
    const char *source;      /* local, partner, provisional, profile */
    int64_t age_ms;          /* since the record was last confirmed; reads only */
    const char *profile;     /* the signed profile as JSON, or NULL; reads only */
};

/* Look up one user. `user` is NULL if there is none. */
typedef void (*store_user_cb)(void *ctx, enum db_status st, const struct store_user *user);
void store_get_user(struct store *s, const char *login, store_user_cb cb, void *ctx);

enum store_add { STORE_ADDED, STORE_SAME, STORE_OTHER_KEY };
/* Add a local user. STORE_SAME: exists with this key, nothing changed; STORE_OTHER_KEY: exists with
 * another, nothing changed. STORE_ADDED also when an imported record of the same key became local,
 * because the user is now to be served here. */
typedef void (*store_add_cb)(void *ctx, enum db_status st, enum store_add verdict);
void store_add_user(struct store *s, const struct store_user *user, store_add_cb cb, void *ctx);

/* Replace a user's access servers (1..2) and rewrite the route hints of waiting rows. *found* false
 * if there is no such user. */
typedef void (*store_found_cb)(void *ctx, enum db_status st, bool found);
void store_set_servers(struct store *s, const char *login, const struct store_route *servers,
                       unsigned n, store_found_cb cb, void *ctx);

/* Add a partner server or change its URL; `key_b64` (may be NULL) is added to its public keys. */
typedef void (*store_done_cb)(void *ctx, enum db_status st);
void store_add_server(struct store *s, const char *login, const char *url, const char *key_b64,
                      store_done_cb cb, void *ctx);

/* All partner servers. `rows` is valid during the callback. */
struct store_server {
    char login[SHINE_SERVER_LOGIN_MAX + 1];
    char url[SHINE_URL_MAX + 1];
    bool blocked;
};
typedef void (*store_servers_cb)(void *ctx, enum db_status st, const struct store_server *rows,
                                 size_t n);
void store_list_servers(struct store *s, store_servers_cb cb, void *ctx);

#endif
