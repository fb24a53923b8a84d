/* Tests of the string map. */
#include "util/map.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

enum { MANY = 5000 };

static int numbers[MANY];

static const char *name_of(int i)
{
    static char name[32];
    (void)snprintf(name, sizeof name, "user-%d", i);
    return name;
}

static void put_get_replace_remove(void **state)
{
    (void)state;
    struct map *m = map_new();
    int a = 1, b = 2;
    assert_null(map_get(m, "alice"));
    assert_null(map_remove(m, "alice"));
    assert_null(map_put(m, "alice", &a));
    assert_ptr_equal(map_get(m, "alice"), &a);
    assert_null(map_get(m, "Alice"));
    assert_ptr_equal(map_put(m, "alice", &b), &a);
    assert_ptr_equal(map_get(m, "alice"), &b);
    assert_int_equal(map_size(m), 1);
    assert_ptr_equal(map_remove(m, "alice"), &b);
    assert_null(map_get(m, "alice"));
    assert_int_equal(map_size(m), 0);
    map_free(m);
}

static void key_is_copied_and_may_be_empty(void **state)
{
    (void)state;
    struct map *m = map_new();
    char key[] = "bob";
    int a = 1, e = 2;
    map_put(m, key, &a);
    key[0] = 'B';
    assert_ptr_equal(map_get(m, "bob"), &a);
    map_put(m, "", &e);
    assert_ptr_equal(map_get(m, ""), &e);
    assert_int_equal(map_size(m), 2);
    map_free(m);
}

static void many_keys_survive_growth_and_removal(void **state)
{
    (void)state;
    struct map *m = map_new();
    for (int i = 0; i < MANY; i++)
        assert_null(map_put(m, name_of(i), &numbers[i]));
    assert_int_equal(map_size(m), MANY);
    for (int i = 0; i < MANY; i += 2)
        assert_ptr_equal(map_remove(m, name_of(i)), &numbers[i]);
    for (int i = 0; i < MANY; i++)
        assert_ptr_equal(map_get(m, name_of(i)), i % 2 ? &numbers[i] : NULL);
    for (int i = 0; i < MANY; i += 2)
        assert_null(map_put(m, name_of(i), &numbers[i]));
    for (int i = 0; i < MANY; i++)
        assert_ptr_equal(map_get(m, name_of(i)), &numbers[i]);
    map_free(m);
}

/* Removed marks must be swept: a table full of them would search for ever. */
static void endless_turnover_stays_correct(void **state)
{
    (void)state;
    struct map *m = map_new();
    for (int i = 0; i < 100000; i++) {
        assert_null(map_put(m, name_of(i), &numbers[i % MANY]));
        if (i >= 10)
            assert_ptr_equal(map_remove(m, name_of(i - 10)), &numbers[(i - 10) % MANY]);
        assert_null(map_get(m, "nobody"));
    }
    assert_int_equal(map_size(m), 10);
    map_free(m);
}

static void iteration_sees_each_once_and_may_remove_it(void **state)
{
    (void)state;
    struct map *m = map_new();
    size_t it = 0;
    const char *key;
    void *value;
    int seen[MANY] = {0};
    assert_false(map_next(m, &it, &key, &value));
    for (int i = 0; i < MANY; i++)
        map_put(m, name_of(i), &numbers[i]);
    it = 0;
    while (map_next(m, &it, &key, &value)) {
        ptrdiff_t i = (int *)value - numbers;
        assert_string_equal(key, name_of((int)i));
        seen[i]++;
        if (i % 3)
            assert_ptr_equal(map_remove(m, key), value);
    }
    int left = 0;
    for (it = 0; map_next(m, &it, NULL, &value); left++)
        assert_int_equal(((int *)value - numbers) % 3, 0);
    assert_int_equal(left, (MANY + 2) / 3);
    assert_int_equal(map_size(m), left);
    for (int i = 0; i < MANY; i++)
        assert_int_equal(seen[i], 1);
    map_free(m);
}

/* The order of iteration follows the hash: two maps that agree on it share their secret. */
static void each_map_has_its_own_secret(void **state)
{
    (void)state;
    struct map *a = map_new(), *b = map_new();
    for (int i = 0; i < 1000; i++) {
        map_put(a, name_of(i), &numbers[i]);
        map_put(b, name_of(i), &numbers[i]);
    }
    size_t ita = 0, itb = 0;
    void *va, *vb;
    int differ = 0;
    while (map_next(a, &ita, NULL, &va) && map_next(b, &itb, NULL, &vb))
        differ += va != vb;
    assert_true(differ > 900);
    map_free(a);
    map_free(b);
}

static void freeing_nothing_is_allowed(void **state)
{
    (void)state;
    map_free(NULL);
    map_free(map_new());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(put_get_replace_remove),
        cmocka_unit_test(key_is_copied_and_may_be_empty),
        cmocka_unit_test(many_keys_survive_growth_and_removal),
        cmocka_unit_test(endless_turnover_stays_correct),
        cmocka_unit_test(iteration_sees_each_once_and_may_remove_it),
        cmocka_unit_test(each_map_has_its_own_secret),
        cmocka_unit_test(freeing_nothing_is_allowed),
    };
    return cmocka_run_group_tests_name("map", tests, NULL, NULL);
}
