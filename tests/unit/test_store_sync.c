/*
 * Replication through the store: settings, pages and acknowledgements, pulled items, turns. What C
 * hands over arrives, what comes back is decoded; the rules themselves are tested in tests/sql.
 */
#include "db/migrate.h"
#include "store/sync.h"
#include "store/tombstones.h"
#include "store/turns.h"
#include "support_db.h"
#include "support_pg.h"
#include "util/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ROWS_MAX 4

struct env {
    struct pg *pg;
    uv_loop_t loop;
    struct db_pool *pool;
    struct store *store;
    int pending; /* calls without an answer */

    /* --- what came back last --- */
    enum db_status st;
    enum store_pull_verdict verdict;
    size_t n;
    bool more, flag;
    char key[ROWS_MAX][DM_MESSAGE_KEY_MAX], id[ROWS_MAX][STORE_SYNC_ID_MAX + 1];
    unsigned blobs[ROWS_MAX];
    uint8_t blob[2];
    struct store_setting_result put[ROWS_MAX];
    char name[ROWS_MAX][32], value[ROWS_MAX][32];
    int64_t time_ms[ROWS_MAX];
    uint8_t sig[ROWS_MAX];
    struct store_marked marked;
    char last[DM_LOGIN_MAX + 1];
    struct store_turn turn;
    struct store_delivery_status status[ROWS_MAX];
};

static int setup(void **state)
{
    struct env *e = xnew(struct env);
    e->pg = pg_new(NULL);
    for (size_t i = 0; i < sql_files_count; i++)
        pg_exec(e->pg, sql_files[i].text);
    pg_exec(e->pg, "SELECT add_user('home', l, 'key', NULL, NULL, 'local', '{home,twin}', "
                   "'{wss://home/ws,wss://twin/ws}') FROM unnest('{ann,ben}'::text[]) l");
    pg_exec(e->pg, "SELECT add_user('home', 'far', 'key', NULL, NULL, 'partner', '{x}', "
                   "'{wss://x/ws}')");
    assert_int_equal(uv_loop_init(&e->loop), 0);
    e->pool = db_pool_new(&e->loop, pg_conninfo(e->pg), "test_store_sync", 2);
    e->store = store_new(e->pool,
                         &(struct store_identity){.server_login = "home", .process_id = "p1"}, 50);
    assert_true(run_until_ready(&e->loop, e->pool));
    *state = e;
    return 0;
}

static int teardown(void **state)
{
    struct env *e = *state;
    close_pool_and_loop(e->pool, &e->loop);
    store_free(e->store);
    pg_free(e->pg);
    free(e);
    return 0;
}

static bool all_answered(void *ctx)
{
    return ((struct env *)ctx)->pending == 0;
}

static void wait_for_all(struct env *e)
{
    assert_int_not_equal(e->pending, 0); /* never synchronous */
    assert_true(run_until(&e->loop, all_answered, e));
    assert_int_equal(e->st, DB_OK);
}

static void answered(struct env *e, enum db_status st)
{
    e->st = st;
    e->pending--;
}

#define COPY(out, text) ((void)snprintf(out, sizeof(out), "%s", (text) ? (text) : ""))

/* --- settings --- */

static void on_put(void *ctx, enum db_status st, const struct store_setting_result *rows, size_t n)
{
    struct env *e = ctx;
    assert_true(n <= ROWS_MAX);
    e->n = n;
    memcpy(e->put, rows, n * sizeof *rows);
    answered(e, st);
}

static void put(struct env *e, const char *login, const struct store_setting *s, size_t n,
                const char *source)
{
    struct store_new_settings p = {.login = login,
                                   .items = s,
                                   .n = n,
                                   .source = source,
                                   .max_future_ms = 1000,
                                   .max_count = 2};
    e->pending = 1;
    store_put_settings(e->store, &p, on_put, e);
    wait_for_all(e);
}

static void on_settings(void *ctx, enum db_status st, const struct store_setting *rows, size_t n,
                        bool more)
{
    struct env *e = ctx;
    assert_true(n <= ROWS_MAX);
    e->n = n;
    e->more = more;
    for (size_t i = 0; i < n; i++) {
        COPY(e->name[i], rows[i].name);
        COPY(e->value[i], rows[i].value);
        e->time_ms[i] = rows[i].time_ms;
        e->sig[i] = rows[i].sig[DM_SIG_BYTES - 1];
    }
    answered(e, st);
}

