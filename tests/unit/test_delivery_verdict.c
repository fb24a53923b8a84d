/*
 * What counts as a try, and what is told about it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "delivery/verdict.h"

static void test_table(void **state)
{
    (void)state;
    static const struct {
        struct peer_answer a;
        const char *payload;
        enum delivery_verdict verdict;
        int64_t retry_after_ms;
    } rows[] = {
        {{.result = PEER_ANSWER, .status = 200}, "{}", DELIVERY_OK, 0},
        {{.result = PEER_ANSWER, .status = 202}, "{}", DELIVERY_OK, 0},
        {{.result = PEER_ANSWER, .status = 300}, "{}", DELIVERY_TRIED, 0},
        {{.result = PEER_ANSWER, .status = 400, .error = "UNKNOWN_OP"}, "{}", DELIVERY_TRIED, 0},
        {{.result = PEER_ANSWER, .status = 422, .error = "BAD_SIGNATURE"}, "{}", DELIVERY_TRIED, 0},
        {{.result = PEER_ANSWER, .status = 404, .error = "USER_NOT_FOUND"},
         "{}",
         DELIVERY_TRIED,
         0},
        {{.result = PEER_ANSWER, .status = 500, .error = "INTERNAL_ERROR"},
         "{}",
         DELIVERY_TRIED,
         0},
        {{.result = PEER_ANSWER, .status = 403, .error = "LOCAL_SERVER_NOT_ACCESS_SERVER"},
         "{}",
         DELIVERY_NOT_SERVED,
         0},
        {{.result = PEER_ANSWER, .status = 403, .error = "BLOCKED"}, "{}", DELIVERY_TRIED, 0},
        {{.result = PEER_ANSWER, .status = 429}, "{\"retryAfterMs\":700}", DELIVERY_NOT_TRIED, 700},
        {{.result = PEER_ANSWER, .status = 503}, "{\"retryAfterMs\":0}", DELIVERY_NOT_TRIED, 0},
        {{.result = PEER_ANSWER, .status = 503},
         "{\"retryAfterMs\":60001}",
         DELIVERY_NOT_TRIED,
         60000},
        {{.result = PEER_ANSWER, .status = 503}, "{\"retryAfterMs\":-1}", DELIVERY_NOT_TRIED, 5000},
        {{.result = PEER_ANSWER, .status = 503},
         "{\"retryAfterMs\":\"1\"}",
         DELIVERY_NOT_TRIED,
         5000},
        {{.result = PEER_ANSWER, .status = 503}, "{}", DELIVERY_NOT_TRIED, 5000},
        {{.result = PEER_UNREACHABLE, .dial_failed = true}, NULL, DELIVERY_TRIED, 0},
        {{.result = PEER_LOST, .written = true}, NULL, DELIVERY_TRIED, 0},
        {{.result = PEER_LOST}, NULL, DELIVERY_NOT_TRIED, 2000},
        {{.result = PEER_TIMEOUT, .written = true}, NULL, DELIVERY_TRIED, 0},
        {{.result = PEER_TIMEOUT, .dial_failed = true}, NULL, DELIVERY_TRIED, 0},
        {{.result = PEER_TIMEOUT}, NULL, DELIVERY_NOT_TRIED, 2000},
        {{.result = PEER_OVERLOADED}, NULL, DELIVERY_NOT_TRIED, 2000},
        {{.result = PEER_SHUTDOWN}, NULL, DELIVERY_NOT_TRIED, 2000},
        {{.result = PEER_SHUTDOWN, .written = true}, NULL, DELIVERY_TRIED, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct peer_answer a = rows[i].a;
        if (!a.error)
            a.error = "";
        json_t *payload = rows[i].payload ? json_loads(rows[i].payload, 0, NULL) : NULL;
        a.payload = payload;
        struct delivery_judgement j = delivery_judge(&a);
        if (j.verdict != rows[i].verdict || j.retry_after_ms != rows[i].retry_after_ms)
            fail_msg("row %zu: verdict %d, retry %d", i, (int)j.verdict, (int)j.retry_after_ms);
        json_decref(payload);
    }
}

static void test_reason_is_plain_and_bounded(void **state)
{
    (void)state;
    char error[4096];
    memset(error, 'E', sizeof error - 1);
    error[sizeof error - 1] = '\0';
    struct peer_answer a = {.result = PEER_ANSWER, .status = 400, .error = error};
    struct delivery_judgement j = delivery_judge(&a);
    assert_true(strlen(j.reason) < 64);
    assert_memory_equal("answered 400 EEEE", j.reason, 17);
    /* A character of two bytes across the bound: half of it would be refused by the database. */
    memset(error, 'E', 39);
    (void)snprintf(error + 39, sizeof error - 39, "\xc3\xa9");
    j = delivery_judge(&a);
    for (const char *p = j.reason; *p; p++)
        assert_in_range(*p, 0x20, 0x7e);
    a.error = "no\nline";
    assert_string_equal("answered 400 ???????", delivery_judge(&a).reason);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_reason_is_plain_and_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
