/* `kvasir inspect`: describes a checkpoint as text, from configuration and headers only; and the machine's
 * devices. */
#include "engine/internal.h"

#include "config/base/buf.h"
#include "config/base/file.h"
#include "config/base/json.h"
#include "config/gguf/gguf.h"
#include "config/hf/reader.h"
#include "kernels/cuda_loader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB(x) ((double)(x) / 1048576.0)

static bool same_layer(const struct desc_layer *a, const struct desc_layer *b)
{
    return a->mixer == b->mixer && a->gated == b->gated && a->heads == b->heads &&
           a->kv_heads == b->kv_heads && a->head_dim == b->head_dim && a->window == b->window &&
           a->rope == b->rope && a->ff == b->ff && a->experts == b->experts &&
           a->experts_used == b->experts_used && a->v_from_k == b->v_from_k;
}

static enum status say_layers(struct buf *b, const struct engine *e)
{
    const struct model_desc *d = &e->net.desc;
    enum status st = buf_adds(b, "layers\n");
    for (uint32_t n = 0; n < d->layer_count && !st;) {
        const struct desc_layer *l = &d->layers[n];
        uint32_t end = n + 1;
        while (end < d->layer_count && same_layer(&d->layers[end], l) &&
               (d->layers[end].kv_owner == end) == (l->kv_owner == n) &&
               (l->kv_owner == n || d->layers[end].kv_owner == l->kv_owner))
            end++;
        char which[32], kind[48], mlp[80];
        snprintf(which, sizeof which, end - n > 1 ? "%u-%u" : "%u", n, end - 1);
        snprintf(kind, sizeof kind, l->window ? "sliding(%u)" : "full", l->window);
        if (l->experts)
            snprintf(mlp, sizeof mlp, "%u of %u experts of %u", l->experts_used, l->experts, l->ff);
        if (l->shared_ff)
            snprintf(mlp + strlen(mlp), sizeof mlp - strlen(mlp), " + shared MLP %u", l->shared_ff);
        if (!l->experts) snprintf(mlp, sizeof mlp, "MLP %u", l->ff);
        if (l->mixer == MIXER_DELTA) {
            const struct desc_delta *g = &d->delta;
            st = buf_addf(b, "  %-8s %-16s %u heads of %u, %u key heads of %u, convolution of %u, %s\n",
                          which, "gated delta net", g->value_heads, g->value_dim, g->key_heads, g->key_dim,
                          g->conv_k, mlp);
            n = end;
            continue;
        }
        if (l->mixer == MIXER_CONV) {
            st = buf_addf(b, "  %-8s %-16s of %u, %s\n", which, "gated short convolution", d->delta.conv_k,
                          mlp);
            n = end;
            continue;
        }
        st = buf_addf(b, "  %-8s %-16s %u heads, %u KV heads of %u, scale %.6g, RoPE theta %g / %g, %s",
                      which, kind, l->heads, l->kv_heads, l->head_dim, (double)l->scale,
                      d->ropes[l->rope].theta, d->ropes[l->rope].factor, mlp);
        uint32_t turning = d->ropes[l->rope].dim / 2 - d->ropes[l->rope].unrotated_pairs;
        if (!st && turning < l->head_dim / 2)
            st = buf_addf(b, ", RoPE rotates %u of %u pairs", turning, l->head_dim / 2);
        if (!st && l->gated) st = buf_adds(b, ", output gate");
        if (!st && l->v_from_k) st = buf_adds(b, ", values are keys");
        if (!st && l->kv_owner != n) st = buf_addf(b, ", keys of layer %u", l->kv_owner);
        if (!st) st = buf_adds(b, "\n");
        n = end;
    }
    for (uint32_t i = 0; i < d->rope_count && !st; i++) {
        const struct desc_rope *r = &d->ropes[i];
        if (r->ramp)
            st = buf_addf(b, "%-10s factor %g over %g positions, ramp %g to %g rotations, attention %.6g\n",
                          r->ramp == RAMP_YARN ? "YaRN" : "llama3", r->factor, r->original, r->beta_fast,
                          r->beta_slow, r->attention);
        if (!st && r->sections[0])
            st = buf_addf(b, "mRoPE      %u + %u + %u frequencies, %s\n", r->sections[0], r->sections[1],
                          r->sections[2], r->interleaved ? "interleaved" : "one after the other");
    }
    return st;
}

/* Active parameters of a token: all except those of experts that are not selected. */
static uint64_t active_parameters(const struct engine *e)
{
    uint64_t n = e->net.inventory.parameters;
    for (uint32_t i = 0; i < e->net.desc.layer_count; i++) {
        const struct desc_layer *l = &e->net.desc.layers[i];
        n -= (uint64_t)(l->experts - l->experts_used) * 3 * e->net.desc.hidden * l->ff;
    }
    return n;
}

