/*
 * A null peer for the benchmark of deliveryd: says yes to every request and looks at none, so that
 * what is measured is claiming, calling and recording. Plain WebSocket on a free loopback port.
 *
 *   bench_claim LOGIN     prints its port, and serves until its standard input ends
 */
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <uv.h>

#include "net/ws.h"
#include "util/log.h"
#include "util/mem.h"

struct null_peer {
    const char *login;
    uv_loop_t loop;
    uv_pipe_t input;
    char from_input[16];
    struct ws_listener *listener;
};

/* The value of a member as our own servers write it: no white space, no escapes in ids. */
static bool member(const char *text, const char *name, char *out, size_t size)
{
    const char *at = strstr(text, name);
    if (!at)
        return false;
    at += strlen(name);
    size_t n = strcspn(at, "\"");
    if (n >= size)
        return false;
    memcpy(out, at, n);
    out[n] = '\0';
    return true;
}

static void on_message(struct ws_conn *conn, void *ctx, const char *text, size_t len)
{
    const struct null_peer *p = ctx;
    char op[64], id[64], answer[512];
    (void)len;
    if (!member(text, "\"op\":\"", op, sizeof op) ||
        !member(text, "\"requestId\":\"", id, sizeof id))
        return;
    int n = snprintf(answer, sizeof answer,
                     "{\"op\":\"%s\",\"requestId\":\"%s\",\"status\":200,\"ok\":true,\"payload\":{"
                     "\"accepted\":true,\"serverLogin\":\"%s\",\"protocolVersion\":1,"
                     "\"capabilities\":[\"pipelining\"]}}",
                     op, id, p->login);
    if (n > 0 && (size_t)n < sizeof answer)
        (void)ws_send_text(conn, answer, (size_t)n);
}

static void on_open(struct ws_conn *conn, void *ctx)
{
    (void)conn;
    (void)ctx;
}

static void on_close(struct ws_conn *conn, void *ctx, enum ws_end end, int code, const char *reason)
{
    (void)conn;
    (void)ctx;
    (void)end;
    (void)code;
    (void)reason;
}

static bool on_accept(struct ws_listener *l, void *ctx, struct ws_conn *conn, const char *remote,
                      const struct ws_callbacks **callbacks, void **conn_ctx)
{
    static const struct ws_callbacks cb = {
        .on_open = on_open, .on_message = on_message, .on_close = on_close};
    (void)l;
    (void)conn;
    (void)remote;
    *callbacks = &cb;
    *conn_ctx = ctx;
    return true;
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    struct null_peer *p = h->data;
    (void)suggested;
    *buf = uv_buf_init(p->from_input, sizeof p->from_input);
}

static void on_input(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    (void)s;
    (void)buf;
    if (n < 0)
        exit(0);
}

int main(int argc, char **argv)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof addr;
    char *error = NULL;
    if (argc != 2) {
        (void)fprintf(stderr, "usage: bench_claim LOGIN\n");
        return 2;
    }
    log_setup("null_peer", LOG_FORMAT_LOGFMT, LOG_LEVEL_ERROR);
    struct null_peer *p = xnew(struct null_peer);
    p->login = argv[1];
    shine_assert(uv_loop_init(&p->loop) == 0);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    shine_assert(fd >= 0 && bind(fd, (struct sockaddr *)&addr, size) == 0 && listen(fd, 64) == 0 &&
                 getsockname(fd, (struct sockaddr *)&addr, &size) == 0);
    p->listener = ws_listen(&p->loop, fd, NULL, "/ws", &ws_limits_default, on_accept, p, &error);
    shine_assert(p->listener);
    p->input.data = p;
    shine_assert(uv_pipe_init(&p->loop, &p->input, 0) == 0 && uv_pipe_open(&p->input, 0) == 0 &&
                 uv_read_start((uv_stream_t *)&p->input, on_alloc, on_input) == 0);
    (void)printf("%u\n", (unsigned)ntohs(addr.sin_port));
    (void)fflush(stdout);
    return uv_run(&p->loop, UV_RUN_DEFAULT);
}
