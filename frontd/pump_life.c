/*
 * The pump's beginning and end, its poll, and the notifications of other processes.
 *
 * Grades of failure: environment only.
 */
#include "frontd/pump_internal.h"

#include "db/listen.h"
#include "frontd/session.h"
#include "store/profiles.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

/* One entry of a notification: a login with new events, a user whose record has changed, or a
 * log-in somewhere else. */
static void take_entry(struct pump *p, char *entry)
{
    char *end = NULL;
    if (*entry == STORE_USER_CHANGED) {
        directory_forget(p->f->directory, entry + 1);
        return;
    }
    if (*entry != PUMP_LOG_IN_MARK) {
        pump_look_at(p, entry);
        return;
    }
    char *colon = strrchr(entry, ':');
    if (!colon)
        return;
    *colon = '\0';
    long long generation = strtoll(colon + 1, &end, 10);
    if (end != colon + 1 && *end == '\0')
        sessions_taken_over(p->f->sessions, entry + 1, generation);
}

/* `payload`: entries joined by commas, or nothing (look at everybody). */
static void on_notify(void *ctx, const char *payload)
{
    struct pump *p = ctx;
    if (p->stopped)
        return;
    if (!payload || *payload == '\0') { /* whatever was told meanwhile was missed */
        pump_look_at_all(p);
        directory_forget_all(p->f->directory);
        return;
    }
    char *copy = xstrdup(payload), *save = NULL;
    for (char *e = strtok_r(copy, ",", &save); e; e = strtok_r(NULL, ",", &save))
        take_entry(p, e);
    free(copy);
}

static void on_poll(uv_timer_t *t)
{
    pump_look_at_all(t->data);
}

static void init_timer(struct pump *p, uv_timer_t *t)
{
    shine_assert(uv_timer_init(p->f->loop, t) == 0);
    t->data = p;
    p->open_handles++;
}

struct pump *pump_new(struct frontd *f)
{
    struct pump *p = xnew(struct pump);
    uint64_t poll_ms = (uint64_t)config_int(f->config, "events.pollMs");
    p->f = f;
    p->owners = map_new();
    p->hints = map_new();
    list_init(&p->waiting);
    list_init(&p->being_read);
    init_timer(p, &p->read_timer);
    init_timer(p, &p->hint_timer);
    init_timer(p, &p->poll_timer);
    (void)uv_timer_start(&p->poll_timer, on_poll, poll_ms, poll_ms);
    p->listener =
        db_listen(f->loop, config_str(f->config, "db.conninfo"), "shine_events", on_notify, p);
    return p;
}

void pump_stop(struct pump *p)
{
    pump_send_hints(p); /* what was committed just now */
    p->stopped = true;
    db_listener_close(p->listener);
    p->listener = NULL;
    (void)uv_timer_stop(&p->read_timer);
    (void)uv_timer_stop(&p->poll_timer);
}

static void handle_closed(uv_handle_t *h)
{
    struct pump *p = h->data;
    if (--p->open_handles == 0)
        free(p);
}

void pump_free(struct pump *p)
{
    shine_assert(p->stopped && !p->reading && map_size(p->owners) == 0);
    map_free(p->owners);
    map_free(p->hints);
    uv_close((uv_handle_t *)&p->read_timer, handle_closed);
    uv_close((uv_handle_t *)&p->hint_timer, handle_closed);
    uv_close((uv_handle_t *)&p->poll_timer, handle_closed);
}
