/*
 * Look-ups of users at other servers: whom to ask, and keeping what they answer (tables users,
 * user_keys, user_access_servers_current, sync_servers).
 */
#ifndef SHINE_STORE_LOOKUPS_H
#define SHINE_STORE_LOOKUPS_H

#include "store/profiles.h"

enum store_place_kind {
    STORE_PLACE_HOME,    /* an access server of the user, as recorded here; no partner */
    STORE_PLACE_PARTNER, /* a server in sync_servers */
    STORE_PLACE_SENDER   /* the server that wants the user known here; neither of the above */
};
/* A server to ask. */
struct store_place {
    struct store_route route;
    enum store_place_kind kind;
    bool home; /* an access server of the user, as recorded here */
};
/* The servers that may know `login`, in the order to ask them; at most 32 partners, none that is
 * blocked, and never this one. `sender` "" = none. `rows` is valid during the callback. */
typedef void (*store_places_cb)(void *ctx, enum db_status st, const struct store_place *rows,
                                size_t n);
void store_look_up_places(struct store *s, const char *login, const char *sender,
                          store_places_cb cb, void *ctx);

enum store_import {
    STORE_IMPORT_KEPT,
    STORE_IMPORT_NOT_NEEDED, /* a local record, or one that this source has no say in */
    STORE_IMPORT_OTHER_KEY,  /* ours stays; the other one is noted for the operator */
    STORE_IMPORT_NOT_BELIEVED
};
/* Keep what `from` answered about a user. `user->source` is "partner", or "provisional" for the
 * word of a server that is none. `profile`: the user's signed profile, whose signatures the caller
 * has checked and whose servers `user` names; NULL = none came. `changed`: the record is not what
 * it was before. */
typedef void (*store_import_cb)(void *ctx, enum db_status st, enum store_import verdict,
                                bool changed);
void store_import_user(struct store *s, const struct store_user *user,
                       const struct store_profile *profile, const char *from, store_import_cb cb,
                       void *ctx);

#endif
