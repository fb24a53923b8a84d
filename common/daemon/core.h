/*
 * Shared by options.c (up to the loop) and daemon.c (the loop). Not for anybody else.
 */
#ifndef SHINE_DAEMON_CORE_H
#define SHINE_DAEMON_CORE_H

#include "daemon/admin.h"

enum { DAEMON_SIGNALS = 3 };

struct daemon_core {
    char host[64];
    uv_signal_t signals[DAEMON_SIGNALS];
    uv_timer_t timer; /* heartbeat while running, the deadline while stopping */
    bool stopping, stopped, db_closing;
    int status;          /* exit status */
    struct admin *admin; /* NULL without spec->admin */

    /* The schema check (thread pool). */
    uv_work_t check;
    uv_timer_t check_timer;
    bool check_running, schema_ok;
    unsigned check_failures; /* in a row, with the database reachable */
    char *check_error;       /* NULL = the schema is usable */
};

#endif
