/*
 * How many calls may be open to one server at a time, and who waits for room.
 *
 * The bound of a server follows what its calls come to, as TCP's window does: it begins at a tenth
 * of the largest, grows by one with every prompt answer, and falls back to the beginning when a
 * call fails or is asked to wait. So a server that swallows requests holds few of our places, and
 * one that works soon gets all it can use.
 *
 * Whoever finds no room may wait a short while for it; the waiters of one server are served in
 * order, and nobody passes them.
 */
#ifndef SHINE_DELIVERY_BOUNDS_H
#define SHINE_DELIVERY_BOUNDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "util/list.h"

struct delivery_bounds;

struct delivery_bounds_config {
    unsigned max_per_peer; /* >= 1 */
    unsigned max_waiting;  /* of all servers together */
    unsigned wait_ms;      /* so long waits one at most */
};

/* Embedded in what waits; `go` comes once, from the loop. In time, there is room for one call,
 * which is to be begun inside of it: whoever waits next is asked right afterwards, and until then
 * the server counts as full. */
struct delivery_waiter {
    struct list link;
    int64_t until_ms;
    void (*go)(struct delivery_waiter *w, bool in_time);
};

/* Without calls or waiters; freed by delivery_bounds_free(), when there are none again. */
struct delivery_bounds *delivery_bounds_new(uv_loop_t *loop,
                                            const struct delivery_bounds_config *cfg);
void delivery_bounds_free(struct delivery_bounds *b);
/* From now on nobody waits: those who do are told that their time is over. */
void delivery_bounds_stop(struct delivery_bounds *b);

/* True if a call to the server `login` has to wait or to be left out. */
bool delivery_bounds_full(const struct delivery_bounds *b, const char *login);
/* A call begins, whether there is room or not; each is ended once. `prompt`: it was answered, and
 * not with a request to wait. */
void delivery_bounds_begin(struct delivery_bounds *b, const char *login);
void delivery_bounds_end(struct delivery_bounds *b, const char *login, bool prompt);
/* Wait for room at `login`; false if too many wait already, or after the stop. */
bool delivery_bounds_wait(struct delivery_bounds *b, const char *login, struct delivery_waiter *w);

/* Logins of servers without room, at most `max` of them; valid until the next call to this module.
 * Returns how many. */
size_t delivery_bounds_list_full(const struct delivery_bounds *b, const char **out, size_t max);
/* How many wait. */
unsigned delivery_bounds_waiting(const struct delivery_bounds *b);
/* Called from inside delivery_bounds_end() when a server that had no room has some: only take note
 * of it there. */
void delivery_bounds_on_room(struct delivery_bounds *b, void (*cb)(void *ctx), void *ctx);

#endif
