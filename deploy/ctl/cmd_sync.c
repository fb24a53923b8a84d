/* shinectl: replication. Everything here goes to the database. */
#include "deploy/ctl/ctl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/sync.h"
#include "util/mem.h"

/* Users of one transaction: their messages are counted in it, while their logs are held. */
#define USERS_AT_ONCE 20

struct mark_wait {
    bool done;
    enum db_status st;
    struct store_marked marked;
    char *last; /* NULL = that was all */
};

static void on_marked(void *ctx, enum db_status st, const struct store_marked *m)
{
    struct mark_wait *w = ctx;
    w->st = st;
    w->marked = *m;
    w->last = xstrdup(m->last);
    w->done = true;
}

/* Mark some users after `after`, and add them up. */
static int mark_some(struct ctl *c, const char *after, struct store_marked *sum, char **last)
{
    struct mark_wait w = {0};
    store_mark_all_unsynced(c->store, after, USERS_AT_ONCE, on_marked, &w);
    (void)ctl_wait(c, &w.done, 0);
    sum->users += w.marked.users;
    sum->settings += w.marked.settings;
    sum->dms += w.marked.dms;
    *last = w.last;
    return ctl_db_result(w.st);
}

static int mark_all(struct ctl *c, struct store_marked *sum)
{
    char *last = xstrdup("");
    int code = CTL_OK;
    while (last && code == CTL_OK) {
        char *after = last;
        code = mark_some(c, after, sum, &last);
        free(after);
    }
    free(last);
    return code;
}

static int mark_one(struct ctl *c, const char *login, struct store_marked *sum)
{
    struct mark_wait w = {0};
    store_mark_unsynced(c->store, login, on_marked, &w);
    (void)ctl_wait(c, &w.done, 0);
    *sum = w.marked;
    free(w.last);
    return ctl_db_result(w.st);
}

int cmd_sync_mark_unsynced(struct ctl *c)
{
    struct store_marked sum = {0};
    bool all = ctl_flag(c, "all");
    if (all == (c->n_words == 1))
        return ctl_fail(CTL_USAGE, "sync mark-unsynced takes a login, or --all");
    if (!all && !dm_login_valid(c->words[0]))
        return ctl_fail(CTL_USAGE, "%s is not a login", c->words[0]);
    if (!*config_str(c->config, "server.SHiNE.login"))
        return ctl_fail(CTL_CONFIG, "server.SHiNE.login is not set");
    int code = ctl_store(c);
    if (code == CTL_OK)
        code = all ? mark_all(c, &sum) : mark_one(c, c->words[0], &sum);
    if (code != CTL_OK)
        return code;
    if (c->json)
        ctl_print_json(json_pack("{s:I, s:I, s:I}", "users", (json_int_t)sum.users, "settings",
                                 (json_int_t)sum.settings, "messages", (json_int_t)sum.dms));
    else
        printf("%" PRId64 " settings are, and %" PRId64 " messages will be, offered again\n",
               sum.settings, sum.dms);
    return CTL_OK;
}
