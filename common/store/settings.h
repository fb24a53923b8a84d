/*
 * Settings of users (table user_settings): one signed record per name, the newest time wins, a
 * deleted one stays with an empty value.
 */
#ifndef SHINE_STORE_SETTINGS_H
#define SHINE_STORE_SETTINGS_H

#include "dm/setting.h"
#include "store/messages.h"

struct store_setting {
    const char *name, *value;
    int64_t time_ms;
    uint8_t sig[DM_SIG_BYTES];
};

enum store_setting_verdict {
    STORE_SETTING_OK, /* stored, or a newer one is: either way it need not come again */
    STORE_SETTING_NOT_SERVED,
    STORE_SETTING_TIME_AHEAD,
    STORE_SETTING_TOO_MANY
};
struct store_setting_result {
    enum store_setting_verdict verdict;
    struct store_told told; /* the owner's event; pts 0 = nothing changed */
};
struct store_new_settings {
    const char *login;
    const struct store_setting *items; /* verified before */
    size_t n;
    const char *source;    /* the server that brought them; NULL = the user's client, with the rules
                              for clients: */
    int64_t max_future_ms; /* of a time against now_ms(); servers always 24 h */
    unsigned max_count;    /* settings of one user, deleted ones not counted */
};
/* `rows`: one per item, in order. Everything is borrowed for the call only. */
typedef void (*store_settings_put_cb)(void *ctx, enum db_status st,
                                      const struct store_setting_result *rows, size_t n);
void store_put_settings(struct store *s, const struct store_new_settings *p,
                        store_settings_put_cb cb, void *ctx);

struct store_settings_query {
    const char *login;
    const char *const *names; /* only these; NULL = all */
    size_t n_names;
    const char *after; /* in order of names; "" = from the first */
    unsigned limit;
    int64_t max_bytes; /* of values; at least one setting is always returned */
};
/* By name. `rows` is valid during the callback. */
typedef void (*store_settings_cb)(void *ctx, enum db_status st, const struct store_setting *rows,
                                  size_t n, bool more);
void store_get_settings(struct store *s, const struct store_settings_query *q, store_settings_cb cb,
                        void *ctx);

#endif
