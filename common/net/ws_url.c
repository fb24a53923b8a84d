/*
 * Taking a WebSocket URL apart. Strict on purpose: URLs come from user records, are shown to
 * operators and go into signed texts, so there is one spelling without user info, fragments,
 * escapes or non-ASCII characters.
 *
 * Grades of failure: none; a bad URL is refused.
 */
#include "net/ws.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <string.h>

static bool host_char(unsigned char ch)
{
    return isalnum(ch) || ch == '.' || ch == '-' || ch == '_';
}

/* The host at `p` into out->host, in lower case, without the brackets of an IPv6 address. Returns
 * what follows, or NULL. */
static const char *parse_host(const char *p, struct ws_url *out)
{
    size_t n = 0;
    if (*p == '[') {
        n = strcspn(p, "]");
        if (p[n] != ']' || n < 2 || n - 1 >= INET6_ADDRSTRLEN)
            return NULL;
        memcpy(out->host, p + 1, n - 1);
        out->host[n - 1] = '\0';
        struct in6_addr a;
        if (inet_pton(AF_INET6, out->host, &a) != 1)
            return NULL;
        n++;
    } else {
        while (host_char((unsigned char)p[n]))
            n++;
        if (n == 0 || n > 253 || p[0] == '.' || p[0] == '-')
            return NULL;
        memcpy(out->host, p, n);
        out->host[n] = '\0';
    }
    for (char *h = out->host; *h; h++)
        *h = (char)tolower((unsigned char)*h);
    return p + n;
}

static const char *parse_port(const char *p, struct ws_url *out)
{
    unsigned port = 0;
    const char *start = p;
    for (; isdigit((unsigned char)*p); p++) {
        port = port * 10 + (unsigned)(*p - '0');
        if (port > 65535)
            return NULL;
    }
    if (p == start || port == 0)
        return NULL;
    out->port = (uint16_t)port;
    return p;
}

bool ws_url_parse(const char *url, struct ws_url *out)
{
    *out = (struct ws_url){.path = "/ws"};
    if (strlen(url) > 255)
        return false;
    const char *p = url;
    if (strncmp(p, "wss://", 6) == 0) {
        p += 6;
        out->tls = true;
        out->port = 443;
    } else if (strncmp(p, "ws://", 5) == 0) {
        p += 5;
        out->port = 80;
    } else {
        return false;
    }
    p = parse_host(p, out);
    if (p && *p == ':')
        p = parse_port(p + 1, out);
    if (!p || (*p && *p != '/'))
        return false;
    for (const char *q = p; *q; q++)
        if (*q <= ' ' || *q >= 127 || strchr("#,=\"<>\\^`{|}", *q))
            return false;
    if (*p)
        memcpy(out->path, p, strlen(p) + 1);
    return true;
}
