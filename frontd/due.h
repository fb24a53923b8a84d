/*
 * Tells deliveryd that something may be due: a row that was handed over, one that a server brought,
 * an item for a second server. A hint, coalesced; deliveryd's own tick finds what was not told.
 */
#ifndef SHINE_FRONTD_DUE_H
#define SHINE_FRONTD_DUE_H

#include <uv.h>

#include "store/store.h"

struct due;

/* `store` is borrowed. Freed by due_free(). */
struct due *due_new(uv_loop_t *loop, struct store *store);
void due_free(struct due *d);
/* At the end of the turn; at most every 50 ms. */
void due_tell(struct due *d);

#endif
