/*
 * Bytes between the socket and the layers above.
 *
 * Input goes up without being stored: from the loop's read buffer through TLS into frames, within
 * the read callback. Only what a turn does not finish (pause, budget) is kept, and then reading is
 * off, so a peer can make us hold at most one read. Output is collected during a turn and leaves at
 * its end: one TLS record and one system call for all that was queued, as far as they take it.
 *
 * Grades of failure: a failing socket ends its connection.
 */
#include "net/ws_internal.h"
#include "util/mem.h"

#include <string.h>

enum { OUT_PORTION = 64 * 1024 };

/* --- input --- */

static void alloc_cb(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    (void)suggested;
    struct ws_conn *c = h->data;
    *buf = uv_buf_init((char *)c->loop->read_buf, sizeof(c->loop->read_buf));
}

static void read_cb(uv_stream_t *s, ssize_t nread, const uv_buf_t *buf)
{
    struct ws_conn *c = s->data;
    if (nread == 0)
        return; /* nothing to read after all */
    if (nread < 0) {
        c->input_eof = nread == UV_EOF;
        c->reading = false;
        (void)uv_read_stop(s);
        ws_conn_lost(c, nread == UV_EOF ? "end of stream" : uv_strerror((int)nread));
        return;
    }
    ws_conn_heard(c);
    c->in = (const uint8_t *)buf->base;
    c->in_len = (size_t)nread;
    ws_io_input(c);
}

void ws_io_read_update(struct ws_conn *c)
{
    bool want = c->tcp && c->state > WS_CONNECTING && c->state < WS_CLOSED && !c->input_eof &&
                !c->input_left && !(c->paused && c->state == WS_OPEN);
    if (want == c->reading)
        return;
    c->reading = want;
    if (!want)
        (void)uv_read_stop((uv_stream_t *)c->tcp);
    else if (uv_read_start((uv_stream_t *)c->tcp, alloc_cb, read_cb) != 0)
        ws_conn_lost(c, "cannot read");
}

/* One pass over the input in the present state. true: stopped early. */
static bool step(struct ws_conn *c)
{
    switch (c->state) {
    case WS_TLS:
        if (ws_tls_handshake(c)) {
            c->state = WS_HTTP;
            ws_http_start(c);
        }
        return false;
    case WS_HTTP:
        ws_http_input(c);
        return false;
    case WS_OPEN:
    case WS_CLOSING:
        return ws_frame_input(c);
    default:
        c->in_len = 0;
        return false;
    }
}

void ws_io_input(struct ws_conn *c)
{
    list_remove(&c->work);
    if (c->state == WS_CLOSED)
        return;
    if (c->turn != c->loop->turn) {
        c->turn = c->loop->turn;
        c->turn_messages = 0;
        c->turn_bytes = 0;
    }
    bool stored = !c->in;
    size_t before = buf_len(&c->rx);
    if (stored) {
        c->in = buf_head(&c->rx);
        c->in_len = before;
    }
    enum ws_state state;
    bool left;
    do {
        state = c->state;
        left = step(c);
    } while (c->state != state && c->state != WS_CLOSED);

    if (stored)
        buf_consume(&c->rx, before - c->in_len);
    else if (c->in_len > 0 && c->state != WS_CLOSED)
        (void)buf_append(&c->rx, c->in, c->in_len);
    if (buf_len(&c->rx) == 0)
        buf_free(&c->rx);
    c->in = NULL;
    c->in_len = 0;
    c->input_left = left && (c->state == WS_OPEN || c->state == WS_CLOSING);
    if (c->state == WS_CLOSED)
        return;
    if (c->input_left && !c->paused)
        ws_io_again(c);
    ws_io_read_update(c);
}

size_t ws_io_take(struct ws_conn *c, uint8_t *p, size_t n)
{
    size_t have = buf_len(&c->early);
    if (have > 0) {
        if (n > have)
            n = have;
        memcpy(p, buf_head(&c->early), n);
        buf_consume(&c->early, n);
        if (n == have)
            buf_free(&c->early);
    } else if (c->ssl) {
        n = ws_tls_read(c, p, n);
    } else {
        if (n > c->in_len)
            n = c->in_len;
        if (n > 0)
            memcpy(p, c->in, n);
        c->in += n;
        c->in_len -= n;
    }
    c->turn_bytes += n;
    return n;
}

void ws_io_again(struct ws_conn *c)
{
    list_push(&c->loop->work, &c->work);
    ws_loop_wake(c->loop);
}

/* --- output --- */

void ws_io_put(struct ws_conn *c, const void *p, size_t n)
{
    (void)buf_append(&c->plain, p, n); /* ws_send_text() has checked the bound; the rest is small */
    ws_io_dirty(c);
}

