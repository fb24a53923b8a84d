/*
 * Whose turn it is to be pulled from their second server (table sync_leases): claimed with a lease,
 * one owner of each server at a time in a process.
 */
#ifndef SHINE_STORE_TURNS_H
#define SHINE_STORE_TURNS_H

#include "store/messages.h"

/* Make owners due: all who have a second server, or those of `server` (NULL = all); some after
 * `after` ("" = from the first). `last` is where to go on, NULL = that was all. */
typedef void (*store_ordered_cb)(void *ctx, enum db_status st, const char *last);
void store_order_turns(struct store *s, const char *server, const char *after, store_ordered_cb cb,
                       void *ctx);

/* A turn, leased to this process. Valid during the callback. */
struct store_turn {
    char owner[DM_LOGIN_MAX + 1];
    struct store_route server;
};
typedef void (*store_turns_cb)(void *ctx, enum db_status st, const struct store_turn *rows,
                               size_t n);
/* At most `max`, none of the servers in `skip`. */
void store_claim_turns(struct store *s, const char *const *skip, size_t n_skip, unsigned max,
                       int64_t lease_ms, store_turns_cb cb, void *ctx);
/* `held` false: somebody else has taken it over. */
typedef void (*store_renewed_cb)(void *ctx, enum db_status st, bool held);
void store_renew_turn(struct store *s, const struct store_turn *t, int64_t lease_ms,
                      store_renewed_cb cb, void *ctx);

struct store_turn_end {
    int64_t moved;      /* items */
    const char *result; /* for people */
    int64_t next_ms;    /* the next turn is due so long from now */
    bool complete;      /* everything was seen: notes about refused items that are gone go, too */
};
typedef void (*store_turn_ended_cb)(void *ctx, enum db_status st);
/* Record the end of a turn and give the lease back; nothing happens if it is no longer ours. */
void store_finish_turn(struct store *s, const struct store_turn *t, const struct store_turn_end *e,
                       store_turn_ended_cb cb, void *ctx);

/* --- what a page does beside storing its items --- */

/* At the end of a page: one event for each of these owners whose history it changed; NULL = for
 * whoever is left over from a puller that was killed. The owners who have events now. */
typedef void (*store_history_told_cb)(void *ctx, enum db_status st, const char *const *owners,
                                      size_t n);
void store_tell_history(struct store *s, const char *const *owners, size_t n,
                        store_history_told_cb cb, void *ctx);
/* Note items that were refused, with the reasons; before the turn is finished, which removes the
 * notes that are older than it. */
void store_note_rejects(struct store *s, const struct store_turn *t, const char *const *sync_ids,
                        const char *const *reasons, size_t n, store_turn_ended_cb cb, void *ctx);

#endif
