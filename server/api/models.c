/* GET /v1/models, /v1/models/{id} (of OpenAI's API and Anthropic's), /model_info and /server_info, which work
 * while the model loads; llama.cpp's /props. */
#include "engine/model/model_info.h"
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
    jw_text(o, "{\"type\":\"model\",\"id\":");
    jw_cstring(o, name);
    jw_text(o, ",\"display_name\":");
    jw_cstring(o, name);
    jw_text(o, ",\"created_at\":");
    jw_time(o, s->started, -1);
    jw_text(o, ",\"lifecycle\":\"active\"");
    if (s->model) {
        jw_text(o, ",\"max_input_tokens\":");
        jw_uint(o, s->model->caps.context_max);
        jw_text(o, ",\"max_tokens\":");
        jw_uint(o, s->model->caps.context_max);
    }
    jw_text(o, "}");
}

/* As llama.cpp has it. */
static void meta(struct json_writer *o, const struct model *m)
{
    char text[200];
    snprintf(text, sizeof text,
             ",\"meta\":{\"n_vocab\":%u,\"n_ctx_train\":%u,\"n_embd\":%u,\"n_params\":%llu,\"size\":%llu}",
             m->info->vocab_size, m->info->context_max, m->caps.hidden_size,
             (unsigned long long)m->info->parameters, (unsigned long long)m->info->weight_bytes);
    jw_text(o, text);
}

static void card(struct json_writer *o, const struct request *r, const char *name)
{
    const struct server *s = r->srv;
    if (r->response.shape == ERROR_ANTHROPIC) {
        anthropic_card(o, s, name);
        return;
    }
    jw_text(o, "{\"id\":");
    jw_cstring(o, name);
    jw_text(o, ",\"object\":\"model\",\"created\":");
    jw_int(o, s->started);
    jw_text(o, ",\"owned_by\":\"local\",\"root\":");
    jw_cstring(o, s->model_dir);
    jw_text(o, ",\"parent\":null,\"max_model_len\":");
    if (s->model) {
        jw_uint(o, s->model->caps.context_max);
    } else {
        jw_text(o, "null");
    }
    jw_text(o, ",\"permission\":[]");
    if (s->model) meta(o, s->model);
    jw_text(o, "}");
}

/* A model in Codex's format: if one of these fields is missing, Codex rejects the whole list. It has built-in
 * instructions only for models that it knows. */
static void codex_card(struct json_writer *o, const struct server *s, const char *name)
{
    const struct model *m = s->model;
    bool thinks = m && m->tmpl && template_caps(m->tmpl, true)->think;
    jw_text(o, "{\"slug\":");
    jw_cstring(o, name);
    jw_text(o, ",\"display_name\":");
    jw_cstring(o, name);
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
    const char *last = r->srv->model_name;
    jw_text(&o, anthropic ? "{\"data\":[" : "{\"object\":\"list\",\"data\":[");
    for (const char *n = r->srv->model_name; n < r->srv->model_names_end; n += strlen(n) + 1) {
        if (n != r->srv->model_name) jw_text(&o, ",");
        card(&o, r, n);
        last = n;
    }
    if (anthropic) {
        jw_text(&o, "],\"has_more\":false,\"first_id\":");
        jw_cstring(&o, r->srv->model_name);
        jw_text(&o, ",\"last_id\":");
        jw_cstring(&o, last);
        jw_text(&o, "}");
    } else {
        jw_text(&o, "],\"models\":[");
        for (const char *n = r->srv->model_name; n < r->srv->model_names_end; n += strlen(n) + 1) {
            if (n != r->srv->model_name) jw_text(&o, ",");
            codex_card(&o, r->srv, n);
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
    const struct model *m = s->model;
    struct json_writer o = {.buf = &r->response.out};
    jw_text(&o, "{\"served_model_name\":");
    jw_cstring(&o, s->model_name);
    jw_text(&o, ",\"is_generation\":true,\"tp_size\":1,\"dp_size\":1,\"version\":\"" KVASIR_VERSION "\"");
    if (m) {
        jw_text(&o, ",\"model_type\":");
        jw_cstring(&o, m->info->family);
        jw_text(&o, ",\"has_image_understanding\":");
        jw_text(&o, m->caps.images ? "true" : "false");
        jw_text(&o, ",\"context_length\":");
        jw_uint(&o, m->caps.context_max);
        jw_text(&o, ",\"max_running_requests\":");
        jw_uint(&o, m->caps.sequences_max);
    }
    jw_text(&o, "}");
    request_respond(r, o.st ? 500 : 200);
}

/* As llama.cpp has it; only the name of the checkpoint, not where it is. */
void api_props_start(struct request *r)
{
    const struct model *m = r->srv->model;
    struct json_writer o = {.buf = &r->response.out};
    size_t len = 0;
    const char *source = m->tmpl ? template_source(m->tmpl, &len) : "";
    jw_text(&o, "{\"default_generation_settings\":{\"n_ctx\":");
    jw_uint(&o, m->caps.context_max);
    jw_text(&o, "},\"total_slots\":");
    jw_uint(&o, m->caps.sequences_max);
    jw_text(&o, ",\"model_alias\":");
    jw_cstring(&o, r->srv->model_name);
    jw_text(&o, ",\"model_path\":");
    jw_cstring(&o, r->srv->model_name);
    jw_text(&o, ",\"chat_template\":");
    jw_string(&o, source, len);
    jw_text(&o, m->caps.images ? ",\"modalities\":{\"vision\":true" : ",\"modalities\":{\"vision\":false");
    jw_text(&o, ",\"audio\":false},\"build_info\":\"kvasir " KVASIR_VERSION "\"}");
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
    const char *name = model_name_find(r->srv, id, len);
    if (name) {
        struct json_writer o = {.buf = &r->response.out};
        card(&o, r, name);
        request_respond(r, o.st ? 500 : 200);
    } else {
        (void)request_model_unknown(r, id);
        request_fail(r);
    }
    free(id);
}
