/* Opening a checkpoint, and the small calls of engine.h. See engine/step.c for a step, engine/plan.c for
 * memory. Engine thread.
 */
#include "engine/internal.h"

#include "config/base/assert.h"
#include "config/base/env.h"
#include "config/base/log.h"
#include "config/hf/reader.h"
#include "engine/families/families.h"
#include "engine/prompt/image_prep.h"
#include "kernels/cuda_loader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Part of the fingerprint: incremented when the engine's arithmetic changes for the same kernel set. */
#define NUMERICS_REVISION 5u

struct engine_options engine_options_from(const struct options *o, const char *model_dir)
{
    bool drafts = o->draft_tokens > 0;
    return (struct engine_options){.model_dir = model_dir,
                                   .mmproj = o->mmproj,
                                   .draft_dir = drafts ? o->draft_model : NULL,
                                   .own_drafter = drafts,
                                   .backend = o->backend,
                                   .kernels = option_word("cpu-kernels", o->cpu_kernels),
                                   .threads = (uint32_t)o->threads,
                                   .dtype = o->dtype,
                                   .gemm = o->gemm == GEMM_AUTO ? GEMM_CUBLAS : o->gemm,
                                   .quantize = o->quantize,
                                   .float_vision = !o->quantize_vision,
                                   .kv_dtype = o->kv_dtype,
                                   .kv_bytes = o->kv_memory == OPTION_AUTO ? 0 : o->kv_memory,
                                   .context_max = (uint32_t)o->max_context,
                                   .batch_tokens_max = (uint32_t)o->max_batch_tokens,
                                   .sequences_max = (uint32_t)o->max_sequences};
}

static enum status pick_ops(const struct engine_options *opt, const struct be_ops **out, struct err *err)
{
    char why[512];
    bool set_named = opt->kernels && strcmp(opt->kernels, "auto") != 0; /* it names a CPU kernel set */
    *out = be_cpu_ops();
    if (opt->backend == BACKEND_CPU || (opt->backend == BACKEND_AUTO && set_named)) return ST_OK;
    const struct be_ops *cuda = be_cuda_load(why, sizeof why);
    if (cuda) *out = cuda;
    else if (opt->backend == BACKEND_CUDA) return err_set(err, ST_UNSUPPORTED, "backend cuda: %s", why);
    else if (access("/dev/nvidiactl", F_OK) == 0) log_info("running on the CPU: %s", why);
    return ST_OK;
}

/* The compute type: the option's, else the checkpoint's (f16 overflows in this arithmetic: it runs as
 * bf16). */
static enum status pick_dtype(const struct engine_options *opt, const struct model_desc *d,
                              const struct stf_files *files, enum be_dtype *out, struct err *err)
{
    if (opt->dtype) *out = opt->dtype == DTYPE_F32 ? BE_F32 : BE_BF16;
    else if (opt->random_weights) *out = BE_BF16;
    else {
        struct weights_inventory s;
        enum status st = weights_inventory(files, d, (struct weight_format){.act = BE_F32}, &s, err);
        if (st) return st;
        *out = s.stored == STF_F32 ? BE_F32 : BE_BF16;
        weights_inventory_free(&s);
    }
    return ST_OK;
}

struct weight_format engine__weight_format(const struct engine *e)
{
    return (struct weight_format){.act = e->plan.act,
                                  .quants = e->becaps.quants,
                                  .quantize = e->plan.quantize,
                                  .float_vision = e->plan.float_vision};
}

static enum status pick_kv_type(const struct engine_options *opt, enum be_dtype act, enum be_kv_type *out,
                                struct err *err)
{
    *out = opt->kv_dtype == KV_DTYPE_INT8 ? BE_KV_INT8 : BE_KV_ACT;
    if (opt->kv_dtype == KV_DTYPE_BF16 && act != BE_BF16)
        return err_set(err, ST_INVALID,
                       "kv-dtype bf16: the model is computed in f32, so that keys and values are "
                       "f32 (auto) or int8; or add --dtype bf16");
    return ST_OK;
}

