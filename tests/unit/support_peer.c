#include "support_peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "rpc/envelope.h"
#include "util/clock.h"
#include "util/mem.h"

struct fake_conn {
    struct fake_server *server;
    struct ws_conn *ws;
    struct fake_conn *next;
};

/* --- the loop --- */

/* uv_run() may run a timer and then block for the next event, so the condition is looked at every
 * few milliseconds. */
static void on_tick(uv_timer_t *t)
{
    (void)t;
}

static void on_tick_closed(uv_handle_t *h)
{
    *(bool *)h->data = true;
}

/* False if the condition did not come true within `ms`. */
static bool loop_wait(uv_loop_t *loop, const bool *flag, const unsigned *counter, unsigned want,
                      int64_t ms)
{
    int64_t end = clock_mono_ms() + ms;
    uv_timer_t tick;
    (void)uv_timer_init(loop, &tick);
    (void)uv_timer_start(&tick, on_tick, 5, 5);
    bool met = false;
    while (!(met = (flag && *flag) || (counter && *counter >= want)) && clock_mono_ms() < end)
        (void)uv_run(loop, UV_RUN_ONCE);
    bool closed = false;
    tick.data = &closed;
    uv_close((uv_handle_t *)&tick, on_tick_closed);
    while (!closed)
        (void)uv_run(loop, UV_RUN_NOWAIT);
    return met;
}

void loop_until(uv_loop_t *loop, const bool *flag)
{
    if (!loop_wait(loop, flag, NULL, 0, 10000))
        fail_msg("a condition did not come true in time");
}

void loop_until_count(uv_loop_t *loop, const unsigned *counter, unsigned want)
{
    if (!loop_wait(loop, NULL, counter, want, 10000))
        fail_msg("a count of %u was not reached in time", want);
}

void loop_for(uv_loop_t *loop, int64_t ms)
{
    (void)loop_wait(loop, NULL, NULL, 0, ms);
}

void loop_finish(uv_loop_t *loop)
{
    int64_t give_up = clock_mono_ms() + 10000;
    while (uv_loop_alive(loop) && clock_mono_ms() < give_up)
        (void)uv_run(loop, UV_RUN_NOWAIT);
    assert_int_equal(0, uv_loop_close(loop));
}

/* --- the server --- */

int fake_listen(int *port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_true(fd >= 0);
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(0, bind(fd, (struct sockaddr *)&in, sizeof in));
    assert_int_equal(0, listen(fd, 64));
    socklen_t len = sizeof in;
    assert_int_equal(0, getsockname(fd, (struct sockaddr *)&in, &len));
    *port = ntohs(in.sin_port);
    return fd;
}

static void send_and_free(struct ws_conn *conn, char *text, size_t len)
{
    assert_true(ws_send_text(conn, text, len));
    free(text);
}

void fake_answer(struct ws_conn *conn, const char *op, const char *request_id)
{
    size_t len;
    char *text = rpc_answer_ok(op, request_id, NULL, &len);
    send_and_free(conn, text, len);
}

void fake_fail(struct ws_conn *conn, const char *op, const char *request_id, int status,
               const char *error, const char *payload)
{
    char *text = xasprintf("{\"op\":\"%s\",\"requestId\":\"%s\",\"status\":%d,\"ok\":false,"
                           "\"error\":\"%s\",\"payload\":%s}",
                           op, request_id, status, error, payload ? payload : "{}");
    send_and_free(conn, text, strlen(text));
}

