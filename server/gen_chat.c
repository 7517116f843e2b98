/* From a chat to a prompt: messages checked, pictures decoded and prepared, template rendered, text tokenized. Worker thread: it may take a
 * second for a large picture and never touches the loop. A picture whose file came before is not decoded: its content keys are known
 * (image_alias.h), and its pixels are made when the scheduler turns out to need them (gen_images.c). */
#include "server/chat_messages.h"
#include "server/fields.h"
#include "server/gen_prompt.h"
#include "server/image_alias.h"
#include "server/image_in.h"
#include "server/limits.h"
#include "server/template.h"

#include "engine/image_prep.h"
#include "engine/model_info.h"
#include "engine/prompt_build.h"
#include "engine/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#define SPECIALS_MAX 32

/* All that a chat's prompt is made of; chat_fini frees it whatever was reached. */
struct chat {
    struct request *r;
    struct gen *g;
    struct chat_messages messages;
    struct image_prepared *prepared; /* [picture_count]; empty where the keys were known */
    struct prompt_picture *pictures; /* [picture_count], views of prepared; keys owned */
    uint32_t picture_count;
    struct template_result rendered;
};

static void chat_fini(struct chat *c)
{
    template_result_free(&c->rendered);
    for (uint32_t i = 0; i < c->picture_count; i++) {
        /* Pixels that moved into the prompt are NULL here. */
        image_prepared_free(&c->prepared[i]);
        free((void *)(uintptr_t)c->pictures[i].keys);
    }
    free(c->prepared);
    free(c->pictures);
    chat_messages_free(&c->messages);
}

static enum status no_memory(struct chat *c)
{
    return api_fail(&c->r->error, 503, "out_of_memory", NULL, "The server is out of memory.");
}

static enum status image_fail(struct chat *c, enum image_fault fault, const struct image_ref *ref, const struct err *err)
{
    if (fault == IMAGE_NOMEM) return no_memory(c);
    return api_fail(&c->r->error, 400, image_fault_code(fault), ref->param, "%s", err->msg);
}

/* Decodes and prepares a file that was never seen before. */
static enum status picture_decode(struct chat *c, uint32_t at)
{
    const struct model_info *mi = c->r->srv->model->info;
    const struct image_limits limits = IMAGE_LIMITS_DEFAULT;
    const struct image_ref *ref = &c->messages.images[at];
    const struct gen_picture *file = &c->g->pictures[at];
    struct image_u8 whole = {0};
    struct err err = {0};
    uint64_t t0 = now_us();
    enum image_fault fault = image_in_decode(file->bytes, file->len, &limits, &whole, &err);
    if (fault) return image_fail(c, fault, ref, &err);
    enum status st = image_prep(&mi->image.config, &whole, &c->prepared[at], &err);
    image_u8_free(&whole);
    if (st) return api_fail_status(&c->r->error, st == ST_TOO_LARGE ? ST_INVALID : st, ref->param, &err);
    uint32_t count = c->prepared[at].count;
    uint8_t (*keys)[32] = calloc(count, sizeof *keys);
    c->pictures[at] = (struct prompt_picture){.images = c->prepared[at].images, .keys = (const uint8_t (*)[32])keys, .count = count};
    if (!keys) return no_memory(c);
    for (uint32_t i = 0; i < count; i++) image_in_key(&c->prepared[at].images[i], &mi->image.config, mi->family, keys[i]);
    image_alias_put(c->r->srv->aliases, file->alias, (const uint8_t (*)[32])keys, count);
    c->g->image_seconds += (double)(now_us() - t0) * 1e-6;
    c->g->image_count++;
    return ST_OK;
}

