/*
 * The table of configuration keys, and the rules between them.
 *
 * Grades of failure: a bad value is returned as a message for the operator.
 */
#include "daemon/settings.h"

#include "dm/container.h"
#include "net/ws.h"
#include "peer/open.h"
#include "util/mem.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#define STR(n, d, h)                                                                               \
    {                                                                                              \
        .name = (n), .type = CONFIG_STRING, .dflt = (d), .help = (h)                               \
    }
#define INT(n, d, lo, hi, h)                                                                       \
    {                                                                                              \
        .name = (n), .type = CONFIG_INT, .dflt = (d), .min = (lo), .max = (hi), .help = (h)        \
    }
#define BOOL(n, d, h)                                                                              \
    {                                                                                              \
        .name = (n), .type = CONFIG_BOOL, .dflt = (d), .help = (h)                                 \
    }
#define ENUM(n, d, c, h)                                                                           \
    {                                                                                              \
        .name = (n), .type = CONFIG_ENUM, .dflt = (d), .choices = (c), .help = (h)                 \
    }

/* clang-format off */
const struct config_key settings_keys[] = {
    STR("server.SHiNE.login", "", "login of this server; without it only account look-ups work"),
    STR("server.url", "", "address of this server for clients and other servers, wss://HOST[:PORT]/ws"),
    STR("server.urlAliases", "", "further addresses under which other servers dial this one: URLs with commas between"),
    STR("server.keyFile", "", "key by which this server proves who it is: the two lines that shinectl keygen prints"),
    ENUM("server.auth", "known", "require|known|trust", "other servers that are believed: who proves a key; also who has none known here; everybody"),
    STR("server.description", "", "a line about this server, shown by GetServerInfo"),

    STR("listen", "0.0.0.0:443", "TLS sockets of frontd: ADDR:PORT[, ADDR:PORT]"),
    STR("listen.plain", "", "the same without TLS, for a proxy on this host that ends TLS"),
    STR("admin.listen", "", "/healthz and /readyz, HTTP without TLS: ADDR:PORT[, ADDR:PORT]; for loopback or a private network"),
    STR("tls.certFile", "", "certificate chain of frontd, PEM"),
    STR("tls.keyFile", "", "its private key, PEM"),
    STR("tls.caFile", "", "who may sign other servers' certificates, PEM; empty = the system's store"),
    BOOL("tls.peerVerify", "true", "verify other servers' certificates; false only for tests"),

    STR("db.conninfo", "", "PostgreSQL connection string, as libpq takes it"),
    INT("db.poolSize", "4", 1, 64, "database connections of one process"),
    INT("db.maxBatch", "200", 1, 500, "requests that share one transaction at most"),

    INT("frontd.workers", "0", 0, 256, "worker processes; 0 = one per core"),

    INT("delivery.firstReplyBudgetMs", "3000", 0, 60000, "a send waits so long for the recipient's servers before it answers 'accepted'"),
    INT("delivery.firstAttemptMaxInFlight", "2000", 1, 1000000, "first attempts under way in one process; beyond it deliveryd makes them"),

    STR("delivery.scheduleMs", "0, 30000, 300000, 1500000, 3600000", "when the attempts at a delivery are made, in ms from its acceptance; the last one is the end"),
    INT("delivery.askSecondFrom", "3", 1, 17, "from this attempt on the author's other server is asked first; beyond the last = never"),
    INT("delivery.tickMs", "5000", 20, 600000, "deliveryd looks for due rows at least so often"),
    INT("delivery.leaseMs", "45000", 1000, 3600000, "how long deliveryd holds a row; one attempt must fit into it"),
    INT("delivery.maxInFlight", "2000", 1, 100000, "rows that one deliveryd works on at a time"),
    INT("delivery.maxInFlightPerPeer", "200", 1, 10000, "calls of one deliveryd to one server at a time"),

    INT("server.pool.pingIdleSeconds", "120", 1, 3600, "ping another server after so long without traffic"),
    INT("server.pool.pongTimeoutSeconds", "15", 1, 600, "drop the connection if no pong comes back in time"),
    INT("server.pool.requestTimeoutSeconds", "12", 1, 600, "answer to a request, counted from when it was written"),
    INT("server.pool.connectTimeoutSeconds", "15", 1, 600, "look-up, TCP, TLS and WebSocket handshake together"),
    INT("server.pool.callerTimeoutSeconds", "35", 1, 600, "queueing, connecting and the answer together"),
    INT("server.pool.maxQueuePerPeer", "2000", 1, 1000000, "requests that wait for one server; more are refused at once"),
    INT("server.pool.maxInFlightPerPeer", "64", 1, 10000, "open requests to a server that lists pipelining"),
    INT("server.pool.maxPeers", "1000", 1, 100000, "servers known at once; the least recently used idle one makes room"),
    INT("server.pool.dialsPerSecond", "20", 1, 100000, "dials that a process begins in a second, or a tenth of the known servers if that is more"),
    BOOL("server.pool.eager", "false", "connect to all known servers, not only to those that are called"),
    BOOL("server.pool.allowPrivateAddresses", "false", "dial loopback, private and link-local addresses (tests, demo)"),

    INT("dm.maxFutureMs", "900000", 0, 86400000, "how far ahead of the database's clock a client's message may be"),

    INT("limits.clientBodyBytes", "65536", 1, 1048576, "body of one message from a client"),
    INT("limits.maxAnswerBytes", "1048576", 65536, 4194304, "an answer to a client; pages stop earlier"),
    INT("limits.sessionsPerUser", "50", 1, 100000, "sessions (devices) of one user"),
    INT("limits.settingsPerUser", "1000", 1, 1000000, "settings of one user, deleted ones not counted"),
    INT("limits.connections", "20000", 1, 1000000, "connections of one worker process"),
    INT("limits.connectionsPerAddress", "1000", 1, 1000000, "connections of one address to one worker process"),
    INT("limits.requestsPerLogin", "200", 0, 1000000, "requests a second of one user's connections to one worker process; 0 = any"),
    INT("limits.requestsPerLoginBurst", "1000", 1, 1000000, "the same at once after a quiet while"),
    INT("limits.sendsPerAddress", "20", 0, 1000000, "messages and deletions a second from one address without log-in; 0 = any"),
    INT("limits.sendsPerAddressBurst", "100", 1, 1000000, "the same at once after a quiet while"),
    INT("limits.sendsPerServer", "5000", 0, 1000000, "messages and deletions a second from one known server; 0 = any"),
    INT("limits.hellosPerAddress", "20", 0, 1000000, "ServerHello requests a second from one address; 0 = any"),
    INT("limits.hellosPerAddressBurst", "100", 1, 1000000, "the same at once after a quiet while"),
    INT("limits.addUsersPerAddress", "1", 0, 1000000, "AddUser requests a minute from one address; 0 = any"),
    INT("limits.addUsersPerAddressBurst", "10", 1, 1000000, "the same at once after a quiet while"),
    INT("limits.inFlightPerConnection", "64", 1, 10000, "requests of one connection worked on; then reading stops"),

    INT("ws.maxSendBufferBytes", "1048576", 65536, 268435456, "events waiting for a client that reads slowly; more ends the connection"),
    INT("ws.maxMessageBytes", "4194304", 65536, 67108864, "one message received"),
    INT("ws.idleSeconds", "600", 1, 86400, "ping a connection after so long without traffic"),
    INT("ws.handshakeSeconds", "10", 1, 300, "TLS and WebSocket handshake of an accepted connection"),

    ENUM("directory.addUser", "off", "off|open", "who may add users: nobody, or every client"),
    BOOL("directory.addUserProof", "true", "AddUser must be signed by the key that is added"),
    INT("directory.ttlSeconds", "900", 1, 86400, "how long a user's key is kept in memory, and a record of another server's user is taken for current"),
    INT("sync.intervalMs", "21600000", 1000, 604800000, "what second servers hold for our users is fetched so often"),
    INT("sync.maxTurnMs", "600000", 1000, 86400000, "one user holds up the others of the same second server so long at most"),
    BOOL("sync.importUserProfileFromPartner.enabled", "true", "look unknown users up at partner servers, and at the server that writes for them"),

    INT("events.retentionDays", "30", 1, 36500, "how long events are kept for devices that were away"),
    INT("events.maxPerUser", "100000", 1000, 1000000000, "events of one user that are kept at most"),
    INT("sync.rejectRetentionDays", "90", 1, 36500, "how long notes about refused replication items are kept"),
    INT("events.pollMs", "5000", 100, 600000, "look for events whose notification was lost"),

    ENUM("log.format", "logfmt", "logfmt|json", "form of the log lines on stderr"),
    ENUM("log.level", "info", "debug|info|warn|error", "the least level that is logged"),
    {.name = NULL},
};
/* clang-format on */

