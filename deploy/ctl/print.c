/* shinectl: output. What strangers wrote never reaches the terminal as it is. See print.h. */
#include "deploy/ctl/print.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dm/key.h"
#include "util/base64.h"
#include "util/mem.h"
#include "util/utf8.h"

void ctl_print_json(json_t *value)
{
    json_dumpf(value, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
    fputc('\n', stdout);
    fflush(stdout);
    json_decref(value);
}

/* Controls (C0, DEL, C1) steer a terminal; separators and directions of writing rearrange its
 * lines. */
static bool is_harmless(uint32_t c)
{
    return c >= 0x20 && !(c >= 0x7f && c <= 0x9f) && c != 0xfeff && !(c >= 0x2028 && c <= 0x202e) &&
           !(c >= 0x2066 && c <= 0x2069);
}

void ctl_print_text(FILE *to, const char *s, size_t n)
{
    char *copy = xmemdup0(s, n); /* the decoder wants its end */
    for (size_t i = 0; i < n;) {
        uint32_t c;
        size_t len = utf8_decode(copy + i, &c);
        if (len > 0 && is_harmless(c))
            (void)fwrite(copy + i, 1, len, to);
        else
            fputc('?', to);
        i += len > 0 ? len : 1;
    }
    free(copy);
}

void ctl_print_string(FILE *to, const char *s)
{
    ctl_print_text(to, s, strlen(s));
}

void ctl_time_text(int64_t unix_ms, char out[32])
{
    time_t t = (time_t)(unix_ms / 1000);
    struct tm tm;
    if (!gmtime_r(&t, &tm) || strftime(out, 32, "%Y-%m-%d %H:%M:%S", &tm) == 0)
        snprintf(out, 32, "%" PRId64, unix_ms);
}

const char *ctl_json_text(const json_t *object, const char *name)
{
    const char *s = json_string_value(json_object_get(object, name));
    return s ? s : "";
}

/* --- messages --- */

/* "author|other|timeMs|nonce" of what a receipt or a tombstone names. */
static void print_ref(const struct dm_container *c, bool by_to, int64_t time_ms, uint32_t nonce)
{
    printf("%s|%s|%" PRId64 "|%" PRIu32, by_to ? c->to : c->from, by_to ? c->from : c->to, time_ms,
           nonce);
}

static void print_for_whom(const struct dm_container *c, bool both)
{
    if (both)
        printf(", for both)");
    else
        printf(", for %s only)", c->from);
}

static void print_body(const struct dm_container *c)
{
    char when[32];
    switch (c->type) {
    case DM_TEXT_IN:
    case DM_TEXT_OUT:
        if (c->body[0] == 0)
            ctl_print_text(stdout, (const char *)c->body + 1, c->body_len - 1);
        else
            printf("(encrypted, %zu bytes)", c->body_len);
        return;
    case DM_RECEIPT_IN:
    case DM_RECEIPT_OUT: {
        struct dm_receipt r = dm_receipt_of(c);
        ctl_time_text(r.read_at_ms, when);
        printf("(has read ");
        print_ref(c, true, r.ref_time_ms, r.ref_nonce);
        printf(" at %s)", when);
        return;
    }
    case DM_DELETE_BOTH:
    case DM_DELETE_OWN: {
        struct dm_delete d = dm_delete_of(c);
        printf("(deleted ");
        print_ref(c, d.by_to, d.ref_time_ms, d.ref_nonce);
        print_for_whom(c, c->type == DM_DELETE_BOTH);
        return;
    }
    case DM_CLEAR_BOTH:
    case DM_CLEAR_OWN:
        ctl_time_text(dm_clear_of(c).until_time_ms, when);
        printf("(deleted the conversation up to %s", when);
        print_for_whom(c, c->type == DM_CLEAR_BOTH);
        return;
    }
}

void ctl_print_body(const json_t *m)
{
    const char *b64 = ctl_json_text(m, "blobB64");
    uint8_t *blob = xmalloc(base64_decoded_max(strlen(b64)));
    size_t n;
    struct dm_container c;
    if (base64_decode(b64, strlen(b64), blob, &n) && dm_parse(blob, n, &c) == DM_OK)
        print_body(&c);
    else
        printf("(unreadable)");
    free(blob);
}

static void print_time_if(const json_t *m, const char *name, const char *what)
{
    char when[32];
    int64_t ms = json_integer_value(json_object_get(m, name));
    if (ms <= 0)
        return;
    ctl_time_text(ms, when);
    printf("  (%s %s)", what, when);
}

void ctl_print_message(const json_t *m)
{
    char when[32];
    const char *state = ctl_json_text(m, "deliveryState");
    ctl_time_text(json_integer_value(json_object_get(m, "timeMs")), when);
    printf("%s  ", when);
    ctl_print_string(stdout, ctl_json_text(m, "fromLogin"));
    printf(" → ");
    ctl_print_string(stdout, ctl_json_text(m, "toLogin"));
    printf("  ");
    ctl_print_body(m);
    print_time_if(m, "revisionTimeMs", "edited");
    print_time_if(m, "readAtMs", "read");
    if (*state) {
        printf("  [");
        ctl_print_string(stdout, state);
        printf("]");
    }
    printf("\n");
    fflush(stdout);
}
