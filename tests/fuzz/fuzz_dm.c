/*
 * Any bytes into dm_parse(). What it accepts must be reproduced by dm_build(), byte for byte up to
 * the signature: a field that is read and not written back, or two encodings of one container,
 * would let two servers hold different bytes under one key.
 */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "dm/key.h"
#include "util/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_key(const struct dm_container *c)
{
    char text[DM_MESSAGE_KEY_MAX];
    char delivery[DM_MESSAGE_KEY_MAX];
    struct dm_key k;
    dm_message_key(c, text);
    shine_assert(dm_key_parse(text, &k));
    shine_assert(strcmp(k.from, c->from) == 0 && strcmp(k.to, c->to) == 0);
    shine_assert(k.time_ms == c->time_ms && k.nonce == c->nonce && k.type == c->type);
    dm_delivery_key(&k, delivery);
    shine_assert(dm_key_parse(delivery, &k));
}

static void check_body(const struct dm_container *c)
{
    uint8_t body[DM_RECEIPT_BODY];
    size_t n = c->body_len;
    switch (c->type) {
    case DM_TEXT_IN:
    case DM_TEXT_OUT:
        shine_assert(n > 0 && n <= DM_BODY_MAX);
        return;
    case DM_RECEIPT_IN:
    case DM_RECEIPT_OUT: {
        struct dm_receipt r = dm_receipt_of(c);
        n = dm_receipt_body(&r, body);
        break;
    }
    case DM_DELETE_BOTH:
    case DM_DELETE_OWN: {
        struct dm_delete d = dm_delete_of(c);
        n = dm_delete_body(&d, body);
        break;
    }
    case DM_CLEAR_BOTH:
    case DM_CLEAR_OWN: {
        struct dm_clear d = dm_clear_of(c);
        shine_assert(d.until_time_ms <= c->time_ms);
        n = dm_clear_body(&d, body);
        break;
    }
    }
    shine_assert(n == c->body_len && memcmp(body, c->body, n) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t seed[DM_KEY_BYTES] = {7};
    struct dm_container c;
    enum dm_error e = dm_parse(data, size, &c);
    shine_assert(dm_error_name(e) != NULL);
    if (e != DM_OK)
        return 0;

    shine_assert(dm_container_len(&c) == size && size <= DM_CONTAINER_MAX);
    shine_assert(c.sig == data + size - DM_SIG_BYTES);
    check_body(&c);
    check_key(&c);

    uint8_t *out = xmalloc(size);
    uint8_t key[DM_KEY_BYTES];
    shine_assert(dm_build(&c, seed, out) == DM_OK);
    shine_assert(memcmp(out, data, size - DM_SIG_BYTES) == 0);
    dm_public_key(seed, key);
    shine_assert(dm_verify(out, size, key));
    (void)dm_verify(data, size, key); /* any answer, no crash */
    free(out);
    return 0;
}
