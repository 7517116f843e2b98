/* GET /v1/models, /v1/models/{id} (of OpenAI's API and Anthropic's), /model_info and /server_info, which work
 * while the model loads; llama.cpp's /props, vLLM's /tokenizer_info. */
#include "engine/model/model_info.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/context/adapters.h"
#include "server/front/front.h"
#include "server/generate/generate.h"
#include "server/chat/template.h"
#include "server/json/writer.h"
#include "server/http/request.h"
#include "server/api/api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A model in Anthropic's format. */
static void anthropic_card(struct json_writer *o, const struct server *s, const char *name)
{
    jw_put(o, "{\"type\":\"model\",\"id\":%s,\"display_name\":%s,\"created_at\":", name, name);
    jw_time(o, s->started, -1);
    jw_text(o, ",\"lifecycle\":\"active\"");
    if (s->ctx.model)
        jw_put(o, ",\"max_input_tokens\":%u,\"max_tokens\":%u", s->ctx.model->caps.context_max,
               s->ctx.model->caps.context_max);
    jw_text(o, "}");
}

/* As llama.cpp has it. */
static void meta(struct json_writer *o, const struct model *m)
{
    jw_put(o, ",\"meta\":{\"n_vocab\":%u,\"n_ctx_train\":%u,\"n_embd\":%u,\"n_params\":%lu,\"size\":%lu}",
           m->info->vocab_size, m->info->context_max, m->caps.hidden_size, m->info->parameters,
           m->info->weight_bytes);
}

/* What decides the bits of an output besides the request: docs/determinism.md. An answer's system_fingerprint
 * names the same. There is no mode without batch invariance. */
static void determinism(struct json_writer *o, const struct model_info *m, const char *fingerprint)
{
    jw_put(
        o,
        ",\"determinism\":{\"batch_invariant\":true,\"system_fingerprint\":%s,\"kernel_set\":%s,\"gemm\":%s,"
        "\"dtype\":%s,\"weights\":%s,\"kv_dtype\":%s,\"numerics_revision\":%u}",
        fingerprint, m->kernels, m->gemm, m->dtype, m->weights, m->kv_dtype, m->revision);
}

static void card(struct json_writer *o, const struct request *r, const char *name, const struct lora *lora)
{
    const struct server *s = r->srv;
    if (r->response.shape == ERROR_ANTHROPIC) {
        anthropic_card(o, s, name);
        return;
    }
    if (s->front) {
        front_card(s->front, name, o);
        return;
    }
    jw_put(o, "{\"id\":%s,\"object\":\"model\",\"created\":%ld,\"owned_by\":\"local\",\"root\":%s", name,
           lora ? lora->created : s->started, lora ? lora->path : s->ctx.model_dir);
    jw_put(o, ",\"parent\":%s,\"max_model_len\":", lora ? s->ctx.model_name : NULL);
    if (s->ctx.model) jw_uint(o, s->ctx.model->caps.context_max);
    else jw_text(o, "null");
    jw_text(o, ",\"permission\":[]");
    if (s->ctx.model && s->ctx.model->info->retrieval.classifier[0])
        jw_put(o, ",\"architectures\":[%s],\"endpoints\":[\"/classify\",\"/v1/rerank\",\"/v1/score\"]",
               s->ctx.model->info->retrieval.classifier);
    if (s->ctx.model) meta(o, s->ctx.model);
    const struct model_info *m = s->ctx.model ? s->ctx.model->info : NULL;
    if (m) determinism(o, m, lora ? lora->fingerprint : m->fingerprint);
    jw_text(o, "}");
}

/* A model in Codex's format: if one of these fields is missing, Codex rejects the whole list. It has built-in
 * instructions only for models that it knows. */
