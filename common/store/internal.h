/* Shared by the files of common/store; not for others. */
#ifndef SHINE_STORE_INTERNAL_H
#define SHINE_STORE_INTERNAL_H

#include "db/batch.h"
#include "store/messages.h"

#define STORE_ATTEMPTS_MAX 16

struct store {
    struct db_pool *pool;
    char *server_login;
    char *process_id;
    struct db_batcher *pairs, *incoming, *tombstones, *finishes;
    struct db_batcher *pulled_pairs, *pulled_incoming, *pulled_tombstones;
    struct db_batcher *pushes;
    int64_t schedule[STORE_ATTEMPTS_MAX]; /* of results and claims; none = the default */
    size_t n_schedule;
    char trim_after[DM_LOGIN_MAX + 1]; /* where housekeeping goes on */
};
/* The schedule as a parameter, NULL for the default. */
void store_add_schedule(const struct store *s, struct db_params *p);

/* A call with a callback: who waits for it. `cb` is the callback of the public function, cast back
 * by the handler that knows its type. */
struct store_wait {
    const struct db_stmt *stmt;
    void (*cb)(void);
    void *ctx;
};
/* Send `stmt`; `handler` gets a store_wait as its context, and frees it. */
void store_call(struct store *s, const struct db_stmt *stmt, struct db_params *params,
                db_cb handler, void (*cb)(void), void *ctx);
/* Send `stmt`; nobody waits for the result. */
void store_forget(struct store *s, const struct db_stmt *stmt, struct db_params *params);

/* The status of a result, the only way to it: an error is logged with its SQLSTATE, and one that
 * passes is DB_UNAVAILABLE. */
enum db_status store_status(const struct db_result *res, const struct db_stmt *stmt);

/* Copy a text column; a value that does not fit is cut. */
void store_copy_text(char *out, size_t size, const struct db_result *res, int row, int col);

/* Two parameters: the logins and the addresses of `n` servers. */
void store_add_routes(struct db_params *p, const struct store_route *servers, unsigned n);

/* A state by its name; NONE for NULL. */
enum dm_state store_state_of(const struct db_result *res, int row, int col);

/* --- containers as parameters and results (copies.c) --- */

/* Copy number `which` of the message in `item`. */
typedef const struct store_copy *(*store_copy_of)(struct db_batch_item *item, size_t which);
/* Six arrays with one element per message, from its first copy: from, to, base key, type, time,
 * nonce. */
void store_add_messages(struct db_params *p, struct db_batch_item *const *items, size_t n,
                        store_copy_of copy);
/* Four arrays with `per` elements per message: both halves of the revision, hash, bytes. */
void store_add_copies(struct db_params *p, struct db_batch_item *const *items, size_t n, size_t per,
                      store_copy_of copy);
/* The last two of these four. */
void store_add_bytes(struct db_params *p, struct db_batch_item *const *items, size_t n, size_t per,
                     store_copy_of copy);
/* Three arrays with `per` elements per message, the bodies of receipts (0 for texts): time and
 * nonce of what was read, read time. All empty if no message is a receipt. */
void store_add_receipts(struct db_params *p, struct db_batch_item *const *items, size_t n,
                        size_t per, store_copy_of copy);

/* Columns `verdict`, `pts` and `elsewhere` (by name), `route1` to `url2` of a row. */
enum store_verdict store_verdict_of(const struct db_result *res, int row);
struct store_told store_told_of(const struct db_result *res, int row, const char *pts,
                                const char *elsewhere);
/* Returns how many routes there are. */
unsigned store_routes_of(const struct db_result *res, int row, struct store_route out[2]);

/* A text as history pages and the list of conversations show it; texts point into the result. */
struct store_history_item store_history_item_of(const struct db_result *res, int row);

/* A setting from columns `name`, `value`, `time_ms`, `signature`; texts point into the result. */
struct store_setting;
void store_setting_of(const struct db_result *res, int row, struct store_setting *out);

/* For the skipping form of a grouped statement (db/batch.h): STORE_SKIP_FROM sets for its
 * transaction that take_heads() does not wait, and the function's first argument depends on it, so
 * that the setting is made before the call. */
#define STORE_SKIP_FROM "(SELECT set_config('shine.heads', 'skip', true) AS mode OFFSET 0) s"
#define STORE_SKIP_ARG1 "CASE WHEN s.mode <> '' THEN $1::text END"

/* Batch kinds, each beside its build and done functions. */
extern const struct db_batch_kind store_pair_kind, store_incoming_kind, store_tombstone_kind,
    store_finish_kind, store_push_kind, store_pulled_pair_kind, store_pulled_incoming_kind,
    store_pulled_tombstone_kind;

#endif
