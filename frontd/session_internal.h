/*
 * Shared by session.c (one connection) and sessions.c (all of them). Not for anybody else.
 */
#ifndef SHINE_FRONTD_SESSION_INTERNAL_H
#define SHINE_FRONTD_SESSION_INTERNAL_H

#include "frontd/pump.h"
#include "frontd/session.h"
#include "util/list.h"
#include "util/map.h"

#define SESSION_REMOTE_MAX 63
enum { SESSION_CLOSE_GOING_AWAY = 1001, SESSION_CLOSE_REFUSED = 1008, SESSION_CLOSE_LOST = 1012 };

struct nonce {
    char text[SESSION_NONCE_LEN + 1]; /* "" = none outstanding */
    char subject[SHINE_SESSION_ID_LEN + 1];
    int64_t expires_ms;
};

struct session {
    struct rpc_conn conn; /* first: the calls know only this */
    struct sessions *all;
    struct ws_conn *ws; /* NULL once the connection has ended */
    struct list link;   /* on all->connected while `ws` is set */
    unsigned in_flight; /* calls not answered yet */
    bool parsing;       /* a large request is on the thread pool */
    bool paused;        /* reading is stopped */
    bool closing;       /* ws_close() was called */
    size_t send_buffer; /* the bound of what waits to be sent */
    size_t reserved;    /* of it, for answers under way */
    char login[DM_LOGIN_MAX + 1];
    char id[SHINE_SESSION_ID_LEN + 1];
    int64_t generation;
    struct session_claim *claim; /* what it said in ServerHello (identity.c); NULL = nothing */
    char remote[SESSION_REMOTE_MAX + 1];
    struct nonce nonces[SESSION_NONCE_KINDS];
    struct pump_member member;
};

/* Connections of one remote address. */
struct address {
    size_t n;
};

struct sessions {
    struct frontd *f;
    struct ws_limits limits;
    unsigned max_in_flight; /* of one connection */
    size_t max_connections, max_per_address;
    struct list connected;
    size_t n_connected;
    size_t n_sessions;      /* connected ones and those whose last calls are still unanswered */
    size_t in_flight;       /* calls of all sessions */
    struct map *by_id;      /* session id -> the connection logged into it */
    struct map *by_address; /* remote address -> struct address */
    int64_t refused;        /* connections, since the start */
    int64_t refused_logged_ms;
    struct session_check *check;
    bool stopping;
    uv_timer_t stop_timer; /* deadline for what is in flight */
    void (*on_stopped)(void *ctx);
    void *stopped_ctx;
};

extern const struct ws_callbacks session_callbacks;
struct session *session_new(struct sessions *all, struct ws_conn *ws, const char *remote);
void session_close(struct session *s, int code, const char *reason);
/* Another connection has the session now: no more events, closed with 4001. */
void session_take_over(struct session *s);
/* The session was removed: no more events, closed with 4002. */
void session_remove(struct session *s);

/* The connection of `s` has ended. */
void sessions_disconnected(struct session *s);
/* `s` is about to be freed. */
void sessions_removed(struct session *s);

#endif
