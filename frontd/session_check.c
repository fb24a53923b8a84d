/*
 * See session_check.h.
 *
 * The list of connections is also the queue: its first `left` elements wait for their check, what
 * is asked about moves to the end. A connection that comes, goes or is put in front meanwhile can
 * make others be checked twice, never not at all. One statement asks about many and only one is
 * in flight.
 *
 * Grades of failure: environment only (the database is away: the next poll asks again).
 */
#include "frontd/session_check.h"

#include "frontd/session_internal.h"
#include "store/devices.h"
#include "util/log.h"
#include "util/mem.h"

#include <stdlib.h>

enum { CHECK_MAX = 500 }; /* sessions in one statement */

struct session_check {
    struct sessions *all;
    size_t left;
    bool asking; /* a statement is in flight */
    bool stopped;
    uv_timer_t poll;
};

static void on_outdated(void *ctx, enum db_status st, const struct store_outdated *rows, size_t n);

static void ask(struct session_check *c)
{
    const char *ids[CHECK_MAX];
    int64_t generations[CHECK_MAX];
    struct list *l;
    size_t n = 0;
    if (c->asking || c->stopped)
        return;
    while (c->left > 0 && n < CHECK_MAX && (l = list_pop(&c->all->connected))) {
        struct session *s = list_entry(l, struct session, link);
        list_push(&c->all->connected, l);
        c->left--;
        if (!s->id[0] || s->closing)
            continue;
        ids[n] = s->id;
        generations[n] = s->generation;
        n++;
    }
    if (n == 0)
        return;
    c->asking = true;
    store_outdated_sessions(c->all->f->store, ids, generations, n, on_outdated, c);
}

static void end_outdated(struct session_check *c, const struct store_outdated *row)
{
    struct session *s = map_get(c->all->by_id, row->session_id);
    if (!s || s->generation != row->asked)
        return; /* it has logged in again meanwhile */
    if (row->stored == 0 || row->stored > row->asked) {
        sessions_taken_over(c->all, row->session_id, row->stored ? row->stored : SESSION_CLOSED);
        return;
    }
    /* The database has lost this log-in. The next one would get the same generation, and both
     * connections would be right. */
    log_warn("session_log_in_lost", LOG_S("login", s->login), LOG_I("generation", row->asked),
             LOG_I("stored", row->stored));
    pump_leave(c->all->f->pump, &s->member);
    session_close(s, SESSION_CLOSE_LOST, "log in again");
}

static void on_outdated(void *ctx, enum db_status st, const struct store_outdated *rows, size_t n)
{
    struct session_check *c = ctx;
    c->asking = false;
    if (st != DB_OK)
        c->left = 0;
    for (size_t i = 0; i < n; i++)
        end_outdated(c, &rows[i]);
    ask(c);
}

static void on_poll(uv_timer_t *t)
{
    struct session_check *c = t->data;
    c->left = c->all->n_connected;
    ask(c);
}

void session_check_soon(struct session_check *c, struct session *s)
{
    list_push_front(&c->all->connected, &s->link);
    if (c->left < c->all->n_connected)
        c->left++;
    ask(c);
}

struct session_check *session_check_new(struct sessions *ss)
{
    struct session_check *c = xnew(struct session_check);
    uint64_t poll_ms = (uint64_t)config_int(ss->f->config, "events.pollMs");
    c->all = ss;
    c->poll.data = c;
    shine_assert(uv_timer_init(ss->f->loop, &c->poll) == 0);
    (void)uv_timer_start(&c->poll, on_poll, poll_ms, poll_ms);
    return c;
}

void session_check_stop(struct session_check *c)
{
    c->stopped = true;
    (void)uv_timer_stop(&c->poll);
}

static void poll_closed(uv_handle_t *h)
{
    free(h->data);
}

void session_check_free(struct session_check *c)
{
    shine_assert(c->stopped && !c->asking);
    uv_close((uv_handle_t *)&c->poll, poll_closed);
}
