/*
 * The master process: opens the listening sockets, keeps them, and keeps the workers running. It
 * has no database and serves nothing, so that it has nothing to fail on; nothing is refused while a
 * worker restarts, connections wait in the sockets' backlog.
 */
#ifndef SHINE_FRONTD_MASTER_H
#define SHINE_FRONTD_MASTER_H

#include "daemon/daemon.h"

/* Run as the master of `d`; returns the exit status and frees `d`. */
int master_run(struct daemon *d);

#endif
