/*
 * Telling the service manager how far we are (sd_notify(3) of systemd; the protocol is one datagram
 * to the socket named by NOTIFY_SOCKET).
 */
#ifndef SHINE_DAEMON_NOTIFY_H
#define SHINE_DAEMON_NOTIFY_H

/* Send `state`: lines of NAME=VALUE, such as "READY=1" or "STOPPING=1". Without a service manager
 * nothing happens; that it does not listen is logged at debug level. */
void notify_service_manager(const char *state);

#endif
