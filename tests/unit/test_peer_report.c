/*
 * What a pool writes into table peer_connections, over a store that the test answers by hand.
 */
#include "peer_fixture.h"

#include <unistd.h>

#include "peer/report.h"
#include "store/peers.h"
#include "util/log.h"

static struct {
    unsigned writes;
    size_t n, n_gone;
    char state[16], last_error[64], gone[400];
    int64_t ok, connected_ms, error_ms;
    store_written_cb cb;
    void *ctx;
} db;

void store_write_peers(struct store *s, const struct store_peer_row *rows, size_t n,
                       const struct store_route *gone, size_t n_gone, store_written_cb cb,
                       void *ctx)
{
    (void)s;
    assert_null(db.cb); /* one at a time */
    db.writes++;
    db.n = n;
    db.n_gone = n_gone;
    if (n > 0) {
        (void)snprintf(db.state, sizeof db.state, "%s", rows[0].state);
        (void)snprintf(db.last_error, sizeof db.last_error, "%s", rows[0].last_error);
        db.ok = rows[0].ok;
        db.connected_ms = rows[0].connected_ms;
        db.error_ms = rows[0].error_ms;
    }
    if (n_gone > 0)
        (void)snprintf(db.gone, sizeof db.gone, "%s %s", gone[0].login, gone[0].url);
    db.cb = cb;
    db.ctx = ctx;
}

/* Stand-ins, so that the real ones are not linked beside the one above. */
void store_read_partners(struct store *s, store_partners_cb cb, void *ctx)
{
    (void)s, (void)cb, (void)ctx;
    fail();
}
void store_unnamed_peers(struct store *s, const struct store_route *peers, size_t n,
                         store_unnamed_cb cb, void *ctx)
{
    (void)s, (void)peers, (void)n, (void)cb, (void)ctx;
    fail();
}
void store_known_peers(struct store *s, unsigned limit, store_known_cb cb, void *ctx)
{
    (void)s, (void)limit, (void)cb, (void)ctx;
    fail();
}

static void answer(enum db_status st, bool written)
{
    store_written_cb cb = db.cb;
    assert_non_null(cb);
    db.cb = NULL;
    cb(db.ctx, st, written);
}

static struct peer_report *report;
static bool report_closed;

static void on_report_closed(void *ctx)
{
    *(bool *)ctx = true;
}

static int setup_report(void **state)
{
    memset(&db, 0, sizeof db);
    report_closed = false;
    assert_int_equal(0, setup(state));
    struct fixture *x = *state;
    x->server.on_request = script;
    start(x);
    report = peer_report_new(&x->loop, x->pool, (struct store *)(void *)&db);
    return 0;
}

static int teardown_report(void **state)
{
    struct fixture *x = *state;
    peer_report_close(report, on_report_closed, &report_closed);
    close_pool(x);
    if (db.cb) {
        loop_for(&x->loop, 20);
        assert_false(report_closed);
        answer(DB_UNAVAILABLE, false);
    }
    loop_until(&x->loop, &report_closed);
    return teardown(state);
}

static void test_what_has_changed(void **state)
{
    struct fixture *x = *state;
    peer_report_write(report);
    assert_int_equal(0, db.writes); /* nothing to say */
    call(x, 0, "Echo");
    wait_end(x, 0);
    loop_for(&x->loop, 5);
    peer_report_write(report);
    assert_int_equal(1, db.writes);
    assert_string_equal("ready", db.state);
    assert_int_equal(1, db.ok);
    assert_in_range(db.connected_ms, 0, 10000);
    assert_int_equal(-1, db.error_ms);
    peer_report_write(report); /* while that is under way */
    answer(DB_OK, true);
    loop_for(&x->loop, 20);
    peer_report_write(report);
    assert_int_equal(1, db.writes); /* time passes: no reason to write */
    fake_server_drop_all(&x->server);
    while (the_peer(x)->link)
        (void)uv_run(&x->loop, UV_RUN_ONCE);
    peer_report_write(report);
    assert_int_equal(2, db.writes);
    assert_string_equal("closed_after_one_request", db.last_error);
    answer(DB_OK, true);
}

