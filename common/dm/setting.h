/*
 * Settings of users as they are signed (docs/protocol.md, "Settings"). Pure.
 */
#ifndef SHINE_DM_SETTING_H
#define SHINE_DM_SETTING_H

#include <stdbool.h>
#include <stdint.h>

#include "dm/container.h"

#define DM_SETTING_NAME_MAX  128
#define DM_SETTING_VALUE_MAX 65536 /* bytes of UTF-8 */

/* True for [A-Za-z0-9_./-]{1,128}: the signed text must be unambiguous, so no ':' in it. */
bool dm_setting_name_valid(const char *name);
/* True if `sig` is the signature of the setting by `key`. About 50 µs, 150 µs for 64 KiB. */
bool dm_setting_verify(const char *login, const char *name, int64_t time_ms, const char *value,
                       const uint8_t sig[DM_SIG_BYTES], const uint8_t key[DM_KEY_BYTES]);

#endif
