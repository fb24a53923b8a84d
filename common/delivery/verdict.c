/*
 * The table of what counts as a try. Raises no failures: what it does not know is a try that
 * failed, so that it is repeated by the schedule and ends with it.
 */
#include "delivery/verdict.h"

#include <stdio.h>
#include <string.h>

#define RETRY_MS       2000  /* our own queue was full, or our own stop came between */
#define RETRY_MAX_MS   60000 /* however long a route asks us to stay away */
#define BUSY_MS        5000  /* a route that asks to wait and does not say how long */
#define ERROR_CODE_MAX 40    /* of what a stranger calls an error, in our table */

static int64_t asked_wait_ms(const json_t *payload)
{
    const json_t *v = json_object_get(payload, "retryAfterMs");
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return BUSY_MS;
    json_int_t ms = json_integer_value(v);
    return ms > RETRY_MAX_MS ? RETRY_MAX_MS : ms;
}

/* `code` as it may stand in our table and logs. Error codes are upper-case ASCII; anything else is
 * a stranger's text of any length, which cut at a byte might not even be UTF-8. */
static void copy_code(const char *code, char out[ERROR_CODE_MAX + 1])
{
    size_t n = 0;
    for (; n < ERROR_CODE_MAX && code[n] != '\0'; n++) {
        char c = code[n];
        bool plain = (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
        out[n] = plain ? c : '?';
    }
    out[n] = '\0';
}

static struct delivery_judgement judge_answer(const struct peer_answer *a)
{
    struct delivery_judgement j = {.verdict = DELIVERY_TRIED};
    if (a->status >= 200 && a->status <= 299) {
        j.verdict = DELIVERY_OK;
        return j;
    }
    if (a->status == 429 || a->status == 503) {
        j.verdict = DELIVERY_NOT_TRIED;
        j.asks_to_wait = true;
        j.retry_after_ms = asked_wait_ms(a->payload);
    } else if (a->status == 403 && strcmp(a->error, "LOCAL_SERVER_NOT_ACCESS_SERVER") == 0) {
        j.verdict = DELIVERY_NOT_SERVED;
    }
    char code[ERROR_CODE_MAX + 1];
    copy_code(a->error, code);
    (void)snprintf(j.reason, sizeof j.reason, "answered %d %s", a->status, code);
    return j;
}

struct delivery_judgement delivery_judge(const struct peer_answer *a)
{
    if (a->result == PEER_ANSWER)
        return judge_answer(a);
    struct delivery_judgement j = {.verdict = DELIVERY_NOT_TRIED, .retry_after_ms = RETRY_MS};
    switch (a->result) {
    case PEER_ANSWER:
    case PEER_UNREACHABLE: /* the dial was the try */
        j.verdict = DELIVERY_TRIED;
        break;
    case PEER_LOST:
    case PEER_TIMEOUT:
    case PEER_SHUTDOWN: /* what was written may have been done */
        if (a->written || a->dial_failed)
            j.verdict = DELIVERY_TRIED;
        break;
    case PEER_OVERLOADED:
        break;
    }
    if (j.verdict == DELIVERY_TRIED)
        j.retry_after_ms = 0;
    (void)snprintf(j.reason, sizeof j.reason, "%s", a->error);
    return j;
}