static void test_a_write_that_failed_is_made_up_for(void **state)
{
    struct fixture *x = *state;
    call(x, 0, "Echo");
    wait_end(x, 0);
    for (unsigned i = 1; i <= 3; i++) {
        peer_report_write(report);
        assert_int_equal(i, db.writes);
        assert_int_equal(1, db.n);
        answer(i == 1 ? DB_UNAVAILABLE : DB_OK, i > 2); /* then: not registered yet */
    }
    peer_report_write(report);
    assert_int_equal(3, db.writes);
}

static void test_all_of_it_now_and_then(void **state)
{
    struct fixture *x = *state;
    call(x, 0, "Echo");
    wait_end(x, 0);
    for (unsigned i = 0; i < 41; i++) {
        peer_report_write(report);
        if (db.cb)
            answer(DB_OK, true);
    }
    assert_int_equal(3, db.writes); /* the first, the 21st, the 41st */
}

static void test_gone(void **state)
{
    struct fixture *x = *state;
    call(x, 0, "Echo");
    wait_end(x, 0);
    peer_report_write(report);
    answer(DB_OK, true);
    peer_forget(the_peer(x), 1000, "test");
    peer_report_write(report);
    assert_int_equal(2, db.writes);
    assert_int_equal(0, db.n);
    assert_int_equal(1, db.n_gone);
    char want[128];
    (void)snprintf(want, sizeof want, "server2 %s", x->server.url);
    assert_string_equal(want, db.gone);
    answer(DB_OK, true);
    peer_report_write(report);
    assert_int_equal(2, db.writes);
}

static void test_by_its_timer(void **state)
{
    struct fixture *x = *state;
    call(x, 0, "Echo");
    wait_end(x, 0);
    loop_until_count(&x->loop, &db.writes, 1); /* left open: closing waits for it */
}

/* What is logged by `tell`. */
static void logged(void (*tell)(struct peer_report *r), char *out, size_t size)
{
    FILE *f = tmpfile();
    int saved = dup(STDERR_FILENO);
    assert_non_null(f);
    log_set_level(LOG_LEVEL_INFO);
    assert_true(dup2(fileno(f), STDERR_FILENO) >= 0);
    tell(report);
    assert_true(dup2(saved, STDERR_FILENO) >= 0);
    (void)close(saved);
    log_set_level(LOG_LEVEL_ERROR);
    assert_int_equal(0, fseek(f, 0, SEEK_SET));
    out[fread(out, 1, size - 1, f)] = '\0';
    (void)fclose(f);
}

static void test_the_log(void **state)
{
    struct fixture *x = *state;
    char text[2048];
    logged(peer_report_sum, text, sizeof text);
    assert_string_equal("", text); /* nothing to say */
    call(x, 0, "Echo");
    wait_end(x, 0);
    call(x, 1, "Refuse");
    wait_end(x, 1);
    logged(peer_report_sum, text, sizeof text);
    assert_non_null(strstr(text, "event=peers known=1 ready=1 backoff=0 queued=0 in_flight=0 ok=1 "
                                 "failed=1 timed_out=0\n"));
    call(x, 2, "Hold");
    loop_until_count(&x->loop, &x->server.n_seen, 3);
    call(x, 3, "Echo");
    logged(peer_report_sum, text, sizeof text); /* since the last line */
    assert_non_null(strstr(text, "queued=1 in_flight=1 ok=0 failed=0 timed_out=0\n"));
    logged(peer_report_log, text, sizeof text);
    assert_non_null(strstr(text, "event=peer peer=server2 url=ws://127.0.0.1:"));
    assert_non_null(strstr(text, "queue_realtime=1 queue_normal=0 queue_bulk=0 in_flight=1 "));
    release(x, 2);
    wait_end(x, 3);
}

int main(void)
{
    log_setup("test", LOG_FORMAT_LOGFMT, LOG_LEVEL_ERROR);
#define T(name) cmocka_unit_test_setup_teardown(name, setup_report, teardown_report)
    const struct CMUnitTest tests[] = {
        T(test_what_has_changed),       T(test_a_write_that_failed_is_made_up_for),
        T(test_all_of_it_now_and_then), T(test_gone),
        T(test_by_its_timer),           T(test_the_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
