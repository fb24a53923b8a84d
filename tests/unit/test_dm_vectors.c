/*
 * The C codec against tests/vectors/, which tests/vectors/make_vectors.py (it describes the files)
 * makes with an implementation of its own. Run from the top of the source tree, or with it as
 * the argument.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dm/key.h"
#include "util/mem.h"

/* ---- reading JSON ---- */

static json_t *load(const char *name)
{
    char *path = xasprintf("tests/vectors/%s", name);
    json_error_t err;
    json_t *j = json_load_file(path, JSON_REJECT_DUPLICATES, &err);
    if (!j)
        fail_msg("%s:%d: %s", path, err.line, err.text);
    free(path);
    return j;
}

static json_t *member(const json_t *o, const char *name)
{
    json_t *v = json_object_get(o, name);
    if (!v)
        fail_msg("no member %s", name);
    return v;
}

static const char *text_of(const json_t *o, const char *name)
{
    const char *s = json_string_value(member(o, name));
    assert_non_null(s);
    return s;
}

static int64_t int_of(const json_t *o, const char *name)
{
    json_t *v = member(o, name);
    assert_true(json_is_integer(v));
    return json_integer_value(v);
}

/* Bytes in an allocation of exactly their size, so that ASan sees a read past the end. */
struct bytes {
    uint8_t *p;
    size_t n;
};

static struct bytes bytes_of_hex(const char *hex)
{
    size_t n = strlen(hex) / 2;
    struct bytes b = {xmalloc(n), 0};
    assert_int_equal(sodium_hex2bin(b.p, n, hex, n * 2, NULL, &b.n, NULL), 0);
    assert_int_equal(b.n, n);
    return b;
}

static struct bytes hex_of(const json_t *o, const char *name)
{
    return bytes_of_hex(text_of(o, name));
}

static void assert_hex(const uint8_t *p, size_t n, const json_t *o, const char *name)
{
    struct bytes want = hex_of(o, name);
    assert_int_equal(n, want.n);
    assert_memory_equal(p, want.p, n);
    free(want.p);
}

static struct bytes body_of(const json_t *fields)
{
    const json_t *body = member(fields, "body");
    if (json_object_get(body, "hex"))
        return hex_of(body, "hex");
    size_t n = (size_t)int_of(body, "fill");
    struct bytes b = {xmalloc(n), n};
    for (size_t i = 0; i < n; i++)
        b.p[i] = (uint8_t)(31 * i + 7);
    return b;
}

/* A login of more than 30 bytes fills the array without a NUL, as only a bug of a caller could. */
static void set_login(char out[DM_LOGIN_MAX + 1], const char *s)
{
    size_t n = strnlen(s, DM_LOGIN_MAX + 1);
    memset(out, 0, DM_LOGIN_MAX + 1);
    memcpy(out, s, n);
}

static struct dm_container container_of_fields(const json_t *f, const struct bytes *body)
{
    struct dm_container c = {
        .type = (enum dm_type)int_of(f, "type"),
        .time_ms = int_of(f, "timeMs"),
        .nonce = (uint32_t)int_of(f, "nonce"),
        .revision_time_ms = int_of(f, "revisionTimeMs"),
        .reencrypted_at_ms = int_of(f, "reencryptedAtMs"),
        .body = body->p,
        .body_len = body->n,
    };
    set_login(c.from, text_of(f, "from"));
    set_login(c.to, text_of(f, "to"));
    return c;
}

/* ---- containers that are good ---- */

static void assert_same_fields(const struct dm_container *a, const struct dm_container *b)
{
    assert_int_equal(a->type, b->type);
    assert_string_equal(a->from, b->from);
    assert_string_equal(a->to, b->to);
    assert_int_equal(a->time_ms, b->time_ms);
    assert_int_equal(a->nonce, b->nonce);
    assert_int_equal(a->revision_time_ms, b->revision_time_ms);
    assert_int_equal(a->reencrypted_at_ms, b->reencrypted_at_ms);
    assert_int_equal(a->body_len, b->body_len);
    assert_memory_equal(a->body, b->body, a->body_len);
}

/* The accessor of the body gives what the vector says, the encoder gives the body back. */
static void check_parsed_body(const struct dm_container *c, const json_t *want)
{
    uint8_t out[DM_RECEIPT_BODY];
    size_t n = 0;
    if (c->type <= DM_TEXT_OUT) {
        assert_true(json_is_null(want));
        return;
    }
    if (c->type <= DM_RECEIPT_OUT) {
        struct dm_receipt r = dm_receipt_of(c);
        assert_int_equal(r.ref_time_ms, int_of(want, "refTimeMs"));
        assert_int_equal(r.ref_nonce, int_of(want, "refNonce"));
        assert_int_equal(r.read_at_ms, int_of(want, "readAtMs"));
        n = dm_receipt_body(&r, out);
    } else if (c->type <= DM_DELETE_OWN) {
        struct dm_delete d = dm_delete_of(c);
        assert_int_equal(d.by_to, json_is_true(member(want, "byTo")));
        assert_int_equal(d.ref_time_ms, int_of(want, "refTimeMs"));
        assert_int_equal(d.ref_nonce, int_of(want, "refNonce"));
        n = dm_delete_body(&d, out);
    } else {
        struct dm_clear d = dm_clear_of(c);
        assert_int_equal(d.until_time_ms, int_of(want, "untilTimeMs"));
        n = dm_clear_body(&d, out);
    }
    assert_int_equal(n, c->body_len);
    assert_memory_equal(out, c->body, n);
}

