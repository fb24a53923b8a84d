/*
 * Messages in the store against a private PostgreSQL: pairs, attempts to deliver, what comes from
 * others, and what sessions read of them. The rules themselves are tested in tests/sql.
 */
#include "store/delivery.h"
#include "store/sessions.h"
#include "support_store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

struct seen {
    struct store_answer a;
    size_t n;
    bool flag;
    struct store_event event;
    struct store_history_item item;
    char key[DM_MESSAGE_KEY_MAX], state[16];
    uint8_t blob[64];
    size_t blob_len;
    struct store_delivery_status status;
};

static void fill_text(struct store_copy *c, enum dm_type type, const char *from, const char *to,
                      int64_t time_ms, uint32_t nonce, const char *blob)
{
    store_copy_fill(c, type, from, to, time_ms, nonce, blob, strlen(blob));
}

struct pair_case {
    struct store_pair pair;
    struct store_answer a;
};

static void pair_done(struct store_pair *p, enum db_status st)
{
    struct pair_case *c = p->ctx;
    store_answer_note(&c->a, st);
}

static void fill_pair(struct pair_case *c, const char *from, const char *to, uint32_t nonce)
{
    *c = (struct pair_case){.pair = {.max_future_ms = 900000, .done = pair_done}};
    c->pair.ctx = c;
    list_init(&c->pair.item.link);
    fill_text(&c->pair.in, DM_TEXT_IN, from, to, 1000, nonce, "the incoming copy");
    fill_text(&c->pair.out, DM_TEXT_OUT, from, to, 1000, nonce, "the outgoing copy");
}

static void on_events(void *ctx, enum db_status st, const struct store_event *rows, size_t n)
{
    struct seen *s = ctx;
    store_answer_note(&s->a, st);
    s->n = n;
    if (n == 0)
        return;
    s->event = rows[0];
    (void)snprintf(s->key, sizeof s->key, "%s", rows[0].message_key);
    (void)snprintf(s->state, sizeof s->state, "%s",
                   rows[0].delivery_state ? rows[0].delivery_state : "");
    s->blob_len = rows[0].blob_len;
    memcpy(s->blob, rows[0].blob, rows[0].blob_len);
}

static void on_history(void *ctx, enum db_status st, const struct store_history_item *rows,
                       size_t n, bool more)
{
    struct seen *s = ctx;
    store_answer_note(&s->a, st);
    s->n = n;
    s->flag = more;
    if (n == 0)
        return;
    s->item = rows[0];
    (void)snprintf(s->key, sizeof s->key, "%s", rows[0].message_key);
    (void)snprintf(s->state, sizeof s->state, "%s",
                   rows[0].delivery_state ? rows[0].delivery_state : "");
}

static void test_pair_served_here(void **state)
{
    struct store_fixture *e = *state;
    store_fixture_add_user(e, "anna", "local", "{home}", "{wss://home/ws}");
    store_fixture_add_user(e, "ben", "local", "{home}", "{wss://home/ws}");
    enum { N = 120 }; /* more than one batch */
    static struct pair_case c[N];
    for (uint32_t i = 0; i < N; i++) {
        fill_pair(&c[i], "anna", "ben", i + 1);
        store_accept_pair(e->store, &c[i].pair);
        assert_int_equal(c[i].a.calls, 0);
    }
    for (uint32_t i = 0; i < N; i++) {
        assert_true(run_until(&e->loop, store_answer_came, &c[i].a));
        assert_int_equal(c[i].a.st, DB_OK);
        assert_int_equal(c[i].pair.verdict, STORE_OK);
        assert_int_equal(c[i].pair.state, DM_STATE_DELIVERED);
        assert_false(c[i].pair.attempt);
        assert_true(c[i].pair.from.pts > 0 && c[i].pair.to.pts > 0);
    }

    struct seen s = {0};
    store_events_since(e->store, (const char *const[]){"anna", "ben"}, (const int64_t[]){N - 1, N},
                       2, 100, on_events, &s);
    store_fixture_wait(e, &s.a);
    assert_int_equal(s.n, 1);
    assert_int_equal(s.event.pts, N);
    assert_int_equal(s.event.kind, STORE_EVENT_MESSAGE);
    assert_int_equal(s.event.type, DM_TEXT_OUT);
    assert_int_equal(s.event.time_ms, 1000);
    assert_false(s.event.more);
    assert_false(s.event.gone);
    assert_string_equal(s.state, "delivered");
    assert_int_equal(s.blob_len, strlen("the outgoing copy"));
    assert_memory_equal(s.blob, "the outgoing copy", s.blob_len);

    s = (struct seen){0};
    store_history(e->store,
                  &(struct store_history_query){.owner = "ben",
                                                .with = "anna",
                                                .limit = 10,
                                                .before_time_ms = -1,
                                                .max_blob_bytes = 1 << 20},
                  on_history, &s);
    store_fixture_wait(e, &s.a);
    assert_int_equal(s.n, 10);
    assert_true(s.flag);
    assert_string_equal(s.key, "anna|ben|1000|9|1"); /* by bytes: a bar is above any digit */
    assert_int_equal(s.item.read_at_ms, -1);
    assert_string_equal(s.state, "");
}

static void on_status(void *ctx, enum db_status st, const struct store_delivery_status *row)
{
    struct seen *s = ctx;
    store_answer_note(&s->a, st);
    s->status = *row;
}

static void on_shown(void *ctx, enum db_status st, const struct store_text_row *row)
{
    struct seen *s = ctx;
    store_answer_note(&s->a, st);
    s->n = row->n;
    for (size_t i = 0; i < row->n; i++)
        if (strcmp(row->names[i], "state") == 0)
            (void)snprintf(s->state, sizeof s->state, "%s", row->values[i]);
}

