/*
 * Are the sessions of this worker's connections still theirs? A session may be closed, or logged
 * into from a connection elsewhere, and the notification of it may be lost, or come before the
 * answer of the log-in it is about. So every connection is looked up in the database when it has
 * logged in and then every events.pollMs.
 */
#ifndef SHINE_FRONTD_SESSION_CHECK_H
#define SHINE_FRONTD_SESSION_CHECK_H

#include "frontd/session.h"

/* Begin to check the connections of `ss`. */
struct session_check *session_check_new(struct sessions *ss);
/* Check `s`, which has just logged in, before all others. */
void session_check_soon(struct session_check *c, struct session *s);
/* No further checks. */
void session_check_stop(struct session_check *c);
/* After session_check_stop(), when the database is closed. */
void session_check_free(struct session_check *c);

#endif
