/*
 * The HTTP exchange that turns a connection into a WebSocket (RFC 6455, section 4), both sides.
 * Heads are parsed by http_parser and bounded here; bodies are not accepted. Bytes behind the head
 * already belong to the WebSocket.
 *
 * Origin is ignored: nothing here rests on ambient credentials such as cookies, every session
 * proves itself.
 *
 * Grades of failure: whatever the peer sends ends its connection only, the server's with a proper
 * answer first.
 */
#include "net/ws_internal.h"
#include "util/base64.h"
#include "util/mem.h"

#include <http_parser.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { HEAD_MAX = 8 * 1024, VALUE_MAX = 512, ACCEPT_LEN = 28, KEY_LEN = 24 };

struct ws_http {
    http_parser parser;
    size_t seen; /* bytes of the head */
    bool complete;
    bool in_value;
    char name[32]; /* the header being read, cut: the ones that matter are shorter */
    size_t name_len;
    char value[VALUE_MAX];
    size_t value_len;
    char url[256];
    size_t url_len;
    bool upgrade, connection, extension;
    bool version_ok;
    char key[KEY_LEN + 1];       /* server: the client's; client: ours */
    char accept[ACCEPT_LEN + 1]; /* client: the server's */
};

/* Sec-WebSocket-Accept for a key: Base64(SHA-1(key + the GUID of RFC 6455)). */
static void accept_for(const char *key, char out[ACCEPT_LEN + 1])
{
    char text[KEY_LEN + 40];
    int n = snprintf(text, sizeof(text), "%s258EAFA5-E914-47DA-95CA-C5AB0DC85B11", key);
    unsigned char digest[EVP_MAX_MD_SIZE];
    shine_assert(EVP_Digest(text, (size_t)n, digest, NULL, EVP_sha1(), NULL) == 1);
    base64_encode(digest, 20, out);
}

/* Is `token` among the comma-separated ones in `list`, in any case? */
static bool has_token(const char *list, const char *token)
{
    size_t n = strlen(token);
    while (*list) {
        list += strspn(list, " \t,");
        size_t len = strcspn(list, ",");
        size_t end = len;
        while (end > 0 && (list[end - 1] == ' ' || list[end - 1] == '\t'))
            end--;
        if (end == n && strncasecmp(list, token, n) == 0)
            return true;
        list += len;
    }
    return false;
}

static void header_done(struct ws_http *h)
{
    if (h->name_len == 0 || h->name_len >= sizeof(h->name) || h->value_len >= sizeof(h->value)) {
        h->name_len = h->value_len = 0;
        return; /* longer than any that matters */
    }
    h->name[h->name_len] = h->value[h->value_len] = '\0';
    if (strcasecmp(h->name, "upgrade") == 0)
        h->upgrade |= has_token(h->value, "websocket");
    else if (strcasecmp(h->name, "connection") == 0)
        h->connection |= has_token(h->value, "upgrade");
    else if (strcasecmp(h->name, "sec-websocket-version") == 0)
        h->version_ok = strcmp(h->value, "13") == 0;
    else if (strcasecmp(h->name, "sec-websocket-key") == 0 && h->value_len == KEY_LEN &&
             h->parser.type == HTTP_REQUEST)
        memcpy(h->key, h->value, KEY_LEN + 1);
    else if (strcasecmp(h->name, "sec-websocket-accept") == 0 && h->value_len == ACCEPT_LEN)
        memcpy(h->accept, h->value, ACCEPT_LEN + 1);
    else if (strcasecmp(h->name, "sec-websocket-extensions") == 0 ||
             strcasecmp(h->name, "sec-websocket-protocol") == 0)
        h->extension = true;
    h->name_len = h->value_len = 0;
}

/* Append, up to the size; the length goes on counting as far as `size`, which marks "too long". */
static void collect(char *to, size_t *len, size_t size, const char *p, size_t n)
{
    if (n >= size - *len) {
        *len = size;
        return;
    }
    memcpy(to + *len, p, n);
    *len += n;
}

static int on_url(http_parser *p, const char *at, size_t n)
{
    struct ws_http *h = p->data;
    collect(h->url, &h->url_len, sizeof(h->url), at, n);
    return 0;
}

static int on_field(http_parser *p, const char *at, size_t n)
{
    struct ws_http *h = p->data;
    if (h->in_value)
        header_done(h);
    h->in_value = false;
    collect(h->name, &h->name_len, sizeof(h->name), at, n);
    return 0;
}

static int on_value(http_parser *p, const char *at, size_t n)
{
    struct ws_http *h = p->data;
    h->in_value = true;
    collect(h->value, &h->value_len, sizeof(h->value), at, n);
    return 0;
}

static int on_headers_complete(http_parser *p)
{
    struct ws_http *h = p->data;
    header_done(h);
    h->complete = true;
    return 2; /* no body, and what follows is not HTTP: stop here */
}

static const http_parser_settings settings = {
    .on_url = on_url,
    .on_header_field = on_field,
    .on_header_value = on_value,
    .on_headers_complete = on_headers_complete,
};

/* --- server --- */