static void test_settings(void **state)
{
    struct env *e = *state;
    struct store_setting s[4] = {{.name = "a", .value = "1", .time_ms = 5},
                                 {.name = "b", .value = "\xc3\xa9\"\n", .time_ms = 6},
                                 {.name = "c", .value = "3", .time_ms = 7},
                                 {.name = "d", .value = "4", .time_ms = INT64_C(1) << 52}};
    s[0].sig[DM_SIG_BYTES - 1] = 7;
    put(e, "ann", s, 4, NULL);
    static const enum store_setting_verdict want[] = {
        STORE_SETTING_OK, STORE_SETTING_OK, STORE_SETTING_TOO_MANY, STORE_SETTING_TIME_AHEAD};
    assert_int_equal(e->n, 4);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(e->put[i].verdict, want[i]);
        assert_int_equal(e->put[i].told.pts, i < 2 ? i + 1 : 0);
    }
    put(e, "far", s, 1, "x");
    assert_int_equal(e->put[0].verdict, STORE_SETTING_NOT_SERVED);

    struct store_settings_query q = {.login = "ann", .after = "", .limit = 1, .max_bytes = 9};
    e->pending = 1;
    store_get_settings(e->store, &q, on_settings, e);
    wait_for_all(e);
    assert_true(e->n == 1 && e->more && e->time_ms[0] == 5 && e->sig[0] == 7);
    assert_string_equal(e->name[0], "a");
    const char *names[] = {"b", "none"};
    q = (struct store_settings_query){
        .login = "ann", .names = names, .n_names = 2, .after = "", .limit = 9, .max_bytes = 9};
    e->pending = 1;
    store_get_settings(e->store, &q, on_settings, e);
    wait_for_all(e);
    assert_true(e->n == 1 && !e->more);
    assert_string_equal(e->value[0], "\xc3\xa9\"\n");
}

/* --- pages --- */

static void on_page(void *ctx, enum db_status st, enum store_pull_verdict verdict,
                    const struct store_sync_item *rows, size_t n, bool more)
{
    struct env *e = ctx;
    assert_true(n <= ROWS_MAX);
    e->verdict = verdict;
    e->n = n;
    e->more = more;
    for (size_t i = 0; i < n; i++) {
        COPY(e->key[i], rows[i].primary_key);
        COPY(e->id[i], rows[i].sync_id);
        e->blobs[i] = rows[i].n_blobs;
        for (unsigned b = 0; b < rows[i].n_blobs; b++) {
            assert_int_equal(rows[i].blob_len[b], 1);
            e->blob[b] = rows[i].blob[b][0];
        }
    }
    answered(e, st);
}

static void page(struct env *e, const char *owner, const char *caller, unsigned limit,
                 const char *const *acks, size_t n_acks)
{
    struct store_pull p = {.owner = owner,
                           .caller = caller,
                           .after_key = "",
                           .limit = limit,
                           .max_bytes = STORE_SYNC_BYTES_MAX,
                           .acks = acks,
                           .n_acks = n_acks};
    e->pending = 1;
    store_sync_page(e->store, &p, on_page, e);
    wait_for_all(e);
}

static void on_settings_page(void *ctx, enum db_status st, enum store_pull_verdict verdict,
                             const struct store_sync_setting *rows, size_t n, bool more)
{
    struct env *e = ctx;
    assert_true(n <= ROWS_MAX);
    e->verdict = verdict;
    e->n = n;
    e->more = more;
    for (size_t i = 0; i < n; i++) {
        COPY(e->id[i], rows[i].sync_id);
        COPY(e->name[i], rows[i].setting.name);
        assert_true(rows[i].stored_at_ms > 0);
    }
    answered(e, st);
}

static void fill(struct store_copy *c, enum dm_type type, const char *from, const char *to,
                 int64_t time_ms, const uint8_t *blob)
{
    *c = (struct store_copy){.c = {.type = type, .time_ms = time_ms, .nonce = 1},
                             .blob = blob,
                             .blob_len = blob ? 1 : 0};
    COPY(c->c.from, from);
    COPY(c->c.to, to);
    if (blob)
        dm_sha256(blob, 1, c->sha256);
}

static void pair_done(struct store_pair *p, enum db_status st)
{
    struct env *e = p->ctx;
    assert_int_equal(p->verdict, STORE_OK);
    answered(e, st);
}

