/*
 * A worker process: one loop that serves connections accepted on the master's sockets.
 *
 * Stopping goes in this order, each step begun by the end of the one before:
 *
 *   listeners closed -> requests answered, connections closed (1001) -> peers closed, attempts
 *   recorded -> pump stopped -> database closed -> everything freed
 */
#ifndef SHINE_FRONTD_WORKER_H
#define SHINE_FRONTD_WORKER_H

#include "daemon/daemon.h"

/* What the master hands over: descriptor 3 is a pipe that ends with the master, 4 and up are the
 * listening sockets. The environment variable says what each of them is for, one letter each. */
enum { WORKER_PIPE_FD = 3, WORKER_SOCKET_FD = 4, WORKER_SOCKETS_MAX = 32 };
#define WORKER_SOCKETS_ENV  "FRONTD_SOCKETS"
#define WORKER_SOCKET_TLS   'T'
#define WORKER_SOCKET_PLAIN 'P'
#define WORKER_SOCKET_ADMIN 'A'

/* Run as a worker of `d`; returns the exit status and frees `d`. */
int worker_run(struct daemon *d);

#endif
