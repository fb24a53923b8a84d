/* Tests of the UTF-8 decoder. */
#include "util/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

/* Encode `c` the plain way, whether it is a character or not; returns the length. */
static size_t encode(uint32_t c, char out[5])
{
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint8_t first[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n; i-- > 1; c >>= 6)
        out[i] = (char)(uint8_t)(0x80 | (c & 0x3f));
    out[0] = (char)(uint8_t)(first[n == 1 ? 0 : n] | c);
    out[n] = '\0';
    return n;
}

static void every_character_and_no_other(void **state)
{
    (void)state;
    char s[5];
    uint32_t got;
    for (uint32_t c = 0; c < 0x1fffff; c++) {
        bool is_character = c <= 0x10ffff && !(c >= 0xd800 && c <= 0xdfff);
        size_t n = encode(c, s);
        size_t length = utf8_decode(s, &got);
        if (length != (is_character ? n : 0) || got != (is_character ? c : (uint8_t)s[0]))
            fail_msg("U+%04X gives %zu and U+%04X", (unsigned)c, length, (unsigned)got);
    }
}

static void overlong_and_cut_forms_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "\x80",         "\xbf",     "\xc0\x80",     "\xc1\xbf",         "\xe0\x80\x80",
        "\xe0\x9f\xbf", "\xf0\x80", "\xf0\x8f\xbf", "\xf0\x8f\xbf\xbf", "\xf5\x80\x80",
        "\xfe",         "\xff",     "\xc3",         "\xe2\x82",         "\xf0\x9f\x98",
        "\xc3(",        "a\xc3",    "\xe2(\xa1",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(utf8_valid(bad[i]));
    assert_true(utf8_valid(""));
    assert_true(utf8_valid("a\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf\xf4\x8f\xbf\xbf"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_character_and_no_other),
        cmocka_unit_test(overlong_and_cut_forms_are_refused),
    };
    return cmocka_run_group_tests_name("utf8", tests, NULL, NULL);
}
