/*
 * ServerHello as the dialler sees it, and the capabilities of both sides.
 *
 *   first request -> answer -> (second request with our proof -> answer) -> done
 *
 * The second request is made if the answerer sent a challenge and we have a key, whether it knows
 * that key or not: it may learn it while the connection lasts.
 *
 * Raises: none; an answer that will not do is a reason.
 */
#include "peer/hello.h"

#include <string.h>

#include "util/log.h"
#include "util/mem.h"

#define LISTED_MAX 256 /* of a stranger's list; the rest is not looked at */

/* Every capability that this program has a name for. What is listed is switched on by that. */
static const struct {
    const char *name;
    enum { LISTED_WITH_KEY, LISTED } ours;
} capabilities[] = {
    {"connection-pool", LISTED},
    {"pipelining", LISTED},
    {"server-auth", LISTED_WITH_KEY}, /* without one we judge proofs, and make none */
    {"dm-sync", LISTED},
    {"settings-sync", LISTED},
    {"dm-status-batch", LISTED},
};
#define N_CAPABILITIES (sizeof capabilities / sizeof *capabilities)

static bool we_list(const struct peer_auth *auth, size_t i)
{
    return capabilities[i].ours == LISTED ||
           (capabilities[i].ours == LISTED_WITH_KEY && auth && peer_auth_has_key(auth));
}

static size_t index_of(const char *capability)
{
    size_t i = 0;
    while (i < N_CAPABILITIES && strcmp(capabilities[i].name, capability) != 0)
        i++;
    return i;
}

json_t *peer_capabilities(const struct peer_auth *auth)
{
    json_t *list = json_array();
    for (size_t i = 0; i < N_CAPABILITIES; i++)
        if (we_list(auth, i))
            (void)json_array_append_new(list, json_string(capabilities[i].name));
    return list;
}

bool peer_lists(const struct peer_auth *auth, const char *capability)
{
    size_t i = index_of(capability);
    return i < N_CAPABILITIES && we_list(auth, i);
}

unsigned peer_capabilities_of(const json_t *payload)
{
    unsigned set = 0;
    const json_t *list = json_object_get(payload, "capabilities");
    size_t n = json_array_size(list);
    for (size_t k = 0; k < n && k < LISTED_MAX; k++) {
        const char *s = json_string_value(json_array_get(list, k));
        size_t i = s ? index_of(s) : N_CAPABILITIES;
        if (i < N_CAPABILITIES)
            set |= 1U << i;
    }
    return set;
}

bool peer_capabilities_have(unsigned set, const char *capability)
{
    size_t i = index_of(capability);
    return i < N_CAPABILITIES && (set & 1U << i) != 0;
}

/* --- the dialler --- */

static struct peer_meeting meeting_of(const struct peer_hello *h)
{
    return (struct peer_meeting){.dialler = h->me,
                                 .answerer = h->them,
                                 .nonce = h->nonce,
                                 .challenge = h->challenge,
                                 .host = h->host};
}

void peer_hello_begin(struct peer_hello *h, const struct peer_auth *auth, const char *me,
                      const char *them, const struct ws_url *url)
{
    *h = (struct peer_hello){.auth = auth, .me = me, .them = them};
    const struct partner *p = auth ? peer_auth_partner(auth, them) : NULL;
    peer_host_of(url, h->host);
    if (auth && (peer_auth_has_key(auth) || (p && p->n_keys > 0)))
        peer_nonce_make(h->nonce);
}

json_t *peer_hello_payload(const struct peer_hello *h)
{
    json_t *p = json_pack("{s:s, s:i, s:o}", "serverLogin", h->me, "protocolVersion",
                          PEER_PROTOCOL_VERSION, "capabilities", peer_capabilities(h->auth));
    shine_assert(p);
    if (!h->nonce[0])
        return p;
    (void)json_object_set_new(p, "helloNonce", json_string(h->nonce));
    (void)json_object_set_new(p, "dialledHost", json_string(h->host));
    if (h->challenge[0]) {
        char proof[PEER_PROOF_TEXT + 1];
        const struct peer_meeting m = meeting_of(h);
        peer_auth_prove(h->auth, PEER_SIDE_DIAL, &m, proof);
        (void)json_object_set_new(p, "proofB64", json_string(proof));
    }
    return p;
}

/* An answer that is no success. */
static const char *refusal(const struct peer_hello *h, const struct rpc_answer *a)
{
    static const struct {
        const char *code, *reason;
    } known[] = {{"WRONG_HOST", "wrong_host"},
                 {"BAD_SERVER_PROOF", "proof_refused"},
                 {"PEER_BLOCKED", "blocked_there"}};
    log_warn("peer_hello_refused", LOG_S("peer", h->them), LOG_I("status", a->status));
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (a->status == 403 && strcmp(a->error, known[i].code) == 0)
            return known[i].reason;
    return "hello_refused";
}

/* NULL, or why the answer to the first request is not one of whom we dialled. */
static const char *judge_first(struct peer_hello *h, const json_t *payload)
{
    const char *challenge = json_string_value(json_object_get(payload, "challenge"));
    const char *proof = json_string_value(json_object_get(payload, "proofB64"));
    if (!h->auth)
        return NULL;
    if (h->nonce[0] && challenge && peer_nonce_valid(challenge))
        memcpy(h->challenge, challenge, strlen(challenge) + 1);
    else
        proof = NULL; /* it cannot have signed anything that fits */
    const struct peer_meeting m = meeting_of(h);
    const char *problem = peer_auth_judge_answer(h->auth, &m, proof);
    if (problem)
        log_warn("peer_not_believed", LOG_S("peer", h->them), LOG_S("host", h->host),
                 LOG_S("reason", problem));
    return problem;
}

/* It says that it knows no ServerHello: no proof, and no name either. */
static enum peer_hello_next answered_legacy(struct peer_hello *h, const char **reason)
{
    h->legacy = true;
    *reason = judge_first(h, NULL);
    return *reason ? PEER_HELLO_FAILED : PEER_HELLO_DONE;
}

enum peer_hello_next peer_hello_answered(struct peer_hello *h, const struct rpc_answer *a,
                                         const char **reason)
{
    bool second = h->challenge[0] != '\0';
    if (!second && a->status == 400 && strcmp(a->error, "UNKNOWN_OP") == 0)
        return answered_legacy(h, reason);
    const char *who = json_string_value(json_object_get(a->payload, "serverLogin"));
    if (a->status < 200 || a->status > 299 ||
        !json_is_true(json_object_get(a->payload, "accepted"))) {
        *reason = refusal(h, a);
        return PEER_HELLO_FAILED;
    }
    if (!who || strcmp(who, h->them) != 0) {
        /* Only the length of what it calls itself: the text is a stranger's, and unbounded. */
        log_warn("peer_wrong_login", LOG_S("peer", h->them), LOG_S("host", h->host),
                 LOG_I("answered_bytes", who ? strlen(who) : 0));
        *reason = "wrong_server_login";
        return PEER_HELLO_FAILED;
    }
    if (second)
        return PEER_HELLO_DONE;
    h->capabilities = peer_capabilities_of(a->payload);
    *reason = judge_first(h, a->payload);
    if (*reason)
        return PEER_HELLO_FAILED;
    return h->challenge[0] && peer_auth_has_key(h->auth) ? PEER_HELLO_SECOND : PEER_HELLO_DONE;
}
