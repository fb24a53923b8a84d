/*
 * More output than the peer takes: the bound, the drain, the end of patience, and control frames
 * beside long messages.
 */
#include "support_frames.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* --- the bound --- */

static void test_slow_reader(void **state)
{
    (void)state;
    uv_loop_t loop;
    static struct net_server s;
    struct net_end e = {0};
    struct ws_limits limits = ws_limits_default;
    limits.max_send_buffer = 100000;
    char text[5000];
    memset(text, 'x', sizeof(text));
    assert_int_equal(uv_loop_init(&loop), 0);
    net_server_start(&s, &loop, NULL, &limits, false);
    net_dial(&loop, &s, "127.0.0.1", NULL, &ws_limits_default, &e);
    net_run_until(&loop, &e.opened, 1, 10);
    net_run_until(&loop, &s.ends[0].opened, 1, 10);
    struct net_end *se = &s.ends[0];
    ws_pause(e.conn);
    unsigned sent = 0;
    for (;;) { /* until the kernel's buffers and ours are full and stay full */
        while (ws_send_text(se->conn, text, sizeof(text)))
            sent++;
        assert_true(ws_send_queued(se->conn) <= 100000 + 200);
        size_t before = ws_send_queued(se->conn);
        for (int i = 0; i < 20; i++)
            uv_run(&loop, UV_RUN_NOWAIT);
        if (ws_send_queued(se->conn) == before && !ws_send_text(se->conn, text, sizeof(text)))
            break;
    }
    assert_int_equal(e.messages, 0);
    assert_false(ws_send_text(se->conn, text, sizeof(text)));
    assert_true(ws_send_queued(se->conn) > 90000);
    unsigned drained = se->drained;
    ws_resume(e.conn);
    net_run_until(&loop, &se->drained, drained + 1, 20);
    assert_true(ws_send_queued(se->conn) < 50000);
    assert_true(ws_send_text(se->conn, text, sizeof(text)));
    net_run_until(&loop, &e.messages, sent + 1, 20);
    assert_int_equal(e.bytes, (size_t)(sent + 1) * sizeof(text));
    ws_close(e.conn, 1000, "");
    net_run_until(&loop, &e.closed, 1, 10);
    net_server_stop(&s);
    net_loop_end(&loop);
}

/* A reader that never comes back: closing ends at its deadline, with what was queued thrown away.
 */
static void test_stuck_reader_is_cut(void **state)
{
    (void)state;
    uv_loop_t loop;
    static struct net_server s;
    struct net_end e = {0};
    struct ws_limits limits = ws_limits_default;
    limits.close_ms = 100;
    char *text = calloc(1, 1 << 20);
    memset(text, 'x', 1 << 20);
    assert_int_equal(uv_loop_init(&loop), 0);
    net_server_start(&s, &loop, NULL, &limits, false);
    net_dial(&loop, &s, "127.0.0.1", NULL, &ws_limits_default, &e);
    net_run_until(&loop, &s.ends[0].opened, 1, 10);
    net_run_until(&loop, &e.opened, 1, 10);
    ws_pause(e.conn);
    while (ws_send_text(s.ends[0].conn, text, 1 << 20))
        for (int i = 0; i < 20; i++)
            uv_run(&loop, UV_RUN_NOWAIT);
    ws_close(s.ends[0].conn, 1013, "too slow");
    net_run_until(&loop, &s.ends[0].closed, 1, 10);
    assert_int_equal(s.ends[0].end, WS_END_TIMEOUT);
    assert_int_equal(s.ends[0].code, 1013);
    ws_resume(e.conn);
    net_run_until(&loop, &e.closed, 1, 10);
    assert_int_equal(e.end, WS_END_LOST);
    net_server_stop(&s);
    net_loop_end(&loop);
    free(text);
}

/* --- control frames and bulk --- */

/* A pong overtakes a long message that the peer is slow to read, at a boundary between fragments.
 */
