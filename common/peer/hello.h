/*
 * What ServerHello says, on both sides: capabilities, and the dialler's requests and the answers to
 * them. Pure, but for the random nonce.
 */
#ifndef SHINE_PEER_HELLO_H
#define SHINE_PEER_HELLO_H

#include <jansson.h>
#include <stdbool.h>

#include "peer/auth.h"
#include "rpc/envelope.h"

#define PEER_PROTOCOL_VERSION 1

/* What this side can do, as a new array, for ServerHello and GetServerInfo. `auth` may be NULL. */
json_t *peer_capabilities(const struct peer_auth *auth);
/* True if this side lists it. */
bool peer_lists(const struct peer_auth *auth, const char *capability);
/* What a payload lists under `capabilities`: a set of those this program has a name for. */
unsigned peer_capabilities_of(const json_t *payload);
/* True if the set holds that capability; false for one that this program has no name for. */
bool peer_capabilities_have(unsigned set, const char *capability);

/* One hello as the dialler makes it. */
struct peer_hello {
    const struct peer_auth *auth; /* NULL: without proofs */
    const char *me, *them;        /* server logins */
    char host[PEER_HOST_MAX + 1];
    char nonce[PEER_NONCE_TEXT + 1];     /* "" = no proofs are asked for or offered */
    char challenge[PEER_NONCE_TEXT + 1]; /* "" until it came */
    unsigned capabilities;               /* what the other side lists */
    bool legacy;                         /* it knows no ServerHello */
};
/* Begin; the logins are borrowed. Proofs are asked for if we know a key of that server or have one
 * ourselves: otherwise nobody could do anything with them, and a server that is dialled under a
 * name that it does not know could be reached all the same. */
void peer_hello_begin(struct peer_hello *h, const struct peer_auth *auth, const char *me,
                      const char *them, const struct ws_url *url);
/* The payload of the request to send next, new: the first, and once there is a challenge the second
 * with our proof. */
json_t *peer_hello_payload(const struct peer_hello *h);

enum peer_hello_next { PEER_HELLO_SECOND, PEER_HELLO_DONE, PEER_HELLO_FAILED };
/* Take the answer. FAILED with a static *reason: the other side is not to be used. */
enum peer_hello_next peer_hello_answered(struct peer_hello *h, const struct rpc_answer *a,
                                         const char **reason);

#endif
