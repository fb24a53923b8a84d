/*
 * The event pump, over an event log that the test keeps and reads that it answers when it likes.
 */
#include "frontd/pump.h"

#include "daemon/settings.h"
#include "db/listen.h"
#include "frontd/session.h"
#include "rpc/envelope.h"
#include "store/sessions.h"
#include "util/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { OWNERS_MAX = 64, SEEN_MAX = 128 };

/* --- the log and its readers --- */

static struct {
    int64_t last[2];    /* "alice", "bob" */
    int64_t trimmed[2]; /* rows up to here are gone */
    int64_t history;    /* pts of an event about changed history; 0 = none */
    bool reading;
    char owners[OWNERS_MAX][DM_LOGIN_MAX + 1];
    int64_t after[OWNERS_MAX];
    size_t n;
    unsigned limit;
    size_t reads;
    store_events_cb cb;
    void *ctx;
    db_notify_cb notify;
    void *notify_ctx;
    char hints[512];
    char forgotten[64];
    unsigned forgotten_all;
    char taken_over[64];
    int64_t taken_generation;
} db;

static size_t index_of(const char *login)
{
    return strcmp(login, "bob") == 0;
}

void store_events_since(struct store *s, const char *const *owners, const int64_t *after, size_t n,
                        unsigned limit, store_events_cb cb, void *ctx)
{
    (void)s;
    assert_false(db.reading); /* one statement at a time */
    assert_in_range(n, 1, OWNERS_MAX);
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(owners[i], owners[j]);
        (void)snprintf(db.owners[i], sizeof db.owners[i], "%s", owners[i]);
        db.after[i] = after[i];
    }
    db.reading = true;
    db.n = n;
    db.limit = limit;
    db.cb = cb;
    db.ctx = ctx;
    db.reads++;
}

void store_notify_events(struct store *s, const char *const *owners, size_t n)
{
    (void)s;
    for (size_t i = 0; i < n; i++) {
        size_t at = strlen(db.hints);
        (void)snprintf(db.hints + at, sizeof db.hints - at, "%s;", owners[i]);
    }
}

struct db_listener *db_listen(uv_loop_t *loop, const char *conninfo, const char *channel,
                              db_notify_cb cb, void *ctx)
{
    (void)loop;
    (void)conninfo;
    assert_string_equal(channel, "shine_events");
    db.notify = cb;
    db.notify_ctx = ctx;
    return NULL;
}

void db_listener_close(struct db_listener *l)
{
    assert_null(l);
}

void directory_forget(struct directory *d, const char *login)
{
    (void)d;
    (void)snprintf(db.forgotten, sizeof db.forgotten, "%s", login);
}

void directory_forget_all(struct directory *d)
{
    (void)d;
    db.forgotten_all++;
}

void sessions_taken_over(struct sessions *ss, const char *session_id, int64_t generation)
{
    (void)ss;
    (void)snprintf(db.taken_over, sizeof db.taken_over, "%s", session_id);
    db.taken_generation = generation;
}

/* Answer the read under way from the log as it stands now. */
static void answer_read(enum db_status st)
{
    static const char key[] = "bob|alice|1|2|1";
    struct store_event rows[256];
    size_t n = 0;
    assert_true(db.reading);
    for (size_t i = 0; i < db.n; i++) {
        size_t o = index_of(db.owners[i]);
        int64_t from = db.after[i] > db.trimmed[o] ? db.after[i] : db.trimmed[o];
        for (int64_t pts = from + 1; pts <= db.last[o] && pts <= from + db.limit; pts++)
            rows[n++] = (struct store_event){
                .owner = db.owners[i],
                .pts = pts,
                .kind = pts == db.history ? STORE_EVENT_HISTORY : STORE_EVENT_MESSAGE,
                .message_key = pts == db.history ? "bob,carol" : key,
                .base_key = "bob|alice|1|2",
                .gone = pts % 2 == 0,
                .from = "bob",
                .to = "alice",
                .type = 1,
                .more = pts == from + db.limit && pts < db.last[o],
            };
    }
    db.reading = false;
    db.cb(db.ctx, st, rows, st == DB_OK ? n : 0);
}

