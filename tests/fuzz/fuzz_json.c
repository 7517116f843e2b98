/* JSON of requests, lenient and strict. Reading, writing and reading again gives the same. */
#include "server/json/parser.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void requests(const char *text, size_t len, bool strict)
{
    struct json_parser in = {.text = text, .len = len, .strict = strict};
    json_t *first, *second;
    if (json_parse_body(&in, &first)) return;
    char *written = json_dumps(first, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    if (!written) abort();
    struct json_parser again = {.text = written, .len = strlen(written), .strict = true};
    if (json_parse_body(&again, &second) || !json_equal(first, second)) abort();
    json_decref(first);
    json_decref(second);
    free(written);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + !size); /* ends where the input does */
    if (!text) abort();
    if (size) memcpy(text, data, size);
    requests(text, size, false);
    requests(text, size, true);
    free(text);
    return 0;
}
