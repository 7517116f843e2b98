/* The tensors of a checkpoint under a description's names: lookup, checks, counting, reading in order, and
 * vectors in the slab. See weights_internal.h. */
#include "engine/checkpoint/weights_internal.h"

#include "config/base/assert.h"
#include "config/gguf/gguf.h"
#include "engine/checkpoint/ggml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define READ_AHEAD_BYTES (UINT64_C(256) << 20)
#define SAMPLE_BYTES     4096u
#define NAMED_IGNORED    3u /* most names in the warning */

/* ---- names ---- */

static int by_canonical(const void *a, const void *b)
{
    return strcmp(((const struct named *)a)->name, ((const struct named *)b)->name);
}

/* Tensors of checkpoints that no version of the model reads: tables that can be computed, and the pooling
 * head that a tower was trained with. And drafters, and audio towers, which are not served; and what
 * server/embed/pooling.c reads. (A copy of the embedding as the tied head is expected, too.) */
bool weights_carried_along(const char *name)
{
    static const char *const ends[] = {"inv_freq", "position_ids", "packing_position_embedding.weight"};
    size_t len = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t n = strlen(ends[i]);
        if (len >= n && strcmp(name + len - n, ends[i]) == 0 && (len == n || name[len - n - 1] == '.'))
            return true;
    }
    return strncmp(name, "mtp.", 4) == 0 || strncmp(name, "embedding_proj_layer.", 21) == 0 ||
           strncmp(name, "dense_", 6) == 0 || strstr(name, ".vision_model.head.") != NULL ||
           strstr(name, "audio_tower.") != NULL || strstr(name, "embed_audio.") != NULL;
}

void load_note_ignored(struct weights_inventory *s, const char *name)
{
    size_t at = strlen(s->ignored_names), room = sizeof s->ignored_names - at;
    if (weights_carried_along(name)) return;
    if (s->ignored++ >= NAMED_IGNORED) return;
    snprintf(s->ignored_names + at, room, "%s%.120s", at ? ", " : "", name);
    for (char *p = s->ignored_names + at; *p; p++)
        if (*p < ' ' || *p > '~') *p = '?'; /* it goes into a log line */
}

enum status load_map(struct loader *ld)
{
    size_t n = ld->files ? stf_count(ld->files) : 0;
    ld->map = calloc(n ? n : 1, sizeof *ld->map);
    if (!ld->map) return err_set(ld->err, ST_NOMEM, "out of memory for %zu tensor names", n);
    for (size_t i = 0; i < n; i++) {
        const struct stf_tensor *t = stf_at(ld->files, i);
        struct named *m = &ld->map[ld->map_count];
        if (ld->desc->canonical(t->name, m->name)) {
            m->t = t;
            ld->map_count++;
        } else if (ld->inventory &&
                   !(*ld->desc->retrieval.classifier && strncmp(t->name, "score.", 6) == 0)) {
            load_note_ignored(ld->inventory, t->name);
        }
    }
    if (ld->map_count) qsort(ld->map, ld->map_count, sizeof *ld->map, by_canonical);
    for (size_t i = 1; i < ld->map_count; i++)
        if (strcmp(ld->map[i - 1].name, ld->map[i].name) == 0)
            return err_set(ld->err, ST_FORMAT, "tensors %s and %s are the same part of the model (%s)",
                           ld->map[i - 1].t->name, ld->map[i].t->name, ld->map[i].name);
    return ST_OK;
}

/* "text.layers.#.mlp.up_proj", 7, ".weight" -> "text.layers.7.mlp.up_proj.weight"; a second '#' is the
 * expert. */
void load_expand(const char *stem, uint32_t layer, uint32_t expert, const char *suffix,
                 char out[DESC_NAME_MAX])
{
    size_t at = 0;
    uint32_t number = layer;
    for (const char *s = stem; *s; s++) {
        int n = *s == '#' ? snprintf(out + at, DESC_NAME_MAX - at, "%u", number)
                          : snprintf(out + at, DESC_NAME_MAX - at, "%c", *s);
        ASSERT(n > 0 && (size_t)n < DESC_NAME_MAX - at);
        at += (size_t)n;
        if (*s == '#') number = expert;
    }
    int n = snprintf(out + at, DESC_NAME_MAX - at, "%s", suffix);
    ASSERT(n >= 0 && (size_t)n < DESC_NAME_MAX - at);
}

static void shape_text(const uint64_t *shape, uint32_t rank, char *out, size_t cap)
{
    size_t at = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < rank; i++) {
        int n = snprintf(out + at, cap - at, "%s%llu", i ? "," : "", (unsigned long long)shape[i]);
        if (n < 0 || (size_t)n >= cap - at) return;
        at += (size_t)n;
    }
}

uint64_t load_elements(const struct stf_tensor *t)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i < t->rank; i++) n *= t->shape[i];
    return n;
}

