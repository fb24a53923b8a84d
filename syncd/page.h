/*
 * Shared by page.c (a page from its texts to the database), page_read.c (what the texts are) and
 * page_proofs.c (what the other server says about deliveries). Not for anybody else.
 */
#ifndef SHINE_SYNCD_PAGE_H
#define SHINE_SYNCD_PAGE_H

#include "store/tombstones.h"
#include "syncd/syncd.h"

enum page_kind { PAGE_PAIR, PAGE_INCOMING, PAGE_TOMBSTONE };

struct page_item {
    struct page *page;
    const char *sync_id; /* in page->items */
    enum page_kind kind;
    unsigned n; /* blobs */
    struct store_copy copy[2];
    uint8_t *blob[2];
    const char *reason; /* why it is refused; NULL = not */
    bool later;         /* it cannot be judged now */
    bool proof;         /* the other server says that it is delivered */
    union {
        struct store_pair pair;
        struct store_incoming incoming;
        struct store_tombstone tombstone;
    } req;
};

/* Somebody in the page. */
struct page_user {
    struct page *page;
    char login[DM_LOGIN_MAX + 1];
    bool author, unknown, unavailable;
    uint8_t (*keys)[DM_KEY_BYTES]; /* of authors */
    size_t n_keys;
};

/* A part of the page whose signatures are checked by one thread. */
struct page_slice {
    uv_work_t work;
    struct page *page;
    size_t begin, end;
};

#define PAGE_SLICES 4

struct page {
    struct page_slice slices[PAGE_SLICES];
    struct turn *t;
    json_t *items;
    size_t n;
    struct page_item *item;
    struct map *users; /* login -> struct page_user */
    struct map *told;  /* owners who have new events; values mean nothing */
    size_t open;       /* look-ups or writes under way */
    size_t asked;      /* page_proofs.c: items asked about so far */
};

/* True if nothing is known yet that keeps the item from being stored. */
static inline bool page_item_good(const struct page_item *it)
{
    return !it->reason && !it->later;
}
/* Read an item; one that is wrong gets its reason. false: it is no item at all. */
bool page_read_item(struct page *p, struct page_item *it, const json_t *json);
/* Ask the other server about every good item whose delivery it may know of; page_proven() follows.
 * If it does not answer, the turn has failed. */
void page_prove(struct page *p);
void page_proven(struct page *p);

#endif