static enum status say_kv(struct buf *b, const struct engine *e)
{
    enum status st = buf_addf(b, "KV groups (%s; blocks of %u tokens)\n", e->info.kv_dtype, BE_BLOCK_TOKENS);
    for (uint32_t g = 0; g < e->kv.group_count && !st; g++) {
        const struct engine_kv_group *k = &e->kv.groups[g];
        char kind[48];
        if (k->recurrent) {
            st = buf_addf(b, "  %u        %-16s %u layers, %llu bytes per sequence\n", g, "recurrent",
                          k->layers, (unsigned long long)k->block_bytes);
            continue;
        }
        snprintf(kind, sizeof kind, k->window ? "sliding(%u)" : "full", k->window);
        st = buf_addf(b, "  %u        %-16s %u layers, %llu bytes per token, %llu per block\n", g, kind,
                      k->layers, (unsigned long long)k->bytes_per_token, (unsigned long long)k->block_bytes);
    }
    return st;
}

static enum status say_tower(struct buf *b, const struct engine *e)
{
    const struct desc_vision *v = &e->net.desc.vision;
    const struct image_config *c = &e->info.image.config;
    uint32_t unit = v->patch * v->merge, full = 0;
    enum status st = buf_addf(b,
                              "vision     multiples of %u pixels, %llu to %llu pixels in all, patches of %u, "
                              "%u layers of %u, %u heads, MLP %u\n",
                              unit, (unsigned long long)c->area_min, (unsigned long long)c->area_max,
                              v->patch, v->layers, v->hidden, v->heads, v->ff);
    if (!st && v->clip) st = buf_adds(b, "           inputs and outputs of its products are clipped\n");
    if (!st)
        st = buf_addf(b, "           %u x %u patches per token (placeholder id %u)", v->merge, v->merge,
                      e->info.image.placeholder_id);
    for (uint32_t n = 0; n < v->layers; n++) full += v->full_layers[n / 8] >> n % 8 & 1;
    if (!st && v->window)
        st = buf_addf(b, ", windows of %u x %u tokens in %u layers", v->window, v->window, v->layers - full);
    if (!st && v->position_side) st = buf_addf(b, ", positions %u x %u", v->position_side, v->position_side);
    for (uint32_t i = 0; i < v->deepstack_count && !st; i++)
        st = buf_addf(b, "%s%u", i ? ", " : ", DeepStack after layers ", v->deepstack[i]);
    if (!st && e->info.image.video_marker)
        st = buf_addf(b, ", videos (placeholder id %u)", e->info.image.video_placeholder_id);
    return st ? st : buf_adds(b, "\n");
}

static enum status say_vision(struct buf *b, const struct engine *e)
{
    const struct desc_vision *v = &e->net.desc.vision;
    if (!e->net.desc.has_vision) return buf_adds(b, "vision     none\n");
    if (!v->image_size) return say_tower(b, e);
    return buf_addf(b,
                    "vision     %u x %u pixels, patches of %u, %u layers of %u, %u heads, %u tokens per "
                    "image (placeholder id %u)%s\n",
                    v->image_size, v->image_size, v->patch, v->layers, v->hidden, v->heads, v->tokens,
                    e->info.image.placeholder_id, e->info.image.config.pan_and_scan ? ", pan and scan" : "");
}

static enum status say_plan(struct buf *b, const struct engine *e)
{
    const struct engine_plan *p = &e->plan;
    return buf_addf(b,
                    "memory     %.1f MiB free: weights %.1f, working memory %.1f and of the vision tower "
                    "%.1f, adapters %.1f, "
                    "KV %.1f MiB (%.1f would hold %u sequences of %u tokens)\n"
                    "step       at most %u tokens of %u sequences%s\n",
                    MIB(p->available), MIB(p->weight_bytes), MIB(p->scratch_bytes), MIB(p->vision_bytes),
                    MIB(p->adapter_bytes), MIB(p->kv_bytes), MIB(p->kv_needed), p->sequences_max,
                    p->context_max, p->batch_tokens_max, p->sequences_max,
                    e->net.desc.image.rule == SPAN_PREFIX_LM ? ", prompts as a whole" : "");
}

