/* The reader of requests' framing (server/http/http_parser.h): what is refused, and why; what passes, and in
 * which form; and that it doesn't matter how the bytes are cut, of tabled and of mutated requests. */
#include "server/http/http_parser.h"
#include "server/context/limits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define H       "Host: a\r\n"
#define POST    "POST /x HTTP/1.1\r\n" H
#define CHUNKED POST "Transfer-Encoding: chunked\r\n\r\n"

static uint64_t rng_state = 1;
static uint32_t rnd(uint32_t below)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33) % below;
}

/* What became of some bytes: of all requests in them, in order. */
struct outcome {
    uint32_t requests; /* complete ones */
    int http;          /* of the error that ended it, or 0 */
    size_t taken;      /* up to the end of the last complete request */
    char message[512];
    struct buf out;
};

static void read_all(const char *data, size_t len, uint32_t pieces, struct outcome *o)
{
    struct http_parser h;
    size_t at = 0;
    *o = (struct outcome){0};
    buf_init(&o->out, 1u << 26);
    http_parser_init(&h);
    for (size_t given = 0; given < len || at < len;) {
        size_t more = !pieces ? len : pieces == 1 ? 1 : 1 + rnd(pieces);
        given = given + more < len ? given + more : len;
        enum http_event ev;
        do {
            size_t used;
            ev = http_parser_feed(&h, data + at, given - at, &used, &o->out);
            assert_true(used <= given - at);
            at += used;
            if (ev == HTTP_END) {
                o->requests++;
                o->taken = at;
                http_parser_next(&h);
                if (buf_adds(&o->out, "|")) abort();
            }
        } while (ev == HTTP_HEAD || (ev == HTTP_END && at < given));
        if (ev == HTTP_BAD) {
            o->http = h.error.http;
            snprintf(o->message, sizeof o->message, "%s", h.error.message);
            break;
        }
        assert_int_equal(at, given);
    }
    http_parser_fini(&h);
}

static void same(const struct outcome *a, const struct outcome *b, const char *data, size_t len)
{
    if (a->requests == b->requests && a->http == b->http && a->taken == b->taken &&
        strcmp(a->message, b->message) == 0 &&
        (a->http || (a->out.len == b->out.len && memcmp(a->out.data, b->out.data, a->out.len) == 0)))
        return;
    fail_msg("cut differently: %u requests, %d %s; %u, %d %s: %.*s", a->requests, a->http, a->message,
             b->requests, b->http, b->message, (int)len, data);
}

