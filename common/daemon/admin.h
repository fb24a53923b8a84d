/*
 * The admin port (`admin.listen`): what orchestrators ask a process. HTTP/1.1 without TLS, for
 * loopback or a private network; it tells nothing about users.
 *
 *   GET /healthz   200 "ok": the process turns its loop
 *   GET /readyz    200 "ready", or 503 and why not: it can do its work now
 */
#ifndef SHINE_DAEMON_ADMIN_H
#define SHINE_DAEMON_ADMIN_H

#include "daemon/daemon.h"

struct admin;

/* Serve on what `admin.listen` names; with it empty an admin that serves nothing. NULL after an
 * error was logged. */
struct admin *admin_open(struct daemon *d);
/* One that serves nothing yet, and a listening socket for it; `fd` passes. */
struct admin *admin_new(struct daemon *d);
bool admin_serve(struct admin *a, int fd);
/* Stop and free; open connections are cut. NULL is fine. To be called in spec->closed() at the
 * latest, so that a process that is stopping can still say so. */
void admin_close(struct admin *a);

#endif
