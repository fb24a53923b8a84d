/* Which addresses count as public, at the edges of each range. */
#include "net/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#include <cmocka.h>

static bool is_public(const char *text)
{
    struct sockaddr_storage st = {0};
    if (strchr(text, ':')) {
        struct sockaddr_in6 *in6 = (void *)&st;
        in6->sin6_family = AF_INET6;
        assert_int_equal(1, inet_pton(AF_INET6, text, &in6->sin6_addr));
    } else {
        struct sockaddr_in *in = (void *)&st;
        in->sin_family = AF_INET;
        assert_int_equal(1, inet_pton(AF_INET, text, &in->sin_addr));
    }
    return net_address_public((const struct sockaddr *)&st);
}

static void test_public(void **state)
{
    (void)state;
    static const char *const yes[] = {
        "1.1.1.1",          "9.255.255.255",        "11.0.0.0",    "100.63.255.255",
        "100.128.0.0",      "126.255.255.255",      "128.0.0.0",   "169.253.255.255",
        "172.15.255.255",   "172.32.0.0",           "192.0.1.0",   "192.167.255.255",
        "192.169.0.0",      "198.17.255.255",       "198.20.0.0",  "223.255.255.255",
        "2a00:1450::1",     "2001:4860:4860::8888", "2001:200::1", "::ffff:8.8.8.8",
        "64:ff9b::8.8.8.8", "2002:808:808::1",      "2001:db7::1", "3fff:1000::1",
    };
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
        if (!is_public(yes[i]))
            fail_msg("%s should be public", yes[i]);
}

static void test_not_public(void **state)
{
    (void)state;
    static const char *const no[] = {
        "0.0.0.0",
        "0.255.255.255",
        "10.0.0.0",
        "10.255.255.255",
        "100.64.0.0",
        "100.127.255.255",
        "127.0.0.1",
        "127.255.255.255",
        "169.254.169.254",
        "172.16.0.0",
        "172.31.255.255",
        "192.0.0.1",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.0.0",
        "192.168.255.255",
        "198.18.0.0",
        "198.19.255.255",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::7f00:1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::a00:1",
        "64:ff9b:1::1",
        "fe80::1",
        "fec0::1",
        "fc00::1",
        "fdff::1",
        "ff02::1",
        "2001:db8::1",
        "2001::1",
        "2001:1ff::1",
        "2002:a00:1::1",
        "2002:7f00:1::1",
        "100::1",
        "3fff::1",
        "4000::1",
    };
    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        if (is_public(no[i]))
            fail_msg("%s should not be public", no[i]);
}

static void test_other_family(void **state)
{
    (void)state;
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    assert_false(net_address_public((const struct sockaddr *)&un));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_public),
        cmocka_unit_test(test_not_public),
        cmocka_unit_test(test_other_family),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