static void codex_card(struct json_writer *o, const struct server *s, const char *name)
{
    const struct model *m = s->ctx.model;
    bool thinks = m && m->tmpl && template_caps(m->tmpl, true)->think;
    jw_put(o, "{\"slug\":%s,\"display_name\":%s", name, name);
    jw_text(o,
            ",\"description\":null,\"shell_type\":\"shell_command\",\"visibility\":\"list\","
            "\"supported_in_api\":true,\"priority\":0,\"upgrade\":null,\"support_verbosity\":false,"
            "\"default_verbosity\":null,\"apply_patch_tool_type\":\"freeform\",\"truncation_policy\":"
            "{\"mode\":\"tokens\",\"limit\":10000},\"supports_parallel_tool_calls\":true,"
            "\"experimental_supported_tools\":[],\"base_instructions\":\"You are a coding agent in a "
            "terminal on the user's machine, with the tools of the Codex CLI. Read files before you change "
            "them, change only what the task needs, run commands to check the result, and go on until the "
            "task is done. Then say in a few words what you did.\",\"supports_reasoning_summaries\":");
    jw_text(o, thinks ? "true,\"default_reasoning_level\":\"medium\",\"supported_reasoning_levels\":["
                        "{\"effort\":\"none\",\"description\":\"No reasoning\"},"
                        "{\"effort\":\"medium\",\"description\":\"Reasoning\"}]"
                      : "false,\"default_reasoning_level\":null,\"supported_reasoning_levels\":[]");
    jw_text(o, m && m->caps.images ? ",\"input_modalities\":[\"text\",\"image\"],\"context_window\":"
                                   : ",\"input_modalities\":[\"text\"],\"context_window\":");
    if (m) jw_uint(o, m->caps.context_max);
    else jw_text(o, "null");
    jw_text(o, "}");
}

void api_models_start(struct request *r)
{
    struct json_writer o = {.buf = &r->response.out};
    bool anthropic = r->response.shape == ERROR_ANTHROPIC;
    char last[512];
    jw_text(&o, anthropic ? "{\"data\":[" : "{\"object\":\"list\",\"data\":[");
    for (struct model_iter m = {0}; models_next(&r->srv->ctx, &m);) {
        if (m.name != r->srv->ctx.model_name) jw_text(&o, ",");
        card(&o, r, m.name, m.lora);
        snprintf(last, sizeof last, "%s", m.name);
    }
    if (anthropic) {
        jw_put(&o, "],\"has_more\":false,\"first_id\":%s,\"last_id\":%s}", r->srv->ctx.model_name, last);
    } else if (!http_message_argument(&r->http, "client_version")) {
        jw_text(&o, "]}");
    } else { /* Codex names its version, and reads this list */
        jw_text(&o, "],\"models\":[");
        for (struct model_iter m = {0}; models_next(&r->srv->ctx, &m);) {
            if (m.name != r->srv->ctx.model_name) jw_text(&o, ",");
            codex_card(&o, r->srv, m.name);
        }
        jw_text(&o, "]}");
    }
    request_respond(r, o.st ? 500 : 200);
}

/* Queried by SGLang's gateway, which names the model after it. The same response for both endpoints: the
 * gateway merges them. No model_path: the gateway would look for a tokenizer there, on its own machine or the
 * hub. */
void api_server_info_start(struct request *r)
{
    const struct server *s = r->srv;
    const struct model *m = s->ctx.model;
    struct json_writer o = {.buf = &r->response.out};
    jw_put(&o, "{\"served_model_name\":%s", s->ctx.model_name);
    jw_text(&o, ",\"is_generation\":true,\"tp_size\":1,\"dp_size\":1,\"version\":\"" KVASIR_VERSION "\"");
    if (m) {
        jw_put(&o, ",\"model_type\":%s,\"context_length\":%u,\"max_running_requests\":%u", m->info->family,
               m->caps.context_max, m->caps.sequences_max);
        jw_text(&o,
                m->caps.images ? ",\"has_image_understanding\":true" : ",\"has_image_understanding\":false");
    }
    jw_text(&o, "}");
    request_respond(r, o.st ? 500 : 200);
}