static void count_tensor(struct weights_inventory *s, const struct stf_tensor *t)
{
    s->parameters += load_elements(t);
    s->read_bytes += t->bytes;
    if (t->bytes > s->tensor_bytes_max) s->tensor_bytes_max = t->bytes;
}

/* A bf16 tensor of the required shape with random values. */
static const struct stf_tensor *random_tensor(struct loader *ld, uint32_t rank, const uint64_t *shape)
{
    struct stf_tensor *t = &ld->random[ld->random_count++ % 6];
    *t = (struct stf_tensor){.name = "(random)", .dtype = STF_BF16, .rank = rank, .bytes = 2};
    for (uint32_t i = 0; i < rank; i++) t->bytes *= t->shape[i] = shape[i];
    t->data = ld->random_values;
    if (ld->inventory) count_tensor(ld->inventory, t);
    return t;
}

struct named *load_find(const struct loader *ld, const char *stem, uint32_t layer, uint32_t expert,
                        const char *suffix, struct named *key)
{
    load_expand(stem, layer, expert, suffix, key->name);
    return ld->map_count ? bsearch(key, ld->map, ld->map_count, sizeof *ld->map, by_canonical) : NULL;
}

/* It will be read. */
static void note_used(struct loader *ld, struct named *m)
{
    if (!ld->inventory || m->used) return;
    m->used = true;
    ld->inventory->order[ld->inventory->count++] = m->t;
    count_tensor(ld->inventory, m->t);
}

/* Everything about reading a tensor except its bytes: lookup, shape, dtype, counting. NULL after an error. */
const struct stf_tensor *load_take(struct loader *ld, const char *stem, uint32_t layer, uint32_t expert,
                                   const char *suffix, uint32_t rank, const uint64_t *shape)
{
    if (ld->st) return NULL;
    if (!ld->files) return random_tensor(ld, rank, shape);
    struct named key;
    struct named *m = load_find(ld, stem, layer, expert, suffix, &key);
    if (!m) {
        ld->st =
            err_set(ld->err, ST_FORMAT, "the checkpoint has no tensor %s (in any known layout)", key.name);
        return NULL;
    }
    const struct stf_tensor *t = m->t;
    bool single = rank == 0 && t->rank == 1 && t->shape[0] == 1; /* a scalar of a GGUF file */
    if (!single && (t->rank != rank || (rank && memcmp(t->shape, shape, rank * sizeof *shape) != 0))) {
        char have[96], want[96];
        shape_text(t->shape, t->rank, have, sizeof have);
        shape_text(shape, rank, want, sizeof want);
        ld->st = err_set(ld->err, ST_FORMAT, "tensor %s has shape [%s], config.json implies [%s]", t->name,
                         have, want);
        return NULL;
    }
    if (t->dtype != STF_F32 && t->dtype != STF_BF16 && t->dtype != STF_F16 && t->dtype != STF_GGML) {
        ld->st = err_set(ld->err, ST_UNSUPPORTED, "tensor %s is stored as %s; F32, BF16 and F16 are served",
                         t->name, stf_dtype_name(t->dtype));
        return NULL;
    }
    const struct ggml_type *type = t->dtype == STF_GGML ? ggml_type_of(t->ggml) : NULL;
    if (t->dtype == STF_GGML && (!type || rank == 0 || shape[rank - 1] % type->block)) {
        ld->st = err_set(ld->err, ST_UNSUPPORTED, "tensor %s: %s%s", t->name,
                         type ? "its rows are not whole blocks" : "type not served: ",
                         type ? "" : gguf_type(t->ggml)->name);
        return NULL;
    }
    note_used(ld, m);
    return t;
}

/* All experts' matrices in one FP8 tensor, with a tensor of block scales (STEM_scale_inv). NULL: not so, or
 * an error. */
const struct stf_tensor *load_take_fp8(struct loader *ld, const char *stem, uint32_t layer,
                                       const uint64_t shape[3], const struct stf_tensor **scales)
{
    struct named key, *m = load_find(ld, stem, layer, 0, "", &key),
                      *s = load_find(ld, stem, layer, 0, "_scale_inv", &key);
    if (ld->st || !m || !s || m->t->dtype != STF_F8_E4M3) return NULL;
    if (m->t->rank != 3 || memcmp(m->t->shape, shape, 3 * sizeof *shape) != 0 || s->t->rank != 3 ||
        s->t->shape[0] != shape[0]) {
        ld->st = err_set(ld->err, ST_FORMAT, "tensors %s and %s do not fit each other or config.json",
                         m->t->name, s->t->name);
        return NULL;
    }
    note_used(ld, m);
    note_used(ld, s);
    if (ld->inventory) ld->inventory->parameters -= load_elements(s->t);
    *scales = s->t;
    return m->t;
}

/* Elements of its tensors. */
static uint64_t counted(const struct packed *p)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < PACKED_TENSORS; i++) n += p->t[i] ? load_elements(p->t[i]) : 0;
    return n;
}

