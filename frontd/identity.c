/*
 * Which server a caller is: what it said, and whether that is believed.
 *
 * Raises: none; who is not believed is nobody.
 */
#include "frontd/session_internal.h"

#include <string.h>

#include "util/mem.h"

const char *session_peer(const struct session *s)
{
    return s->peer[0] ? s->peer : NULL;
}

void session_set_peer(struct session *s, const char *server_login)
{
    size_t n = strlen(server_login);
    shine_assert(n < sizeof s->peer);
    memcpy(s->peer, server_login, n + 1);
}

bool frontd_peer_key_known(const struct frontd *f, const char *server_login)
{
    if (!partners_loaded(f->partners))
        return true;
    const struct partner *p = partners_find(f->partners, server_login);
    return p && p->n_keys > 0;
}

/* Its word is enough: no key is known that would have to be proven. Nobody else is us. */
static bool trusted_unproven(const struct frontd *f, const char *login)
{
    if (strcmp(login, f->server_login) == 0 || frontd_peer_key_known(f, login))
        return false;
    const struct partner *p = partners_find(f->partners, login);
    return !p || !p->blocked;
}

bool session_peer_believed(const struct session *s)
{
    return s->peer[0] && trusted_unproven(s->all->f, s->peer);
}

const char *frontd_source_of(struct rpc_call *call, const char *source_server_login)
{
    const struct session *s = session_of(call);
    if (session_peer(s))
        return session_peer_believed(s) ? session_peer(s) : NULL;
    /* A connection of a user is no server's. */
    if (!source_server_login || !dm_server_login_valid(source_server_login) || session_login(s))
        return NULL;
    return trusted_unproven(frontd_of(call), source_server_login) ? source_server_login : NULL;
}
