/*
 * The event pump: what was committed to an owner's event log goes to the sessions of that owner
 * connected to this worker, in pts order, without gap or repeat.
 *
 * An owner with connected sessions is in one of these states:
 *
 *   idle ----told: the next pts----> idle            (sent from memory, no read)
 *   idle ----told: a gap, hint, poll--> waiting ----> reading ----> idle
 *                                          ^___(more came)___|
 *
 * The log in the database is the truth. What an operation of this worker tells is a short cut
 * that saves the read when its pts is the next one; what other processes notify is a hint; a poll
 * every events.pollMs finds what a lost hint missed. At most one read per owner is in flight, and
 * one statement reads for many owners.
 *
 * Each event is written as text once for all sessions of its owner.
 */
#ifndef SHINE_FRONTD_PUMP_H
#define SHINE_FRONTD_PUMP_H

#include "frontd/frontd.h"
#include "store/messages.h"
#include "store/settings.h"
#include "util/list.h"

struct pump;

/* One for a worker, which outlives it. Ended by pump_close(). */
struct pump *pump_new(struct frontd *f);
/* Send the hints that are collected and stop reading, listening and polling. Sessions have been
 * removed before; operations may still tell, it goes nowhere. */
void pump_stop(struct pump *p);
/* After pump_stop(), when the database is closed. */
void pump_free(struct pump *p);

/* --- operations tell what they have committed --- */

/* A container of `owner` was stored. `copy` is borrowed for the call. `state` is the delivery state
 * that goes into the event (texts: of the outgoing copy; DM_STATE_NONE = none). Costs nothing if
 * nobody of that owner is connected here. Tell one owner's events in pts order: for a note to self
 * the incoming copy first. told->pts 0 is ignored. */
void pump_told_message(struct pump *p, const char *owner, const struct store_told *told,
                       const struct store_copy *copy, enum dm_state state);
/* The delivery state of a sent text became `state`. */
void pump_told_state(struct pump *p, const char *owner, const struct store_told *told,
                     const char *outgoing_key, enum dm_state state);

/* A setting of `owner` was changed. */
void pump_told_setting(struct pump *p, const char *owner, const struct store_told *told,
                       const struct store_setting *setting);

/* A connection of this worker logged into a session that existed before, or removed one
 * (SESSION_CLOSED): if another process holds an older connection of it, it is closed there
 * (sessions_taken_over()). A hint like all others: where it is lost, session_check.h finds out. */
void pump_told_log_in(struct pump *p, const char *session_id, int64_t generation);

/* --- sessions --- */

/* Embedded in a session that gets events. Zeroed before its first use. */
struct pump_member {
    struct list link;
    struct pump_owner *owner; /* NULL = not a member */
    int64_t seen;             /* pts of the last event sent to it */
    bool wants_history;       /* HistoryChanged too: it reads the log by positions (mode pts) */
    /* Send one event text; called from the loop, also from within pump_told_…(). */
    void (*send)(struct pump_member *m, const char *text, size_t len);
};
/* Send events of `owner` after `last_pts` from now on, the first of them not from inside this call.
 */
void pump_join(struct pump *p, struct pump_member *m, const char *owner, int64_t epoch,
               int64_t last_pts);
/* Harmless if it is no member. */
void pump_leave(struct pump *p, struct pump_member *m);

#endif
