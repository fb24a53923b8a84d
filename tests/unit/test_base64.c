/* Tests of Base64: the vectors of RFC 4648 section 10, every length, and all that strict refuses.
 */
#include "util/base64.h"
#include "util/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bool decodes(const char *text, size_t len)
{
    uint8_t *out = xmalloc(base64_decoded_max(len));
    size_t n;
    bool ok = base64_decode(text, len, out, &n);
    free(out);
    return ok;
}

static void vectors_of_rfc_4648(void **state)
{
    (void)state;
    static const char *const vectors[][2] = {{"", ""},
                                             {"f", "Zg=="},
                                             {"fo", "Zm8="},
                                             {"foo", "Zm9v"},
                                             {"foob", "Zm9vYg=="},
                                             {"fooba", "Zm9vYmE="},
                                             {"foobar", "Zm9vYmFy"}};
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        const char *plain = vectors[i][0], *text = vectors[i][1];
        char *encoded = base64_encode_new((const uint8_t *)plain, strlen(plain));
        assert_string_equal(encoded, text);
        uint8_t out[16];
        size_t n = 99;
        assert_true(base64_decode(text, strlen(text), out, &n));
        assert_int_equal(n, strlen(plain));
        assert_memory_equal(out, plain, n);
        assert_true(base64_decode(text, strcspn(text, "="), out, &n)); /* padding left out */
        assert_int_equal(n, strlen(plain));
        assert_memory_equal(out, plain, n);
        free(encoded);
    }
}

/* Buffers of exactly the promised sizes, so that the sanitizer sees a byte too many. */
static void every_length_survives_the_round_trip(void **state)
{
    (void)state;
    for (size_t n = 0; n < 300; n++) {
        uint8_t *in = xmalloc(n);
        for (size_t i = 0; i < n; i++)
            in[i] = (uint8_t)(i * 89 + n);
        char *text = xmalloc(base64_encoded_len(n) + 1);
        base64_encode(in, n, text);
        assert_int_equal(strlen(text), base64_encoded_len(n));
        uint8_t *out = xmalloc(n);
        assert_true(base64_decode_exact(text, out, n));
        assert_memory_equal(in, out, n);
        text[strcspn(text, "=")] = '\0';
        assert_true(base64_decode_exact(text, out, n));
        assert_memory_equal(in, out, n);
        free(in);
        free(out);
        free(text);
    }
}

static void large_values_are_encoded_in_chunks(void **state)
{
    (void)state;
    size_t n = (size_t)(3 << 20) * 2 + 1000;
    uint8_t *in = xmalloc(n), *out = xmalloc(n);
    for (size_t i = 0; i < n; i++)
        in[i] = (uint8_t)(i * 2654435761u >> 13);
    char *text = base64_encode_new(in, n);
    assert_int_equal(strlen(text), base64_encoded_len(n));
    assert_true(base64_decode_exact(text, out, n));
    assert_memory_equal(in, out, n);
    free(in);
    free(out);
    free(text);
}

static void malformed_text_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "Z",         "Zm9vZ",
        "Zg=",       "Zm8==",
        "Zm9v=",     "Zm9v==",
        "Zm9v====",  "=",
        "==",        "===",
        "====",      "Z===",
        "Zg==Zg==",  "Zm=v",
        "Z=9v",      "=m9v",
        " Zm9v",     "Zm9v ",
        "Zm9v\n",    "\nZm9v",
        "Zm9v\r\n",  "Zm 9v",
        "Zm9v\tZm9", "Zm9v Zm9",
        "Zm9vZm9 ",  "Zm9-",
        "Zm9_",      "Zm9\xc3",
        "\x80m9v",   "Zm9v-",
        "----",      "Zg= =",
        "Zm9v    ",  "\xff\xff\xff\xff",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (decodes(bad[i], strlen(bad[i])))
            fail_msg("accepted: '%s'", bad[i]);
    assert_false(decodes("Zm9\0", 4)); /* a NUL is no end here */
    assert_false(decodes("Zm9v\0", 5));
}

/* "Zh==" would decode to the same byte as "Zg==": a value must have one text only. */
static void trailing_bits_must_be_zero(void **state)
{
    (void)state;
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (unsigned i = 0; i < 64; i++) {
        char two[] = {'Z', alphabet[i], '=', '=', '\0'};
        char three[] = {'Z', 'm', alphabet[i], '=', '\0'};
        assert_int_equal(decodes(two, 4), i % 16 == 0);
        assert_int_equal(decodes(two, 2), i % 16 == 0);
        assert_int_equal(decodes(three, 4), i % 4 == 0);
        assert_int_equal(decodes(three, 3), i % 4 == 0);
    }
}

static void every_other_character_is_refused(void **state)
{
    (void)state;
    for (int c = 0; c < 256; c++) {
        bool good = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                    c == '+' || c == '/';
        for (size_t at = 0; at < 8; at++) {
            char text[] = "AAAAAAAA";
            text[at] = (char)c;
            /* Only a single '=' at the very end is padding; it leaves "AAAAAAA" = 5 bytes. */
            assert_int_equal(decodes(text, 8), good || (c == '=' && at == 7));
        }
    }
}

static void exact_length_is_checked_before_writing(void **state)
{
    (void)state;
    uint8_t out[3] = {1, 2, 3};
    assert_false(base64_decode_exact("Zm9vYmFy", out, 3));
    assert_false(base64_decode_exact("Zm8=", out, 3));
    assert_false(base64_decode_exact("", out, 3));
    assert_memory_equal(out, "\1\2\3", 3);
    assert_true(base64_decode_exact("Zm9v", out, 3));
    assert_true(base64_decode_exact("", out, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_of_rfc_4648),
        cmocka_unit_test(every_length_survives_the_round_trip),
        cmocka_unit_test(large_values_are_encoded_in_chunks),
        cmocka_unit_test(malformed_text_is_refused),
        cmocka_unit_test(trailing_bits_must_be_zero),
        cmocka_unit_test(every_other_character_is_refused),
        cmocka_unit_test(exact_length_is_checked_before_writing),
    };
    return cmocka_run_group_tests_name("base64", tests, NULL, NULL);
}
