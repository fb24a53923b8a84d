/*
 * The store's profiles and look-ups against a private PostgreSQL: what C hands over arrives, what
 * comes back is decoded. The rules themselves are tested in tests/sql.
 */
#include "db/listen.h"
#include "store/lookups.h"
#include "support_store.h"
#include "util/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* --- waiting for one callback --- */

struct seen {
    struct store_answer a;
    int verdict;
    bool changed;
    struct store_published published;
    struct store_user user;
    char enc_key[64], profile[64], source[16], payload[64];
    size_t n_keys;
    uint8_t keys[2][DM_KEY_BYTES];
};

static void on_added(void *ctx, enum db_status st, enum store_add v)
{
    struct seen *s = ctx;
    store_answer_note(&s->a, st);
    s->verdict = (int)v;
}

static void on_published(void *ctx, enum db_status st, const struct store_published *r)
{
    struct seen *s = ctx;
    store_answer_note(&s->a, st);
    s->published = *r;
}

static void on_imported(void *ctx, enum db_status st, enum store_import v, bool changed)
{
    struct seen *s = ctx;
    store_answer_note(&s->a, st);
    s->verdict = (int)v;
    s->changed = changed;
}

static void on_user(void *ctx, enum db_status st, const struct store_user *u)
{
    struct seen *s = ctx;
    store_answer_note(&s->a, st);
    assert_non_null(u);
    s->user = *u;
    (void)snprintf(s->enc_key, sizeof s->enc_key, "%s", u->enc_key ? u->enc_key : "");
    (void)snprintf(s->profile, sizeof s->profile, "%s", u->profile ? u->profile : "");
    (void)snprintf(s->source, sizeof s->source, "%s", u->source);
}

static void on_keys(void *ctx, enum db_status st, const uint8_t (*keys)[DM_KEY_BYTES], size_t n)
{
    struct seen *s = ctx;
    store_answer_note(&s->a, st);
    s->n_keys = n;
    for (size_t i = 0; i < n && i < 2; i++)
        memcpy(s->keys[i], keys[i], DM_KEY_BYTES);
}

static void on_done(void *ctx, enum db_status st)
{
    struct seen *s = ctx;
    store_answer_note(&s->a, st);
}

static void on_notify(void *ctx, const char *payload)
{
    struct seen *s = ctx;
    store_answer_note(&s->a, DB_OK);
    (void)snprintf(s->payload, sizeof s->payload, "%s", payload ? payload : "connected");
}

static struct store_user uma(const char *one, const char *two)
{
    struct store_user u = {.login = "uma", .source = "local"};
    memset(u.client_key, 7, sizeof u.client_key);
    const char *const names[] = {one, two};
    for (unsigned i = 0; i < 2 && names[i]; i++) {
        u.n_servers++;
        (void)snprintf(u.servers[i].login, sizeof u.servers[i].login, "%s", names[i]);
        (void)snprintf(u.servers[i].url, sizeof u.servers[i].url, "wss://%s/ws", names[i]);
    }
    return u;
}

static void add(struct store_fixture *e, const struct store_user *u)
{
    struct seen s = {0};
    store_add_user(e->store, u, on_added, &s);
    store_fixture_wait(e, &s.a);
}

static struct seen get(struct store_fixture *e)
{
    struct seen s = {0};
    store_get_user(e->store, "uma", on_user, &s);
    store_fixture_wait(e, &s.a);
    return s;
}

static struct store_published publish(struct store_fixture *e, const struct store_user *u,
                                      const struct store_profile *p, int64_t max_future_ms)
{
    struct seen s = {0};
    store_publish_profile(e->store, u, p, max_future_ms, on_published, &s);
    store_fixture_wait(e, &s.a);
    return s.published;
}

/* --- tests --- */

static void a_profile_is_kept_with_all_it_says(void **state)
{
    struct store_fixture *e = *state;
    struct store_user u = uma("home", "second");
    struct store_profile p = {
        .time_ms = 5, .record = "{\"as\":\"sent\"}", .enc_key = "K", .enc_key_sig = "S"};
    memset(p.signature, 0xff, sizeof p.signature);
    assert_int_equal(STORE_PROFILE_NO_USER, publish(e, &u, &p, -1).verdict);
    add(e, &u);
    struct store_user moved = uma("third", "home");
    struct store_published r = publish(e, &moved, &p, -1);
    assert_int_equal(STORE_PROFILE_APPLIED, r.verdict);
    assert_false(r.provisional);
    assert_int_equal(2, r.n);
    assert_string_equal("second", r.readers[0].login);
    assert_string_equal("wss://second/ws", r.readers[0].url);
    assert_string_equal("third", r.readers[1].login);
    struct seen s = get(e);
    assert_string_equal("third", s.user.servers[0].login);
    assert_string_equal("{\"as\":\"sent\"}", s.profile);
    assert_string_equal("K", s.enc_key);

    assert_int_equal(STORE_PROFILE_NOT_NEWER, publish(e, &u, &p, -1).verdict);
    assert_int_equal(0, publish(e, &u, &p, -1).n);
    p.time_ms = DM_INT_MAX;
    assert_int_equal(STORE_PROFILE_TOO_EARLY, publish(e, &u, &p, 1000).verdict);
    moved.client_key[0]++;
    assert_int_equal(STORE_PROFILE_OTHER_KEY, publish(e, &moved, &p, -1).verdict);
    assert_int_equal(STORE_PROFILE_APPLIED, publish(e, &u, &p, -1).verdict);
}