static void check_names(const struct dm_container *c, const json_t *v)
{
    char base[DM_BASE_KEY_MAX];
    char message[DM_MESSAGE_KEY_MAX];
    char delivery[DM_MESSAGE_KEY_MAX];
    struct dm_key k;
    dm_base_key(c, base);
    dm_message_key(c, message);
    assert_string_equal(base, text_of(v, "baseKey"));
    assert_string_equal(message, text_of(v, "messageKey"));
    assert_true(dm_key_parse(message, &k));
    dm_delivery_key(&k, delivery);
    assert_string_equal(delivery, text_of(v, "deliveryKey"));
}

static void check_valid(const json_t *v)
{
    struct bytes body = body_of(member(v, "fields"));
    struct bytes seed = hex_of(v, "seed");
    struct dm_container c = container_of_fields(member(v, "fields"), &body);

    uint8_t key[DM_KEY_BYTES];
    dm_public_key(seed.p, key);
    assert_hex(key, sizeof(key), v, "clientKey");

    size_t n = dm_container_len(&c);
    assert_int_equal(n, int_of(v, "length"));
    uint8_t *blob = xmalloc(n);
    assert_int_equal(dm_build(&c, seed.p, blob), DM_OK);
    assert_hex(blob + n - DM_SIG_BYTES, DM_SIG_BYTES, v, "signature");
    if (json_object_get(v, "blob"))
        assert_hex(blob, n, v, "blob");
    uint8_t hash[32];
    dm_sha256(blob, n, hash);
    assert_hex(hash, sizeof(hash), v, "sha256");

    struct dm_container parsed;
    assert_int_equal(dm_parse(blob, n, &parsed), DM_OK);
    assert_same_fields(&parsed, &c);
    assert_ptr_equal(parsed.sig, blob + n - DM_SIG_BYTES);
    assert_true(dm_verify(blob, n, key));
    check_parsed_body(&parsed, member(v, "parsedBody"));
    check_names(&parsed, v);
    free(blob);
    free(seed.p);
    free(body.p);
}

/* Run `check` over a file of vectors. *state names the one under way, for note_failed(). */
static void each(void **state, json_t *vectors, void (*check)(const json_t *v))
{
    size_t i = 0;
    json_t *v = NULL;
    assert_true(json_array_size(vectors) > 0);
    json_array_foreach(vectors, i, v) {
        free(*state);
        const char *name = json_string_value(json_object_get(v, "name"));
        *state = xasprintf("vector %zu %s", i, name ? name : "");
        check(v);
    }
    free(*state);
    *state = NULL;
}

static int note_failed(void **state)
{
    if (*state)
        print_error("failed in %s\n", (const char *)*state);
    free(*state);
    return 0;
}

static void test_valid(void **state)
{
    json_t *j = load("valid.json");
    each(state, j, check_valid);
    json_decref(j);
}

/* ---- what must be refused ---- */

static struct bytes apply_cuts(const json_t *base, json_t *cuts)
{
    struct bytes b = bytes_of_hex(json_string_value(base));
    size_t i = 0;
    json_t *cut = NULL;
    json_array_foreach(cuts, i, cut) {
        struct bytes in = hex_of(cut, "hex");
        size_t at = (size_t)int_of(cut, "at");
        size_t zeros = (size_t)int_of(cut, "zeros");
        size_t end = at + (size_t)int_of(cut, "drop");
        end = end < b.n ? end : b.n;
        assert_true(at <= b.n);
        struct bytes out = {NULL, at + in.n + zeros + b.n - end};
        out.p = xcalloc(out.n, 1);
        memcpy(out.p, b.p, at);
        memcpy(out.p + at, in.p, in.n);
        memcpy(out.p + at + in.n + zeros, b.p + end, b.n - end);
        free(in.p);
        free(b.p);
        b = out;
    }
    return b;
}

static void test_reject(void **state)
{
    json_t *j = load("reject.json");
    const json_t *bases = member(j, "bases");
    size_t i = 0;
    json_t *v = NULL;
    json_array_foreach(member(j, "cases"), i, v) {
        free(*state);
        *state = xasprintf("%s", text_of(v, "name"));
        struct bytes b = apply_cuts(member(bases, text_of(v, "base")), member(v, "cuts"));
        struct dm_container c;
        assert_string_equal(dm_error_name(dm_parse(b.p, b.n, &c)), text_of(v, "code"));
        free(b.p);
    }
    assert_true(i > 0);
    free(*state);
    *state = NULL;
    json_decref(j);
}

