/*
 * The JSON envelope, the payload readers and the dispatch table.
 */
#include "rpc/dispatch.h"
#include "rpc/fields.h"

#include "util/log.h"
#include "util/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* --- parsing --- */

static enum rpc_error parse(const char *text)
{
    struct rpc_request req;
    const char *message;
    enum rpc_error e = rpc_request_parse(text, strlen(text), &req, &message);
    assert_true((e == RPC_OK) == (*message == '\0'));
    assert_true((e == RPC_OK) == (req.payload != NULL));
    rpc_request_free(&req);
    return e;
}

/* A request whose payload member x is `value`. */
static enum rpc_error parse_value(const char *value)
{
    char *text = xasprintf("{\"op\":\"Ping\",\"requestId\":\"r\",\"payload\":{\"x\":%s}}", value);
    enum rpc_error e = parse(text);
    free(text);
    return e;
}

static void errors_come_in_their_order(void **state)
{
    (void)state;
    assert_int_equal(parse(""), RPC_EMPTY_JSON);
    assert_int_equal(parse(" \t\r\n"), RPC_EMPTY_JSON);
    assert_int_equal(parse("{"), RPC_BAD_JSON);
    assert_int_equal(parse("[]"), RPC_BAD_JSON);
    assert_int_equal(parse("7"), RPC_BAD_JSON);
    assert_int_equal(parse("{}"), RPC_NO_OP);
    assert_int_equal(parse("{\"op\":\"\"}"), RPC_NO_OP);
    assert_int_equal(parse("{\"op\":5,\"payload\":{}}"), RPC_NO_OP);
    assert_int_equal(parse("{\"op\":\"Ping\"}"), RPC_NO_PAYLOAD);
    assert_int_equal(parse("{\"op\":\"Ping\",\"payload\":null}"), RPC_NO_PAYLOAD);
    assert_int_equal(parse("{\"op\":\"Ping\",\"payload\":[]}"), RPC_BAD_PAYLOAD);
    assert_int_equal(parse("{\"op\":\"Ping\",\"requestId\":1,\"payload\":[]}"), RPC_BAD_PAYLOAD);
    assert_int_equal(parse("{\"op\":\"Ping\",\"requestId\":1,\"payload\":{}}"), RPC_BAD_FIELDS);
    assert_int_equal(parse("{\"op\":\"Ping\",\"payload\":{}}"), RPC_OK);
}

static void what_does_not_survive_a_round_trip_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "1.0",
        "1e2",
        "-0",
        "-0.5",
        "01",
        "+1",
        "NaN",
        "9007199254740992",
        "-9007199254740992",
        "99999999999999999999999",
        "\"\\u0000\"",
        "\"\\ud800\"",
        "\"\\udc00x\"",
        "\"\xc3\"",
        "\"\xed\xa0\x80\"",
        "{\"a\":1,\"a\":1}",
        "{\"a\":[{\"b\":0.5}]}",
        "1} x",
        "'a'",
        "{\"\\u0000\":1}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(parse_value(bad[i]), RPC_BAD_JSON);
    static const char *const good[] = {
        "9007199254740991",
        "-9007199254740991",
        "0",
        "\"-0 1.0\"",
        "\"\\\\\\\"[[[\"",
        "\"\\ud83d\\ude00\"",
        "\"\xf0\x9f\x98\x80\"",
        "[-1,\"-0\"]",
        "null",
        "\"\\\\\"",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_int_equal(parse_value(good[i]), RPC_OK);
    assert_int_equal(parse("{\"op\":\"a\",\"op\":\"a\",\"payload\":{}}"), RPC_BAD_JSON);
}

static char *repeat(const char *open, const char *mid, const char *close, size_t n)
{
    size_t a = strlen(open), b = strlen(close), m = strlen(mid);
    char *s = xcalloc(n * (a + b) + m + 1, 1), *p = s;
    for (size_t i = 0; i < n; i++, p += a)
        memcpy(p, open, a);
    memcpy(p, mid, m);
    p += m;
    for (size_t i = 0; i < n; i++, p += b)
        memcpy(p, close, b);
    return s;
}

static void nesting_and_values_are_bounded(void **state)
{
    (void)state;
    /* The request object and its payload are two of the levels. */
    char *deepest = repeat("[", "", "]", RPC_NESTING_MAX - 2);
    char *deeper = repeat("[", "", "]", RPC_NESTING_MAX - 1);
    char *deep = repeat("[", "", "]", 100000);
    char *open = repeat("[", "", "", 100000);
    char *many = repeat("[],", "0", "", RPC_VALUES_MAX);
    char *list = xasprintf("[%s]", many);
    assert_int_equal(parse_value(deepest), RPC_OK);
    assert_int_equal(parse_value(deeper), RPC_BAD_JSON);
    assert_int_equal(parse_value(deep), RPC_BAD_JSON);
    assert_int_equal(parse_value(open), RPC_BAD_JSON);
    assert_int_equal(parse_value(list), RPC_BAD_JSON);
    free(deepest);
    free(deeper);
    free(deep);
    free(open);
    free(many);
    free(list);
}