/* --- the sessions --- */

struct listener {
    struct pump_member m;
    int64_t seen[SEEN_MAX];
    size_t n;
    char last_text[1024];
};

static void take(struct pump_member *m, const char *text, size_t len)
{
    struct listener *l = list_entry(m, struct listener, m);
    struct rpc_answer a;
    assert_true(rpc_answer_parse(text, len, &a));
    assert_true(a.is_event);
    assert_true(l->n < SEEN_MAX && len < sizeof l->last_text);
    l->seen[l->n++] = json_integer_value(json_object_get(a.payload, "pts"));
    memcpy(l->last_text, text, len + 1);
    rpc_answer_free(&a);
}

static void saw(const struct listener *l, int64_t first, int64_t last)
{
    assert_int_equal(l->n, last - first + 1);
    for (size_t i = 0; i < l->n; i++)
        assert_int_equal(l->seen[i], first + (int64_t)i);
}

struct fixture {
    uv_loop_t loop;
    struct frontd f;
    struct config *config;
    struct pump *p;
};

static void turn(struct fixture *f)
{
    (void)uv_run(&f->loop, UV_RUN_NOWAIT);
}

static void settle(struct fixture *f)
{
    for (turn(f); db.reading; turn(f))
        answer_read(DB_OK);
}

static void join(struct fixture *f, struct listener *l, const char *owner, int64_t at)
{
    list_init(&l->m.link);
    l->m.send = take;
    pump_join(f->p, &l->m, owner, 5, at);
    assert_int_equal(l->n, 0);
}

/* An event is committed and told by the operation that did it. */
static void tell(struct fixture *f, const char *owner, int64_t pts, bool elsewhere)
{
    struct store_copy copy = {.c = {.type = DM_TEXT_IN, .from = "bob", .to = "alice"},
                              .blob = (const uint8_t *)"x",
                              .blob_len = 1};
    struct store_told told = {.pts = pts, .elsewhere = elsewhere};
    if (db.last[index_of(owner)] < pts)
        db.last[index_of(owner)] = pts;
    pump_told_message(f->p, owner, &told, &copy, DM_STATE_NONE);
}

