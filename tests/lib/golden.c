/* See golden.h. */
#include "tests/lib/golden.h"

#include "config/base/json.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die(const char *what, const char *detail)
{
    fprintf(stderr, "golden: %s: %s\n", what, detail);
    abort();
}

const char *golden_root(void)
{
    const char *root = getenv("KVASIR_TEST_ROOT");
    return root ? root : ".";
}

void golden_dir(char *out, size_t cap, const char *family, const char *variant)
{
    int n = snprintf(out, cap, "%s/tests/golden/%s/%s", golden_root(), family, variant);
    if (n < 0 || (size_t)n >= cap) die(variant, "path too long");
}

static int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Names of the entries of `path` in which `probe` can be opened, in order. */
static uint32_t folders(const char *path, const char *probe, char names[][64], uint32_t max)
{
    uint32_t n = 0;
    DIR *d = opendir(path);
    if (!d) die(path, "no golden folder");
    for (struct dirent *e; (e = readdir(d)) && n < max;) {
        if (e->d_name[0] == '.' || strlen(e->d_name) >= 64) continue;
        char file[900];
        snprintf(file, sizeof file, "%s/%s/%s", path, e->d_name, probe);
        FILE *f = fopen(file, "rb");
        if (!f) continue;
        fclose(f);
        memcpy(names[n++], e->d_name, strlen(e->d_name) + 1);
    }
    closedir(d);
    qsort(names, n, 64, by_text);
    return n;
}

uint32_t golden_families(char names[][64], uint32_t max)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tests/golden", golden_root());
    return folders(path, ".", names, max);
}

uint32_t golden_variants(const char *family, char names[][64], uint32_t max)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/%s", golden_root(), family);
    return folders(path, "golden.safetensors", names, max);
}

static const struct stf_tensor *find(const struct golden *g, const char *fmt, uint32_t c, uint32_t i,
                                     enum stf_dtype dtype, bool must)
{
    char name[64];
    int n = snprintf(name, sizeof name, "case%u.", c);
    if (strchr(fmt, '#'))
        snprintf(name + n, sizeof name - (size_t)n, "%.*s%u%s", (int)(strchr(fmt, '#') - fmt), fmt, i,
                 strchr(fmt, '#') + 1);
    else snprintf(name + n, sizeof name - (size_t)n, "%s", fmt);
    const struct stf_tensor *t = stf_find(g->files, name);
    if (!t && must) die(g->dir, name);
    if (t && t->dtype != dtype && !(dtype == STF_F32 && t->dtype == STF_F16)) die(g->dir, name);
    return t;
}

/* An aligned copy, owned by the case; floats as f32. */
static void *keep(struct golden_case *c, const struct stf_tensor *t, size_t extra)
{
    void *p = calloc(1, (size_t)t->bytes * (t->dtype == STF_F16 ? 2 : 1) + extra);
    if (!stf_to_f32(t, p)) memcpy(p, t->data, (size_t)t->bytes);
    c->owned[c->owned_count++] = p;
    return p;
}

static uint32_t whole(const struct golden *g, const struct json_doc *d, uint32_t node, const char *key)
{
    uint64_t v;
    if (!json_uint(d, json_get(d, node, key), &v) || v > UINT32_MAX) die(g->dir, key);
    return (uint32_t)v;
}

/* Checks the resized bytes of the image against the stored ones (if any), from frame `first` on. */
static void same_bytes(const struct golden *g, const struct stf_tensor *want, const struct image_u8 *got,
                       uint32_t first)
{
    if (!want) return;
    size_t frame = (size_t)got->width * got->height * 3;
    uint32_t frames = got->frames ? got->frames : 1;
    for (uint32_t f = 0; f < frames; f++)
        if ((first + f + 1) * frame > want->bytes ||
            memcmp(got->rgb + f * frame, (const uint8_t *)want->data + (first + f) * frame, frame))
            die(g->dir, "an image is resized otherwise");
}

/* Tile `tile` of image i. */
static struct image_u8 load_still(const struct golden *g, uint32_t n, uint32_t i, uint32_t tile,
                                  const struct image_config *config)
{
    const struct stf_tensor *rgb = find(g, "image#.rgb", n, i, STF_U8, true);
    struct image_u8 src = {.width = (uint32_t)rgb->shape[1],
                           .height = (uint32_t)rgb->shape[0],
                           .rgb = malloc((size_t)rgb->bytes)};
    struct image_prepared p;
    struct err err;
    memcpy(src.rgb, rgb->data, (size_t)rgb->bytes);
    if (image_prep(config, &src, &p, &err)) die(g->dir, err.msg);
    if (tile >= p.count) die(g->dir, "an image has fewer tiles");
    struct image_u8 out = p.images[tile];
    p.images[tile].rgb = NULL; /* taken */
    image_prepared_free(&p);
    free(src.rgb);
    same_bytes(g, find(g, "image#.resized", n, i, STF_U8, false), &out, 0);
    return out;
}