int settings_next_address(const char **rest, struct settings_address *out)
{
    unsigned char binary[sizeof(struct in6_addr)];
    const char *s = *rest + strspn(*rest, " \t");
    if (*s == '\0')
        return 0;
    size_t len = strcspn(s, ",");
    *rest = s + len + (s[len] == ',');
    while (len > 0 && (s[len - 1] == ' ' || s[len - 1] == '\t'))
        len--;
    const char *colon = memrchr(s, ':', len);
    if (!colon || colon == s)
        return -1;
    bool brackets = *s == '[' && colon[-1] == ']';
    size_t host_len = (size_t)(colon - s) - (brackets ? 2 : 0);
    size_t port_len = len - (size_t)(colon - s) - 1;
    if (host_len >= sizeof out->host || port_len < 1 || port_len > 5 ||
        strspn(colon + 1, "0123456789") != port_len)
        return -1;
    memcpy(out->host, s + (brackets ? 1 : 0), host_len);
    out->host[host_len] = '\0';
    unsigned long port = strtoul(colon + 1, NULL, 10);
    if (port > UINT16_MAX || inet_pton(brackets ? AF_INET6 : AF_INET, out->host, binary) != 1)
        return -1;
    out->port = (uint16_t)port;
    return 1;
}

/* NULL, or what is wrong with the list of addresses under `key`; *n counts them. */
static char *check_addresses(const struct config *c, const char *key, int *n)
{
    struct settings_address a;
    const char *rest = config_str(c, key);
    int got;
    for (*n = 0; (got = settings_next_address(&rest, &a)) > 0; ++*n)
        ;
    if (got == 0)
        return NULL;
    return xasprintf("%s: %s must be a list of ADDR:PORT with numeric addresses",
                     config_origin(c, key), key);
}

