/* Containers from the command line. See compose.h. Bodies of texts are plain UTF-8 behind a zero
 * byte, as all our own tools agree. */
#include "deploy/ctl/compose.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/base64.h"
#include "util/buf.h"
#include "util/clock.h"
#include "util/mem.h"

#define TEXT_MAX 65535 /* with the zero byte: limits.clientBodyBytes */

struct ctl_stamp ctl_stamp_now(const char *from, const char *to)
{
    return (struct ctl_stamp){
        .from = from, .to = to, .time_ms = clock_wall_ms(), .nonce = randombytes_random()};
}

/* One container in Base64; NULL after a message. */
static char *container(const struct ctl_stamp *m, enum dm_type type, const uint8_t *body, size_t n,
                       const uint8_t seed[DM_KEY_BYTES])
{
    struct dm_container c = {.type = type,
                             .time_ms = m->time_ms,
                             .nonce = m->nonce,
                             .revision_time_ms = m->revision_time_ms,
                             .body = body,
                             .body_len = n};
    snprintf(c.from, sizeof c.from, "%s", m->from);
    snprintf(c.to, sizeof c.to, "%s", m->to);
    size_t len = dm_container_len(&c);
    uint8_t *bytes = xmalloc(len);
    enum dm_error e = dm_build(&c, seed, bytes);
    char *text = e == DM_OK ? base64_encode_new(bytes, len) : NULL;
    if (!text)
        ctl_fail(CTL_USAGE, "the message cannot be built: %s", dm_error_name(e));
    free(bytes);
    return text;
}

static json_t *pair(const struct ctl_stamp *m, enum dm_type in_type, enum dm_type out_type,
                    const uint8_t *body, size_t n, const uint8_t seed[DM_KEY_BYTES])
{
    char *in = container(m, in_type, body, n, seed);
    char *out = in ? container(m, out_type, body, n, seed) : NULL;
    json_t *payload =
        out ? json_pack("{s:s, s:s}", "incomingBlobB64", in, "outgoingBlobB64", out) : NULL;
    free(in);
    free(out);
    return payload;
}

static json_t *single(const struct ctl_stamp *m, enum dm_type type, const uint8_t *body, size_t n,
                      const uint8_t seed[DM_KEY_BYTES])
{
    char *blob = container(m, type, body, n, seed);
    json_t *payload = blob ? json_pack("{s:s}", "blobB64", blob) : NULL;
    free(blob);
    return payload;
}

/* The text argument, or all of stdin for "-". NULL if it is empty or too long. */
static uint8_t *body_read(const char *word, size_t *len)
{
    struct buf b;
    buf_init(&b, TEXT_MAX + 1);
    bool ok = buf_append(&b, "", 1);
    if (strcmp(word, "-") != 0) {
        ok = ok && buf_append(&b, word, strlen(word));
    } else {
        char chunk[4096];
        size_t n;
        while (ok && (n = fread(chunk, 1, sizeof chunk, stdin)) > 0)
            ok = buf_append(&b, chunk, n);
    }
    *len = buf_len(&b);
    uint8_t *body = ok && *len > 1 ? (uint8_t *)xmemdup0(buf_head(&b), *len) : NULL;
    buf_free(&b);
    return body;
}

json_t *ctl_text_pair(const struct ctl_stamp *m, const char *word, const uint8_t seed[DM_KEY_BYTES])
{
    size_t n;
    uint8_t *body = body_read(word, &n);
    if (!body) {
        ctl_fail(CTL_USAGE, "the text must have 1 to %d bytes", TEXT_MAX);
        return NULL;
    }
    json_t *payload = pair(m, DM_TEXT_IN, DM_TEXT_OUT, body, n, seed);
    free(body);
    return payload;
}

json_t *ctl_receipt_pair(const struct ctl_stamp *m, const struct dm_receipt *r,
                         const uint8_t seed[DM_KEY_BYTES])
{
    uint8_t body[DM_RECEIPT_BODY];
    return pair(m, DM_RECEIPT_IN, DM_RECEIPT_OUT, body, dm_receipt_body(r, body), seed);
}

json_t *ctl_delete(const struct ctl_stamp *m, const struct dm_delete *d, bool for_both,
                   const uint8_t seed[DM_KEY_BYTES])
{
    uint8_t body[DM_DELETE_BODY];
    return single(m, for_both ? DM_DELETE_BOTH : DM_DELETE_OWN, body, dm_delete_body(d, body),
                  seed);
}

json_t *ctl_clear(const struct ctl_stamp *m, const struct dm_clear *d, bool for_both,
                  const uint8_t seed[DM_KEY_BYTES])
{
    uint8_t body[DM_CLEAR_BODY];
    return single(m, for_both ? DM_CLEAR_BOTH : DM_CLEAR_OWN, body, dm_clear_body(d, body), seed);
}

int ctl_text_key(const char *word, struct dm_key *key)
{
    if (!dm_key_parse(word, key))
        return ctl_fail(CTL_USAGE, "%s is not a message key (from|to|timeMs|nonce|type)", word);
    if (key->type != DM_TEXT_IN && key->type != DM_TEXT_OUT)
        return ctl_fail(CTL_USAGE, "%s is not the key of a text", word);
    return CTL_OK;
}