static enum status picture_make(struct chat *c, uint32_t at)
{
    const struct image_limits limits = IMAGE_LIMITS_DEFAULT;
    const struct image_ref *ref = &c->messages.images[at];
    struct image_alias *aliases = c->r->srv->aliases;
    struct gen_picture *file = &c->g->pictures[at];
    struct err err = {0};
    uint8_t (*keys)[32];
    uint32_t count;
    enum image_fault fault = image_in_data_uri(ref->url, ref->url_len, &limits, &file->bytes, &file->len, &err);
    if (fault) return image_fail(c, fault, ref, &err);
    image_alias_id(aliases, c->g->p.salt, file->bytes, file->len, file->alias);
    /* Where nothing of one request is kept for another the pixels are needed anyway. */
    bool kept = strcmp(c->r->srv->opt->prefix_cache, "on") == 0;
    if (kept && image_alias_get(aliases, file->alias, &keys, &count)) {
        c->pictures[at] = (struct prompt_picture){.keys = (const uint8_t (*)[32])keys, .count = count};
        return ST_OK; /* the file stays: its pixels may be wanted yet */
    }
    enum status st = picture_decode(c, at);
    free(file->bytes);
    file->bytes = NULL;
    return st;
}

static enum status pictures_make(struct chat *c)
{
    size_t count = c->messages.image_count;
    if (!count) return ST_OK;
    c->prepared = calloc(count, sizeof *c->prepared);
    c->pictures = calloc(count, sizeof *c->pictures);
    c->g->pictures = calloc(count, sizeof *c->g->pictures);
    if (!c->prepared || !c->pictures || !c->g->pictures) return no_memory(c);
    c->picture_count = c->g->picture_count = (uint32_t)count;
    enum status st = ST_OK;
    for (uint32_t i = 0, first = 0; i < c->picture_count && !st; i++) {
        st = picture_make(c, i);
        c->g->pictures[i].first = first;
        c->g->pictures[i].count = c->pictures[i].count;
        first += c->pictures[i].count;
    }
    return st;
}

static enum status render(struct chat *c, json_t *root)
{
    const struct model *m = c->r->srv->model;
    const struct gen_params *p = &c->g->p;
    json_t *tools = field(root, "tools"), *documents = field(root, "documents");
    struct template_special specials[SPECIALS_MAX];
    size_t count = 0;
    struct err err = {0};
    while (count < SPECIALS_MAX && tok_special_role(m->tok, count, &specials[count].name, &specials[count].text)) count++;
    struct template_request rq = {.messages = c->messages.list,
                                  .tools = json_array_size(tools) ? tools : NULL,
                                  .documents = json_is_array(documents) ? documents : NULL,
                                  .kwargs = field(root, "chat_template_kwargs"),
                                  .specials = specials,
                                  .special_count = count,
                                  .image_placeholder = m->info->image.present ? m->info->image.marker : NULL,
                                  .add_generation_prompt = p->add_generation_prompt,
                                  .continue_final_message = p->continue_final_message,
                                  .control_parse = strcmp(c->r->srv->opt->control_tokens, "parse") == 0,
                                  .trace = p->return_cache_info};
    enum status st = template_render(m->tmpl, &rq, &c->rendered, &err);
    if (st == ST_NOMEM) return no_memory(c);
    return st ? api_fail(&c->r->error, 400, "chat_template_error", "messages", "%s", err.msg) : ST_OK;
}

static enum status build(struct chat *c, const json_t *original)
{
    const struct model *m = c->r->srv->model;
    struct gen *g = c->g;
    struct err err = {0};
    g->prompts = calloc(1, sizeof *g->prompts);
    if (!g->prompts) return no_memory(c);
    g->prompt_count = 1;
    struct prompt *p = &g->prompts[0].prompt;
    enum status st = prompt_build(m->info, m->tok, c->rendered.runs, c->rendered.run_count, g->p.add_special_tokens, c->pictures, c->picture_count,
                                  gen_ids_max(g), p, &err);
    if (st == ST_TOO_LARGE) return gen_too_long(g);
    if (st) return api_fail_status(&c->r->error, st, "messages", &err);
    for (uint32_t i = 0; i < p->image_count; i++) g->prompts[0].image_tokens += p->images[i].end - p->images[i].begin;
    if (!g->p.return_cache_info) return ST_OK;
    st = cache_places_build(m->info, m->tok, &c->rendered, &c->messages, original, c->pictures, c->picture_count, p, &g->prompts[0].places, &err);
    return st ? api_fail_status(&c->r->error, st, "messages", &err) : ST_OK;
}

