/*
 * Which server a caller is: what it said, and whether that is believed. See identity.h.
 *
 * Raises: none; who is not believed is nobody.
 */
#include "frontd/identity.h"

#include <stdlib.h>
#include <string.h>

#include "frontd/session_internal.h"
#include "peer/hello.h"
#include "util/base64.h"
#include "util/clock.h"
#include "util/mem.h"

#define CHALLENGE_MS 60000

enum claim_stage { CLAIM_SAID, CLAIM_CHALLENGED, CLAIM_PROOF };

struct session_claim {
    enum claim_stage stage;
    char login[SHINE_SERVER_LOGIN_MAX + 1];
    /* CHALLENGED, PROOF: as they enter the proof. */
    char nonce[PEER_NONCE_TEXT + 1], challenge[PEER_NONCE_TEXT + 1];
    char host[PEER_HOST_MAX + 1];
    int64_t expires_ms; /* CHALLENGED */
    uint8_t proof[DM_SIG_BYTES];
    /* PROOF: the last judgement, and the keys it was made with. */
    bool fits;
    unsigned n_keys;
    uint8_t keys[PARTNER_KEYS_MAX][PARTNER_KEY_LEN];
};

/* --- what it said --- */

void identity_free(struct session *s)
{
    free(s->claim);
    s->claim = NULL;
}

void identity_forget(struct session *s)
{
    identity_free(s);
}

const char *session_peer(const struct session *s)
{
    return s->claim ? s->claim->login : NULL;
}

void session_set_peer(struct session *s, const char *server_login)
{
    size_t n = strlen(server_login);
    identity_forget(s);
    s->claim = xnew(struct session_claim);
    shine_assert(n < sizeof s->claim->login);
    memcpy(s->claim->login, server_login, n + 1);
}

/* --- proofs --- */

const char *identity_challenge(struct session *s, const char *nonce, const char *host)
{
    struct session_claim *c = s->claim;
    shine_assert(c && strlen(nonce) < sizeof c->nonce && strlen(host) < sizeof c->host);
    memcpy(c->nonce, nonce, strlen(nonce) + 1);
    memcpy(c->host, host, strlen(host) + 1);
    peer_nonce_make(c->challenge);
    c->expires_ms = clock_mono_ms() + CHALLENGE_MS;
    c->stage = CLAIM_CHALLENGED;
    return c->challenge;
}

/* True if a proof was given that fits one of the partner's keys as they are now. */
static bool proof_fits(const struct session *s, struct session_claim *c, const struct partner *p)
{
    if (c->stage != CLAIM_PROOF)
        return false;
    if (c->n_keys == p->n_keys && memcmp(c->keys, p->keys, sizeof c->keys) == 0)
        return c->fits;
    const struct peer_meeting m = {.dialler = c->login,
                                   .answerer = s->all->f->server_login,
                                   .nonce = c->nonce,
                                   .challenge = c->challenge,
                                   .host = c->host};
    c->fits = false;
    for (unsigned i = 0; i < p->n_keys && !c->fits; i++)
        c->fits = peer_proof_fits(PEER_SIDE_DIAL, &m, c->proof, p->keys[i]);
    c->n_keys = p->n_keys;
    memcpy(c->keys, p->keys, sizeof c->keys);
    return c->fits;
}

static bool challenged_for(const struct session_claim *c, const char *login, const char *nonce,
                           const char *host)
{
    return c && c->stage == CLAIM_CHALLENGED && clock_mono_ms() < c->expires_ms &&
           strcmp(c->login, login) == 0 && strcmp(c->nonce, nonce) == 0 &&
           strcmp(c->host, host) == 0;
}

bool identity_prove(struct session *s, const char *login, const char *nonce, const char *host,
                    const char *proof)
{
    struct session_claim *c = s->claim;
    if (!challenged_for(c, login, nonce, host) ||
        !base64_decode_exact(proof, c->proof, sizeof c->proof)) {
        identity_forget(s);
        return false;
    }
    c->stage = CLAIM_PROOF;
    const struct partner *p = peer_auth_partner(s->all->f->auth, login);
    if (!p || p->n_keys == 0 || proof_fits(s, c, p))
        return true;
    identity_forget(s);
    return false;
}

void identity_refuse(struct session *s)
{
    session_close(s, SESSION_CLOSE_REFUSED, "the proof does not fit");
}

bool session_peer_proven(const struct session *s)
{
    const struct partner *p = s->claim ? peer_auth_partner(s->all->f->auth, s->claim->login) : NULL;
    return p && p->n_keys > 0 && proof_fits(s, s->claim, p);
}

/* --- who is believed --- */

bool frontd_peer_blocked(const struct frontd *f, const char *server_login)
{
    const struct partner *p = peer_auth_partner(f->auth, server_login);
    return p && p->blocked;
}

bool frontd_is_partner(const struct frontd *f, const char *server_login)
{
    return peer_auth_partner(f->auth, server_login) != NULL;
}

bool frontd_peer_key_known(const struct frontd *f, const char *server_login)
{
    if (!peer_auth_knows(f->auth))
        return true;
    const struct partner *p = peer_auth_partner(f->auth, server_login);
    return p && p->n_keys > 0;
}

/* Nobody who is blocked, and nobody is us; and until the table has been read, nobody. */
static bool may_be_believed(const struct frontd *f, const char *login)
{
    return peer_auth_knows(f->auth) && strcmp(login, f->server_login) != 0 &&
           !frontd_peer_blocked(f, login);
}

/* Its word is enough. */
static bool trusted_unproven(const struct frontd *f, const char *login)
{
    switch (peer_auth_trust(f->auth)) {
    case PEER_TRUST_PROOF:
        return false;
    case PEER_TRUST_KNOWN:
        return !frontd_peer_key_known(f, login);
    case PEER_TRUST_WORD:
        return true;
    }
    return false;
}

bool session_peer_believed(const struct session *s)
{
    const struct frontd *f = s->all->f;
    const char *login = session_peer(s);
    return login && may_be_believed(f, login) &&
           (trusted_unproven(f, login) || session_peer_proven(s));
}

const char *frontd_source_of(struct rpc_call *call, const char *source_server_login)
{
    const struct session *s = session_of(call);
    const struct frontd *f = frontd_of(call);
    if (session_peer(s))
        return session_peer_believed(s) ? session_peer(s) : NULL;
    /* A connection of a user is no server's. */
    if (!source_server_login || !dm_server_login_valid(source_server_login) || session_login(s))
        return NULL;
    return may_be_believed(f, source_server_login) && trusted_unproven(f, source_server_login)
               ? source_server_login
               : NULL;
}

bool frontd_caller_blocked(struct rpc_call *call, const char *source_server_login)
{
    const struct frontd *f = frontd_of(call);
    const char *peer = session_peer(session_of(call));
    return (peer && frontd_peer_blocked(f, peer)) ||
           (source_server_login && frontd_peer_blocked(f, source_server_login));
}
