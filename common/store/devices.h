/*
 * A user's own sessions (devices) as they are listed, closed, and found to be outdated.
 */
#ifndef SHINE_STORE_DEVICES_H
#define SHINE_STORE_DEVICES_H

#include "store/sessions.h"

/* The session that asks, as its connection knows it. Borrowed for the call. */
struct store_asking {
    const char *login, *session_id;
    int64_t generation;
};

struct store_device {
    const char *session_id;
    const char *client_info; /* JSON text, or NULL */
    enum store_event_mode mode;
    int64_t created_at_ms, seen_at_ms, acked_pts;
    bool connected; /* to a process that lives */
};
/* One page in order of session id; `more`: others come after the last one. `valid` false: the
 * asking session was closed or taken over, there are no rows. `rows` is valid during the callback.
 */
typedef void (*store_devices_cb)(void *ctx, enum db_status st, bool valid,
                                 const struct store_device *rows, size_t n, bool more);
/* Sessions of the asking one's user with an id above `after` ("" = from the first). The page holds
 * at most `max_bytes`, counting `item_bytes` (not 0) for each and its client_info, but at least
 * one.
 */
void store_list_sessions(struct store *s, const struct store_asking *who, const char *after,
                         size_t item_bytes, size_t max_bytes, store_devices_cb cb, void *ctx);

enum store_close {
    STORE_CLOSE_OK, /* the row is gone; connections of it are the caller's business */
    STORE_CLOSE_NOT_FOUND,
    STORE_CLOSE_OF_ANOTHER, /* the session of another user */
    STORE_CLOSE_NOT_VALID,  /* the asking session was closed or taken over itself */
};
/* `verdict` means something only with DB_OK. */
typedef void (*store_close_cb)(void *ctx, enum db_status st, enum store_close verdict);
/* Remove a session, which may be the asking one. */
void store_close_session(struct store *s, const struct store_asking *who, const char *session_id,
                         store_close_cb cb, void *ctx);

struct store_outdated {
    const char *session_id;
    int64_t asked;  /* the generation asked about */
    int64_t stored; /* the one in the database; 0: the session is gone */
};
typedef void (*store_outdated_cb)(void *ctx, enum db_status st, const struct store_outdated *rows,
                                  size_t n);
/* Of these sessions, those that are gone or at another generation than given. `rows` is valid
 * during the callback. */
void store_outdated_sessions(struct store *s, const char *const *session_ids,
                             const int64_t *generations, size_t n, store_outdated_cb cb, void *ctx);

#endif
