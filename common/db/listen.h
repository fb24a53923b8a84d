/*
 * One LISTEN connection with its own watchdog. A notification is a hint: it may be lost, doubled or
 * late, so whoever uses it also polls. The connection proves itself by a self-addressed
 * notification at start, after each reconnect and every 10 s; one that does not come back within 5
 * s is replaced. After each (re)connect the callback is called once with payload NULL: whatever
 * happened meanwhile was missed.
 */
#ifndef SHINE_DB_LISTEN_H
#define SHINE_DB_LISTEN_H

#include <uv.h>

struct db_listener;

/* `channel` is a plain lower-case identifier. `payload` is valid during the call. */
typedef void (*db_notify_cb)(void *ctx, const char *payload);

/* LISTEN on a connection of its own, until db_listener_close(). `conninfo` and `channel` are
 * copied; the callback never comes from inside this function. */
struct db_listener *db_listen(uv_loop_t *loop, const char *conninfo, const char *channel,
                              db_notify_cb cb, void *ctx);
/* The same with other times than the defaults. */
struct db_listener_times {
    unsigned probe_every_ms;
    unsigned probe_timeout_ms;
};
#define DB_LISTENER_TIMES_DEFAULT ((struct db_listener_times){10000, 5000})
struct db_listener *db_listen_timed(uv_loop_t *loop, const char *conninfo, const char *channel,
                                    db_notify_cb cb, void *ctx,
                                    const struct db_listener_times *times);
/* No callback comes afterwards; may be called from inside one. Freed by the loop soon after. */
void db_listener_close(struct db_listener *l);

#endif