/* `groups` groups of frames of a video, from group `first` on, each frame resized as the settings say;
 * missing frames at the end repeat the last one. */
static struct image_u8 load_video(const struct golden *g, uint32_t n, uint32_t i, uint32_t first,
                                  uint32_t groups, const struct image_config *config)
{
    const struct stf_tensor *all = find(g, "video#.frames", n, i, STF_U8, true);
    uint32_t count = (uint32_t)all->shape[0], from = first * config->depth, w, h;
    struct err err;
    struct image_u8 src = {.width = (uint32_t)all->shape[2], .height = (uint32_t)all->shape[1]};
    size_t in = (size_t)src.width * src.height * 3;
    if (image_target(config, src.width, src.height, count, &w, &h, &err)) die(g->dir, err.msg);
    struct image_u8 out = {.width = w, .height = h, .frames = groups * config->depth};
    out.rgb = malloc(image_u8_bytes(&out));
    src.rgb = malloc(in);
    for (uint32_t f = 0; f < out.frames; f++) {
        struct image_u8 one;
        memcpy(src.rgb, (const uint8_t *)all->data + (from + f < count ? from + f : count - 1) * in, in);
        if (image_resize(&src, w, h, config->filter, config->mode, &one, &err)) die(g->dir, err.msg);
        memcpy(out.rgb + f * image_u8_bytes(&one), one.rgb, image_u8_bytes(&one));
        image_u8_free(&one);
    }
    free(src.rgb);
    same_bytes(g, find(g, "video#.resized", n, i, STF_U8, false), &out, from);
    return out;
}

/* Images whose positions have a grid: golden.json says what is in each span. */
static void load_spans(struct golden *g, uint32_t n, const struct json_doc *d, uint32_t spans,
                       const struct image_config *config)
{
    struct golden_case *c = &g->cases[n];
    for (uint32_t i = 0; i < c->image_count; i++) {
        uint32_t span = json_at(d, spans, i), grid = json_get(d, span, "grid"),
                 k = whole(g, d, span, "index");
        bool video = json_str_eq(d, json_get(d, span, "kind"), "video");
        uint64_t thw[3];
        double seconds;
        for (uint32_t a = 0; a < 3; a++)
            if (!json_uint(d, json_at(d, grid, a), &thw[a])) die(c->name, "grid");
        if (!json_double(d, json_get(d, span, "seconds"), &seconds)) die(c->name, "seconds");
        struct mini_image *im = &c->images[i];
        *im = (struct mini_image){.begin = whole(g, d, span, "begin"),
                                  .end = whole(g, d, span, "end"),
                                  .grid = {(uint32_t)thw[0], (uint32_t)thw[1], (uint32_t)thw[2], seconds}};
        im->grid.breaks = im->end - im->begin > im->grid.t * im->grid.h * im->grid.w;
        im->pixels = video ? load_video(g, n, k, whole(g, d, span, "first"), im->grid.t, config)
                           : load_still(g, n, k, 0, config);
        struct prompt_grid made = image_grid(config, im->pixels.width, im->pixels.height, im->pixels.frames);
        if (made.t != im->grid.t || made.h != im->grid.h || made.w != im->grid.w)
            die(c->name, "an image has another grid");
        const struct stf_tensor *patches =
            find(g, video ? "video#.patches" : "image#.patches", n, k, STF_F32, false);
        if (patches && whole(g, d, span, "first") == 0) c->patches[i] = keep(c, patches, 0);
    }
    mini_scan(c->images, c->image_count);
}

static void load_images(struct golden *g, uint32_t n, const struct json_doc *d, uint32_t node,
                        const struct image_config *config)
{
    struct golden_case *c = &g->cases[n];
    uint32_t spans = json_get(d, node, "image_spans"), described = json_get(d, node, "spans"),
             tiles = json_get(d, node, "tiles");
    c->image_count = json_count(d, spans);
    if (c->image_count > GOLDEN_IMAGES_MAX || (c->image_count && !config)) die(g->dir, "images");
    if (described != JSON_NONE) {
        load_spans(g, n, d, described, config);
        return;
    }
    for (uint32_t i = 0; i < c->image_count; i++) {
        uint64_t begin, end, image = i, tile = 0;
        uint32_t span = json_at(d, spans, i), from = json_at(d, tiles, i);
        if (!json_uint(d, json_at(d, span, 0), &begin) || !json_uint(d, json_at(d, span, 1), &end))
            die(g->dir, "image_spans");
        if (tiles != JSON_NONE &&
            (!json_uint(d, json_at(d, from, 0), &image) || !json_uint(d, json_at(d, from, 1), &tile)))
            die(g->dir, "tiles");
        c->images[i] =
            (struct mini_image){.begin = (uint32_t)begin,
                                .end = (uint32_t)end,
                                .pixels = load_still(g, n, (uint32_t)image, (uint32_t)tile, config)};
        const struct stf_tensor *values = find(g, "image#.pixel_values", n, i, STF_F32, tiles == JSON_NONE);
        if (values) c->pixel_values[i] = keep(c, values, 0);
    }
}