const struct stf_tensor *load_find_packed(void *arg, const char *suffix)
{
    const struct packed_at *at = arg;
    struct named key, *m = load_find(at->ld, at->stem, at->layer, at->expert, suffix, &key);
    return m ? m->t : NULL;
}

/* A matrix that the checkpoint holds in several tensors; false: it doesn't, or an error. */
bool load_take_packed(struct loader *ld, const char *stem, uint32_t layer, uint32_t expert, uint32_t n,
                      uint32_t k, struct packed *p)
{
    static const char *const suffixes[] = {".qweight",      ".qzeros",           ".scales",
                                           ".g_idx",        ".weight",           ".weight_packed",
                                           ".weight_scale", ".weight_scale_inv", ".weight_zero_point",
                                           ".weight_shape", ".weight_g_idx",     ".input_scale"};
    struct packed_at at = {ld, stem, layer, expert};
    if (ld->st || !ld->files) return false;
    enum status st = packed_open(load_find_packed, &at, &ld->desc->packing, n, k, p, ld->err);
    if (st == ST_NOT_FOUND) return false;
    ld->st = st;
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes && !st && ld->inventory; i++) {
        struct named key, *m = load_find(ld, stem, layer, expert, suffixes[i], &key);
        if (!m) continue;
        bool read = false;
        for (uint32_t q = 0; q < PACKED_TENSORS; q++) read = read || p->t[q] == m->t;
        if (read) note_used(ld, m);
        m->used = true;
    }
    if (!st && ld->inventory) ld->inventory->parameters += (uint64_t)n * k - counted(p);
    return !st;
}

/* ---- reading order, progress ---- */

static void digest_bytes(struct loader *ld, const void *p, size_t n)
{
    const uint8_t *b = p;
    for (size_t i = 0; i < n; i++) ld->digest = (ld->digest ^ b[i]) * UINT64_C(0x100000001b3);
}

void load_before_read(struct loader *ld)
{
    while (ld->ahead < ld->plan->count && ld->ahead_bytes < ld->done_bytes + READ_AHEAD_BYTES) {
        const struct stf_tensor *t = ld->plan->order[ld->ahead++];
        stf_willneed(ld->files, t);
        ld->ahead_bytes += t->bytes;
    }
}

void load_digest(struct loader *ld, const struct stf_tensor *t)
{
    size_t n = t->bytes < SAMPLE_BYTES ? (size_t)t->bytes : SAMPLE_BYTES;
    digest_bytes(ld, t->name, strlen(t->name) + 1);
    digest_bytes(ld, t->shape, t->rank * sizeof t->shape[0]);
    digest_bytes(ld, &t->dtype, sizeof t->dtype);
    digest_bytes(ld, &t->ggml, sizeof t->ggml);
    digest_bytes(ld, t->data, n);
    digest_bytes(ld, (const char *)t->data + (t->bytes - n), n);
}

void load_after_read(struct loader *ld, const struct stf_tensor *t)
{
    load_digest(ld, t);
    if (ld->files) stf_done(ld->files, t);
    ld->done_bytes += t->bytes;
    if (ld->progress.fn) ld->progress.fn(ld->progress.arg, ld->done_bytes, ld->plan->read_bytes);
}

/* ---- one weight, one vector ---- */

/* f32 vector of n values (any shape), in the slab; `plus` is added to each, then `times` multiplies. NULL if
 * the stem is NULL: the family has none. */
const float *load_scaled_vector(struct loader *ld, const char *stem, uint32_t layer, const char *suffix,
                                uint32_t rank, const uint64_t *shape, float plus, float times)
{
    if (!stem) return NULL;
    const struct stf_tensor *t = load_take(ld, stem, layer, 0, suffix, rank, shape);
    if (!t) return NULL;
    size_t n = 1;
    for (uint32_t i = 0; i < rank; i++) n *= (size_t)shape[i];
    uint64_t at = ld->slab_used;
    ld->slab_used += (n + 15) / 16 * 16; /* 64-byte alignment */
    if (ld->inventory) return NULL;
    load_before_read(ld);
    if (ld->files && stf_norms_plus_one(ld->files)) plus = 0; /* it is included already */
    (void)stf_to_f32(t, ld->host + at);                       /* load_take() checked the dtype */
    for (size_t i = 0; i < n && plus != 0; i++) ld->host[at + i] += plus;
    for (size_t i = 0; i < n && times != 1; i++) ld->host[at + i] *= times;
    load_after_read(ld, t);
    return ld->slab + at;
}

const float *load_vector(struct loader *ld, const char *stem, uint32_t layer, const char *suffix,
                         uint32_t rank, const uint64_t *shape, float plus)
{
    return load_scaled_vector(ld, stem, layer, suffix, rank, shape, plus, 1);
}

const float *load_vector1(struct loader *ld, const char *stem, uint32_t layer, const char *suffix, uint32_t n,
                          float plus)
{
    uint64_t shape[1] = {n};
    return load_vector(ld, stem, layer, suffix, 1, shape, plus);
}
