/* See chat_images.h. */
#include "config/base/clock.h"
#include "server/input/chat_images.h"

#include "server/input/parse.h"
#include "server/input/remote.h"
#include "server/json/fields.h"
#include "server/context/limits.h"
#include "server/media/image_hash_cache.h"
#include "server/media/image_decode.h"
#include "server/media/image_parts.h"

#include "engine/model/model_info.h"
#include "engine/prompt/image_prep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- mm_processor_kwargs ---- */

#define KWARGS "mm_processor_kwargs"

/* Maximum pixels for a request: the checkpoint's limit or what fills the context, at most 16,384 tokens (the
 * limit of released checkpoints; the tower's cost is quadratic). */
static uint64_t area_limit(const struct generation *g)
{
    const struct image_config *cfg = &g->ctx->model->info->image.config;
    uint64_t unit = (uint64_t)cfg->patch * cfg->merge * cfg->patch * cfg->merge,
             tokens = g->ctx->model->caps.context_max;
    uint64_t room = unit * (tokens < 16384 ? tokens : 16384);
    uint64_t own = cfg->area_max / (cfg->area_frames ? cfg->area_frames : 1);
    return room > own ? room : own;
}

/* An integer from `min` to `max`; `in` is "size." or empty. */
static enum status parse_bound(struct generation *g, json_t *from, const char *in, const char *name,
                               uint64_t min, uint64_t max, uint64_t *out)
{
    char path[64];
    int64_t n;
    json_t *v = field(from, name);
    if (!v) return ST_OK;
    snprintf(path, sizeof path, KWARGS ".%s%s", in, name);
    if (!json_to_int(v, &n)) return api_fail(g->e, 400, "invalid_type", path, "%s must be an integer.", path);
    if (n < 0 || (uint64_t)n < min || (uint64_t)n > max)
        return api_fail(g->e, 400, "invalid_value", path,
                        "%s must be from %llu to %llu (the most that is taken).", path,
                        (unsigned long long)min, (unsigned long long)max);
    *out = (uint64_t)n;
    return ST_OK;
}

/* Refuses an object with keys that are not in `names`, a list like "min_pixels, max_pixels". */
static enum status parse_keys(struct generation *g, json_t *from, const char *path, const char *names)
{
    const char *key;
    json_t *v;
    if (from && !json_is_object(from))
        return api_fail(g->e, 400, "invalid_type", path, "%s must be an object.", path);
    json_object_foreach(from, key, v) {
        bool known = json_is_null(v);
        size_t len = strlen(key);
        for (const char *at = names; !known && *at; at += strcspn(at, " "), at += *at == ' ')
            known = strncmp(at, key, len) == 0 && strchr(" ,", at[len]);
        if (!known)
            return api_fail(g->e, 400, "unsupported_parameter", KWARGS, "%s takes %s, not '%.60s'.", path,
                            names, key);
    }
    return ST_OK;
}

/* max_soft_tokens, of models whose images fill one of a few budgets. */
static enum status parse_budget(struct generation *g, json_t *kwargs)
{
    static const char name[] = "max_soft_tokens", path[] = KWARGS ".max_soft_tokens";
    const struct image_config *cfg = &g->ctx->model->info->image.config;
    char all[96] = "";
    uint64_t n = 0;
    if (parse_keys(g, kwargs, KWARGS, name) || parse_bound(g, kwargs, "", name, 0, INT64_MAX, &n))
        return ST_INVALID;
    if (!field(kwargs, name) || image_budget(cfg, n, &g->q.image_bounds.area_max)) return ST_OK;
    for (const uint32_t *b = cfg->budgets; *b; b++) {
        size_t at = strlen(all);
        snprintf(all + at, sizeof all - at, "%s%u", at ? ", " : "", *b);
    }
    return api_fail(g->e, 400, "invalid_value", path, "%s must be one of %s.", path, all);
}

/* Bounds in tokens, where images keep their shape or are tiled (Lfm2VlImageProcessor). */
static enum status parse_tokens(struct generation *g, json_t *kwargs, uint64_t unit, struct image_bounds *b)
{
    uint64_t most = area_limit(g) / unit;
    if (parse_keys(g, kwargs, KWARGS, "min_image_tokens, max_image_tokens") ||
        parse_bound(g, kwargs, "", "min_image_tokens", 1, most, &b->area_min) ||
        parse_bound(g, kwargs, "", "max_image_tokens", 1, most, &b->area_max))
        return ST_INVALID;
    b->area_min *= unit;
    b->area_max *= unit;
    return ST_OK;
}

