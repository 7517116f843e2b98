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

uint32_t golden_variants(const char *family, char names[][64], uint32_t max)
{
    char path[512];
    uint32_t n = 0;
    snprintf(path, sizeof path, "%s/tests/golden/%s", golden_root(), family);
    DIR *d = opendir(path);
    if (!d) die(path, "no golden folder");
    for (struct dirent *e; (e = readdir(d)) && n < max;) {
        if (e->d_name[0] == '.' || strlen(e->d_name) >= 64) continue;
        char probe[900];
        snprintf(probe, sizeof probe, "%s/%s/golden.safetensors", path, e->d_name);
        FILE *f = fopen(probe, "rb");
        if (!f) continue;
        fclose(f);
        memcpy(names[n++], e->d_name, strlen(e->d_name) + 1);
    }
    closedir(d);
    qsort(names, n, 64, by_text);
    return n;
}

static const struct stf_tensor *find(const struct golden *g, const char *fmt, uint32_t c, uint32_t i, enum stf_dtype dtype,
                                     bool must)
{
    char name[64];
    int n = snprintf(name, sizeof name, "case%u.", c);
    if (strchr(fmt, '#'))
        snprintf(name + n, sizeof name - (size_t)n, "image%u%s", i, strchr(fmt, '#') + 1);
    else
        snprintf(name + n, sizeof name - (size_t)n, "%s", fmt);
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

static void load_images(struct golden *g, uint32_t n, const struct json_doc *d, uint32_t node, const struct image_config *config)
{
    struct golden_case *c = &g->cases[n];
    uint32_t spans = json_get(d, node, "image_spans");
    struct err err;
    c->image_count = json_count(d, spans);
    if (c->image_count > GOLDEN_IMAGES_MAX || (c->image_count && !config)) die(g->dir, "images");
    for (uint32_t i = 0; i < c->image_count; i++) {
        uint64_t begin, end;
        uint32_t span = json_at(d, spans, i);
        if (!json_uint(d, json_at(d, span, 0), &begin) || !json_uint(d, json_at(d, span, 1), &end)) die(g->dir, "image_spans");
        const struct stf_tensor *rgb = find(g, "#.rgb", n, i, STF_U8, true);
        struct image_u8 src = {(uint32_t)rgb->shape[1], (uint32_t)rgb->shape[0], malloc((size_t)rgb->bytes)};
        memcpy(src.rgb, rgb->data, (size_t)rgb->bytes);
        struct image_prepared p;
        if (image_prep(config, &src, &p, &err)) die(g->dir, err.msg);
        c->images[i] = (struct mini_image){(uint32_t)begin, (uint32_t)end, p.images[0]};
        p.images[0].rgb = NULL; /* taken */
        image_prepared_free(&p);
        free(src.rgb);
        c->pixel_values[i] = keep(c, find(g, "#.pixel_values", n, i, STF_F32, true), 0);
    }
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
        if (lp->shape[0] != c->prompt_count + c->greedy_count) die(c->name, "rows of logprobs");
        c->prompt = keep(c, prompt, 0);
        c->greedy = keep(c, greedy, sizeof(uint32_t));
        c->logprobs = keep(c, lp, 0);
        if (low) c->logprobs_bf16 = keep(c, low, 0);
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
