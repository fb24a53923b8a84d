/*
 * Intrusive circular doubly linked list. An object that can be on one list embeds one
 * `struct list`; being on no list means being linked to itself. State of an object = the list it is
 * on, so moving is one call and an object can never be on two lists of a kind.
 */
#ifndef SHINE_UTIL_LIST_H
#define SHINE_UTIL_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *prev, *next;
};

static inline void list_init(struct list *l)
{
    l->prev = l->next = l;
}
static inline bool list_empty(const struct list *l)
{
    return l->next == l;
}
/* Unlink `n` from whatever list it is on; harmless if it is on none. */
static inline void list_remove(struct list *n)
{
    n->prev->next = n->next;
    n->next->prev = n->prev;
    list_init(n);
}
/* Move `n` (on a list or not, but initialised) to the end or the front of `head`. */
static inline void list_push(struct list *head, struct list *n)
{
    list_remove(n);
    n->prev = head->prev;
    n->next = head;
    head->prev->next = n;
    head->prev = n;
}
static inline void list_push_front(struct list *head, struct list *n)
{
    list_remove(
        n); /* first: it may be head->next itself, and would be linked to nothing but itself */
    list_push(head->next, n);
}
/* Take the first element off, or NULL if the list is empty. */
static inline struct list *list_pop(struct list *head)
{
    struct list *n = head->next;
    if (n == head)
        return NULL;
    /* The analyzer does not see that a node popped, and freed, before is no longer on the ring. */
    list_remove(n); /* NOLINT(clang-analyzer-unix.Malloc) */
    return n;
}
/* Move everything on `from` to the end of `to`; `from` is empty afterwards. */
static inline void list_splice(struct list *to, struct list *from)
{
    struct list *n;
    while ((n = list_pop(from)))
        list_push(to, n);
}

/* The object that embeds list node `ptr` as `member`. */
#define list_entry(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))
/* Iterate; the body must not remove any element, unless the _safe form is used, whose body may
 * remove the current one only. */
/* NOLINTBEGIN(bugprone-macro-parentheses): `pos` is declared here, it cannot stand in parentheses
 */
#define list_each(pos, head) for (struct list *pos = (head)->next; pos != (head); pos = pos->next)
#define list_each_safe(pos, head)                                                                  \
    for (struct list *pos = (head)->next, *pos##_next = pos->next; pos != (head);                  \
         pos = pos##_next, pos##_next = pos->next)
/* NOLINTEND(bugprone-macro-parentheses) */

#endif
