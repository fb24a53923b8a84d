/*
 * Settings of users as they are signed. Raises no failures.
 */
#include "dm/setting.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "util/mem.h"

bool dm_setting_name_valid(const char *name)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                  "0123456789_./-";
    size_t n = strlen(name);
    return n > 0 && n <= DM_SETTING_NAME_MAX && strspn(name, letters) == n;
}

bool dm_setting_verify(const char *login, const char *name, int64_t time_ms, const char *value,
                       const uint8_t sig[DM_SIG_BYTES], const uint8_t key[DM_KEY_BYTES])
{
    char *text = xasprintf("SHiNE_USER_SETTING:%s:%s:%" PRId64 ":%s", login, name, time_ms, value);
    bool ok = crypto_sign_verify_detached(sig, (const unsigned char *)text, strlen(text), key) == 0;
    free(text);
    return ok;
}
