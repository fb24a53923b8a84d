/*
 * The command line and the configuration of a daemon, up to the point where its log works.
 *
 * Grades of failure: what the operator got wrong is told on stderr and ends the process.
 */
#include "daemon/core.h"

#include "daemon/settings.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#include <jansson.h>
#include <malloc.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* What the command line asks for. */
struct options {
    const char *file; /* NULL = the default one */
    bool check, print;
    unsigned extra;
};

static void usage(FILE *to, const char *kind)
{
    (void)fprintf(to,
                  "usage: %s [-c FILE] [--set KEY=VALUE]... [--check-config | --print-config]\n"
                  "\n"
                  "  -c FILE          configuration file (default " SETTINGS_DEFAULT_FILE ")\n"
                  "  --set KEY=VALUE  set one key, over file and environment\n"
                  "  --check-config   check the configuration and exit\n"
                  "  --print-config   show every key, its value and where it came from, and exit\n"
                  "  --version        show the version and exit\n",
                  kind);
}

static bool fail(char *error)
{
    (void)fprintf(stderr, "%s\n", error);
    free(error);
    return false;
}

static int find_extra(const char *const *extra, const char *arg)
{
    for (int i = 0; extra && extra[i]; i++)
        if (strcmp(extra[i], arg) == 0)
            return i;
    return -1;
}

/* Read the options; `--set` is left for apply_sets(), because it comes after file and environment.
 * false: the process ends with *status. */
static bool read_options(int argc, char **argv, const char *kind, const char *const *extra,
                         struct options *o, int *status)
{
    *status = DAEMON_USAGE;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        bool takes_value = strcmp(a, "-c") == 0 || strcmp(a, "--set") == 0;
        int e = find_extra(extra, a);
        if (takes_value && i + 1 == argc)
            return fail(xasprintf("%s: %s needs a value", kind, a));
        if (strcmp(a, "-c") == 0)
            o->file = argv[++i];
        else if (takes_value)
            i++;
        else if (strcmp(a, "--check-config") == 0)
            o->check = true;
        else if (strcmp(a, "--print-config") == 0)
            o->print = true;
        else if (e >= 0)
            o->extra |= 1u << e;
        else if (strcmp(a, "--help") == 0 || strcmp(a, "--version") == 0) {
            if (a[2] == 'h')
                usage(stdout, kind);
            else
                (void)printf("%s %s\n", kind, SHINE_VERSION);
            *status = 0;
            return false;
        } else {
            usage(stderr, kind);
            return fail(xasprintf("%s: unknown option '%s'", kind, a));
        }
    }
    return true;
}

/* read_options() has found every option with its value. */
static bool apply_sets(struct config *c, char **argv, char **error)
{
    for (char **a = argv + 1; *a; a++) {
        bool is_set = strcmp(*a, "--set") == 0;
        if ((is_set || strcmp(*a, "-c") == 0) && a[1])
            a++;
        if (is_set && !config_set(c, *a, "--set", error))
            return false;
    }
    return true;
}

/* Without -c the default file may be missing: everything may come from the environment. */
static bool load(struct config *c, const struct options *o, char **argv, char **error)
{
    const char *file = o->file ? o->file : SETTINGS_DEFAULT_FILE;
    if ((o->file || access(file, F_OK) == 0) && !config_load_file(c, file, error))
        return false;
    if (!config_load_env(c, environ, error) || !apply_sets(c, argv, error))
        return false;
    *error = settings_check(c);
    return !*error;
}

/* KIND-HOST-PID-RANDOM: fresh per start, so that nobody else's lease is ever taken for ours. */
static void make_process_id(struct daemon *d, const char *kind)
{
    size_t n = sizeof d->core->host;
    if (gethostname(d->core->host, n) != 0 || d->core->host[0] == '\0')
        (void)snprintf(d->core->host, n, "unknown");
    d->core->host[n - 1] = '\0';
    (void)snprintf(d->process_id, sizeof d->process_id, "%.16s-%.48s-%ld-%08x", kind, d->core->host,
                   (long)getpid(), (unsigned)randombytes_random());
}

/* One descriptor per connection: take what the system allows. Where that is too little, accepting
 * fails later and is logged there. */
static void raise_file_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

/* By default glibc returns the top of the heap to the system whenever 128 KiB of it are free, and
 * maps every larger block anew. A loop turn with a few messages of 64 KiB then hands its memory
 * back at its end and faults it in again in the next one: three times the CPU. So much is kept
 * instead.
 */
static void keep_heap(void)
{
    enum { KEPT_BYTES = 8 * 1024 * 1024 };
    (void)mallopt(M_TRIM_THRESHOLD, KEPT_BYTES);
    (void)mallopt(M_MMAP_THRESHOLD, KEPT_BYTES);
}

struct daemon *daemon_init(int argc, char **argv, const char *kind, const char *const *extra,
                           unsigned *extra_seen, int *status)
{
    struct options o = {0};
    char *error = NULL;
    if (!read_options(argc, argv, kind, extra, &o, status))
        return NULL;
    struct config *config = config_new(settings_keys);
    *status = DAEMON_USAGE;
    if (!load(config, &o, argv, &error)) {
        (void)fail(xasprintf("%s: %s", kind, error));
        free(error);
        config_free(config);
        return NULL;
    }
    if (o.check || o.print) {
        if (o.print)
            config_print(config, STDOUT_FILENO);
        else
            (void)printf("the configuration is valid\n");
        *status = 0;
        config_free(config);
        return NULL;
    }
    log_setup(kind, (enum log_format)config_enum(config, "log.format"),
              (enum log_level)config_enum(config, "log.level"));
    shine_assert(sodium_init() >= 0);
    raise_file_limit();
    keep_heap();
    json_object_seed(0); /* before any thread parses */
    shine_assert(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
    struct daemon *d = xnew(struct daemon);
    d->core = xnew(struct daemon_core);
    d->config = config;
    d->argc = argc;
    d->argv = argv;
    make_process_id(d, kind);
    d->loop = xnew(uv_loop_t);
    shine_assert(uv_loop_init(d->loop) == 0);
    if (extra_seen)
        *extra_seen = o.extra;
    return d;
}
