/* server/input/request_json.c: what is written is read back, and nothing else is. That every request of the
 * API tests survives it is checked by builds with SLOW_ASSERTS (server/api/generate.c). */
#include "server/input/request_json.h"
#include "server/json/parser.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CHAT                                                                                                 \
    "\"source\":\"messages\",\"n\":1,\"messages\":[{\"role\":2,\"field\":\"messages\",\"index\":0,"          \
    "\"parts\":["                                                                                            \
    "{\"number\":0,\"text\":\"Hi.\"}]}],\"images\":[]"
#define IMAGES                                                                                               \
    "\"source\":\"messages\",\"n\":1,\"messages\":[{\"role\":2,\"field\":\"messages\",\"index\":0,\"list\":" \
    "true,"                                                                                                  \
    "\"parts\":[{\"number\":0},{\"number\":1},{\"number\":2,\"video\":true}]}],\"images\":["
#define IMAGE(more) "{\"message\":0,\"part\":0,\"param\":\"messages[0]\"," more "}"
#define TEXT        "\"kind\":1,\"source\":\"prompt\",\"n\":1"

static enum status read_text(const char *text, struct inference_request *q)
{
    json_t *v = NULL;
    *q = (struct inference_request){0};
    if (json_from_text(text, strlen(text), &v)) fail_msg("not JSON: %s", text);
    enum status st = request_read(v, q);
    json_decref(v);
    return st;
}

/* Each is as request_write writes it. */
static void test_same(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{\"version\":1," CHAT "}", "{\"version\":1," TEXT ",\"inputs\":[\"a\\u0000b\",\"\",[5,6]]}",
        "{\"version\":1,\"max_tokens\":7,\"has_max_tokens\":true,\"sampling.temperature\":0.7,\"seed\":-3,"
        "\"has_seed\":true," TEXT ",\"sampling.logprobs\":4294967295,\"stop_ids\":[1,2],\"bias\":[[3,-0.1]],"
        "\"stops\":[\"x\",\"y\"],\"inputs\":[[9]]}",
        "{\"version\":1," TEXT
        ",\"tools\":[{\"b\":1.5,\"a\":[true,null]}],\"format.kind\":3,\"format.schema\":"
        "{\"z\":123456789012345678901234567890},\"format.param\":\"response_format\",\"inputs\":[\"a\"]}",
        "{\"version\":1," IMAGES IMAGE("\"url\":\"data:,a\"") "," IMAGE("\"same\":1,\"detail\":2") "," IMAGE(
            "\"video\":true,\"frames\":[\"data:,1\",\"data:,2\"],\"fps\":0.5") "]}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct inference_request q;
        struct buf b;
        buf_init(&b, 1u << 20);
        if (read_text(texts[i], &q)) fail_msg("not read: %s", texts[i]);
        request_write(&(struct json_writer){.buf = &b}, &q);
        struct inference_request again;
        char *written = strndup(b.data, b.len);
        assert_int_equal(strlen(written), strlen(texts[i])); /* perhaps in another order */
        assert_int_equal(read_text(written, &again), ST_OK);
        b.len = 0;
        request_write(&(struct json_writer){.buf = &b}, &again);
        assert_true(b.len == strlen(written) && memcmp(b.data, written, b.len) == 0);
        free(written);
        inference_request_free(&again);
        inference_request_free(&q);
        buf_fini(&b);
    }
}

static void test_wrong(void **state)
{
    (void)state;
    static const char *const texts[] = {"[]",
                                        "{" CHAT "}",
                                        "{\"version\":2," CHAT "}",
                                        "{\"version\":1}",
                                        "{\"version\":1," TEXT "}",
                                        "{\"version\":1,\"n\":1," CHAT ",\"inputs\":[\"a\"]}",
                                        "{\"version\":1," TEXT ",\"inputs\":[[]]}",
                                        "{\"version\":1," TEXT ",\"inputs\":[[-1]]}",
                                        "{\"version\":1," TEXT ",\"inputs\":[[4294967296]]}",
                                        "{\"version\":1," TEXT ",\"inputs\":[{}]}",
                                        "{\"version\":1," TEXT ",\"inputs\":[\"a\"],\"stops\":[\"\"]}",
                                        "{\"version\":1," TEXT ",\"inputs\":[\"a\"],\"stream\":1}",
                                        "{\"version\":1," TEXT ",\"inputs\":[\"a\"],\"given\":[[1],[2]]}",
                                        "{\"version\":1," TEXT ",\"inputs\":[\"a\"],\"bias\":[[1]]}",
                                        "{\"version\":1," TEXT ",\"inputs\":[\"a\"],\"format.kind\":3}",
                                        "{\"version\":1," TEXT ",\"inputs\":[\"a\"],\"format.kind\":99}",
                                        "{\"version\":1," TEXT ",\"inputs\":[\"a\"],\"tools\":{}}",
                                        "{\"version\":1," IMAGES IMAGE("\"same\":1") "]}",
                                        "{\"version\":1," IMAGES IMAGE("\"detail\":1") "]}",
                                        "{\"version\":1," IMAGES IMAGE("\"url\":5") "]}",
                                        "{\"version\":1," IMAGES "{\"message\":1,\"url\":\"a\"}]}",
                                        "{\"version\":1," IMAGES "7]}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct inference_request q;
        if (read_text(texts[i], &q) != ST_FORMAT) fail_msg("read: %s", texts[i]);
        inference_request_free(&q);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same), cmocka_unit_test(test_wrong)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