/* Text of a message whose content is a string or a list of parts; malloc'd. */
static char *message_text(const json_t *message, size_t *len)
{
    json_t *content = json_object_get(message, "content"), *part;
    struct buf b;
    size_t i;
    buf_init(&b, SIZE_MAX / 4);
    enum status st = buf_reserve(&b, 1);
    if (!st && json_is_string(content)) st = buf_add(&b, json_string_value(content), json_string_length(content));
    json_array_foreach(content, i, part) {
        json_t *text = json_object_get(part, "text");
        if (!st && json_is_string(text)) st = buf_add(&b, json_string_value(text), json_string_length(text));
    }
    if (st) {
        buf_fini(&b);
        return NULL;
    }
    *len = b.len;
    return b.data;
}

/* Whose turn the answer is, and what `echo` puts before it. */
static enum status answer_shape(struct chat *c)
{
    struct gen *g = c->g;
    const json_t *last = json_array_get(c->messages.list, json_array_size(c->messages.list) - 1);
    const char *last_role = json_string_value(json_object_get(last, "role"));
    const char *role = g->p.add_generation_prompt || !last_role ? "assistant" : last_role;
    g->answer_role = strdup(role);
    if (!g->answer_role) return no_memory(c);
    if (!g->p.echo || !last_role || strcmp(last_role, role) != 0) return ST_OK;
    g->prompts[0].text = message_text(last, &g->prompts[0].text_len);
    return g->prompts[0].text ? ST_OK : no_memory(c);
}

static enum status chat_build(struct chat *c, json_t *root)
{
    const struct server *s = c->r->srv;
    const struct model *m = s->model;
    json_t *tools = field(root, "tools");
    struct chat_limits limits = {.messages_max = LIMIT_MESSAGES, .images_max = m->info->image.present ? (size_t)s->opt->max_images : 0};
    if (!m->tmpl) {
        return api_fail(&c->r->error, 400, "chat_template_error", "messages", "This model has no chat template; use /v1/completions.");
    }
    limits.arguments_as_text = template_caps(m->tmpl, json_array_size(tools) > 0)->arguments_as_text;
    enum status st = chat_messages_parse(field(root, "messages"), &limits, &c->messages, &c->r->error);
    if (!st) st = pictures_make(c);
    if (!st) st = render(c, root);
    if (!st) st = build(c, field(root, "messages"));
    return st;
}

enum status gen_prompt_chat(struct gen *g, json_t *root)
{
    struct chat c = {.r = g->r, .g = g};
    enum status st = chat_build(&c, root);
    if (!st) st = gen_truncate(g, &g->prompts[0]);
    if (!st) st = gen_context_check(g, &g->prompts[0]);
    if (!st) st = answer_shape(&c);
    chat_fini(&c);
    return st;
}

enum status tokenize_chat(struct request *r, json_t *root, struct gen *g)
{
    struct api_error *e = &r->error;
    struct gen_params *p = &g->p;
    p->add_generation_prompt = field(root, "continue_final_message") ? !json_is_true(field(root, "continue_final_message")) : true;
    if (field_bool(e, root, "add_generation_prompt", &p->add_generation_prompt) ||
        field_bool(e, root, "continue_final_message", &p->continue_final_message) ||
        field_bool(e, root, "add_special_tokens", &p->add_special_tokens) || gen_parse_salt(g, root)) {
        return ST_INVALID;
    }
    if (p->add_generation_prompt && p->continue_final_message) {
        return api_fail(e, 400, "invalid_value", "continue_final_message", "continue_final_message and add_generation_prompt exclude each other.");
    }
    if (field(root, "chat_template")) return api_fail(e, 400, "unsupported_parameter", "chat_template", "chat_template is not supported.");
    json_t *kwargs = field(root, "chat_template_kwargs");
    if (kwargs && !json_is_object(kwargs)) return api_fail(e, 400, "invalid_type", "chat_template_kwargs", "chat_template_kwargs must be an object.");
    struct chat c = {.r = r, .g = g};
    enum status st = chat_build(&c, root);
    chat_fini(&c);
    return st;
}
