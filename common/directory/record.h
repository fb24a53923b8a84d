/*
 * A user's record as another server answers it to GetUser. Pure functions.
 */
#ifndef SHINE_DIRECTORY_RECORD_H
#define SHINE_DIRECTORY_RECORD_H

#include <jansson.h>

#include "store/users.h"

#define RECORD_KEY_TEXT 48 /* Base64 of 32 bytes */
#define RECORD_SIG_TEXT 92 /* of 64 */

struct record {
    struct store_user user; /* its enc_key texts are those below, or NULL */
    char enc_key[RECORD_KEY_TEXT], enc_key_sig[RECORD_SIG_TEXT];
    bool local;       /* the answering server holds it as its own (it says so; old ones do not) */
    bool provisional; /* it has it from somebody it does not know itself */
};

enum record_result { RECORD_USER, RECORD_NOBODY, RECORD_BAD };

/* Read the payload of an answer about `login`. RECORD_BAD: it is no record of that user that we
 * could keep. An encryption key whose signature is wrong is left out. `out` must not be copied, it
 * points into itself. */
enum record_result record_read(const json_t *payload, const char *login, struct record *out);

/* One access server, read from {serverLogin, url}; false if either is not what it must be. */
bool record_read_route(const json_t *item, struct store_route *out);

#endif
