/* generation_config.json. See config.h. */
#include "config/hf/reader.h"

enum status hf_generation_parse(const char *text, size_t len, const char *name, struct hf_generation *out,
                                struct err *err)
{
    struct json_doc d = {0};
    struct hf_generation g = {0};
    enum status st = json_parse(text, len, name, &d, err);
    if (st) return st;
    struct hf_reader r = {.d = &d, .file = name, .scope = "", .err = err};
    if (json_kind(&d, 0) != JSON_OBJECT) r.st = err_set(err, ST_FORMAT, "%s: not a JSON object", name);
    g.has_do_sample = hf_bool(&r, 0, "do_sample", &g.do_sample);
    g.has_temperature = hf_double(&r, 0, "temperature", 0, 1000, &g.temperature);
    g.has_top_p = hf_double(&r, 0, "top_p", 0, 1, &g.top_p);
    g.has_top_k = hf_u32(&r, 0, "top_k", 0, SIZE_MAX_VOCAB, &g.top_k);
    g.has_min_p = hf_double(&r, 0, "min_p", 0, 1, &g.min_p);
    g.has_repetition_penalty = hf_double(&r, 0, "repetition_penalty", 1e-3, 1000, &g.repetition_penalty);
    hf_ids(&r, 0, "eos_token_id", g.eos_ids, &g.eos_count);
    hf_list(&r, 0, "suppress_tokens", SIZE_MAX_VOCAB - 1, HF_SUPPRESS_MAX, g.suppress_ids, &g.suppress_count);
    json_free(&d);
    if (!r.st) *out = g;
    return r.st;
}