/* Whose matrix products, by a check of each weight shape on the device. */
static enum status say_gemm(struct buf *b, const struct engine *e)
{
    static const float none;
    struct be_caps caps = e->becaps;
    for (uint32_t i = 0; i < e->net.inventory.shape_count && caps.gemm; i++) {
        const struct weight_shape *s = &e->net.inventory.shapes[i];
        uint32_t parts = s->glu ? 2 : 1, n = s->n / parts;
        struct be_weight_desc d = {.k = s->k,
                                   .src_count = parts,
                                   .src = {{.n = n}, {.n = n}},
                                   .glu = s->glu,
                                   .bias = s->bias ? &none : NULL};
        struct be_weight *w;
        if (e->ops->weight_pack(e->be, &d, &w) == BE_OK) e->ops->weight_free(e->be, w);
        e->ops->caps(e->be, &caps);
    }
    return caps.gemm ? buf_addf(b, "gemm       %s\n", caps.gemm) : ST_OK;
}

static enum status say_all(struct buf *b, const struct engine *e)
{
    const struct model_desc *d = &e->net.desc;
    char eos[MODEL_EOS_MAX * 12] = "";
    size_t at = 0;
    for (uint32_t i = 0; i < e->info.eos_count; i++) {
        int n = snprintf(eos + at, sizeof eos - at, "%s%u", i ? ", " : "", e->info.eos_ids[i]);
        if (n > 0 && (size_t)n < sizeof eos - at) at += (size_t)n;
    }
    enum status st =
        buf_addf(b,
                 "family     %s\nbackend    %s (%s), computing in %s\nweights    %llu "
                 "parameters stored as %s, %.1f MiB in the files\n"
                 "width      %u, vocabulary %u (output head %s the embedding), context %u\nstop ids   %s\n",
                 e->model_type, e->backend_name, e->device, e->info.dtype,
                 (unsigned long long)e->net.inventory.parameters,
                 e->net.inventory.quant_types[0] ? e->net.inventory.quant_types
                 : d->packing.method[0]          ? d->packing.method
                                                 : stf_dtype_name(e->net.inventory.stored),
                 MIB(e->net.inventory.read_bytes), d->hidden, d->vocab,
                 d->tied ? "shared with" : "separate from", e->plan.context_max, at ? eos : "none");
    if (!st) st = say_gemm(b, e);
    if (!st && active_parameters(e) != e->net.inventory.parameters)
        st = buf_addf(b, "active     %llu parameters per token\n", (unsigned long long)active_parameters(e));
    if (!st && e->net.inventory.ignored)
        st = buf_addf(b, "unused     %u tensors: %s%s\n", e->net.inventory.ignored,
                      e->net.inventory.ignored_names, e->net.inventory.ignored > 3 ? ", ..." : "");
    if (!st && d->ple) st = buf_addf(b, "by token   %u inputs of each layer, read from the file\n", d->ple);
    if (!st) st = say_vision(b, e);
    if (!st) st = say_layers(b, e);
    if (!st) st = say_kv(b, e);
    return st ? st : say_plan(b, e);
}

/* Bytes of the weights, by the index of a directory that doesn't hold them; 0: unknown. */
static uint64_t indexed_bytes(const char *dir)
{
    struct json_doc doc = {0};
    struct err ignored;
    char *path;
    uint64_t bytes = 0;
    if (!json_load(dir, "model.safetensors.index.json", HF_FILE_BYTES_MAX, &doc, &path, &ignored))
        (void)json_uint(&doc, json_get_live(&doc, json_get_live(&doc, 0, "metadata"), "total_size"), &bytes);
    json_free(&doc);
    free(path);
    return bytes;
}

static enum status say_served(struct buf *b, const struct engine *e, const char *lacking)
{
    const struct model_retrieval *r = &e->net.desc.retrieval;
    return buf_addf(b, "served     yes%s%s%s%s\n",
                    r->vectors            ? ", for multi-vector embeddings"
                    : e->net.desc.encoder ? ", for embeddings"
                    : *r->classifier      ? ", by /classify, /v1/rerank and /v1/score: "
                                          : "",
                    r->classifier, *lacking ? ", by config.json; " : "", lacking);
}

/* Whether the directory has no weights, or not all of them; then `lacking` says so. */
static bool lacks_weights(const char *dir, struct err *lacking)
{
    struct stf_files *files = NULL;
    char *index = file_join(dir, "model.safetensors.index.json");
    bool lacks = !gguf_is(dir) && stf_open(dir, &files, lacking) == ST_NOT_FOUND;
    bool listed = index && access(index, F_OK) == 0;
    if (!lacks) *lacking->msg = '\0';
    else if (!listed) (void)err_set(lacking, ST_NOT_FOUND, "the directory has no weights");
    stf_close(files);
    free(index);
    return lacks;
}

