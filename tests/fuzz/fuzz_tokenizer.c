/* tokenizer.json, and after a NUL byte tokenizer_config.json: rejected, or text is encoded and decoded. */
#include "tests/lib/tokens.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char dir[] = "/tmp/kvasir-fuzz-XXXXXX", files[2][64];

static void clean(void)
{
    for (int i = 0; i < 2; i++) unlink(files[i]);
    rmdir(dir);
}

static void set_up(void)
{
    if (!mkdtemp(dir) || atexit(clean)) abort();
    snprintf(files[0], sizeof files[0], "%s/tokenizer.json", dir);
    snprintf(files[1], sizeof files[1], "%s/tokenizer_config.json", dir);
}

static void put(const char *path, const uint8_t *data, size_t size)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "Hello, w\xC3\xB6rld  123\n\t<s>\xFF ab\xE2\x96\x81 don't";
    if (!files[0][0]) set_up();
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    size_t first = end ? (size_t)(end - data) : size;
    put(files[0], data, first);
    put(files[1], end ? end + 1 : (const uint8_t *)"{}", end ? size - first - 1 : 2);
    struct tokenizer *t;
    struct err err = {""};
    if (tok_load(dir, &t, &err)) {
        if (!err.msg[0]) abort();
        return 0;
    }
    tok_guard(t, text, sizeof text);
    struct buf out;
    buf_init(&out, 1 << 20);
    struct tok_run run = {.text = text, .len = sizeof text - 1, .control = TOK_CONTROL_UNGUARDED};
    struct tok_ids ids = {0};
    struct detok d;
    if (tok_encode(t, &run, 1, true, 1000, &ids, &err) && !err.msg[0]) abort();
    detok_init(&d, t, true);
    for (size_t i = 0; i < ids.count; i++)
        if (ids.ids[i] >= tok_vocab_size(t) || detok_push(&d, ids.ids[i], &out)) abort();
    if (detok_flush(&d, &out)) abort();
    tok_ids_free(&ids);
    buf_fini(&out);
    tok_free(t);
    return 0;
}
