/*
 * Sessions that do nothing: for measuring what an idle logged-in connection costs the server.
 *
 *   bench_idle --url URL --ca FILE --users N --per-user M
 *
 * Opens N × M connections, each its own session (device) of one of the users of bench_load, prints
 * "ready" when all are logged in, keeps them until its input ends, and prints "kept" if none was
 * lost meanwhile. Grade of failure: it exits with a message.
 */
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tests/bench/users.h"
#include "util/mem.h"

enum { DIALS_AT_ONCE = 64 };

struct idle;

struct device {
    struct idle *all;
    struct bench_user who;
    bool ready;
};

struct idle {
    uv_loop_t loop;
    struct ws_url url;
    struct tls_ctx *tls;
    uv_pipe_t input;
    char byte[16];
    struct device *devices;
    unsigned n, dialled, ready;
};

static void dial_more(struct idle *a);

static void on_open(struct ws_conn *conn, void *ctx)
{
    const struct device *d = ctx;
    bench_login_begin(&d->who, conn);
}

static void on_message(struct ws_conn *conn, void *ctx, const char *text, size_t len)
{
    struct device *d = ctx;
    if (d->ready || !bench_login_answer(&d->who, conn, text, len))
        return;
    d->ready = true;
    if (++d->all->ready == d->all->n)
        bench_say("ready");
    else
        dial_more(d->all);
}

static void on_close(struct ws_conn *conn, void *ctx, enum ws_end end, int code, const char *reason)
{
    (void)conn;
    (void)ctx;
    (void)code;
    bench_die(ws_end_name(end), reason ? reason : "");
}

static void dial_more(struct idle *a)
{
    static const struct ws_callbacks callbacks = {
        .on_open = on_open, .on_message = on_message, .on_close = on_close};
    for (; a->dialled < a->n && a->dialled < a->ready + DIALS_AT_ONCE; a->dialled++)
        (void)ws_dial(&a->loop, &a->url, a->tls, &ws_limits_default, &callbacks,
                      &a->devices[a->dialled]);
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    struct idle *a = h->data;
    (void)suggested;
    *buf = uv_buf_init(a->byte, sizeof a->byte);
}

static void on_input(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    const struct idle *a = s->data;
    (void)buf;
    if (n >= 0)
        return;
    if (a->ready < a->n)
        bench_die("the input ended", "too early");
    bench_say("kept");
    exit(0);
}

static void allow_files(unsigned n)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < n + 64) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
}

int main(int argc, char **argv)
{
    struct idle a = {0};
    unsigned users = 100, per_user = 50;
    const char *ca = NULL;
    char *error = NULL;
    if (sodium_init() < 0)
        bench_die("libsodium", "does not start");
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        if (strcmp(argv[i], "--url") == 0 && ws_url_parse(value, &a.url))
            continue;
        if (strcmp(argv[i], "--ca") == 0)
            ca = value;
        else if (strcmp(argv[i], "--users") == 0)
            users = (unsigned)strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--per-user") == 0)
            per_user = (unsigned)strtoul(value, NULL, 10);
        else
            bench_die("bad option", argv[i]);
    }
    if (!ca || !a.url.port || !(a.n = users * per_user))
        bench_die("needs", "--url and --ca");
    allow_files(a.n);
    if (!(a.tls = tls_client_new(ca, true, &error)))
        bench_die("TLS:", error);
    a.devices = xcalloc(a.n, sizeof *a.devices);
    for (unsigned i = 0; i < a.n; i++) {
        a.devices[i].all = &a;
        bench_user_make(&a.devices[i].who, i % users);
        randombytes_buf(a.devices[i].who.session_seed, DM_KEY_BYTES);
    }
    uv_loop_init(&a.loop);
    uv_pipe_init(&a.loop, &a.input, 0);
    a.input.data = &a;
    if (uv_pipe_open(&a.input, 0) != 0 ||
        uv_read_start((uv_stream_t *)&a.input, on_alloc, on_input) != 0)
        bench_die("cannot read", "stdin");
    dial_more(&a);
    uv_run(&a.loop, UV_RUN_DEFAULT);
    bench_die("the loop ended", "without reason");
}
