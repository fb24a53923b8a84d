/*
 * The table of addresses that are not public. Raises no failures: what it does not know is refused.
 */
#include "net/address.h"

#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct v4_range {
    uint32_t net; /* host byte order */
    unsigned bits;
};
static const struct v4_range v4_special[] = {
    {0x00000000, 8},  /* 0.0.0.0/8, this network */
    {0x0a000000, 8},  /* 10.0.0.0/8, private */
    {0x64400000, 10}, /* 100.64.0.0/10, shared by carriers */
    {0x7f000000, 8},  /* 127.0.0.0/8, loopback */
    {0xa9fe0000, 16}, /* 169.254.0.0/16, link-local, metadata services */
    {0xac100000, 12}, /* 172.16.0.0/12, private */
    {0xc0000000, 24}, /* 192.0.0.0/24, protocol assignments */
    {0xc0000200, 24}, /* 192.0.2.0/24, documentation */
    {0xc0586300, 24}, /* 192.88.99.0/24, old 6to4 relays */
    {0xc0a80000, 16}, /* 192.168.0.0/16, private */
    {0xc6120000, 15}, /* 198.18.0.0/15, benchmarks */
    {0xc6336400, 24}, /* 198.51.100.0/24, documentation */
    {0xcb007100, 24}, /* 203.0.113.0/24, documentation */
    {0xe0000000, 3},  /* 224.0.0.0/3, multicast, reserved, broadcast */
};

static bool v4_public(uint32_t a)
{
    for (size_t i = 0; i < sizeof v4_special / sizeof *v4_special; i++)
        if ((a ^ v4_special[i].net) >> (32 - v4_special[i].bits) == 0)
            return false;
    return true;
}

static uint32_t v4_at(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static bool v6_public(const uint8_t *a)
{
    static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    static const uint8_t nat64[12] = {0, 0x64, 0xff, 0x9b};
    if (memcmp(a, mapped, sizeof mapped) == 0 || memcmp(a, nat64, sizeof nat64) == 0)
        return v4_public(v4_at(a + 12));
    /* Only 2000::/3 is given out; everything else is loopback, local, multicast or unassigned. */
    if ((a[0] & 0xe0) != 0x20)
        return false;
    if (a[0] == 0x20 && a[1] == 0x02) /* 6to4 */
        return v4_public(v4_at(a + 2));
    if (a[0] == 0x20 && a[1] == 0x01) {
        if ((a[2] & 0xfe) == 0) /* 2001::/23, protocol assignments, Teredo among them */
            return false;
        if (a[2] == 0x0d && a[3] == 0xb8) /* documentation */
            return false;
    }
    if (a[0] == 0x3f && a[1] == 0xff && (a[2] & 0xf0) == 0) /* documentation, RFC 9637 */
        return false;
    return true;
}

bool net_address_public(const struct sockaddr *addr)
{
    if (addr->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, addr, sizeof in);
        return v4_public(ntohl(in.sin_addr.s_addr));
    }
    if (addr->sa_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, addr, sizeof in6);
        return v6_public(in6.sin6_addr.s6_addr);
    }
    return false;
}
