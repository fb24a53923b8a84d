/*
 * Shared by pump.c (owners and reads), pump_event.c (texts) and pump_life.c (timers and
 * notifications). Not for anybody else.
 */
#ifndef SHINE_FRONTD_PUMP_INTERNAL_H
#define SHINE_FRONTD_PUMP_INTERNAL_H

#include "frontd/pump.h"
#include "store/sessions.h"
#include "util/map.h"

struct db_listener;

/* Begins the entry of a notification that tells a log-in: MARK SESSIONID ":" GENERATION. No login
 * begins with it. */
#define PUMP_LOG_IN_MARK '@'

enum pump_owner_state { OWNER_IDLE, OWNER_WAITING, OWNER_READING };

struct pump_owner {
    struct pump *pump;
    char login[DM_LOGIN_MAX + 1];
    enum pump_owner_state state; /* = which list `link` is on: none, waiting, being_read */
    struct list link;
    struct list members; /* empty only while being read */
    int64_t epoch;
    int64_t last;        /* sent up to here */
    int64_t asked_after; /* OWNER_READING: where the read began, then how far it was taken */
    bool again;          /* OWNER_READING: something came meanwhile */
};

struct pump {
    struct frontd *f;
    struct map *owners; /* login -> struct pump_owner */
    struct list waiting, being_read;
    bool reading;      /* a statement is in flight */
    struct map *hints; /* entries of the next notification */
    uv_timer_t read_timer, hint_timer, poll_timer;
    struct db_listener *listener;
    bool stopped;
    unsigned open_handles;
};

/* The event as sent, with eventId made of epoch and pts; freed with free(). */
char *pump_event_text(int64_t epoch, const struct store_event *e, size_t *len);

/* Read one owner, or every owner, as soon as possible. */
void pump_look_at(struct pump *p, const char *login);
void pump_look_at_all(struct pump *p);
void pump_send_hints(struct pump *p);
void pump_on_read_timer(uv_timer_t *t);
void pump_on_hint_timer(uv_timer_t *t);

#endif
