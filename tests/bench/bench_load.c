/*
 * The load generator: logged-in users on one connection each, every one with a fixed number of
 * sends in flight, to a recipient who is online. All messages are signed before the clock starts.
 * Prints one JSON object at the end.
 *
 *   bench_load users N            lines "LOGIN CLIENTKEY" of the users it will use
 *   bench_load run --url URL --ca FILE --users N --in-flight K --seconds S --max-pairs M
 *                  [--to-prefix P]
 *
 * Recipients are P0…; without a prefix each writes to the next sender, who is online. Lines
 * "start" and "stop" are printed when everybody is logged in and when the last answer and event has
 * come, so that the harness can look at the servers' CPU.
 *
 * Grade of failure: it exits with a message; what it measured is only printed if every answer was a
 * 200 and every event that was due came.
 */
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dm/container.h"
#include "net/ws.h"
#include "rpc/envelope.h"
#include "tests/bench/users.h"
#include "util/base64.h"
#include "util/clock.h"
#include "util/mem.h"

#define BODY_BYTES 256

struct request {
    char *text;
    size_t len;
    int64_t sent_us;
};

struct user {
    struct bench *bench;
    struct bench_user who;
    struct ws_conn *conn;
    size_t next, end; /* its requests: indices into bench->requests, step n_users */
    unsigned in_flight;
    bool ready;
};

struct bench {
    uv_loop_t loop;
    uv_timer_t timer;
    struct ws_url url;
    struct tls_ctx *tls;
    const char *to_prefix;
    unsigned n_users, in_flight, ready, closed;
    struct user *users;
    struct request *requests;
    size_t n_requests, sent, answered, delivered, events;
    uint32_t *latency_us;
    int64_t start_us, stop_us, deadline_us;
    double cpu_start_us, cpu_stop_us;
    bool running, draining;
    uint64_t seconds;
};

static char *blob_build(struct dm_container *c, enum dm_type type, const uint8_t seed[DM_KEY_BYTES])
{
    uint8_t bytes[1024];
    c->type = type;
    if (dm_container_len(c) > sizeof bytes || dm_build(c, seed, bytes) != DM_OK)
        bench_die("cannot build", "a container");
    return base64_encode_new(bytes, dm_container_len(c));
}

static void requests_sign(struct bench *b)
{
    uint8_t body[BODY_BYTES];
    int64_t now = clock_wall_ms();
    for (size_t i = 0; i < b->n_requests; i++) {
        struct user *u = &b->users[i % b->n_users];
        struct dm_container c = {.time_ms = now - (int64_t)b->n_requests + (int64_t)i,
                                 .nonce = randombytes_random(),
                                 .body = body,
                                 .body_len = sizeof body};
        char id[24];
        randombytes_buf(body, sizeof body);
        body[0] = 1;
        snprintf(c.from, sizeof c.from, "%s", u->who.login);
        if (b->to_prefix)
            snprintf(c.to, sizeof c.to, "%s%zu", b->to_prefix, i % b->n_users);
        else
            snprintf(c.to, sizeof c.to, "%s", b->users[(i + 1) % b->n_users].who.login);
        char *in = blob_build(&c, DM_TEXT_IN, u->who.seed),
             *out = blob_build(&c, DM_TEXT_OUT, u->who.seed);
        json_t *p = json_pack("{s:s, s:s}", "incomingBlobB64", in, "outgoingBlobB64", out);
        snprintf(id, sizeof id, "%zu", i);
        b->requests[i].text = rpc_request_text("SendMessagePair", id, p, &b->requests[i].len);
        json_decref(p);
        free(in);
        free(out);
    }
}

static void bench_finish(struct bench *b)
{
    if (b->draining || b->answered < b->sent)
        return;
    b->draining = true;
    b->stop_us = clock_mono_us();
    b->cpu_stop_us = bench_cpu_us();
}

static void user_fill(struct user *u)
{
    struct bench *b = u->bench;
    int64_t now = clock_mono_us();
    while (b->running && u->in_flight < b->in_flight && u->next < b->n_requests &&
           now < b->deadline_us) {
        struct request *r = &b->requests[u->next];
        r->sent_us = now;
        if (!ws_send_text(u->conn, r->text, r->len))
            bench_die("send buffer full", u->who.login);
        u->next += b->n_users;
        u->in_flight++;
        b->sent++;
    }
}

static void on_open(struct ws_conn *conn, void *ctx)
{
    const struct user *u = ctx;
    bench_login_begin(&u->who, conn);
}

/* The harness must not be the bottleneck: answers and events are recognised by their fixed parts
 * instead of being parsed. */
static void on_answer(struct user *u, const char *text, size_t len)
{
    static const char key[] = "\"requestId\":\"";
    struct bench *b = u->bench;
    const char *id = memmem(text, len, key, sizeof key - 1);
    if (!id || !memmem(text, len, "\"status\":200", 12))
        bench_die("refused:", text);
    size_t i = strtoul(id + sizeof key - 1, NULL, 10);
    if (i >= b->n_requests || !b->requests[i].sent_us)
        bench_die("answer without request:", text);
    b->latency_us[b->answered++] = (uint32_t)(clock_mono_us() - b->requests[i].sent_us);
    b->requests[i].sent_us = 0;
    b->delivered += memmem(text, len, "\"delivered\"", 11) != NULL;
    u->in_flight--;
    user_fill(u);
    if (clock_mono_us() >= b->deadline_us || b->answered == b->n_requests)
        bench_finish(b);
}

