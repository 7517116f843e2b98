/* See config.h: finding the family, what is common to all, generation_config.json. The defaults of the
 * families are those of transformers' configuration classes: released files leave out every key that equals
 * its class default, so they are part of the format. */
#include "config/hf/config.h"

#include "config/hf/reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_BYTES_MAX (4u << 20)

enum {
    GEMMA3_ROWS = sizeof hf__gemma3_rows / sizeof hf__gemma3_rows[0],
    QWEN_ROWS = sizeof hf__qwen_rows / sizeof hf__qwen_rows[0],
    ROW_COUNT = GEMMA3_ROWS + QWEN_ROWS
};

static const struct hf_row *row_at(int i)
{
    return i < GEMMA3_ROWS ? &hf__gemma3_rows[i] : &hf__qwen_rows[i - GEMMA3_ROWS];
}

static const struct hf_row *find_row(struct hf_reader *r)
{
    char type[64] = "", served[256] = "";
    size_t len = 0, used = 0;
    uint32_t node = json_get_live(r->d, 0, "model_type");
    for (int i = 0; i < ROW_COUNT; i++)
        if (json_str_eq(r->d, node, row_at(i)->model_type)) return row_at(i);
    for (int i = 0; i < ROW_COUNT; i++) {
        int n = snprintf(served + used, sizeof served - used, "%s%s", i ? ", " : "", row_at(i)->model_type);
        if (n > 0 && (size_t)n < sizeof served - used) used += (size_t)n;
    }
    if (node == JSON_NONE)
        r->st = err_set(r->err, ST_FORMAT, "%s: no model_type (served: %s)", r->file, served);
    else {
        if (!json_str_copy(r->d, node, type, sizeof type - 1, &len)) len = 0;
        type[len < sizeof type ? len : 0] = '\0';
        r->st = err_set(r->err, ST_UNSUPPORTED, "%s: model_type \"%s\" is not a family that is served (%s)",
                        r->file, type, served);
    }
    return NULL;
}

/* The object of that name; JSON_NONE when it is absent or the fault is noted. */
static uint32_t find_object(struct hf_reader *r, const char *key, bool required)
{
    uint32_t n = json_get_live(r->d, 0, key);
    if (n == JSON_NONE && required) hf__fault(r, ST_FORMAT, key, "is missing");
    if (n == JSON_NONE || json_kind(r->d, n) == JSON_OBJECT) return n;
    hf__fault(r, ST_FORMAT, key, "must be an object");
    return JSON_NONE;
}

static enum status parse_doc(const struct json_doc *d, const char *name, struct hf_config *out,
                             struct err *err)
{
    struct hf_reader r = {d, name, "", err, ST_OK};
    if (json_kind(d, 0) != JSON_OBJECT) return err_set(err, ST_FORMAT, "%s: not a JSON object", name);
    const struct hf_row *row = find_row(&r);
    if (!row) return r.st;
    /* Their tensors would be refused one by one for their types; this says why. */
    if (json_get_live(d, 0, "quantization_config") != JSON_NONE)
        hf__fault(&r, ST_UNSUPPORTED, "quantization_config",
                  "only float weights (bf16, f16, f32) are served");
    struct hf_config *c = calloc(1, sizeof *c);
    if (!c) return err_set(err, ST_NOMEM, "%s: out of memory", name);
    c->family = row->family;
    snprintf(c->model_type, sizeof c->model_type, "%s", row->model_type);
    c->text = *row->text;
    c->bos_id = c->video_id = HF_NO_ID;
    uint32_t nested =
        row->place == HF_FLAT ? JSON_NONE : find_object(&r, "text_config", row->place == HF_NESTED);
    uint32_t vision = row->vision ? find_object(&r, "vision_config", false) : JSON_NONE;
    c->has_vision = vision != JSON_NONE;
    if (c->has_vision) c->vision = *row->vision;
    hf__ids(&r, 0, "eos_token_id", c->eos_ids, &c->eos_count);
    if (nested != JSON_NONE && c->eos_count == 0)
        hf__ids(&r, nested, "eos_token_id", c->eos_ids, &c->eos_count);
    if (!r.st) row->read(&r, row, nested == JSON_NONE ? 0 : nested, vision, c);
    if (!r.st) *out = *c;
    free(c);
    return r.st;
}

enum status hf_config_parse(const char *text, size_t len, const char *name, struct hf_config *out,
                            struct err *err)
{
    struct json_doc d = {0};
    enum status st = json_parse(text, len, name, &d, err);
    if (st) return st;
    st = parse_doc(&d, name, out, err);
    json_free(&d);
    return st;
}

enum status hf_config_load(const char *dir, struct hf_config *out, struct err *err)
{
    char *path;
    struct json_doc d = {0};
    if (asprintf(&path, "%s/config.json", dir) < 0) return err_set(err, ST_NOMEM, "%s: out of memory", dir);
    enum status st = json_doc_load(path, CONFIG_BYTES_MAX, &d, err);
    if (!st) {
        st = parse_doc(&d, path, out, err);
        json_free(&d);
    }
    free(path);
    return st;
}

static bool has(const struct json_doc *d, const char *key)
{
    return json_get_live(d, 0, key) != JSON_NONE;
}

enum status hf_generation_load(const char *dir, struct hf_generation *out, struct err *err)
{
    char *path;
    struct json_doc d = {0};
    struct hf_generation g = {0};
    if (asprintf(&path, "%s/generation_config.json", dir) < 0)
        return err_set(err, ST_NOMEM, "%s: out of memory", dir);
    enum status st = json_doc_load(path, CONFIG_BYTES_MAX, &d, err);
    if (st == ST_NOT_FOUND) {
        free(path);
        *out = g;
        return ST_OK;
    }
    if (!st) {
        struct hf_reader r = {&d, path, "", err, ST_OK};
        if (json_kind(&d, 0) != JSON_OBJECT) r.st = err_set(err, ST_FORMAT, "%s: not a JSON object", path);
        g.has_do_sample = has(&d, "do_sample");
        g.has_temperature = has(&d, "temperature");
        g.has_top_p = has(&d, "top_p");
        g.has_top_k = has(&d, "top_k");
        g.has_min_p = has(&d, "min_p");
        g.has_repetition_penalty = has(&d, "repetition_penalty");
        hf__bool(&r, 0, "do_sample", &g.do_sample);
        hf__double(&r, 0, "temperature", 0, 1000, &g.temperature);
        hf__double(&r, 0, "top_p", 0, 1, &g.top_p);
        hf__u32(&r, 0, "top_k", 0, SIZE_MAX_VOCAB, &g.top_k);
        hf__double(&r, 0, "min_p", 0, 1, &g.min_p);
        hf__double(&r, 0, "repetition_penalty", 1e-3, 1000, &g.repetition_penalty);
        hf__ids(&r, 0, "eos_token_id", g.eos_ids, &g.eos_count);
        st = r.st;
        json_free(&d);
    }
    free(path);
    if (!st) *out = g;
    return st;
}