struct finish_case {
    struct store_finish f;
    struct store_answer a;
};

static void finish_done(struct store_finish *f, enum db_status st)
{
    struct finish_case *c = f->ctx;
    store_answer_note(&c->a, st);
}

static void test_pair_elsewhere(void **state)
{
    struct store_fixture *e = *state;
    store_fixture_add_user(e, "cara", "local", "{home}", "{wss://home/ws}");
    store_fixture_add_user(e, "dan", "local", "{far}", "{wss://far/ws}");
    struct pair_case c;
    fill_pair(&c, "cara", "dan", UINT32_MAX);
    store_accept_pair(e->store, &c.pair);
    assert_true(run_until(&e->loop, store_answer_came, &c.a));
    assert_int_equal(c.pair.verdict, STORE_OK);
    assert_int_equal(c.pair.state, DM_STATE_ACCEPTED);
    assert_true(c.pair.attempt);
    assert_int_equal(c.pair.to.pts, 0);
    assert_in_range(c.pair.lease_ms, 1, 30000);
    assert_int_equal(c.pair.n_routes, 1);
    assert_string_equal(c.pair.routes[0].login, "far");
    assert_string_equal(c.pair.routes[0].url, "wss://far/ws");

    struct finish_case f = {.f = {.from_login = "cara",
                                  .outgoing_key = "cara|dan|1000|4294967295|2",
                                  .row_version = c.pair.row_version,
                                  .outcome = STORE_ATTEMPT_DELIVERED,
                                  .via = "far",
                                  .error = "",
                                  .done = finish_done}};
    f.f.ctx = &f;
    list_init(&f.f.item.link);
    store_finish_attempt(e->store, &f.f);
    assert_true(run_until(&e->loop, store_answer_came, &f.a));
    assert_int_equal(f.a.st, DB_OK);
    assert_true(f.f.recorded);
    assert_int_equal(f.f.state, DM_STATE_DELIVERED);
    assert_int_equal(f.f.from.pts, 2);

    struct dm_key key;
    assert_true(dm_key_parse("cara|dan|1000|4294967295|1", &key));
    struct seen s = {0};
    store_delivery_status(e->store, &key, on_status, &s);
    store_fixture_wait(e, &s.a);
    assert_true(s.status.known && s.status.delivered);
    s = (struct seen){0};
    store_delivery_show(e->store, &key, on_shown, &s);
    store_fixture_wait(e, &s.a);
    assert_true(s.n > 5);
    assert_string_equal(s.state, "delivered");

    s = (struct seen){0};
    store_events_since(e->store, (const char *const[]){"cara"}, (const int64_t[]){1}, 1, 100,
                       on_events, &s);
    store_fixture_wait(e, &s.a);
    assert_int_equal(s.n, 1);
    assert_int_equal(s.event.kind, STORE_EVENT_STATE);
    assert_string_equal(s.state, "delivered");
    assert_string_equal(s.key, "cara|dan|1000|4294967295|2");
}

static void test_refusals(void **state)
{
    struct store_fixture *e = *state;
    store_fixture_add_user(e, "eve", "local", "{home}", "{wss://home/ws}");
    store_fixture_add_user(e, "fay", "local", "{far}", "{wss://far/ws}");
    struct pair_case unserved, unknown, ahead;
    fill_pair(&unserved, "fay", "eve", 1);
    fill_pair(&unknown, "eve", "nobody", 1);
    fill_pair(&ahead, "eve", "fay", 1);
    ahead.pair.in.c.time_ms = ahead.pair.out.c.time_ms = DM_INT_MAX;
    store_accept_pair(e->store, &unserved.pair);
    store_accept_pair(e->store, &unknown.pair);
    store_accept_pair(e->store, &ahead.pair);
    assert_true(run_until(&e->loop, store_answer_came, &unserved.a));
    assert_true(run_until(&e->loop, store_answer_came, &unknown.a));
    assert_true(run_until(&e->loop, store_answer_came, &ahead.a));
    assert_int_equal(unserved.pair.verdict, STORE_NOT_SERVED);
    assert_int_equal(unknown.pair.verdict, STORE_UNKNOWN_USER);
    assert_int_equal(ahead.pair.verdict, STORE_TIME_AHEAD);
}

struct incoming_case {
    struct store_incoming in;
    struct store_answer a;
};

static void incoming_done(struct store_incoming *p, enum db_status st)
{
    struct incoming_case *c = p->ctx;
    store_answer_note(&c->a, st);
}

static void test_incoming(void **state)
{
    struct store_fixture *e = *state;
    store_fixture_add_user(e, "gil", "local", "{far}", "{wss://far/ws}");
    store_fixture_add_user(e, "hana", "local", "{home}", "{wss://home/ws}");
    struct incoming_case c = {.in = {.done = incoming_done, .source = "far"}};
    c.in.ctx = &c;
    list_init(&c.in.item.link);
    fill_text(&c.in.in, DM_TEXT_IN, "gil", "hana", 1000, 3, "blob");
    store_apply_incoming(e->store, &c.in);
    assert_true(run_until(&e->loop, store_answer_came, &c.a));
    assert_int_equal(c.a.st, DB_OK);
    assert_int_equal(c.in.verdict, STORE_OK);
    assert_int_equal(c.in.to.pts, 1);
    assert_int_equal(c.in.from.pts, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pair_served_here),
        cmocka_unit_test(test_pair_elsewhere),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_incoming),
    };
    return cmocka_run_group_tests(tests, store_fixture_setup, store_fixture_teardown);
}
