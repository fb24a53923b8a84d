/*
 * When to claim: at once after a wake-up, when the next row becomes due, and every tick at the
 * latest, because wake-ups are hints. One claim at a time; a wake-up that comes meanwhile leads to
 * another one.
 */
#ifndef SHINE_DELIVERYD_PACER_H
#define SHINE_DELIVERYD_PACER_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "store/claims.h"

struct pacer;

/* Called from the loop when a claim is wanted. One that is begun ends with pacer_claimed(). */
enum pacer_begin {
    PACER_BEGUN,
    PACER_NO_ROOM,  /* for more work: tried again after news of room, or a little later */
    PACER_NOT_READY /* no database, or not the right one: tried again somewhat later */
};
typedef enum pacer_begin (*pacer_claim)(void *ctx);

/* The first claim follows at once. */
struct pacer *pacer_new(uv_loop_t *loop, int64_t tick_ms, pacer_claim claim, void *ctx);
void pacer_free(struct pacer *p);
/* No further claim is begun. */
void pacer_stop(struct pacer *p);
/* Claim soon. Cheap. */
void pacer_wake(struct pacer *p);
/* There is more room than before: a claim that found none is tried again. Cheap. */
void pacer_room(struct pacer *p);
/* The claim has ended; `c` as the store gave it (not read unless DB_OK). */
void pacer_claimed(struct pacer *p, enum db_status st, const struct store_claimed *c);
/* A claim is under way. */
bool pacer_claiming(const struct pacer *p);

#endif
