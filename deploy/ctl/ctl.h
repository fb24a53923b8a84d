/*
 * shinectl: what an operator and a user at a terminal do with a SHiNE server. Commands that change
 * users and show delivery state talk to the database; commands that send and read messages talk to
 * a server like any client.
 *
 * A command is a function that runs to its end and returns an exit code; waiting is done by
 * ctl_wait(), which turns the loop until a condition holds. Grade of failure: everything here ends
 * the command with a message and an exit code.
 */
#ifndef SHINE_CTL_CTL_H
#define SHINE_CTL_CTL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "deploy/ctl/print.h"
#include "dm/container.h"
#include "store/store.h"
#include "util/config.h"

enum ctl_exit {
    CTL_OK = 0,
    CTL_REFUSED = 1,     /* understood and refused: not found, an error answer of the server */
    CTL_USAGE = 2,       /* the command line is wrong */
    CTL_CONFIG = 3,      /* the configuration or a key file is wrong */
    CTL_DATABASE = 4,    /* the database cannot be reached or failed */
    CTL_UNREACHABLE = 5, /* the server cannot be reached or does not answer */
    CTL_FAILED = 6       /* the message is stored, and its delivery has failed for good */
};

/* One `--name value` of a command line; the value of a flag is "". */
struct ctl_option {
    const char *name;
    const char *value;
};

#define CTL_MAX_OPTIONS 32
#define CTL_MAX_WORDS   16

struct ctl {
    uv_loop_t *loop;
    struct config *config;
    bool json;
    struct db_pool *db; /* opened by ctl_store() */
    struct store *store;
    struct ctl_option options[CTL_MAX_OPTIONS]; /* of the command */
    unsigned n_options;
    const char *words[CTL_MAX_WORDS]; /* its arguments without dashes */
    unsigned n_words;
};

/* The value of option `--name`, or NULL; `nth` counts repetitions from 0. */
const char *ctl_option(const struct ctl *c, const char *name, unsigned nth);
/* True if the flag `--name` was given. */
bool ctl_flag(const struct ctl *c, const char *name);
/* The value of an option as a whole number within [min, max], or `dflt` if it is not given. false,
 * with a message printed, if it is something else. */
bool ctl_option_int(const struct ctl *c, const char *name, int64_t min, int64_t max, int64_t dflt,
                    int64_t *out);

/* Print "shinectl: …" on stderr, as ctl_print_text() does, and return `code`. */
int ctl_fail(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Turn the loop until *done is true. false if `timeout_ms` passed first (0 = no limit). */
bool ctl_wait(struct ctl *c, const bool *done, uint64_t timeout_ms);
/* Connect to db.conninfo and wait until it is usable. CTL_OK, or an exit code after a message. */
int ctl_store(struct ctl *c);
/* CTL_OK for DB_OK; otherwise a message and CTL_DATABASE. */
int ctl_db_result(enum db_status st);

/* True if `s` is a server login: [a-z0-9][a-z0-9_.-]{0,62}. */
bool ctl_server_login_valid(const char *s);
/* Read SERVERLOGIN=URL from each --access option into `routes` (at most 2). CTL_OK or an exit code
 * after a message. */
int ctl_access_servers(const struct ctl *c, struct store_route routes[2], unsigned *n);

/* A key file holds two lines, `secret B64` (the 32-byte Ed25519 seed) and `public B64`. Read the
 * seed; the public line must match it. */
int ctl_read_key(const char *path, uint8_t seed[DM_KEY_BYTES], uint8_t public_key[DM_KEY_BYTES]);

/* The commands. */
int cmd_migrate(struct ctl *c);
int cmd_keygen(struct ctl *c);
int cmd_ready(struct ctl *c);
int cmd_user_add(struct ctl *c);
int cmd_user_show(struct ctl *c);
int cmd_user_set_servers(struct ctl *c);
int cmd_user_profile(struct ctl *c);
int cmd_server_add(struct ctl *c);
int cmd_server_block(struct ctl *c);
int cmd_server_unblock(struct ctl *c);
int cmd_peers(struct ctl *c);
int cmd_delivery_show(struct ctl *c);
int cmd_delivery_release(struct ctl *c);
int cmd_sync_mark_unsynced(struct ctl *c);
int cmd_login(struct ctl *c);
int cmd_send(struct ctl *c);
int cmd_edit(struct ctl *c);
int cmd_read(struct ctl *c);
int cmd_delete(struct ctl *c);
int cmd_watch(struct ctl *c);
int cmd_history(struct ctl *c);
int cmd_conversations(struct ctl *c);

#endif