static void test_pages(void **state)
{
    struct env *e = *state;
    static const uint8_t in[] = "i", out[] = "o";
    page(e, "ann", "twin", 5, NULL, 0);
    assert_true(e->verdict == STORE_PULL_OK && e->n == 0 && !e->more);
    page(e, "ann", "x", 5, NULL, 0);
    assert_int_equal(e->verdict, STORE_PULL_NOT_ALLOWED);
    page(e, "far", "x", 5, NULL, 0);
    assert_int_equal(e->verdict, STORE_PULL_NOT_SERVED);

    struct store_pair p[2] = {{.done = pair_done, .ctx = e}, {.done = pair_done, .ctx = e}};
    e->pending = 2;
    for (int i = 0; i < 2; i++) {
        fill(&p[i].in, DM_TEXT_IN, "ann", "far", 10 + i, in);
        fill(&p[i].out, DM_TEXT_OUT, "ann", "far", 10 + i, out);
        list_init(&p[i].item.link);
        store_accept_pair(e->store, &p[i]);
    }
    wait_for_all(e);
    page(e, "ann", "twin", 1, NULL, 0);
    assert_true(e->n == 1 && e->more && e->blobs[0] == 2);
    assert_memory_equal(e->blob, "io", 2);
    assert_string_equal(e->key[0], "ann|far|10|1|2");
    char id[STORE_SYNC_ID_MAX + 1];
    COPY(id, e->id[0]);
    const char *acks[] = {"nothing", id};
    page(e, "ann", "twin", 5, acks, 2);
    assert_true(e->n == 1 && !e->more);
    assert_string_equal(e->key[0], "ann|far|11|1|2");

    struct store_pull pull = {.owner = "ann",
                              .caller = "twin",
                              .after_key = "",
                              .limit = 5,
                              .max_bytes = STORE_SYNC_BYTES_MAX};
    put(e, "ann", &(struct store_setting){.name = "s", .value = "v", .time_ms = 1}, 1, NULL);
    e->pending = 1;
    store_sync_settings_page(e->store, &pull, on_settings_page, e);
    wait_for_all(e);
    assert_int_equal(e->n, 1);
    assert_string_equal(e->name[0], "s");
    COPY(id, e->id[0]);
    pull.acks = &acks[1];
    pull.n_acks = 1;
    e->pending = 1;
    store_sync_settings_page(e->store, &pull, on_settings_page, e);
    wait_for_all(e);
    assert_int_equal(e->n, 0);
}

/* --- what is pulled --- */

static void incoming_done(struct store_incoming *p, enum db_status st)
{
    assert_int_equal(p->verdict, STORE_OK);
    answered(p->ctx, st);
}

static void tombstone_done(struct store_tombstone *p, enum db_status st)
{
    assert_int_equal(p->verdict, STORE_OK);
    answered(p->ctx, st);
}

static void on_statuses(void *ctx, enum db_status st, const struct store_delivery_status *rows,
                        size_t n)
{
    struct env *e = ctx;
    assert_true(n <= ROWS_MAX);
    e->n = n;
    memcpy(e->status, rows, n * sizeof *rows);
    answered(e, st);
}

static void on_told(void *ctx, enum db_status st, const char *const *owners, size_t n)
{
    struct env *e = ctx;
    e->n = n;
    COPY(e->last, n > 0 ? owners[0] : NULL);
    answered(e, st);
}

static void test_pulled(void **state)
{
    struct env *e = *state;
    static const uint8_t in[] = "i", out[] = "o";
    uint8_t body[DM_DELETE_BODY];
    struct store_pair pair = {
        .from_server = true, .source = "twin", .proof = true, .done = pair_done, .ctx = e};
    struct store_pair alone = {.from_server = true, .source = "twin", .done = pair_done, .ctx = e};
    struct store_incoming incoming = {.source = "twin", .done = incoming_done, .ctx = e};
    struct store_tombstone grave = {
        .from_server = true, .source = "twin", .done = tombstone_done, .ctx = e};
    fill(&pair.in, DM_TEXT_IN, "ann", "far", 20, in);
    fill(&pair.out, DM_TEXT_OUT, "ann", "far", 20, out);
    fill(&alone.in, DM_TEXT_IN, "ann", "far", 21, NULL);
    fill(&alone.out, DM_TEXT_OUT, "ann", "far", 21, out);
    fill(&incoming.in, DM_TEXT_IN, "far", "ann", 22, in);
    fill(&grave.copy, DM_DELETE_BOTH, "ann", "far", 23, in);
    grave.copy.c.body = body;
    grave.copy.c.body_len =
        dm_delete_body(&(struct dm_delete){.ref_time_ms = 99, .ref_nonce = 9}, body);
    list_init(&pair.item.link);
    list_init(&alone.item.link);
    list_init(&incoming.item.link);
    list_init(&grave.item.link);
    e->pending = 4;
    store_pull_pair(e->store, &pair);
    store_pull_pair(e->store, &alone);
    store_pull_incoming(e->store, &incoming);
    store_pull_tombstone(e->store, &grave);
    wait_for_all(e);
    assert_true(pair.from.pts == 0 && incoming.to.pts == 0 && grave.from.pts == 0);
    assert_false(pair.attempt);

    struct dm_key keys[3];
    assert_true(dm_key_parse("ann|far|20|1|1", &keys[0]));
    assert_true(dm_key_parse("ann|far|21|1|2", &keys[1]));
    assert_true(dm_key_parse("ann|far|23|1|5", &keys[2]));
    e->pending = 1;
    store_delivery_statuses(e->store, keys, 3, on_statuses, e);
    wait_for_all(e);
    assert_int_equal(e->n, 3);
    assert_true(e->status[0].known && e->status[0].delivered); /* by proof */
    assert_true(!e->status[1].known && !e->status[2].known);   /* old history has no row */

    const char *owners[] = {"ben", "ann"};
    e->pending = 1;
    store_tell_history(e->store, owners, 2, on_told, e);
    wait_for_all(e);
    assert_int_equal(e->n, 1);
    assert_string_equal(e->last, "ann");
    e->pending = 1;
    store_tell_history(e->store, NULL, 0, on_told, e);
    wait_for_all(e);
    assert_int_equal(e->n, 0);
}

