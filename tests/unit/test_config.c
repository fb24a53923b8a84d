/* Tests of the configuration reader. */
#include "util/config.h"
#include "util/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const struct config_key keys[] = {
    {.name = "server.url", .dflt = "", .help = "public address"},
    {.name = "server.pool.pingIdleSeconds", .type = CONFIG_INT, .dflt = "30", .min = 1, .max = 600},
    {.name = "web.enabled", .type = CONFIG_BOOL, .dflt = "false"},
    {.name = "log.format", .type = CONFIG_ENUM, .dflt = "logfmt", .choices = "logfmt|json"},
    {.name = "db.conninfo", .dflt = "dbname=shine"},
    {.name = "admin.token", .dflt = ""},
    {.name = "limits.offset", .type = CONFIG_INT, .dflt = "-5", .min = INT64_MIN, .max = INT64_MAX},
    {0},
};

/* One configuration and a folder for its files. */
struct fixture {
    struct config *c;
    char dir[32];
    char *path; /* of the configuration file */
    char *error;
};

static int setup(void **state)
{
    struct fixture *f = xnew(struct fixture);
    f->c = config_new(keys);
    strcpy(f->dir, "/tmp/shine-unit-XXXXXX");
    if (!mkdtemp(f->dir))
        return -1;
    f->path = xasprintf("%s/shine.conf", f->dir);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    char *value = xasprintf("%s/value", f->dir);
    (void)unlink(f->path);
    (void)unlink(value);
    int rc = rmdir(f->dir);
    config_free(f->c);
    free(value);
    free(f->path);
    free(f->error);
    free(f);
    return rc;
}

static void write_file(const char *path, const char *text, size_t n)
{
    FILE *out = fopen(path, "we");
    assert_non_null(out);
    assert_int_equal(fwrite(text, 1, n, out), n);
    assert_int_equal(fclose(out), 0);
}

static bool load(struct fixture *f, const char *text)
{
    write_file(f->path, text, strlen(text));
    free(f->error);
    f->error = NULL;
    return config_load_file(f->c, f->path, &f->error);
}

static bool set(struct fixture *f, const char *assignment)
{
    free(f->error);
    f->error = NULL;
    return config_set(f->c, assignment, "--set", &f->error);
}

static bool load_env(struct fixture *f, const char *variable)
{
    char *copy = xstrdup(variable);
    char *env[] = {(char[]){"HOME=/root"}, copy, NULL};
    free(f->error);
    f->error = NULL;
    bool ok = config_load_env(f->c, env, &f->error);
    free(copy);
    return ok;
}

static void assert_error(const struct fixture *f, const char *part)
{
    const char *error = f->error ? f->error : "(no error)";
    if (!strstr(error, part))
        fail_msg("'%s' is not in '%s'", part, error);
}

static void assert_loaded(const struct fixture *f, bool ok)
{
    if (!ok)
        fail_msg("refused: %s", f->error);
}

static void defaults_are_typed(void **state)
{
    struct fixture *f = *state;
    assert_string_equal(config_str(f->c, "server.url"), "");
    assert_string_equal(config_str(f->c, "db.conninfo"), "dbname=shine");
    assert_int_equal(config_int(f->c, "server.pool.pingIdleSeconds"), 30);
    assert_int_equal(config_int(f->c, "limits.offset"), -5);
    assert_false(config_bool(f->c, "web.enabled"));
    assert_int_equal(config_enum(f->c, "log.format"), 0);
    assert_string_equal(config_origin(f->c, "log.format"), "default");
}

static void file_sets_values_and_origins(void **state)
{
    struct fixture *f = *state;
    assert_loaded(f, load(f, "# a comment\n\n   # another\n"
                             "server.url = wss://a.example/ws\n"
                             "\t server.pool.pingIdleSeconds=45 \n"
                             "web.enabled = on\n"
                             "log.format = json\n"
                             "limits.offset = -9223372036854775808"));
    assert_string_equal(config_str(f->c, "server.url"), "wss://a.example/ws");
    assert_int_equal(config_int(f->c, "server.pool.pingIdleSeconds"), 45);
    assert_true(config_bool(f->c, "web.enabled"));
    assert_int_equal(config_enum(f->c, "log.format"), 1);
    assert_true(config_int(f->c, "limits.offset") == INT64_MIN);
    char *origin = xasprintf("%s:4", f->path);
    assert_string_equal(config_origin(f->c, "server.url"), origin);
    free(origin);
}

