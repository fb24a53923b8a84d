/* Tests of the log writer: during each test stderr is a pipe, so that every line can be read back.
 */
#include "util/log.h"
#include "util/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static int pipe_fds[2], real_stderr;
static char output[3 * PIPE_BUF];

static int setup(void **state)
{
    (void)state;
    real_stderr = dup(STDERR_FILENO);
    if (real_stderr < 0 || pipe2(pipe_fds, O_NONBLOCK | O_CLOEXEC) < 0)
        return -1;
    return dup2(pipe_fds[1], STDERR_FILENO) < 0 ? -1 : 0;
}

static int teardown(void **state)
{
    (void)state;
    int rc = dup2(real_stderr, STDERR_FILENO);
    (void)close(real_stderr);
    (void)close(pipe_fds[0]);
    (void)close(pipe_fds[1]);
    return rc < 0 ? -1 : 0;
}

/* What was logged since the last call. */
static const char *logged(void)
{
    ssize_t n = read(pipe_fds[0], output, sizeof output - 1);
    output[n > 0 ? n : 0] = '\0';
    return output;
}

static void assert_has(const char *line, const char *part)
{
    if (!strstr(line, part))
        fail_msg("'%s' is not in '%s'", part, line);
}

/* Log one string value and return what stands between "v=" and the line's end. */
static const char *shown(const char *value)
{
    log_info("e", LOG_S("v", value));
    char *v = strstr(logged(), " v=");
    assert_non_null(v);
    v[strlen(v) - 1] = '\0';
    return v + 3;
}

static void line_has_its_parts_in_order(void **state)
{
    (void)state;
    log_setup("frontd", LOG_FORMAT_LOGFMT, LOG_LEVEL_INFO);
    log_info("peer_connected", LOG_S("peer", "alice"), LOG_I("ms", -12), LOG_S("none", NULL));
    char *expected = xasprintf(
        "level=info daemon=frontd pid=%d event=peer_connected peer=alice ms=-12 none=\"\"\n",
        (int)getpid());
    const char *line = logged();
    int y, mo, d, h, mi, s, ms, used = 0;
    assert_int_equal(
        /* NOLINTNEXTLINE(cert-err34-c): the widths bound every number */
        sscanf(line, "ts=%4d-%2d-%2dT%2d:%2d:%2d.%3dZ %n", &y, &mo, &d, &h, &mi, &s, &ms, &used),
        7);
    assert_string_equal(line + used, expected);
    free(expected);
}

static void levels_filter(void **state)
{
    (void)state;
    log_setup("frontd", LOG_FORMAT_LOGFMT, LOG_LEVEL_WARN);
    log_info("quiet");
    log_debug("quiet");
    assert_string_equal(logged(), "");
    log_warn("loud");
    assert_has(logged(), "level=warn ");
    log_set_level(LOG_LEVEL_DEBUG);
    log_debug("now");
    assert_has(logged(), "level=debug ");
    log_error("bad");
    assert_has(logged(), "level=error ");
    log_set_level(LOG_LEVEL_INFO);
    assert_false(log_enabled(LOG_LEVEL_DEBUG));
    assert_true(log_enabled(LOG_LEVEL_INFO));
}

static void logfmt_escapes(void **state)
{
    (void)state;
    log_setup("t", LOG_FORMAT_LOGFMT, LOG_LEVEL_INFO);
    assert_string_equal(shown("wss://a.b:443/ws"), "wss://a.b:443/ws");
    assert_string_equal(shown("two words"), "\"two words\"");
    assert_string_equal(shown("a=b"), "\"a=b\"");
    assert_string_equal(shown("say \"hi\" \\o/"), "\"say \\\"hi\\\" \\\\o/\"");
    assert_string_equal(shown("x\nlevel=error"), "\"x\\nlevel=error\"");
    assert_string_equal(shown("\r\t\x1b[31m\x7f"), "\"\\r\\t\\u001b[31m\\u007f\"");
    assert_string_equal(shown("gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80"),
                        "\"gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80\"");
    assert_string_equal(shown("\xc2\x85|\xe2\x80\xa8|\xe2\x80\xae"), "\"\\u0085|\\u2028|\\u202e\"");
    /* the rest of what turns the direction of text: the marks, the isolates */
    assert_string_equal(shown("\xd8\x9c\xe2\x80\x8f\xe2\x81\xa9"), "\"\\u061c\\u200f\\u2069\"");
}

static void invalid_utf8_is_shown_as_bytes(void **state)
{
    (void)state;
    log_setup("t", LOG_FORMAT_LOGFMT, LOG_LEVEL_INFO);
    assert_string_equal(shown("a\xff"), "\"a\\xff\"");
    assert_string_equal(shown("\x80"), "\"\\x80\"");
    assert_string_equal(shown("\xc3"), "\"\\xc3\"");                              /* cut short */
    assert_string_equal(shown("\xe2\x82"), "\"\\xe2\\x82\"");                     /* cut short */
    assert_string_equal(shown("\xc0\xaf"), "\"\\xc0\\xaf\"");                     /* overlong */
    assert_string_equal(shown("\xe0\x80\xaf"), "\"\\xe0\\x80\\xaf\"");            /* overlong */
    assert_string_equal(shown("\xed\xa0\x80"), "\"\\xed\\xa0\\x80\"");            /* surrogate */
    assert_string_equal(shown("\xf4\x90\x80\x80"), "\"\\xf4\\x90\\x80\\x80\"");   /* > 10FFFF */
    assert_string_equal(shown("\xf0\x8f\x80\x80x"), "\"\\xf0\\x8f\\x80\\x80x\""); /* overlong */
}

