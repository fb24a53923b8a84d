/*
 * Reasons in one word. See reason.h. Raises no failures: a text it does not know falls back to the
 * kind of the end.
 */
#include "peer/reason.h"

#include <string.h>

static const struct {
    enum ws_end end;
    const char *text; /* of common/net, or how it begins */
    const char *reason;
} known[] = {
    {WS_END_UNREACHABLE, "lookup: ", "unreachable_unknown_host"},
    {WS_END_UNREACHABLE, "connect: connection refused", "unreachable_refused"},
    {WS_END_TLS, "certificate refused: certificate has expired", "tls_certificate_expired"},
    {WS_END_TLS, "certificate refused: certificate is not yet valid", "tls_certificate_expired"},
    {WS_END_TLS, "certificate refused: hostname mismatch", "tls_certificate_for_another_name"},
    {WS_END_TLS, "certificate refused: IP address mismatch", "tls_certificate_for_another_name"},
    {WS_END_TLS, "certificate refused: ", "tls_certificate_not_trusted"},
    {WS_END_TLS, "", "tls_handshake_failed"},
    {WS_END_LOST, "TLS handshake: end of stream", "closed_in_tls_handshake"},
    {WS_END_LOST, "TLS handshake: ", "reset_in_tls_handshake"},
    {WS_END_LOST, "HTTP upgrade: ", "lost_before_upgrade"},
    {WS_END_UPGRADE, "HTTP status ", "upgrade_refused"},
    {WS_END_UPGRADE, "", "upgrade_not_websocket"},
    {WS_END_TIMEOUT, "connect took too long", "connect_timeout"},
    {WS_END_TIMEOUT, "handshake took too long", "handshake_timeout"},
    {WS_END_TIMEOUT, "no answer to ping", "pong_timeout"},
    {WS_END_PROTOCOL, "", "protocol_violation"},
};

const char *peer_reason(enum ws_end end, const char *text, bool address_refused)
{
    if (end == WS_END_UNREACHABLE && address_refused)
        return "address_refused";
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].end == end && strncmp(text, known[i].text, strlen(known[i].text)) == 0)
            return known[i].reason;
    return ws_end_name(end);
}