static enum status open_backend(const struct engine_options *opt, struct engine *e, struct err *err)
{
    const char *set = opt->kernels ? opt->kernels : "auto";
    const char *hopper = env_get("KVASIR_CUDA_HOPPER"),
               *gemm = opt->gemm ? option_word("gemm", opt->gemm) : env_get("KVASIR_GEMM");
    struct be_params params = {.act = e->plan.act,
                               .threads = opt->threads,
                               .kernels = set,
                               .own_gemm = gemm && strcmp(gemm, "own") == 0,
                               .hopper = hopper && strcmp(hopper, "1") == 0};
    enum be_result r = e->ops->open(&params, &e->be);
    e->params = params;
    if (r != BE_OK && e->ops != be_cpu_ops()) {
        const char *why = e->ops->last_error(NULL); /* cuda_loader.h */
        if (opt->backend == BACKEND_CUDA)
            return err_set(err, r == BE_NOMEM ? ST_NOMEM : ST_DEVICE, "backend cuda: %s", why);
        log_warn("running on the CPU: the GPU can't be opened: %s", why);
        e->ops = be_cpu_ops();
        r = e->ops->open(&params, &e->be);
    }
    if (r == BE_UNSUPPORTED)
        return opt->threads
                   ? err_set(err, ST_UNSUPPORTED,
                             "kernel set %s with %u threads: this machine doesn't have it", set, opt->threads)
                   : err_set(err, ST_UNSUPPORTED,
                             "kernel set %s: this CPU doesn't have it (kvasir inspect --devices lists those "
                             "that it has)",
                             set);
    if (r == BE_NOMEM) return err_nomem(err, "the compute threads");
    if (r != BE_OK) return err_set(err, ST_DEVICE, "the backend can't be opened");
    e->ops->caps(e->be, &e->becaps);
    snprintf(e->device, sizeof e->device, "%s", e->becaps.device);
    snprintf(e->backend_name, sizeof e->backend_name, "%s", e->becaps.name);
    return ST_OK;
}

static void add_eos(struct model_info *m, uint32_t id)
{
    for (uint32_t i = 0; i < m->eos_count; i++)
        if (m->eos_ids[i] == id) return;
    if (m->eos_count < MODEL_EOS_MAX) m->eos_ids[m->eos_count++] = id;
}

/* Special ids and defaults: both files' stop ids count. */
static enum status fill_info(const struct engine_options *opt, struct engine *e, struct err *err)
{
    struct model_info *m = &e->info;
    const struct model_desc *d = &e->net.desc;
    *m = (struct model_info){.family = e->model_type,
                             .dir = e->dir,
                             .dtype = e->plan.act == BE_F32 ? "f32" : "bf16",
                             .kv_dtype = e->plan.kv_type == BE_KV_INT8 ? "int8"
                                         : e->plan.act == BE_F32       ? "f32"
                                                                       : "bf16",
                             .backend = e->backend_name,
                             .parameters = e->net.inventory.parameters,
                             .weight_bytes = e->net.inventory.memory_bytes,
                             .vocab_size = d->vocab,
                             .bos_id = d->bos_id};
    snprintf(m->weights, sizeof m->weights, "%s",
             e->net.inventory.quant_types[0] ? e->net.inventory.quant_types
             : e->plan.quantize              ? option_word("quantize", opt->quantize)
                                             : m->dtype);
    enum status st = family_load_generation(e->dir, &m->generation, err);
    if (st) return st;
    for (uint32_t i = 0; i < m->generation.eos_count; i++) add_eos(m, m->generation.eos_ids[i]);
    for (uint32_t i = 0; i < d->eos_count; i++) add_eos(m, d->eos_ids[i]);
    m->image = d->image;
    m->retrieval = d->retrieval;
    m->encoder = d->encoder;
    if (!d->has_vision) return ST_OK;
    if (opt->random_weights) {
        uint32_t side = d->vision.image_size; /* 0: any */
        m->image.config = (struct image_config){.width = side,
                                                .height = side,
                                                .filter = side ? IMAGE_BILINEAR : IMAGE_BICUBIC,
                                                .do_resize = true,
                                                .do_rescale = true,
                                                .do_normalize = true,
                                                .rescale_factor = 1.0 / 255,
                                                .mean = {0.5f, 0.5f, 0.5f},
                                                .std = {0.5f, 0.5f, 0.5f},
                                                .dynamic = !side,
                                                .patch = d->vision.patch,
                                                .merge = d->vision.merge,
                                                .depth = d->vision.depth,
                                                .area_min = 65536,
                                                .area_max = 16777216};
        return ST_OK;
    }
    st = family_load_images(e->dir, opt->mmproj, e->model_type, &m->image.config, err);
    m->image.config.places = d->vision.position_axis;
    if (!st && !d->vision.image_size) {
        const struct image_config *c = &m->image.config;
        bool patches = d->vision.end == VISION_EMBED
                           ? c->patch * c->merge == d->vision.patch
                           : c->patch == d->vision.patch && c->merge == d->vision.merge;
        if (!c->dynamic || !patches || c->depth != d->vision.depth)
            st = err_set(err, ST_FORMAT,
                         "%s: the image processor makes patches of %u pixels, %u x %u to a token, %u frames "
                         "deep; the vision "
                         "tower takes %u, %u x %u, %u",
                         e->dir, c->patch, c->merge, c->merge, c->depth, d->vision.patch, d->vision.merge,
                         d->vision.merge, d->vision.depth);
        return st;
    }
    if (!st &&
        (m->image.config.width != d->vision.image_size || m->image.config.height != d->vision.image_size))
        st = err_set(err, ST_FORMAT,
                     "%s: the image processor makes %u x %u pixels, the vision tower takes %u x %u", e->dir,
                     m->image.config.width, m->image.config.height, d->vision.image_size,
                     d->vision.image_size);
    return st;
}

