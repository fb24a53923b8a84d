/*
 * Client sessions and processes (tables active_sessions, processes), and the event log as sessions
 * read it.
 */
#ifndef SHINE_STORE_SESSIONS_H
#define SHINE_STORE_SESSIONS_H

#include "store/store.h"

enum store_event_mode { STORE_EVENTS_LIVE, STORE_EVENTS_PTS };

struct store_new_session {
    const char *session_id; /* SHINE_SESSION_ID_LEN characters */
    const char *login;
    uint8_t session_key[DM_KEY_BYTES];
    const char *storage_pwd;
    const char *client_info; /* JSON text, or NULL */
    enum store_event_mode mode;
    unsigned max_per_user;
};
struct store_session {
    enum { STORE_SESSION_OK, STORE_SESSION_NOT_FOUND, STORE_SESSION_TOO_MANY } verdict;
    char login[DM_LOGIN_MAX + 1];
    uint8_t session_key[DM_KEY_BYTES];
    const char *storage_pwd; /* valid during the callback */
    int64_t epoch, last_pts, acked_pts;
    int64_t
        generation; /* of this connection; a later log-in into the same session has a higher one */
};
/* `row` is NULL unless DB_OK. */
typedef void (*store_session_cb)(void *ctx, enum db_status st, const struct store_session *row);

/* Create a session, connected to this process. Creates the owner's event head if missing. */
void store_create_session(struct store *s, const struct store_new_session *n, store_session_cb cb,
                          void *ctx);
/* Read a session without touching it (before its signature is checked). */
void store_get_session(struct store *s, const char *session_id, store_session_cb cb, void *ctx);
/* Log into a session: connected to this process, next generation, positions read in the same
 * statement, so that no event falls between. */
void store_login_session(struct store *s, const char *session_id, const char *client_info,
                         enum store_event_mode mode, store_session_cb cb, void *ctx);
/* The connection has ended: no longer connected here, unless a later generation is. Fire and
 * forget. */
void store_disconnect_session(struct store *s, const char *session_id, int64_t generation);

/* --- events --- */

enum store_event_kind {
    STORE_EVENT_MESSAGE,
    STORE_EVENT_STATE,
    STORE_EVENT_SETTING, /* message_key is its name, blob its signature */
    STORE_EVENT_HISTORY  /* message_key lists the other parties, joined by commas */
};

struct store_event {
    const char *owner;
    int64_t pts;
    enum store_event_kind kind;
    const char *message_key, *base_key; /* STATE: the outgoing key */
    bool gone;                          /* the message is no longer stored */
    const char *from, *to;
    int type;
    int64_t time_ms, revision_time_ms, reencrypted_at_ms;
    const char *delivery_state; /* NULL = none */
    const uint8_t *blob;
    size_t blob_len;
    const char *value; /* SETTING; otherwise NULL */
    bool more;         /* on an owner's last row: further events wait behind it */
};
/* Events of several owners after a position each, ordered by owner (as given) and pts. At most
 * `limit` per owner and about 1 MiB of blobs per owner, but at least one. `rows` is valid during
 * the callback. Cheap for owners with nothing new. */
typedef void (*store_events_cb)(void *ctx, enum db_status st, const struct store_event *rows,
                                size_t n);
void store_events_since(struct store *s, const char *const *owners, const int64_t *after, size_t n,
                        unsigned limit, store_events_cb cb, void *ctx);

/* Tell the other processes that these owners have new events: a NOTIFY on channel shine_events
 * outside any other transaction. Payload: logins joined by commas, or empty (= look at everyone) if
 * they do not fit. frontd's pump adds entries of its own that are no logins. Fire and forget. */
void store_notify_events(struct store *s, const char *const *owners, size_t n);

/* --- processes --- */

/* Register this process, and clear what dead ones left (their rows older than 60 s, their sessions'
 * connections). */
void store_process_register(struct store *s, const char *kind, const char *host, int64_t pid,
                            void (*cb)(void *ctx, enum db_status st), void *ctx);
/* Every 10 s; lazy commit. Registers again if the row has vanished. */
void store_process_heartbeat(struct store *s, const char *kind, const char *host, int64_t pid);
/* Last act of a clean stop: row removed, its sessions no longer connected, its leases given back.
 */
void store_process_unregister(struct store *s, void (*cb)(void *ctx, enum db_status st), void *ctx);

#endif
