/* Tests of the intrusive list. */
#include "util/list.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

struct item {
    int id;
    struct list link;
};

static struct item items[4];

static void make_items(struct list *head)
{
    list_init(head);
    for (int i = 0; i < 4; i++) {
        items[i].id = i;
        list_init(&items[i].link);
    }
}

/* The ids on `head` as text, read forwards; asserts that reading backwards agrees. */
static const char *ids(const struct list *head)
{
    static char text[8];
    size_t n = 0, back = 0;
    list_each(pos, (struct list *)(uintptr_t)head)
        text[n++] = (char)('0' + list_entry(pos, struct item, link)->id);
    text[n] = '\0';
    for (const struct list *l = head->prev; l != head; l = l->prev)
        back++;
    assert_int_equal(n, back);
    return text;
}

static void push_pop_in_order(void **state)
{
    (void)state;
    struct list head;
    make_items(&head);
    assert_true(list_empty(&head));
    assert_null(list_pop(&head));
    for (int i = 1; i < 4; i++)
        list_push(&head, &items[i].link);
    list_push_front(&head, &items[0].link);
    assert_string_equal(ids(&head), "0123");
    assert_ptr_equal(list_pop(&head), &items[0].link);
    assert_true(list_empty(&items[0].link));
    assert_string_equal(ids(&head), "123");
}

/* The first to the front and the last to the end: nothing may get lost on the way. */
static void pushing_to_where_it_stands_changes_nothing(void **state)
{
    (void)state;
    struct list head;
    make_items(&head);
    for (int i = 0; i < 3; i++) {
        list_push(&head, &items[i].link);
        list_push_front(&head, head.next);
        list_push(&head, head.prev);
        assert_string_equal(ids(&head), i == 0 ? "0" : i == 1 ? "01" : "012");
    }
}

static void remove_is_harmless_twice(void **state)
{
    (void)state;
    struct list head;
    make_items(&head);
    list_push(&head, &items[0].link);
    list_push(&head, &items[1].link);
    list_remove(&items[0].link);
    list_remove(&items[0].link);
    assert_string_equal(ids(&head), "1");
    list_remove(&items[1].link);
    assert_true(list_empty(&head));
}

static void pushing_moves_between_lists(void **state)
{
    (void)state;
    struct list a, b;
    make_items(&a);
    list_init(&b);
    list_push(&a, &items[0].link);
    list_push(&a, &items[1].link);
    list_push(&b, &items[0].link);
    assert_string_equal(ids(&a), "1");
    assert_string_equal(ids(&b), "0");
    list_push(&b, &items[0].link); /* alone, to its own end */
    assert_string_equal(ids(&b), "0");
    list_push_front(&b, &items[1].link);
    assert_string_equal(ids(&b), "10");
    assert_true(list_empty(&a));
}

static void splice_appends_all(void **state)
{
    (void)state;
    struct list a, b;
    make_items(&a);
    list_init(&b);
    list_push(&a, &items[0].link);
    list_push(&b, &items[1].link);
    list_push(&b, &items[2].link);
    list_splice(&a, &b);
    assert_string_equal(ids(&a), "012");
    assert_true(list_empty(&b));
    list_splice(&a, &b);
    assert_string_equal(ids(&a), "012");
}

static void safe_iteration_may_remove_current(void **state)
{
    (void)state;
    struct list head;
    make_items(&head);
    for (int i = 0; i < 4; i++)
        list_push(&head, &items[i].link);
    list_each_safe(pos, &head) {
        if (list_entry(pos, struct item, link)->id % 2)
            list_remove(pos);
    }
    assert_string_equal(ids(&head), "02");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(push_pop_in_order),
        cmocka_unit_test(pushing_to_where_it_stands_changes_nothing),
        cmocka_unit_test(remove_is_harmless_twice),
        cmocka_unit_test(pushing_moves_between_lists),
        cmocka_unit_test(splice_appends_all),
        cmocka_unit_test(safe_iteration_may_remove_current),
    };
    return cmocka_run_group_tests_name("list", tests, NULL, NULL);
}
