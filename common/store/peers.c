/*
 * Other servers, as the connection pool of a process sees them. See peers.h.
 *
 * Raises: errors of the database are handed to the caller (environment).
 */
#include "store/peers.h"

#include <stdlib.h>

#include "store/internal.h"
#include "util/mem.h"

static const struct db_stmt PARTNERS = {"partner_servers", "SELECT * FROM partner_servers()"};

static void on_partners(void *ctx, const struct db_result *res)
{
    struct store_wait *w = ctx;
    store_partners_cb cb = (store_partners_cb)w->cb;
    enum db_status st = store_status(res, w->stmt);
    size_t n = st == DB_OK ? (size_t)db_rows(res) : 0;
    struct store_partner *rows = xcalloc(n, sizeof *rows);
    for (size_t i = 0; i < n; i++) {
        int r = (int)i;
        rows[i].login = db_text(res, r, db_col(res, "server_login"));
        rows[i].url = db_text(res, r, db_col(res, "url"));
        rows[i].public_keys = db_text(res, r, db_col(res, "public_keys"));
        rows[i].blocked = db_bool(res, r, db_col(res, "blocked"));
    }
    cb(w->ctx, st, rows, n);
    free(rows);
    free(w);
}

void store_read_partners(struct store *s, store_partners_cb cb, void *ctx)
{
    store_call(s, &PARTNERS, db_params_new(), on_partners, (void (*)(void))cb, ctx);
}
