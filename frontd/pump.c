/*
 * The event pump: owners, their states, and the reads of the event log.
 *
 * Why events reach a session in order, once and completely: `last` of an owner is the pts up to
 * which its sessions have been served. An event goes out only as `last` + 1, told from memory or
 * read from the log, whichever comes first; what comes again is at or below `last`. A session that
 * joins sets `last` back to its own position if that is lower, and each session skips what it has
 * seen. The log has gaps only where it was trimmed: then a read that began at `last` may jump.
 *
 * Grades of failure: environment only (the database is away: the owners wait).
 */
#include "frontd/pump.h"

#include "db/listen.h"
#include "frontd/pump_internal.h"
#include "store/sessions.h"
#include "util/log.h"
#include "util/map.h"
#include "util/mem.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    /* One statement reads at most so many owners, and the store about 1 MiB of each: bounds what
     * one result may hold. The rest is read next. */
    READ_OWNERS_MAX = 64,
    READ_EVENTS = 32, /* per owner */
    RETRY_MS = 500,   /* after a failed read */
    HINT_MS = 5,      /* notifications are collected for so long */
    HINTS_MAX = 100,  /* fit into one notification */
};

/* --- owners --- */

static void wait_for_read(struct pump_owner *o)
{
    struct pump *p = o->pump;
    if (o->state == OWNER_READING) {
        o->again = true;
        return;
    }
    o->state = OWNER_WAITING;
    list_push(&p->waiting, &o->link);
    if (!p->reading && !uv_is_active((uv_handle_t *)&p->read_timer))
        (void)uv_timer_start(&p->read_timer, pump_on_read_timer, 0, 0);
}

static void free_owner(struct pump_owner *o)
{
    list_remove(&o->link);
    (void)map_remove(o->pump->owners, o->login);
    free(o);
}

void pump_join(struct pump *p, struct pump_member *m, const char *owner, int64_t epoch,
               int64_t last_pts)
{
    struct pump_owner *o = map_get(p->owners, owner);
    shine_assert(!m->owner);
    if (!o) {
        o = xnew(struct pump_owner);
        o->pump = p;
        list_init(&o->members);
        list_init(&o->link);
        size_t n = strlen(owner);
        shine_assert(n < sizeof o->login);
        memcpy(o->login, owner, n + 1);
        o->last = last_pts;
        (void)map_put(p->owners, owner, o);
    }
    o->epoch = epoch;
    if (last_pts < o->last)
        o->last = last_pts;
    m->owner = o;
    m->seen = last_pts;
    list_push(&o->members, &m->link);
    wait_for_read(o); /* what was committed between the log-in statement and now */
}

void pump_leave(struct pump *p, struct pump_member *m)
{
    struct pump_owner *o = m->owner;
    (void)p;
    if (!o)
        return;
    m->owner = NULL;
    list_remove(&m->link);
    /* An owner that is being read is freed when the result comes. */
    if (list_empty(&o->members) && o->state != OWNER_READING)
        free_owner(o);
}

/* Send one event, `last` + 1 or a jump over trimmed ones, to all who have not seen it and want its
 * kind. `text` is consumed. */
static void send_event(struct pump_owner *o, int64_t pts, enum store_event_kind kind, char *text,
                       size_t len)
{
    o->last = pts;
    list_each_safe(n, &o->members) {
        struct pump_member *m = list_entry(n, struct pump_member, link);
        if (m->seen >= pts)
            continue;
        m->seen = pts;
        if (kind != STORE_EVENT_HISTORY || m->wants_history)
            m->send(m, text, len);
    }
    free(text);
}

/* --- reads --- */

static void read_done(void *ctx, enum db_status st, const struct store_event *rows, size_t n);

static void start_read(struct pump *p)
{
    const char *logins[READ_OWNERS_MAX];
    int64_t after[READ_OWNERS_MAX];
    size_t n = 0;
    struct list *l;
    while (n < READ_OWNERS_MAX && (l = list_pop(&p->waiting))) {
        struct pump_owner *o = list_entry(l, struct pump_owner, link);
        o->state = OWNER_READING;
        o->again = false;
        o->asked_after = o->last;
        list_push(&p->being_read, &o->link);
        logins[n] = o->login;
        after[n] = o->last;
        n++;
    }
    if (n == 0)
        return;
    p->reading = true;
    store_events_since(p->f->store, logins, after, n, READ_EVENTS, read_done, p);
}

void pump_on_read_timer(uv_timer_t *t)
{
    struct pump *p = t->data;
    if (!p->reading && !p->stopped)
        start_read(p);
}

/* Send one row of a result, unless it was sent from memory meanwhile. */
static void take_row(struct pump_owner *o, const struct store_event *e)
{
    if (e->pts <= o->last)
        return;
    if (e->pts != o->last + 1 && o->asked_after != o->last) {
        o->again = true; /* a session joined at a lower position meanwhile: read from there */
        return;
    }
    size_t len;
    char *text = pump_event_text(o->epoch, e, &len);
    o->asked_after = e->pts;
    send_event(o, e->pts, e->kind, text, len);
}

