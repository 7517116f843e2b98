/* Files of a checkpoint: config.json if the input begins with a brace, a GGUF file by its first bytes, else a
 * safetensors file. */
#include "engine/checkpoint/safetensors.h"
#include "engine/families/families.h"
#include "server/chat/template.h"

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
    static struct hf_config cfg;
    struct hf_generation generation;
    struct model_desc desc;
    struct tokenizer *t;
    struct template *chat;
    struct err err[4] = {{""}};
    if (!family_load(path, NULL, &cfg, &desc, &err[0])) model_desc_free(&desc);
    else if (!err[0].msg[0]) abort();
    if (family_load_generation(path, &generation, &err[1]) && !err[1].msg[0]) abort();
    if (!family_load_tokenizer(path, NULL, NULL, &t, &err[2])) tok_free(t);
    else if (!err[2].msg[0]) abort();
    if (!template_load(path, &chat, &err[3])) template_free(chat);
    else if (!err[3].msg[0]) abort();
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
    if (gguf ? family_open(path, NULL, &f, &err) : stf_open_file(path, &f, &err)) {
        if (!err.msg[0]) abort();
    } else {
        uint64_t sum = 0, bytes = 0;
        for (size_t i = 0; i < stf_count(f); i++) { /* all of it can be read */
            const struct stf_tensor *t = stf_at(f, i);
            bytes += t->bytes;
            for (uint64_t k = 0; k < t->bytes; k++) sum += ((const volatile uint8_t *)t->data)[k];
            if (stf_find(f, t->name) != t) abort();
        }
        if (sum > bytes * 255) abort();
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
