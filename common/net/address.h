/*
 * Which addresses a name given by a stranger may lead us to. Pure functions.
 */
#ifndef SHINE_NET_ADDRESS_H
#define SHINE_NET_ADDRESS_H

#include <stdbool.h>
#include <sys/socket.h>

/* True if `addr` (IPv4 or IPv6) is a unicast address of the public Internet. Loopback, private,
 * shared (RFC 6598), link-local, multicast, documentation and reserved ranges are not (the IANA
 * special-purpose registries), nor is an IPv6 address that carries such an IPv4 address inside
 * (mapped, NAT64, 6to4), nor any other family. */
bool net_address_public(const struct sockaddr *addr);

#endif
