/*
 * Shared by import.c and lookup.c; not for others.
 *
 * import.c decides whether a look-up begins, and remembers what came of it; lookup.c is one look-up
 * from its beginning to its end.
 */
#ifndef SHINE_DIRECTORY_IMPORT_INTERNAL_H
#define SHINE_DIRECTORY_IMPORT_INTERNAL_H

#include "directory/import.h"
#include "util/list.h"

#define IMPORT_KEY_MAX (DM_LOGIN_MAX + 1 + SHINE_SERVER_LOGIN_MAX + 3)

/* Look-ups that may begin, in thousandths. */
struct import_bucket {
    int64_t tokens, at_ms;
};

struct importer {
    uv_loop_t *loop;
    struct store *store;
    struct peer_pool *peers;
    struct import_limits limits;
    bool stopped;
    struct map *running;    /* lookups by key */
    struct map *remembered; /* by key */
    struct list memories;   /* in the order in which they were made */
    struct import_bucket buckets[IMPORT_KINDS];
    unsigned n_running[IMPORT_KINDS];
    struct list later; /* waiters whose answer was known when they asked */
    uv_timer_t timer;  /* tells them */
};

struct import_waiter {
    struct list link;
    import_cb cb;
    void *ctx;
    enum import_result result; /* on `later` */
};

struct lookup;
/* Begin a look-up that import.c has entered into `running` under `key`; its waiters follow. */
struct lookup *lookup_new(struct importer *im, const char *key, const char *login,
                          const char *sender, enum import_kind kind);
void lookup_join(struct lookup *l, struct import_waiter *w);

/* A look-up has ended: forget it as a running one, and remember what came of it. */
void import_ended(struct importer *im, const char *key, enum import_kind kind,
                  enum import_result r);

#endif