static void names_are_kept_for_the_error_answer(void **state)
{
    (void)state;
    struct rpc_request req;
    const char *message;
    const char *text = "{\"op\":\"Ping\",\"requestId\":\"r-1\",\"payload\":{\"x\":1.5}}";
    assert_int_equal(rpc_request_parse(text, strlen(text), &req, &message), RPC_BAD_JSON);
    assert_string_equal(req.op, "Ping");
    assert_string_equal(req.request_id, "r-1");
    rpc_request_free(&req);

    char id[RPC_REQUEST_ID_MAX + 2];
    for (size_t n = RPC_REQUEST_ID_MAX; n <= RPC_REQUEST_ID_MAX + 1; n++) {
        memset(id, 'i', n);
        id[n] = '\0';
        char *s = xasprintf("{\"op\":\"Ping\",\"requestId\":\"%s\",\"payload\":{}}", id);
        bool fits = n == RPC_REQUEST_ID_MAX;
        assert_int_equal(rpc_request_parse(s, strlen(s), &req, &message),
                         fits ? RPC_OK : RPC_BAD_FIELDS);
        assert_string_equal(req.request_id, fits ? id : "");
        rpc_request_free(&req);
        free(s);
    }
}

/* Every byte string cut out of a request parses or fails cleanly (under ASan). */
static void truncated_texts_are_refused(void **state)
{
    (void)state;
    const char *text =
        "{\"op\":\"P\\u0041\\\"ing\",\"requestId\":\"\\\\\",\"payload\":{\"a\":[-1]}}";
    for (size_t n = 0; n < strlen(text); n++) {
        char *cut = xmemdup0(text, n);
        assert_int_equal(parse(cut), n ? RPC_BAD_JSON : RPC_EMPTY_JSON);
        free(cut);
    }
}

/* --- writing --- */

static void answers_have_the_documented_form(void **state)
{
    (void)state;
    size_t len;
    json_t *payload = json_pack("{s:i}", "a", 1);
    char *s = rpc_answer_ok("Pi\"ng", "r\\\n\x7f\xc3\xa4", payload, &len);
    assert_string_equal(s, "{\"op\":\"Pi\\u0022ng\",\"requestId\":\"r\\u005c\\u000a\x7f\xc3\xa4\","
                           "\"status\":200,\"ok\":true,\"payload\":{\"a\":1}}");
    assert_int_equal(len, strlen(s));
    struct rpc_answer a;
    assert_true(rpc_answer_parse(s, len, &a));
    assert_string_equal(a.op, "Pi\"ng");
    assert_string_equal(a.request_id, "r\\\n\x7f\xc3\xa4");
    assert_int_equal(a.status, 200);
    assert_false(a.is_event);
    assert_int_equal(json_integer_value(json_object_get(a.payload, "a")), 1);
    rpc_answer_free(&a);
    free(s);

    s = rpc_answer_error("Ping", "", RPC_BAD_SIGNATURE, "no", NULL, &len);
    assert_string_equal(s, "{\"op\":\"Ping\",\"requestId\":\"\",\"status\":422,\"ok\":false,"
                           "\"error\":\"BAD_SIGNATURE\",\"message\":\"no\",\"payload\":{}}");
    assert_true(rpc_answer_parse(s, len, &a));
    assert_string_equal(a.error, "BAD_SIGNATURE");
    assert_string_equal(a.message, "no");
    rpc_answer_free(&a);
    free(s);

    struct json_out o;
    rpc_answer_begin(&o, "X", "r\"", 100);
    json_out_int(&o, "a", 1);
    s = json_out_end(&o, &len);
    assert_string_equal(s, "{\"op\":\"X\",\"requestId\":\"r\\u0022\",\"status\":200,\"ok\":true,"
                           "\"payload\":{\"a\":1}}");
    assert_int_equal(len, strlen(s));
    free(s);

    rpc_event_begin(&o, "X", 0);
    json_out_int(&o, "a", 1);
    s = json_out_end(&o, &len);
    assert_string_equal(
        s, "{\"op\":\"X\",\"event\":true,\"status\":200,\"ok\":true,\"payload\":{\"a\":1}}");
    assert_true(rpc_answer_parse(s, len, &a));
    assert_true(a.is_event);
    rpc_answer_free(&a);
    free(s);

    s = rpc_request_text("X", "1", NULL, &len);
    assert_int_equal(parse(s), RPC_OK);
    assert_false(rpc_answer_parse(s, len, &a)); /* a request is not an answer */
    free(s);
    json_decref(payload);
}