static const struct {
    const char *text;
    size_t len; /* 0: strlen */
    int http;
} faults[] = {
    {POST "Content-Length:\r\n 33\r\n\r\n", 0, 400},
    {POST "Content-Length: 1\r\n\t2\r\n\r\n", 0, 400},
    {POST "Content-Length: 3\r\nTransfer-Encoding:\r\n chunked\r\n\r\n", 0, 400},
    {POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n", 0, 400},
    {POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 0, 400},
    {POST "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", 0, 400},
    {POST "Transfer-Encoding: gzip\r\n\r\n", 0, 501},
    {POST "Transfer-Encoding: gzip, chunked\r\n\r\n", 0, 501},
    {POST "Transfer-Encoding: xchunked\r\n\r\n", 0, 501},
    {POST "Transfer-Encoding:\r\n\r\n", 0, 501},
    {"POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 0, 400},
    {POST "Content-Length: -1\r\n\r\n", 0, 400},
    {POST "Content-Length: +5\r\n\r\n", 0, 400},
    {POST "Content-Length: 5, 5\r\n\r\n", 0, 400},
    {POST "Content-Length: 5\r\nContent-Length: 6\r\n\r\n", 0, 400},
    {POST "Content-Length: 0x5\r\n\r\n", 0, 400},
    {POST "Content-Length: 5 5\r\n\r\n", 0, 400},
    {POST "Content-Length:\r\n\r\n", 0, 400},
    {POST "Content-Length: 18446744073709551621\r\n\r\n", 0, 400},
    {POST "Content-Length : 5\r\n\r\n", 0, 400},
    {POST "Content Length: 5\r\n\r\n", 0, 400},
    {POST ": 5\r\n\r\n", 0, 400},
    {POST "X\r\n\r\n", 0, 400},
    {POST "X: a\0b\r\n\r\n", sizeof(POST "X: a\0b\r\n\r\n") - 1, 400},
    {POST "X: a\rb\r\n\r\n", 0, 400},
    {POST "X: a\x01\r\n\r\n", 0, 400},
    {POST "X: a\x7f\r\n\r\n", 0, 400},
    {POST "X: a\n\r\n", 0, 400},
    {POST "X: a\r\n\n", 0, 400},
    {POST "Host: b\r\n\r\n", 0, 400},
    {"GET /x HTTP/1.1\r\n\r\n", 0, 400},
    {"GET /x HTTP/1.1\n" H "\r\n", 0, 400},
    {"GET /x\0/../y HTTP/1.1\r\n" H "\r\n", sizeof("GET /x\0/../y HTTP/1.1\r\n" H "\r\n") - 1, 400},
    {"GET\t/x HTTP/1.1\r\n" H "\r\n", 0, 400},
    {"GET /x\tHTTP/1.1\r\n" H "\r\n", 0, 400},
    {"GET  /x HTTP/1.1\r\n" H "\r\n", 0, 400},
    {"GET /x  HTTP/1.1\r\n" H "\r\n", 0, 400},
    {"GET /x y HTTP/1.1\r\n" H "\r\n", 0, 400},
    {"GET /x HTTP/1.1 \r\n" H "\r\n", 0, 400},
    {"GET /\xc3\xa4 HTTP/1.1\r\n" H "\r\n", 0, 400},
    {"GET x HTTP/1.1\r\n" H "\r\n", 0, 400},
    {"GET /x\r\n", 0, 400},
    {"GET /x http/1.1\r\n" H "\r\n", 0, 400},
    {"GET /x HTTP/1.10\r\n" H "\r\n", 0, 400},
    {"GET /x HTTP/2.0\r\n" H "\r\n", 0, 505},
    {"GET /x HTTP/1.2\r\n" H "\r\n", 0, 505},
    {"G(T /x HTTP/1.1\r\n" H "\r\n", 0, 400},
    {"\r\n\r\n\r\nGET /x HTTP/1.1\r\n" H "\r\n", 0, 400},
    {"\nGET /x HTTP/1.1\r\n" H "\r\n", 0, 400},
    {" GET /x HTTP/1.1\r\n" H "\r\n", 0, 400},
    {"\x16\x03\x01\x02", 4, 400},
    {POST "Expect: 200-ok\r\nContent-Length: 1\r\n\r\n", 0, 417},
    {CHUNKED "x\r\n", 0, 400},
    {CHUNKED "+1\r\na\r\n", 0, 400},
    {CHUNKED "0x1\r\na\r\n", 0, 400},
    {CHUNKED " 1\r\na\r\n", 0, 400},
    {CHUNKED "1 \r\na\r\n", 0, 400},
    {CHUNKED "1 ;a\r\na\r\n", 0, 400},
    {CHUNKED "\r\n", 0, 400},
    {CHUNKED "1\na\r\n", 0, 400},
    {CHUNKED "1\r\nab\r\n", 0, 400},
    {CHUNKED "1\r\na\n", 0, 400},
    {CHUNKED "1;\x01\r\na\r\n", 0, 400},
    {CHUNKED "100000000000000000\r\n", 0, 400},
    {CHUNKED "0\r\nX Y: 1\r\n\r\n", 0, 400},
    {CHUNKED "0\r\n X: 1\r\n\r\n", 0, 400},
    {CHUNKED "0\r\n\n", 0, 400},
};

static void test_faults(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        size_t len = faults[i].len ? faults[i].len : strlen(faults[i].text);
        struct outcome whole, cut;
        for (uint32_t pieces = 0; pieces < 12; pieces++) {
            read_all(faults[i].text, len, pieces, &cut);
            if (cut.http != faults[i].http)
                fail_msg("%zu: %d, not %d: %s", i, cut.http, faults[i].http, faults[i].text);
            if (!pieces) whole = cut;
            same(&whole, &cut, faults[i].text, len);
            if (pieces) buf_fini(&cut.out);
        }
        buf_fini(&whole.out);
    }
}

static const struct {
    const char *text, *out;
} fine[] = {
    {"GET /x HTTP/1.1\r\n" H "\r\n", "GET /x HTTP/1.1\r\nHost: a\r\n\r\n|"},
    {"GET /x HTTP/1.0\r\n\r\n", "GET /x HTTP/1.0\r\n\r\n|"},
    {"\r\n\r\nGET http://a/x?y=%00#z HTTP/1.1\r\nhost:a\r\n\r\n",
     "GET http://a/x?y=%00#z HTTP/1.1\r\nhost: a\r\n\r\n|"},
    {"GET /?&&&&?&& HTTP/1.1\r\nCookie: a=b;c\r\n" H "\r\n", "GET /?&&&&?&& HTTP/1.1\r\nHost: a\r\n\r\n|"},
    {"OPTIONS * HTTP/1.1\r\n" H "\r\n", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n|"},
    {POST "X: \t a\tb \xff \r\nY:\r\n\r\n", POST "X: a\tb \xff\r\nY: \r\n\r\n|"},
    {POST "Content-Length: 3\r\n\r\nabcGET /y HTTP/1.1\r\n" H "\r\n",
     POST "Content-Length: 3\r\n\r\nabc|GET /y HTTP/1.1\r\n" H "\r\n|"},
    {POST "content-length:007\r\n\r\nabcdefg", POST "content-length: 007\r\n\r\nabcdefg|"},
    {POST "Expect: 100-Continue\r\nContent-Length: 1\r\n\r\na",
     POST "Content-Length: 1\r\nExpect: 100-continue\r\n\r\na|"},
    {POST "Expect: 100-continue\r\n\r\n", POST "\r\n|"},
    {CHUNKED "0\r\n\r\n", CHUNKED "0\r\n\r\n|"},
    {POST "transfer-encoding: CHUNKED\r\n\r\n00A;x=\"y\"\r\n0123456789\r\n2;\r\nab\r\n000;z\r\nX: y\r\n\r\n",
     POST "transfer-encoding: CHUNKED\r\n\r\na\r\n0123456789\r\n2\r\nab\r\n0\r\n\r\n|"},
};

static void test_fine(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        struct outcome o;
        size_t len = strlen(fine[i].text);
        read_all(fine[i].text, len, 0, &o);
        assert_int_equal(o.http, 0);
        assert_int_equal(o.taken, len);
        assert_string_equal(o.out.data, fine[i].out);
        buf_fini(&o.out);
    }
}

/* A head, chunk lines and trailers of the longest kind that passes, and one more byte. */
static void test_limits(void **state)
{
    (void)state;
    static const struct {
        const char *before, *after;
        size_t most;
        int http;
    } rows[] = {{"GET /", " HTTP/1.1\r\n" H "\r\n", LIMIT_URL_BYTES - 1, 414},
                {POST "X: ", "\r\n\r\n", LIMIT_HEADER_BYTES - sizeof(POST "X: \r\n\r\n") + 1, 431},
                {CHUNKED "1;", "\r\na\r\n0\r\n\r\n", LIMIT_CHUNK_LINE - 4, 400},
                {CHUNKED "0\r\nX: ", "\r\n\r\n", LIMIT_HEADER_BYTES - 7, 431}};
    static char text[LIMIT_HEADER_BYTES + 1000];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (size_t more = 0; more < 2; more++) {
            size_t n = strlen(rows[i].before), len = rows[i].most + more;
            memcpy(text, rows[i].before, n);
            memset(text + n, 'a', len);
            memcpy(text + n + len, rows[i].after, strlen(rows[i].after));
            for (uint32_t pieces = 0; pieces < 3000; pieces += 999) {
                struct outcome o;
                read_all(text, n + len + strlen(rows[i].after), pieces, &o);
                if (o.http != (more ? rows[i].http : 0))
                    fail_msg("row %zu, %zu more: %d %s", i, more, o.http, o.message);
                buf_fini(&o.out);
            }
        }
    }
    for (size_t count = LIMIT_HEADERS; count < LIMIT_HEADERS + 2; count++) {
        struct outcome o;
        size_t n = (size_t)sprintf(text, "GET /x HTTP/1.1\r\n" H);
        for (size_t i = 1; i < count; i++) n += (size_t)sprintf(text + n, "X: %zu\r\n", i);
        n += (size_t)sprintf(text + n, "\r\n");
        read_all(text, n, 7, &o);
        assert_int_equal(o.http, count > LIMIT_HEADERS ? 431 : 0);
        buf_fini(&o.out);
    }
}

