/*
 * Proofs of servers. See auth.h.
 *
 * Raises: what cannot be used is told to the caller; a proof asked for without a key is our bug.
 */
#include "peer/auth.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/base64.h"
#include "util/mem.h"

#define HOSTS_MAX 32

struct peer_auth {
    enum peer_trust trust;
    bool has_key;
    uint8_t seed[DM_KEY_BYTES];
    const struct partners *partners;
    char *hosts[HOSTS_MAX]; /* as dialledHost says them */
    size_t n_hosts;
};

/* --- proofs --- */

/* No part can hold a colon but the last, so one text has one meaning. */
static char *proof_text(enum peer_side side, const struct peer_meeting *m)
{
    bool answer = side == PEER_SIDE_ANSWER;
    return xasprintf("SHiNE_SERVER_AUTH:%s:%s:%s:%s:%s:%s", answer ? "answer" : "dial",
                     answer ? m->answerer : m->dialler, answer ? m->dialler : m->answerer, m->nonce,
                     m->challenge, m->host);
}

void peer_proof_make(enum peer_side side, const struct peer_meeting *m,
                     const uint8_t seed[DM_KEY_BYTES], char out[PEER_PROOF_TEXT + 1])
{
    uint8_t public_key[DM_KEY_BYTES], secret[crypto_sign_SECRETKEYBYTES], sig[DM_SIG_BYTES];
    char *text = proof_text(side, m);
    shine_assert(crypto_sign_seed_keypair(public_key, secret, seed) == 0);
    (void)crypto_sign_detached(sig, NULL, (const unsigned char *)text, strlen(text), secret);
    sodium_memzero(secret, sizeof secret);
    free(text);
    base64_encode(sig, sizeof sig, out);
}

bool peer_proof_fits(enum peer_side side, const struct peer_meeting *m,
                     const uint8_t sig[DM_SIG_BYTES], const uint8_t key[DM_KEY_BYTES])
{
    char *text = proof_text(side, m);
    bool ok = crypto_sign_verify_detached(sig, (const unsigned char *)text, strlen(text), key) == 0;
    free(text);
    return ok;
}

void peer_nonce_make(char out[PEER_NONCE_TEXT + 1])
{
    uint8_t bytes[PEER_NONCE_BYTES];
    randombytes_buf(bytes, sizeof bytes);
    base64_encode(bytes, sizeof bytes, out);
}

bool peer_nonce_valid(const char *text)
{
    uint8_t bytes[PEER_NONCE_BYTES];
    return base64_decode_exact(text, bytes, sizeof bytes);
}

void peer_host_of(const struct ws_url *url, char out[PEER_HOST_MAX + 1])
{
    bool v6 = strchr(url->host, ':') != NULL;
    (void)snprintf(out, PEER_HOST_MAX + 1, "%s%s%s:%u", v6 ? "[" : "", url->host, v6 ? "]" : "",
                   (unsigned)url->port);
}

/* --- the key file --- */

static char *read_lines(FILE *f, const char *path, uint8_t seed[DM_KEY_BYTES])
{
    char line[256], text[128];
    uint8_t declared[DM_KEY_BYTES], public_key[DM_KEY_BYTES];
    bool has_secret = false, has_public = false, bad_public = false;
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "secret %127s", text) == 1) {
            has_secret = base64_decode_exact(text, seed, DM_KEY_BYTES);
        } else if (sscanf(line, "public %127s", text) == 1) {
            has_public = base64_decode_exact(text, declared, DM_KEY_BYTES);
            bad_public = !has_public;
        }
    }
    sodium_memzero(line, sizeof line);
    sodium_memzero(text, sizeof text);
    if (!has_secret)
        return xasprintf("%s: no line \"secret BASE64\" of 32 bytes, as shinectl keygen prints it",
                         path);
    dm_public_key(seed, public_key);
    if (bad_public || (has_public && memcmp(declared, public_key, DM_KEY_BYTES) != 0))
        return xasprintf("%s: the public line does not belong to the secret one", path);
    return NULL;
}