bool settings_server_login_valid(const char *s)
{
    return dm_server_login_valid(s);
}

static char *check_server(const struct config *c)
{
    struct ws_url url;
    const char *login = config_str(c, "server.SHiNE.login"), *text = config_str(c, "server.url");
    if (*login && !settings_server_login_valid(login))
        return xasprintf("%s: server.SHiNE.login must be [a-z0-9][a-z0-9_.-]{0,62}",
                         config_origin(c, "server.SHiNE.login"));
    if (*text && !ws_url_parse(text, &url))
        return xasprintf("%s: server.url must be wss://HOST[:PORT][/PATH], at most 255 characters",
                         config_origin(c, "server.url"));
    if (*config_str(c, "server.keyFile") && (!*login || !*text))
        return xasprintf("%s: server.keyFile needs server.SHiNE.login and server.url: a proof "
                         "names both",
                         config_origin(c, "server.keyFile"));
    char *error = NULL;
    peer_auth_free(peer_auth_open(c, &error));
    return error;
}

static char *check_listening(const struct config *c)
{
    int n;
    char *error = check_addresses(c, "listen", &n);
    if (!error)
        error = check_addresses(c, "listen.plain", &n);
    if (!error)
        error = check_addresses(c, "admin.listen", &n);
    if (error)
        return error;
    bool cert = *config_str(c, "tls.certFile"), key = *config_str(c, "tls.keyFile");
    if (cert != key)
        return xstrdup("tls.certFile and tls.keyFile belong together: one of them is not set");
    return NULL;
}

