/*
 * Hands containers to the store as many concurrent sessions would; the hands of tests/property.
 *
 *   driver CONNINFO SERVER PROCESS BATCH SESSIONS <steps >verdicts
 *
 * SERVER is the login this server has, PROCESS its process id, BATCH the largest statement,
 * SESSIONS how many sessions are open at a time. Input, one step per line, Base64 of one or two
 * containers:
 *
 *   SET SESSION pair     SOURCE INCOMING OUTGOING
 *   SET SESSION incoming SOURCE INCOMING
 *   SET SESSION delete   SOURCE TOMBSTONE
 *
 * SOURCE is `client` (a client; not for `incoming`), `-` (a server nobody identified) or the login
 * of a server. Lines of the same SET and SESSION stand together and are done in order, each after
 * the answer to the one before; sessions run side by side and so meet in batches and transactions.
 * Signatures are not checked here, the store does not look at them. Output, as answers come:
 *
 *   LINE VERDICT STATE     lines count from 0; STATE is `-` where there is none
 *
 * Raises: input it does not understand, and a database that cannot be reached, end it with a
 * message. A call that fails is a verdict (`error`, `unavailable`), and exit status 1.
 */
#include "dm/key.h"
#include "store/tombstones.h"
#include "util/base64.h"
#include "util/log.h"
#include "util/mem.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONNECTIONS = 6, CONNECT_MS = 30000, FIELDS = 6 };
#define MAX_FUTURE_MS INT64_C(86400000)

enum op { OP_PAIR, OP_INCOMING, OP_DELETE };

struct step {
    enum op op;
    bool client;
    char *source; /* NULL = none */
    uint8_t *blobs[2];
    size_t lens[2];
};

/* Steps [next, end) are still to be done. */
struct session {
    struct driver *driver;
    size_t next, end;
    union {
        struct store_pair pair;
        struct store_incoming incoming;
        struct store_tombstone tombstone;
    } call;
};

struct driver {
    uv_loop_t loop;
    uv_timer_t timer; /* gives up connecting */
    struct db_pool *pool;
    struct store *store;
    struct step *steps;
    size_t n_steps, cap_steps;
    struct session *sessions;
    size_t n_sessions, cap_sessions;
    size_t begun, ended, at_a_time;
    bool running, failed;
};

/* --- input --- */

static _Noreturn void refuse(size_t line, const char *why)
{
    (void)fprintf(stderr, "driver: line %zu: %s\n", line, why);
    exit(2);
}

static void read_blob(struct step *s, int which, const char *text, size_t line)
{
    size_t n = strlen(text);
    s->blobs[which] = xmalloc(base64_decoded_max(n));
    if (!base64_decode(text, n, s->blobs[which], &s->lens[which]))
        refuse(line, "not Base64");
}

static struct step *add_step(struct driver *d)
{
    if (d->n_steps == d->cap_steps) {
        d->cap_steps = d->cap_steps ? 2 * d->cap_steps : 1024;
        d->steps = xrealloc(d->steps, d->cap_steps * sizeof *d->steps);
    }
    struct step *s = &d->steps[d->n_steps++];
    *s = (struct step){0};
    return s;
}

static void add_session(struct driver *d)
{
    if (d->n_sessions == d->cap_sessions) {
        d->cap_sessions = d->cap_sessions ? 2 * d->cap_sessions : 256;
        d->sessions = xrealloc(d->sessions, d->cap_sessions * sizeof *d->sessions);
    }
    d->sessions[d->n_sessions++] =
        (struct session){.driver = d, .next = d->n_steps, .end = d->n_steps};
}

static void read_step(struct driver *d, char **field, int n, size_t line)
{
    static const char *const names[] = {"pair", "incoming", "delete"};
    struct step *s = add_step(d);
    size_t op = 0;
    while (op < sizeof names / sizeof *names && strcmp(field[2], names[op]) != 0)
        op++;
    if (op == sizeof names / sizeof *names || n != (op == OP_PAIR ? 6 : 5))
        refuse(line, "unknown operation, or too few or too many fields");
    s->op = (enum op)op;
    s->client = strcmp(field[3], "client") == 0;
    if (!s->client && strcmp(field[3], "-") != 0)
        s->source = xstrdup(field[3]);
    read_blob(s, 0, field[4], line);
    if (op == OP_PAIR)
        read_blob(s, 1, field[5], line);
}

static void read_input(struct driver *d)
{
    char *text = NULL, *of = xstrdup("");
    size_t cap = 0;
    while (getline(&text, &cap, stdin) > 0) {
        char *field[FIELDS], *rest = NULL;
        int n = 0;
        for (char *f = strtok_r(text, " \n", &rest); f && n < FIELDS;
             f = strtok_r(NULL, " \n", &rest))
            field[n++] = f;
        if (n < 5)
            refuse(d->n_steps, "too few fields");
        char *name = xasprintf("%s %s", field[0], field[1]);
        if (strcmp(name, of) != 0)
            add_session(d);
        free(of);
        of = name;
        read_step(d, field, n, d->n_steps);
        d->sessions[d->n_sessions - 1].end = d->n_steps;
    }
    free(of);
    free(text);
}

/* --- sessions --- */

static void session_go_on(struct session *s);

