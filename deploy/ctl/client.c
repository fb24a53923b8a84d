/* shinectl's side of the WebSocket protocol. See client.h. */
#include "deploy/ctl/client.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net/ws.h"
#include "util/base64.h"
#include "util/clock.h"
#include "util/mem.h"

#define ANSWER_TIMEOUT_MS 40000

struct ctl_client {
    struct ctl *ctl;
    struct tls_ctx *tls;
    struct ws_conn *conn; /* NULL once it has ended */
    const char *url;
    bool open, ended;
    bool changed; /* open, ended or an answer came: what ctl_wait() looks at */
    char end_reason[256];
    char session_id[64]; /* logged into; "" = none */
    ctl_event_cb on_event;
    void *event_ctx;
    unsigned next_id;
    char waiting_for[16];
    struct rpc_answer *answer; /* where the awaited answer goes; NULL = none awaited */
    bool answered;
};

static void on_open(struct ws_conn *conn, void *ctx)
{
    struct ctl_client *k = ctx;
    (void)conn;
    k->open = k->changed = true;
}

static void on_message(struct ws_conn *conn, void *ctx, const char *text, size_t len)
{
    struct ctl_client *k = ctx;
    struct rpc_answer a;
    (void)conn;
    if (!rpc_answer_parse(text, len, &a))
        return;
    if (a.is_event && k->on_event) {
        k->on_event(k->event_ctx, a.op, a.payload);
    } else if (!a.is_event && k->answer && !k->answered &&
               strcmp(a.request_id, k->waiting_for) == 0) {
        *k->answer = a;
        k->answered = k->changed = true;
        return;
    }
    rpc_answer_free(&a);
}

static void on_close(struct ws_conn *conn, void *ctx, enum ws_end end, int code, const char *reason)
{
    struct ctl_client *k = ctx;
    (void)conn;
    k->conn = NULL;
    k->ended = k->changed = true;
    snprintf(k->end_reason, sizeof k->end_reason, "%s (%s, code %d)",
             reason && *reason ? reason : "connection ended", ws_end_name(end), code);
}

static const struct ws_callbacks callbacks = {
    .on_open = on_open, .on_message = on_message, .on_close = on_close};

int ctl_client_open(struct ctl *c, ctl_event_cb on_event, void *ctx, struct ctl_client **out)
{
    struct ws_url url;
    const char *text = ctl_option(c, "url", 0), *ca = ctl_option(c, "ca", 0);
    char *error = NULL;
    if (!text)
        text = config_str(c->config, "server.url");
    if (!*text)
        return ctl_fail(CTL_CONFIG, "which server? Give --url, or server.url in the configuration");
    if (!ws_url_parse(text, &url))
        return ctl_fail(CTL_USAGE, "%s is not a URL of the form wss://host[:port]/path", text);
    if (!ca)
        ca = config_str(c->config, "tls.caFile");

    struct ctl_client *k = xnew(struct ctl_client);
    *k = (struct ctl_client){.ctl = c, .url = text, .on_event = on_event, .event_ctx = ctx};
    k->tls = tls_client_new(ca, config_bool(c->config, "tls.peerVerify"), &error);
    if (!k->tls) {
        int code = ctl_fail(CTL_CONFIG, "%s", error);
        free(error);
        free(k);
        return code;
    }
    struct ws_limits limits = ws_limits_default;
    k->conn = ws_dial(c->loop, &url, k->tls, &limits, &callbacks, k);
    (void)ctl_wait(c, &k->changed, 0);
    if (k->open && !k->ended) {
        *out = k;
        return CTL_OK;
    }
    int code = ctl_fail(CTL_UNREACHABLE, "%s: %s", text, k->end_reason);
    ctl_client_close(k);
    return code;
}

void ctl_client_close(struct ctl_client *k)
{
    if (k->conn) {
        ws_close(k->conn, 1000, "");
        (void)ctl_wait(k->ctl, &k->ended, 6000);
    }
    shine_assert(k->ended); /* ws_close() ends within its own deadline */
    tls_ctx_free(k->tls);
    free(k);
}