/* The most tiles of an image, or slices; also by the name that older configurations have. */
static enum status parse_tiles(struct generation *g, json_t *kwargs)
{
    const struct image_tiles *t = &g->ctx->model->info->image.config.tiles;
    const char *names = t->rule == TILES_SLICED ? "max_slice_nums" : "max_patches, max_dynamic_patch";
    uint64_t n = 0;
    if (parse_keys(g, kwargs, KWARGS, names) || parse_bound(g, kwargs, "", "max_slice_nums", 1, t->max, &n) ||
        parse_bound(g, kwargs, "", "max_patches", 1, t->max, &n) ||
        parse_bound(g, kwargs, "", "max_dynamic_patch", 1, t->max, &n))
        return ST_INVALID;
    g->q.image_bounds.tiles = (uint32_t)n;
    return ST_OK;
}

/* Areas, and in `size` what the family's image processor takes: the longest side, or areas over all frames
 * that an image counts as. */
static enum status parse_areas(struct generation *g, json_t *kwargs, uint64_t unit, struct image_bounds *b)
{
    const struct image_config *cfg = &g->ctx->model->info->image.config;
    bool side = cfg->longest > 0;
    json_t *size = field(kwargs, "size");
    uint64_t most = area_limit(g), frames = cfg->area_frames ? cfg->area_frames : 1,
             least = side ? 1 : unit * frames, longest = side ? cfg->longest : most * frames;
    if (parse_keys(g, kwargs, KWARGS, side ? "max_pixels, size" : "min_pixels, max_pixels, size") ||
        parse_keys(g, size, KWARGS ".size", side ? "longest_edge" : "shortest_edge, longest_edge") ||
        parse_bound(g, size, "size.", "shortest_edge", 1, most * frames, &b->area_min) ||
        parse_bound(g, size, "size.", "longest_edge", least, longest, &b->area_max))
        return ST_INVALID;
    if (side) b->area_max *= b->area_max;
    b->area_min = (b->area_min + frames - 1) / frames;
    b->area_max /= frames;
    enum status st = parse_bound(g, kwargs, "", "min_pixels", 1, most, &b->area_min);
    return st ? st : parse_bound(g, kwargs, "", "max_pixels", unit, most, &b->area_max);
}

enum status read_mm_processor_kwargs(struct generation *g, json_t *kwargs, const char *name)
{
    const struct image_config *cfg = &g->ctx->model->info->image.config;
    struct image_bounds *b = &g->q.image_bounds;
    uint64_t unit = (uint64_t)cfg->patch * cfg->merge * cfg->patch * cfg->merge; /* pixels of one token */
    if (!json_is_object(kwargs))
        return api_fail(g->e, 400, "invalid_type", name, KWARGS " must be an object.");
    if (!json_object_size(kwargs)) return ST_OK;
    bool some = cfg->tiles.rule == TILES_CLOSEST && !cfg->tiles.axis_max;
    if (g->ctx->model->info->image.present && (cfg->tiles.rule == TILES_SLICED || (some && !cfg->dynamic)))
        return parse_tiles(g, kwargs);
    if (!g->ctx->model->info->image.present || !cfg->dynamic)
        return api_fail(g->e, 400, "unsupported_parameter", KWARGS,
                        KWARGS " is not supported by this model: its images have one size, or crops and "
                               "tiles as the checkpoint's preprocessor_config.json says.");
    if (cfg->budgets) return parse_budget(g, kwargs);
    if (cfg->tiles.rule ? parse_tokens(g, kwargs, unit, b) : parse_areas(g, kwargs, unit, b))
        return ST_INVALID;
    uint64_t most = b->area_max ? b->area_max : cfg->area_max;
    if (b->area_min <= most) return ST_OK;
    return api_fail(g->e, 400, "invalid_value", KWARGS,
                    KWARGS ": the smallest number of pixels (%llu) is over the largest (%llu).",
                    (unsigned long long)b->area_min, (unsigned long long)most);
}

/* ---- files ---- */

bool gen_pixels_account(struct generation *g, const struct image_prepared *p)
{
    struct share *share = g->share;
    size_t bytes = 0, most = g->ctx->opt->image_memory;
    for (uint32_t i = 0; i < p->count; i++) bytes += image_u8_bytes(&p->images[i]);
    bool only = shares_held(share->of, SHARE_PIXELS) <= g->pixel_bytes && !g->q.messages_each;
    if (!share_try(share, SHARE_PIXELS, bytes, only ? SIZE_MAX / 2 : most, only ? 0 : most / 2)) return false;
    g->pixel_bytes += bytes;
    return true;
}

