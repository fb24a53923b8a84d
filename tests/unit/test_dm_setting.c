/*
 * Names of settings, and what their signature covers.
 */
#include "dm/setting.h"
#include "util/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sodium.h>

static void names(void **state)
{
    (void)state;
    static const char *const good[] = {"a", "A", "0", "_", ".", "/", "-", "ui/theme.v2-x_Y"};
    static const char *const bad[] = {"",         " ",   "a b", "a:b", ":",
                                      "\xc3\xa9", "a\n", "a\\", "+",   "@"};
    char longest[DM_SETTING_NAME_MAX + 2];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_true(dm_setting_name_valid(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(dm_setting_name_valid(bad[i]));
    memset(longest, 'x', sizeof longest);
    longest[DM_SETTING_NAME_MAX + 1] = '\0';
    assert_false(dm_setting_name_valid(longest));
    longest[DM_SETTING_NAME_MAX] = '\0';
    assert_true(dm_setting_name_valid(longest));
}

static void signatures(void **state)
{
    (void)state;
    uint8_t key[DM_KEY_BYTES], other[DM_KEY_BYTES], secret[64], sig[DM_SIG_BYTES];
    static const char text[] = "SHiNE_USER_SETTING:alice:ui/theme:1774700000123:d\xc3\xbcnn:el";
    crypto_sign_keypair(other, secret);
    crypto_sign_keypair(key, secret);
    crypto_sign_detached(sig, NULL, (const unsigned char *)text, sizeof text - 1, secret);
    const int64_t at = 1774700000123;
    static const char value[] = "d\xc3\xbcnn:el";
    assert_true(dm_setting_verify("alice", "ui/theme", at, value, sig, key));
    assert_false(dm_setting_verify("alice", "ui/theme", at, value, sig, other));
    assert_false(dm_setting_verify("alicE", "ui/theme", at, value, sig, key));
    assert_false(dm_setting_verify("alice", "ui/themE", at, value, sig, key));
    assert_false(dm_setting_verify("alice", "ui/theme", at + 1, value, sig, key));
    assert_false(dm_setting_verify("alice", "ui/theme", at, "", sig, key));
    sig[5] ^= 1;
    assert_false(dm_setting_verify("alice", "ui/theme", at, value, sig, key));
}

static void the_longest_value(void **state)
{
    (void)state;
    uint8_t key[DM_KEY_BYTES], secret[64], sig[DM_SIG_BYTES];
    char *value = xcalloc(DM_SETTING_VALUE_MAX + 1, 1);
    memset(value, 'v', DM_SETTING_VALUE_MAX);
    char *text = xasprintf("SHiNE_USER_SETTING:a:n:0:%s", value);
    crypto_sign_keypair(key, secret);
    crypto_sign_detached(sig, NULL, (const unsigned char *)text, strlen(text), secret);
    assert_true(dm_setting_verify("a", "n", 0, value, sig, key));
    value[DM_SETTING_VALUE_MAX - 1] = 'w';
    assert_false(dm_setting_verify("a", "n", 0, value, sig, key));
    free(text);
    free(value);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(signatures),
        cmocka_unit_test(the_longest_value),
    };
    if (sodium_init() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