static void answers_of_others_may_lack_a_payload(void **state)
{
    (void)state;
    struct rpc_answer a;
    const char *s = "{\"op\":\"X\",\"status\":400,\"payload\":null}";
    assert_true(rpc_answer_parse(s, strlen(s), &a));
    assert_int_equal(json_object_size(a.payload), 0);
    assert_string_equal(a.request_id, "");
    rpc_answer_free(&a);
    assert_false(rpc_answer_parse("{}", 2, &a));
    assert_false(rpc_answer_parse("", 0, &a));
    s = "{\"op\":\"X\",\"status\":\"200\"}";
    assert_false(rpc_answer_parse(s, strlen(s), &a));
}

static void every_error_has_a_name_and_status(void **state)
{
    (void)state;
    for (int i = RPC_OK + 1; i < RPC_ERROR_COUNT; i++) {
        assert_in_range(rpc_error_status((enum rpc_error)i), 400, 599);
        assert_true(strlen(rpc_error_name((enum rpc_error)i)) > 4);
    }
}

/* --- fields --- */

static void fields_are_read_strictly(void **state)
{
    (void)state;
    json_t *p = json_pack("{s:s,s:s,s:i,s:b,s:n,s:[i,i],s:s,s:s}", "s", "text", "e", "", "i", 7,
                          "b", 1, "n", "a", 1, 2, "k", "AAEC", "bad", "AAE*");
    struct rpc_fields f = rpc_fields_of(p);
    const char *s = "kept";
    int64_t i = -5;
    bool b = false;
    const json_t *a;
    uint8_t bytes[3], *blob = NULL;
    size_t len = 0;
    assert_true(rpc_str(&f, "s", 4, &s) && strcmp(s, "text") == 0);
    assert_true(rpc_str_opt(&f, "n", 4, &s) && rpc_str_opt(&f, "absent", 4, &s));
    assert_string_equal(s, "text");
    assert_true(rpc_str_opt(&f, "e", 4, &s) && *s == '\0');
    assert_true(rpc_int(&f, "i", 7, 7, &i) && i == 7);
    i = -5;
    assert_true(rpc_int_opt(&f, "absent", 0, 1, &i) && i == -5);
    assert_true(rpc_bool_opt(&f, "b", &b) && b);
    assert_true(rpc_array(&f, "a", 2, &a) && json_array_size(a) == 2);
    assert_true(rpc_bytes(&f, "k", bytes, 3) && memcmp(bytes, "\0\1\2", 3) == 0);
    assert_true(rpc_blob(&f, "k", 3, &blob, &len) && len == 3);
    free(blob);
    assert_string_equal(f.problem, "");

    assert_false(rpc_str(&f, "absent", 9, &s));
    assert_string_equal(f.problem, "absent is missing");
    assert_false(rpc_str(&f, "s", 9, &s)); /* nothing is read after a problem */
    assert_false(rpc_int_opt(&f, "absent", 0, 9, &i));
    assert_string_equal(f.problem, "absent is missing");

    f = rpc_fields_of(p);
    assert_false(rpc_str(&f, "s", 3, &s));
    f = rpc_fields_of(p);
    assert_false(rpc_str(&f, "e", 3, &s));
    f = rpc_fields_of(p);
    assert_false(rpc_str(&f, "i", 3, &s));
    f = rpc_fields_of(p);
    assert_false(rpc_int(&f, "i", 8, 9, &i));
    assert_string_equal(f.problem, "i must lie between 8 and 9");
    f = rpc_fields_of(p);
    assert_false(rpc_int_opt(&f, "s", 8, 9, &i));
    f = rpc_fields_of(p);
    assert_false(rpc_bool_opt(&f, "i", &b));
    f = rpc_fields_of(p);
    assert_false(rpc_array(&f, "a", 1, &a));
    f = rpc_fields_of(p);
    assert_false(rpc_bytes(&f, "k", bytes, 2));
    f = rpc_fields_of(p);
    assert_false(rpc_blob(&f, "k", 2, &blob, &len));
    f = rpc_fields_of(p);
    assert_false(rpc_blob(&f, "bad", 3, &blob, &len));
    json_decref(p);
}

/* --- dispatch --- */

struct fake_conn {
    struct rpc_conn conn;
    char sent[512];
    int ended;
};

static void fake_send(struct rpc_conn *c, const char *text, size_t len)
{
    struct fake_conn *f = (struct fake_conn *)c;
    assert_true(len < sizeof f->sent);
    memcpy(f->sent, text, len + 1);
}