static void answer_hello(struct fake_server *s, struct ws_conn *conn, const struct rpc_request *r)
{
    json_decref(s->hello_payload);
    s->hello_payload = json_deep_copy(r->payload);
    size_t len;
    switch (s->hello) {
    case FAKE_HELLO_OK: {
        json_t *p = json_pack("{s:b, s:s, s:i, s:[s]}", "accepted", 1, "serverLogin", s->login,
                              "protocolVersion", 1, "capabilities", "connection-pool");
        if (s->pipelining)
            (void)json_array_append_new(json_object_get(p, "capabilities"),
                                        json_string("pipelining"));
        char *text = rpc_answer_ok(r->op, r->request_id, p, &len);
        json_decref(p);
        send_and_free(conn, text, len);
        break;
    }
    case FAKE_HELLO_UNKNOWN_OP:
        fake_fail(conn, r->op, r->request_id, 400, "UNKNOWN_OP", NULL);
        break;
    case FAKE_HELLO_REFUSE:
        fake_fail(conn, r->op, r->request_id, 403, "WRONG_HOST", NULL);
        break;
    case FAKE_HELLO_SILENT:
        break;
    }
}

static void on_message(struct ws_conn *conn, void *ctx, const char *text, size_t len)
{
    struct fake_server *s = ((struct fake_conn *)ctx)->server;
    struct rpc_request r;
    const char *message;
    assert_int_equal(RPC_OK, rpc_request_parse(text, len, &r, &message));
    if (strcmp(r.op, "ServerHello") == 0) {
        answer_hello(s, conn, &r);
    } else {
        assert_true(s->n_seen < FAKE_SEEN_MAX);
        (void)snprintf(s->seen[s->n_seen], sizeof s->seen[0], "%s", r.op);
        (void)snprintf(s->ids[s->n_seen], sizeof s->ids[0], "%s", r.request_id);
        json_decref(s->payload);
        s->payload = json_deep_copy(r.payload);
        s->n_seen++;
        if (s->on_request)
            s->on_request(s, conn, r.op, r.request_id);
        else
            fake_answer(conn, r.op, r.request_id);
    }
    rpc_request_free(&r);
}

static void on_open(struct ws_conn *conn, void *ctx)
{
    (void)conn;
    (void)ctx;
}

static void on_close(struct ws_conn *conn, void *ctx, enum ws_end end, int code, const char *reason)
{
    (void)conn;
    (void)end;
    (void)code;
    (void)reason;
    struct fake_conn *c = ctx;
    for (struct fake_conn **p = &c->server->conns; *p; p = &(*p)->next)
        if (*p == c) {
            *p = c->next;
            break;
        }
    free(c);
}

static bool on_accept(struct ws_listener *l, void *ctx, struct ws_conn *conn, const char *remote,
                      const struct ws_callbacks **callbacks, void **conn_ctx)
{
    static const struct ws_callbacks cb = {
        .on_open = on_open, .on_message = on_message, .on_close = on_close};
    (void)l;
    (void)remote;
    struct fake_server *s = ctx;
    struct fake_conn *c = xnew(struct fake_conn);
    c->server = s;
    c->ws = conn;
    c->next = s->conns;
    s->conns = c;
    s->accepted++;
    *callbacks = &cb;
    *conn_ctx = c;
    return true;
}

void fake_server_start(struct fake_server *s, uv_loop_t *loop, const char *login)
{
    *s = (struct fake_server){.loop = loop};
    (void)snprintf(s->login, sizeof s->login, "%s", login);
    int port;
    int fd = fake_listen(&port);
    (void)snprintf(s->url, sizeof s->url, "ws://127.0.0.1:%d/ws", port);
    struct ws_limits limits = ws_limits_default;
    limits.close_ms = 500;
    char *error = NULL;
    s->listener = ws_listen(loop, fd, NULL, "/ws", &limits, on_accept, s, &error);
    if (!s->listener)
        fail_msg("%s", error);
}

struct ws_conn *fake_server_conn(const struct fake_server *s)
{
    return s->conns ? s->conns->ws : NULL;
}

void fake_server_drop_all(struct fake_server *s)
{
    for (struct fake_conn *c = s->conns; c; c = c->next)
        ws_close(c->ws, 1011, "scripted");
}

void fake_server_stop(struct fake_server *s)
{
    ws_listener_close(s->listener);
    fake_server_drop_all(s);
    while (s->conns)
        (void)uv_run(s->loop, UV_RUN_ONCE);
    json_decref(s->hello_payload);
    json_decref(s->payload);
}
