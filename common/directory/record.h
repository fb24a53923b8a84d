/*
 * A user's record as another server answers it to GetUser, and the parts that AddUser and profiles
 * share with it. Pure functions.
 */
#ifndef SHINE_DIRECTORY_RECORD_H
#define SHINE_DIRECTORY_RECORD_H

#include <jansson.h>

#include "directory/profile.h"
#include "rpc/fields.h"

struct record {
    /* The servers are those of the profile, if there is one. The enc_key texts are those below, or
     * NULL. */
    struct store_user user;
    char enc_key[PROFILE_KEY_TEXT], enc_key_sig[PROFILE_SIG_TEXT];
    bool local;       /* the answering server holds it as its own (it says so; old ones do not) */
    bool provisional; /* it has it from somebody it does not know itself */
    bool bad_profile; /* it came with a profile that is not this user's, which was left out */
    bool has_profile;
    struct profile profile;
};

enum record_result { RECORD_USER, RECORD_NOBODY, RECORD_BAD };

/* Read the payload of an answer about `login`. RECORD_BAD: it is no record of that user that we
 * could keep. An encryption key or a profile whose signature is wrong is left out. `out` points
 * into itself: copy it with record_copy(). */
enum record_result record_read(const json_t *payload, const char *login, struct record *out);
void record_copy(struct record *to, const struct record *from);

/* `accessServers`: one or two different ones of {serverLogin, url}, into u->servers. RPC_OK, or the
 * error to answer with *message saying what is wrong (or f->problem). */
enum rpc_error record_read_servers(struct rpc_fields *f, struct store_user *u,
                                   const char **message);

/* An encryption key (NULL = none) must be signed by the client key. Errors likewise. */
enum rpc_error record_check_enc_key(const char *login, const uint8_t client_key[DM_KEY_BYTES],
                                    const char *enc_key, const char *enc_key_sig,
                                    const char **message);

#endif