int ctl_client_ask(struct ctl_client *k, const char *op, json_t *payload, struct rpc_answer *answer)
{
    size_t len;
    if (!payload) /* json_pack() takes UTF-8 only */
        return ctl_fail(CTL_USAGE, "the arguments must be valid UTF-8");
    snprintf(k->waiting_for, sizeof k->waiting_for, "ctl-%u", ++k->next_id);
    char *text = rpc_request_text(op, k->waiting_for, payload, &len);
    json_decref(payload);
    bool sent = k->conn && ws_send_text(k->conn, text, len);
    free(text);
    if (!sent)
        return ctl_fail(CTL_UNREACHABLE, "%s: the request could not be sent", k->url);
    k->answer = answer;
    k->answered = k->changed = false;
    int64_t until = clock_mono_ms() + ANSWER_TIMEOUT_MS;
    while (!k->answered && !k->ended && clock_mono_ms() < until) {
        k->changed = false;
        (void)ctl_wait(k->ctl, &k->changed, (uint64_t)(until - clock_mono_ms()) + 1);
    }
    k->answer = NULL;
    if (k->answered)
        return CTL_OK;
    return ctl_fail(CTL_UNREACHABLE, "%s: %s", k->url,
                    k->ended ? k->end_reason : "no answer; it may or may not have been done");
}

int ctl_client_call(struct ctl_client *k, const char *op, json_t *payload,
                    struct rpc_answer *answer)
{
    int code = ctl_client_ask(k, op, payload, answer);
    if (code != CTL_OK || answer->status / 100 == 2)
        return code;
    code =
        ctl_fail(CTL_REFUSED, "%s: %d %s %s", op, answer->status, answer->error, answer->message);
    rpc_answer_free(answer);
    return code;
}

int ctl_client_run(struct ctl_client *k, const bool *done, uint64_t timeout_ms)
{
    int64_t until = clock_mono_ms() + (int64_t)timeout_ms;
    while (!*done && !k->ended && (timeout_ms == 0 || clock_mono_ms() < until)) {
        k->changed = false;
        /* Events set *done, everything else `changed`: look at both in short turns of the loop. */
        (void)ctl_wait(k->ctl, done, 200);
    }
    return k->ended && !*done ? ctl_fail(CTL_UNREACHABLE, "%s: %s", k->url, k->end_reason) : CTL_OK;
}

/* --- sessions --- */

struct saved_session {
    char id[64];
    uint8_t seed[DM_KEY_BYTES];
};

static char *session_path(const struct ctl *c, const char *purpose)
{
    return xasprintf("%s.%s.session", ctl_option(c, "key", 0), purpose);
}

static bool session_load(const char *path, const char *url, const char *login,
                         struct saved_session *s)
{
    json_t *j = json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
    const char *u = json_string_value(json_object_get(j, "url"));
    const char *l = json_string_value(json_object_get(j, "login"));
    const char *id = json_string_value(json_object_get(j, "sessionId"));
    const char *seed = json_string_value(json_object_get(j, "sessionSecret"));
    bool ok = u && l && id && seed && strcmp(u, url) == 0 && strcmp(l, login) == 0 &&
              strlen(id) < sizeof s->id && base64_decode_exact(seed, s->seed, sizeof s->seed);
    if (ok)
        snprintf(s->id, sizeof s->id, "%s", id);
    json_decref(j);
    return ok;
}

/* Failing to keep the session only means that the next run makes another one: a warning is enough.
 */
static void session_save(const char *path, const char *url, const char *login,
                         const struct saved_session *s)
{
    char seed[64];
    sodium_bin2base64(seed, sizeof seed, s->seed, sizeof s->seed, sodium_base64_VARIANT_ORIGINAL);
    json_t *j = json_pack("{s:s, s:s, s:s, s:s}", "url", url, "login", login, "sessionId", s->id,
                          "sessionSecret", seed);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || json_dumpfd(j, fd, JSON_INDENT(1)) != 0)
        fprintf(stderr, "shinectl: warning: %s: %s\n", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    json_decref(j);
    sodium_memzero(seed, sizeof seed);
}

/* Base64 of the signature over `text` by `seed`. */
static void sign_text(const char *text, const uint8_t seed[DM_KEY_BYTES], char out[96])
{
    uint8_t pk[crypto_sign_PUBLICKEYBYTES], sk[crypto_sign_SECRETKEYBYTES], sig[crypto_sign_BYTES];
    crypto_sign_seed_keypair(pk, sk, seed);
    crypto_sign_detached(sig, NULL, (const uint8_t *)text, strlen(text), sk);
    base64_encode(sig, sizeof sig, out);
    sodium_memzero(sk, sizeof sk);
}

static void session_key_text(const uint8_t seed[DM_KEY_BYTES], char out[64])
{
    uint8_t key[DM_KEY_BYTES];
    memcpy(out, "ed25519/", 8);
    dm_public_key(seed, key);
    base64_encode(key, sizeof key, out + 8);
}

