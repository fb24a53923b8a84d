/*
 * A small blocking client of the WebSocket protocol: one connection, one call at a time, events in
 * between.
 */
#ifndef SHINE_CTL_CLIENT_H
#define SHINE_CTL_CLIENT_H

#include "deploy/ctl/ctl.h"
#include "rpc/envelope.h"

struct ctl_client;

/* Called for each event while the loop turns. `payload` is borrowed. */
typedef void (*ctl_event_cb)(void *ctx, const char *op, const json_t *payload);

/* Connect to --url, or else server.url, trusting --ca, or else tls.caFile, or else the system.
 * CTL_OK, or an exit code after a message. On success the caller closes it. */
int ctl_client_open(struct ctl *c, ctl_event_cb on_event, void *ctx, struct ctl_client **out);
void ctl_client_close(struct ctl_client *k);

/* Call `op` (payload consumed) and wait. CTL_OK with *answer set (freed with rpc_answer_free()),
 * whatever its status; otherwise an exit code after a message. */
int ctl_client_ask(struct ctl_client *k, const char *op, json_t *payload,
                   struct rpc_answer *answer);
/* The same, but an error answer is printed and gives CTL_REFUSED. */
int ctl_client_call(struct ctl_client *k, const char *op, json_t *payload,
                    struct rpc_answer *answer);

/* Log in as --login with the key of --key. The session is kept beside the key file
 * (FILE.PURPOSE.session, mode 0600), so that a command run again is the same device; it is made
 * anew if the server does not know it any more. */
int ctl_client_login(struct ctl_client *k, const char *purpose);
/* The id of the session logged into; "" before. Borrowed. */
const char *ctl_client_session(const struct ctl_client *k);

/* Wait until *done, the connection's end, or `timeout_ms` (0 = no limit). CTL_OK if done or time is
 * up; CTL_UNREACHABLE after a message if the connection ended. */
int ctl_client_run(struct ctl_client *k, const bool *done, uint64_t timeout_ms);

#endif
