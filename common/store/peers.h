/*
 * Other servers, as the connection pool of a process sees them (table sync_servers).
 */
#ifndef SHINE_STORE_PEERS_H
#define SHINE_STORE_PEERS_H

#include "store/store.h"

/* A row of sync_servers. The strings are valid during the callback; none is checked. */
struct store_partner {
    const char *login, *url;
    const char *public_keys; /* Base64, separated by spaces; "" = none is known */
    bool blocked;
};
/* All of them, ordered by login. `rows` is valid during the callback. */
typedef void (*store_partners_cb)(void *ctx, enum db_status st, const struct store_partner *rows,
                                  size_t n);
void store_read_partners(struct store *s, store_partners_cb cb, void *ctx);

#endif