static void check_build_reject(const json_t *v)
{
    static const uint8_t seed[DM_KEY_BYTES] = {1};
    struct bytes body = body_of(member(v, "fields"));
    struct dm_container c = container_of_fields(member(v, "fields"), &body);
    uint8_t out[1] = {0xa5};
    assert_string_equal(dm_error_name(dm_build(&c, seed, out)), text_of(v, "code"));
    assert_int_equal(out[0], 0xa5); /* nothing written */
    free(body.p);
}

static void test_build_reject(void **state)
{
    json_t *j = load("build_reject.json");
    each(state, j, check_build_reject);
    json_decref(j);
}

/* ---- keys, pairs, order ---- */

static void check_good_key(const json_t *v)
{
    struct dm_key k;
    char delivery[DM_MESSAGE_KEY_MAX];
    assert_true(dm_key_parse(text_of(v, "key"), &k));
    assert_string_equal(k.from, text_of(v, "from"));
    assert_string_equal(k.to, text_of(v, "to"));
    assert_int_equal(k.time_ms, int_of(v, "timeMs"));
    assert_int_equal(k.nonce, int_of(v, "nonce"));
    assert_int_equal(k.type, int_of(v, "type"));
    dm_delivery_key(&k, delivery);
    assert_string_equal(delivery, text_of(v, "deliveryKey"));
}

static void check_bad_key(const json_t *v)
{
    struct dm_key k;
    char *exact = xstrdup(text_of(v, "key"));
    if (dm_key_parse(exact, &k))
        fail_msg("accepted: %s", text_of(v, "why"));
    free(exact);
}

static void test_keys(void **state)
{
    json_t *j = load("keys.json");
    each(state, member(j, "good"), check_good_key);
    each(state, member(j, "bad"), check_bad_key);
    json_decref(j);
}

static void check_pair(const json_t *v)
{
    struct bytes in = hex_of(v, "in");
    struct bytes out = hex_of(v, "out");
    struct dm_container a;
    struct dm_container b;
    assert_int_equal(dm_parse(in.p, in.n, &a), DM_OK);
    assert_int_equal(dm_parse(out.p, out.n, &b), DM_OK);
    assert_int_equal(dm_is_pair(&a, &b), json_is_true(member(v, "pair")));
    free(in.p);
    free(out.p);
}

static void test_pairs(void **state)
{
    json_t *j = load("pairs.json");
    each(state, j, check_pair);
    json_decref(j);
}

static struct dm_container with_revision(const json_t *pair)
{
    return (struct dm_container){
        .type = DM_TEXT_IN,
        .revision_time_ms = json_integer_value(json_array_get(pair, 0)),
        .reencrypted_at_ms = json_integer_value(json_array_get(pair, 1)),
    };
}

static void check_order(const json_t *v)
{
    struct dm_container a = with_revision(member(v, "a"));
    struct dm_container b = with_revision(member(v, "b"));
    int cmp = dm_revision_cmp(&a, &b);
    assert_int_equal((cmp > 0) - (cmp < 0), int_of(v, "cmp"));
}

static void check_tie(const json_t *v)
{
    struct bytes a = hex_of(v, "a");
    struct bytes b = hex_of(v, "b");
    uint8_t ha[32];
    uint8_t hb[32];
    dm_sha256(a.p, a.n, ha);
    dm_sha256(b.p, b.n, hb);
    assert_string_equal(memcmp(ha, hb, 32) > 0 ? "a" : "b", text_of(v, "kept"));
    free(a.p);
    free(b.p);
}

static void test_revisions(void **state)
{
    json_t *j = load("revisions.json");
    each(state, member(j, "order"), check_order);
    each(state, member(j, "ties"), check_tie);
    json_decref(j);
}

/* ---- signatures ---- */

static void check_signature(const json_t *v)
{
    struct bytes blob = hex_of(v, "blob");
    struct bytes key = hex_of(v, "key");
    assert_int_equal(dm_verify(blob.p, blob.n, key.p), json_is_true(member(v, "ok")));
    free(blob.p);
    free(key.p);
}

static void test_signatures(void **state)
{
    json_t *j = load("signatures.json");
    each(state, j, check_signature);
    json_decref(j);
}

int main(int argc, char **argv)
{
    if (argc > 1 && chdir(argv[1]) != 0)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_valid, note_failed),
        cmocka_unit_test_teardown(test_reject, note_failed),
        cmocka_unit_test_teardown(test_build_reject, note_failed),
        cmocka_unit_test_teardown(test_keys, note_failed),
        cmocka_unit_test_teardown(test_pairs, note_failed),
        cmocka_unit_test_teardown(test_revisions, note_failed),
        cmocka_unit_test_teardown(test_signatures, note_failed),
    };
    if (sodium_init() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
