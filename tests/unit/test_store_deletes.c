/*
 * Receipts, tombstones and the list of conversations through the store: bodies arrive as they are,
 * rows come back decoded. The rules themselves are tested in tests/sql.
 */
#include "store/conversations.h"
#include "store/tombstones.h"
#include "support_store.h"
#include "util/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int setup(void **state)
{
    (void)store_fixture_setup(state);
    store_fixture_add_user(*state, "ann", "local", "{home}", "{wss://home/ws}");
    store_fixture_add_user(*state, "ben", "local", "{home}", "{wss://home/ws}");
    store_fixture_add_user(*state, "far", "partner", "{x,y}", "{wss://x/ws,wss://y/ws}");
    return 0;
}

static void fill(struct store_copy *c, enum dm_type type, const char *from, const char *to,
                 int64_t time_ms, uint32_t nonce, const uint8_t *body, size_t n)
{
    store_copy_fill(c, type, from, to, time_ms, nonce, body, n);
    c->c.body = body;
    c->c.body_len = n;
}

/* --- pairs: texts and receipts --- */

static void pair_done(struct store_pair *p, enum db_status st)
{
    store_fixture_answered(p->ctx, st);
}

static void submit_pair(struct store_fixture *e, struct store_pair *p)
{
    p->done = pair_done;
    p->ctx = e;
    p->max_future_ms = 900000;
    list_init(&p->item.link);
    e->pending++;
    store_accept_pair(e->store, p);
}

static void send_text(struct store_fixture *e, struct store_pair *p, const char *from,
                      const char *to, int64_t time_ms, uint32_t nonce)
{
    static const uint8_t text[] = "text";
    *p = (struct store_pair){0};
    fill(&p->in, DM_TEXT_IN, from, to, time_ms, nonce, text, sizeof text);
    fill(&p->out, DM_TEXT_OUT, from, to, time_ms, nonce, text, sizeof text);
    submit_pair(e, p);
}

struct tombstone_case {
    struct store_tombstone t;
    uint8_t body[DM_DELETE_BODY];
};

static void tombstone_done(struct store_tombstone *t, enum db_status st)
{
    store_fixture_answered(t->ctx, st);
}

static void submit_tombstone(struct store_fixture *e, struct tombstone_case *c, enum dm_type type,
                             const char *from, const char *to, uint32_t nonce, size_t n)
{
    c->t = (struct store_tombstone){.max_future_ms = 900000, .done = tombstone_done, .ctx = e};
    fill(&c->t.copy, type, from, to, 9000, nonce, c->body, n);
    list_init(&c->t.item.link);
    e->pending++;
    store_apply_tombstone(e->store, &c->t);
}

static void delete_message(struct store_fixture *e, struct tombstone_case *c, enum dm_type type,
                           const char *from, const char *to, const struct dm_delete *d)
{
    submit_tombstone(e, c, type, from, to, d->ref_nonce, dm_delete_body(d, c->body));
}

static void delete_conversation(struct store_fixture *e, struct tombstone_case *c,
                                enum dm_type type, const char *from, const char *to,
                                int64_t until_ms)
{
    size_t n = dm_clear_body(&(struct dm_clear){.until_time_ms = until_ms}, c->body);
    submit_tombstone(e, c, type, from, to, 1, n);
}

/* A text and its receipt, in one statement: both find each other. */
static void test_receipt(void **state)
{
    struct store_fixture *e = *state;
    uint8_t body[2][DM_RECEIPT_BODY];
    struct store_pair text, receipt = {0};
    for (int64_t i = 0; i < 2; i++)
        (void)dm_receipt_body(&(struct dm_receipt){.ref_time_ms = 1000,
                                                   .ref_nonce = UINT32_MAX,
                                                   .read_at_ms = 2000 + i},
                              body[i]);
    send_text(e, &text, "ann", "ben", 1000, UINT32_MAX);
    fill(&receipt.in, DM_RECEIPT_IN, "ben", "ann", 2500, 2, body[0], sizeof body[0]);
    fill(&receipt.out, DM_RECEIPT_OUT, "ben", "ann", 2500, 2, body[1], sizeof body[1]);
    receipt.from_server = true; /* its copies differ */
    submit_pair(e, &receipt);
    store_fixture_wait_all(e);
    assert_int_equal(text.verdict, STORE_OK);
    assert_int_equal(receipt.verdict, STORE_OK);
    assert_int_equal(receipt.state, DM_STATE_DELIVERED);
    assert_true(receipt.from.pts > 0 && receipt.to.pts > 0);
    assert_int_equal(pg_query_int(e->pg, "SELECT read_at_ms FROM signed_messages WHERE "
                                         "message_key = 'ann|ben|1000|4294967295|2'"),
                     2000);
    assert_int_equal(pg_query_int(e->pg, "SELECT read_at_ms FROM signed_messages WHERE "
                                         "message_key = 'ann|ben|1000|4294967295|1'"),
                     2001);
}

