/*
 * The way in of signed containers. Raises: environment (every refusal is an answer to the caller).
 */
#include "frontd/intake.h"

#include <stdlib.h>
#include <string.h>

#include "frontd/session.h"
#include "rpc/fields.h"
#include "store/profiles.h"
#include "util/log.h"

static void find_users(struct intake *in);
static void judge(struct intake *in);
static void verify(struct intake *in);

static void refuse(struct intake *in, enum rpc_error e, const char *message)
{
    rpc_fail(in->call, e, message);
    in->refused(in);
}

static bool read_blobs(struct intake *in)
{
    struct rpc_fields fields = rpc_fields_of(rpc_payload(in->call));
    in->source = "";
    for (unsigned i = 0; i < in->n; i++)
        if (rpc_blob(&fields, in->fields[i], DM_CONTAINER_MAX, &in->blobs[i],
                     &in->copies[i].blob_len))
            in->copies[i].blob = in->blobs[i];
    if (!rpc_str_opt(&fields, "sourceServerLogin", SHINE_SERVER_LOGIN_MAX, &in->source) ||
        fields.problem[0]) {
        refuse(in, RPC_BAD_FIELDS, fields.problem);
        return false;
    }
    return true;
}

/* --- how much one may send --- */

static bool is_access_server(const struct directory_user *u, const char *server)
{
    return strcmp(u->servers[0], server) == 0 || strcmp(u->servers[1], server) == 0;
}

/* Does that server serve one of the two, as far as it is known without asking anybody? */
static bool serves_one(const struct intake *in, const char *server)
{
    const struct dm_container *c = &in->copies[0].c;
    const struct directory_user *u = directory_peek(in->f->directory, c->from);
    if (u && is_access_server(u, server))
        return true;
    u = directory_peek(in->f->directory, c->to);
    return u && is_access_server(u, server);
}

/* Users who are logged in have been counted already. */
static bool within_limit(struct intake *in)
{
    const struct session *s = session_of(in->call);
    if (session_login(s))
        return true;
    const char *source = frontd_source_of(in->call, in->source);
    bool known = source && (frontd_is_partner(in->f, source) || serves_one(in, source));
    if (frontd_within_limit(in->call, known ? LIMIT_PEER : LIMIT_ADDRESS,
                            known ? source : session_remote(s)))
        return true;
    in->refused(in);
    return false;
}

void intake_start(struct intake *in)
{
    if (!read_blobs(in))
        return;
    if (frontd_caller_blocked(in->call, in->source)) {
        refuse(in, RPC_PEER_BLOCKED, "this server accepts nothing from that one");
        return;
    }
    for (unsigned i = 0; i < in->n; i++) {
        struct store_copy *copy = &in->copies[i];
        enum dm_error e = dm_parse(copy->blob, copy->blob_len, &copy->c);
        if (e != DM_OK) {
            refuse(in, RPC_BAD_BLOB, dm_error_name(e));
            return;
        }
        dm_sha256(copy->blob, copy->blob_len, copy->sha256);
    }
    const char *message = NULL;
    enum rpc_error e = in->check(in, &message);
    if (e != RPC_OK)
        refuse(in, e, message);
    else if (within_limit(in))
        find_users(in);
}

void intake_free(struct intake *in)
{
    for (unsigned i = 0; i < INTAKE_MAX; i++) {
        free(in->blobs[i]);
        in->blobs[i] = NULL;
        in->copies[i].blob = NULL;
    }
}

/* --- the two users --- */

/* True if the look-up found somebody; otherwise the call was answered. */
static bool found(struct intake *in, enum directory_result r, const char *who)
{
    if (r == DIRECTORY_FOUND)
        return true;
    if (r == DIRECTORY_NO_USER) {
        refuse(in, RPC_USER_NOT_FOUND, who);
    } else {
        frontd_fail_directory(in->call, r);
        in->refused(in);
    }
    return false;
}

static void on_author(void *ctx, enum directory_result r, const struct directory_user *user)
{
    struct intake *in = ctx;
    if (!found(in, r, "the author is unknown here"))
        return;
    in->author = *user;
    in->have_author = in->author_fresh = true;
    find_users(in);
}

static void on_recipient(void *ctx, enum directory_result r, const struct directory_user *user)
{
    struct intake *in = ctx;
    if (!found(in, r, "the recipient is unknown here"))
        return;
    in->recipient = *user;
    in->have_recipient = true;
    find_users(in);
}

/* The server that this connection is: it may know users whom we do not. */
static const char *sender_of(const struct intake *in)
{
    const char *source = frontd_source_of(in->call, NULL);
    return source ? source : "";
}

