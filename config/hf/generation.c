/* generation_config.json. See config.h. */
#include "config/hf/reader.h"

#include <stdlib.h>

static enum status read_all(struct hf_reader *r, struct hf_generation *g)
{
    g->has_do_sample = hf_bool(r, 0, "do_sample", &g->do_sample);
    g->has_temperature = hf_double(r, 0, "temperature", 0, 1000, &g->temperature);
    g->has_top_p = hf_double(r, 0, "top_p", 0, 1, &g->top_p);
    g->has_top_k = hf_u32(r, 0, "top_k", 0, SIZE_MAX_VOCAB, &g->top_k);
    g->has_min_p = hf_double(r, 0, "min_p", 0, 1, &g->min_p);
    g->has_repetition_penalty = hf_double(r, 0, "repetition_penalty", 1e-3, 1000, &g->repetition_penalty);
    hf_ids(r, 0, "eos_token_id", g->eos_ids, &g->eos_count);
    hf_list(r, 0, "suppress_tokens", SIZE_MAX_VOCAB - 1, HF_SUPPRESS_MAX, g->suppress_ids,
            &g->suppress_count);
    return r->st;
}

enum status hf_generation_load(const char *dir, struct hf_generation *out, struct err *err)
{
    struct json_doc d = {0};
    struct hf_generation g = {0};
    char *path;
    enum status st = json_load(dir, "generation_config.json", HF_FILE_BYTES_MAX, &d, &path, err);
    struct hf_reader r = {.d = &d, .file = path, .scope = "", .err = err};
    if (!st && json_kind(&d, 0) != JSON_OBJECT) st = err_set(err, ST_FORMAT, "%s: not a JSON object", path);
    if (!st) st = read_all(&r, &g);
    json_free(&d);
    free(path);
    if (st == ST_NOT_FOUND) st = ST_OK;
    if (!st) *out = g;
    return st;
}
