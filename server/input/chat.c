/* From a chat to a prompt: messages checked, images decoded and prepared, template rendered, text
 * tokenized. Worker thread: it may take a second for a large image and never touches the loop. */
#include "server/chat/messages.h"
#include "server/input/chat_images.h"
#include "server/json/fields.h"
#include "server/input/fields.h"
#include "server/input/prompt.h"
#include "server/input/remote.h"
#include "server/context/limits.h"
#include "server/chat/template.h"

#include "engine/model/model_info.h"
#include "engine/prompt/prompt_build.h"
#include "engine/tokenizer/tokenizer.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPECIALS_MAX 32
#define TRIM_COST    (32u << 20)

/* State of building the prompts of chats; chat_fini frees it at any stage. */
struct chat {
    struct generation *g;
    struct chat_images images;
    /* of the current prompt: its messages, and its images */
    struct chat_messages messages;
    uint32_t first_image, image_count;
    struct template_result rendered;
};

static void chat_fini(struct chat *c)
{
    template_result_free(&c->rendered);
    chat_images_free(&c->images);
}

/* NULL: none. Of pairs clients may have written the control tokens, if they are only joined. */
static const struct template *template_of(const struct generation *g)
{
    const struct model *m = g->ctx->model;
    return g->q.pairs && m->pairs ? m->pairs : m->tmpl;
}

static enum status render(struct chat *c)
{
    const struct model *m = c->g->ctx->model;
    const struct inference_request *p = &c->g->q;
    const struct model_parts *parts = &m->info->image.parts;
    const char *marker = m->info->image.present ? m->info->image.marker : NULL,
               *video = marker ? m->info->image.video_marker : NULL;
    struct template_special specials[SPECIALS_MAX];
    size_t count = 0;
    struct err err = {0};
    struct tm tm;
    time_t at = p->template_time ? p->template_time : c->g->caller.created;
    while (count < SPECIALS_MAX &&
           tok_special_role(m->tok, count, &specials[count].name, &specials[count].text))
        count++;
    struct template_request rq = {.messages = &c->messages,
                                  .tools = json_array_size(c->g->q.tools) ? c->g->q.tools : NULL,
                                  .documents = c->g->q.documents,
                                  .kwargs = c->g->q.variables,
                                  .specials = specials,
                                  .special_count = count,
                                  .image_placeholder = marker && parts->image ? parts->image : marker,
                                  .video_placeholder = video && parts->video ? parts->video : video,
                                  .parts = marker ? parts : NULL,
                                  .add_generation_prompt = p->add_generation_prompt,
                                  .continue_final_message = p->continue_final_message,
                                  .control_parse = (c->g->q.pairs && m->bare_pairs) ||
                                                   c->g->ctx->opt->control_tokens == CONTROL_TOKENS_PARSE,
                                  .now = at ? localtime_r(&at, &tm) : NULL,
                                  .trace = p->return_cache_info};
    enum status st = template_render(template_of(c->g), &rq, &c->rendered, &err);
    if (st == ST_NOMEM) return gen_nomem(c->g);
    return st ? api_fail(c->g->e, 400, "chat_template_error", gen_source(c->g), "%s", err.msg) : ST_OK;
}

/* The prompt can't hold the images. Most templates have a place for those of users. */
static enum status misplaced(struct chat *c, enum status st, const struct err *err)
{
    const struct chat_messages *m = &c->g->q.messages;
    for (size_t i = 0; st == ST_INVALID && i < m->image_count; i++) {
        enum chat_role role = m->list[m->images[i].message].role;
        if (role == CHAT_USER) continue;
        return api_fail(c->g->e, 400, "invalid_value", m->images[i].param,
                        "%s This chat template may have no place for images in a message of the role '%s'.",
                        err->msg, chat_role_name(role));
    }
    return api_fail_status(c->g->e, st, gen_source(c->g), err);
}