void chat_images_free(struct chat_images *p)
{
    for (uint32_t i = 0; i < p->count; i++) {
        image_prepared_free(&p->prepared[i]); /* pixels moved into the prompt are NULL here */
        image_parts_free(&p->parts[i]);
    }
    free(p->prepared);
    free(p->parts);
    free(p->list);
    *p = (struct chat_images){0};
}

enum status image_fail(struct generation *g, enum image_error error, const struct image_ref *ref,
                       const struct err *err)
{
    if (error == IMAGE_NOMEM) return gen_nomem(g);
    if (error == IMAGE_BUSY) return api_fail(g->e, 429, image_error_code(error), NULL, "%s", err->msg);
    /* An unsupported container is not a corrupt image. */
    const char *code = error == IMAGE_BAD_TYPE && ref->video && !ref->frames ? "unsupported_content_part"
                                                                             : image_error_code(error);
    return api_fail(g->e, 400, code, ref->param, "%s", err->msg);
}

/* The bytes of the reference's URL or URLs -> file->bytes, and whether they are a list -> ask->list. */
static enum image_error fetch(const struct generation *g, const struct image_ref *ref, struct gen_image *file,
                              struct err *err)
{
    const struct image_limits limits = IMAGE_LIMITS_DEFAULT;
    enum image_error f = IMAGE_OK;
    if (!ref->frames) return gen_file(g, ref->url, &limits, &file->bytes, &file->len, err);
    file->ask.list = true;
    for (size_t i = 0; i < ref->frame_count && !f; i++) {
        uint8_t *bytes = NULL;
        size_t n = 0;
        f = gen_file(g, ref->frames[i], &limits, &bytes, &n, err);
        if (!f) f = image_pack(&file->bytes, &file->len, bytes, n, &limits, err);
        free(bytes);
    }
    return f;
}

/* Decodes and prepares an unknown file. */
static enum status decode(struct generation *g, const struct image_ref *ref, struct gen_image *file,
                          struct image_prepared *prepared, struct image_parts *parts)
{
    const struct model_info *mi = g->ctx->model->info;
    struct err err = {0};
    uint64_t t0 = now_us();
    enum image_error error =
        image_from_file(&mi->image, mi->family, &file->ask, file->bytes, file->len, prepared, parts, &err);
    if (error) return image_fail(g, error, ref, &err);
    image_hash_cache_put(g->ctx->image_hashes, file->file_hash, parts);
    g->image_seconds += (double)(now_us() - t0) * 1e-6;
    g->images_decoded++;
    return ST_OK;
}

static enum status make_one(struct generation *g, const struct image_ref *ref, struct gen_image *file,
                            struct image_prepared *prepared, struct image_parts *parts)
{
    const struct image_config *cfg = &g->ctx->model->info->image.config;
    struct image_hash_cache *image_hashes = g->ctx->image_hashes;
    struct err err = {0};
    file->ask = (struct image_ask){.video = ref->video, .fps = ref->fps};
    if (!ref->video) {
        struct image_bounds asked = g->q.image_bounds;
        uint64_t most = area_limit(g);
        if (!cfg->budgets && ref->min_pixels) asked.area_min = ref->min_pixels;
        if (!cfg->budgets && ref->max_pixels)
            asked.area_max = ref->max_pixels < most ? ref->max_pixels : most;
        asked.width = ref->resized_width;
        asked.height = ref->resized_height;
        file->ask.bounds = image_bounds_of(cfg, &asked, ref->detail == IMAGE_DETAIL_LOW);
    }
    enum image_error error = fetch(g, ref, file, &err);
    if (error) return image_fail(g, error, ref, &err);
    image_hash_cache_id(image_hashes, g->caller.salt, &file->ask, file->bytes, file->len, file->file_hash);
    /* Without caching across requests the pixels are always needed. */
    bool kept = g->ctx->opt->prefix_cache;
    if (kept && image_hash_cache_get(image_hashes, file->file_hash, parts))
        return ST_OK; /* keep the file: its pixels may be needed later */
    enum status st = decode(g, ref, file, prepared, parts);
    if (!g->q.messages_each) { /* else another prompt may have the same file */
        free(file->bytes);
        file->bytes = NULL;
    }
    if (st || gen_pixels_account(g, prepared)) return st;
    if (g->q.messages_each) { /* decoded again when its prompt runs */
        image_prepared_free(prepared);
        return ST_OK;
    }
    return api_fail(g->e, 429, "rate_limit_exceeded", NULL,
                    "The server holds too many decoded images; try again later.");
}

