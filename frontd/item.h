/*
 * Messages as items of an answer, and how many of them fit into one. Pure.
 */
#ifndef SHINE_FRONTD_ITEM_H
#define SHINE_FRONTD_ITEM_H

#include <jansson.h>

#include "frontd/frontd.h"
#include "store/messages.h"

/* Items of one page, unless the request says less. */
#define ITEM_PAGE_MAX     200
#define ITEM_PAGE_DEFAULT 50

/* An item as docs/protocol.md, "Reading", lists its fields. New. */
json_t *item_json(const struct store_history_item *it);
/* null if `n` is negative. New. */
json_t *item_number_or_null(int64_t n);

/* How many bytes of blobs a page of *limit items may hold so that the answer stays within
 * limits.maxAnswerBytes, each item taking `extra` bytes beside what a message takes. At least 1; a
 * limit that would leave no room for blobs is lowered. */
int64_t item_page_room(const struct frontd *f, int64_t extra, int64_t *limit);

#endif
