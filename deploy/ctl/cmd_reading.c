/* shinectl: what a user reads. login, watch, history, conversations. */
#include "deploy/ctl/client.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A terminal that watches and one that reads are two devices, or they would take the session from
 * each other. */
static const char WATCHING[] = "watch", READING[] = "history";

int cmd_login(struct ctl *c)
{
    struct ctl_client *k;
    int code = ctl_client_open(c, NULL, NULL, &k);
    if (code != CTL_OK)
        return code;
    code = ctl_client_login(k, READING);
    if (code == CTL_OK) {
        if (c->json) {
            ctl_print_json(json_pack("{s:s}", "sessionId", ctl_client_session(k)));
        } else {
            ctl_print_string(stdout, ctl_client_session(k));
            printf("\n");
        }
    }
    ctl_client_close(k);
    return code;
}

/* --- watch --- */

struct watch {
    struct ctl *ctl;
    int64_t left; /* events still to show; 0 = no limit */
    bool limited, done;
};

static void print_event(const char *op, const json_t *payload)
{
    if (strcmp(op, "IncomingDirectMessage") == 0) {
        if (!json_is_true(json_object_get(payload, "deleted"))) {
            ctl_print_message(payload);
            return;
        }
        printf("(deleted)  ");
        ctl_print_string(stdout, ctl_json_text(payload, "messageKey"));
    } else if (strcmp(op, "DmDeliveryStateChanged") == 0) {
        ctl_print_string(stdout, ctl_json_text(payload, "deliveryState"));
        printf("  ");
        ctl_print_string(stdout, ctl_json_text(payload, "outgoingKey"));
    } else {
        printf("(");
        ctl_print_string(stdout, op);
        printf(")");
    }
    printf("\n");
}

static void on_watch_event(void *ctx, const char *op, const json_t *payload)
{
    struct watch *w = ctx;
    if (w->done)
        return;
    if (w->ctl->json)
        ctl_print_json(json_pack("{s:s, s:O}", "op", op, "payload", payload));
    else
        print_event(op, payload);
    fflush(stdout);
    if (w->limited && --w->left == 0)
        w->done = true;
}

int cmd_watch(struct ctl *c)
{
    struct watch w = {.ctl = c};
    struct ctl_client *k;
    int64_t seconds;
    if (!ctl_option_int(c, "count", 1, 1000000000, 0, &w.left) ||
        !ctl_option_int(c, "timeout", 1, 86400 * 365, 0, &seconds))
        return CTL_USAGE;
    w.limited = w.left > 0;
    int code = ctl_client_open(c, on_watch_event, &w, &k);
    if (code != CTL_OK)
        return code;
    code = ctl_client_login(k, WATCHING);
    if (code == CTL_OK) {
        fprintf(stderr, "watching %s\n", ctl_option(c, "login", 0));
        code = ctl_client_run(k, &w.done, (uint64_t)seconds * 1000);
        if (code == CTL_OK && w.limited && !w.done)
            code = ctl_fail(CTL_REFUSED, "time is up, %" PRId64 " events short", w.left);
    }
    ctl_client_close(k);
    return code;
}

/* --- pages --- */

/* Log in, make one request (payload consumed), print its items with `print`, the last one first if
 * `reverse`. */
static int show_page(struct ctl *c, const char *op, json_t *payload,
                     void (*print)(const json_t *item), bool reverse)
{
    struct ctl_client *k;
    struct rpc_answer a;
    if (!payload) /* json_pack() takes UTF-8 only */
        return ctl_fail(CTL_USAGE, "the arguments must be valid UTF-8");
    int code = ctl_client_open(c, NULL, NULL, &k);
    if (code != CTL_OK) {
        json_decref(payload);
        return code;
    }
    code = ctl_client_login(k, READING);
    if (code == CTL_OK)
        code = ctl_client_call(k, op, payload, &a);
    else
        json_decref(payload);
    if (code == CTL_OK) {
        const json_t *items = json_object_get(a.payload, "items");
        size_t n = json_array_size(items);
        if (c->json)
            ctl_print_json(json_deep_copy(a.payload));
        for (size_t i = 0; i < n && !c->json; i++)
            print(json_array_get(items, reverse ? n - 1 - i : i));
        if (!c->json && json_is_true(json_object_get(a.payload, "hasMore")))
            fprintf(stderr, "(there are older ones)\n");
        rpc_answer_free(&a);
    }
    ctl_client_close(k);
    return code;
}

int cmd_history(struct ctl *c)
{
    int64_t limit;
    const char *with = ctl_option(c, "with", 0);
    if (!with)
        return ctl_fail(CTL_USAGE, "--with LOGIN is needed");
    if (!ctl_option_int(c, "limit", 1, 200, 20, &limit))
        return CTL_USAGE;
    json_t *payload = json_pack("{s:s, s:I}", "withLogin", with, "limit", (json_int_t)limit);
    return show_page(c, "GetDirectMessages", payload, ctl_print_message, true);
}

static void print_conversation(const json_t *m)
{
    char when[32];
    const json_t *last = json_object_get(m, "lastMessage");
    ctl_time_text(json_integer_value(json_object_get(m, "lastTimeMs")), when);
    printf("%s  ", when);
    ctl_print_string(stdout, ctl_json_text(m, "withLogin"));
    printf("  %" JSON_INTEGER_FORMAT " unread  ",
           json_integer_value(json_object_get(m, "unreadCount")));
    if (last) {
        ctl_print_string(stdout, ctl_json_text(last, "fromLogin"));
        printf(": ");
        ctl_print_body(last);
    } else {
        printf("(no messages)");
    }
    printf("\n");
}

int cmd_conversations(struct ctl *c)
{
    int64_t limit;
    if (!ctl_option_int(c, "limit", 1, 200, 20, &limit))
        return CTL_USAGE;
    json_t *payload = json_pack("{s:I}", "limit", (json_int_t)limit);
    return show_page(c, "ListConversations", payload, print_conversation, false);
}