static void fake_ended(struct rpc_conn *c)
{
    ((struct fake_conn *)c)->ended++;
}

static void op_echo(struct rpc_call *call)
{
    rpc_reply(call, json_deep_copy(rpc_payload(call)));
}

static void op_later(struct rpc_call *call)
{
    *(struct rpc_call **)rpc_server(call) = call;
}

/* A payload that cannot be made: a value of it is not UTF-8. */
static void op_broken(struct rpc_call *call)
{
    rpc_reply(call, json_pack("{s:s}", "text", "Gr\xfc\xdf"));
}

static const struct rpc_op ops[] = {{"Echo", 0, op_echo},
                                    {"Mine", RPC_NEEDS_SESSION, op_echo},
                                    {"Later", 0, op_later},
                                    {"Broken", 0, op_broken},
                                    {0}};

static void run(struct rpc_table *t, struct fake_conn *c, const char *text)
{
    struct rpc_request req;
    const char *message;
    enum rpc_error e = rpc_request_parse(text, strlen(text), &req, &message);
    rpc_dispatch(t, &c->conn, &req, e, message);
}

static void calls_get_exactly_one_answer(void **state)
{
    (void)state;
    struct rpc_table *t = rpc_table_new(ops);
    struct rpc_call *later = NULL;
    struct fake_conn c = {
        .conn = {.send = fake_send, .ended = fake_ended, .server = (void *)&later}};
    run(t, &c, "{\"op\":\"Echo\",\"requestId\":\"1\",\"payload\":{\"a\":\"b\"}}");
    assert_string_equal(c.sent, "{\"op\":\"Echo\",\"requestId\":\"1\",\"status\":200,\"ok\":true,"
                                "\"payload\":{\"a\":\"b\"}}");
    assert_int_equal(c.ended, 1);
    run(t, &c, "{\"op\":\"Nope\",\"requestId\":\"2\"}"); /* before NO_PAYLOAD */
    assert_non_null(strstr(c.sent, "\"requestId\":\"2\",\"status\":400"));
    assert_non_null(strstr(c.sent, "UNKNOWN_OP"));
    run(t, &c, "{\"op\":\"Echo\"}");
    assert_non_null(strstr(c.sent, "NO_PAYLOAD"));
    run(t, &c, "nonsense");
    assert_non_null(strstr(c.sent, "BAD_JSON"));
    run(t, &c, "{\"op\":\"Mine\",\"payload\":{}}");
    assert_non_null(strstr(c.sent, "\"status\":401"));
    c.conn.session_login = "alice";
    run(t, &c, "{\"op\":\"Mine\",\"payload\":{}}");
    assert_non_null(strstr(c.sent, "\"status\":200"));
    assert_int_equal(c.ended, 6);

    run(t, &c, "{\"op\":\"Later\",\"requestId\":\"7\",\"payload\":{}}");
    assert_int_equal(c.ended, 6);
    assert_non_null(later);
    assert_string_equal(rpc_request_id(later), "7");
    rpc_fail_retry(later, RPC_OVERLOADED, "busy", 250);
    assert_non_null(strstr(c.sent, "\"payload\":{\"retryAfterMs\":250}"));
    assert_int_equal(c.ended, 7);
    rpc_table_free(t);
}

static void a_payload_that_could_not_be_made_is_no_success(void **state)
{
    (void)state;
    struct rpc_table *t = rpc_table_new(ops);
    struct fake_conn c = {.conn = {.send = fake_send, .ended = fake_ended}};
    run(t, &c, "{\"op\":\"Broken\",\"requestId\":\"1\",\"payload\":{}}");
    assert_non_null(strstr(c.sent, "\"requestId\":\"1\",\"status\":500"));
    assert_non_null(strstr(c.sent, "INTERNAL_ERROR"));
    assert_int_equal(c.ended, 1);
    rpc_table_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_come_in_their_order),
        cmocka_unit_test(what_does_not_survive_a_round_trip_is_refused),
        cmocka_unit_test(nesting_and_values_are_bounded),
        cmocka_unit_test(names_are_kept_for_the_error_answer),
        cmocka_unit_test(truncated_texts_are_refused),
        cmocka_unit_test(answers_have_the_documented_form),
        cmocka_unit_test(answers_of_others_may_lack_a_payload),
        cmocka_unit_test(every_error_has_a_name_and_status),
        cmocka_unit_test(fields_are_read_strictly),
        cmocka_unit_test(calls_get_exactly_one_answer),
        cmocka_unit_test(a_payload_that_could_not_be_made_is_no_success),
    };
    log_setup("test", LOG_FORMAT_LOGFMT, LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
