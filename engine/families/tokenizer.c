/* Tokenizers, and what the kinds of GGUF files stand for: the names are llama.cpp's, the rules those of the
 * families' tokenizer.json. See families.h. */
#include "config/gguf/gguf.h"
#include "engine/families/families.h"

#include <string.h>

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

#define BYTES(names, pattern)                                                                                \
    .model = "gpt2", .pre = names, .byte_level = true, .split = TOK_PATTERN_##pattern
static const struct tok_gguf_kind known[] = {
    /* Qwen2, 2.5, 3 and their VL models, others of the same rule; files of before May 2024 have no name. */
    {BYTES("qwen2|deepseek-r1-qwen|kormo|f2llmv2|default|", DIGIT), .nfc = true},
    /* llama.cpp leaves the normalization out; the original has it. */
    {BYTES("qwen35", DIGIT_MARKS), .nfc = true},
    {BYTES("dbrx", DIGITS3)}, /* OLMo 2 */
    {BYTES("gpt-2|olmo|exaone4|granite-docling|mellum|trillion|a.x-4.0", PLAIN)},
    /* Llama 3, SmolLM3, Falcon 3; LFM2 */
    {BYTES("llama-bpe|llama3|llama-v3|falcon3|lfm2|smaug-bpe|midm-2.0", DIGITS3), .ignore_merges = true,
     .bos = TOK_BOS_UNLESS_NOT},
    {BYTES("glm4|chatglm-bpe", DIGITS3), .ignore_merges = true},
    {BYTES("tekken|pixtral", CASED), .ignore_merges = true, .bos = TOK_BOS_UNLESS_NOT},
    /* SmolLM2, Granite 3 */
    {BYTES("smollm|refact|starcoder|minerva-7b", PLAIN), .first = TOK_PATTERN_NUMBERS},
    {BYTES("minicpm5", DIGITS), .first = TOK_PATTERN_NUMBERS3, .ignore_merges = true},
    {BYTES("seed-coder", DIGIT_BARE)},
    {.model = "llama",
     .pre = "gemma4",
     .user_special = true,
     .markers = GEMMA_MARKERS,
     .bos = TOK_BOS_ALWAYS},
    {.model = "gemma4", .user_special = true, .markers = GEMMA_MARKERS, .bos = TOK_BOS_ALWAYS},
    {.model = "llama", .arch = "paddleocr|ernie4_5", .bos = TOK_BOS_UNLESS_NOT},
    {.model = "llama", /* Gemma 1 to 3 */
     .arch = "gemma|gemma2|gemma3|gemma3n|gemma-embedding",
     .markers = GEMMA_MARKERS,
     .image = "<image_soft_token>",
     .spare = "<unused99>",
     .bos = TOK_BOS_UNLESS_NOT},
    /* Llama 2, TinyLlama, Mistral up to 0.3 */
    {.model = "llama", .space_prefix = true, .bos = TOK_BOS_UNLESS_NOT},
};

static bool among(struct gguf_text t, const char *names)
{
    for (;; names++) {
        size_t len = strcspn(names, "|");
        if (t.len == len && memcmp(t.p, names, len) == 0) return true;
        names += len;
        if (!*names) return false;
    }
}

static const struct tok_gguf_kind *find_kind(struct gguf_text arch, struct gguf_text model,
                                             struct gguf_text pre)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const struct tok_gguf_kind *k = &known[i];
        if (gguf_text_is(model, k->model) && (!k->pre || among(pre, k->pre)) &&
            (!k->arch || among(arch, k->arch)))
            return k;
    }
    return NULL;
}

enum status family_load_tokenizer(const char *model, const char *mmproj, const struct family_prompt *prompt,
                                  struct tokenizer **out, struct err *err)
{
    const struct tok_extra *extra = prompt ? prompt->tokens : NULL;
    size_t count = prompt ? prompt->token_count : 0;
    struct gguf *g;
    if (!gguf_is(model)) return tok_load_extra(model, extra, count, out, err);
    enum status st = gguf_open(model, &g, err);
    if (st) return st;
    struct gguf_text name = {"", 0}, pre = {"", 0}, arch = {"", 0};
    (void)gguf_string(gguf_get(g, "general.architecture"), &arch);
    (void)gguf_string(gguf_get(g, "tokenizer.ggml.model"), &name);
    (void)gguf_string(gguf_get(g, "tokenizer.ggml.pre"), &pre);
    const struct tok_gguf_kind *kind = find_kind(arch, name, pre);
    if (!name.len)
        st = err_set(err, ST_NOT_FOUND, "%s: no tokenizer: the file has no tokenizer.ggml.model", model);
    else if (!kind)
        st = err_set(err, ST_UNSUPPORTED,
                     "%s: tokenizer.ggml.model \"%.*s\" with tokenizer.ggml.pre \"%.*s\" is not supported",
                     model, name.len > 80 ? 80 : (int)name.len, name.p, pre.len > 80 ? 80 : (int)pre.len,
                     pre.p);
    else st = tok_load_gguf(g, kind, mmproj != NULL, extra, count, out, err);
    gguf_close(g);
    return st;
}
