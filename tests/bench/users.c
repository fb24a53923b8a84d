/*
 * See users.h. Grade of failure: everything ends the program.
 */
#include "tests/bench/users.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "rpc/envelope.h"
#include "util/base64.h"
#include "util/clock.h"
#include "util/mem.h"

_Noreturn void bench_die(const char *what, const char *detail)
{
    fprintf(stderr, "bench: %s %s\n", what, detail);
    exit(1);
}

void bench_say(const char *word)
{
    if (printf("%s\n", word) < 0 || fflush(stdout) != 0)
        bench_die("cannot write to", "stdout");
}

double bench_cpu_us(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e6 +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

void bench_user_make(struct bench_user *u, unsigned i)
{
    uint8_t hash[64];
    snprintf(u->login, sizeof u->login, "bench%u", i);
    crypto_hash_sha512(hash, (const uint8_t *)u->login, strlen(u->login));
    memcpy(u->seed, hash, DM_KEY_BYTES);
    memcpy(u->session_seed, hash + DM_KEY_BYTES, DM_KEY_BYTES);
}

void bench_ask(struct ws_conn *conn, const char *op, json_t *payload)
{
    size_t len;
    char *text = rpc_request_text(op, op, payload, &len);
    json_decref(payload);
    if (!ws_send_text(conn, text, len))
        bench_die("cannot send", op);
    free(text);
}

static void create_session(const struct bench_user *u, struct ws_conn *conn, const char *nonce)
{
    uint8_t key[DM_KEY_BYTES], session_key[DM_KEY_BYTES], sig[crypto_sign_BYTES];
    uint8_t pk[crypto_sign_PUBLICKEYBYTES], sk[crypto_sign_SECRETKEYBYTES];
    char client_b64[64], session_b64[64] = "ed25519/", sig_b64[128];
    dm_public_key(u->seed, key);
    dm_public_key(u->session_seed, session_key);
    base64_encode(key, sizeof key, client_b64);
    base64_encode(session_key, sizeof session_key, session_b64 + 8);
    int64_t now = clock_wall_ms();
    char *text = xasprintf("AUTH_CREATE_SESSION:%s:%s:bench:%" PRId64 ":%s", u->login, session_b64,
                           now, nonce);
    crypto_sign_seed_keypair(pk, sk, u->seed);
    crypto_sign_detached(sig, NULL, (const uint8_t *)text, strlen(text), sk);
    free(text);
    base64_encode(sig, sizeof sig, sig_b64);
    bench_ask(conn, "CreateAuthSession",
              json_pack("{s:s, s:s, s:s, s:I, s:s, s:s, s:s, s:s}", "login", u->login, "sessionKey",
                        session_b64, "storagePwd", "bench", "timeMs", (json_int_t)now, "authNonce",
                        nonce, "clientKey", client_b64, "signatureB64", sig_b64, "clientInfo",
                        "bench"));
}

void bench_login_begin(const struct bench_user *u, struct ws_conn *conn)
{
    bench_ask(conn, "AuthChallenge", json_pack("{s:s}", "login", u->login));
}

bool bench_login_answer(const struct bench_user *u, struct ws_conn *conn, const char *text,
                        size_t len)
{
    struct rpc_answer a;
    if (!rpc_answer_parse(text, len, &a) || a.status != 200)
        bench_die("log-in refused:", text);
    const char *nonce = json_string_value(json_object_get(a.payload, "authNonce"));
    bool done = nonce == NULL;
    if (nonce)
        create_session(u, conn, nonce);
    rpc_answer_free(&a);
    return done;
}

void bench_users_print(unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        struct bench_user u = {0};
        uint8_t key[DM_KEY_BYTES];
        char text[64];
        bench_user_make(&u, i);
        dm_public_key(u.seed, key);
        base64_encode(key, sizeof key, text);
        printf("%s %s\n", u.login, text);
    }
}
