/*
 * One WebSocket connection of a client or another server: its requests in flight, what it has
 * proved about itself, and the events it is sent.
 *
 *   connected -> anonymous -> logged in -> closing -> closed
 *                    \________ (peer said ServerHello) ___^
 *
 * A connection logs in at most once at a time; a further log-in replaces the former. The struct
 * lives until the connection has ended *and* its last call is answered, so session_of() is safe
 * until the answer; the answers of a connection that has ended are dropped.
 */
#ifndef SHINE_FRONTD_SESSION_H
#define SHINE_FRONTD_SESSION_H

#include "frontd/frontd.h"
#include "net/ws.h"

struct session;

/* The connection of a call. Valid until the call is answered. */
struct session *session_of(const struct rpc_call *call);

/* Login and session id of the user; NULL while not logged in. Valid until control returns to the
 * loop. */
const char *session_login(const struct session *s);
const char *session_id(const struct session *s);
/* The generation this connection logged in as: a later log-in into the session has a higher one. */
int64_t session_generation(const struct session *s);
/* Numeric remote address. */
const char *session_remote(const struct session *s);
/* Reserve room for an answer of `bytes` in the send buffer, whose bound is raised by so much once:
 * the pages that servers ask for are larger than what a client may have waiting. false, and nothing
 * reserved, if too much waits already or is reserved. Released before the answer is given. */
bool session_reserve(struct session *s, size_t bytes);
void session_release(struct session *s, size_t bytes);
/* True once the connection has ended: an answer would reach nobody. */
bool session_is_closed(const struct session *s);

/* --- which server a caller is (identity.c) --- */

/* The server login this connection said in ServerHello; NULL if it said none. Said, not proved:
 * enough to free it from rules for clients only. Valid until control returns to the loop. */
const char *session_peer(const struct session *s);
/* True if session_peer() may be acted upon: identity-bound operations, and being the source of what
 * it brings. Proven by a key where one is known for that login, taken on trust where none is. False
 * for a blocked server, and until sync_servers has been read. Ask anew for every request: operators
 * change that table while connections last. */
bool session_peer_believed(const struct session *s);
/* True if it proved to be session_peer() by a key that is known for that login now. */
bool session_peer_proven(const struct session *s);
/* It said to be `server_login`; nothing is proved any more. */
void session_set_peer(struct session *s, const char *server_login);

/* --- log-in (op_auth.c) --- */

enum session_nonce { SESSION_NONCE_AUTH, SESSION_NONCE_LOGIN, SESSION_NONCE_KINDS };
#define SESSION_NONCE_LEN 44 /* Base64 of 32 bytes */
/* Make a nonce of one kind for `subject` (the login or session id it was asked for); it replaces an
 * older one of that kind. Valid 60 s, used once. Borrowed until the next nonce. */
const char *session_nonce_new(struct session *s, enum session_nonce kind, const char *subject);
/* Use up the outstanding nonce, whatever comes of it: true with *nonce if there is a fresh one made
 * for `subject`. */
bool session_nonce_take(struct session *s, enum session_nonce kind, const char *subject,
                        char nonce[SESSION_NONCE_LEN + 1]);

/* What a successful log-in makes of the connection. */
struct session_identity {
    const char *login, *session_id; /* copied */
    int64_t generation;
    int64_t epoch, last_pts; /* events after last_pts are sent */
    bool pts_mode;           /* it declared eventMode pts */
};
/* The connection is logged in from now on, and events follow the answer that the caller is about to
 * give. A connection of this worker in the same session is closed with 4001. If this connection has
 * ended meanwhile, the session is marked disconnected instead. */
void session_log_in(struct session *s, const struct session_identity *id);

/* --- all connections of a worker (sessions.c) --- */

/* No connections yet. Freed by sessions_free(). */
struct sessions;
struct sessions *sessions_new(struct frontd *f);
/* Ends with every connection gone. */
void sessions_free(struct sessions *ss);
/* The limits of accepted connections; for ws_listen(). */
const struct ws_limits *sessions_limits(const struct sessions *ss);
/* For ws_listen(); its `ctx` is the struct sessions. */
bool sessions_accept(struct ws_listener *l, void *ctx, struct ws_conn *conn, const char *remote,
                     const struct ws_callbacks **callbacks, void **conn_ctx);
/* The generation of a session that was removed: later than all. */
#define SESSION_CLOSED INT64_MAX
/* The session is at `generation` now, because a connection of another process logged into it or
 * because it was removed: an older connection here is closed with 4001, or 4002. Late and repeated
 * calls change nothing. */
void sessions_taken_over(struct sessions *ss, const char *session_id, int64_t generation);
/* Take no further requests; when those in flight are answered, or after `deadline_ms`, close every
 * connection with 1001; `on_done` follows when the last one has ended. */
void sessions_stop(struct sessions *ss, uint32_t deadline_ms, void (*on_done)(void *ctx),
                   void *ctx);

#endif