static void refuse(struct ws_conn *c, const char *status, const char *headers)
{
    char text[512];
    int n = snprintf(text, sizeof(text),
                     "HTTP/1.1 %s\r\n%sConnection: close\r\nContent-Length: 0\r\n\r\n", status,
                     headers);
    shine_assert(n > 0 && (size_t)n < sizeof(text));
    ws_io_put(c, text, (size_t)n);
    ws_conn_drain(c, WS_END_UPGRADE, 1006, status);
}

static bool path_matches(const struct ws_http *h, const char *path)
{
    if (h->url_len >= sizeof(h->url))
        return false;
    size_t n = 0;
    while (n < h->url_len && h->url[n] != '?')
        n++;
    return n == strlen(path) && memcmp(h->url, path, n) == 0;
}

static void answer(struct ws_conn *c)
{
    struct ws_http *h = c->http;
    const http_parser *p = &h->parser;
    uint8_t nonce[16];
    if (!path_matches(h, c->path))
        refuse(c, "404 Not Found", "");
    else if (p->method != HTTP_GET)
        refuse(c, "405 Method Not Allowed", "Allow: GET\r\n");
    else if (p->http_major != 1 || p->http_minor < 1)
        refuse(c, "505 HTTP Version Not Supported", "");
    else if (!h->upgrade || !h->connection)
        refuse(c, "426 Upgrade Required", "Upgrade: websocket\r\n");
    else if (!h->version_ok)
        refuse(c, "426 Upgrade Required", "Sec-WebSocket-Version: 13\r\n");
    else if (!base64_decode_exact(h->key, nonce, sizeof(nonce)))
        refuse(c, "400 Bad Request", "");
    else {
        char accept[ACCEPT_LEN + 1], text[256];
        accept_for(h->key, accept);
        int n = snprintf(text, sizeof(text),
                         "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
                         "Connection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n",
                         accept);
        ws_io_put(c, text, (size_t)n);
        ws_conn_opened(c);
    }
}

/* --- client --- */

static void request(struct ws_conn *c)
{
    struct ws_http *h = c->http;
    uint8_t nonce[16];
    shine_assert(RAND_bytes(nonce, sizeof(nonce)) == 1);
    base64_encode(nonce, sizeof(nonce), h->key);
    bool v6 = strchr(c->host, ':') != NULL;
    char port[8] = "";
    if (c->port != (c->tls ? 443 : 80))
        (void)snprintf(port, sizeof(port), ":%u", (unsigned)c->port);
    char *text = xasprintf("GET %s HTTP/1.1\r\nHost: %s%s%s%s\r\nUpgrade: websocket\r\n"
                           "Connection: Upgrade\r\nSec-WebSocket-Key: %s\r\n"
                           "Sec-WebSocket-Version: 13\r\n\r\n",
                           c->path, v6 ? "[" : "", c->host, v6 ? "]" : "", port, h->key);
    ws_io_put(c, text, strlen(text));
    free(text);
}

static void check_answer(struct ws_conn *c)
{
    const struct ws_http *h = c->http;
    char expected[ACCEPT_LEN + 1];
    accept_for(h->key, expected);
    char reason[64];
    if (h->parser.status_code != 101)
        (void)snprintf(reason, sizeof(reason), "HTTP status %u", (unsigned)h->parser.status_code);
    else if (!h->upgrade || !h->connection)
        (void)snprintf(reason, sizeof(reason), "not an upgrade to websocket");
    else if (strcmp(h->accept, expected) != 0)
        (void)snprintf(reason, sizeof(reason), "wrong Sec-WebSocket-Accept");
    else if (h->extension)
        (void)snprintf(reason, sizeof(reason), "an extension or protocol nobody offered");
    else {
        ws_conn_opened(c);
        return;
    }
    ws_conn_end(c, WS_END_UPGRADE, 1006, reason);
}

/* --- both --- */

void ws_http_start(struct ws_conn *c)
{
    struct ws_http *h = xnew(struct ws_http);
    http_parser_init(&h->parser, c->server ? HTTP_REQUEST : HTTP_RESPONSE);
    h->parser.data = h;
    c->http = h;
    if (!c->server)
        request(c);
}

void ws_http_input(struct ws_conn *c)
{
    struct ws_http *h = c->http;
    char p[2048];
    size_t n;
    while (c->state == WS_HTTP && (n = ws_io_take(c, (uint8_t *)p, sizeof(p))) > 0) {
        if (c->state != WS_HTTP)
            return;
        size_t used = http_parser_execute(&h->parser, &settings, p, n);
        h->seen += used;
        bool too_long = h->seen > HEAD_MAX;
        if (!too_long && !h->complete && used == n && HTTP_PARSER_ERRNO(&h->parser) == HPE_OK)
            continue;
        if (!too_long && h->complete) {
            if (used < n)
                (void)buf_append(&c->early, p + used, n - used);
            if (c->server)
                answer(c);
            else
                check_answer(c);
        } else if (!c->server) {
            ws_conn_end(c, WS_END_UPGRADE, 1006, too_long ? "HTTP head too long" : "not HTTP");
        } else if (too_long) {
            refuse(c, "431 Request Header Fields Too Large", "");
        } else {
            refuse(c, "400 Bad Request", "");
        }
        return;
    }
}

void ws_http_free(struct ws_http *h)
{
    free(h);
}