/* --- turns and marks --- */

static void on_marked(void *ctx, enum db_status st, const struct store_marked *m)
{
    struct env *e = ctx;
    e->marked = *m;
    e->flag = m->last != NULL;
    COPY(e->last, m->last);
    answered(e, st);
}

static void on_ordered(void *ctx, enum db_status st, const char *last)
{
    struct env *e = ctx;
    e->flag = last != NULL;
    answered(e, st);
}

static void on_turns(void *ctx, enum db_status st, const struct store_turn *rows, size_t n)
{
    struct env *e = ctx;
    e->n = n;
    if (n > 0)
        e->turn = rows[0];
    answered(e, st);
}

static void on_renewed(void *ctx, enum db_status st, bool held)
{
    struct env *e = ctx;
    e->flag = held;
    answered(e, st);
}

static void on_ended(void *ctx, enum db_status st)
{
    answered(ctx, st);
}

static void claim(struct env *e, const char *skip)
{
    e->pending = 1;
    store_claim_turns(e->store, &skip, skip ? 1 : 0, 5, 60000, on_turns, e);
    wait_for_all(e);
}

static void test_turns(void **state)
{
    struct env *e = *state;
    e->pending = 1;
    store_order_turns(e->store, NULL, "", on_ordered, e);
    wait_for_all(e);
    assert_false(e->flag);
    claim(e, "twin");
    assert_int_equal(e->n, 0);
    claim(e, NULL);
    assert_int_equal(e->n, 1); /* one owner of a server at a time */
    assert_string_equal(e->turn.server.login, "twin");
    assert_string_equal(e->turn.server.url, "wss://twin/ws");
    struct store_turn turn = e->turn, nobodys = {.owner = "ben", .server = turn.server};
    e->pending = 1;
    store_renew_turn(e->store, &turn, 60000, on_renewed, e);
    wait_for_all(e);
    assert_true(e->flag);
    (void)snprintf(nobodys.owner, sizeof nobodys.owner, "%s",
                   strcmp(turn.owner, "ann") == 0 ? "ben" : "ann");
    e->pending = 1;
    store_renew_turn(e->store, &nobodys, 60000, on_renewed, e);
    wait_for_all(e);
    assert_false(e->flag);
    const char *id = "x", *reason = "BAD";
    e->pending = 1;
    store_note_rejects(e->store, &turn, &id, &reason, 1, on_ended, e);
    wait_for_all(e);
    struct store_turn_end end = {.moved = 3, .result = "equal", .next_ms = 60000};
    e->pending = 1;
    store_finish_turn(e->store, &turn, &end, on_ended, e);
    wait_for_all(e);
    e->pending = 1;
    store_renew_turn(e->store, &turn, 60000, on_renewed, e);
    wait_for_all(e);
    assert_false(e->flag);
    claim(e, NULL);
    assert_string_equal(e->turn.owner, nobodys.owner); /* the other one's turn */
}

static void test_marks(void **state)
{
    struct env *e = *state;
    put(e, "ben", &(struct store_setting){.name = "s", .value = "v", .time_ms = 1}, 1, "twin");
    e->pending = 1;
    store_mark_unsynced(e->store, "ben", on_marked, e);
    wait_for_all(e);
    assert_true(e->marked.settings == 1 && e->marked.dms == 0 && !e->flag);
    e->pending = 1;
    store_mark_all_unsynced(e->store, "", 1, on_marked, e);
    wait_for_all(e);
    assert_true(e->marked.users == 1 && e->flag);
    assert_string_equal(e->last, "ann");
    e->pending = 1;
    store_mark_all_unsynced(e->store, "ann", 5, on_marked, e);
    wait_for_all(e);
    assert_true(e->marked.users == 1 && e->marked.settings == 1 && !e->flag);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_settings), TEST(test_pages), TEST(test_pulled),
        TEST(test_turns),    TEST(test_marks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
