/*
 * Opening connections: hosts and addresses, servers that do not answer, connections cut off in
 * every phase.
 */
#include "support_db.h"
#include "support_pg.h"

#include "util/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static struct pg *pg;

static int start_server(void **state)
{
    (void)state;
    pg = pg_new(NULL);
    return 0;
}

static int stop_server(void **state)
{
    (void)state;
    pg_free(pg);
    return 0;
}

static const struct db_stmt stmt_id = {"id", "SELECT $1::bigint AS v"};
static const struct db_stmt stmt_big = {"big", "SELECT repeat('x', $1::bigint::integer) AS t"};

/* A port that accepts; as long as nobody serves it, one that never says a word. */
static int listen_somewhere(int *port)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sa);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&sa, len) == 0 && listen(fd, 5) == 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&sa, &len), 0);
    *port = ntohs(sa.sin_port);
    return fd;
}

static void must_connect(const char *conninfo)
{
    char *error = db_pool_check_conninfo(conninfo);
    assert_null(error);
    struct db_limits limits = DB_LIMITS_DEFAULT;
    limits.connect_timeout_ms = 700;
    struct db_fixture f;
    db_fixture_open(&f, conninfo, 2, &limits);
    assert_true(run_until_ready(&f.loop, f.pool));
    db_fixture_close(&f);
}

static void test_hosts(void **state)
{
    (void)state;
    int port;
    int fd = listen_somewhere(&port);
    const char *dir = pg_socket_dir(pg);
    int ours = pg_port(pg);
    const char *const tail = "user=postgres dbname=postgres";
    char *texts[] = {
        xasprintf("host=127.0.0.1,%s port=%d,%d %s", dir, port, ours, tail),
        xasprintf("host=no-such-host.invalid,localhost port=%d %s", ours, tail),
        xasprintf("host=localhost port=%d %s", ours, tail),
        xasprintf("hostaddr=127.0.0.1 port=%d %s", ours, tail),
        xasprintf("host=whatever hostaddr=127.0.0.1 port=%d %s connect_timeout=3", ours, tail),
        xasprintf("postgresql://postgres@[::1]:1,127.0.0.1:%d/postgres", ours),
        xasprintf("host=127.0.0.1,/nonexistent,localhost port=1,2,%d %s", ours, tail),
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        must_connect(texts[i]);
        free(texts[i]);
    }
    close(fd);
}

static void test_bad_conninfo(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "nonsense=1",         "host=a,b port=1,2,3",  "host=a,b hostaddr=127.0.0.1",
        "service=x",          "connect_timeout=soon", "target_session_attrs=standby",
        "host=a 'unfinished",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char *error = db_pool_check_conninfo(bad[i]);
        if (!error)
            fail_msg("accepted: %s", bad[i]);
        free(error);
    }
    assert_null(db_pool_check_conninfo("host=a,b port=5432 target_session_attrs=read-write"));
    assert_null(db_pool_check_conninfo(""));
    char *error = db_pool_check_conninfo("host=a password=very secret");
    assert_non_null(error);
    assert_null(strstr(error, "secret"));
    free(error);
}

/* Closing in any phase of connecting leaves nothing behind. */
static void test_close_while_connecting(void **state)
{
    (void)state;
    int port;
    int fd = listen_somewhere(&port);
    char *hole = xasprintf("host=127.0.0.1 port=%d user=x", port);
    char *name = xasprintf("host=localhost port=%d user=postgres sslmode=require", pg_port(pg));
    const char *const texts[] = {hole, name, "host=no-such-host.invalid user=x"};
    for (int turns = 0; turns < 12; turns++) {
        for (size_t i = 0; i < 3; i++) {
            struct db_fixture f;
            db_fixture_open(&f, texts[i], 2, NULL);
            struct answers a = {0};
            db_fixture_call(&f, &stmt_id, 1, answers_cb, &a);
            for (int t = 0; t < turns; t++)
                uv_run(&f.loop, UV_RUN_NOWAIT);
            db_fixture_close(&f);
            assert_int_equal(a.total, 1);
        }
    }
    free(hole);
    free(name);
    close(fd);
}

/* --- a connection that is cut off after any number of bytes --- */

static void relay(int client, int server, long budget)
{
    char buf[4096];
    struct pollfd p[2] = {{.fd = client, .events = POLLIN}, {.fd = server, .events = POLLIN}};
    while (budget > 0 && poll(p, 2, -1) > 0) {
        for (int i = 0; i < 2; i++) {
            if (!p[i].revents)
                continue;
            size_t room = i == 1 && (size_t)budget < sizeof(buf) ? (size_t)budget : sizeof(buf);
            ssize_t n = read(p[i].fd, buf, room);
            if (n <= 0 || send(p[1 - i].fd, buf, (size_t)n, MSG_NOSIGNAL) != n)
                return;
            budget -= i == 1 ? n : 0;
        }
    }
}

/* The proxy process: each connection may receive `step` bytes more than the one before. */
static void serve_cut(int fd, const struct sockaddr_un *to, long step)
{
    for (long budget = 0;; budget += step) {
        int client = accept(fd, NULL, NULL);
        int server = socket(AF_UNIX, SOCK_STREAM, 0);
        if (client < 0 || server < 0 ||
            connect(server, (const struct sockaddr *)to, sizeof(*to)) != 0)
            _exit(1);
        relay(client, server, budget);
        close(client);
        close(server);
    }
}

static void cut_everywhere(const char *sslmode, long step, const struct db_stmt *stmt)
{
    int port;
    int fd = listen_somewhere(&port);
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    snprintf(to.sun_path, sizeof(to.sun_path), "%s/.s.PGSQL.%d", pg_socket_dir(pg), pg_port(pg));
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve_cut(fd, &to, step);
    }
    close(fd);
    char *conninfo =
        xasprintf("host=127.0.0.1 port=%d user=postgres dbname=postgres sslmode=%s", port, sslmode);
    struct db_limits limits = DB_LIMITS_DEFAULT;
    limits.reconnect_min_ms = limits.reconnect_max_ms = 2;
    struct db_fixture f;
    db_fixture_open(&f, conninfo, 1, &limits);
    struct answers a = {0};
    int sent = 0, lost = 0;
    do { /* until a connection lives through three calls */
        a.ok = 0;
        assert_true(run_until_ready(&f.loop, f.pool));
        for (int i = 0; i < 3; i++)
            db_fixture_call(&f, stmt, 3000, answers_cb, &a);
        db_fixture_wait(&f, &a, sent += 3);
        lost += a.ok < 3;
        assert_int_equal(a.error, 0);
    } while (a.ok < 3);
    assert_true(lost > 5);
    db_fixture_close(&f);
    free(conninfo);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

static void test_cut_everywhere(void **state)
{
    (void)state;
    cut_everywhere("disable", 7, &stmt_id);
    cut_everywhere("disable", 257, &stmt_big);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_bad_conninfo),
        cmocka_unit_test(test_close_while_connecting),
        cmocka_unit_test(test_cut_everywhere),
    };
    return cmocka_run_group_tests(tests, start_server, stop_server);
}
