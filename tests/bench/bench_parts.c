/*
 * CPU of the parts of frontd's work on one pair, each alone and with warm caches.
 *
 *   bench_parts        prints one JSON object, microseconds per pair
 *
 * What is left of a daemon's CPU per pair beside these is TLS, sockets, the loop, and the
 * protocol of the database.
 *
 * Grade of failure: it exits with a message.
 */
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "dm/container.h"
#include "dm/key.h"
#include "rpc/envelope.h"
#include "rpc/fields.h"
#include "util/base64.h"

enum { BODY_BYTES = 256, ROUNDS = 3000 };

struct pair {
    uint8_t key[DM_KEY_BYTES];
    uint8_t blob[2][1024];
    size_t len[2];
    char *request;
    size_t request_len;
};

static void check(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "bench_parts: %s failed\n", what);
    exit(1);
}

static double cpu_us(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e6 +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void part_verify(const struct pair *p)
{
    for (int i = 0; i < 2; i++)
        check(dm_verify(p->blob[i], p->len[i], p->key), "a good signature");
}

static void part_hash(const struct pair *p)
{
    uint8_t hash[32];
    for (int i = 0; i < 2; i++)
        dm_sha256(p->blob[i], p->len[i], hash);
}

/* From the text to two containers. */
static void part_read(const struct pair *p)
{
    static const char *const names[] = {"incomingBlobB64", "outgoingBlobB64"};
    struct rpc_request req;
    const char *message;
    check(rpc_request_parse(p->request, p->request_len, &req, &message) == RPC_OK, "a request");
    struct rpc_fields fields = rpc_fields_of(req.payload);
    for (int i = 0; i < 2; i++) {
        uint8_t *blob = NULL;
        size_t len = 0;
        struct dm_container c;
        check(rpc_blob(&fields, names[i], sizeof p->blob[i], &blob, &len), "a blob");
        check(dm_parse(blob, len, &c) == DM_OK, "a container");
        free(blob);
    }
    rpc_request_free(&req);
}

/* The answer and two events, each of about the members that frontd's have. */
static void part_write(const struct pair *p)
{
    struct json_out o;
    size_t len;
    for (int i = 0; i < 3; i++) {
        struct dm_container c;
        char base[DM_BASE_KEY_MAX], key[DM_MESSAGE_KEY_MAX];
        check(dm_parse(p->blob[i % 2], p->len[i % 2], &c) == DM_OK, "a container");
        dm_base_key(&c, base);
        dm_message_key(&c, key);
        if (i == 2)
            rpc_answer_begin(&o, "SendMessagePair", "1", 512);
        else
            rpc_event_begin(&o, "IncomingDirectMessage", 512 + base64_encoded_len(p->len[i]));
        json_out_string(&o, "messageKey", key);
        json_out_string(&o, "baseKey", base);
        json_out_string(&o, "deliveryState", "delivered");
        json_out_int(&o, "pts", c.time_ms);
        json_out_int(&o, "timeMs", c.time_ms);
        if (i < 2) {
            json_out_string(&o, "fromLogin", c.from);
            json_out_string(&o, "toLogin", c.to);
            json_out_int(&o, "messageType", c.type);
            json_out_int(&o, "revisionTimeMs", c.revision_time_ms);
            json_out_int(&o, "reencryptedAtMs", c.reencrypted_at_ms);
            json_out_base64(&o, "blobB64", p->blob[i], p->len[i]);
        }
        free(json_out_end(&o, &len));
    }
}

static void pair_make(struct pair *p)
{
    uint8_t seed[DM_KEY_BYTES], body[BODY_BYTES];
    char *text[2];
    randombytes_buf(seed, sizeof seed);
    dm_public_key(seed, p->key);
    for (int i = 0; i < 2; i++) {
        randombytes_buf(body, sizeof body);
        struct dm_container c = {.type = i == 0 ? DM_TEXT_IN : DM_TEXT_OUT,
                                 .from = "bench10",
                                 .to = "bench11",
                                 .time_ms = 1700000000000,
                                 .nonce = 123456789,
                                 .body = body,
                                 .body_len = sizeof body};
        p->len[i] = dm_container_len(&c);
        check(p->len[i] <= sizeof p->blob[i] && dm_build(&c, seed, p->blob[i]) == DM_OK,
              "building a container");
        text[i] = base64_encode_new(p->blob[i], p->len[i]);
    }
    json_t *payload =
        json_pack("{s:s, s:s}", "incomingBlobB64", text[0], "outgoingBlobB64", text[1]);
    p->request = rpc_request_text("SendMessagePair", "1", payload, &p->request_len);
    json_decref(payload);
    free(text[0]);
    free(text[1]);
}

int main(void)
{
    static const struct {
        const char *name;
        void (*run)(const struct pair *p);
    } parts[] = {
        {"verify", part_verify}, {"hash", part_hash}, {"read", part_read}, {"write", part_write}};
    struct pair p = {0};
    check(sodium_init() >= 0, "libsodium");
    pair_make(&p);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        double start = cpu_us();
        for (int n = 0; n < ROUNDS; n++)
            parts[i].run(&p);
        printf("%s\"%s\":%.2f", i == 0 ? "{" : ",", parts[i].name, (cpu_us() - start) / ROUNDS);
    }
    printf("}\n");
    free(p.request);
    return 0;
}
