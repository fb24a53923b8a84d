/*
 * What the end of one call to a route means for the attempt that made it: the one table of
 * docs/protocol.md, "Delivery". Pure functions.
 */
#ifndef SHINE_DELIVERY_VERDICT_H
#define SHINE_DELIVERY_VERDICT_H

#include "peer/peer.h"

enum delivery_verdict {
    DELIVERY_OK,        /* the route has the message */
    DELIVERY_TRIED,     /* a try that brought nothing: it uses the slot */
    DELIVERY_NOT_TRIED, /* nothing reached the route, or it asked to wait: the slot is not used */
    DELIVERY_NOT_SERVED /* the route says that it does not serve the recipient: a try, and a sign
                           that our route is old */
};

struct delivery_judgement {
    enum delivery_verdict verdict;
    int64_t retry_after_ms; /* NOT_TRIED: when to come again, 0..60,000 */
    bool asks_to_wait;      /* NOT_TRIED because it answered 429 or 503 */
    char reason[96];        /* for people; "" if OK */
};

/* What the answer (or its absence) of one route means. */
struct delivery_judgement delivery_judge(const struct peer_answer *a);

#endif
