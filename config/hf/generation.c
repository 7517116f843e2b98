/* generation_config.json. See config.h. */
#include "config/hf/reader.h"

static bool has(const struct json_doc *d, const char *key)
{
    return json_get_live(d, 0, key) != JSON_NONE;
}

enum status hf_generation_parse(const char *text, size_t len, const char *name, struct hf_generation *out,
                                struct err *err)
{
    struct json_doc d = {0};
    struct hf_generation g = {0};
    enum status st = json_parse(text, len, name, &d, err);
    if (st) return st;
    struct hf_reader r = {.d = &d, .file = name, .scope = "", .err = err};
    if (json_kind(&d, 0) != JSON_OBJECT) r.st = err_set(err, ST_FORMAT, "%s: not a JSON object", name);
    g.has_do_sample = has(&d, "do_sample");
    g.has_temperature = has(&d, "temperature");
    g.has_top_p = has(&d, "top_p");
    g.has_top_k = has(&d, "top_k");
    g.has_min_p = has(&d, "min_p");
    g.has_repetition_penalty = has(&d, "repetition_penalty");
    hf_bool(&r, 0, "do_sample", &g.do_sample);
    hf_double(&r, 0, "temperature", 0, 1000, &g.temperature);
    hf_double(&r, 0, "top_p", 0, 1, &g.top_p);
    hf_u32(&r, 0, "top_k", 0, SIZE_MAX_VOCAB, &g.top_k);
    hf_double(&r, 0, "min_p", 0, 1, &g.min_p);
    hf_double(&r, 0, "repetition_penalty", 1e-3, 1000, &g.repetition_penalty);
    hf_ids(&r, 0, "eos_token_id", g.eos_ids, &g.eos_count);
    hf_list(&r, 0, "suppress_tokens", SIZE_MAX_VOCAB - 1, HF_SUPPRESS_MAX, g.suppress_ids, &g.suppress_count);
    json_free(&d);
    if (!r.st) *out = g;
    return r.st;
}
