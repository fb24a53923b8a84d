/*
 * What the connections of one event loop share: the moment of flushing, the list of unfinished
 * work, one read buffer, a pool of random bytes.
 *
 * Within a turn, libuv runs timers, idle, prepare, poll, check, closing callbacks. Output is
 * flushed in check, right after the callbacks that usually produce it, and once more in prepare, so
 * that nothing queued elsewhere waits for an event. Work left over for fairness is done in idle,
 * one portion a turn; an active idle handle also keeps the poll of that turn from blocking, so
 * whatever owners set going from inside is seen by everybody's prepare and check handles at once.
 *
 * Grades of failure: none of the environment; misuse is our bug.
 */
#include "net/ws_internal.h"
#include "util/mem.h"

#include <openssl/rand.h>
#include <signal.h>
#include <string.h>

/* The loops of this thread that have connections, usually one. libuv gives a loop to one thread, so
 * this is no state shared by anybody; the alternative, uv_loop_t.data, belongs to the program. */
static _Thread_local struct ws_loop *loops;

static void flush_all(struct ws_loop *l)
{
    /* What on_drain queues meanwhile waits for the next round: one connection cannot hold up the
     * turn. */
    struct list todo;
    list_init(&todo);
    list_splice(&todo, &l->dirty);
    struct list *n;
    while ((n = list_pop(&todo)))
        ws_io_flush(list_entry(n, struct ws_conn, dirty));
}

static void idle_cb(uv_idle_t *h)
{
    struct ws_loop *l = h->data;
    if (list_empty(&l->work)) {
        uv_idle_stop(h);
        return;
    }
    struct list todo;
    list_init(&todo);
    list_splice(&todo, &l->work);
    struct list *n;
    while ((n = list_pop(&todo)))
        ws_io_input(list_entry(n, struct ws_conn, work));
}

void ws_loop_wake(struct ws_loop *l)
{
    uv_idle_start(&l->idle, idle_cb); /* does nothing if it is active */
}

static void prepare_cb(uv_prepare_t *h)
{
    struct ws_loop *l = h->data;
    if (list_empty(&l->dirty))
        return;
    flush_all(l);
    ws_loop_wake(l); /* on_drain may have been called */
}

static void check_cb(uv_check_t *h)
{
    struct ws_loop *l = h->data;
    l->turn++; /* what one poll has read, and the idle work that follows it, have budgets of their
                  own */
    flush_all(l);
}

/* libuv writes with write(2), and a peer that has gone must be an error, not the death of the
 * process. A program that handles the signal itself is left alone. */
static void ignore_sigpipe(void)
{
    struct sigaction sa;
    if (sigaction(SIGPIPE, NULL, &sa) == 0 && sa.sa_handler == SIG_DFL)
        (void)signal(SIGPIPE, SIG_IGN);
}

struct ws_loop *ws_loop_get(uv_loop_t *uv)
{
    for (struct ws_loop *l = loops; l; l = l->next)
        if (l->uv == uv)
            return ws_loop_ref(l);
    ignore_sigpipe();
    struct ws_loop *l = xnew(struct ws_loop);
    l->uv = uv;
    l->refs = 1;
    list_init(&l->dirty);
    list_init(&l->work);
    list_init(&l->lookup_queue);
    uv_prepare_init(uv, &l->prepare);
    uv_check_init(uv, &l->check);
    uv_idle_init(uv, &l->idle);
    l->prepare.data = l->check.data = l->idle.data = l;
    uv_prepare_start(&l->prepare, prepare_cb);
    uv_check_start(&l->check, check_cb);
    /* Our own machinery keeps no loop alive; connections and listeners do. */
    uv_unref((uv_handle_t *)&l->prepare);
    uv_unref((uv_handle_t *)&l->check);
    l->handles = 3;
    l->next = loops;
    loops = l;
    return l;
}

struct ws_loop *ws_loop_ref(struct ws_loop *l)
{
    l->refs++;
    return l;
}

static void handle_closed(uv_handle_t *h)
{
    struct ws_loop *l = h->data;
    if (--l->handles == 0)
        free(l);
}

void ws_loop_put(struct ws_loop *l)
{
    shine_assert(l->refs > 0);
    if (--l->refs > 0)
        return;
    struct ws_loop **p = &loops;
    while (*p != l)
        p = &(*p)->next;
    *p = l->next;
    uv_close((uv_handle_t *)&l->prepare, handle_closed);
    uv_close((uv_handle_t *)&l->check, handle_closed);
    uv_close((uv_handle_t *)&l->idle, handle_closed);
}

void ws_loop_mask(struct ws_loop *l, uint8_t out[4])
{
    if (l->mask_left < 4) {
        /* Without random bytes a frame must not be sent, and OpenSSL could do nothing else either.
         */
        shine_assert(RAND_bytes(l->mask_pool, sizeof(l->mask_pool)) == 1);
        l->mask_left = sizeof(l->mask_pool);
    }
    memcpy(out, l->mask_pool + sizeof(l->mask_pool) - l->mask_left, 4);
    l->mask_left -= 4;
}
