/* See gguf_vocab.h. The names are llama.cpp's, the rules those of the families' tokenizer.json. */
#include "engine/families/gguf_vocab.h"

#include <string.h>

#define QWEN2_SPLIT                                                                                          \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "                                    \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct gguf_vocab known[] = {
    {.model = "gpt2",
     .pre = "qwen2", /* Qwen2, 2.5, 3 and their VL models */
     .split = QWEN2_SPLIT,
     .nfc = true},
    {.model = "gpt2",
     .pre = "qwen35",
     .split = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "
              "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     .nfc = true},
    {.model = "gpt2",
     .pre = "deepseek-r1-qwen", /* its distillates into Qwen2.5, by the same rule */
     .split = QWEN2_SPLIT,
     .nfc = true},
    {.model = "llama", .space_prefix = true, .bos = GGUF_BOS_UNLESS_NOT}, /* Gemma 3, PaliGemma */
    {.model = "gemma4", .user_special = true, .bos = GGUF_BOS_ALWAYS},
};

static bool is(struct gguf_text t, const char *s)
{
    return t.len == strlen(s) && memcmp(t.p, s, t.len) == 0;
}

const struct gguf_vocab *gguf_vocab_find(struct gguf_text model, struct gguf_text pre)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (is(model, known[i].model) && (!known[i].pre || is(pre, known[i].pre))) return &known[i];
    return NULL;
}
