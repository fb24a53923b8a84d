/*
 * How much one user, one address and one server may ask of this process: a bucket for each, kept
 * while it is not full. docs/operations.md, "Limits worth knowing".
 */
#ifndef SHINE_FRONTD_LIMITS_H
#define SHINE_FRONTD_LIMITS_H

#include <stddef.h>
#include <stdint.h>

#include "util/config.h"

enum limit_kind {
    LIMIT_LOGIN,    /* requests of a user who is logged in; key: the login */
    LIMIT_ADDRESS,  /* containers brought by somebody who is neither logged in nor a known server;
                       key: a numeric address */
    LIMIT_PEER,     /* containers brought by a known server; key: its login */
    LIMIT_HELLO,    /* ServerHello, each of which costs a signature; key: a numeric address */
    LIMIT_ADD_USER, /* AddUser; key: a numeric address */
    LIMIT_KINDS
};

struct limits;
/* The rates of the keys limits.*; a rate of 0 is none. At most `max_entries` buckets are kept of
 * each kind; beyond, newcomers share one. */
struct limits *limits_new(const struct config *c, size_t max_entries);
void limits_free(struct limits *l);
/* Take one of `key`'s: 0, or, with nothing taken, after how many ms to come again (at least 1). Of
 * an IPv6 address the network of 64 bits counts: one customer has so many. */
int64_t limits_take(struct limits *l, enum limit_kind kind, const char *key);

#endif
