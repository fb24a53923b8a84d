/*
 * Why a connection to a peer could not be made or was lost, in one word for v_peers, logs and
 * dm_delivery_state.last_error. Pure function; the table is in docs/operations.md.
 */
#ifndef SHINE_PEER_REASON_H
#define SHINE_PEER_REASON_H

#include "net/ws.h"

/* `text`: the reason that on_close was given. `address_refused`: an address was left out because it
 * is not public. The result is static. */
const char *peer_reason(enum ws_end end, const char *text, bool address_refused);

#endif
