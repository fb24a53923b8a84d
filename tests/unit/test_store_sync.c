/*
 * Replication through the store: settings, pages and acknowledgements, pulled items, marks. What C
 * hands over arrives, what comes back is decoded; the rules themselves are tested in tests/sql.
 */
#include "store/sync.h"
#include "store/tombstones.h"
#include "store/turns.h"
#include "support_store.h"
#include "util/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ROWS_MAX 4

struct env {
    struct store_fixture f;

    /* --- what came back last --- */
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
    struct store_delivery_status status[ROWS_MAX];
};

static int setup(void **state)
{
    struct env *e = xnew(struct env);
    store_fixture_open(&e->f, NULL, 2);
    store_fixture_add_user(&e->f, "ann", "local", "{home,twin}", "{wss://home/ws,wss://twin/ws}");
    store_fixture_add_user(&e->f, "ben", "local", "{home,twin}", "{wss://home/ws,wss://twin/ws}");
    store_fixture_add_user(&e->f, "far", "partner", "{x}", "{wss://x/ws}");
    *state = e;
    return 0;
}

#define COPY(out, text) ((void)snprintf(out, sizeof(out), "%s", (text) ? (text) : ""))

/* --- settings --- */

static void on_put(void *ctx, enum db_status st, const struct store_setting_result *rows, size_t n)
{
    struct env *e = ctx;
    assert_true(n <= ROWS_MAX);
    e->n = n;
    memcpy(e->put, rows, n * sizeof *rows);
    store_fixture_answered(&e->f, st);
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
    e->f.pending = 1;
    store_put_settings(e->f.store, &p, on_put, e);
    store_fixture_wait_all(&e->f);
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
    store_fixture_answered(&e->f, st);
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
    e->f.pending = 1;
    store_get_settings(e->f.store, &q, on_settings, e);
    store_fixture_wait_all(&e->f);
    assert_true(e->n == 1 && e->more && e->time_ms[0] == 5 && e->sig[0] == 7);
    assert_string_equal(e->name[0], "a");
    const char *names[] = {"b", "none"};
    q = (struct store_settings_query){
        .login = "ann", .names = names, .n_names = 2, .after = "", .limit = 9, .max_bytes = 9};
    e->f.pending = 1;
    store_get_settings(e->f.store, &q, on_settings, e);
    store_fixture_wait_all(&e->f);
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
    store_fixture_answered(&e->f, st);
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
    e->f.pending = 1;
    store_sync_page(e->f.store, &p, on_page, e);
    store_fixture_wait_all(&e->f);
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
    store_fixture_answered(&e->f, st);
}

static void fill(struct store_copy *c, enum dm_type type, const char *from, const char *to,
                 int64_t time_ms, const uint8_t *blob)
{
    store_copy_fill(c, type, from, to, time_ms, 1, blob, blob ? 1 : 0);
}

static void pair_done(struct store_pair *p, enum db_status st)
{
    assert_int_equal(p->verdict, STORE_OK);
    store_fixture_answered(p->ctx, st);
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
    e->f.pending = 2;
    for (int i = 0; i < 2; i++) {
        fill(&p[i].in, DM_TEXT_IN, "ann", "far", 10 + i, in);
        fill(&p[i].out, DM_TEXT_OUT, "ann", "far", 10 + i, out);
        list_init(&p[i].item.link);
        store_accept_pair(e->f.store, &p[i]);
    }
    store_fixture_wait_all(&e->f);
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
    e->f.pending = 1;
    store_sync_settings_page(e->f.store, &pull, on_settings_page, e);
    store_fixture_wait_all(&e->f);
    assert_int_equal(e->n, 1);
    assert_string_equal(e->name[0], "s");
    COPY(id, e->id[0]);
    pull.acks = &acks[1];
    pull.n_acks = 1;
    e->f.pending = 1;
    store_sync_settings_page(e->f.store, &pull, on_settings_page, e);
    store_fixture_wait_all(&e->f);
    assert_int_equal(e->n, 0);
}

