/*
 * The users of the load generators: made from their names, so that harness and generators agree
 * without a file, and logged in over a WebSocket connection. Whatever goes wrong ends the program.
 */
#ifndef SHINE_BENCH_USERS_H
#define SHINE_BENCH_USERS_H

#include <jansson.h>

#include "dm/container.h"
#include "net/ws.h"

struct bench_user {
    char login[DM_LOGIN_MAX + 1];
    uint8_t seed[DM_KEY_BYTES], session_seed[DM_KEY_BYTES];
};

/* User `i`: benchI. */
void bench_user_make(struct bench_user *u, unsigned i);
/* Print "LOGIN CLIENTKEY" of the first `n`. */
void bench_users_print(unsigned n);

/* Send a request; `payload` is consumed. */
void bench_ask(struct ws_conn *conn, const char *op, json_t *payload);
/* Log in on an open connection: begin, then give every answer until it returns true. */
void bench_login_begin(const struct bench_user *u, struct ws_conn *conn);
bool bench_login_answer(const struct bench_user *u, struct ws_conn *conn, const char *text,
                        size_t len);

/* For harnesses: a line of one word on stdout, at once. */
void bench_say(const char *word);
/* Microseconds of CPU of this process. */
double bench_cpu_us(void);
_Noreturn void bench_die(const char *what, const char *detail);

#endif