static void find_users(struct intake *in)
{
    const struct dm_container *c = &in->copies[0].c;
    const struct directory_user *u;
    if (!in->have_author) {
        if (!(u = directory_peek(in->f->directory, c->from))) {
            directory_fetch_from(in->f->directory, c->from, sender_of(in), on_author, in);
            return;
        }
        in->author = *u;
        in->have_author = true;
    }
    if (!in->have_recipient) {
        if ((u = directory_peek(in->f->directory, c->to))) {
            in->recipient = *u;
            in->have_recipient = true;
        } else if (!in->verified) {
            verify(in); /* first: strangers must not make us look up whomever they like */
            return;
        } else {
            directory_fetch_from(in->f->directory, c->to, sender_of(in), on_recipient, in);
            return;
        }
    }
    judge(in);
}

/* --- servers and clients --- */

/* Said, not proved: a client that lies about it only frees itself from rules of hygiene. */
static bool caller_is_server(const struct intake *in)
{
    if (session_peer(session_of(in->call)))
        return true;
    return in->source[0] != '\0' && !frontd_peer_key_known(in->f, in->source) &&
           (is_access_server(&in->author, in->source) ||
            is_access_server(&in->recipient, in->source));
}

/* Replication: the caller is a server of one of the two, and brings what may be from long ago. */
static bool caller_is_second_server(const struct intake *in)
{
    const char *source = frontd_source_of(in->call, in->source);
    return source &&
           (is_access_server(&in->author, source) || is_access_server(&in->recipient, source));
}

static void judge(struct intake *in)
{
    in->from_server = caller_is_server(in);
    if (in->by_old_key && !caller_is_second_server(in)) {
        refuse(in, RPC_BAD_SIGNATURE, "not signed by the author's key");
        return;
    }
    if (!in->from_server) {
        for (unsigned i = 0; i < in->n; i++)
            if (in->copies[i].c.body_len > in->f->client_body_bytes) {
                refuse(in, RPC_PAYLOAD_TOO_LARGE, "the body exceeds limits.clientBodyBytes");
                return;
            }
        const char *message = NULL;
        enum rpc_error e = in->check_client ? in->check_client(in, &message) : RPC_OK;
        if (e != RPC_OK) {
            refuse(in, e, message);
            return;
        }
    }
    if (in->verified)
        in->accepted(in);
    else
        verify(in);
}

/* --- signatures --- */

static bool signed_by(const struct intake *in, const uint8_t key[DM_KEY_BYTES])
{
    for (unsigned i = 0; i < in->n; i++)
        if (!dm_verify(in->copies[i].blob, in->copies[i].blob_len, key))
            return false;
    return true;
}

static void on_author_again(void *ctx, enum directory_result r, const struct directory_user *user)
{
    struct intake *in = ctx;
    if (!found(in, r, "the author is unknown here"))
        return;
    in->author_fresh = true;
    in->author = *user;
    verify(in);
}

/* A key that a server without standing told us may be the wrong one: before a message is called
 * forged, those with standing are asked. If they cannot be, it is not. */
static void on_author_confirmed(void *ctx, enum directory_result r,
                                const struct directory_user *user)
{
    struct intake *in = ctx;
    if (r == DIRECTORY_FOUND)
        in->author = *user;
    if (directory_failed(r))
        (void)found(in, r, "");
    else
        verify(in);
}

static void on_keys(void *ctx, enum db_status st, const uint8_t (*keys)[DM_KEY_BYTES], size_t n)
{
    struct intake *in = ctx;
    if (st != DB_OK) {
        frontd_fail_db(in->call, st);
        in->refused(in);
        return;
    }
    for (size_t i = 0; i < n && !in->by_old_key; i++)
        in->by_old_key = signed_by(in, keys[i]);
    in->verified = in->by_old_key;
    if (in->verified)
        find_users(in);
    else
        verify(in);
}

static void verify(struct intake *in)
{
    struct directory *d = in->f->directory;
    const char *author = in->copies[0].c.from;
    if (signed_by(in, in->author.client_key)) {
        in->verified = true;
        if (in->have_recipient)
            in->accepted(in);
        else
            find_users(in);
    } else if (!in->author_fresh) {
        /* The key was remembered, and may have been replaced at the source meanwhile. */
        directory_forget(d, author);
        directory_fetch_from(d, author, sender_of(in), on_author_again, in);
    } else if (in->author.provisional && !in->author_confirmed) {
        in->author_confirmed = true;
        directory_refresh(d, author, on_author_confirmed, in);
    } else if (!in->old_keys_tried && frontd_source_of(in->call, in->source)) {
        in->old_keys_tried = true;
        store_get_keys(in->f->store, author, on_keys, in);
    } else {
        refuse(in, RPC_BAD_SIGNATURE, "not signed by the author's key");
    }
}