/* CTL_OK, CTL_REFUSED without a message if the server does not know the session, or another code
 * after a message. */
static int session_resume(struct ctl_client *k, const struct saved_session *s)
{
    struct rpc_answer a;
    char key[64], sig[96];
    int code = ctl_client_ask(k, "SessionChallenge", json_pack("{s:s}", "sessionId", s->id), &a);
    if (code != CTL_OK)
        return code;
    const char *nonce = json_string_value(json_object_get(a.payload, "nonce"));
    if (a.status != 200 || !nonce) {
        rpc_answer_free(&a);
        return CTL_REFUSED;
    }
    int64_t now = clock_wall_ms();
    char *text = xasprintf("SESSION_LOGIN:%s:%" PRId64 ":%s", s->id, now, nonce);
    rpc_answer_free(&a);
    sign_text(text, s->seed, sig);
    free(text);
    session_key_text(s->seed, key);
    code = ctl_client_ask(k, "SessionLogin",
                          json_pack("{s:s, s:s, s:I, s:s, s:s}", "sessionId", s->id, "sessionKey",
                                    key, "timeMs", (json_int_t)now, "signatureB64", sig,
                                    "clientInfo", "shinectl"),
                          &a);
    if (code != CTL_OK)
        return code;
    code = a.status == 200 ? CTL_OK : CTL_REFUSED;
    rpc_answer_free(&a);
    return code;
}

static int session_create(struct ctl_client *k, const char *login, const uint8_t seed[DM_KEY_BYTES],
                          const uint8_t key[DM_KEY_BYTES], struct saved_session *s)
{
    struct rpc_answer a;
    char session_key[64], client_key[64], sig[96], storage_pwd[32];
    uint8_t random[16];
    int code = ctl_client_call(k, "AuthChallenge", json_pack("{s:s}", "login", login), &a);
    if (code != CTL_OK)
        return code;
    const char *nonce = json_string_value(json_object_get(a.payload, "authNonce"));
    randombytes_buf(s->seed, sizeof s->seed);
    randombytes_buf(random, sizeof random);
    base64_encode(random, sizeof random, storage_pwd);
    session_key_text(s->seed, session_key);
    base64_encode(key, DM_KEY_BYTES, client_key);
    int64_t now = clock_wall_ms();
    char *text = xasprintf("AUTH_CREATE_SESSION:%s:%s:%s:%" PRId64 ":%s", login, session_key,
                           storage_pwd, now, nonce ? nonce : "");
    sign_text(text, seed, sig);
    free(text);
    json_t *payload = json_pack("{s:s, s:s, s:s, s:I, s:s, s:s, s:s, s:s}", "login", login,
                                "sessionKey", session_key, "storagePwd", storage_pwd, "timeMs",
                                (json_int_t)now, "authNonce", nonce ? nonce : "", "clientKey",
                                client_key, "signatureB64", sig, "clientInfo", "shinectl");
    rpc_answer_free(&a);
    code = ctl_client_call(k, "CreateAuthSession", payload, &a);
    if (code != CTL_OK)
        return code;
    const char *id = json_string_value(json_object_get(a.payload, "sessionId"));
    snprintf(s->id, sizeof s->id, "%s", id ? id : "");
    rpc_answer_free(&a);
    return CTL_OK;
}

int ctl_client_login(struct ctl_client *k, const char *purpose)
{
    uint8_t seed[DM_KEY_BYTES], key[DM_KEY_BYTES];
    struct saved_session s;
    const char *login = ctl_option(k->ctl, "login", 0), *file = ctl_option(k->ctl, "key", 0);
    if (!login || !file)
        return ctl_fail(CTL_USAGE, "--key FILE and --login LOGIN are needed");
    int code = ctl_read_key(file, seed, key);
    if (code != CTL_OK)
        return code;
    char *path = session_path(k->ctl, purpose);
    code = session_load(path, k->url, login, &s) ? session_resume(k, &s) : CTL_REFUSED;
    if (code == CTL_REFUSED) {
        code = session_create(k, login, seed, key, &s);
        if (code == CTL_OK)
            session_save(path, k->url, login, &s);
    }
    if (code == CTL_OK)
        memcpy(k->session_id, s.id, sizeof k->session_id);
    free(path);
    sodium_memzero(seed, sizeof seed);
    sodium_memzero(&s, sizeof s);
    return code;
}

const char *ctl_client_session(const struct ctl_client *k)
{
    return k->session_id;
}