/* Requests of the tables, changed at random and put behind each other: cuts don't matter, and what passes is
 * canonical: read again, it comes out as it went in. */
static void test_mutations(void **state)
{
    (void)state;
    static const char *const bits[] = {"\r\n",
                                       "\n",
                                       "\r",
                                       " ",
                                       "\t",
                                       ":",
                                       ";",
                                       ",",
                                       "0",
                                       "Content-Length: 4\r\n",
                                       "Transfer-Encoding: chunked\r\n",
                                       "chunked",
                                       "4\r\nabcd\r\n",
                                       "HTTP/1.1",
                                       "\xff",
                                       "-",
                                       "GET "};
    static char text[4096];
    uint32_t rounds = getenv("KVASIR_TEST_SHORT") ? 20000 : 200000, passed = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        size_t len = 0, faulty = sizeof faults / sizeof *faults, all = faulty + sizeof fine / sizeof *fine;
        for (uint32_t k = 1 + rnd(3); k > 0; k--) {
            size_t i = rnd(2) ? faulty + rnd((uint32_t)(all - faulty)) : rnd((uint32_t)all);
            const char *s = i < faulty ? faults[i].text : fine[i - faulty].text;
            size_t n = i < faulty && faults[i].len ? faults[i].len : strlen(s);
            memcpy(text + len, s, n);
            len += n;
        }
        for (uint32_t k = rnd(4); k > 0; k--) {
            const char *bit = bits[rnd(sizeof bits / sizeof *bits)];
            size_t at = rnd((uint32_t)len), n = strlen(bit), drop = rnd(3) ? 0 : rnd(8);
            if (drop > len - at) drop = len - at;
            memmove(text + at + n, text + at + drop, len - at - drop);
            memcpy(text + at, bit, n);
            len += n - drop;
            if (rnd(4) == 0 && len) text[rnd((uint32_t)len)] = (char)rnd(256);
        }
        struct outcome whole, cut, again;
        read_all(text, len, 0, &whole);
        read_all(text, len, 1 + rnd(40), &cut);
        assert_int_equal(whole.requests, cut.requests);
        assert_int_equal(whole.http, cut.http);
        assert_int_equal(whole.taken, cut.taken);
        assert_string_equal(whole.message, cut.message);
        if (whole.requests && !whole.http && whole.taken == len) {
            char *plain = malloc(whole.out.len + 1);
            size_t n = 0;
            for (size_t i = 0; i < whole.out.len; i++)
                if (whole.out.data[i] != '|') plain[n++] = whole.out.data[i];
            passed++;
            if (!memchr(text, '|', len)) {
                read_all(plain, n, 0, &again);
                assert_int_equal(again.requests, whole.requests);
                assert_int_equal(again.out.len, whole.out.len);
                assert_memory_equal(again.out.data, whole.out.data, whole.out.len);
                buf_fini(&again.out);
            }
            free(plain);
        }
        buf_fini(&whole.out);
        buf_fini(&cut.out);
    }
    assert_true(passed > rounds / 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_faults), cmocka_unit_test(test_fine),
                                       cmocka_unit_test(test_limits), cmocka_unit_test(test_mutations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