char *peer_key_read(const char *path, uint8_t seed[DM_KEY_BYTES])
{
    FILE *f = fopen(path, "re");
    if (!f)
        return xasprintf("%s: %s", path, strerror(errno));
    char *error = read_lines(f, path, seed);
    (void)fclose(f);
    return error;
}

/* --- what this process needs --- */

static char *add_host(struct peer_auth *a, const char *key, const char *text)
{
    struct ws_url url;
    char host[PEER_HOST_MAX + 1];
    if (!ws_url_parse(text, &url))
        return xasprintf("%s: \"%s\" is not of the form wss://HOST[:PORT][/PATH]", key, text);
    if (a->n_hosts == HOSTS_MAX)
        return xasprintf("%s: more than %d addresses", key, HOSTS_MAX);
    peer_host_of(&url, host);
    a->hosts[a->n_hosts++] = xstrdup(host);
    return NULL;
}

static char *add_hosts(struct peer_auth *a, const char *key, const char *list)
{
    char *error = NULL;
    while (!error && *(list += strspn(list, " \t,"))) {
        size_t len = strcspn(list, " \t,");
        char *one = xmemdup0(list, len);
        error = add_host(a, key, one);
        free(one);
        list += len;
    }
    return error;
}

struct peer_auth *peer_auth_new(const struct peer_auth_config *c, char **error)
{
    struct peer_auth *a = xnew(struct peer_auth);
    a->trust = c->trust;
    *error = NULL;
    if (*c->key_file) {
        char *problem = peer_key_read(c->key_file, a->seed);
        if (problem)
            *error = xasprintf("server.keyFile: %s", problem);
        a->has_key = !problem;
        free(problem);
    }
    if (!*error)
        *error = add_hosts(a, "server.url", c->url);
    if (!*error)
        *error = add_hosts(a, "server.urlAliases", c->aliases);
    if (!*error)
        return a;
    peer_auth_free(a);
    return NULL;
}

void peer_auth_use(struct peer_auth *a, const struct partners *partners)
{
    a->partners = partners;
}

void peer_auth_free(struct peer_auth *a)
{
    if (!a)
        return;
    sodium_memzero(a->seed, sizeof a->seed);
    for (size_t i = 0; i < a->n_hosts; i++)
        free(a->hosts[i]);
    free(a);
}

enum peer_trust peer_auth_trust(const struct peer_auth *a)
{
    return a->trust;
}

bool peer_auth_has_key(const struct peer_auth *a)
{
    return a->has_key;
}

void peer_auth_prove(const struct peer_auth *a, enum peer_side side, const struct peer_meeting *m,
                     char out[PEER_PROOF_TEXT + 1])
{
    shine_assert(a->has_key);
    peer_proof_make(side, m, a->seed, out);
}

bool peer_auth_has_hosts(const struct peer_auth *a)
{
    return a->n_hosts > 0;
}

bool peer_auth_is_our_host(const struct peer_auth *a, const char *host)
{
    for (size_t i = 0; i < a->n_hosts; i++)
        if (strcmp(a->hosts[i], host) == 0)
            return true;
    return false;
}

bool peer_auth_knows(const struct peer_auth *a)
{
    return !a->partners || partners_loaded(a->partners);
}

const struct partner *peer_auth_partner(const struct peer_auth *a, const char *login)
{
    return a->partners ? partners_find(a->partners, login) : NULL;
}

const char *peer_auth_judge_answer(const struct peer_auth *a, const struct peer_meeting *m,
                                   const char *proof)
{
    uint8_t sig[DM_SIG_BYTES];
    if (!peer_auth_knows(a))
        return a->trust == PEER_TRUST_WORD ? NULL : "partners_not_read";
    const struct partner *p = peer_auth_partner(a, m->answerer);
    if (!p || p->n_keys == 0)
        return NULL;
    if (!proof)
        return a->trust == PEER_TRUST_WORD ? NULL : "server_not_proven";
    if (!base64_decode_exact(proof, sig, sizeof sig))
        return "bad_server_proof";
    for (unsigned i = 0; i < p->n_keys; i++)
        if (peer_proof_fits(PEER_SIDE_ANSWER, m, sig, p->keys[i]))
            return NULL;
    return "bad_server_proof";
}
