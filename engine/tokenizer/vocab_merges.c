/* Qwen2Tokenizer's own files, vocab.json and merges.txt: the tokenizer.json that transformers makes of
 * them, without added tokens. */
#include "config/base/buf.h"
#include "config/base/file.h"
#include "config/base/json.h"
#include "engine/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX ((size_t)512 << 20)
#define HEAD                                                                                                 \
    "{\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{"       \
    "\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}"  \
    "]?\\\\p{L}+|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|"     \
    "\\\\s+\"},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"               \
    "\"use_regex\":false}]},\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":"

/* merges.txt: a pair a line, below a line with a version. */
static enum status add_merges(struct buf *b, const char *line)
{
    enum status st = buf_adds(b, ",\"merges\":[");
    for (bool first = true; *line && !st;) {
        size_t len = strcspn(line, "\r\n");
        if (len && strncmp(line, "#version", 8) != 0) {
            st = buf_adds(b, first ? "\"" : ",\"");
            for (size_t i = 0; i < len && !st;) {
                size_t plain = strcspn(line + i, "\"\\\r\n");
                st = buf_add(b, line + i, plain);
                i += plain;
                if (i < len && !st) st = buf_addf(b, "\\%c", line[i++]);
            }
            if (!st) st = buf_adds(b, "\"");
            first = false;
        }
        line += len + strspn(line + len, "\r\n");
    }
    return st ? st : buf_adds(b, "]}}");
}

static enum status compose(const char *dir, struct buf *b, struct err *err)
{
    char *vocab = NULL, *merges = NULL;
    size_t len;
    enum status st = file_text_in(dir, "vocab.json", FILE_BYTES_MAX, NULL, &vocab, &len, err);
    if (!st) st = file_text_in(dir, "merges.txt", FILE_BYTES_MAX, NULL, &merges, &len, err);
    if (!st) {
        st = buf_adds(b, HEAD);
        if (!st) st = buf_adds(b, vocab);
        if (!st) st = add_merges(b, merges);
        if (st) err_set(err, st, "vocab.json and merges.txt: %s", status_name(st));
    }
    free(vocab);
    free(merges);
    return st;
}

enum status tok__load_vocab_merges(const char *dir, struct json_doc *out, struct err *err)
{
    struct json_doc config = {0};
    struct err why = {{0}};
    struct buf b;
    char *path;
    enum status st = json_load(dir, "tokenizer_config.json", FILE_BYTES_MAX, &config, &path, &why);
    uint32_t class = st ? JSON_NONE : json_get_live(&config, 0, "tokenizer_class");
    free(path);
    if (!json_str_eq(&config, class, "Qwen2Tokenizer") &&
        !json_str_eq(&config, class, "Qwen2TokenizerFast")) {
        json_free(&config);
        return ST_NOT_FOUND;
    }
    buf_init(&b, FILE_BYTES_MAX);
    st = compose(dir, &b, &why);
    if (!st) st = json_parse(b.data, b.len, "vocab.json, merges.txt", out, &why);
    if (!st) out->owned = b.data;
    else buf_fini(&b);
    if (st && st != ST_NOT_FOUND) *err = why;
    json_free(&config);
    return st;
}