static void read_done(void *ctx, enum db_status st, const struct store_event *rows, size_t n)
{
    struct pump *p = ctx;
    p->reading = false;
    for (size_t i = 0; i < n && st == DB_OK; i++) {
        struct pump_owner *o = map_get(p->owners, rows[i].owner);
        shine_assert(o && o->state == OWNER_READING); /* owners being read are kept */
        take_row(o, &rows[i]);
        bool is_last = i + 1 == n || strcmp(rows[i].owner, rows[i + 1].owner) != 0;
        if (is_last && rows[i].more && rows[i].pts >= o->last)
            o->again = true;
    }
    struct list *l;
    while ((l = list_pop(&p->being_read))) {
        struct pump_owner *o = list_entry(l, struct pump_owner, link);
        o->state = OWNER_IDLE;
        if (list_empty(&o->members))
            free_owner(o);
        else if (st != DB_OK || o->again)
            wait_for_read(o);
    }
    if (st != DB_OK && !p->stopped)
        (void)uv_timer_start(&p->read_timer, pump_on_read_timer, RETRY_MS, 0);
}

void pump_look_at_all(struct pump *p)
{
    size_t it = 0;
    void *o;
    while (map_next(p->owners, &it, NULL, &o))
        wait_for_read(o);
}

void pump_look_at(struct pump *p, const char *login)
{
    struct pump_owner *o = map_get(p->owners, login);
    if (o)
        wait_for_read(o);
}

/* --- what operations tell --- */

/* The other processes hear of `entry` a few milliseconds later. */
static void hint_others(struct pump *p, const char *entry)
{
    if (p->stopped || map_get(p->hints, entry))
        return;
    (void)map_put(p->hints, entry, p);
    if (map_size(p->hints) >= HINTS_MAX)
        pump_send_hints(p);
    else if (!uv_is_active((uv_handle_t *)&p->hint_timer))
        (void)uv_timer_start(&p->hint_timer, pump_on_hint_timer, HINT_MS, 0);
}

void pump_send_hints(struct pump *p)
{
    const char *entries[HINTS_MAX];
    const char *entry;
    void *value;
    size_t n = 0, it = 0;
    while (n < HINTS_MAX && map_next(p->hints, &it, &entry, &value))
        entries[n++] = entry;
    if (n > 0)
        store_notify_events(p->f->store, entries, n);
    map_free(p->hints);
    p->hints = map_new();
    (void)uv_timer_stop(&p->hint_timer);
}

void pump_on_hint_timer(uv_timer_t *t)
{
    pump_send_hints(t->data);
}

/* The owner, if the event can be sent from memory; otherwise what must be done is done here. */
static struct pump_owner *next_event_of(struct pump *p, const char *owner,
                                        const struct store_told *told)
{
    if (told->pts == 0)
        return NULL;
    if (told->elsewhere)
        hint_others(p, owner);
    struct pump_owner *o = map_get(p->owners, owner);
    if (!o || told->pts <= o->last)
        return NULL;
    if (told->pts == o->last + 1)
        return o;
    wait_for_read(o);
    return NULL;
}

void pump_told_log_in(struct pump *p, const char *session_id, int64_t generation)
{
    char *entry = xasprintf("%c%s:%" PRId64, PUMP_LOG_IN_MARK, session_id, generation);
    hint_others(p, entry);
    free(entry);
}

void pump_told_message(struct pump *p, const char *owner, const struct store_told *told,
                       const struct store_copy *copy, enum dm_state state)
{
    struct pump_owner *o = next_event_of(p, owner, told);
    if (!o)
        return;
    char base_key[DM_BASE_KEY_MAX], message_key[DM_MESSAGE_KEY_MAX];
    dm_base_key(&copy->c, base_key);
    dm_message_key(&copy->c, message_key);
    struct store_event e = {
        .owner = owner,
        .pts = told->pts,
        .kind = STORE_EVENT_MESSAGE,
        .message_key = message_key,
        .base_key = base_key,
        .from = copy->c.from,
        .to = copy->c.to,
        .type = (int)copy->c.type,
        .time_ms = copy->c.time_ms,
        .revision_time_ms = copy->c.revision_time_ms,
        .reencrypted_at_ms = copy->c.reencrypted_at_ms,
        .delivery_state = dm_state_name(state),
        .blob = copy->blob,
        .blob_len = copy->blob_len,
    };
    size_t len;
    char *text = pump_event_text(o->epoch, &e, &len);
    send_event(o, told->pts, e.kind, text, len);
}

void pump_told_setting(struct pump *p, const char *owner, const struct store_told *told,
                       const struct store_setting *setting)
{
    struct pump_owner *o = next_event_of(p, owner, told);
    if (!o)
        return;
    struct store_event e = {
        .owner = owner,
        .pts = told->pts,
        .kind = STORE_EVENT_SETTING,
        .message_key = setting->name,
        .value = setting->value,
        .time_ms = setting->time_ms,
        .blob = setting->sig,
        .blob_len = sizeof setting->sig,
    };
    size_t len;
    char *text = pump_event_text(o->epoch, &e, &len);
    send_event(o, told->pts, e.kind, text, len);
}

void pump_told_state(struct pump *p, const char *owner, const struct store_told *told,
                     const char *outgoing_key, enum dm_state state)
{
    struct pump_owner *o = next_event_of(p, owner, told);
    if (!o)
        return;
    const char *bar = strrchr(outgoing_key, '|'); /* the type is what a base key lacks */
    shine_assert(bar);
    char *base_key = xmemdup0(outgoing_key, (size_t)(bar - outgoing_key));
    struct store_event e = {
        .owner = owner,
        .pts = told->pts,
        .kind = STORE_EVENT_STATE,
        .message_key = outgoing_key,
        .base_key = base_key,
        .delivery_state = dm_state_name(state),
    };
    size_t len;
    char *text = pump_event_text(o->epoch, &e, &len);
    free(base_key);
    send_event(o, told->pts, e.kind, text, len);
}
