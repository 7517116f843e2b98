/* Files of a checkpoint: config.json if the input begins with a brace, a GGUF file by its first bytes, else a
 * safetensors file. */
#include "engine/checkpoint/files.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/families/families.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void config(const char *text, size_t len)
{
    static struct hf_config cfg;
    static struct model_desc desc;
    struct err err = {""};
    memset(&cfg, 0, sizeof cfg);
    memset(&desc, 0, sizeof desc);
    enum status st = family_parse(text, len, "config.json", &cfg, &desc, &err);
    if (!st) model_desc_free(&desc);
    if (st && !err.msg[0]) abort();
}

/* What a GGUF file has in the place of a directory's files. */
static void from_metadata(const char *path)
{
    static const char *const names[] = {"config.json", "generation_config.json", "tokenizer.json",
                                        "tokenizer_config.json", "chat_template.jinja"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct err err = {""};
        char *text;
        size_t len;
        if (!checkpoint_text(path, names[i], 1u << 24, &text, &len, &err)) free(text);
        else if (!err.msg[0]) abort();
    }
}

static void tensors(const uint8_t *data, size_t size)
{
    struct err err = {""};
    struct stf_files *f = NULL;
    char path[32];
    int fd = memfd_create("fuzz", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    bool gguf = size >= 4 && memcmp(data, "GGUF", 4) == 0;
    if (gguf) from_metadata(path);
    if (gguf ? checkpoint_open(path, NULL, &f, &err) : stf_open_file(path, &f, &err)) {
        if (!err.msg[0]) abort();
    } else {
        uint64_t sum = 0;
        for (size_t i = 0; i < stf_count(f); i++) { /* all of it can be read */
            const struct stf_tensor *t = stf_at(f, i);
            for (uint64_t k = 0; k < t->bytes; k++) sum += ((const volatile uint8_t *)t->data)[k];
            if (stf_find(f, t->name) != t) abort();
        }
        if (sum > stf_bytes(f) * 255) abort();
        stf_close(f);
    }
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size && data[0] == '{') config((const char *)data, size);
    else tensors(data, size);
    return 0;
}
