/*
 * shinectl ready: asks the admin port of a daemon on this host. For health checks of containers and
 * for scripts that wait for a start.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/settings.h"
#include "deploy/ctl/ctl.h"
#include "util/mem.h"

#define ANSWER_MS 4000

struct question {
    uv_tcp_t tcp;
    uv_connect_t connect;
    uv_write_t write;
    char text[2048]; /* of the answer */
    size_t len;
    int error; /* of libuv */
    bool done;
};

static void end(struct question *q, int error)
{
    q->error = error == UV_EOF ? 0 : error;
    q->done = true;
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    struct question *q = h->data;
    (void)suggested;
    *buf = uv_buf_init(q->text + q->len, (unsigned)(sizeof q->text - 1 - q->len));
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    struct question *q = s->data;
    (void)buf;
    if (n < 0)
        end(q, (int)n);
    else
        q->len += (size_t)n;
}

static void on_written(uv_write_t *w, int status)
{
    if (status != 0)
        end(w->data, status);
}

static void on_connected(uv_connect_t *r, int status)
{
    static char request[] = "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    struct question *q = r->data;
    uv_buf_t buf = uv_buf_init(request, sizeof request - 1);
    if (status == 0)
        status = uv_write(&q->write, (uv_stream_t *)&q->tcp, &buf, 1, on_written);
    if (status == 0)
        status = uv_read_start((uv_stream_t *)&q->tcp, on_alloc, on_read);
    if (status != 0)
        end(q, status);
}

/* An address to listen on as one to connect to: that of all interfaces stands for loopback. */
static int dialled(struct settings_address *at, struct sockaddr_storage *to)
{
    bool v6 = strchr(at->host, ':') != NULL;
    if (strcmp(at->host, "0.0.0.0") == 0 || strcmp(at->host, "::") == 0)
        (void)snprintf(at->host, sizeof at->host, "%s", v6 ? "::1" : "127.0.0.1");
    return v6 ? uv_ip6_addr(at->host, at->port, (struct sockaddr_in6 *)to)
              : uv_ip4_addr(at->host, at->port, (struct sockaddr_in *)to);
}

int cmd_ready(struct ctl *c)
{
    struct settings_address at;
    struct sockaddr_storage to;
    struct question q = {0};
    const char *where = c->n_words > 0 ? c->words[0] : config_str(c->config, "admin.listen");
    int got = settings_next_address(&where, &at);
    if (got <= 0 || dialled(&at, &to) != 0)
        return ctl_fail(got == 0 ? CTL_CONFIG : CTL_USAGE,
                        got == 0 ? "admin.listen is not set" : "ADDR:PORT is wanted");
    q.tcp.data = q.connect.data = q.write.data = &q;
    shine_assert(uv_tcp_init(c->loop, &q.tcp) == 0);
    int r = uv_tcp_connect(&q.connect, &q.tcp, (const struct sockaddr *)&to, on_connected);
    if (r != 0)
        end(&q, r);
    bool in_time = ctl_wait(c, &q.done, ANSWER_MS);
    uv_close((uv_handle_t *)&q.tcp, NULL);
    (void)uv_run(c->loop, UV_RUN_DEFAULT); /* q goes with this function */
    q.text[q.len] = '\0';
    const char *body = strstr(q.text, "\r\n\r\n");
    if (!in_time || q.error || !body)
        return ctl_fail(CTL_UNREACHABLE, "%s port %u: %s", at.host, (unsigned)at.port,
                        q.error ? uv_strerror(q.error) : "no answer");
    (void)fputs(body + 4, stdout);
    return strncmp(q.text, "HTTP/1.1 200 ", 13) == 0 ? CTL_OK : CTL_REFUSED;
}
