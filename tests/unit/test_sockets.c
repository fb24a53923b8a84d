/*
 * What the kernel is asked to do about silent connections: peers and clients at both ends, and the
 * database at both ends.
 */
#include "db/internal.h"
#include "net/ws_internal.h"
#include "support_net.h"
#include "support_pg.h"

#include <netinet/tcp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

static struct net_server server;

static int option(int fd, int level, int name)
{
    int value = -1;
    socklen_t len = sizeof value;
    assert_int_equal(0, getsockopt(fd, level, name, &value, &len));
    return value;
}

static void check_end(const struct ws_conn *c)
{
    uv_os_fd_t fd;
    assert_int_equal(0, uv_fileno((const uv_handle_t *)c->tcp, &fd));
    assert_int_equal(30000, option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT));
    assert_int_equal(1, option(fd, SOL_SOCKET, SO_KEEPALIVE));
    assert_int_equal(60, option(fd, IPPROTO_TCP, TCP_KEEPIDLE));
    assert_int_equal(1, option(fd, IPPROTO_TCP, TCP_NODELAY));
}

static void test_servers_and_clients(void **state)
{
    (void)state;
    uv_loop_t loop;
    struct net_end e = {0};
    assert_int_equal(0, uv_loop_init(&loop));
    net_server_start(&server, &loop, NULL, &ws_limits_default, true);
    net_dial(&loop, &server, "127.0.0.1", NULL, &ws_limits_default, &e);
    net_run_until(&loop, &e.opened, 1, 10);
    net_run_until(&loop, &server.ends[0].opened, 1, 10);
    check_end(e.conn);
    check_end(server.ends[0].conn);
    ws_close(e.conn, 1000, "");
    net_run_until(&loop, &e.closed, 1, 10);
    net_run_until(&loop, &server.ends[0].closed, 1, 10);
    net_server_stop(&server);
    net_loop_end(&loop);
    net_end_free(&e);
}

static void test_database(void **state)
{
    (void)state;
    struct pg *pg = pg_new(NULL);
    char *error, *options = db_session_options(30000);
    struct db_settings *s =
        db_settings_new(pg_conninfo_tls(pg), "test_sockets", options, 5000, &error);
    assert_non_null(s);
    const char **keys, **values;
    db_settings_params(s, &s->hosts[0], NULL, &keys, &values);
    PGconn *c = PQconnectdbParams(keys, values, 0);
    assert_int_equal(CONNECTION_OK, PQstatus(c));
    assert_int_equal(15000, option(PQsocket(c), IPPROTO_TCP, TCP_USER_TIMEOUT));
    assert_int_equal(1, option(PQsocket(c), SOL_SOCKET, SO_KEEPALIVE));
    assert_int_equal(10, option(PQsocket(c), IPPROTO_TCP, TCP_KEEPIDLE));
    /* What the other end asks of its kernel. */
    PGresult *r = PQexec(c, "SELECT current_setting('tcp_user_timeout') || ' ' || "
                            "current_setting('tcp_keepalives_idle')");
    assert_string_equal("15000 10", PQgetvalue(r, 0, 0));
    PQclear(r);
    PQfinish(c);
    free((void *)keys);
    free((void *)values);
    db_settings_free(s);
    free(options);
    pg_free(pg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_servers_and_clients),
        cmocka_unit_test(test_database),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
