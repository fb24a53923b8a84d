/*
 * The table of configuration keys: defaults, the rules between keys, lists of addresses.
 */
#include "daemon/settings.h"

#include "util/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { DOC_MAX = 256 * 1024 };

static int next(const char **rest, struct settings_address *a)
{
    memset(a, 0x55, sizeof *a);
    return settings_next_address(rest, a);
}

static void addresses_are_taken_apart(void **state)
{
    (void)state;
    struct settings_address a;
    const char *s = " 127.0.0.1:8443 ,[::1]:443,\t0.0.0.0:0 ";
    assert_int_equal(next(&s, &a), 1);
    assert_string_equal(a.host, "127.0.0.1");
    assert_int_equal(a.port, 8443);
    assert_int_equal(next(&s, &a), 1);
    assert_string_equal(a.host, "::1");
    assert_int_equal(a.port, 443);
    assert_int_equal(next(&s, &a), 1);
    assert_string_equal(a.host, "0.0.0.0");
    assert_int_equal(a.port, 0);
    assert_int_equal(next(&s, &a), 0);
    assert_int_equal(next(&s, &a), 0);
}

static void what_is_no_address_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "443",      ":443",        "localhost:443", "127.0.0.1",  "127.0.0.1:",
        ",",        "[::1]",       "[]:1",          "::1:443",    "127.0.0.1:65536",
        "1.2.3.4:", "[::1]443",    "1.2.3.4:-1",    "1.2.3.4:4x", "1.2.3.4:000443",
        "[:443",    "[1.2.3.4]:1", "256.1.1.1:1",   "]:1",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *s = bad[i];
        struct settings_address a;
        assert_int_equal(next(&s, &a), -1);
    }
}

/* What settings_check() says after setting keys; NULL if nothing. */
static char *check(const char *const *assignments)
{
    struct config *c = config_new(settings_keys);
    char *error = NULL;
    for (; *assignments; assignments++)
        assert_true(config_set(c, *assignments, "test", &error));
    error = settings_check(c);
    config_free(c);
    return error;
}

static void refused(const char *a, const char *b, const char *names)
{
    char *error = check((const char *const[]){a, b, NULL});
    assert_non_null(error);
    assert_non_null(strstr(error, names));
    free(error);
}

static void defaults_are_consistent(void **state)
{
    (void)state;
    assert_null(check((const char *const[]){NULL}));
}

static void keys_that_contradict_are_refused(void **state)
{
    (void)state;
    refused("server.SHiNE.login = Big", NULL, "server.SHiNE.login");
    refused("server.SHiNE.login = .dot", NULL, "server.SHiNE.login");
    refused("server.url = https://a/ws", NULL, "server.url");
    refused("listen = localhost", NULL, "listen");
    refused("listen.plain = 1", NULL, "listen.plain");
    refused("tls.certFile = /c.pem", NULL, "tls.keyFile");
    refused("tls.keyFile = /k.pem", NULL, "tls.certFile");
    refused("server.pool.requestTimeoutSeconds = 36", NULL, "callerTimeoutSeconds");
    refused("delivery.leaseMs = 43999", NULL, "at least 44000: asking 12000 ms");
    refused("server.pool.connectTimeoutSeconds = 17", NULL, "at least 46000");
    refused("server.pool.connectTimeoutSeconds = 60", NULL, "calling 35000 ms");
    refused("limits.connections = 999", NULL, "limits.connections");
    refused("limits.clientBodyBytes = 1048576", "ws.maxMessageBytes = 1048576",
            "ws.maxMessageBytes");
}

static size_t schedule(const char *text, int64_t *out)
{
    struct config *c = config_new(settings_keys);
    char *assignment = xasprintf("delivery.scheduleMs = %s", text), *error = NULL;
    assert_true(config_set(c, assignment, "test", &error));
    size_t n = settings_schedule(c, out);
    error = settings_check(c);
    if (n == 0)
        assert_non_null(strstr(error, "delivery.scheduleMs"));
    else
        assert_null(error);
    free(error);
    free(assignment);
    config_free(c);
    return n;
}

static void schedules(void **state)
{
    (void)state;
    int64_t ms[SETTINGS_ATTEMPTS_MAX];
    struct config *c = config_new(settings_keys);
    assert_int_equal(settings_schedule(c, ms), 5);
    assert_int_equal(ms[4], 3600000);
    assert_int_equal(settings_attempt(c).ask_ms, 12000);
    assert_int_equal(settings_attempt(c).call_ms, 27000);
    config_free(c);
    assert_int_equal(schedule("0", ms), 1);
    assert_int_equal(schedule(" 0 ,\t5,6  ", ms), 3);
    assert_int_equal(ms[1], 5);
    assert_int_equal(ms[2], 6);
    assert_int_equal(schedule("0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15", ms), 16);
    static const char *const bad[] = {
        "",
        "1",
        "0,",
        "0,,1",
        ",0",
        "0,5,5",
        "0,5,4",
        "0 5",
        "0,-5",
        "0,5x",
        "x",
        "0.5",
        "0, x",
        "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16",
        "0,9999999999999",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(schedule(bad[i], ms), 0);
}

static void good_values_pass(void **state)
{
    (void)state;
    assert_null(check((const char *const[]){
        "server.SHiNE.login = shine-1.example", "server.url = wss://shine.example:8443/ws",
        "listen = 127.0.0.1:0, [::1]:0", "tls.certFile = /c.pem", "tls.keyFile = /k.pem", NULL}));
    assert_null(check((const char *const[]){"delivery.leaseMs = 44000", NULL}));
}

static void every_key_has_help_of_one_line(void **state)
{
    (void)state;
    for (const struct config_key *k = settings_keys; k->name; k++) {
        assert_non_null(k->help);
        assert_true(strlen(k->help) > 10 && strlen(k->help) < 100 && !strchr(k->help, '\n'));
        for (const struct config_key *other = k + 1; other->name; other++)
            assert_string_not_equal(k->name, other->name);
    }
}

/* Run from the top of the tree, like all tests that read its files. */
static void every_key_is_documented(void **state)
{
    (void)state;
    FILE *f = fopen("docs/operations.md", "re");
    assert_non_null(f);
    char *text = xcalloc(1, DOC_MAX);
    size_t n = fread(text, 1, DOC_MAX - 1, f);
    assert_in_range(n, 1, DOC_MAX - 2);
    assert_int_equal(fclose(f), 0);
    for (const struct config_key *k = settings_keys; k->name; k++) {
        char *name = xasprintf("`%s`", k->name);
        if (!strstr(text, name))
            fail_msg("%s is not in docs/operations.md", k->name);
        free(name);
    }
    free(text);
}

static void server_logins(void **state)
{
    (void)state;
    char longest[65];
    memset(longest, 'a', 64);
    longest[64] = '\0';
    assert_false(settings_server_login_valid(longest));
    longest[63] = '\0';
    assert_true(settings_server_login_valid(longest));
    assert_true(settings_server_login_valid("0_.-"));
    assert_false(settings_server_login_valid(""));
    assert_false(settings_server_login_valid("-a"));
    assert_false(settings_server_login_valid("a b"));
    assert_false(settings_server_login_valid("A"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_are_taken_apart),
        cmocka_unit_test(what_is_no_address_is_refused),
        cmocka_unit_test(defaults_are_consistent),
        cmocka_unit_test(keys_that_contradict_are_refused),
        cmocka_unit_test(schedules),
        cmocka_unit_test(good_values_pass),
        cmocka_unit_test(every_key_has_help_of_one_line),
        cmocka_unit_test(every_key_is_documented),
        cmocka_unit_test(server_logins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