enum status engine__prepare(const struct engine_options *opt, struct engine *e, struct stf_files **files,
                            struct err *err)
{
    struct hf_config *config = calloc(1, sizeof *config);
    pthread_mutex_init(&e->adapters.lock, NULL);
    e->dir = strdup(opt->model_dir ? opt->model_dir : "");
    enum status st = config && e->dir ? ST_OK : err_nomem(err, NULL);
    if (!st) st = pick_ops(opt, &e->ops, err);
    if (!st) st = family_load(e->dir, opt->mmproj, config, &e->net.desc, err);
    if (!st) family_resolve(e->dir, config, &e->net.desc);
    if (!st && !(e->model_type = strdup(config->model_type))) st = err_nomem(err, NULL);
    if (!st && e->net.desc.drafts_for)
        st = err_set(err, ST_UNSUPPORTED,
                     "%s: model_type \"%s\" only drafts for another model: give it with --draft-model",
                     e->dir, e->model_type);
    if (!st && !opt->random_weights) st = family_open(e->dir, opt->mmproj, files, err);
    if (!st) model_desc_resolve(&e->net.desc, *files);
    e->plan.quantize = opt->quantize;
    e->plan.float_vision = opt->float_vision;
    if (!st) {
        st = pick_dtype(opt, &e->net.desc, *files, &e->plan.act, err);
        if (!st) st = pick_kv_type(opt, e->plan.act, &e->plan.kv_type, err);
        if (st) (void)err_prefix(err, st, "%s", e->dir);
    }
    if (!st) st = open_backend(opt, e, err);
    if (!st &&
        (st = weights_inventory(*files, &e->net.desc, engine__weight_format(e), &e->net.inventory, err)))
        (void)err_prefix(err, st, "%s", e->dir);
    const struct desc_packing *packing = &e->net.desc.packing; /* FP8 becomes the compute type */
    if (opt->weight_bytes && (packing->bits || !*packing->method))
        e->net.inventory.memory_bytes = opt->weight_bytes;
    if (opt->random_weights && *packing->method)
        e->net.inventory.read_bytes = opt->weight_bytes ? opt->weight_bytes : e->net.inventory.memory_bytes;
    if (!st && opt->profile) st = profile_open(e, err);
    if (!st && e->plan.quantize && !e->net.inventory.made_quants) {
        if (e->becaps.quants)
            log_warn("--quantize %s has no effect: quantized weights (GGUF, AWQ, ...) keep their type",
                     option_word("quantize", opt->quantize));
        else
            log_warn("--quantize %s has no effect: %s has no integer products",
                     option_word("quantize", opt->quantize), e->backend_name);
        e->plan.quantize = QUANTIZE_NONE;
    }
    if (!st && !opt->draft_dir && opt->own_drafter)
        st = drafter_prepare_own(e, *files, engine__weight_format(e), err);
    if (!st && opt->draft_dir) st = drafter_prepare(e, opt->draft_dir, opt->random_weights, err);
    if (!st) st = fill_info(opt, e, err);
    if (!st) st = engine__plan(opt, e, err);
    free(config);
    return st;
}