static void test_delete_message(void **state)
{
    struct store_fixture *e = *state;
    struct store_pair text[2];
    struct tombstone_case own, both;
    send_text(e, &text[0], "ann", "far", 3000, 7);
    store_fixture_wait_all(e);
    assert_true(text[0].attempt);

    struct dm_delete d = {.ref_time_ms = 3000, .ref_nonce = 7};
    delete_message(e, &own, DM_DELETE_OWN, "ann", "far", &d);
    store_fixture_wait_all(e);
    assert_int_equal(own.t.verdict, STORE_OK);
    assert_true(own.t.from.pts > 0);
    assert_false(own.t.attempt);
    assert_int_equal(pg_query_int(e->pg, "SELECT count(*) FROM dm_delivery_state WHERE "
                                         "outgoing_key = 'ann|far|3000|7|2'"),
                     1);

    delete_message(e, &both, DM_DELETE_BOTH, "ann", "far", &d);
    store_fixture_wait_all(e);
    assert_int_equal(both.t.verdict, STORE_OK);
    assert_int_equal(both.t.state, DM_STATE_ACCEPTED);
    assert_true(both.t.attempt);
    assert_int_equal(both.t.row_version, 1);
    assert_true(both.t.lease_ms > 0 && both.t.lease_ms <= 30000);
    assert_int_equal(both.t.n_routes, 2);
    assert_string_equal(both.t.routes[1].login, "y");
    assert_string_equal(both.t.routes[1].url, "wss://y/ws");
    assert_int_equal(pg_query_int(e->pg, "SELECT count(*) FROM dm_delivery_state WHERE "
                                         "outgoing_key = 'ann|far|3000|7|2'"),
                     0);

    send_text(e, &text[1], "ann", "far", 3000, 7);
    store_fixture_wait_all(e);
    assert_int_equal(text[1].verdict, STORE_DELETED);
    /* The other direction has the same numbers and is another text. */
    send_text(e, &text[1], "ann", "ben", 3000, 7);
    store_fixture_wait_all(e);
    d.by_to = true;
    delete_message(e, &own, DM_DELETE_OWN, "ben", "ann", &d);
    store_fixture_wait_all(e);
    assert_int_equal(pg_query_int(e->pg, "SELECT count(*) FROM signed_messages WHERE base_key = "
                                         "'ann|ben|3000|7'"),
                     1);
}

static void test_refusals(void **state)
{
    struct store_fixture *e = *state;
    struct tombstone_case unserved, unknown, ahead;
    delete_conversation(e, &unserved, DM_CLEAR_OWN, "far", "ann", 1);
    delete_conversation(e, &unknown, DM_CLEAR_BOTH, "ann", "nobody", 1);
    delete_conversation(e, &ahead, DM_CLEAR_BOTH, "ann", "ben", DM_INT_MAX);
    store_fixture_wait_all(e);
    assert_int_equal(unserved.t.verdict, STORE_NOT_SERVED);
    assert_int_equal(unknown.t.verdict, STORE_UNKNOWN_USER);
    assert_int_equal(ahead.t.verdict, STORE_TIME_AHEAD);
}

/* --- conversations --- */

struct listed {
    struct store_fixture *env;
    size_t n;
    bool more;
    char with[2][DM_LOGIN_MAX + 1], key[2][DM_MESSAGE_KEY_MAX];
    int64_t time[2], unread[2], read[2];
};

static void on_list(void *ctx, enum db_status st, const struct store_conversation *rows, size_t n,
                    bool more)
{
    struct listed *l = ctx;
    l->n = n;
    l->more = more;
    for (size_t i = 0; i < n && i < 2; i++) {
        (void)snprintf(l->with[i], sizeof l->with[i], "%s", rows[i].with);
        (void)snprintf(l->key[i], sizeof l->key[i], "%s", rows[i].last.message_key);
        l->time[i] = rows[i].last_time_ms;
        l->unread[i] = rows[i].unread;
        l->read[i] = rows[i].last_read_at_ms;
    }
    store_fixture_answered(l->env, st);
}

static void list(struct store_fixture *e, struct listed *l, unsigned limit, int64_t time_ms,
                 const char *with)
{
    *l = (struct listed){.env = e};
    e->pending++;
    store_list_conversations(e->store,
                             &(struct store_conversations_query){.owner = "cat",
                                                                 .limit = limit,
                                                                 .before_time_ms = time_ms,
                                                                 .before_with = with,
                                                                 .max_blob_bytes = 1000},
                             on_list, l);
    store_fixture_wait_all(e);
}

static void test_conversations(void **state)
{
    struct store_fixture *e = *state;
    store_fixture_add_user(e, "cat", "local", "{home}", "{wss://home/ws}");
    struct listed l;
    list(e, &l, 10, -1, NULL);
    assert_int_equal(l.n, 0);
    assert_false(l.more);
    struct store_pair text[3];
    send_text(e, &text[0], "ann", "cat", 100, 1);
    send_text(e, &text[1], "ben", "cat", 200, 1);
    send_text(e, &text[2], "cat", "ann", 300, 1);
    store_fixture_wait_all(e);
    list(e, &l, 1, -1, NULL);
    assert_int_equal(l.n, 1);
    assert_true(l.more);
    assert_string_equal(l.with[0], "ann");
    assert_string_equal(l.key[0], "cat|ann|300|1|2");
    assert_int_equal(l.time[0], 300);
    assert_int_equal(l.unread[0], 1);
    assert_int_equal(l.read[0], -1);
    list(e, &l, 10, 300, "ann");
    assert_int_equal(l.n, 1);
    assert_false(l.more);
    assert_string_equal(l.with[0], "ben");

    struct tombstone_case clear;
    delete_conversation(e, &clear, DM_CLEAR_OWN, "cat", "ann", 300);
    store_fixture_wait_all(e);
    list(e, &l, 10, -1, NULL);
    assert_int_equal(l.n, 1);
    assert_string_equal(l.with[0], "ben");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_receipt),
        cmocka_unit_test(test_delete_message),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_conversations),
    };
    return cmocka_run_group_tests(tests, setup, store_fixture_teardown);
}