/* NULL, or that `small` must not exceed `large`. */
static char *check_order(const struct config *c, const char *small, const char *large)
{
    if (config_int(c, small) <= config_int(c, large))
        return NULL;
    return xasprintf("%s: %s (%lld) must not exceed %s (%lld)", config_origin(c, small), small,
                     (long long)config_int(c, small), large, (long long)config_int(c, large));
}

/* Take one number off *rest, with the blanks around it. */
static bool next_ms(const char **rest, int64_t *out)
{
    const char *s = *rest + strspn(*rest, " \t");
    size_t len = strspn(s, "0123456789");
    if (len == 0 || len > 12)
        return false;
    *out = strtoll(s, NULL, 10);
    *rest = s + len + strspn(s + len, " \t");
    return true;
}

size_t settings_schedule(const struct config *c, int64_t out[SETTINGS_ATTEMPTS_MAX])
{
    const char *rest = config_str(c, "delivery.scheduleMs");
    int64_t ms;
    size_t n = 0;
    while (n < SETTINGS_ATTEMPTS_MAX && next_ms(&rest, &ms)) {
        if (n == 0 ? ms != 0 : ms <= out[n - 1])
            return 0;
        out[n++] = ms;
        if (*rest == '\0')
            return n;
        if (*rest++ != ',')
            return 0;
    }
    return 0;
}

struct settings_attempt settings_attempt(const struct config *c)
{
    int64_t request = config_int(c, "server.pool.requestTimeoutSeconds") * 1000;
    int64_t connect = config_int(c, "server.pool.connectTimeoutSeconds") * 1000;
    int64_t caller = config_int(c, "server.pool.callerTimeoutSeconds") * 1000;
    return (struct settings_attempt){
        .ask_ms = request,
        .call_ms = connect + request < caller ? connect + request : caller,
        .lease_ms = config_int(c, "delivery.leaseMs"),
    };
}

static char *check_delivery(const struct config *c)
{
    int64_t schedule[SETTINGS_ATTEMPTS_MAX];
    if (settings_schedule(c, schedule) == 0)
        return xasprintf("%s: delivery.scheduleMs must be 1 to %d numbers that ascend from 0, with "
                         "commas between them",
                         config_origin(c, "delivery.scheduleMs"), SETTINGS_ATTEMPTS_MAX);
    struct settings_attempt t = settings_attempt(c);
    int64_t sum = t.ask_ms + t.call_ms + SETTINGS_LEASE_RESERVE_MS;
    if (t.lease_ms >= sum)
        return NULL;
    return xasprintf("%s: delivery.leaseMs (%lld) must be at least %lld: asking %lld ms "
                     "(server.pool.requestTimeoutSeconds), calling %lld ms (that and "
                     "connectTimeoutSeconds, within callerTimeoutSeconds), waiting and recording "
                     "%d ms",
                     config_origin(c, "delivery.leaseMs"), (long long)t.lease_ms, (long long)sum,
                     (long long)t.ask_ms, (long long)t.call_ms, SETTINGS_LEASE_RESERVE_MS);
}

char *settings_check(const struct config *c)
{
    char *error = check_server(c);
    if (!error)
        error = check_delivery(c);
    if (!error)
        error = check_listening(c);
    if (!error)
        error =
            check_order(c, "server.pool.requestTimeoutSeconds", "server.pool.callerTimeoutSeconds");
    if (!error)
        error = check_order(c, "limits.connectionsPerAddress", "limits.connections");
    /* A pair of the largest bodies is two blobs in Base64 and the envelope. */
    int64_t pair = config_int(c, "limits.clientBodyBytes") / 3 * 8 + 4096;
    if (!error && config_int(c, "ws.maxMessageBytes") < pair)
        error = xasprintf("ws.maxMessageBytes must be at least %lld, or a message with "
                          "limits.clientBodyBytes could not be sent",
                          (long long)pair);
    return error;
}