/* sqrt(hidden) is rounded to the type of the embedding before it multiplies: in bf16 4B has 50.5, not 50.596.
 * With --dtype f32 that type is f32 whatever is stored, as in transformers. */
static float rounded_scale(const struct engine *e, double scale)
{
    float s = (float)scale;
    enum stf_dtype stored = e->net.inventory.stored;
    if (e->plan.act == BE_F32) return s;
    return stored == STF_BF16 ? weights_round_bf16(s) : stored == STF_F16 ? weights_round_f16(s) : s;
}

static void set_fingerprint(struct engine *e, uint64_t identity)
{
    char text[640];
    e->ops->caps(e->be, &e->becaps); /* whose products: known after loading */
    e->info.gemm = e->becaps.gemm;
    e->info.revision = NUMERICS_REVISION;
    e->info.float_vision = e->plan.float_vision && e->net.desc.has_vision;
    e->info.kernels = e->kernels;
    snprintf(e->kernels, sizeof e->kernels, "%s%s", e->becaps.sums ? "cpu-" : "",
             e->becaps.sums ? e->becaps.sums : e->backend_name);
    snprintf(text, sizeof text, "%016llx %s %s %u %u%s%s%s%s", (unsigned long long)identity, e->info.dtype,
             e->kernels, e->info.revision, (unsigned)e->plan.quantize,
             e->info.float_vision ? " float-vision" : "", e->plan.kv_type ? " kv-" : "",
             e->plan.kv_type ? e->info.kv_dtype : "", e->info.gemm ? e->info.gemm : "");
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (const char *p = text; *p; p++) h = (h ^ (uint8_t)*p) * UINT64_C(0x100000001b3);
    h ^= h >> 32;
    snprintf(e->info.fingerprint, sizeof e->info.fingerprint, "fp_%010llx",
             (unsigned long long)(h & UINT64_C(0xffffffffff)));
}

enum status engine_open(const struct engine_options *opt, struct engine **out, struct err *err)
{
    struct stf_files *files = NULL;
    uint64_t identity = 0;
    struct engine *e = calloc(1, sizeof *e);
    if (!e) return err_nomem(err, NULL);
    enum status st = engine__prepare(opt, e, &files, err);
    if (!st && e->net.inventory.ignored)
        log_warn("%s: %u tensors are not used by this model: %s%s", e->dir, e->net.inventory.ignored,
                 e->net.inventory.ignored_names, e->net.inventory.ignored > 3 ? ", ..." : "");
    if (!st)
        st = weights_load(files, &e->net.desc, &e->net.inventory, engine__weight_format(e), e->ops, e->be,
                          (struct weights_progress){opt->progress, opt->progress_arg}, &e->net.w, &identity,
                          err);
    if (!st) {
        e->info.weight_bytes = weights_bytes(&e->net.w, &e->net.desc, e->ops, e->net.inventory.slab_floats);
        e->info.context_max = e->plan.context_max;
        e->net.token_scale = rounded_scale(e, e->net.desc.token_scale);
        e->net.embed_scale = e->net.desc.embed_scale_kept ? (float)e->net.desc.embed_scale
                                                          : rounded_scale(e, e->net.desc.embed_scale);
        set_fingerprint(e, identity);
        st = engine__alloc(e, err);
    }
    if (!st && e->draft.on)
        st = drafter_load(e, (struct weights_progress){opt->progress, opt->progress_arg}, err);
    if (!st && e->ops->sync(e->be) != BE_OK) st = err_set(err, ST_DEVICE, "%s", e->ops->last_error(e->be));
    if (!st) st = engine__graphs_open(e, err);
    weights_inventory_free(&e->net.inventory); /* its list points into the files, which are now closed */
    if (!st && e->net.desc.ple) e->files = files;
    else stf_close(files);
    if (st) engine_close(e);
    else *out = e;
    return st;
}

void engine_close(struct engine *e)
{
    if (!e) return;
    engine__release(e);
    free(e);
}