static int setup(void **state)
{
    struct fixture *f = xnew(struct fixture);
    char *error = NULL;
    memset(&db, 0, sizeof db);
    assert_int_equal(uv_loop_init(&f->loop), 0);
    f->config = config_new(settings_keys);
    /* No test waits for the poll, except the one that calls it. */
    assert_true(config_set(f->config, "events.pollMs = 100", "test", &error));
    f->f = (struct frontd){.loop = &f->loop, .config = f->config};
    f->p = pump_new(&f->f);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    pump_stop(f->p);
    if (db.reading)
        answer_read(DB_UNAVAILABLE);
    pump_free(f->p);
    assert_int_equal(uv_run(&f->loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    config_free(f->config);
    free(f);
    return 0;
}

/* --- tests --- */

static void what_was_committed_before_joining_is_read(void **state)
{
    struct fixture *f = *state;
    struct listener a = {0};
    db.last[0] = 7; /* 5 by the log-in statement, two more since */
    join(f, &a, "alice", 5);
    settle(f);
    saw(&a, 6, 7);
    pump_leave(f->p, &a.m);
}

static void the_next_event_is_sent_from_memory(void **state)
{
    struct fixture *f = *state;
    struct listener a = {0}, b = {0};
    join(f, &a, "alice", 0);
    join(f, &b, "alice", 0);
    settle(f);
    size_t reads = db.reads;
    tell(f, "alice", 1, false);
    tell(f, "alice", 2, false);
    tell(f, "alice", 2, false); /* doubled */
    saw(&a, 1, 2);
    saw(&b, 1, 2);
    assert_int_equal(db.reads, reads);
    assert_string_equal(a.last_text, b.last_text);
    assert_string_equal(
        a.last_text,
        "{\"op\":\"IncomingDirectMessage\",\"event\":true,\"status\":200,\"ok\":true,\"payload\":{"
        "\"eventId\":\"5-2\",\"pts\":2,\"messageKey\":\"bob|alice|0|0|1\","
        "\"baseKey\":\"bob|alice|0|0\",\"fromLogin\":\"bob\",\"toLogin\":\"alice\","
        "\"messageType\":1,\"timeMs\":0,\"revisionTimeMs\":0,\"reencryptedAtMs\":0,"
        "\"blobB64\":\"eA==\"}}");
    pump_leave(f->p, &a.m);
    pump_leave(f->p, &b.m);
}

static void events_told_out_of_order_arrive_in_order(void **state)
{
    struct fixture *f = *state;
    struct listener a = {0};
    join(f, &a, "alice", 0);
    settle(f);
    tell(f, "alice", 2, false); /* its batch was answered first */
    assert_int_equal(a.n, 0);
    turn(f);
    assert_true(db.reading);
    tell(f, "alice", 1, false); /* while the log is being read */
    saw(&a, 1, 1);
    tell(f, "alice", 3, false);
    saw(&a, 1, 1);
    settle(f);
    saw(&a, 1, 3);
    pump_leave(f->p, &a.m);
}

static void a_session_that_joins_lower_gets_its_own(void **state)
{
    struct fixture *f = *state;
    struct listener a = {0}, b = {0};
    join(f, &a, "alice", 0);
    settle(f);
    tell(f, "alice", 1, false);
    tell(f, "alice", 2, false);
    join(f, &b, "alice", 1); /* its log-in statement ran before event 2 */
    tell(f, "alice", 3, false);
    settle(f);
    saw(&a, 1, 3);
    saw(&b, 2, 3);
    pump_leave(f->p, &a.m);
    pump_leave(f->p, &b.m);
}

static void joining_lower_during_a_read_leaves_no_gap(void **state)
{
    struct fixture *f = *state;
    struct listener a = {0}, b = {0};
    join(f, &a, "alice", 4);
    turn(f);
    assert_true(db.reading);
    db.last[0] = 6;
    join(f, &b, "alice", 2);
    settle(f);
    saw(&a, 5, 6);
    saw(&b, 3, 6);
    pump_leave(f->p, &a.m);
    pump_leave(f->p, &b.m);
}

static void trimmed_events_are_jumped_over(void **state)
{
    struct fixture *f = *state;
    struct listener a = {0};
    db.last[0] = 10;
    db.trimmed[0] = 8;
    join(f, &a, "alice", 3);
    settle(f);
    saw(&a, 9, 10);
    tell(f, "alice", 11, false);
    saw(&a, 9, 11);
    pump_leave(f->p, &a.m);
}

static void a_long_backlog_is_read_page_by_page(void **state)
{
    struct fixture *f = *state;
    struct listener a = {0};
    db.last[0] = 100;
    join(f, &a, "alice", 0);
    settle(f);
    saw(&a, 1, 100);
    assert_true(db.reads > 1);
    pump_leave(f->p, &a.m);
}

static void notifications_read_whom_they_name(void **state)
{
    struct fixture *f = *state;
    struct listener a = {0}, b = {0};
    join(f, &a, "alice", 0);
    join(f, &b, "bob", 0);
    settle(f);
    db.last[0] = db.last[1] = 1;
    db.notify(db.notify_ctx, "carol,alice,,an_entry_longer_than_any_login_could_ever_be");
    settle(f);
    saw(&a, 1, 1);
    assert_int_equal(b.n, 0);
    db.notify(db.notify_ctx, NULL);
    settle(f);
    saw(&b, 1, 1);
    db.last[1] = 2;
    db.notify(db.notify_ctx, "");
    settle(f);
    saw(&b, 1, 2);
    pump_leave(f->p, &a.m);
    pump_leave(f->p, &b.m);
}

static void the_poll_finds_what_no_notification_told(void **state)
{
    struct fixture *f = *state;
    struct listener a = {0};
    join(f, &a, "alice", 0);
    settle(f);
    db.last[0] = 1;
    while (a.n == 0) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
        if (db.reading)
            answer_read(DB_OK);
    }
    saw(&a, 1, 1);
    pump_leave(f->p, &a.m);
}

static void a_failed_read_is_repeated(void **state)
{
    struct fixture *f = *state;
    struct listener a = {0};
    db.last[0] = 1;
    join(f, &a, "alice", 0);
    turn(f);
    answer_read(DB_UNAVAILABLE);
    assert_int_equal(a.n, 0);
    while (a.n == 0) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
        if (db.reading)
            answer_read(DB_OK);
    }
    saw(&a, 1, 1);
    pump_leave(f->p, &a.m);
}