/* engine__prepare, by config.json alone if the weights are not there (lacking->msg says so). */
static enum status prepare(const struct engine_options *opt, struct engine **e, struct stf_files **files,
                           struct err *lacking, struct err *err)
{
    struct engine_options bare = *opt;
    *e = calloc(1, sizeof **e);
    if (!*e) return err_nomem(err, NULL);
    enum status st = engine__prepare(opt, *e, files, err);
    if (st != ST_NOT_FOUND || opt->random_weights || !lacks_weights(opt->model_dir, lacking)) return st;
    engine_close(*e);
    *e = calloc(1, sizeof **e);
    if (!*e) return err_nomem(err, NULL);
    bare.random_weights = true;
    bare.weight_bytes = indexed_bytes(opt->model_dir);
    return engine__prepare(&bare, *e, files, err);
}

enum status adapter_inspect(const struct engine_options *opt, const char *path, struct adapter_info *out,
                            struct err *err)
{
    struct stf_files *files = NULL;
    struct engine *e;
    struct err lacking;
    enum status st = prepare(opt, &e, &files, &lacking, err);
    if (!st || (st == ST_NOMEM && e && e->plan.kv_needed)) st = adapter_check(e, path, out, err);
    stf_close(files);
    engine_close(e);
    return st;
}

enum status engine_inspect(const struct engine_options *opt, char *text, size_t cap,
                           struct engine_inspected *out, struct err *err)
{
    struct stf_files *files = NULL;
    struct buf b;
    buf_init(&b, cap > 0 ? cap - 1 : 0);
    struct engine *e;
    if (cap) *text = '\0';
    *out = (struct engine_inspected){.hidden_size = 0};
    enum status st = prepare(opt, &e, &files, &out->lacking, err);
    if (!e) return st;
    bool full = st == ST_NOMEM && e->plan.kv_needed;
    out->retrieval = e->net.desc.retrieval;
    out->hidden_size = e->net.desc.hidden;
    out->vision = e->net.desc.has_vision;
    out->fixed_bytes =
        e->plan.weight_bytes + e->plan.vision_bytes + e->plan.draft_bytes + e->plan.scratch_bytes;
    out->kv_needed = e->plan.kv_needed;
    out->available = e->plan.available;
    if (!st || full) {
        enum status said = say_served(&b, e, out->lacking.msg);
        if (!said) said = say_all(&b, e);
        if (said) st = err_set(err, said, "the description doesn't fit into %zu bytes", cap);
        else memcpy(text, b.data, b.len + 1);
    }
    buf_fini(&b);
    stf_close(files);
    engine_close(e);
    return st;
}

/* ---- devices ---- */

static enum status say_cpu(struct buf *b)
{
    static const char *const sets[] = {"amx", "avx512", "avx2", "neon", "reference"};
    const struct be_ops *ops = be_cpu_ops();
    struct backend *be = NULL;
    struct be_caps caps;
    if (ops->open(&(struct be_params){.act = BE_F32}, &be) != BE_OK)
        return buf_adds(b, "CPU        can't be opened\n");
    ops->caps(be, &caps);
    enum status st = buf_addf(b, "CPU        %s, kernel sets:", caps.device);
    for (size_t i = 0; i < sizeof sets / sizeof *sets && !st; i++)
        if (be_cpu_has(sets[i])) st = buf_addf(b, " %s", sets[i]);
    ops->close(be);
    return st ? st : buf_adds(b, "\n");
}

enum status engine_devices(char *text, size_t cap, struct err *err)
{
    struct be_cuda_device gpus[16];
    char version[96], why[512] = "";
    struct buf b;
    buf_init(&b, cap > 0 ? cap - 1 : 0);
    uint32_t n = be_cuda_devices(gpus, 16, version, why, sizeof why);
    enum status st = say_cpu(&b);
    for (uint32_t i = 0; i < n && !st; i++)
        st = buf_addf(
            &b, "GPU %-6u %s, compute capability %u.%u, %u multiprocessors, %zu of %zu MiB free%s\n", i,
            gpus[i].name, gpus[i].major, gpus[i].minor, gpus[i].multiprocessors, gpus[i].memory_free >> 20,
            gpus[i].memory_total >> 20, i == 0 ? " (--backend auto and cuda use this one)" : "");
    if (!n && !st) st = buf_addf(&b, "GPU        none: %s\n", why);
    if (version[0] && !st) st = buf_addf(&b, "CUDA       %s\n", version + strlen("CUDA "));
    if (st) st = err_set(err, st, "the description doesn't fit into %zu bytes", cap);
    else memcpy(text, b.data, b.len + 1);
    buf_fini(&b);
    return st;
}