void ws_io_leaving(struct ws_conn *c, size_t n)
{
    ws_frame_leaving(c, n);
    buf_consume(&c->plain, n);
    c->plain_out += n;
}

void ws_io_dirty(struct ws_conn *c)
{
    if (list_empty(&c->dirty))
        list_push(&c->loop->dirty, &c->dirty);
}

size_t ws_io_queued(const struct ws_conn *c)
{
    return buf_len(&c->plain) + buf_len(&c->cipher) + buf_len(&c->out);
}

static void write_cb(uv_write_t *req, int status)
{
    struct ws_conn *c = req->data;
    c->writing = false;
    buf_free(&c->out);
    if (c->state == WS_CLOSED)
        return;
    if (status < 0) {
        ws_conn_lost(c, uv_strerror(status));
        return;
    }
    c->written_at = uv_now(c->loop->uv);
    ws_io_flush(c);
}

/* Hand what is in `b` to the kernel; what it does not take now waits in `out`. true: all of it was
 * taken. */
static bool write_out(struct ws_conn *c, struct buf *b)
{
    uv_stream_t *s = (uv_stream_t *)c->tcp;
    uv_buf_t v = uv_buf_init((char *)(uintptr_t)buf_head(b), (unsigned)buf_len(b));
    int n = uv_try_write(s, &v, 1);
    if (n < 0 && n != UV_EAGAIN) {
        ws_conn_lost(c, uv_strerror(n));
        return false;
    }
    if (n > 0) {
        c->written_at = uv_now(c->loop->uv);
        if (b == &c->plain)
            ws_io_leaving(c, (size_t)n);
        else
            buf_consume(b, (size_t)n);
    }
    if (buf_len(b) == 0) {
        buf_free(b);
        return true;
    }
    if (b == &c->plain) { /* a portion: control frames can still overtake the rest */
        size_t portion = buf_len(b) < OUT_PORTION ? buf_len(b) : OUT_PORTION;
        (void)buf_append(&c->out, buf_head(b), portion);
        ws_io_leaving(c, portion);
    } else {
        c->out = *b;
        buf_init(b, 0);
    }
    v = uv_buf_init((char *)(uintptr_t)buf_head(&c->out), (unsigned)buf_len(&c->out));
    c->write_req.data = c;
    int r = uv_write(&c->write_req, s, &v, 1, write_cb);
    if (r != 0) {
        ws_conn_lost(c, uv_strerror(r));
        return false;
    }
    c->writing = true;
    return false;
}

/* Everything is with the kernel. */
static void all_sent(struct ws_conn *c)
{
    if (c->state != WS_DRAINING || c->shutdown_begun)
        return;
    c->shutdown_begun = true;
    if (c->input_eof || uv_shutdown(&c->shutdown_req, (uv_stream_t *)c->tcp, NULL) != 0)
        ws_conn_end(c, c->end, c->end_code, NULL);
}

/* The ping's time runs from the moment the kernel has it, not from behind a long queue. */
static void note_ping(struct ws_conn *c)
{
    if (c->ping_wait && !c->ping_left && buf_len(&c->cipher) == 0 && buf_len(&c->out) == 0 &&
        c->plain_out >= c->ping_pos) {
        c->ping_left = true;
        c->ping_at = uv_now(c->loop->uv);
        ws_conn_arm(c);
    }
}

static void note_drain(struct ws_conn *c)
{
    if (c->state != WS_OPEN || (!c->refused && !c->above_quarter))
        return;
    size_t queued = ws_io_queued(c), max = c->limits.max_send_buffer;
    if (c->refused ? queued >= max / 2 : queued >= max / 4)
        return;
    c->refused = c->above_quarter = false;
    if (c->cb->on_drain)
        c->cb->on_drain(c, c->ctx);
}

void ws_io_flush(struct ws_conn *c)
{
    list_remove(&c->dirty);
    if (c->state == WS_CLOSED || !c->tcp || c->writing)
        return;
    ws_frame_pong(c);
    for (;;) {
        struct buf *b = &c->plain;
        if (c->ssl) {
            if (c->state >= WS_HTTP)
                ws_tls_encrypt(c);
            if (c->state == WS_DRAINING && buf_len(&c->plain) == 0 && !c->notify_sent) {
                c->notify_sent = true;
                ws_tls_shutdown(c);
            }
            b = &c->cipher;
        }
        if (c->state == WS_CLOSED)
            return;
        if (buf_len(b) == 0) {
            if (buf_len(&c->plain) == 0) { /* else TLS waits for input before it can go on */
                buf_free(&c->plain);
                all_sent(c);
            }
            break;
        }
        if (!write_out(c, b))
            break;
    }
    list_remove(&c->dirty); /* a pong or TLS has marked it again on the way */
    if (c->state == WS_CLOSED)
        return;
    ws_frame_rest(c);
    note_ping(c);
    note_drain(c);
}