uint64_t engine_progress(const struct engine *e)
{
    return atomic_load_explicit(&e->progress, memory_order_relaxed);
}

void engine_caps(const struct engine *e, struct engine_caps *out)
{
    *out = (struct engine_caps){.group_count = e->kv.group_count,
                                .block_tokens = BE_BLOCK_TOKENS,
                                .arena_grains = e->arena_grains,
                                .grain_bytes = BE_KV_GRAIN,
                                .device_memory = !e->becaps.host_memory,
                                .vocab_size = e->net.desc.vocab,
                                .hidden_size = e->net.desc.hidden,
                                .context_max = e->plan.context_max,
                                .batch_tokens_max = e->plan.batch_tokens_max,
                                .sequences_max = e->plan.sequences_max,
                                .images = e->net.desc.has_vision,
                                .span_tokens_max = e->plan.span_tokens_max,
                                .image_tokens_max = engine__vision_tokens_max(e),
                                .drafts = e->draft.on,
                                .draft_rows_max = e->plan.draft_rows_max};
    for (uint32_t g = 0; g < e->kv.group_count; g++) out->groups[g] = e->kv.groups[g];
    _Static_assert(sizeof out->eos_ids == sizeof e->info.eos_ids, "all stop ids fit");
    memcpy(out->eos_ids, e->info.eos_ids, sizeof out->eos_ids);
    out->eos_count = e->info.eos_count;
}

const struct model_info *engine_model(const struct engine *e)
{
    return &e->info;
}

static char *block_at(const struct engine *e, uint32_t group, uint32_t block_offset)
{
    ASSERT_CMP(group, <, e->kv.group_count);
    ASSERT((uint64_t)block_offset + e->kv.groups[group].block_grains <= e->arena_grains);
    return (char *)e->arena + (size_t)block_offset * BE_KV_GRAIN;
}

static void clear_after(struct engine *e, uint32_t group, uint32_t block_offset, uint32_t tokens)
{
    if (tokens < BE_BLOCK_TOKENS && !e->kv.groups[group].recurrent)
        decoder_kv_clear(e, group, block_offset, tokens);
}

void engine_kv_copy(struct engine *e, uint32_t group, uint32_t from_offset, uint32_t to_offset,
                    uint32_t tokens)
{
    const void *from = block_at(e, group, from_offset);
    e->ops->copy(e->be, block_at(e, group, to_offset), from, (size_t)e->kv.groups[group].block_bytes);
    clear_after(e, group, to_offset, tokens);
}

void *engine_host_alloc(struct engine *e, size_t bytes)
{
    ASSERT(!e->host_memory);
    e->host_memory = e->ops->host_alloc ? e->ops->host_alloc(e->be, bytes) : malloc(bytes);
    e->host_bytes = bytes;
    return e->host_memory;
}

void engine_host_free(struct engine *e)
{
    if (!e->host_memory) return;
    (void)e->ops->sync(e->be); /* an error is the next step's */
    if (e->ops->host_free) e->ops->host_free(e->be, e->host_memory);
    else free(e->host_memory);
    e->host_memory = NULL;
}

uint64_t engine_copies(const struct engine *e)
{
    return e->steps_ended + e->flight_count;
}

void engine_copies_wait(struct engine *e, uint64_t copies)
{
    if (!e->becaps.host_memory && e->steps_ended <= copies) (void)e->ops->sync(e->be);
}

static bool queued(const struct engine *e, const void *host)
{
    uintptr_t from = (uintptr_t)e->host_memory;
    return from && (uintptr_t)host - from < e->host_bytes;
}

static void to_host(struct engine *e, void *host, const void *from, size_t bytes)
{
    (queued(e, host) ? e->ops->copy : e->ops->download)(e->be, host, from, bytes);
}

static void to_device(struct engine *e, void *to, const void *host, size_t bytes)
{
    (queued(e, host) ? e->ops->copy : e->ops->upload)(e->be, to, host, bytes);
}

void engine_kv_read(struct engine *e, uint32_t group, uint32_t block_offset, void *host)
{
    to_host(e, host, block_at(e, group, block_offset), (size_t)e->kv.groups[group].block_bytes);
}

