/*
 * A signed profile: which servers are a user's, in the user's own words (UpsertUserProfile, and the
 * `profile` in the answer to GetUser). Pure functions.
 */
#ifndef SHINE_DIRECTORY_PROFILE_H
#define SHINE_DIRECTORY_PROFILE_H

#include <jansson.h>

#include "rpc/error.h"
#include "store/profiles.h"

#define PROFILE_KEY_TEXT   48   /* Base64 of 32 bytes */
#define PROFILE_SIG_TEXT   92   /* of 64 */
#define PROFILE_RECORD_MAX 1536 /* the longest that profile_read() accepts needs less */

struct profile {
    struct store_user user;   /* login, key and servers; encryption key, or NULL, as in `own` */
    struct store_profile own; /* points into this struct */
    char enc_key[PROFILE_KEY_TEXT], enc_key_sig[PROFILE_SIG_TEXT];
    char record[PROFILE_RECORD_MAX];
};

/* Read a profile and check it: fields, addresses, and its signatures by the key that it names.
 * Whose key that is, whether it is the newest and whether its time is plausible is for others to
 * say. RPC_OK, or the error to answer with *message saying what is wrong (static, or in `buffer`).
 * `out` points into itself: copy it with profile_copy(). */
enum rpc_error profile_read(const json_t *payload, struct profile *out, const char **message,
                            char buffer[160]);
void profile_copy(struct profile *to, const struct profile *from);

/* Which of two profiles of one user is the newer: below 0 the second, 0 they are the same, above 0
 * the first. By time, then signature, then the signature of the encryption key, the larger one
 * first: as apply_profile() decides in the database. */
int profile_compare(const struct profile *a, const struct profile *b);

/* The text that a profile's signature covers, all fields as they are sent; a new string. */
char *profile_signed_text(const char *login, const char *client_key_b64,
                          const struct store_route *servers, unsigned n, int64_t time_ms);

#endif
