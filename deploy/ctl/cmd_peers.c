/* shinectl: other servers, as the daemons are connected to them. From the database. */
#include "deploy/ctl/ctl.h"

#include <inttypes.h>
#include <stdio.h>

#include "store/peers.h"

struct peers_wait {
    bool done;
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
