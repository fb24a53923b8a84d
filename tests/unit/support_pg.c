/*
 * A private PostgreSQL for tests. See support_pg.h. Raises: everything ends the test program.
 */
#include "support_pg.h"

#include "util/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <grp.h>
#include <libpq-fe.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct pg {
    char dir[64];
    char *bin;
    int port;
    pid_t pid;
    char *conninfo;
    char *conninfo_tls;
    PGconn *control; /* for pg_exec() and pg_query_int(), connected when first needed */
};

static void die(const char *what, const char *detail)
{
    fprintf(stderr, "support_pg: %s: %s\n", what, detail);
    exit(2);
}

/* The server's own words, before we give up. */
static void show_log(const struct pg *pg)
{
    char *path = xasprintf("%s/log", pg->dir);
    FILE *f = fopen(path, "r");
    char line[500];
    while (f && fgets(line, sizeof(line), f))
        fputs(line, stderr);
    if (f)
        fclose(f);
    free(path);
}

/* Start a program, as user "postgres" if we are root, with its output in the server's log file. */
static pid_t spawn(struct pg *pg, const char *const argv[])
{
    pid_t pid = fork();
    if (pid < 0)
        die("fork", strerror(errno));
    if (pid > 0)
        return pid;
    if (geteuid() == 0) {
        struct passwd *pw = getpwnam("postgres");
        if (!pw || initgroups("postgres", pw->pw_gid) != 0 || setgid(pw->pw_gid) != 0 ||
            setuid(pw->pw_uid) != 0)
            _exit(126);
    }
    prctl(PR_SET_PDEATHSIG, SIGQUIT); /* after setuid(), which clears it */
    int fd = chdir(pg->dir) == 0 ? open("log", O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
    if (fd < 0)
        _exit(126);
    dup2(fd, 1);
    dup2(fd, 2);
    setenv("LC_ALL", "C.UTF-8", 1);
    execvp(argv[0], (char *const *)(uintptr_t)argv);
    _exit(127);
}

static void run(struct pg *pg, const char *const argv[])
{
    int status;
    pid_t pid = spawn(pg, argv);
    if (waitpid(pid, &status, 0) != pid || status != 0) {
        show_log(pg);
        die("failed", argv[0]);
    }
}

static char *find_bin(void)
{
    glob_t g;
    if (glob("/usr/lib/postgresql/*/bin", 0, NULL, &g) != 0 || g.gl_pathc == 0)
        die("PostgreSQL", "no server programs below /usr/lib/postgresql");
    char *bin = xstrdup(g.gl_pathv[g.gl_pathc - 1]);
    globfree(&g);
    return bin;
}

static int free_port(void)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sa);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&sa, len) != 0 ||
        getsockname(fd, (struct sockaddr *)&sa, &len) != 0)
        die("free port", strerror(errno));
    close(fd);
    return ntohs(sa.sin_port);
}

static void write_conf(struct pg *pg, const char *extra)
{
    char *path = xasprintf("%s/data/postgresql.auto.conf", pg->dir);
    FILE *f = fopen(path, "a");
    if (!f)
        die(path, strerror(errno));
    fprintf(f,
            "listen_addresses = '127.0.0.1'\nport = %d\nunix_socket_directories = '%s'\n"
            "fsync = off\nfull_page_writes = off\nmax_connections = 60\nshared_buffers = 32MB\n"
            "ssl = on\nssl_cert_file = '%s/cert.pem'\nssl_key_file = '%s/key.pem'\n"
            "log_min_messages = warning\n%s\n",
            pg->port, pg->dir, pg->dir, pg->dir, extra ? extra : "");
    fclose(f);
    free(path);
}

/* A temporary folder, a port and conninfos; no data yet. */
static struct pg *prepare(void)
{
    struct pg *pg = xnew(struct pg);
    snprintf(pg->dir, sizeof(pg->dir), "/tmp/shine-pg-XXXXXX");
    if (!mkdtemp(pg->dir))
        die("mkdtemp", strerror(errno));
    if (geteuid() == 0) {
        struct passwd *pw = getpwnam("postgres");
        if (!pw || chown(pg->dir, pw->pw_uid, pw->pw_gid) != 0)
            die("chown to postgres", pg->dir);
    }
    pg->bin = find_bin();
    pg->port = free_port();
    pg->conninfo = xasprintf("host=%s port=%d user=postgres dbname=postgres", pg->dir, pg->port);
    pg->conninfo_tls = xasprintf("host=localhost port=%d user=postgres dbname=postgres "
                                 "sslmode=require",
                                 pg->port);
    run(pg,
        (const char *const[]){"openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                              "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=localhost",
                              "-days", "30", "-keyout", "key.pem", "-out", "cert.pem", NULL});
    return pg;
}

