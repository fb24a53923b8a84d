/*
 * Asking other servers about a user, and keeping what they say (table users). docs/operations.md,
 * "Users of other servers", has the rules as the operator sees them.
 *
 * Asked are, in parallel within a bound, the user's own access servers as recorded here and the
 * partners (sync_servers); then, if none of them knows the user, the server that wants them known,
 * if it is identified. Our requests never carry `lookup`, so that look-ups make no loops.
 *
 * Which answer counts: the first from a server that must know (an access server of the user, or one
 * that holds the record as its own) ends the look-up; copies wait a moment for such an answer. A
 * server that is no partner is heard about its own users only, and its word is provisional. What
 * may change in a record that exists is the store's business (import_record()).
 *
 * A profile that the user has signed is worth the same whoever tells it: the newest of those that
 * came by then is kept. A local record is compared with others for its sake alone.
 *
 * Garbage must not become a storm: look-ups of one login are joined, what nobody knew is not asked
 * again for a while, and look-ups are bounded in number and in rate. Beyond the bounds the answer
 * is "unavailable", never "no such user".
 */
#ifndef SHINE_DIRECTORY_IMPORT_H
#define SHINE_DIRECTORY_IMPORT_H

#include <stdbool.h>
#include <uv.h>

#include "peer/peer.h"
#include "store/lookups.h"

enum import_result {
    IMPORT_FOUND,      /* the table has the user now */
    IMPORT_NO_USER,    /* everybody was asked, and nobody knows the user */
    IMPORT_UNAVAILABLE /* nobody knows the user, but not everybody could be asked */
};

/* Why a look-up is made. The kinds are bounded and counted apart, so that strangers who send
 * garbage cannot stop users from being added and deliveries from finding their new route, nor what
 * goes on in the background stop either. */
enum import_kind {
    IMPORT_ON_SIGHT, /* the table does not have the login */
    IMPORT_FRESH,    /* somebody waits for news; asks even if it was asked a while ago */
    IMPORT_CONFIRM,  /* in the background, whether a record still holds: hears everybody out */
    IMPORT_KINDS
};

/* Bounds of one process. Times in ms. */
struct import_limits {
    unsigned max_running;    /* look-ups of one kind at once */
    unsigned per_second;     /* begun of one kind, lasting, */
    unsigned burst;          /* and at once after a quiet while */
    unsigned max_parallel;   /* servers asked at once in one look-up */
    uint32_t answer_ms;      /* for the answer of one server */
    uint32_t total_ms;       /* for the look-up */
    uint32_t copies_wait_ms; /* so long a copy waits for the word of a server that must know */
    int64_t missing_ms;      /* what nobody knew is not asked again for so long, */
    int64_t fresh_ms;        /* nor is what was looked up afresh, */
    int64_t unavailable_ms;  /* nor what could not be asked */
    size_t max_remembered;   /* such results */
};
extern const struct import_limits import_limits_default;

struct importer;
/* `store` and `peers` are borrowed. */
struct importer *import_new(uv_loop_t *loop, struct store *store, struct peer_pool *peers,
                            const struct import_limits *limits);
/* Ask nobody any more; to be called before the pool is closed. Look-ups under way end when the
 * calls do that are open. */
void import_stop(struct importer *im);
/* No look-up may be under way. */
void import_free(struct importer *im);

typedef void (*import_cb)(void *ctx, enum import_result r);
/* Look `login` up. `sender`: the server that wants the user known here, "" = none. Never
 * synchronous. A local user is not looked up on sight. */
void import_start(struct importer *im, const char *login, const char *sender, enum import_kind kind,
                  import_cb cb, void *ctx);

#endif