static void json_is_valid_json(void **state)
{
    (void)state;
    log_setup("syncd", LOG_FORMAT_JSON, LOG_LEVEL_INFO);
    log_warn("odd", LOG_S("v", "a\"b\\c\n\x01\xff\xc3\xbc"), LOG_I("n", INT64_MIN));
    const char *line = logged();
    assert_int_equal(line[strlen(line) - 1], '\n');
    assert_ptr_equal(strchr(line, '\n'), line + strlen(line) - 1);
    json_t *o = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(o);
    assert_string_equal(json_string_value(json_object_get(o, "v")),
                        "a\"b\\c\n\x01\xef\xbf\xbd\xc3\xbc");
    assert_int_equal(json_integer_value(json_object_get(o, "n")), INT64_MIN);
    assert_int_equal(json_integer_value(json_object_get(o, "pid")), getpid());
    assert_string_equal(json_string_value(json_object_get(o, "event")), "odd");
    assert_string_equal(json_string_value(json_object_get(o, "level")), "warn");
    assert_string_equal(json_string_value(json_object_get(o, "daemon")), "syncd");
    assert_non_null(json_object_get(o, "ts"));
    json_decref(o);
}

/* Whatever a field holds, a line stays below PIPE_BUF, ends, and parses. */
static void long_values_and_lines_are_cut(void **state)
{
    (void)state;
    static const char *const fillings[] = {"x", "\x01", "\"", "\xc3\xbc", "\xff", " "};
    for (size_t i = 0; i < sizeof fillings / sizeof *fillings; i++) {
        char big[3001] = "";
        size_t unit = strlen(fillings[i]);
        for (size_t k = 0; k + unit <= sizeof big - 1; k += unit)
            memcpy(big + k, fillings[i], unit);
        log_setup("t", LOG_FORMAT_JSON, LOG_LEVEL_INFO);
        log_info("e", LOG_S("a", big), LOG_S("b", big), LOG_S("c", big), LOG_S("d", big),
                 LOG_S("e", big), LOG_S("f", "small"));
        const char *line = logged();
        assert_in_range(strlen(line), 100, PIPE_BUF);
        json_t *o = json_loads(line, 0, NULL);
        assert_non_null(o);
        assert_non_null(json_object_get(o, "a"));
        assert_null(json_object_get(o, "e"));
        assert_int_equal(json_integer_value(json_object_get(o, "cut")), 1);
        json_decref(o);
        log_setup("t", LOG_FORMAT_LOGFMT, LOG_LEVEL_INFO);
        assert_in_range(strlen(shown(big)), 1000, 1100);
    }
}

/* Every length around the bound: no byte past it, no missing newline. */
static void every_length_around_the_bound(void **state)
{
    (void)state;
    char a[1001], b[1001];
    memset(a, 'a', 1000);
    a[1000] = '\0';
    for (int format = LOG_FORMAT_LOGFMT; format <= LOG_FORMAT_JSON; format++) {
        log_setup("t", (enum log_format)format, LOG_LEVEL_INFO);
        for (size_t n = 700; n <= 1000; n++) {
            memset(b, ' ', n);
            b[n] = '\0';
            log_info("e", LOG_S("a", a), LOG_S("b", a), LOG_S("c", a), LOG_S("d", b),
                     LOG_I("n", 1));
            const char *line = logged();
            assert_in_range(strlen(line), 3000, PIPE_BUF);
            assert_int_equal(line[strlen(line) - 1], '\n');
        }
    }
}

static void full_pipe_neither_blocks_nor_touches_errno(void **state)
{
    (void)state;
    log_setup("t", LOG_FORMAT_LOGFMT, LOG_LEVEL_INFO);
    errno = ENOENT;
    for (int i = 0; i < 2000; i++)
        log_info("filling", LOG_S("pad", "................................................"));
    assert_int_equal(errno, ENOENT);
    while (*logged())
        ;
}

static void failed_assertion_logs_and_aborts(void **state)
{
    (void)state;
    log_setup("t", LOG_FORMAT_LOGFMT, LOG_LEVEL_INFO);
    pid_t child = fork();
    if (child == 0) {
        int sum = 2;
        shine_assert(sum == 3);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
    const char *line = logged();
    assert_has(line, "event=assert_failed condition=\"sum == 3\"");
    char *pid = xasprintf(" pid=%d ", (int)child);
    assert_has(line, pid); /* a forked worker shows its own id */
    free(pid);
}

static void copies_are_copies(void **state)
{
    (void)state;
    assert_null(xstrdup(NULL));
    assert_null(xmemdup0(NULL, 3));
    char *s = xmemdup0("a\0b", 3);
    assert_memory_equal(s, "a\0b\0", 4);
    free(s);
    s = xrealloc(xcalloc(0, 8), 0);
    assert_non_null(s);
    free(s);
    free(xmalloc(0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(line_has_its_parts_in_order, setup, teardown),
        cmocka_unit_test_setup_teardown(levels_filter, setup, teardown),
        cmocka_unit_test_setup_teardown(logfmt_escapes, setup, teardown),
        cmocka_unit_test_setup_teardown(invalid_utf8_is_shown_as_bytes, setup, teardown),
        cmocka_unit_test_setup_teardown(json_is_valid_json, setup, teardown),
        cmocka_unit_test_setup_teardown(long_values_and_lines_are_cut, setup, teardown),
        cmocka_unit_test_setup_teardown(every_length_around_the_bound, setup, teardown),
        cmocka_unit_test_setup_teardown(full_pipe_neither_blocks_nor_touches_errno, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(failed_assertion_logs_and_aborts, setup, teardown),
        cmocka_unit_test_setup_teardown(copies_are_copies, setup, teardown),
    };
    return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
