/* See cache_info.h. */
#include "server/input/cache_info.h"

#include "server/http/metrics.h"

#include <stdlib.h>
#include <string.h>

void cache_places_free(struct cache_places *p)
{
    free(p->list);
    *p = (struct cache_places){0};
}

/* ---- from tokens to places ---- */

static struct cache_place place_of_source(const struct template_source *s,
                                          const struct chat_messages *messages)
{
    static const enum cache_place_kind kinds[] = {[TEMPLATE_CONTENT] = PLACE_TEXT,
                                                  [TEMPLATE_FIELD] = PLACE_FIELD,
                                                  [TEMPLATE_TOOLS] = PLACE_TOOLS,
                                                  [TEMPLATE_DOCUMENTS] = PLACE_DOCUMENTS,
                                                  [TEMPLATE_VARIABLES] = PLACE_VARIABLES};
    struct cache_place p = {.kind = kinds[s->kind], .part = -1};
    if (p.kind != PLACE_TEXT && p.kind != PLACE_FIELD) return p;
    p.message = s->message;
    const struct chat_message *m = &messages->list[s->message];
    p.role = chat_role_name(m->role);
    p.field = s->field;
    if (p.kind == PLACE_TEXT && s->part >= 0) p.part = (int32_t)m->parts[s->part].number;
    return p;
}

static struct cache_place place_of_tag(uint32_t tag, const struct template_result *rendered,
                                       const struct chat_messages *messages)
{
    if (tag & PROMPT_TAG_IMAGE) {
        uint32_t k = tag & ~PROMPT_TAG_IMAGE;
        const struct image_ref *ref = &messages->images[k];
        return (struct cache_place){.kind = PLACE_IMAGE,
                                    .message = ref->message,
                                    .part = (int32_t)ref->part,
                                    .image = k,
                                    .video = ref->video,
                                    .role = chat_role_name(messages->list[ref->message].role)};
    }
    if (!tag || tag > rendered->source_count) return (struct cache_place){.kind = PLACE_TEMPLATE, .part = -1};
    return place_of_source(&rendered->sources[tag - 1], messages);
}

enum status cache_places_build(const struct model_info *mi, const struct tokenizer *tok,
                               const struct template_result *rendered, const struct chat_messages *messages,
                               const struct prompt_image *images, uint32_t image_count,
                               const struct prompt *prompt, struct cache_places *out, struct err *err)
{
    struct prompt_origin *origins = NULL;
    size_t count = 0;
    enum status st = prompt_origins(mi, tok, rendered->runs, rendered->run_sources, rendered->run_count,
                                    images, image_count, prompt, &origins, &count, err);
    if (st) return st;
    struct cache_place *list = malloc((count ? count : 1) * sizeof *list);
    uint32_t before = 0; /* 1 + the message of the preceding text */
    for (size_t i = 0; list && i < count; i++) {
        list[i] = place_of_tag(origins[i].tag, rendered, messages);
        list[i].token = origins[i].token;
        if (list[i].kind == PLACE_TEXT || list[i].kind == PLACE_IMAGE || list[i].kind == PLACE_FIELD)
            before = list[i].message + 1;
        if (list[i].kind == PLACE_TEMPLATE) list[i].message = before;
    }
    free(origins);
    if (!list) return err_nomem(err, "the places of a prompt");
    *out = (struct cache_places){.list = list, .count = count};
    return ST_OK;
}

const struct cache_place *cache_place_at(const struct cache_places *p, uint32_t token)
{
    size_t lo = 0, hi = p->count; /* the last one that begins at or before the token */
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (p->list[mid].token <= token) lo = mid + 1;
        else hi = mid;
    }
    return lo ? &p->list[lo - 1] : NULL;
}

const struct cache_place *cache_place_of_difference(const struct cache_places *p, uint32_t token)
{
    const struct cache_place *at = cache_place_at(p, token), *next = at ? at + 1 : NULL;
    return at && at->kind == PLACE_TEMPLATE && next < p->list + p->count && next->token == token + 1 ? next
                                                                                                     : at;
}

/* ---- JSON ---- */

static void message_write(struct json_writer *o, const struct cache_place *p)
{
    jw_put(o, ",\"message\":%u,\"role\":%s", p->message, p->role);
}

static void place_write(struct json_writer *o, const struct cache_place *p, uint32_t token)
{
    static const char *const kinds[] = {
        [PLACE_TEMPLATE] = "template",  [PLACE_TEXT] = "text",   [PLACE_IMAGE] = "image",
        [PLACE_FIELD] = "field",        [PLACE_TOOLS] = "tools", [PLACE_DOCUMENTS] = "documents",
        [PLACE_VARIABLES] = "variables"};
    jw_put(o, "{\"token\":%u,\"kind\":%s", token,
           !p                                   ? "prompt"
           : p->kind == PLACE_IMAGE && p->video ? "video"
                                                : kinds[p->kind]);
    if (p && p->kind == PLACE_TEMPLATE) {
        jw_text(o, ",\"after_message\":");
        if (p->message) jw_uint(o, p->message - 1);
        else jw_text(o, "null");
    } else if (p && p->kind == PLACE_FIELD) {
        message_write(o, p);
        jw_put(o, ",\"field\":%s", p->field);
    } else if (p && (p->kind == PLACE_TEXT || p->kind == PLACE_IMAGE)) {
        message_write(o, p);
        jw_text(o, ",\"part\":");
        if (p->part >= 0) jw_uint(o, (uint64_t)p->part);
        else jw_text(o, "null");
        if (p->kind == PLACE_IMAGE) jw_put(o, ",\"image\":%u", p->image);
    }
    jw_text(o, "}");
}

void cache_info_write(struct json_writer *o, const struct sched_cache_info *info, uint32_t prompt_tokens,
                      uint32_t dropped, const char *left_out, const struct cache_places *places)
{
    /* Without a prompt to compare with there is no point of difference. */
    bool compared =
        info->stop != CACHE_STOP_SALT && info->stop != CACHE_STOP_PROMPT && info->stop != CACHE_STOP_DISABLED;
    jw_put(o,
           "{\"reused_tokens\":%u,\"equal_tokens\":%u,\"prompt_tokens\":%u,\"tier\":%s,\"loaded_tokens\":%u,"
           "\"stop\":%s,\"reuse_ends_at\":",
           info->reused, info->equal, prompt_tokens, info->reused ? cache_tier_name(info->tier) : NULL,
           info->loaded, cache_stop_name(info->stop));
    if (compared && info->reused < prompt_tokens)
        place_write(o, cache_place_of_difference(places, info->reused + dropped), info->reused);
    else jw_text(o, "null");
    jw_text(o, ",\"differs_at\":");
    if (compared && info->equal < prompt_tokens)
        place_write(o, cache_place_of_difference(places, info->equal + dropped), info->equal);
    else jw_text(o, "null");
    if (left_out) jw_put(o, ",\"left_out\":[%s]", left_out);
    jw_text(o, "}");
}

void cache_places_write(struct json_writer *o, const struct cache_places *p)
{
    jw_text(o, "[");
    for (size_t i = 0; i < p->count; i++) {
        if (i) jw_text(o, ",");
        place_write(o, &p->list[i], p->list[i].token);
    }
    jw_text(o, "]");
}