/* --- what is pulled --- */

static void incoming_done(struct store_incoming *p, enum db_status st)
{
    assert_int_equal(p->verdict, STORE_OK);
    store_fixture_answered(p->ctx, st);
}

static void tombstone_done(struct store_tombstone *p, enum db_status st)
{
    assert_int_equal(p->verdict, STORE_OK);
    store_fixture_answered(p->ctx, st);
}

static void on_statuses(void *ctx, enum db_status st, const struct store_delivery_status *rows,
                        size_t n)
{
    struct env *e = ctx;
    assert_true(n <= ROWS_MAX);
    e->n = n;
    memcpy(e->status, rows, n * sizeof *rows);
    store_fixture_answered(&e->f, st);
}

static void on_told(void *ctx, enum db_status st, const char *const *owners, size_t n)
{
    struct env *e = ctx;
    e->n = n;
    COPY(e->last, n > 0 ? owners[0] : NULL);
    store_fixture_answered(&e->f, st);
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
    e->f.pending = 4;
    store_pull_pair(e->f.store, &pair);
    store_pull_pair(e->f.store, &alone);
    store_pull_incoming(e->f.store, &incoming);
    store_pull_tombstone(e->f.store, &grave);
    store_fixture_wait_all(&e->f);
    assert_true(pair.from.pts == 0 && incoming.to.pts == 0 && grave.from.pts == 0);
    assert_false(pair.attempt);

    struct dm_key keys[3];
    assert_true(dm_key_parse("ann|far|20|1|1", &keys[0]));
    assert_true(dm_key_parse("ann|far|21|1|2", &keys[1]));
    assert_true(dm_key_parse("ann|far|23|1|5", &keys[2]));
    e->f.pending = 1;
    store_delivery_statuses(e->f.store, keys, 3, on_statuses, e);
    store_fixture_wait_all(&e->f);
    assert_int_equal(e->n, 3);
    assert_true(e->status[0].known && e->status[0].delivered); /* by proof */
    assert_true(!e->status[1].known && !e->status[2].known);   /* old history has no row */

    const char *owners[] = {"ben", "ann"};
    e->f.pending = 1;
    store_tell_history(e->f.store, owners, 2, on_told, e);
    store_fixture_wait_all(&e->f);
    assert_int_equal(e->n, 1);
    assert_string_equal(e->last, "ann");
    e->f.pending = 1;
    store_tell_history(e->f.store, NULL, 0, on_told, e);
    store_fixture_wait_all(&e->f);
    assert_int_equal(e->n, 0);
}

/* --- marks --- */

static void on_marked(void *ctx, enum db_status st, const struct store_marked *m)
{
    struct env *e = ctx;
    e->marked = *m;
    e->flag = m->last != NULL;
    COPY(e->last, m->last);
    store_fixture_answered(&e->f, st);
}

static void test_marks(void **state)
{
    struct env *e = *state;
    put(e, "ben", &(struct store_setting){.name = "s", .value = "v", .time_ms = 1}, 1, "twin");
    e->f.pending = 1;
    store_mark_unsynced(e->f.store, "ben", on_marked, e);
    store_fixture_wait_all(&e->f);
    assert_true(e->marked.settings == 1 && e->marked.dms == 0 && !e->flag);
    e->f.pending = 1;
    store_mark_all_unsynced(e->f.store, "", 1, on_marked, e);
    store_fixture_wait_all(&e->f);
    assert_true(e->marked.users == 1 && e->flag);
    assert_string_equal(e->last, "ann");
    e->f.pending = 1;
    store_mark_all_unsynced(e->f.store, "ann", 5, on_marked, e);
    store_fixture_wait_all(&e->f);
    assert_true(e->marked.users == 1 && e->marked.settings == 1 && !e->flag);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, store_fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_settings),
        TEST(test_pages),
        TEST(test_pulled),
        TEST(test_marks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