static enum status build(struct chat *c, struct gen_prompt *to)
{
    const struct model *m = c->g->ctx->model;
    struct generation *g = c->g;
    struct err err = {0};
    struct prompt *p = &to->prompt;
    struct prompt_image *images = c->images.list + c->first_image;
    enum status st = prompt_build(m->info, m->tok, c->rendered.runs, c->rendered.run_count,
                                  g->q.add_special_tokens, images, c->image_count, gen_ids_max(g), p, &err);
    if (st == ST_TOO_LARGE) return gen_too_long(g);
    if (st) return misplaced(c, st, &err);
    for (uint32_t i = 0; i < p->span_count; i++)
        if (p->spans[i].image) to->image_tokens += p->spans[i].end - p->spans[i].begin;
    for (uint32_t i = c->first_image; i < c->first_image + c->image_count; i++)
        g->images[i].first = prompt_image(p, g->images[i].first);
    if (!g->q.return_cache_info) return ST_OK;
    st = cache_places_build(m->info, m->tok, &c->rendered, &g->q.messages, images, c->image_count, p,
                            &to->places, &err);
    return st ? api_fail_status(c->g->e, st, gen_source(g), &err) : ST_OK;
}

/* Text of the last message; malloc'd. */
static char *last_text(const struct generation *g, size_t *len)
{
    const struct chat_message *m = &g->q.messages.list[g->q.messages.count - 1];
    struct buf b;
    buf_init(&b, SIZE_MAX / 4);
    enum status st = buf_reserve(&b, 1);
    for (uint32_t i = 0; i < m->part_count && !st; i++) {
        const struct text *text = &m->parts[i].text;
        if (text->data) st = buf_add(&b, text->data, text->len);
    }
    if (st) {
        buf_fini(&b);
        return NULL;
    }
    *len = b.len;
    return b.data;
}

/* The role of the response, and what `echo` prepends. */
static enum status response_shape(struct chat *c)
{
    struct generation *g = c->g;
    enum chat_role last = g->q.messages.list[g->q.messages.count - 1].role;
    g->response_role = chat_role_shown(g->q.add_generation_prompt ? CHAT_ASSISTANT : last);
    if (!g->q.echo || g->response_role != chat_role_shown(last)) return ST_OK;
    g->prompts[0].text = last_text(g, &g->prompts[0].text_len);
    return g->prompts[0].text ? ST_OK : gen_nomem(c->g);
}

enum status gen_read_begin(struct generation *g, struct chat_reader *r)
{
    const struct model *m = g->ctx->model;
    *r = (struct chat_reader){.limits = {.messages_max = LIMIT_MESSAGES,
                                         .images_max = (size_t)g->ctx->opt->max_images,
                                         .text_only = !m->info->image.present},
                              .err = g->e,
                              .out = &g->q.messages,
                              .at = {.field = gen_source(g), .index = -1}};
    const struct template *tmpl = template_of(g);
    if (!tmpl)
        return api_fail(r->err, 400, "chat_template_error", gen_source(g),
                        "This model has no chat template: use /v1/completions, or start the server with "
                        "--chat-template FILE.");
    const struct template_caps *caps = template_caps(tmpl, json_array_size(g->q.tools) > 0);
    r->limits.arguments_as_text = caps->arguments_as_text;
    r->limits.thinking_parts = caps->thinking_parts;
    if (m->info->image.video_marker && m->info->image.config.video)
        r->limits.videos_max = r->limits.images_max < LIMIT_VIDEOS ? r->limits.images_max : LIMIT_VIDEOS;
    return ST_OK;
}

enum status gen_read_added(struct generation *g)
{
    if (!g->q.messages.count)
        return api_fail(g->e, 400, "empty_array", gen_source(g), "'messages' is empty.");
    return gen_remote(g);
}

enum status gen_read_chat(struct generation *g, json_t *root)
{
    struct chat_reader r;
    json_t *documents = field(root, "documents");
    g->q.documents = json_is_array(documents) ? json_incref(documents) : NULL;
    if (gen_read_begin(g, &r)) return ST_INVALID;
    enum status st = chat_messages_parse(field(root, "messages"), &r.limits, r.out, r.err);
    return st ? st : gen_read_added(g);
}

/* run: the prompts are to run, else they are only shown. */
static enum status chat_build(struct generation *g, bool run)
{
    struct chat *c = g->prep.chat ? g->prep.chat : (g->prep.chat = calloc(1, sizeof *c));
    size_t each = g->q.messages_each ? g->q.messages_each : g->q.messages.count;
    if (!c) return gen_nomem(g);
    *c = (struct chat){.g = g, .images = c->images, .rendered = c->rendered};
    enum status st = chat_images_make(g, &c->images);
    if (!st && !g->prompts) st = gen_prompts_new(g, g->q.messages.count / each);
    while (!st && g->prep.prompts_made < g->prompt_count) {
        uint32_t k = g->prep.prompts_made, end;
        if (k && gen_job_over(g)) return ST_AGAIN;
        c->messages = (struct chat_messages){.list = g->q.messages.list + k * each, .count = each};
        while (c->first_image < c->images.count && g->images[c->first_image].prompt < k) c->first_image++;
        for (end = c->first_image; end < c->images.count && g->images[end].prompt == k;) end++;
        c->image_count = end - c->first_image;
        template_result_free(&c->rendered);
        st = render(c);
        if (!st) st = build(c, &g->prompts[k]);
        if (!st && run) st = gen_prompt_made(g, &g->prompts[k]);
        g->prep.prompts_made++;
    }
    return st;
}

