/*
 * shinectl's command line: global options, then a command of one or two words, then its own options
 * and arguments in any order. The table below is also the help text.
 */
#include "deploy/ctl/ctl.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "daemon/settings.h"
#include "util/log.h"
#include "util/mem.h"

#define DEFAULT_CONFIG "/etc/shine/shine.conf"

struct command {
    const char *name;
    int (*run)(struct ctl *c);
    const char *args;
    const char *help;
    const char *options; /* names, each between spaces; one that takes no value ends in "?" */
    unsigned min_words, max_words;
};

/* How a command names the server it talks to. */
#define SERVER "[--url URL] [--ca FILE]"

static const struct command commands[] = {
    {"migrate", cmd_migrate, "", "create or upgrade the schema of db.conninfo", " ", 0, 0},
    {"keygen", cmd_keygen, "", "print a new key: the lines of a key file", " ", 0, 0},
    {"ready", cmd_ready, "[ADDR:PORT]",
     "ask admin.listen, or ADDR:PORT, whether the daemon there can work now", " ", 0, 1},
    {"user add", cmd_user_add, "LOGIN --client-key B64 --access SERVER=URL [--access …]",
     "add a local user", " client-key access ", 1, 1},
    {"user show", cmd_user_show, "LOGIN", "show a user: keys, access servers, source, profile", " ",
     1, 1},
    {"user set-servers", cmd_user_set_servers, "LOGIN --access SERVER=URL [--access …]",
     "replace a user's access servers", " access ", 1, 1},
    {"user profile", cmd_user_profile,
     "LOGIN --key FILE --access SERVER=URL [--access …] [--enc-key B64] " SERVER,
     "sign and publish which servers are the user's: every server comes to know",
     " key access enc-key url ca ", 1, 1},
    {"server add", cmd_server_add, "SERVER --url URL [--key B64]",
     "add a partner server, or change its URL", " url key ", 1, 1},
    {"server block", cmd_server_block, "SERVER",
     "send nothing to a server, partner or not, and accept nothing from it", " ", 1, 1},
    {"server unblock", cmd_server_unblock, "SERVER", "let it in again", " ", 1, 1},
    {"peers", cmd_peers, "",
     "other servers: how each process is connected, and what went wrong last", " ", 0, 0},
    {"delivery show", cmd_delivery_show, "MESSAGEKEY", "how far a message got (any of its keys)",
     " ", 1, 1},
    {"delivery release", cmd_delivery_release, "MESSAGEKEY",
     "let a delivery that was set aside (v_delivery_stuck) be tried again at once", " ", 1, 1},
    {"sync mark-unsynced", cmd_sync_mark_unsynced, "LOGIN | --all",
     "offer everything of a user, or of all users, to their second servers again", " all? ", 0, 1},
    {"login", cmd_login, "--key FILE --login LOGIN " SERVER,
     "make sure of the session that history and conversations use; print its id",
     " key login url ca ", 0, 0},
    {"send", cmd_send, "--key FILE --from LOGIN --to LOGIN " SERVER " TEXT",
     "send a text; - reads it from stdin", " key from to url ca ", 1, 1},
    {"edit", cmd_edit, "--key FILE " SERVER " MESSAGEKEY TEXT",
     "replace a text that was sent; - reads it from stdin", " key url ca ", 2, 2},
    {"read", cmd_read, "--key FILE " SERVER " MESSAGEKEY",
     "tell the author of a text that it was read", " key url ca ", 1, 1},
    {"delete", cmd_delete,
     "--key FILE --from LOGIN [--for-me] " SERVER
     " MESSAGEKEY | --conversation --to LOGIN [--until MS]",
     "delete a text, or all texts up to now, for both sides or for oneself",
     " key from to until url ca for-me? conversation? ", 0, 1},
    {"watch", cmd_watch, "--key FILE --login LOGIN [--count N] [--timeout SECONDS] " SERVER,
     "show messages as they come", " key login count timeout url ca ", 0, 0},
    {"history", cmd_history, "--key FILE --login LOGIN --with LOGIN [--limit N] " SERVER,
     "the newest messages of a conversation", " key login with limit url ca ", 0, 0},
    {"conversations", cmd_conversations, "--key FILE --login LOGIN [--limit N] " SERVER,
     "the newest conversations, with what is unread", " key login limit url ca ", 0, 0},
};

static void usage(FILE *to)
{
    fputs("usage: shinectl [-c FILE] [--set KEY=VALUE] [--json] COMMAND …\n\n", to);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(to, "  %s %s\n      %s\n", commands[i].name, commands[i].args, commands[i].help);
    fputs(
        "\nThe configuration is " DEFAULT_CONFIG
        " unless -c names another; commands that take --url need none if it "
        "is given.\n"
        "Exit: 0 done, 1 refused or not found, 2 usage, 3 configuration, 4 database, 5 server not "
        "reached, 6 stored but undeliverable.\n",
        to);
}

/* The command that begins at argv[i]; *used gets how many words its name has. */
static const struct command *command_find(char **argv, int i, int argc, int *used)
{
    for (size_t k = 0; k < sizeof commands / sizeof *commands; k++) {
        const char *name = commands[k].name;
        const char *space = strchr(name, ' ');
        size_t first = space ? (size_t)(space - name) : strlen(name);
        if (strlen(argv[i]) != first || strncmp(argv[i], name, first) != 0)
            continue;
        if (!space) {
            *used = 1;
            return &commands[k];
        }
        if (i + 1 < argc && strcmp(argv[i + 1], space + 1) == 0) {
            *used = 2;
            return &commands[k];
        }
    }
    return NULL;
}

