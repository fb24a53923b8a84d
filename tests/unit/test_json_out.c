/* The JSON writer: what it writes, jansson reads back as the same values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/json_out.h"
#include "util/base64.h"
#include "util/decimal.h"
#include "util/mem.h"

static void commas_and_nesting(void **state)
{
    (void)state;
    struct json_out o;
    size_t len;
    json_out_begin(&o, 0);
    char *text = json_out_end(&o, &len);
    assert_string_equal(text, "{}");
    assert_int_equal(len, 2);
    free(text);

    json_t *tree = json_pack("[i, {s:n}]", 1, "n");
    json_out_begin(&o, 1000);
    json_out_open(&o, "a");
    json_out_close(&o);
    json_out_string(&o, "s", "");
    json_out_open(&o, "b");
    json_out_int(&o, "i", 1);
    json_out_bool(&o, "t", true);
    json_out_bool(&o, "f", false);
    json_out_open(&o, "c");
    json_out_tree(&o, "tree", tree);
    json_out_close(&o);
    json_out_base64(&o, "x", (const uint8_t *)"x", 1);
    text = json_out_end(&o, &len); /* closes what is open */
    assert_string_equal(text, "{\"a\":{},\"s\":\"\",\"b\":{\"i\":1,\"t\":true,\"f\":false,"
                              "\"c\":{\"tree\":[1,{\"n\":null}]},\"x\":\"eA==\"}}");
    assert_int_equal(len, strlen(text));
    free(text);
    json_decref(tree);
}

/* The value of the one member "v" of `o`, read back. */
static json_t *read_back(struct json_out *o)
{
    size_t len;
    char *text = json_out_end(o, &len);
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    assert_int_equal(json_object_size(root), 1);
    json_t *v = json_incref(json_object_get(root, "v"));
    json_decref(root);
    free(text);
    return v;
}

static void check_string(const char *s)
{
    struct json_out o;
    json_out_begin(&o, 0);
    json_out_string(&o, "v", s);
    json_t *v = read_back(&o);
    assert_string_equal(json_string_value(v), s);
    json_decref(v);
}

static void every_character_comes_back(void **state)
{
    (void)state;
    char s[8];
    for (unsigned c = 1; c < 0x80; c++) {
        (void)memcpy(s, "ab", 3);
        s[1] = (char)c;
        check_string(s);
        s[0] = (char)c; /* twice, and at the beginning */
        check_string(s);
    }
    check_string("");
    check_string("\\\"\\\"\n\\");
    check_string("\xc3\xa4\xe2\x82\xac\xf0\x9f\x90\xb1 \xe2\x80\xa8\xe2\x80\xa9 \x7f");
}

/* Strings of every length around the growth of the buffer, of characters that need escapes and
 * others. */
static void long_strings_come_back(void **state)
{
    (void)state;
    static const char alphabet[] = "a\"\\\n\x01 /\t~";
    char s[1500];
    for (size_t n = 0; n < sizeof s - 1; n += 7) {
        for (size_t i = 0; i < n; i++)
            s[i] = alphabet[randombytes_uniform(sizeof alphabet - 1)];
        s[n] = '\0';
        check_string(s);
    }
}

static void integers_come_back(void **state)
{
    (void)state;
    static const int64_t values[] = {
        0,         1,         -1,         9,         10,  -10,   999,       1000,
        INT32_MAX, INT32_MIN, UINT32_MAX, INT64_MAX, 100, -1000, INT64_MIN, INT64_MIN + 1};
    struct json_out o;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        json_out_begin(&o, 0);
        json_out_int(&o, "v", values[i]);
        json_t *v = read_back(&o);
        assert_true(json_is_integer(v) && json_integer_value(v) == values[i]);
        json_decref(v);
    }
    char text[DECIMAL_MAX];
    assert_int_equal(decimal_write(text, INT64_MIN), DECIMAL_MAX);
}

static void blobs_come_back(void **state)
{
    (void)state;
    uint8_t blob[700], back[703];
    struct json_out o;
    randombytes_buf(blob, sizeof blob);
    for (size_t n = 0; n <= sizeof blob; n++) {
        size_t len;
        json_out_begin(&o, 0);
        json_out_base64(&o, "v", blob, n);
        json_t *v = read_back(&o);
        assert_true(base64_decode(json_string_value(v), json_string_length(v), back, &len));
        assert_int_equal(len, n);
        assert_memory_equal(back, blob, n);
        json_decref(v);
    }
}

static void lists_of_objects_and_blobs(void **state)
{
    (void)state;
    struct json_out o;
    size_t len;
    json_out_begin(&o, 0);
    json_out_list(&o, "none");
    json_out_close(&o);
    json_out_list(&o, "items");
    for (int i = 0; i < 2; i++) {
        json_out_item(&o);
        json_out_int(&o, "n", i);
        json_out_list(&o, "blobs");
        for (int b = 0; b <= i; b++)
            json_out_item_base64(&o, (const uint8_t *)"abc", 3);
        json_out_close(&o);
        json_out_open(&o, "o");
        json_out_close(&o);
        json_out_close(&o);
    }
    json_out_close(&o);
    json_out_bool(&o, "last", true);
    size_t before = json_out_len(&o);
    json_out_list(&o, "open"); /* closed by the end */
    json_out_item(&o);
    char *text = json_out_end(&o, &len);
    assert_string_equal(text, "{\"none\":[],\"items\":[{\"n\":0,\"blobs\":[\"YWJj\"],\"o\":{}},"
                              "{\"n\":1,\"blobs\":[\"YWJj\",\"YWJj\"],\"o\":{}}],\"last\":true,"
                              "\"open\":[{}]}");
    assert_int_equal(len, before + strlen(",\"open\":[{}]}"));
    free(text);
}

static void the_length_of_a_string_is_known_before(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "a", "\"\\", "\x01\x1f \x7f", "\xc3\xa9/"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct json_out o;
        size_t len;
        json_out_begin(&o, 0);
        json_out_string(&o, "v", texts[i]);
        char *text = json_out_end(&o, &len);
        assert_int_equal(len, strlen("{\"v\":}") + json_out_string_len(texts[i]));
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commas_and_nesting),
        cmocka_unit_test(every_character_comes_back),
        cmocka_unit_test(long_strings_come_back),
        cmocka_unit_test(integers_come_back),
        cmocka_unit_test(blobs_come_back),
        cmocka_unit_test(lists_of_objects_and_blobs),
        cmocka_unit_test(the_length_of_a_string_is_known_before),
    };
    if (sodium_init() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
