/* Where images may be fetched from: addresses and networks, hosts and URLs. */
#include "server/fetch/address.h"
#include "server/fetch/rules.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <cmocka.h>

static bool allowed(const char *text, const struct networks *also)
{
    struct sockaddr_in four = {.sin_family = AF_INET};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    if (inet_pton(AF_INET, text, &four.sin_addr) == 1)
        return address_allowed((const struct sockaddr *)&four, also);
    assert_int_equal(inet_pton(AF_INET6, text, &six.sin6_addr), 1);
    return address_allowed((const struct sockaddr *)&six, also);
}

static void test_addresses(void **state)
{
    (void)state;
    static const struct networks none;
    static const char *const public[] = {
        "1.1.1.1",         "9.255.255.255", "11.0.0.0",        "100.63.255.255",   "100.128.0.0",
        "126.255.255.255", "128.0.0.0",     "169.253.255.255", "169.255.0.0",      "172.15.255.255",
        "172.32.0.0",      "192.0.1.0",     "192.0.3.0",       "192.167.255.255",  "192.169.0.0",
        "198.17.255.255",  "198.20.0.0",    "198.51.99.255",   "203.0.112.255",    "223.255.255.255",
        "8.8.8.8",         "2606:4700::1",  "2a00::1",         "2001:4860::8888",  "::ffff:1.1.1.1",
        "2001:200::1",     "2003::1",       "3ffe:ffff::1",    "2001:db7:ffff::1",
    };
    static const char *const special[] = {
        "0.0.0.0",
        "0.255.255.255",
        "10.0.0.0",
        "10.255.255.255",
        "100.64.0.0",
        "100.127.255.255",
        "127.0.0.1",
        "127.255.255.255",
        "169.254.0.0",
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
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:0:1.1.1.1",
        "::ffff:169.254.169.254",
        "64:ff9b::1.1.1.1",
        "64:ff9b:1::1",
        "100::1",
        "2001::1",
        "2001:2::1",
        "2001:10::1",
        "2001:20::1",
        "2001:1ff:ffff::1",
        "2001:db8::1",
        "2002:7f00:1::",
        "3fff::1",
        "3fff:fff:ffff::1",
        "4000::1",
        "5f00::1",
        "fc00::1",
        "fdff::1",
        "fe80::1",
        "febf::1",
        "fec0::1",
        "ff02::1",
        "ffff::1",
    };
    for (size_t i = 0; i < sizeof public / sizeof *public; i++)
        if (!allowed(public[i], &none)) fail_msg("%s is public", public[i]);
    for (size_t i = 0; i < sizeof special / sizeof *special; i++)
        if (allowed(special[i], &none)) fail_msg("%s is not public", special[i]);
    struct sockaddr other = {.sa_family = AF_UNIX};
    assert_false(address_allowed(&other, &none));
}

