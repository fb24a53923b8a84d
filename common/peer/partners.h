/*
 * The partner servers of table sync_servers, in the memory of a process: read at once, and again
 * every `refresh_ms`. A row that cannot be used (its login or URL is not one) is left out with a
 * warning. While the database is away, what was read last holds.
 */
#ifndef SHINE_PEER_PARTNERS_H
#define SHINE_PEER_PARTNERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "store/store.h"

#define PARTNER_KEYS_MAX 4
#define PARTNER_KEY_LEN  32

struct partner {
    char login[SHINE_SERVER_LOGIN_MAX + 1];
    char url[SHINE_URL_MAX + 1];
    bool blocked;    /* nothing is sent to it or accepted from it */
    unsigned n_keys; /* Ed25519 keys it may prove; 0 = none is known. The first ones of the row that
                        are keys */
    uint8_t keys[PARTNER_KEYS_MAX][PARTNER_KEY_LEN];
};

struct partners;

/* Read the table now and every `refresh_ms` (30 s); a first read that fails is repeated sooner.
 * `store` must live until the close callback. Ended by partners_close(). */
struct partners *partners_new(uv_loop_t *loop, struct store *store, uint32_t refresh_ms);
/* True once the table has been read. Until then nobody is known to be a partner, or blocked. */
bool partners_loaded(const struct partners *p);
/* The partner with this login, NULL if there is none. Valid until control returns to the loop. */
const struct partner *partners_find(const struct partners *p, const char *login);
/* Visit all, in no particular order: `size_t it = 0; while ((one = partners_next(p, &it))) …` */
const struct partner *partners_next(const struct partners *p, size_t *it);
/* Read now; if a read is under way, once more after it. A hint, for who knows that the table has
 * changed. */
void partners_refresh(struct partners *p);
/* Call `cb` after each successful read. One watcher; NULL takes it away. */
void partners_watch(struct partners *p, void (*cb)(void *ctx), void *ctx);
/* Stop reading. Nothing may be asked afterwards; `on_closed` (may be NULL) follows when all is
 * freed, which is not before the read under way has ended. */
void partners_close(struct partners *p, void (*on_closed)(void *ctx), void *ctx);

#endif
