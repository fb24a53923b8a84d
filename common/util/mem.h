/*
 * Allocation that cannot fail: a process without memory exits and is restarted by its
 * supervisor (second grade of failure, see docs/architecture.md). Nothing acknowledged is lost:
 * the database holds it.
 */
#ifndef SHINE_UTIL_MEM_H
#define SHINE_UTIL_MEM_H

#include <stddef.h>

/* Allocate `n` zeroed bytes (n = 0 gives a unique pointer). Freed with free(). */
void *xcalloc(size_t n, size_t size);
/* Allocate `n` uninitialised bytes. Freed with free(). */
void *xmalloc(size_t n);
/* Resize as realloc(3) does. */
void *xrealloc(void *p, size_t n);
/* Copy a string, or `n` bytes plus a terminating NUL. Freed with free(). NULL gives NULL. */
char *xstrdup(const char *s);
char *xmemdup0(const void *p, size_t n);
/* printf into a new string. Freed with free(). */
char *xasprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Allocate one zeroed object of the pointed-to type: `struct x *p = xnew(struct x);` */
#define xnew(type) ((type *)xcalloc(1, sizeof(type)))

/* Our own bug: log a message and abort. Third grade of failure; never for bad input. */
#define shine_assert(cond)                                                                         \
    do {                                                                                           \
        if (!(cond))                                                                               \
            shine_assert_failed(#cond, __FILE__, __LINE__);                                        \
    } while (0)
_Noreturn void shine_assert_failed(const char *cond, const char *file, int line);

#endif