static void test_pong_overtakes(void **state)
{
    (void)state;
    uv_loop_t loop;
    static struct net_server s;
    struct net_raw r;
    const size_t size = 4 << 20;
    char *text = malloc(size);
    for (size_t i = 0; i < size; i++)
        text[i] = (char)('a' + i * 7 / 3 % 26);
    assert_int_equal(uv_loop_init(&loop), 0);
    net_server_start(&s, &loop, NULL, &ws_limits_default, false);
    net_raw_dial(&r, &loop, s.port);
    net_run_until(&loop, &r.connected, 1, 10);
    net_raw_send(&r, frames_upgrade, strlen(frames_upgrade));
    net_run_until(&loop, &r.bytes, 129, 10);
    net_raw_pause(&r);
    assert_true(ws_send_text(s.ends[0].conn, text, size));
    for (int i = 0; i < 20; i++)
        uv_run(&loop, UV_RUN_NOWAIT);
    size_t stuck = ws_send_queued(s.ends[0].conn);
    assert_true(stuck > 1 << 20);
    net_raw_send(&r, "\x89\x83\0\0\0\0now\x81\x81\0\0\0\0x", 9 + 7);
    net_run_until(&loop, &s.ends[0].messages, 1, 10);
    net_raw_resume(&r);
    net_run_until(&loop, &r.bytes, 129 + (unsigned)size + 64 * 10 + 5, 20);

    struct buf message;
    buf_init(&message, 0);
    const uint8_t *p = buf_head(&r.got) + 129, *end = buf_head(&r.got) + buf_len(&r.got);
    size_t pong_at = 0;
    unsigned fragments = 0;
    bool fin = false;
    while (p < end) {
        if (p[0] == 0x8a) {
            assert_memory_equal(p, "\x8a\x03now", 5);
            pong_at = buf_len(&message);
            p += 5;
            continue;
        }
        assert_false(fin);
        fin = p[0] & 0x80;
        assert_int_equal(p[0] & 0x7f, fragments++ ? 0 : 1);
        assert_int_equal(p[1], 127); /* every fragment here is 64 KiB */
        assert_memory_equal(p + 2, "\0\0\0\0\0\1\0\0", 8);
        assert_true(buf_append(&message, p + 10, 65536));
        p += 10 + 65536;
    }
    assert_true(fin);
    assert_int_equal(buf_len(&message), size);
    assert_memory_equal(buf_head(&message), text, size);
    assert_true(pong_at > 0 && pong_at <= size - stuck + 3 * 65536);
    buf_free(&message);
    ws_close(s.ends[0].conn, 1000, "");
    net_raw_close(&r);
    net_run_until(&loop, &s.ends[0].closed, 1, 10);
    net_server_stop(&s);
    net_loop_end(&loop);
    net_raw_free(&r);
    free(text);
}

static void toggle(uv_timer_t *t)
{
    static bool paused;
    struct net_end *e = t->data;
    if (!e->conn)
        return;
    paused = !paused;
    if (paused)
        ws_pause(e->conn);
    else
        ws_resume(e->conn);
}

/* A peer that takes bytes, however slowly, is alive; one that takes none while a ping waits is not.
 */
static void ping_behind_bulk(bool progress)
{
    uv_loop_t loop;
    static struct net_server s;
    struct net_end e = {0};
    struct ws_limits limits = ws_limits_default, small = ws_limits_default;
    const size_t size = 4 << 20;
    char *text = malloc(size);
    memset(text, 'x', size);
    limits.idle_ms = 20;
    limits.pong_ms = progress ? 600 : 100;
    assert_int_equal(uv_loop_init(&loop), 0);
    net_server_start(&s, &loop, NULL, &limits, false);
    net_dial(&loop, &s, "127.0.0.1", NULL, &small, &e);
    net_run_until(&loop, &s.ends[0].opened, 1, 10);
    net_run_until(&loop, &e.opened, 1, 10);
    uv_timer_t timer;
    uv_timer_init(&loop, &timer);
    timer.data = &e;
    if (progress)
        uv_timer_start(&timer, toggle, 50, 50);
    else
        ws_pause(e.conn);
    for (int i = 0; i < 3; i++) {
        assert_true(ws_send_text(s.ends[0].conn, text, size));
        if (!progress)
            break;
        net_run_until(&loop, &e.messages, (unsigned)i + 1, 20);
    }
    uv_close((uv_handle_t *)&timer, NULL);
    if (progress) {
        ws_resume(e.conn);
        assert_int_equal(s.ends[0].closed, 0);
        ws_close(e.conn, 1000, "");
        net_run_until(&loop, &e.closed, 1, 10);
        assert_int_equal(e.end, WS_END_CLOSED);
    } else {
        net_run_until(&loop, &s.ends[0].closed, 1, 10);
        assert_int_equal(s.ends[0].end, WS_END_TIMEOUT);
        ws_resume(e.conn);
        net_run_until(&loop, &e.closed, 1, 10);
    }
    net_server_stop(&s);
    net_loop_end(&loop);
    free(text);
}

static void test_ping_behind_bulk(void **state)
{
    (void)state;
    ping_behind_bulk(true);
    ping_behind_bulk(false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slow_reader),
        cmocka_unit_test(test_stuck_reader_is_cut),
        cmocka_unit_test(test_pong_overtakes),
        cmocka_unit_test(test_ping_behind_bulk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