static bool command_knows(const struct command *cmd, const char *option, const char *mark)
{
    char *padded = xasprintf(" %s%s ", option, mark);
    bool known = strstr(cmd->options, padded) != NULL;
    free(padded);
    return known;
}

/* The rest of the command line; "--" ends the options, so that a text may begin with dashes. */
static int command_parse(struct ctl *c, const struct command *cmd, char **argv, int i, int argc)
{
    bool options = true;
    for (; i < argc; i++) {
        char *a = argv[i];
        if (options && strcmp(a, "--") == 0) {
            options = false;
        } else if (options && strcmp(a, "--json") == 0) {
            c->json = true;
        } else if (options && strncmp(a, "--", 2) == 0) {
            bool flag = command_knows(cmd, a + 2, "?");
            if (!flag && !command_knows(cmd, a + 2, ""))
                return ctl_fail(CTL_USAGE, "%s does not know %s", cmd->name, a);
            if (!flag && i + 1 >= argc)
                return ctl_fail(CTL_USAGE, "%s needs a value", a);
            if (c->n_options == CTL_MAX_OPTIONS)
                return ctl_fail(CTL_USAGE, "too many options");
            c->options[c->n_options++] = (struct ctl_option){a + 2, flag ? "" : argv[++i]};
        } else if (c->n_words == CTL_MAX_WORDS) {
            return ctl_fail(CTL_USAGE, "too many arguments");
        } else {
            c->words[c->n_words++] = a;
        }
    }
    if (c->n_words < cmd->min_words || c->n_words > cmd->max_words)
        return ctl_fail(CTL_USAGE, "usage: shinectl %s %s", cmd->name, cmd->args);
    return CTL_OK;
}

/* Global options before the command. Returns the index of the command, or -1 with *status set. */
static int globals_parse(struct ctl *c, char **argv, int argc, const char **file, const char **sets,
                         unsigned *n_sets, int *status)
{
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            usage(stdout);
            *status = CTL_OK;
            return -1;
        }
        if (strcmp(argv[i], "--version") == 0) {
            puts("shinectl " SHINE_VERSION);
            *status = CTL_OK;
            return -1;
        }
        if (strcmp(argv[i], "--json") == 0) {
            c->json = true;
            continue;
        }
        bool is_set = strcmp(argv[i], "--set") == 0;
        if ((!is_set && strcmp(argv[i], "-c") != 0) || i + 1 >= argc ||
            *n_sets == CTL_MAX_OPTIONS) {
            *status = ctl_fail(CTL_USAGE, "unknown or incomplete option %s", argv[i]);
            return -1;
        }
        if (is_set)
            sets[(*n_sets)++] = argv[++i];
        else
            *file = argv[++i];
    }
    if (i == argc) {
        usage(stderr);
        *status = CTL_USAGE;
        return -1;
    }
    return i;
}

static int config_load(struct ctl *c, const char *file, const char *const *sets, unsigned n_sets)
{
    char *error = NULL;
    c->config = config_new(settings_keys);
    bool ok = true;
    if (file)
        ok = config_load_file(c->config, file, &error);
    else if (access(DEFAULT_CONFIG, R_OK) == 0)
        ok = config_load_file(c->config, DEFAULT_CONFIG, &error);
    ok = ok && config_load_env(c->config, environ, &error);
    for (unsigned i = 0; ok && i < n_sets; i++)
        ok = config_set(c->config, sets[i], "--set", &error);
    if (ok)
        return CTL_OK;
    int code = ctl_fail(CTL_CONFIG, "%s", error);
    free(error);
    return code;
}

static void walk_close(uv_handle_t *h, void *arg)
{
    (void)arg;
    if (!uv_is_closing(h))
        uv_close(h, NULL);
}

static void mark_done(void *done)
{
    *(bool *)done = true;
}

/* Close what the command opened, so that a leak checker sees only real leaks. */
static void ctl_close(struct ctl *c)
{
    if (c->db) {
        bool done = false;
        db_pool_close(c->db, mark_done, &done);
        (void)ctl_wait(c, &done, 5000);
    }
    if (c->store)
        store_free(c->store);
    uv_walk(c->loop, walk_close, NULL);
    uv_run(c->loop, UV_RUN_DEFAULT);
    uv_loop_close(c->loop);
    if (c->config)
        config_free(c->config);
}

int main(int argc, char **argv)
{
    uv_loop_t loop;
    struct ctl c = {.loop = &loop};
    const char *file = NULL, *sets[CTL_MAX_OPTIONS];
    unsigned n_sets = 0;
    int status = CTL_OK, used = 0;

    log_setup("shinectl", LOG_FORMAT_LOGFMT, LOG_LEVEL_ERROR);
    if (sodium_init() < 0 || uv_loop_init(&loop) != 0)
        return ctl_fail(CTL_CONFIG, "cannot start");
    int at = globals_parse(&c, argv, argc, &file, sets, &n_sets, &status);
    if (at >= 0) {
        const struct command *cmd = command_find(argv, at, argc, &used);
        if (!cmd)
            status = ctl_fail(CTL_USAGE, "unknown command %s; see shinectl --help", argv[at]);
        else if ((status = command_parse(&c, cmd, argv, at + used, argc)) == CTL_OK &&
                 (status = config_load(&c, file, sets, n_sets)) == CTL_OK)
            status = cmd->run(&c);
    }
    ctl_close(&c);
    return status;
}