static void value_keeps_what_other_formats_eat(void **state)
{
    struct fixture *f = *state;
    assert_loaded(f, load(f, "server.url = wss://a/?x=1#part ; not a comment\n"
                             "db.conninfo = host=/run user='a b' # mine = yes\n"
                             "admin.token = \"quoted\"\n"));
    assert_string_equal(config_str(f->c, "server.url"), "wss://a/?x=1#part ; not a comment");
    assert_string_equal(config_str(f->c, "db.conninfo"), "host=/run user='a b' # mine = yes");
    assert_string_equal(config_str(f->c, "admin.token"), "\"quoted\"");
}

static void empty_value_is_a_value(void **state)
{
    struct fixture *f = *state;
    assert_loaded(f, load(f, "db.conninfo =\nserver.url=   \n"));
    assert_string_equal(config_str(f->c, "db.conninfo"), "");
    assert_string_equal(config_str(f->c, "server.url"), "");
    assert_false(load(f, "server.pool.pingIdleSeconds =\n"));
    assert_error(f, ":1: server.pool.pingIdleSeconds is not a number: ''");
    assert_int_equal(config_int(f->c, "server.pool.pingIdleSeconds"), 30);
}

static void crlf_and_byte_order_mark(void **state)
{
    struct fixture *f = *state;
    assert_loaded(f,
                  load(f, "\xef\xbb\xbfserver.url = wss://a\r\n\r\n# c\r\nweb.enabled = yes\r\n"));
    assert_string_equal(config_str(f->c, "server.url"), "wss://a");
    assert_true(config_bool(f->c, "web.enabled"));
}

static void lines_may_have_any_length(void **state)
{
    struct fixture *f = *state;
    enum { LONG = 300000 };
    char *value = xmalloc(LONG + 1);
    memset(value, 'v', LONG);
    value[LONG] = '\0';
    char *text = xasprintf("server.url = %s\nweb.enabled = 1\n", value);
    assert_loaded(f, load(f, text));
    assert_string_equal(config_str(f->c, "server.url"), value);
    assert_true(config_bool(f->c, "web.enabled"));
    free(text);
    text = xasprintf("%s = 1\n", value); /* a long unknown key gives a short message */
    assert_false(load(f, text));
    assert_true(strlen(f->error) < 1000);
    free(text);
    free(value);
}

static void unknown_key_names_line_and_nearest(void **state)
{
    struct fixture *f = *state;
    assert_false(load(f, "web.enabled = 1\n\nserver.pool.pingidleSecond = 5\n"));
    char *expected = xasprintf("%s:3: unknown key 'server.pool.pingidleSecond'; did you mean "
                               "'server.pool.pingIdleSeconds'?",
                               f->path);
    assert_string_equal(f->error, expected);
    free(expected);
    assert_true(config_bool(f->c, "web.enabled")); /* what came before stays */
    assert_false(load(f, "weben = 1\n"));
    assert_error(f, "'web.enabled'");
    assert_false(load(f, "= 1\n"));
    assert_error(f, ":1: unknown key ''");
}

static void missing_equals_names_line(void **state)
{
    struct fixture *f = *state;
    assert_false(load(f, "# c\nserver.url wss://a\n"));
    assert_error(f, ":2: '=' is missing");
    assert_false(set(f, "web.enabled"));
    assert_error(f, "--set: '=' is missing");
}

static void duplicate_in_one_file_is_refused(void **state)
{
    struct fixture *f = *state;
    assert_false(load(f, "server.url = a\nweb.enabled = 1\nserver.url = b\n"));
    assert_error(f, ":3: server.url was set before, in ");
    assert_error(f, "shine.conf:1");
    assert_string_equal(config_str(f->c, "server.url"), "a");
    assert_false(load(f, "admin.token = a\nadmin.token@file = /dev/null\n"));
    assert_error(f, ":2: admin.token was set before");
    assert_loaded(f, load(f, "server.url = c\n")); /* another load may set it again */
    assert_string_equal(config_str(f->c, "server.url"), "c");
}

static void nul_byte_is_refused(void **state)
{
    struct fixture *f = *state;
    static const char *const texts[] = {"server.url = a\0b\n", "server.url = a\0", "\0\n"};
    static const size_t lengths[] = {17, 15, 2};
    for (size_t i = 0; i < 3; i++) {
        write_file(f->path, texts[i], lengths[i]);
        free(f->error);
        f->error = NULL;
        assert_false(config_load_file(f->c, f->path, &f->error));
        assert_error(f, ":1: the line holds a NUL byte");
    }
}

