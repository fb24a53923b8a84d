/*
 * ServerHello, as the side that was dialled. Raises: environment (answered).
 */
#include "daemon/settings.h"
#include "frontd/frontd.h"
#include "frontd/ops.h"
#include "frontd/session.h"
#include "peer/peer.h"
#include "rpc/fields.h"
#include "util/log.h"

#define PROTOCOL_VERSION 1

void frontd_server_hello(struct rpc_call *call)
{
    if (!frontd_configured(call))
        return;
    struct rpc_fields fields = rpc_fields_of(rpc_payload(call));
    const char *login;
    int64_t version = PROTOCOL_VERSION;
    /* What the other side can do matters only for requests that we would make on this connection,
     * and we make none. A later version says so and is answered with ours. */
    if (!rpc_str(&fields, "serverLogin", SHINE_SERVER_LOGIN_MAX, &login) ||
        !rpc_int_opt(&fields, "protocolVersion", 1, DM_INT_MAX, &version)) {
        rpc_fail(call, RPC_BAD_FIELDS, fields.problem);
        return;
    }
    if (!settings_server_login_valid(login)) {
        rpc_fail(call, RPC_BAD_FIELDS, "serverLogin is not a server login");
        return;
    }
    struct session *s = session_of(call);
    session_set_peer(s, login);
    log_info("peer_hello", LOG_S("peer", login), LOG_S("remote", session_remote(s)),
             LOG_I("version", version));
    rpc_reply(call, json_pack("{s:b, s:s, s:i, s:o}", "accepted", 1, "serverLogin",
                              frontd_of(call)->server_login, "protocolVersion", PROTOCOL_VERSION,
                              "capabilities", peer_capabilities()));
}
