/*
 * Processes register, give signs of life, and leave. See sessions.h.
 *
 * Raises: errors of the database are logged or handed to the caller (environment).
 */
#include "store/internal.h"
#include "store/sessions.h"

#include <stdlib.h>

static const struct db_stmt REGISTER = {
    "register_process", "SELECT register_process($1::text, $2::text, $3::text, $4::bigint)"};
static const struct db_stmt TOUCH = {
    "touch_process", "SELECT touch_process($1::text, $2::text, $3::text, $4::bigint)"};
static const struct db_stmt UNREGISTER = {"unregister_process",
                                          "SELECT unregister_process($1::text)"};

typedef void (*process_cb)(void *ctx, enum db_status st);

static void on_done(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    ((process_cb)w->cb)(w->ctx, store_status(res, w->stmt));
    free(w);
}

static struct db_params *process_params(const struct store *s, const char *kind, const char *host,
                                        int64_t pid)
{
    struct db_params *p = db_params_new();
    db_add_text(p, s->process_id);
    db_add_text(p, kind);
    db_add_text(p, host);
    db_add_int8(p, pid);
    return p;
}

void store_process_register(struct store *s, const char *kind, const char *host, int64_t pid,
                            process_cb cb, void *ctx)
{
    store_call(s, &REGISTER, process_params(s, kind, host, pid), on_done, (void (*)(void))cb, ctx);
}

void store_process_heartbeat(struct store *s, const char *kind, const char *host, int64_t pid)
{
    store_forget(s, &TOUCH, process_params(s, kind, host, pid));
}

void store_process_unregister(struct store *s, process_cb cb, void *ctx)
{
    struct db_params *p = db_params_new();
    db_add_text(p, s->process_id);
    store_call(s, &UNREGISTER, p, on_done, (void (*)(void))cb, ctx);
}
