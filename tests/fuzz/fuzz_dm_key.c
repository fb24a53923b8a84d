/*
 * Any text into dm_key_parse(). What it accepts must print as the same text: a second spelling of a
 * key would be a second row for one message.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dm/key.h"
#include "util/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = xmemdup0(data, size); /* exactly sized, so that reading past the NUL is seen */
    struct dm_key k;
    if (dm_key_parse(text, &k)) {
        struct dm_container c = {.type = k.type, .time_ms = k.time_ms, .nonce = k.nonce};
        char again[DM_MESSAGE_KEY_MAX];
        shine_assert(dm_login_valid(k.from) && dm_login_valid(k.to));
        memcpy(c.from, k.from, sizeof(c.from));
        memcpy(c.to, k.to, sizeof(c.to));
        dm_message_key(&c, again);
        shine_assert(strcmp(again, text) == 0);

        dm_delivery_key(&k, again);
        struct dm_key d;
        shine_assert(dm_key_parse(again, &d));
        shine_assert(d.type != DM_TEXT_IN && d.type != DM_RECEIPT_IN);
    }
    free(text);
    return 0;
}
