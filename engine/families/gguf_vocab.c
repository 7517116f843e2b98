/* See gguf_vocab.h. The names are llama.cpp's, the rules those of the families' tokenizer.json. */
#include "engine/families/gguf_vocab.h"

#include <string.h>

#define QWEN2_SPLIT                                                                                          \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "                                    \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* Google's own files of Gemma 3 (QAT) have <start_of_turn> as a normal token, Ollama's nearly all of them. */
static const char *const GEMMA_MARKERS[] = {"<pad>",
                                            "<eos>",
                                            "<bos>",
                                            "<mask>",
                                            "<start_of_turn>",
                                            "<end_of_turn>",
                                            "<start_of_image>",
                                            "<end_of_image>",
                                            "<image_soft_token>",
                                            NULL};

static const struct gguf_vocab known[] = {
    /* Qwen2, 2.5, 3 and their VL models, others of the same rule; files of before May 2024 have no name. */
    {.model = "gpt2",
     .pre = "qwen2|deepseek-r1-qwen|kormo|f2llmv2|default|",
     .split = QWEN2_SPLIT,
     .nfc = true},
    {.model = "gpt2",
     .pre = "qwen35",
     .split = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "
              "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     .nfc = true},
    {.model = "llama",
     .pre = "gemma4",
     .user_special = true,
     .markers = GEMMA_MARKERS,
     .bos = GGUF_BOS_ALWAYS},
    {.model = "llama", /* Gemma 1 to 3, PaliGemma */
     .markers = GEMMA_MARKERS,
     .picture = "<image_soft_token>",
     .spare = "<unused99>",
     .bos = GGUF_BOS_UNLESS_NOT},
    {.model = "gemma4", .user_special = true, .markers = GEMMA_MARKERS, .bos = GGUF_BOS_ALWAYS},
};

static bool is(struct gguf_text t, const char *s)
{
    return t.len == strlen(s) && memcmp(t.p, s, t.len) == 0;
}

static bool among(struct gguf_text t, const char *names)
{
    for (;; names++) {
        size_t len = strcspn(names, "|");
        if (t.len == len && memcmp(t.p, names, len) == 0) return true;
        names += len;
        if (!*names) return false;
    }
}

const struct gguf_vocab *gguf_vocab_find(struct gguf_text model, struct gguf_text pre)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (is(model, known[i].model) && (!known[i].pre || among(pre, known[i].pre))) return &known[i];
    return NULL;
}