void engine_kv_write(struct engine *e, uint32_t group, uint32_t block_offset, const void *host,
                     uint32_t tokens)
{
    to_device(e, block_at(e, group, block_offset), host, (size_t)e->kv.groups[group].block_bytes);
    clear_after(e, group, block_offset, tokens);
}

/* ---- image features ---- */

/* Floats of an image's rows: the embeddings, then the DeepStack features. */
static size_t row_floats(const struct engine *e, const struct engine_features *f)
{
    return (size_t)(1 + e->net.desc.vision.deepstack_count) * f->tokens * e->net.desc.hidden;
}

enum status engine_features_create(struct engine *e, const struct image_u8 *pixels,
                                   const struct adapter *adapter, struct engine_features **out,
                                   struct err *err)
{
    if (!e->net.desc.has_vision) return err_set(err, ST_UNSUPPORTED, "this model takes no images");
    struct engine_features *f = calloc(1, sizeof *f);
    if (!f) return err_nomem(err, "an image");
    f->adapter = adapter;
    enum status st = vision_measure(e, pixels, f, err);
    if (!st && !engine__vision_room(e, f->patches))
        st = err_set(err, ST_TOO_LARGE, "an image of %u patches takes %llu MiB: more than is left for it",
                     f->patches, (unsigned long long)(vision_image_bytes(e, f->patches) >> 20));
    if (!st) st = vision_prepare(e, f, err);
    size_t rgb = image_u8_bytes(pixels), rows = st ? 0 : row_floats(e, f) * sizeof(float);
    void *p = NULL;
    if (!st) {
        f->pixels = *pixels;
        f->pixels.rgb = malloc(rgb);
        enum be_result r = f->pixels.rgb ? e->ops->alloc(e->be, rows, &p) : BE_NOMEM;
        if (r == BE_OK) f->rows = p;
        else if (r == BE_DEVICE) st = err_set(err, ST_DEVICE, "%s", e->ops->last_error(e->be));
        else st = err_set(err, ST_NOMEM, "out of memory for an image's features (%zu bytes)", rows);
    }
    if (st) {
        engine_features_free(e, f);
        return st;
    }
    memcpy(f->pixels.rgb, pixels->rgb, rgb);
    f->bytes += rows;
    *out = f;
    return ST_OK;
}

enum status engine_features_step(struct engine *e, struct engine_features *f, uint32_t layers, bool *done,
                                 struct err *err)
{
    ASSERT(!e->flight_count);
    if (!f->done) vision_run(e, f, layers);
    if (f->done && f->work) {
        if (e->ops->sync(e->be) != BE_OK) return err_set(err, ST_DEVICE, "%s", e->ops->last_error(e->be));
        e->ops->free(e->be, f->work);
        f->work = NULL;
        f->resid = f->cos = f->sin = NULL;
        f->bytes = row_floats(e, f) * sizeof(float);
    }
    *done = f->done;
    return ST_OK;
}

size_t engine_features_bytes(const struct engine_features *f)
{
    return f->bytes;
}

void engine_features_read(struct engine *e, const struct engine_features *f, void *host)
{
    ASSERT(f->done);
    to_host(e, host, f->rows, f->bytes);
}

enum status engine_features_write(struct engine *e, const void *host, size_t bytes,
                                  struct engine_features **out, struct err *err)
{
    struct engine_features one = {.tokens = 1, .done = true, .bytes = bytes}, *f;
    size_t row = row_floats(e, &one) * sizeof(float);
    void *rows = NULL;
    if (!bytes || bytes % row) return err_set(err, ST_FORMAT, "%zu bytes are no image's features", bytes);
    if (!(f = malloc(sizeof *f))) return err_nomem(err, "an image");
    *f = one;
    f->tokens = (uint32_t)(bytes / row);
    if (e->ops->alloc(e->be, bytes, &rows) != BE_OK) {
        free(f);
        return err_nomem(err, "an image's features");
    }
    f->rows = rows;
    to_device(e, rows, host, bytes);
    *out = f;
    return ST_OK;
}

void engine_features_free(struct engine *e, struct engine_features *f)
{
    if (!f) return;
    free(f->pixels.rgb);
    if (f->work) e->ops->free(e->be, f->work);
    if (f->rows) e->ops->free(e->be, f->rows);
    free(f);
}
