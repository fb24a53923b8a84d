/* Drawn containers for the tests of common/dm. The same seed gives the same values everywhere. */
#ifndef SHINE_TEST_SUPPORT_DM_H
#define SHINE_TEST_SUPPORT_DM_H

#include "dm/container.h"

#define DM_TEST_BODY 300

/* A number below `n` (n > 0); *rnd is the generator and must not be 0. */
uint64_t dm_draw(uint64_t *rnd, uint64_t n);
/* A legal time, often at one of the two ends. */
int64_t dm_draw_time(uint64_t *rnd);
/* A legal container of any type; its body is written to `body`, `sig` is NULL. */
struct dm_container dm_draw_container(uint64_t *rnd, uint8_t body[DM_TEST_BODY]);

#endif
