/*
 * Which server a connection says it is, and what it has proved: for ServerHello (op_server.c).
 * Whoever only wants to know who a caller is finds that in session.h and frontd.h.
 *
 *   nobody -> said (session_set_peer) -> challenged -> proof given (identity_prove)
 *      ^________/_________________________/_____________/    a new first hello, or a refusal
 *
 * The proof is kept, and judged by the keys that sync_servers has when somebody asks: a key that
 * the operator takes away is believed no longer, one that is added later counts for connections
 * that exist.
 */
#ifndef SHINE_FRONTD_IDENTITY_H
#define SHINE_FRONTD_IDENTITY_H

#include "frontd/session.h"

/* Make the challenge for the hello that session_set_peer() was just called for. Borrowed until the
 * next hello. */
const char *identity_challenge(struct session *s, const char *nonce, const char *host);
/* Use up the challenge. False, and the connection is nobody's, if there is none that is fresh and
 * was made for this hello, or if a key of that server is known here and this (Base64) is not its
 * proof. */
bool identity_prove(struct session *s, const char *login, const char *nonce, const char *host,
                    const char *proof);
/* It is nobody again. */
void identity_forget(struct session *s);
/* Close the connection of one that has lied. It must not have ended. */
void identity_refuse(struct session *s);
/* Free what the session keeps here. */
void identity_free(struct session *s);

#endif
