/* Drawn containers for the tests of common/dm. Failures: none. */
#include "support_dm.h"

#include <string.h>

uint64_t dm_draw(uint64_t *rnd, uint64_t n)
{
    /* xorshift64*: a test needs the same numbers on every machine, not good ones. */
    uint64_t x = *rnd;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *rnd = x;
    return ((x * UINT64_C(0x2545F4914F6CDD1D)) >> 8) % n;
}

int64_t dm_draw_time(uint64_t *rnd)
{
    switch (dm_draw(rnd, 6)) {
    case 0:
        return 0;
    case 1:
        return DM_INT_MAX;
    default:
        return (int64_t)dm_draw(rnd, (uint64_t)DM_INT_MAX + 1);
    }
}

static void draw_login(uint64_t *rnd, char out[DM_LOGIN_MAX + 1])
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_";
    size_t n = 1 + dm_draw(rnd, DM_LOGIN_MAX);
    for (size_t i = 0; i < n; i++)
        out[i] = letters[dm_draw(rnd, sizeof(letters) - 1)];
    out[n] = '\0';
}

static size_t draw_body(uint64_t *rnd, const struct dm_container *c, uint8_t body[DM_TEST_BODY])
{
    struct dm_receipt r = {dm_draw_time(rnd), (uint32_t)dm_draw(rnd, UINT32_MAX),
                           dm_draw_time(rnd)};
    struct dm_delete d = {dm_draw(rnd, 2) == 1, r.ref_time_ms, r.ref_nonce};
    struct dm_clear clear = {(int64_t)dm_draw(rnd, (uint64_t)c->time_ms + 1)};
    size_t n = 1 + dm_draw(rnd, DM_TEST_BODY);
    switch (c->type) {
    case DM_RECEIPT_IN:
    case DM_RECEIPT_OUT:
        return dm_receipt_body(&r, body);
    case DM_DELETE_BOTH:
    case DM_DELETE_OWN:
        return dm_delete_body(&d, body);
    case DM_CLEAR_BOTH:
    case DM_CLEAR_OWN:
        return dm_clear_body(&clear, body);
    case DM_TEXT_IN:
    case DM_TEXT_OUT:
        break;
    }
    for (size_t i = 0; i < n; i++)
        body[i] = (uint8_t)dm_draw(rnd, 256);
    return n;
}

struct dm_container dm_draw_container(uint64_t *rnd, uint8_t body[DM_TEST_BODY])
{
    struct dm_container c = {.type = (enum dm_type)(1 + dm_draw(rnd, 8))};
    draw_login(rnd, c.from);
    draw_login(rnd, c.to);
    c.time_ms = dm_draw_time(rnd);
    c.nonce = (uint32_t)dm_draw(rnd, (uint64_t)UINT32_MAX + 1);
    if (c.type <= DM_TEXT_OUT) {
        c.revision_time_ms = dm_draw_time(rnd);
        c.reencrypted_at_ms = dm_draw_time(rnd);
    }
    c.body = body;
    c.body_len = draw_body(rnd, &c, body);
    return c;
}