const float *golden_row(const struct golden_case *c, const float *logprobs, uint32_t row)
{
    for (uint32_t i = 0; i < c->row_count && logprobs; i++)
        if (c->rows[i] == row) return logprobs + (size_t)i * c->vocab;
    return NULL;
}

/* Which rows the log-probs are of, and what there is only where not all are stored. */
static void load_rows(struct golden *g, uint32_t n, const struct stf_tensor *lp)
{
    struct golden_case *c = &g->cases[n];
    uint32_t total = c->prompt_count + c->greedy_count;
    const struct stf_tensor *rows = find(g, "rows", n, 0, STF_I32, false),
                            *follow = find(g, "follow", n, 0, STF_F32, rows != NULL),
                            *positions = find(g, "positions", n, 0, STF_I32, rows != NULL);
    c->row_count = (uint32_t)lp->shape[0];
    if (rows) {
        if (rows->shape[0] != c->row_count || follow->shape[0] != total - 1 || positions->shape[1] != total)
            die(c->name, "rows");
        c->rows = keep(c, rows, 0);
        c->follow = keep(c, follow, 0);
        c->positions = keep(c, positions, 0);
        const struct stf_tensor *delta = find(g, "bf16_delta", n, 0, STF_F32, c->logprobs_bf16 != NULL);
        if (delta) c->bf16_delta = keep(c, delta, 0);
        return;
    }
    if (c->row_count != total) die(c->name, "rows of logprobs");
    uint32_t *all = calloc(total, sizeof *all);
    for (uint32_t i = 0; i < total; i++) all[i] = i;
    c->rows = c->owned[c->owned_count++] = all;
}

void golden_open(struct golden *g, const char *family, const char *variant, const struct image_config *config)
{
    char path[640];
    struct err err;
    struct json_doc d;
    *g = (struct golden){0};
    golden_dir(g->dir, sizeof g->dir, family, variant);
    snprintf(path, sizeof path, "%s/golden.safetensors", g->dir);
    if (stf_open_file(path, &g->files, &err)) die(path, err.msg);
    snprintf(path, sizeof path, "%s/golden.json", g->dir);
    if (json_doc_load(path, 1u << 24, &d, &err)) die(path, err.msg);
    uint32_t list = json_get(&d, 0, "cases");
    g->case_count = json_count(&d, list);
    g->cases = calloc(g->case_count + 1, sizeof *g->cases);
    if (!g->case_count) die(path, "no cases");
    for (uint32_t n = 0; n < g->case_count; n++) {
        struct golden_case *c = &g->cases[n];
        snprintf(c->name, sizeof c->name, "%s/case%u", variant, n);
        const struct stf_tensor *prompt = find(g, "prompt_ids", n, 0, STF_I32, true),
                                *greedy = find(g, "greedy_ids", n, 0, STF_I32, true);
        const struct stf_tensor *lp = find(g, "logprobs", n, 0, STF_F32, true),
                                *low = find(g, "logprobs_bf16", n, 0, STF_F32, false);
        c->prompt_count = (uint32_t)prompt->shape[0];
        c->greedy_count = (uint32_t)greedy->shape[0];
        c->vocab = (uint32_t)lp->shape[1];
        c->prompt = keep(c, prompt, 0);
        c->greedy = keep(c, greedy, sizeof(uint32_t));
        c->logprobs = keep(c, lp, 0);
        if (low) c->logprobs_bf16 = keep(c, low, 0);
        load_rows(g, n, lp);
        c->gaps = keep(c, find(g, "gaps", n, 0, STF_F32, true), 0);
        load_images(g, n, &d, json_at(&d, list, n), config);
    }
    json_free(&d);
}

void golden_close(struct golden *g)
{
    for (uint32_t n = 0; n < g->case_count; n++) {
        struct golden_case *c = &g->cases[n];
        for (uint32_t i = 0; i < c->owned_count; i++) free(c->owned[i]);
        for (uint32_t i = 0; i < c->image_count; i++) free(c->images[i].pixels.rgb);
    }
    free(g->cases);
    stf_close(g->files);
}
