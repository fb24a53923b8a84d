/*
 * One page of settings: keys of the owner, signatures (on the thread pool), into the database some
 * at a time.
 *
 * Grades of failure: environment (the turn ends, or the item is noted as refused).
 */
#include <stdlib.h>
#include <string.h>

#include "store/profiles.h"
#include "store/sessions.h"
#include "syncd/syncd.h"
#include "util/base64.h"
#include "util/mem.h"

enum { AT_ONCE = 50 };

struct entry {
    const char *sync_id;
    struct store_setting setting;
    const char *reason; /* NULL = good so far */
};

struct job {
    uv_work_t work;
    struct turn *t;
    json_t *items; /* what the entries point into */
    size_t n, done;
    struct entry *entries; /* bad ones are moved out before storing */
    uint8_t (*keys)[DM_KEY_BYTES];
    size_t n_keys;
    bool told;
};

static void job_done(struct job *j)
{
    struct turn *t = j->t;
    const char *owner = t->id.owner;
    if (j->told)
        store_notify_events(t->s->store, &owner, 1);
    free(j->entries);
    free(j->keys);
    json_decref(j->items);
    free(j);
    t->storing = false;
    turn_step(t);
}

static void read_entry(const json_t *item, struct entry *e)
{
    const char *sig = json_string_value(json_object_get(item, "signatureB64"));
    const json_t *time = json_object_get(item, "timeMs");
    e->sync_id = json_string_value(json_object_get(item, "syncId"));
    e->setting.name = json_string_value(json_object_get(item, "name"));
    e->setting.value = json_string_value(json_object_get(item, "value"));
    e->setting.time_ms = json_integer_value(time);
    bool good = e->setting.name && dm_setting_name_valid(e->setting.name) && e->setting.value &&
                strlen(e->setting.value) <= DM_SETTING_VALUE_MAX && json_is_integer(time) &&
                e->setting.time_ms >= 0 && e->setting.time_ms <= DM_INT_MAX && sig &&
                base64_decode_exact(sig, e->setting.sig, sizeof e->setting.sig);
    e->reason = good ? NULL : "BAD_SETTING";
}

static void verify_work(uv_work_t *w)
{
    struct job *j = w->data;
    for (size_t i = 0; i < j->n; i++) {
        struct entry *e = &j->entries[i];
        const struct store_setting *s = &e->setting;
        bool ok = e->reason != NULL;
        for (size_t k = 0; k < j->n_keys && !ok; k++)
            ok = dm_setting_verify(j->t->id.owner, s->name, s->time_ms, s->value, s->sig,
                                   j->keys[k]);
        if (!ok)
            e->reason = "BAD_SIGNATURE";
    }
}

static void put_some(struct job *j);

static void on_put(void *ctx, enum db_status st, const struct store_setting_result *rows, size_t n)
{
    struct job *j = ctx;
    struct turn *t = j->t;
    if (st != DB_OK)
        turn_fail(t, TURN_FAILED, "database");
    for (size_t i = 0; i < n; i++) {
        j->told |= rows[i].told.pts > 0;
        if (rows[i].verdict == STORE_SETTING_OK) {
            turn_ack(t, j->entries[j->done + i].sync_id);
            t->settings++;
        } else if (rows[i].verdict == STORE_SETTING_TIME_AHEAD) {
            t->later++;
        } else {
            turn_fail(t, TURN_REFUSED, "not_served_here");
        }
    }
    j->done += n;
    put_some(j);
}

static void put_some(struct job *j)
{
    struct turn *t = j->t;
    size_t n = j->n - j->done;
    if (n == 0 || t->result > TURN_LATER) {
        job_done(j);
        return;
    }
    n = n < AT_ONCE ? n : AT_ONCE;
    struct store_setting settings[AT_ONCE];
    for (size_t i = 0; i < n; i++)
        settings[i] = j->entries[j->done + i].setting;
    struct store_new_settings p = {.login = t->id.owner,
                                   .items = settings,
                                   .n = n,
                                   .source = t->id.server.login,
                                   .max_count = INT32_MAX};
    store_put_settings(t->s->store, &p, on_put, j);
}

static void verify_done(uv_work_t *w, int status)
{
    struct job *j = w->data;
    struct turn_rejects rejects = {0};
    size_t good = 0;
    shine_assert(status == 0); /* never cancelled */
    for (size_t i = 0; i < j->n; i++) {
        struct entry *e = &j->entries[i];
        if (!e->sync_id)
            turn_fail(j->t, TURN_FAILED, "bad_page");
        else if (e->reason)
            turn_reject(j->t, &rejects, e->sync_id, e->reason);
        else
            j->entries[good++] = *e;
    }
    j->n = good;
    turn_note_rejects(j->t, &rejects);
    put_some(j);
}

static void on_keys(void *ctx, enum db_status st, const uint8_t (*keys)[DM_KEY_BYTES], size_t n)
{
    struct job *j = ctx;
    if (st != DB_OK) {
        turn_fail(j->t, TURN_FAILED, "database");
        job_done(j);
        return;
    }
    j->keys = xcalloc(n + 1, DM_KEY_BYTES);
    j->n_keys = n;
    if (n > 0)
        memcpy(j->keys, keys, n * DM_KEY_BYTES);
    j->work.data = j;
    shine_assert(uv_queue_work(j->t->s->loop, &j->work, verify_work, verify_done) == 0);
}

void settings_store(struct turn *t, json_t *items)
{
    struct job *j = xnew(struct job);
    j->t = t;
    j->items = json_incref(items);
    j->n = json_array_size(j->items);
    j->entries = xcalloc(j->n + 1, sizeof *j->entries);
    for (size_t i = 0; i < j->n; i++)
        read_entry(json_array_get(j->items, i), &j->entries[i]);
    store_get_keys(t->s->store, t->id.owner, on_keys, j);
}