static void sessions_may_leave_during_a_read(void **state)
{
    struct fixture *f = *state;
    struct listener a = {0}, b = {0};
    db.last[0] = 1;
    join(f, &a, "alice", 0);
    turn(f);
    assert_true(db.reading);
    pump_leave(f->p, &a.m);
    pump_leave(f->p, &a.m); /* harmless */
    answer_read(DB_OK);
    assert_int_equal(a.n, 0);
    join(f, &b, "alice", 1); /* a new owner object */
    settle(f);
    tell(f, "alice", 2, false);
    saw(&b, 2, 2);
    pump_leave(f->p, &b.m);
}

static void other_processes_are_told_once_for_many(void **state)
{
    struct fixture *f = *state;
    tell(f, "alice", 1, true);
    tell(f, "alice", 2, true);
    tell(f, "bob", 1, false);
    pump_told_log_in(f->p, "SESSION", 3);
    assert_string_equal(db.hints, ""); /* not yet */
    while (!db.hints[0])
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    bool either =
        strcmp(db.hints, "alice;@SESSION:3;") == 0 || strcmp(db.hints, "@SESSION:3;alice;") == 0;
    assert_true(either);
    tell(f, "bob", 2, true);
    pump_stop(f->p); /* sends what is collected; teardown's second stop is harmless */
    assert_non_null(strstr(db.hints, "bob;"));
}

static void log_ins_elsewhere_are_passed_on(void **state)
{
    (void)state;
    db.notify(db.notify_ctx, "@no_generation,@bad:x,@:,@id:");
    assert_string_equal(db.taken_over, "");
    db.notify(db.notify_ctx, "alice,@SESSION:12");
    assert_string_equal(db.taken_over, "SESSION");
    assert_int_equal(db.taken_generation, 12);
}

static void changed_users_are_forgotten(void **state)
{
    (void)state;
    unsigned all = db.forgotten_all;
    db.notify(db.notify_ctx, "alice,~carol,@SESSION:12");
    assert_string_equal(db.forgotten, "carol");
    assert_int_equal(db.forgotten_all, all);
    db.notify(db.notify_ctx, NULL); /* connected again: what came meanwhile is lost */
    assert_int_equal(db.forgotten_all, all + 1);
}

