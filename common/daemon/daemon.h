/*
 * The skeleton of every daemon: options, configuration, log, signals, loop, database, process row
 * and heartbeat.
 *
 *   starting -> running -> stopping -> stopped (exit 0)
 *       \__________\___________\____-> exit 1..3 with a logged reason
 *
 * A daemon is a struct daemon_spec and its own modules. Options: -c FILE, --set KEY=VALUE
 * (repeatable), --check-config, --print-config,
 * --version, --help.
 */
#ifndef SHINE_DAEMON_DAEMON_H
#define SHINE_DAEMON_DAEMON_H

#include <stdbool.h>
#include <uv.h>

#include "db/db.h"
#include "store/store.h"
#include "util/config.h"

#define SHINE_VERSION "0.1.0"

/* The one context of a process. Everything else hangs off it. */
struct daemon {
    uv_loop_t *loop;
    struct config *config;
    struct db_pool *db;                        /* NULL if the spec needs no database */
    struct store *store;                       /* likewise */
    char process_id[SHINE_PROCESS_ID_MAX + 1]; /* KIND-HOST-PID-RANDOM */
    const struct daemon_spec *spec;
    void *own; /* the daemon's own state, set in start() */
    struct daemon_core *core;
    int argc; /* the command line as given, for starting workers */
    char **argv;
};

struct daemon_spec {
    const char *kind; /* "frontd", … */
    bool needs_db;    /* pool, store, schema check, process row */
    bool admin;       /* serve admin.listen (admin.h) */
    bool notify;      /* tell the service manager READY once start() has succeeded, and STOPPING */
    /* Set up and begin to work; the loop is not running yet. false = cannot start (reason logged).
     */
    bool (*start)(struct daemon *d);
    /* Begin an orderly stop (SIGTERM, SIGINT, or daemon_stop()): stop accepting, finish what is in
     * flight, then call daemon_stopped(). Called once. A stop not finished within 20 s is cut. */
    void (*stop)(struct daemon *d);
    /* The database is closed, every call to it has ended, the loop ends when its handles are gone:
     * close and free what remains. May be NULL. */
    void (*closed)(struct daemon *d);
    /* SIGHUP; may be NULL. */
    void (*reload)(struct daemon *d);
    /* Beside the database: can the daemon do its work now? If not, a short reason for people into
     * `why`. May be NULL. */
    bool (*ready)(struct daemon *d, char *why, size_t size);
};

/* Exit statuses beside 0. A supervisor need not try again after UNUSABLE without a person's help.
 */
enum {
    DAEMON_FAILED = 1,   /* could not start, or a stop that did not end */
    DAEMON_USAGE = 2,    /* command line or configuration */
    DAEMON_UNUSABLE = 3, /* the database's schema does not fit this program */
};

/* Parse the command line and configuration and set up the log. Returns NULL when the process should
 * exit with *status (a
 * --help, a configuration error told on stderr). `extra` lists further options without value that
 * the daemon reads itself ("--worker"), NULL-ended; each one present is ORed as bit i into
 * *extra_seen. Both may be NULL. */
struct daemon *daemon_init(int argc, char **argv, const char *kind, const char *const *extra,
                           unsigned *extra_seen, int *status);
/* Run `spec` until it has stopped; returns the exit status and frees `d`. With needs_db the schema
 * is checked first: a database that is away at the start is waited for (requests get 503
 * meanwhile), an older schema ends the process. */
int daemon_run(struct daemon *d, const struct daemon_spec *spec);
/* Ask for an orderly stop from inside. */
void daemon_stop(struct daemon *d, const char *reason);
/* The same, with another exit status than 0. The caller has logged why. */
void daemon_fail(struct daemon *d, int status, const char *reason);
/* True if the process can do its work now: running, database connected, schema checked, and what
 * the spec says; otherwise the reason in `why`. */
bool daemon_is_ready(struct daemon *d, char *why, size_t size);
/* The spec's stop() is finished: unregister the process, close the database, leave the loop. */
void daemon_stopped(struct daemon *d);

#endif
