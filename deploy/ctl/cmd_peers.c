/* shinectl: other servers, as the daemons are connected to them. From the database. */
#include "deploy/ctl/ctl.h"

#include <inttypes.h>
#include <stdio.h>

#include "store/peers.h"

struct peers_wait {
    bool done, changed;
    enum db_status st;
    bool json;
    json_t *list; /* with --json */
};

static json_t *peer_json(const struct store_peer_line *p)
{
    return json_pack("{s:s, s:s, s:b, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I}", "serverLogin",
                     p->login, "url", p->url, "partner", p->partner, "process", p->process, "state",
                     p->state, "lastError", p->last_error, "queued", (json_int_t)p->queued,
                     "inFlight", (json_int_t)p->in_flight, "ok", (json_int_t)p->ok, "failed",
                     (json_int_t)p->failed, "timedOut", (json_int_t)p->timed_out);
}

static void print_peer(const struct store_peer_line *p)
{
    ctl_print_string(stdout, p->login);
    printf("  ");
    ctl_print_string(stdout, p->url);
    printf("  %s", *p->process ? p->process : "-");
    printf("  %s", *p->state ? p->state : "not called");
    if (p->queued + p->in_flight > 0)
        printf("  %" PRId64 " waiting, %" PRId64 " in flight", p->queued, p->in_flight);
    if (*p->process)
        printf("  ok %" PRId64 ", failed %" PRId64 ", timed out %" PRId64, p->ok, p->failed,
               p->timed_out);
    if (*p->last_error)
        printf("  (%s %s ago)", p->last_error, p->error_ago);
    printf("\n");
}

static void on_lines(void *ctx, enum db_status st, const struct store_peer_line *rows, size_t n)
{
    struct peers_wait *w = ctx;
    w->st = st;
    w->done = true;
    for (size_t i = 0; i < n; i++)
        if (w->json)
            (void)json_array_append_new(w->list, peer_json(&rows[i]));
        else
            print_peer(&rows[i]);
}

int cmd_peers(struct ctl *c)
{
    struct peers_wait w = {.json = c->json};
    int code = ctl_store(c);
    if (code != CTL_OK)
        return code;
    if (c->json)
        w.list = json_array();
    store_list_peers(c->store, on_lines, &w);
    (void)ctl_wait(c, &w.done, 0);
    code = ctl_db_result(w.st);
    if (c->json && code == CTL_OK)
        ctl_print_json(w.list);
    else
        json_decref(w.list);
    return code;
}

/* --- blocking --- */

static void on_blocked(void *ctx, enum db_status st, bool changed)
{
    struct peers_wait *w = ctx;
    w->st = st;
    w->changed = changed;
    w->done = true;
}

static int set_blocked(struct ctl *c, bool blocked)
{
    struct peers_wait w = {0};
    if (!ctl_server_login_valid(c->words[0]))
        return ctl_fail(CTL_USAGE, "%s is not a server login", c->words[0]);
    int code = ctl_store(c);
    if (code != CTL_OK)
        return code;
    store_block_server(c->store, c->words[0], blocked, on_blocked, &w);
    (void)ctl_wait(c, &w.done, 0);
    code = ctl_db_result(w.st);
    if (code != CTL_OK)
        return code;
    if (c->json)
        ctl_print_json(json_pack("{s:s, s:b, s:b}", "serverLogin", c->words[0], "blocked", blocked,
                                 "changed", w.changed));
    else
        printf("server %s is %s%s\n", c->words[0], blocked ? "blocked" : "not blocked",
               w.changed ? "" : ", as before");
    return CTL_OK;
}

int cmd_server_block(struct ctl *c)
{
    return set_blocked(c, true);
}

int cmd_server_unblock(struct ctl *c)
{
    return set_blocked(c, false);
}