/* Checked before more images are decoded: a prompt that can't run should not hold memory. */
static enum status check_room(struct generation *g, const struct image_ref *ref,
                              const struct image_parts *parts, uint64_t *tokens)
{
    const struct model *m = g->ctx->model;
    uint64_t most = m->caps.image_tokens_max;
    for (uint32_t i = 0; i < parts->count; i++) {
        const struct prompt_grid *grid = &parts->grids[i];
        uint64_t n = m->info->image.tokens ? m->info->image.tokens : (uint64_t)grid->t * grid->h * grid->w;
        if (most && n > most)
            return api_fail(g->e, 400, image_error_code(IMAGE_TOO_MANY_PIXELS), ref->param,
                            "The %s takes %llu tokens; this server has memory to encode %llu at once.",
                            ref->video ? "video" : "image", (unsigned long long)n, (unsigned long long)most);
        *tokens += n;
    }
    if (*tokens <= m->caps.context_max) return ST_OK;
    return api_fail(g->e, 400, "context_length_exceeded", gen_source(g),
                    "This model's maximum context length is %u tokens. However, the images and videos in "
                    "your messages resulted "
                    "in more than that. "
                    "Please send fewer or smaller ones.",
                    m->caps.context_max);
}

/* The first image of the request with the file of image i: what all prompts share, such as a query. */
static uint32_t first_of(const struct generation *g, uint32_t i)
{
    const struct image_ref *refs = g->q.messages.images;
    uint32_t k = 0;
    while (g->q.messages_each && k < i && !image_ref_same(&refs[k], &refs[i])) k++;
    return g->q.messages_each ? k : i;
}

static enum status make_next(struct generation *g, struct chat_images *out)
{
    uint32_t i = out->made, same = first_of(g, i);
    const struct image_ref *ref = &g->q.messages.images[i];
    struct gen_image *to = &g->images[i];
    uint32_t prompt = g->q.messages_each ? ref->message / g->q.messages_each : 0;
    const struct image_parts *parts = &out->parts[same];
    enum status st = same < i ? ST_OK : make_one(g, ref, to, &out->prepared[i], &out->parts[i]);
    if (i && prompt != g->images[i - 1].prompt) out->tokens = out->spans = 0;
    uint64_t before = out->tokens;
    if (!st) st = check_room(g, ref, parts, &out->tokens);
    if (!st) st = gen_tokens_check(g, out->all += out->tokens - before);
    out->bytes += to->bytes ? to->len : 0;
    if (!st && g->q.messages_each && out->bytes > LIMIT_BODIES_BYTES)
        st = api_fail(g->e, 400, "invalid_value", ref->param,
                      "The files of the images of one request take more than %llu MiB.",
                      LIMIT_BODIES_BYTES >> 20);
    if (st) return st;
    out->list[i] = (struct prompt_image){.images = out->prepared[i].images,
                                         .keys = (const uint8_t(*)[32])parts->keys,
                                         .count = parts->count,
                                         .rows = parts->rows,
                                         .columns = parts->columns,
                                         .video = ref->video,
                                         .grids = parts->grids,
                                         .stamps = parts->stamps};
    if (same < i) *to = (struct gen_image){.ask = g->images[same].ask};
    if (same < i) memcpy(to->file_hash, g->images[same].file_hash, sizeof to->file_hash);
    to->same = same;
    to->prompt = prompt;
    to->first = out->spans;
    to->count = parts->count;
    out->spans += parts->count;
    out->made++;
    return ST_OK;
}

enum status chat_images_make(struct generation *g, struct chat_images *out)
{
    size_t count = g->q.messages.image_count;
    if (out->made == count) return ST_OK;
    if (!g->images) {
        if (gen_remote(g)) return ST_INVALID;
        out->prepared = calloc(count, sizeof *out->prepared);
        out->parts = calloc(count, sizeof *out->parts);
        out->list = calloc(count, sizeof *out->list);
        g->images = calloc(count, sizeof *g->images);
        if (!out->prepared || !out->parts || !out->list || !g->images) return gen_nomem(g);
        out->count = g->image_count = (uint32_t)count;
    }
    while (out->made < count) {
        if (out->made && g->q.messages_each && gen_job_over(g)) return ST_AGAIN;
        enum status st = make_next(g, out);
        if (st) return st;
    }
    gen_remote_end(g);
    return ST_OK;
}