static void a_record_may_bring_one(void **state)
{
    struct store_fixture *e = *state;
    struct seen s = {0};
    struct store_user u = uma("far", NULL);
    u.source = "partner";
    store_import_user(e->store, &u, NULL, "far", on_imported, &s);
    store_fixture_wait(e, &s.a);
    assert_int_equal(STORE_IMPORT_KEPT, s.verdict);
    assert_true(s.changed);
    assert_string_equal("", get(e).profile);

    struct store_profile p = {.time_ms = 5, .record = "R"};
    struct store_user moved = uma("home", NULL);
    moved.source = "provisional"; /* who tells it does not matter */
    s = (struct seen){0};
    store_import_user(e->store, &moved, &p, "stranger", on_imported, &s);
    store_fixture_wait(e, &s.a);
    assert_int_equal(STORE_IMPORT_KEPT, s.verdict);
    assert_true(s.changed);
    assert_string_equal("R", get(e).profile);
    s = (struct seen){0};
    store_import_user(e->store, &moved, &p, "stranger", on_imported, &s);
    store_fixture_wait(e, &s.a);
    assert_false(s.changed);
}

static void earlier_keys_are_told(void **state)
{
    struct store_fixture *e = *state;
    struct seen s = {0};
    struct store_user u = uma("s", NULL);
    u.source = "provisional";
    store_import_user(e->store, &u, NULL, "s", on_imported, &s);
    store_fixture_wait(e, &s.a);
    pg_exec(e->pg, "UPDATE user_keys SET from_ms = from_ms - 1000");
    memset(u.client_key, 8, sizeof u.client_key);
    u.source = "partner";
    s = (struct seen){0};
    store_import_user(e->store, &u, NULL, "p", on_imported, &s);
    store_fixture_wait(e, &s.a);
    s = (struct seen){0};
    store_get_keys(e->store, "uma", on_keys, &s);
    store_fixture_wait(e, &s.a);
    assert_int_equal(2, s.n_keys);
    assert_int_equal(8, s.keys[0][0]);
    assert_int_equal(7, s.keys[1][31]);
    s = (struct seen){0};
    store_get_keys(e->store, "nobody", on_keys, &s);
    store_fixture_wait(e, &s.a);
    assert_int_equal(0, s.n_keys);
}

static void a_confirmed_record_is_young(void **state)
{
    struct store_fixture *e = *state;
    struct store_user u = uma("home", NULL);
    add(e, &u);
    pg_exec(e->pg, "UPDATE users SET refreshed_at_ms = refreshed_at_ms - 1000000");
    assert_true(get(e).user.age_ms >= 1000000);
    store_confirm_user(e->store, "uma");
    struct seen s;
    do /* nobody waits for it, and it may go over another connection */
        s = get(e);
    while (s.user.age_ms >= 1000000);
}

static void every_process_hears_of_a_change(void **state)
{
    struct store_fixture *e = *state;
    struct seen told = {0}, heard = {0};
    struct db_listener *l =
        db_listen(&e->loop, pg_conninfo(e->pg), "shine_events", on_notify, &heard);
    assert_true(run_until(&e->loop, store_answer_came, &heard.a));
    assert_string_equal("connected", heard.payload);
    heard.a.calls = 0;
    store_tell_user_changed(e->store, "uma", on_done, &told);
    store_fixture_wait(e, &told.a);
    assert_true(run_until(&e->loop, store_answer_came, &heard.a));
    assert_string_equal("~uma", heard.payload);
    heard.a.calls = 0;
    store_tell_user_changed(e->store, "vera", NULL, NULL);
    assert_true(run_until(&e->loop, store_answer_came, &heard.a));
    assert_string_equal("~vera", heard.payload);
    db_listener_close(l);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, store_fixture_setup, store_fixture_teardown)
    const struct CMUnitTest tests[] = {
        T(a_profile_is_kept_with_all_it_says),
        T(a_record_may_bring_one),
        T(earlier_keys_are_told),
        T(a_confirmed_record_is_young),
        T(every_process_hears_of_a_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
