/*
 * The JSON writer. Raises: a tree that cannot be written, or an object closed too often, is our
 * bug.
 */
#include "rpc/json_out.h"

#include "util/base64.h"
#include "util/decimal.h"
#include "util/mem.h"

#include <string.h>

/* Unbounded, so nothing here can fail. */
static char *room(struct json_out *o, size_t n)
{
    return (char *)buf_reserve(&o->text, n);
}

static void put(struct json_out *o, const char *s, size_t n)
{
    (void)buf_append(&o->text, s, n);
}

static void put_char(struct json_out *o, char c)
{
    put(o, &c, 1);
}

/* `,"name":`, and what follows is a value. */
static void member(struct json_out *o, const char *name)
{
    size_t n = strlen(name);
    char *at = room(o, n + 4), *p = at;
    if (o->comma)
        *p++ = ',';
    *p++ = '"';
    memcpy(p, name, n);
    p += n;
    *p++ = '"';
    *p++ = ':';
    buf_commit(&o->text, (size_t)(p - at));
    o->comma = true;
}

static void open_level(struct json_out *o, bool list)
{
    shine_assert(o->depth < 64);
    put_char(o, list ? '[' : '{');
    o->lists = (o->lists << 1) | list;
    o->depth++;
    o->comma = false;
}

/* The comma before an item of an array. */
static void next_item(struct json_out *o)
{
    shine_assert(o->lists & 1);
    if (o->comma)
        put_char(o, ',');
    o->comma = true;
}

void json_out_begin(struct json_out *o, size_t expected)
{
    *o = (struct json_out){0};
    buf_init(&o->text, 0);
    (void)room(o, expected + 1);
    open_level(o, false);
}

char *json_out_end(struct json_out *o, size_t *len)
{
    while (o->depth > 0)
        json_out_close(o);
    *len = buf_len(&o->text);
    put_char(o, '\0');
    shine_assert(o->text.off == 0); /* nothing was consumed: the storage is the text */
    return (char *)o->text.data;
}

void json_out_open(struct json_out *o, const char *name)
{
    member(o, name);
    open_level(o, false);
}

void json_out_close(struct json_out *o)
{
    shine_assert(o->depth > 0);
    put_char(o, o->lists & 1 ? ']' : '}');
    o->lists >>= 1;
    o->depth--;
    o->comma = true;
}

void json_out_list(struct json_out *o, const char *name)
{
    member(o, name);
    open_level(o, true);
}

void json_out_item(struct json_out *o)
{
    next_item(o);
    open_level(o, false);
}

/* Everything from U+0020 except quote and backslash stands for itself (RFC 8259, section 7). */
static bool is_plain(unsigned char c)
{
    return c >= 0x20 && c != '"' && c != '\\';
}

static void put_escape(struct json_out *o, unsigned char c)
{
    static const char hex[] = "0123456789abcdef";
    const char text[] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
    put(o, text, sizeof text);
}

void json_out_string(struct json_out *o, const char *name, const char *s)
{
    member(o, name);
    put_char(o, '"');
    while (*s) {
        size_t run = 0;
        while (is_plain((unsigned char)s[run]))
            run++;
        put(o, s, run);
        s += run;
        if (*s)
            put_escape(o, (unsigned char)*s++);
    }
    put_char(o, '"');
}

size_t json_out_string_len(const char *s)
{
    size_t n = 2;
    for (; *s; s++)
        n += is_plain((unsigned char)*s) ? 1 : 6;
    return n;
}

void json_out_int(struct json_out *o, const char *name, int64_t v)
{
    member(o, name);
    size_t n = decimal_write(room(o, DECIMAL_MAX), v);
    buf_commit(&o->text, n);
}

void json_out_bool(struct json_out *o, const char *name, bool v)
{
    member(o, name);
    put(o, v ? "true" : "false", v ? 4 : 5);
}

static void put_base64(struct json_out *o, const uint8_t *p, size_t n)
{
    size_t len = base64_encoded_len(n);
    char *at = room(o, len + 3); /* quotes, and the NUL that base64_encode() writes */
    at[0] = '"';
    base64_encode(p, n, at + 1);
    at[len + 1] = '"';
    buf_commit(&o->text, len + 2);
}

void json_out_base64(struct json_out *o, const char *name, const uint8_t *p, size_t n)
{
    member(o, name);
    put_base64(o, p, n);
}

void json_out_item_base64(struct json_out *o, const uint8_t *p, size_t n)
{
    next_item(o);
    put_base64(o, p, n);
}

static int put_chunk(const char *chunk, size_t n, void *o)
{
    put(o, chunk, n);
    return 0;
}

void json_out_tree(struct json_out *o, const char *name, const json_t *v)
{
    member(o, name);
    shine_assert(json_dump_callback(v, put_chunk, o, JSON_COMPACT | JSON_ENCODE_ANY) == 0);
}