static void everybody_is_in(struct bench *b)
{
    b->running = true;
    bench_say("start");
    b->cpu_start_us = bench_cpu_us();
    b->start_us = clock_mono_us();
    b->deadline_us = b->start_us + (int64_t)b->seconds * 1000000;
    for (unsigned i = 0; i < b->n_users; i++)
        user_fill(&b->users[i]);
}

static void on_message(struct ws_conn *conn, void *ctx, const char *text, size_t len)
{
    struct user *u = ctx;
    if (!u->ready) {
        u->ready = bench_login_answer(&u->who, conn, text, len);
        if (u->ready && ++u->bench->ready == u->bench->n_users)
            everybody_is_in(u->bench);
    } else if (memmem(text, len < 160 ? len : 160, "\"event\":true", 12)) {
        u->bench->events += memmem(text, len, "\"IncomingDirectMessage\"", 23) != NULL;
    } else {
        on_answer(u, text, len);
    }
}

static void on_close(struct ws_conn *conn, void *ctx, enum ws_end end, int code, const char *reason)
{
    struct user *u = ctx;
    (void)conn;
    (void)code;
    u->conn = NULL;
    if (!u->bench->draining)
        bench_die(ws_end_name(end), reason ? reason : "");
    u->bench->closed++;
}

static const struct ws_callbacks callbacks = {
    .on_open = on_open, .on_message = on_message, .on_close = on_close};

/* Every pair tells its sender, and its recipient if that is one of ours. */
static size_t events_due(const struct bench *b)
{
    return b->sent * (b->to_prefix ? 1 : 2);
}

static int compare_u32(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void on_tick(uv_timer_t *t)
{
    struct bench *b = t->data;
    if (b->running && clock_mono_us() >= b->deadline_us)
        bench_finish(b);
    if (b->draining && b->events >= events_due(b)) {
        uv_timer_stop(t);
        bench_say("stop");
        for (unsigned i = 0; i < b->n_users; i++)
            if (b->users[i].conn)
                ws_close(b->users[i].conn, 1000, "");
    } else if (b->running && clock_mono_us() > b->deadline_us + 30000000) {
        bench_die("events or answers are missing after 30 s", "");
    }
}

static int run(struct bench *b, const char *ca, unsigned long max_pairs)
{
    char *error = NULL;
    b->n_requests = max_pairs - max_pairs % b->n_users;
    b->users = xcalloc(b->n_users, sizeof *b->users);
    b->requests = xcalloc(b->n_requests, sizeof *b->requests);
    b->latency_us = xcalloc(b->n_requests, sizeof *b->latency_us);
    for (unsigned i = 0; i < b->n_users; i++) {
        b->users[i].bench = b;
        b->users[i].next = i;
        bench_user_make(&b->users[i].who, i);
    }
    requests_sign(b);
    if (!(b->tls = tls_client_new(ca, true, &error)))
        bench_die("TLS:", error);
    struct ws_limits limits = ws_limits_default;
    uv_loop_init(&b->loop);
    uv_timer_init(&b->loop, &b->timer);
    b->timer.data = b;
    uv_timer_start(&b->timer, on_tick, 20, 20);
    for (unsigned i = 0; i < b->n_users; i++)
        b->users[i].conn = ws_dial(&b->loop, &b->url, b->tls, &limits, &callbacks, &b->users[i]);
    while (b->closed < b->n_users)
        uv_run(&b->loop, UV_RUN_ONCE);
    if (b->answered == 0)
        bench_die("nothing was answered", "");
    double seconds = (double)(b->stop_us - b->start_us) / 1e6;
    size_t median = b->answered / 2, p99 = b->answered * 99 / 100;
    qsort(b->latency_us, b->answered, sizeof *b->latency_us, compare_u32);
    printf("{\"pairs\":%zu,\"delivered\":%zu,\"events\":%zu,\"seconds\":%.3f,\"pairs_per_s\":%.1f,"
           "\"p50_ms\":%.2f,\"p99_ms\":%.2f,\"cpu_us_per_pair\":%.1f}\n",
           b->answered, b->delivered, b->events, seconds, (double)b->answered / seconds,
           b->latency_us[median] / 1e3, b->latency_us[p99] / 1e3,
           (b->cpu_stop_us - b->cpu_start_us) / (double)b->answered);
    return 0;
}

int main(int argc, char **argv)
{
    struct bench b = {.n_users = 64, .in_flight = 8, .seconds = 10};
    const char *ca = NULL;
    unsigned long max_pairs = 50000;
    if (sodium_init() < 0 || argc < 2)
        bench_die("usage:", "users N | run …");
    if (strcmp(argv[1], "users") == 0 && argc == 3)
        bench_users_print((unsigned)strtoul(argv[2], NULL, 10));
    if (strcmp(argv[1], "users") == 0)
        return 0;
    for (int i = 2; i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        if (strcmp(argv[i], "--url") == 0 && ws_url_parse(value, &b.url))
            continue;
        if (strcmp(argv[i], "--ca") == 0)
            ca = value;
        else if (strcmp(argv[i], "--users") == 0)
            b.n_users = (unsigned)strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--in-flight") == 0)
            b.in_flight = (unsigned)strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--seconds") == 0)
            b.seconds = strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--max-pairs") == 0)
            max_pairs = strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--to-prefix") == 0)
            b.to_prefix = value;
        else
            bench_die("bad option", argv[i]);
    }
    if (!ca || !b.url.port || !b.n_users || max_pairs < b.n_users)
        bench_die("run needs", "--url, --ca and at least one pair per user");
    return run(&b, ca, max_pairs);
}
