/*
 * `server-auth`: two servers prove to each other who they are, each with the key that the other one
 * has in sync_servers (docs/protocol.md, "Between servers"). The proofs, and what this process
 * needs to make and judge them: its key, its addresses, what is known of others. No I/O beyond
 * reading the key file.
 *
 * Each side's text begins with its own word, so that neither proof is any use as the other. Both
 * hold nonces of both sides, so that an old one is worth nothing, and the address that was dialled,
 * so that nobody can pass a hello on to another server.
 */
#ifndef SHINE_PEER_AUTH_H
#define SHINE_PEER_AUTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dm/container.h"
#include "net/ws.h"
#include "peer/partners.h"

#define PEER_NONCE_BYTES 32
#define PEER_NONCE_TEXT  44  /* characters of its Base64 */
#define PEER_HOST_MAX    263 /* [host]:port */
#define PEER_PROOF_TEXT  88  /* characters of a signature in Base64 */

/* --- proofs; pure --- */

/* What both texts are made of, as it was sent. */
struct peer_meeting {
    const char *dialler, *answerer; /* server logins */
    const char *nonce, *challenge;  /* Base64 of the dialler's and the answerer's random bytes */
    const char *host;               /* dialledHost */
};
enum peer_side { PEER_SIDE_ANSWER, PEER_SIDE_DIAL };

/* The proof of one side in Base64. `seed` is its key. */
void peer_proof_make(enum peer_side side, const struct peer_meeting *m,
                     const uint8_t seed[DM_KEY_BYTES], char out[PEER_PROOF_TEXT + 1]);
/* True if `sig` is the proof of that side by `key`. About 70 µs. */
bool peer_proof_fits(enum peer_side side, const struct peer_meeting *m,
                     const uint8_t sig[DM_SIG_BYTES], const uint8_t key[DM_KEY_BYTES]);
/* A fresh nonce in Base64. */
void peer_nonce_make(char out[PEER_NONCE_TEXT + 1]);
/* True if `text` is the Base64 of PEER_NONCE_BYTES bytes. */
bool peer_nonce_valid(const char *text);
/* `host:port` of a URL as dialledHost says it: lower case, the port always, IPv6 in brackets. */
void peer_host_of(const struct ws_url *url, char out[PEER_HOST_MAX + 1]);

/* --- the key file --- */

/* Read the lines `secret BASE64` and, if it is there, `public BASE64`, which must belong to it;
 * other lines are ignored. NULL, or what is wrong as a new string (free()) that names the file. */
char *peer_key_read(const char *path, uint8_t seed[DM_KEY_BYTES]);

/* --- what this process needs --- */

/* Values of `server.auth`: who is believed to be the server that it says it is. */
enum peer_trust {
    PEER_TRUST_PROOF, /* require: who proves it */
    PEER_TRUST_KNOWN, /* known: who has no key known here, and who proves it */
    PEER_TRUST_WORD   /* trust: everybody */
};

struct peer_auth_config {
    enum peer_trust trust;
    const char *key_file; /* "" = no key: we prove nothing, but judge what others prove */
    const char *url;      /* server.url, "" = not set */
    const char *aliases;  /* server.urlAliases: URLs with commas between */
};
struct peer_auth;
/* Read the key and the addresses. NULL with *error set to a new string, which names the key of the
 * configuration, if something cannot be used. */
struct peer_auth *peer_auth_new(const struct peer_auth_config *c, char **error);
/* Where the keys of others stand; borrowed. Without, none is known. */
void peer_auth_use(struct peer_auth *a, const struct partners *partners);
void peer_auth_free(struct peer_auth *a);

enum peer_trust peer_auth_trust(const struct peer_auth *a);
/* True if we have a key, and can prove who we are. */
bool peer_auth_has_key(const struct peer_auth *a);
/* As peer_proof_make(), with our key, which there must be. */
void peer_auth_prove(const struct peer_auth *a, enum peer_side side, const struct peer_meeting *m,
                     char out[PEER_PROOF_TEXT + 1]);
/* True if this server has an address to compare with, so that there can be proofs with it as the
 * one that was dialled. */
bool peer_auth_has_hosts(const struct peer_auth *a);
/* True if `host` (as dialledHost) is one of our addresses. */
bool peer_auth_is_our_host(const struct peer_auth *a, const char *host);
/* True once it is known which keys others have. */
bool peer_auth_knows(const struct peer_auth *a);
/* The server's row, NULL if there is none. Valid until control returns to the loop. */
const struct partner *peer_auth_partner(const struct peer_auth *a, const char *login);

/* Why a server that we dialled, and that answered `proof` (Base64; NULL = none), is not the one it
 * should be: NULL if it is, or if its word is enough; else a static reason: "server_not_proven",
 * "bad_server_proof", or "partners_not_read" while no key of others is known yet. */
const char *peer_auth_judge_answer(const struct peer_auth *a, const struct peer_meeting *m,
                                   const char *proof);

#endif