static void test_networks(void **state)
{
    (void)state;
    struct networks n;
    struct err err;
    assert_int_equal(networks_parse("10.1.0.0/16,127.0.0.2,fd00::/8,::1/128,192.168.4.0/22", &n, &err),
                     ST_OK);
    static const char *const in[] = {"10.1.0.0",         "10.1.255.255",    "127.0.0.2",
                                     "::ffff:127.0.0.2", "fd12::1",         "::1",
                                     "1.1.1.1",          "::ffff:10.1.2.3", "192.168.7.255"};
    static const char *const out[] = {"10.0.255.255", "10.2.0.0", "127.0.0.1",  "127.0.0.3",
                                      "fc00::1",      "::2",      "::10.1.0.1", "192.168.8.0"};
    for (size_t i = 0; i < sizeof in / sizeof *in; i++)
        if (!allowed(in[i], &n)) fail_msg("%s is in a network", in[i]);
    for (size_t i = 0; i < sizeof out / sizeof *out; i++)
        if (allowed(out[i], &n)) fail_msg("%s is in none", out[i]);
    networks_free(&n);
    assert_int_equal(networks_parse("0.0.0.0/0", &n, &err), ST_OK);
    assert_true(allowed("127.0.0.1", &n) && allowed("::ffff:127.0.0.1", &n) && !allowed("::1", &n));
    networks_free(&n);
    static const char *const wrong[] = {"",
                                        ",",
                                        "10.0.0.0/8,",
                                        "10.0.0.0/33",
                                        "10.0.0.0/",
                                        "10.0.0/8",
                                        "::1/129",
                                        "::1/-1",
                                        "::1/ 8",
                                        "10.0.0.0/+8",
                                        "a",
                                        "10.0.0.0/8 ",
                                        "10.0.0.0/0x8",
                                        "/8",
                                        "10.0.0.0/1000",
                                        "0x7f.0.0.1",
                                        "1111:2222:3333:4444:5555:6666:7777:8888:9999:aaaa:bbbb"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (networks_parse(wrong[i], &n, &err) != ST_INVALID) fail_msg("'%s' is no list", wrong[i]);
}

static enum image_error check(const struct host_rules *r, const char *url)
{
    CURLU *u;
    struct err err = {0};
    enum image_error f = url_check(r, NULL, url, strlen(url), &u, &err);
    assert_int_equal(u != NULL, !f);
    assert_int_equal(err.msg[0] != 0, f != IMAGE_OK);
    curl_url_cleanup(u);
    return f;
}

static void test_hosts(void **state)
{
    (void)state;
    struct host_rules r;
    struct err err;
    assert_int_equal(
        host_rules_parse("Pictures.example.org,*.example.com:8443,[2001:DB8::0:1]:*,127.0.0.1:81,*:82,"
                         "dot.example.net.",
                         &r, &err),
        ST_OK);
    static const char *const good[] = {
        "http://pictures.example.org/a?b=c#d",
        "https://PICTURES.example.ORG:443/",
        "https://pictures.example.org./",
        "https://a.example.com:8443/",
        "http://a.b.example.com:8443",
        "http://[2001:db8::1]:99/",
        "http://127.0.0.1:81/",
        "http://0x7f.1:81/",
        "http://2130706433:81/",
        "http://anything:82/",
        "http://dot.example.net/",
        "http://pictures.example.org:080/",
        "http://pictures%2Eexample.org/",
        "http://pictures.example.org/\xC3\xBC",
        "http://pictures.example.org/ b",
    };
    static const char *const bad[] = {
        "http://example.org/",
        "http://apictures.example.org/",
        "http://pictures.example.org:81/",
        "http://pictures.example.org:443/",
        "https://pictures.example.org:80/",
        "https://example.com:8443/",
        "https://a.example.com/",
        "https://.example.com:8443/",
        "https://aexample.com:8443/",
        "http://127.0.0.1/",
        "http://[::ffff:127.0.0.1]:81/",
        "http://pictures.example.org.evil.net/",
        "http://pictures.example.org@evil.net/",
        "http://evil.net#pictures.example.org/",
        "http://evil.net\\@pictures.example.org/",
        "http://evil.net%2Fpictures.example.org/",
        "http://u:p@pictures.example.org/",
        "ftp://pictures.example.org/",
        "//pictures.example.org/",
        "pictures.example.org/",
        "http://pictures.example.org:0/",
        "http://pictures.example.org:65616/",
        "http://pictures.example.org..:80/",
        "",
        "http://",
        "http://[fe80::1%25eth0]:82/",
        "http://pictures.example.org/\n",
        "http://pictur\xC3\xA9s:82/",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (check(&r, good[i])) fail_msg("%s is in the list", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (check(&r, bad[i]) != IMAGE_BAD_URL) fail_msg("%s is not in the list", bad[i]);
    host_rules_free(&r);
    assert_int_equal(host_rules_parse("*", &r, &err), ST_OK);
    assert_int_equal(check(&r, "https://anything.example.org/"), IMAGE_OK);
    assert_int_equal(check(&r, "https://anything.example.org:8443/"), IMAGE_BAD_URL);
    host_rules_free(&r);
    static const char *const wrong[] = {
        "",      "a,", ",a",   "a:",  "a:0",    "a:65536", "a:x", "a b", "http://a", "a/b",  "u@a", "*.",
        "*.*.a", "a*", "[::1", "::1", "[::1]x", "a:1:2",   "a?b", "a#b", "%61",      "a\\b", ".",   "[zz]"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (host_rules_parse(wrong[i], &r, &err) != ST_INVALID) fail_msg("'%s' is no list", wrong[i]);
}

/* What a redirect says may be relative. */
static void test_relative(void **state)
{
    (void)state;
    struct host_rules r;
    struct err err;
    CURLU *base, *u;
    char *text;
    static const struct {
        const char *to, *full;
    } cases[] = {{"/x", "http://a.example:80/x"},
                 {"x", "http://a.example:80/b/x"},
                 {"?q", "http://a.example:80/b/c?q"},
                 {"//b.example/y", "http://b.example:80/y"},
                 {"https://b.example/y", "https://b.example:443/y"},
                 {"//c.example/y", NULL},
                 {"ftp://b.example/", NULL},
                 {"", NULL}};
    assert_int_equal(host_rules_parse("a.example,b.example", &r, &err), ST_OK);
    assert_int_equal(url_check(&r, NULL, "http://a.example/b/c", 20, &base, &err), IMAGE_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        enum image_error f = url_check(&r, base, cases[i].to, strlen(cases[i].to), &u, &err);
        if (f != (cases[i].full ? IMAGE_OK : IMAGE_BAD_URL)) fail_msg("%s: %d", cases[i].to, (int)f);
        if (f) continue;
        assert_int_equal(curl_url_get(u, CURLUPART_URL, &text, CURLU_DEFAULT_PORT), 0);
        assert_string_equal(text, cases[i].full);
        curl_free(text);
        curl_url_cleanup(u);
    }
    curl_url_cleanup(base);
    host_rules_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_addresses), cmocka_unit_test(test_networks),
                                       cmocka_unit_test(test_hosts), cmocka_unit_test(test_relative)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
