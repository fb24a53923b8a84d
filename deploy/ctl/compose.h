/*
 * The signed containers that shinectl's commands send, made from the command line. Each function
 * gives the payload of a request, or NULL after a message.
 */
#ifndef SHINE_CTL_COMPOSE_H
#define SHINE_CTL_COMPOSE_H

#include "deploy/ctl/ctl.h"
#include "dm/key.h"

/* What names a message and its revision. */
struct ctl_stamp {
    const char *from, *to;
    int64_t time_ms;
    uint32_t nonce;
    int64_t revision_time_ms;
};

/* Now, with a fresh nonce. */
struct ctl_stamp ctl_stamp_now(const char *from, const char *to);

/* A text as the pair of SendMessagePair. `word` is the text; "-" reads it from stdin. */
json_t *ctl_text_pair(const struct ctl_stamp *m, const char *word,
                      const uint8_t seed[DM_KEY_BYTES]);
/* A receipt likewise. */
json_t *ctl_receipt_pair(const struct ctl_stamp *m, const struct dm_receipt *r,
                         const uint8_t seed[DM_KEY_BYTES]);
/* A tombstone as the payload of DeleteMessage or DeleteConversation. */
json_t *ctl_delete(const struct ctl_stamp *m, const struct dm_delete *d, bool for_both,
                   const uint8_t seed[DM_KEY_BYTES]);
json_t *ctl_clear(const struct ctl_stamp *m, const struct dm_clear *d, bool for_both,
                  const uint8_t seed[DM_KEY_BYTES]);

/* The key of a text as the user typed it. CTL_OK, or an exit code after a message. */
int ctl_text_key(const char *word, struct dm_key *key);

#endif
