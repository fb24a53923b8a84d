/*
 * Other servers, as the connection pool of a process sees them (tables sync_servers,
 * user_access_servers_current, peer_connections).
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

/* Which of `n` servers no user names any more, under that URL: their indexes. `which` is valid
 * during the callback. */
typedef void (*store_unnamed_cb)(void *ctx, enum db_status st, const size_t *which, size_t n);
void store_unnamed_peers(struct store *s, const struct store_route *peers, size_t n,
                         store_unnamed_cb cb, void *ctx);

/* All servers but this one: partners that are not blocked, then those that users name, at most
 * `limit`. `rows` is valid during the callback. */
typedef void (*store_known_cb)(void *ctx, enum db_status st, const struct store_route *rows,
                               size_t n);
void store_known_peers(struct store *s, unsigned limit, store_known_cb cb, void *ctx);

/* A peer of a process as people shall see it. Times are milliseconds ago, -1 = never. */
struct store_peer_row {
    const char *login, *url, *state, *last_error;
    int64_t connected_ms, active_ms, ping_ms, pong_ms, error_ms;
    int64_t reconnects, queued[3], in_flight, ok, failed, timed_out, late;
};
/* Write what has changed of this process's peers, and remove the `n_gone` ones that it has no more.
 * Lazy commit. *written* is false if the process is not registered: nothing was written. */
typedef void (*store_written_cb)(void *ctx, enum db_status st, bool written);
void store_write_peers(struct store *s, const struct store_peer_row *rows, size_t n,
                       const struct store_route *gone, size_t n_gone, store_written_cb cb,
                       void *ctx);

/* Block a server, partner or not, or let it in again. *changed* is false if it was so already. */
typedef void (*store_blocked_cb)(void *ctx, enum db_status st, bool changed);
void store_block_server(struct store *s, const char *login, bool blocked, store_blocked_cb cb,
                        void *ctx);

/* A line of v_peers. The strings are valid during the callback. */
struct store_peer_line {
    const char *login, *url, *process, *state, *last_error, *error_ago, *connected_ago;
    bool partner;
    int64_t queued, in_flight, ok, failed, timed_out;
};
/* What all processes say, ordered by server. `rows` is valid during the callback. */
typedef void (*store_peer_lines_cb)(void *ctx, enum db_status st,
                                    const struct store_peer_line *rows, size_t n);
void store_list_peers(struct store *s, store_peer_lines_cb cb, void *ctx);

#endif
