/*
 * A user's conversations: last message, unread count, last read time.
 */
#ifndef SHINE_STORE_CONVERSATIONS_H
#define SHINE_STORE_CONVERSATIONS_H

#include "store/messages.h"

struct store_conversations_query {
    const char *owner;
    unsigned limit;          /* ≤ 200 */
    int64_t before_time_ms;  /* -1 = from the newest */
    const char *before_with; /* with before_time_ms; "" = none of that time */
    int64_t
        max_blob_bytes; /* stop when the blobs exceed this; at least one item is always returned */
};
struct store_conversation {
    const char *with;
    struct store_history_item
        last; /* the newest text; message_key NULL if the conversation holds no text any more */
    int64_t last_time_ms;    /* the cursor, with `with` */
    int64_t unread;          /* incoming texts not read; notes to self are never unread */
    int64_t last_read_at_ms; /* -1 = never */
};
/* Newest first by (last_time_ms, with). `rows` is valid during the callback. */
typedef void (*store_conversations_cb)(void *ctx, enum db_status st,
                                       const struct store_conversation *rows, size_t n,
                                       bool has_more);
void store_list_conversations(struct store *s, const struct store_conversations_query *q,
                              store_conversations_cb cb, void *ctx);

#endif
