/*
 * Allocation that cannot fail, and the end of a process that found its own bug.
 *
 * Grades of failure: no memory = cannot continue (exit at once, without running exit handlers that
 * would allocate again); shine_assert = our bug (abort, so that a core file can be kept).
 */
#include "util/mem.h"

#include "util/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

static _Noreturn void out_of_memory(size_t n)
{
    log_error("out_of_memory", LOG_I("bytes", n));
    _exit(EX_OSERR);
}

void *xcalloc(size_t n, size_t size)
{
    bool none = n == 0 || size == 0;
    void *p = none ? calloc(1, 1) : calloc(n, size);
    if (!p)
        out_of_memory(none ? 1 : size); /* n * size may be what overflowed */
    return p;
}

void *xmalloc(size_t n)
{
    void *p = malloc(n ? n : 1);
    if (!p)
        out_of_memory(n);
    return p;
}

void *xrealloc(void *p, size_t n)
{
    void *q = realloc(p, n ? n : 1); /* realloc(p, 0) frees in some C libraries */
    if (!q)
        out_of_memory(n);
    return q;
}

char *xstrdup(const char *s)
{
    return s ? xmemdup0(s, strlen(s)) : NULL;
}

char *xmemdup0(const void *p, size_t n)
{
    if (!p)
        return NULL;
    if (n == SIZE_MAX)
        out_of_memory(n);
    char *copy = xmalloc(n + 1);
    memcpy(copy, p, n);
    copy[n] = '\0';
    return copy;
}

char *xasprintf(const char *fmt, ...)
{
    char *s = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&s, fmt, ap);
    va_end(ap);
    if (n < 0)
        out_of_memory(strlen(fmt));
    return s;
}

_Noreturn void shine_assert_failed(const char *cond, const char *file, int line)
{
    log_error("assert_failed", LOG_S("condition", cond), LOG_S("file", file), LOG_I("line", line));
    abort();
}