/* Does the prompt end within the model's reasoning? Some templates open it; a message to be continued may
 * contain it. */
static bool inside_reasoning(const struct chat *c)
{
    const struct template_result *r = &c->rendered;
    const char *open_tag = reasoning_open(c->g->rules.reasoning_syntax);
    size_t len = r->len, tag = strlen(open_tag);
    if (c->g->rules.reasoning == REASONING_NONE || !r->run_count) return false;
    while (len && strchr(" \t\r\n", r->text[len - 1])) len--;
    bool typed = r->runs[r->run_count - 1].control == TOK_CONTROL_UNGUARDED; /* client text, not a tag */
    if (len >= tag && memcmp(r->text + len - tag, open_tag, tag) == 0) return !typed;
    if (!c->g->q.continue_final_message) return false;
    size_t text_len;
    char *text = last_text(c->g, &text_len);
    const char *open = text ? strstr(text, open_tag) : NULL;
    bool inside = open && !strstr(open, reasoning_close(c->g->rules.reasoning_syntax));
    free(text);
    return inside;
}

enum status gen_prompt_chat(struct generation *g)
{
    enum status st = chat_build(g, true);
    if (st) return st;
    g->inside_reasoning = inside_reasoning(g->prep.chat);
    return response_shape(g->prep.chat);
}

enum status gen_read_parts(struct generation *g, json_t *parts)
{
    char path[40];
    snprintf(path, sizeof path, "%s[0]", gen_source(g));
    if (!g->ctx->model->own_prompts)
        return api_fail(g->e, 400, "invalid_type", path,
                        "A prompt must be a string or an array of token ids.");
    if (g->q.echo)
        return api_fail(g->e, 400, "invalid_value", "echo", "echo can't be combined with a list of parts.");
    struct chat_reader r;
    struct chat_message *m;
    g->q.add_special_tokens = false; /* the prompt format adds bos itself */
    if (gen_read_begin(g, &r) || chat_message_add(&r, CHAT_USER, &m) || chat_content_read(&r, parts, ""))
        return ST_INVALID;
    return gen_read_added(g);
}

enum status gen_prompt_parts(struct generation *g)
{
    return chat_build(g, true);
}

enum status tokenize_read(struct generation *g, json_t *root)
{
    if (gen_fields(g, root, API_TOKENIZE, API_TOKENIZE)) return ST_INVALID;
    g->q.tools = json_incref(field(root, "tools"));
    if (g->q.tools && !json_is_array(g->q.tools))
        return api_fail(g->e, 400, "invalid_type", "tools", "tools must be an array.");
    if (gen_parse_reasoning(g, root)) return ST_INVALID; /* the same variables as for the chat endpoint */
    return gen_read_chat(g, root);
}

enum status tokenize_chat(struct generation *g)
{
    return chat_build(g, false);
}

enum status render_chat(struct generation *g, struct json_writer *o)
{
    struct chat c = {.g = g};
    c.messages = g->q.messages;
    enum status st = render(&c);
    if (!st) jw_string(o, c.rendered.text, c.rendered.len);
    chat_fini(&c);
    return st;
}

void gen_body_free(struct generation *g)
{
    json_decref(g->prep.root);
    g->prep.root = NULL;
}

void gen_read_free(struct generation *g)
{
    gen_body_free(g);
    if (g->prep.chat) chat_fini(g->prep.chat);
    free(g->prep.chat);
    g->prep.chat = NULL;
    inference_request_shed(&g->q);
}

/* Before the request is queued, and here, not on the loop: freeing millions of values takes a while, also for
 * a refused request. */
void gen_read_end(struct generation *g)
{
    gen_read_free(g);
    if (g->caller.body_bytes > TRIM_COST) malloc_trim(0); /* else the allocator keeps them per worker */
}
