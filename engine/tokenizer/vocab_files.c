/* The files of a tokenizer without tokenizer.json, as its text: vocab.json, merges.txt and the added tokens
 * of tokenizer_config.json, with the steps that transformers' class has (only Qwen2's is known). See load.c.
 */
#include "config/base/buf.h"
#include "config/base/file.h"
#include "config/base/json.h"
#include "engine/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

#define STEPS                                                                                                \
    "{\"normalizer\":{\"type\":\"NFC\"},\"decoder\":{\"type\":\"ByteLevel\"},\"pre_tokenizer\":{\"type\":"   \
    "\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"behavior\":\"Isolated\",\"invert\":false,"        \
    "\"pattern\":{\"Regex\":\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|"         \
    "\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"}},"      \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},\"added_tokens\":["

static bool flag(const struct json_doc *d, uint32_t token, const char *name)
{
    bool on = strcmp(name, "normalized") == 0;
    (void)json_bool(d, json_get_live(d, token, name), &on);
    return on;
}

static enum status put_added(struct buf *b, const struct json_doc *d)
{
    static const char *const flags[] = {"single_word", "lstrip", "rstrip", "normalized", "special"};
    uint32_t all = json_get_live(d, 0, "added_tokens_decoder"), key = json_first(d, all);
    enum status st = ST_OK;
    for (uint32_t i = 0; i < json_count(d, all) && !st; i++) {
        uint32_t token = json_next(d, key);
        size_t id_len, len = 0;
        const char *id = json_raw(d, key, &id_len),
                   *content = json_raw(d, json_get_live(d, token, "content"), &len);
        st = buf_addf(b, "%s{\"id\":%.*s,\"content\":\"%.*s\"", i ? "," : "", (int)id_len, id, (int)len,
                      content ? content : "");
        for (size_t k = 0; k < sizeof flags / sizeof *flags && !st; k++)
            st = buf_addf(b, ",\"%s\":%s", flags[k], flag(d, token, flags[k]) ? "true" : "false");
        if (!st) st = buf_adds(b, "}");
        key = json_next(d, token);
    }
    return st;
}

/* A line is "LEFT RIGHT"; the first may state a version. */
static enum status put_merges(struct buf *b, const char *s)
{
    enum status st = ST_OK;
    bool any = false;
    if (strncmp(s, "#version", 8) == 0) s += strcspn(s, "\n");
    for (size_t len; *s && !st; s += len) {
        len = strcspn(s, "\n");
        size_t end = len && s[len - 1] == '\r' ? len - 1 : len;
        if (end) st = buf_adds(b, any ? ",\"" : "\"");
        for (size_t i = 0; i < end && !st; i++) {
            if (s[i] == '"' || s[i] == '\\') st = buf_adds(b, "\\");
            if (!st) st = buf_add(b, s + i, 1);
        }
        if (end && !st) st = buf_adds(b, "\"");
        any = any || end;
        len += s[len] == '\n';
    }
    return st;
}

enum status tok__vocab_files(const char *dir, size_t max, struct json_doc *out, struct err *err)
{
    struct json_doc config = {0};
    struct buf b;
    char *path = NULL, *vocab = NULL, *merges = NULL;
    size_t vocab_len = 0, merges_len = 0;
    enum status st = file_text_in(dir, "vocab.json", max, NULL, &vocab, &vocab_len, err);
    if (!st) st = file_text_in(dir, "merges.txt", max, NULL, &merges, &merges_len, err);
    if (!st) st = json_load(dir, "tokenizer_config.json", max, &config, &path, err);
    uint32_t class = json_get_live(&config, 0, "tokenizer_class");
    if (!st && !json_str_eq(&config, class, "Qwen2Tokenizer") &&
        !json_str_eq(&config, class, "Qwen2TokenizerFast"))
        st = err_set(err, ST_UNSUPPORTED,
                     "%s: without tokenizer.json only a Qwen2Tokenizer is read: make the file with "
                     "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
                     path);
    buf_init(&b, max);
    if (!st && ((st = buf_adds(&b, STEPS)) || (st = put_added(&b, &config)) ||
                (st = buf_adds(&b, "],\"model\":{\"type\":\"BPE\",\"vocab\":")) ||
                (st = buf_add(&b, vocab, vocab_len)) || (st = buf_adds(&b, ",\"merges\":[")) ||
                (st = put_merges(&b, merges)) || (st = buf_adds(&b, "]}}"))))
        err_set(err, st, "%s: the tokenizer's files are too large", dir);
    if (!st) st = json_parse(b.data, b.len, "vocab.json with merges.txt", out, err);
    if (!st) {
        out->owned = b.data;
        b.data = NULL;
    }
    buf_fini(&b);
    json_free(&config);
    free(path);
    free(vocab);
    free(merges);
    return st;
}
