/*
 * ServerHello, as the side that was dialled.
 *
 *   first hello            who it says it is; if it brings a nonce, the answer has our proof and a
 *                          challenge
 *   second, with proofB64  the challenge is used up; a wrong proof ends the connection
 *
 * Raises: environment (answered).
 */
#include "daemon/settings.h"
#include "frontd/frontd.h"
#include "frontd/identity.h"
#include "frontd/ops.h"
#include "frontd/session.h"
#include "peer/hello.h"
#include "rpc/fields.h"
#include "util/log.h"

#include <string.h>

struct hello {
    const char *login, *nonce, *host; /* "" = not said */
    const char *proof;
    int64_t version;
};

static bool read_hello(struct rpc_call *call, struct hello *h)
{
    struct rpc_fields fields = rpc_fields_of(rpc_payload(call));
    *h = (struct hello){.nonce = "", .host = "", .proof = "", .version = PEER_PROTOCOL_VERSION};
    /* What the other side can do matters only for requests that we would make on this connection,
     * and we make none. A later version says so and is answered with ours. */
    if (!rpc_str(&fields, "serverLogin", SHINE_SERVER_LOGIN_MAX, &h->login) ||
        !rpc_int_opt(&fields, "protocolVersion", 1, DM_INT_MAX, &h->version) ||
        !rpc_str_opt(&fields, "helloNonce", PEER_NONCE_TEXT, &h->nonce) ||
        !rpc_str_opt(&fields, "dialledHost", PEER_HOST_MAX, &h->host) ||
        !rpc_str_opt(&fields, "proofB64", PEER_PROOF_TEXT, &h->proof)) {
        rpc_fail(call, RPC_BAD_FIELDS, fields.problem);
        return false;
    }
    const char *problem = NULL;
    if (!settings_server_login_valid(h->login))
        problem = "serverLogin is not a server login";
    else if (*h->nonce && !peer_nonce_valid(h->nonce))
        problem = "helloNonce must be the Base64 of 32 bytes";
    else if ((*h->nonce || *h->proof) && !*h->host)
        problem = "helloNonce and proofB64 need dialledHost";
    if (problem)
        rpc_fail(call, RPC_BAD_FIELDS, problem);
    return !problem;
}

/* True if the caller may say this here at all; otherwise the call was answered, and the connection
 * is nobody's. */
static bool may_say(struct rpc_call *call, const struct hello *h)
{
    const struct peer_auth *auth = frontd_of(call)->auth;
    const char *remote = session_remote(session_of(call));
    if (frontd_peer_blocked(frontd_of(call), h->login)) {
        log_warn("peer_hello_blocked", LOG_S("peer", h->login), LOG_S("remote", remote));
        identity_forget(session_of(call));
        rpc_fail(call, RPC_PEER_BLOCKED, "this server accepts nothing from that one");
        return false;
    }
    if (*h->host && peer_auth_has_hosts(auth) && !peer_auth_is_our_host(auth, h->host)) {
        log_warn("peer_hello_wrong_host", LOG_S("peer", h->login), LOG_S("remote", remote),
                 LOG_S("dialled", h->host));
        identity_forget(session_of(call));
        rpc_fail(call, RPC_WRONG_HOST,
                 "dialledHost is not an address of this server; its operator can add it");
        return false;
    }
    return true;
}

static json_t *answer_of(const struct frontd *f)
{
    return json_pack("{s:b, s:s, s:i, s:o}", "accepted", 1, "serverLogin", f->server_login,
                     "protocolVersion", PEER_PROTOCOL_VERSION, "capabilities",
                     peer_capabilities(f->auth));
}

static void first_hello(struct rpc_call *call, const struct hello *h)
{
    const struct frontd *f = frontd_of(call);
    struct session *s = session_of(call);
    json_t *payload = answer_of(f);
    session_set_peer(s, h->login);
    /* Without an address of our own we could not tell a hello that was meant for us. */
    if (*h->nonce && peer_auth_has_hosts(f->auth)) {
        const struct peer_meeting m = {
            .dialler = h->login,
            .answerer = f->server_login,
            .nonce = h->nonce,
            .challenge = identity_challenge(s, h->nonce, h->host),
            .host = h->host,
        };
        (void)json_object_set_new(payload, "challenge", json_string(m.challenge));
        if (peer_auth_has_key(f->auth)) {
            char proof[PEER_PROOF_TEXT + 1];
            peer_auth_prove(f->auth, PEER_SIDE_ANSWER, &m, proof);
            (void)json_object_set_new(payload, "proofB64", json_string(proof));
        }
    }
    log_info("peer_hello", LOG_S("peer", h->login), LOG_S("remote", session_remote(s)),
             LOG_I("version", h->version));
    rpc_reply(call, payload);
}

static void second_hello(struct rpc_call *call, const struct hello *h)
{
    struct session *s = session_of(call);
    if (identity_prove(s, h->login, h->nonce, h->host, h->proof)) {
        log_info("peer_hello_proof", LOG_S("peer", h->login), LOG_S("remote", session_remote(s)),
                 LOG_I("proven", session_peer_proven(s)));
        rpc_reply(call, answer_of(frontd_of(call)));
        return;
    }
    log_warn("peer_bad_proof", LOG_S("peer", h->login), LOG_S("remote", session_remote(s)));
    bool open = !session_is_closed(s); /* only then does it outlive the call */
    rpc_fail(call, RPC_BAD_SERVER_PROOF, "the proof does not fit");
    if (open)
        identity_refuse(s);
}

void frontd_server_hello(struct rpc_call *call)
{
    struct hello h;
    if (!frontd_configured(call) || !read_hello(call, &h) ||
        !frontd_within_limit(call, LIMIT_HELLO, session_remote(session_of(call))) ||
        !may_say(call, &h))
        return;
    peer_pool_heard_from(frontd_of(call)->peers, h.login);
    if (*h.proof)
        second_hello(call, &h);
    else
        first_hello(call, &h);
}