/* As llama.cpp has it; only the name of the checkpoint, not where it is. */
void api_props_start(struct request *r)
{
    const struct model *m = r->srv->ctx.model;
    struct json_writer o = {.buf = &r->response.out};
    size_t len = 0;
    const char *source = m->tmpl ? template_source(m->tmpl, &len) : "";
    struct sampling_defaults d = sampling_defaults(&r->srv->ctx);
    const uint64_t most = r->srv->ctx.opt->default_max_tokens;
    jw_put(&o,
           "{\"default_generation_settings\":{\"n_ctx\":%u,\"params\":{\"max_tokens\":%ld,\"top_k\":%ld,"
           "\"presence_penalty\":0.0,\"frequency_penalty\":0.0,\"temperature\":",
           m->caps.context_max, most ? (long)most : -1L, (long)d.top_k);
    jw_float32(&o, (float)d.temperature);
    jw_text(&o, ",\"top_p\":");
    jw_float32(&o, (float)d.top_p);
    jw_text(&o, ",\"min_p\":");
    jw_float32(&o, (float)d.min_p);
    jw_text(&o, ",\"repeat_penalty\":");
    jw_float32(&o, (float)d.repetition);
    jw_put(&o, "}},\"total_slots\":%u", m->caps.sequences_max);
    jw_put(&o, ",\"model_alias\":%s,\"model_path\":%s,\"chat_template\":", r->srv->ctx.model_name,
           r->srv->ctx.model_name);
    jw_string(&o, source, len);
    jw_text(&o, m->caps.images ? ",\"modalities\":{\"vision\":true" : ",\"modalities\":{\"vision\":false");
    jw_text(&o, ",\"audio\":false},\"build_info\":\"kvasir " KVASIR_VERSION "\"");
    determinism(&o, m->info, m->info->fingerprint);
    jw_text(&o, "}");
    request_respond(r, o.st ? 500 : 200);
}

/* As vLLM has it: what clients need who tokenize here, such as lm-eval. */
void api_tokenizer_info_start(struct request *r)
{
    static const char *const roles[] = {"bos_token", "eos_token", "pad_token"};
    const struct model *m = r->srv->ctx.model;
    const uint32_t ids[] = {m->info->bos_id, m->info->eos_count ? m->info->eos_ids[0] : UINT32_MAX,
                            UINT32_MAX};
    struct json_writer o = {.buf = &r->response.out};
    const char *role, *content;
    size_t len = 0, found = 0; /* bits of roles that are stated */
    jw_put(&o, "{\"model_max_length\":%u", m->caps.context_max);
    for (size_t i = 0; tok_special_role(m->tok, i, &role, &content); i++) {
        for (size_t k = 0; k < 3; k++) found |= (size_t)(strcmp(role, roles[k]) == 0) << k;
        jw_text(&o, ",");
        jw_string(&o, role, strlen(role));
        jw_text(&o, ":");
        jw_string(&o, content, strlen(content));
    }
    for (size_t k = 0; k < 3; k++) {
        if (found >> k & 1) continue;
        content = ids[k] != UINT32_MAX ? tok_bytes(m->tok, ids[k], &len) : NULL;
        jw_text(&o, ",");
        jw_string(&o, roles[k], strlen(roles[k]));
        jw_text(&o, content ? ":" : ":null");
        if (content) jw_string(&o, content, len);
    }
    const char *source = m->tmpl ? template_source(m->tmpl, &len) : NULL;
    jw_text(&o, source ? ",\"chat_template\":" : ",\"chat_template\":null");
    if (source) jw_string(&o, source, len);
    jw_text(&o, "}");
    request_respond(r, o.st ? 500 : 200);
}

void api_model_start(struct request *r)
{
    char *id = strdup(request_rest(r));
    if (!id) {
        request_fail(r);
        return;
    }
    size_t len = percent_decode(id);
    if (request_model_find(r, id, len)) {
        struct json_writer o = {.buf = &r->response.out};
        card(&o, r, r->model_name, r->lora);
        request_respond(r, o.st ? 500 : 200);
    } else {
        (void)request_model_unknown(r, id);
        request_fail(r);
    }
    free(id);
}
