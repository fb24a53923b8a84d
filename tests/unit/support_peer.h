/*
 * A scripted server for tests of what calls other servers: a WebSocket listener on loopback in the
 * test's own loop, which answers by the name of the operation it is asked.
 */
#ifndef SHINE_TESTS_SUPPORT_PEER_H
#define SHINE_TESTS_SUPPORT_PEER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

#include "net/ws.h"
#include "rpc/envelope.h"

enum fake_hello { FAKE_HELLO_OK, FAKE_HELLO_UNKNOWN_OP, FAKE_HELLO_REFUSE, FAKE_HELLO_SILENT };

#define FAKE_SEEN_MAX 64

struct fake_server {
    uv_loop_t *loop;
    struct ws_listener *listener;
    char url[64];
    char login[64]; /* said in the answer to ServerHello */
    enum fake_hello hello;
    bool pipelining;       /* listed in that answer */
    json_t *hello_payload; /* of the last ServerHello received */
    unsigned accepted;     /* connections */
    struct fake_conn *conns;
    /* Operations received after the hello, in order, with their request ids. */
    unsigned n_seen;
    char seen[FAKE_SEEN_MAX][RPC_OP_MAX + 1];
    char ids[FAKE_SEEN_MAX][RPC_REQUEST_ID_MAX + 1];
    json_t *payload; /* of the last one */
    /* Decide what happens with a request. NULL = answer 200 {} at once. */
    void (*on_request)(struct fake_server *s, struct ws_conn *conn, const char *op,
                       const char *request_id);
    void *ctx;
};

void fake_server_start(struct fake_server *s, uv_loop_t *loop, const char *login);
/* Stop listening, and end every connection; runs the loop until they are gone. */
void fake_server_stop(struct fake_server *s);
void fake_server_drop_all(struct fake_server *s);

void fake_answer(struct ws_conn *conn, const char *op, const char *request_id);
void fake_fail(struct ws_conn *conn, const char *op, const char *request_id, int status,
               const char *error, const char *payload);
/* The connection of the newest request; NULL if it has ended. */
struct ws_conn *fake_server_conn(const struct fake_server *s);

/* A listening TCP socket on a free loopback port; *port gets the port. */
int fake_listen(int *port);

/* Run the loop until *flag (or until `*counter` reached `want`); fails the test after ten seconds.
 */
void loop_until(uv_loop_t *loop, const bool *flag);
void loop_until_count(uv_loop_t *loop, const unsigned *counter, unsigned want);
/* Run the loop for so long. Only to give something that must not happen its chance. */
void loop_for(uv_loop_t *loop, int64_t ms);
/* Close the loop: everything on it must have been closed before. */
void loop_finish(uv_loop_t *loop);

#endif