static void session_end(struct driver *d)
{
    d->ended++;
    if (d->begun < d->n_sessions)
        session_go_on(&d->sessions[d->begun++]);
    else if (d->ended == d->n_sessions)
        db_pool_close(d->pool, NULL, NULL);
}

static void session_answer(struct session *s, enum db_status st, enum store_verdict v,
                           const char *state)
{
    static const char *const verdicts[] = {"ok", "not_served", "unknown_user", "time_ahead",
                                           "deleted"};
    struct driver *d = s->driver;
    const char *verdict = st == DB_OK ? verdicts[v] : st == DB_ERROR ? "error" : "unavailable";
    printf("%zu %s %s\n", s->next, verdict, st == DB_OK && v == STORE_OK && state ? state : "-");
    d->failed |= st != DB_OK;
    s->next++;
    if (s->next < s->end)
        session_go_on(s);
    else
        session_end(d);
}

static void on_pair(struct store_pair *p, enum db_status st)
{
    session_answer(p->ctx, st, p->verdict, dm_state_name(p->state));
}

static void on_incoming(struct store_incoming *p, enum db_status st)
{
    session_answer(p->ctx, st, p->verdict, NULL);
}

static void on_tombstone(struct store_tombstone *t, enum db_status st)
{
    session_answer(t->ctx, st, t->verdict, dm_state_name(t->state));
}

static struct store_copy copy_of(const struct session *s, int which)
{
    const struct step *step = &s->driver->steps[s->next];
    struct store_copy c = {.blob = step->blobs[which], .blob_len = step->lens[which]};
    enum dm_error e = dm_parse(c.blob, c.blob_len, &c.c);
    if (e != DM_OK)
        refuse(s->next, dm_error_name(e));
    dm_sha256(c.blob, c.blob_len, c.sha256);
    return c;
}

static void session_go_on(struct session *s)
{
    struct store *store = s->driver->store;
    const struct step *step = &s->driver->steps[s->next];
    switch (step->op) {
    case OP_PAIR:
        s->call.pair = (struct store_pair){.in = copy_of(s, 0),
                                           .out = copy_of(s, 1),
                                           .from_server = !step->client,
                                           .source = step->source,
                                           .max_future_ms = MAX_FUTURE_MS,
                                           .done = on_pair,
                                           .ctx = s};
        store_accept_pair(store, &s->call.pair);
        break;
    case OP_INCOMING:
        s->call.incoming = (struct store_incoming){
            .in = copy_of(s, 0), .source = step->source, .done = on_incoming, .ctx = s};
        store_apply_incoming(store, &s->call.incoming);
        break;
    case OP_DELETE:
        s->call.tombstone = (struct store_tombstone){.copy = copy_of(s, 0),
                                                     .from_server = !step->client,
                                                     .source = step->source,
                                                     .max_future_ms = MAX_FUTURE_MS,
                                                     .done = on_tombstone,
                                                     .ctx = s};
        store_apply_tombstone(store, &s->call.tombstone);
        break;
    }
}

/* --- life --- */

static void on_late(uv_timer_t *timer)
{
    (void)timer;
    (void)fprintf(stderr, "driver: no database\n");
    exit(2);
}

static void on_change(void *ctx, bool ready)
{
    struct driver *d = ctx;
    if (!ready || d->running)
        return;
    d->running = true;
    uv_close((uv_handle_t *)&d->timer, NULL);
    if (d->n_sessions == 0)
        db_pool_close(d->pool, NULL, NULL);
    while (d->begun < d->n_sessions && d->begun < d->at_a_time)
        session_go_on(&d->sessions[d->begun++]);
}

static size_t number(const char *text)
{
    char *end;
    unsigned long v = strtoul(text, &end, 10);
    if (*text == '\0' || *end != '\0' || v == 0 || v > 1000000) {
        (void)fprintf(stderr, "driver: %s is not a number from 1 on\n", text);
        exit(2);
    }
    return v;
}

static void release(struct driver *d)
{
    for (size_t i = 0; i < d->n_steps; i++) {
        free(d->steps[i].blobs[0]);
        free(d->steps[i].blobs[1]);
        free(d->steps[i].source);
    }
    free(d->steps);
    free(d->sessions);
    store_free(d->store);
}

int main(int argc, char **argv)
{
    if (argc != 6 || sodium_init() < 0) {
        (void)fprintf(stderr, "usage: driver CONNINFO SERVER PROCESS BATCH SESSIONS\n");
        return 2;
    }
    log_setup("driver", LOG_FORMAT_LOGFMT, LOG_LEVEL_WARN);
    struct driver d = {.at_a_time = number(argv[5])};
    read_input(&d);
    if (uv_loop_init(&d.loop) != 0 || uv_timer_init(&d.loop, &d.timer) != 0 ||
        uv_timer_start(&d.timer, on_late, CONNECT_MS, 0) != 0)
        return 2;
    d.pool = db_pool_new(&d.loop, argv[1], "property", CONNECTIONS);
    d.store =
        store_new(d.pool, &(struct store_identity){.server_login = argv[2], .process_id = argv[3]},
                  (unsigned)number(argv[4]));
    db_pool_on_change(d.pool, on_change, &d);
    uv_run(&d.loop, UV_RUN_DEFAULT);
    release(&d);
    return uv_loop_close(&d.loop) == 0 && !d.failed && d.ended == d.n_sessions ? 0 : 1;
}
