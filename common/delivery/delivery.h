/*
 * One attempt to deliver: the recipient's current routes called in parallel, the first success
 * wins, the result is recorded with revision and row version. Used by frontd for the first attempt
 * and by deliveryd for the others.
 *
 * A route that says it does not serve the recipient is a sign that our routes are old: the
 * recipient is looked up afresh, once, the routes are read again, and those not called yet are
 * called within the same deadline.
 */
#ifndef SHINE_DELIVERY_DELIVERY_H
#define SHINE_DELIVERY_DELIVERY_H

#include "delivery/bounds.h"
#include "directory/directory.h"
#include "peer/peer.h"
#include "store/delivery.h"

struct delivery;

struct delivery_config {
    const char *server_login; /* sent as sourceServerLogin; copied */
    uint32_t max_in_flight;   /* attempts of this process; beyond it a row is handed over at once */
    struct directory *directory; /* looks recipients up afresh; NULL: only the table is read again.
                                    Borrowed */
    struct delivery_bounds *bounds; /* calls open to one server at once: a route at its bound is
                                       left out of an attempt. NULL = no such bound. Borrowed */
};

/* `store` and `peers` are borrowed and outlive it; freed by delivery_free(). */
struct delivery *delivery_new(uv_loop_t *loop, struct store *store, struct peer_pool *peers,
                              const struct delivery_config *cfg);
/* Attempts still under way go on until their peers' calls end; `on_idle` follows when none is left.
 */
void delivery_drain(struct delivery *d, void (*on_idle)(void *ctx), void *ctx);
void delivery_free(struct delivery *d);
/* Attempts that reached for a route and whose calls have not all ended, reported or not. */
unsigned delivery_in_flight(const struct delivery *d);

/* What an attempt needs; everything is copied. */
struct delivery_task {
    const char *from_login, *outgoing_key; /* of the delivery row; a tombstone's key is its own */
    int64_t revision_time_ms, reencrypted_at_ms, row_version;
    enum dm_type type;   /* of the blob, and so the operation that takes it: 1 and 3
                            ReceiveIncomingMessage, 5 DeleteMessage, 7 DeleteConversation */
    const uint8_t *blob; /* the incoming copy, or the tombstone */
    size_t blob_len;
    unsigned n_routes; /* 0 = a failed attempt: recorded as such */
    struct store_route routes[2];
    uint32_t deadline_ms; /* of the whole attempt, ending before the lease does */
    bool granted[2]; /* this route may be called although its server counts as full: the caller has
                        waited for it (bounds.h) */
    bool wait_dial;  /* the last chance: a server in back-off is not taken as tried, the call waits
                        for a dial that begins now or later */
    bool busy_is_a_try; /* 429 and 503 use the slot: so old a row must come to its end */
};

struct delivery_report {
    enum store_outcome outcome;
    const char *via;     /* who confirmed; "" = nobody */
    const char *reason;  /* for people: what each route came to; "" after a success */
    enum dm_state state; /* as recorded; ACCEPTED if the recording itself failed */
    bool recorded;
    struct store_told from; /* the sender's state event, for the pump */
};
/* Called exactly once (`r` is valid during the call), when the result is recorded (or could not
 * be), never synchronously. A second route that is still being called then goes on to its end
 * unobserved. */
typedef void (*delivery_cb)(void *ctx, const struct delivery_report *r);

/* Make one attempt at `t`, whose data is copied. */
void delivery_attempt(struct delivery *d, const struct delivery_task *t, delivery_cb cb, void *ctx);

#endif