struct pg *pg_new(const char *extra_conf)
{
    struct pg *pg = prepare();
    char *initdb = xasprintf("%s/initdb", pg->bin);
    run(pg, (const char *const[]){initdb, "-D", "data", "-U", "postgres", "-A", "trust", "-E",
                                  "UTF8", "--locale=C.UTF-8", "-N", NULL});
    free(initdb);
    write_conf(pg, extra_conf);
    pg_start(pg);
    return pg;
}

struct pg *pg_new_standby(struct pg *of)
{
    struct pg *pg = prepare();
    char *basebackup = xasprintf("%s/pg_basebackup", pg->bin);
    run(pg, (const char *const[]){basebackup, "-D", "data", "-R", "-c", "fast", "-N", "-d",
                                  of->conninfo, NULL});
    free(basebackup);
    write_conf(pg, NULL); /* later lines win over the copied ones */
    pg_start(pg);
    return pg;
}

void pg_start(struct pg *pg)
{
    char *postgres = xasprintf("%s/postgres", pg->bin);
    pg->pid = spawn(pg, (const char *const[]){postgres, "-D", "data", NULL});
    free(postgres);
    for (int i = 0; i < 3000; i++) {
        if (PQping(pg->conninfo) == PQPING_OK)
            return;
        if (waitpid(pg->pid, NULL, WNOHANG) == pg->pid)
            break;
        usleep(10000);
    }
    show_log(pg);
    die("postgres does not start", pg->dir);
}

void pg_stop(struct pg *pg)
{
    PQfinish(pg->control);
    pg->control = NULL;
    if (!pg->pid)
        return;
    kill(pg->pid, SIGQUIT);
    waitpid(pg->pid, NULL, 0);
    pg->pid = 0;
}

void pg_free(struct pg *pg)
{
    pg_stop(pg);
    run(pg, (const char *const[]){"rm", "-rf", pg->dir, NULL});
    free(pg->bin);
    free(pg->conninfo);
    free(pg->conninfo_tls);
    free(pg);
}

const char *pg_conninfo(struct pg *pg)
{
    return pg->conninfo;
}

const char *pg_conninfo_tls(struct pg *pg)
{
    return pg->conninfo_tls;
}

int pg_port(const struct pg *pg)
{
    return pg->port;
}

const char *pg_socket_dir(const struct pg *pg)
{
    return pg->dir;
}

char *pg_new_database(struct pg *pg, const char *name)
{
    char *sql = xasprintf("DROP DATABASE IF EXISTS %s", name);
    pg_exec(pg, sql);
    free(sql);
    sql = xasprintf("CREATE DATABASE %s", name);
    pg_exec(pg, sql);
    free(sql);
    return xasprintf("host=%s port=%d user=postgres dbname=%s", pg->dir, pg->port, name);
}

static void ignore_notice(void *arg, const char *message)
{
    (void)arg;
    (void)message;
}

static int64_t query_int(PGconn *c, const char *sql)
{
    PGresult *res = PQexec(c, sql);
    ExecStatusType s = PQresultStatus(res);
    if (s != PGRES_TUPLES_OK && s != PGRES_COMMAND_OK)
        die(sql, PQerrorMessage(c));
    int64_t v = PQntuples(res) > 0 ? strtoll(PQgetvalue(res, 0, 0), NULL, 10) : 0;
    PQclear(res);
    return v;
}

int64_t pg_query_int_at(const char *conninfo, const char *sql)
{
    PGconn *c = PQconnectdb(conninfo);
    int64_t v = query_int(c, sql);
    PQfinish(c);
    return v;
}

void pg_exec_at(const char *conninfo, const char *sql)
{
    (void)pg_query_int_at(conninfo, sql);
}

void pg_exec(struct pg *pg, const char *sql)
{
    (void)pg_query_int(pg, sql);
}

int64_t pg_query_int(struct pg *pg, const char *sql)
{
    if (!pg->control)
        pg->control = PQconnectdb(pg->conninfo);
    PQsetNoticeProcessor(pg->control, ignore_notice, NULL);
    return query_int(pg->control, sql);
}