static void bad_values_are_refused_and_change_nothing(void **state)
{
    struct fixture *f = *state;
    static const char *const bad[][2] = {
        {"server.pool.pingIdleSeconds = 0", "must be between 1 and 600: '0'"},
        {"server.pool.pingIdleSeconds = 601", "must be between 1 and 600"},
        {"server.pool.pingIdleSeconds = 99999999999999999999", "must be between"},
        {"server.pool.pingIdleSeconds = 5s", "is not a number: '5s'"},
        {"server.pool.pingIdleSeconds = 0x10", "is not a number"},
        {"server.pool.pingIdleSeconds = 1 2", "is not a number"},
        {"web.enabled = maybe", "web.enabled must be true or false: 'maybe'"},
        {"web.enabled = ", "must be true or false"},
        {"log.format = xml", "log.format must be one of logfmt|json: 'xml'"},
        {"log.format = log", "must be one of"},
        {"log.format = logfmt|json", "must be one of"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_false(set(f, bad[i][0]));
        assert_error(f, bad[i][1]);
        assert_error(f, "--set: ");
    }
    defaults_are_typed(state);
}

static void booleans_have_eight_spellings(void **state)
{
    struct fixture *f = *state;
    static const char *const words[] = {"true", "false", "yes", "no", "on", "off", "1", "0"};
    for (size_t i = 0; i < 8; i++) {
        char *text = xasprintf("web.enabled=%s", words[i]);
        assert_loaded(f, set(f, text));
        assert_int_equal(config_bool(f->c, "web.enabled"), i % 2 == 0);
        free(text);
    }
}

static void environment_beats_file_and_set_beats_both(void **state)
{
    struct fixture *f = *state;
    assert_loaded(f, load(f, "server.pool.pingIdleSeconds = 10\n"));
    assert_loaded(f, load_env(f, "SHINE_SERVER_POOL_PINGIDLESECONDS= 20 "));
    assert_int_equal(config_int(f->c, "server.pool.pingIdleSeconds"), 20);
    assert_string_equal(config_origin(f->c, "server.pool.pingIdleSeconds"), "environment");
    assert_loaded(f, set(f, "server.pool.pingIdleSeconds=40"));
    assert_int_equal(config_int(f->c, "server.pool.pingIdleSeconds"), 40);
    assert_string_equal(config_origin(f->c, "server.pool.pingIdleSeconds"), "--set");
}

static void environment_is_checked(void **state)
{
    struct fixture *f = *state;
    assert_false(load_env(f, "SHINE_SERVER_POOL_PINGIDLESECOND=20"));
    assert_error(f, "unknown variable 'SHINE_SERVER_POOL_PINGIDLESECOND'; did you mean "
                    "'SHINE_SERVER_POOL_PINGIDLESECONDS'?");
    assert_false(load_env(f, "SHINE_WEB_ENABLED=perhaps"));
    assert_error(f, "environment: web.enabled must be true or false");
    assert_loaded(f, load_env(f, "SHINE_TEST_SOMETHING=1"));
    assert_loaded(f, load_env(f, "SHINEX=1"));
    assert_loaded(f, load_env(f, "SHINE_WITHOUT_VALUE"));
    assert_loaded(f, load_env(f, "SHINE_SERVER_URL=a=b"));
    assert_string_equal(config_str(f->c, "server.url"), "a=b");
}

static void value_from_file(void **state)
{
    struct fixture *f = *state;
    char *value = xasprintf("%s/value", f->dir);
    char *text = xasprintf("admin.token@file = %s\n", value);
    assert_false(load(f, text));
    assert_error(f, ":1: admin.token@file: cannot read ");
    assert_error(f, "No such file");
    static const char *const contents[][2] = {
        {"s3cret", "s3cret"},
        {"s3cret\n", "s3cret"},
        {"s3cret\r\n", "s3cret"},
        {" a\nb\n\n", " a\nb\n"}, /* one line end goes, nothing else */
        {"", ""},
    };
    for (size_t i = 0; i < sizeof contents / sizeof *contents; i++) {
        write_file(value, contents[i][0], strlen(contents[i][0]));
        assert_loaded(f, load(f, text));
        assert_string_equal(config_str(f->c, "admin.token"), contents[i][1]);
    }
    write_file(value, "a\0b", 3);
    assert_false(load(f, text));
    assert_error(f, "holds a NUL byte");
    char *big = xmalloc(64 * 1024 + 1);
    memset(big, 'x', 64 * 1024 + 1);
    write_file(value, big, 64 * 1024);
    assert_loaded(f, load(f, text));
    write_file(value, big, 64 * 1024 + 1);
    assert_false(load(f, text));
    assert_error(f, "larger than 64 KiB");
    free(big);
    free(text);
    free(value);
}

/* Values go out in JSON, which cannot hold anything but characters. */
static void what_is_not_utf8_is_refused(void **state)
{
    struct fixture *f = *state;
    char *value = xasprintf("%s/value", f->dir);
    char *from_file = xasprintf("server.url@file = %s", value);
    assert_loaded(f, set(f, "server.url = Gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80"));
    assert_false(load(f, "server.url = Gr\xfc\xdf\n"));
    assert_error(f, ":1: server.url is not valid UTF-8");
    assert_false(set(f, "server.url = \xed\xa0\x80"));
    assert_false(set(f, "server.url = \xc3"));
    assert_false(load_env(f, "SHINE_SERVER_URL=\xc0\x80"));
    assert_error(f, "environment: server.url is not valid UTF-8");
    write_file(value, "\xff", 1);
    assert_false(set(f, from_file));
    assert_string_equal(config_str(f->c, "server.url"), "Gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80");
    free(from_file);
    free(value);
}

static void unreadable_file_is_an_error(void **state)
{
    struct fixture *f = *state;
    assert_false(config_load_file(f->c, "/nonexistent/shine.conf", &f->error));
    assert_error(f, "/nonexistent/shine.conf: No such file");
    free(f->error);
    f->error = NULL;
    assert_false(config_load_file(f->c, f->dir, &f->error)); /* a folder */
    assert_error(f, "directory");
}

static void printing_hides_secrets_and_can_be_read_back(void **state)
{
    struct fixture *f = *state;
    char *value = xasprintf("%s/value", f->dir);
    char *set_token = xasprintf("admin.token@file=%s", value);
    write_file(value, "hush", 4);
    assert_loaded(f, set(f, set_token));
    assert_loaded(f, set(f, "db.conninfo=password=hush"));
    assert_loaded(f, load_env(f, "SHINE_SERVER_URL=a\nweb.enabled = true\x1b"));
    FILE *out = fopen(f->path, "w+e");
    assert_non_null(out);
    config_print(f->c, fileno(out));
    char text[4096];
    rewind(out);
    text[fread(text, 1, sizeof text - 1, out)] = '\0';
    (void)fclose(out);
    assert_null(strstr(text, "hush"));
    assert_non_null(strstr(text, "admin.token = (secret)\n"));
    assert_non_null(strstr(text, "db.conninfo = (secret)\n"));
    assert_non_null(strstr(text, "# public address [environment]\n"
                                 "server.url = a?web.enabled = true?\n"));
    assert_non_null(strstr(text, "[default]\nserver.pool.pingIdleSeconds = 30\n"));
    assert_loaded(f, load(f, text));
    /* A value that is set openly afterwards is no secret any more. */
    assert_loaded(f, set(f, "admin.token=open"));
    out = fopen(f->path, "w+e");
    assert_non_null(out);
    config_print(f->c, fileno(out));
    rewind(out);
    text[fread(text, 1, sizeof text - 1, out)] = '\0';
    (void)fclose(out);
    assert_non_null(strstr(text, "admin.token = open\n"));
    free(set_token);
    free(value);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(defaults_are_typed),
        CASE(file_sets_values_and_origins),
        CASE(value_keeps_what_other_formats_eat),
        CASE(empty_value_is_a_value),
        CASE(crlf_and_byte_order_mark),
        CASE(lines_may_have_any_length),
        CASE(unknown_key_names_line_and_nearest),
        CASE(missing_equals_names_line),
        CASE(duplicate_in_one_file_is_refused),
        CASE(nul_byte_is_refused),
        CASE(bad_values_are_refused_and_change_nothing),
        CASE(booleans_have_eight_spellings),
        CASE(environment_beats_file_and_set_beats_both),
        CASE(environment_is_checked),
        CASE(value_from_file),
        CASE(what_is_not_utf8_is_refused),
        CASE(unreadable_file_is_an_error),
        CASE(printing_hides_secrets_and_can_be_read_back),
    };
    return cmocka_run_group_tests_name("config", tests, NULL, NULL);
}