static void state_events_have_their_form(void **state)
{
    struct fixture *f = *state;
    struct listener a = {0};
    struct store_told told = {.pts = 1};
    join(f, &a, "alice", 0);
    settle(f);
    pump_told_state(f->p, "alice", &told, "alice|bob|1|2|2", DM_STATE_DELIVERED);
    assert_string_equal(a.last_text,
                        "{\"op\":\"DmDeliveryStateChanged\",\"event\":true,\"status\":200,"
                        "\"ok\":true,\"payload\":{\"baseKey\":\"alice|bob|1|2\",\"outgoingKey\":"
                        "\"alice|bob|1|2|2\",\"deliveryState\":\"delivered\",\"pts\":1}}");
    db.last[0] = 2; /* even ones are gone in this log */
    db.notify(db.notify_ctx, "alice");
    settle(f);
    assert_string_equal(a.last_text,
                        "{\"op\":\"IncomingDirectMessage\",\"event\":true,\"status\":200,"
                        "\"ok\":true,\"payload\":{\"pts\":2,\"messageKey\":\"bob|alice|1|2|1\","
                        "\"deleted\":true}}");
    pump_leave(f->p, &a.m);
}

static void changed_history_is_told_to_those_who_read_by_positions(void **state)
{
    struct fixture *f = *state;
    struct listener live = {0}, positions = {.m = {.wants_history = true}};
    join(f, &live, "alice", 0);
    join(f, &positions, "alice", 0);
    db.last[0] = db.history = 3;
    settle(f);
    saw(&live, 1, 2);
    saw(&positions, 1, 3);
    assert_string_equal(positions.last_text,
                        "{\"op\":\"HistoryChanged\",\"event\":true,\"status\":200,\"ok\":true,"
                        "\"payload\":{\"withLogins\":[\"bob\",\"carol\"],\"pts\":3}}");
    tell(f, "alice", 4, false); /* what the others did not get is no gap to them */
    assert_int_equal(live.seen[live.n - 1], 4);
    assert_int_equal(live.n, 3);
    saw(&positions, 1, 4);
    pump_leave(f->p, &live.m);
    pump_leave(f->p, &positions.m);
}

static void settings_are_told_from_memory(void **state)
{
    struct fixture *f = *state;
    struct listener a = {0};
    struct store_told told = {.pts = 1};
    const struct store_setting setting = {
        .name = "ui/theme", .value = "\"dark\"", .time_ms = 7, .sig = {1}};
    join(f, &a, "alice", 0);
    settle(f);
    size_t reads = db.reads;
    pump_told_setting(f->p, "alice", &told, &setting);
    pump_told_setting(f->p, "bob", &told, &setting); /* nobody is here */
    assert_int_equal(db.reads, reads);
    saw(&a, 1, 1);
    struct rpc_answer e;
    assert_true(rpc_answer_parse(a.last_text, strlen(a.last_text), &e));
    assert_string_equal(e.op, "UserSettingChanged");
    assert_string_equal(json_string_value(json_object_get(e.payload, "name")), "ui/theme");
    assert_string_equal(json_string_value(json_object_get(e.payload, "value")), "\"dark\"");
    assert_int_equal(json_integer_value(json_object_get(e.payload, "timeMs")), 7);
    assert_int_equal(json_string_length(json_object_get(e.payload, "signatureB64")), 88);
    rpc_answer_free(&e);
    pump_leave(f->p, &a.m);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(what_was_committed_before_joining_is_read),
        TEST(the_next_event_is_sent_from_memory),
        TEST(events_told_out_of_order_arrive_in_order),
        TEST(a_session_that_joins_lower_gets_its_own),
        TEST(joining_lower_during_a_read_leaves_no_gap),
        TEST(trimmed_events_are_jumped_over),
        TEST(a_long_backlog_is_read_page_by_page),
        TEST(notifications_read_whom_they_name),
        TEST(the_poll_finds_what_no_notification_told),
        TEST(a_failed_read_is_repeated),
        TEST(sessions_may_leave_during_a_read),
        TEST(other_processes_are_told_once_for_many),
        TEST(log_ins_elsewhere_are_passed_on),
        TEST(changed_users_are_forgotten),
        TEST(state_events_have_their_form),
        TEST(changed_history_is_told_to_those_who_read_by_positions),
        TEST(settings_are_told_from_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
