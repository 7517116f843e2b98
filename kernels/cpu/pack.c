/* Packing a weight into panels of 16 output columns (layout: struct be_weight), on all threads, one pair of
 * panels per chunk. Reads the source once and in order of k; writes each panel once and in order. */
#include "kernels/cpu/internal.h"

/* A source column block is converted in stretches of this many k, so that 16 rows of it stay in the
 * first-level cache. */
#define PACK_K 256u

struct pack_job {
    const struct be_weight_desc *d;
    struct be_weight *w;
    void (*transpose16)(const uint32_t *const src[16], size_t words, uint32_t *dst);
};

static float pack__get(const struct be_weight_src *s, size_t i)
{
    float f;
    uint16_t h;
    if (s->dtype == BE_F32) { /* a checkpoint's data need not be aligned */
        memcpy(&f, (const char *)s->data + 4 * i, 4);
        return f;
    }
    memcpy(&h, (const char *)s->data + 2 * i, 2);
    return s->dtype == BE_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

/* k of [k0, k0 + count) of one source row, in the type of the weight, into dst. */
static void pack__row(const struct pack_job *j, const struct be_weight_src *s, uint32_t row, uint32_t k0,
                      uint32_t count, void *dst)
{
    size_t step = s->transposed ? s->n : 1;
    size_t at = s->transposed ? (size_t)k0 * s->n + row : (size_t)row * j->d->k + k0;
    if (s->dtype == j->w->type && !s->transposed) {
        size_t size = be_dtype_bytes(s->dtype);
        memcpy(dst, (const char *)s->data + at * size, count * size);
    } else if (j->w->type == BE_F32) {
        for (uint32_t i = 0; i < count; i++) ((float *)dst)[i] = pack__get(s, at + i * step);
    } else if (s->dtype == BE_BF16) { /* no conversion: keeps NaN payloads as they are */
        for (uint32_t i = 0; i < count; i++)
            memcpy((uint16_t *)dst + i, (const char *)s->data + 2 * (at + i * step), 2);
    } else {
        for (uint32_t i = 0; i < count; i++) ((uint16_t *)dst)[i] = f32_to_bf16(pack__get(s, at + i * step));
    }
}

static void pack__transpose16(const uint32_t *const src[16], size_t words, uint32_t *dst)
{
    for (size_t i = 0; i < words; i++)
        for (uint32_t c = 0; c < 16; c++) dst[i * 16 + c] = src[c][i];
}

static void pack__panel(const struct pack_job *j, uint32_t panel)
{
    const struct be_weight *w = j->w;
    uint32_t buf[16][PACK_K], stretch = w->type == BE_F32 ? PACK_K : 2 * PACK_K;
    uint32_t kend = w->type == BE_F32 ? w->k : w->kpad;
    char *dst = (char *)w->data + panel * w->panel_bytes;
    const uint32_t *rows[16];
    for (uint32_t c = 0; c < 16; c++) rows[c] = buf[c];
    for (uint32_t k0 = 0; k0 < kend; k0 += stretch) {
        uint32_t slots = u32_min(stretch, kend - k0); /* with padding */
        uint32_t count = k0 < w->k ? u32_min(slots, w->k - k0) : 0;
        size_t words = w->type == BE_F32 ? slots : slots / 2;
        for (uint32_t c = 0; c < 16; c++) {
            uint32_t part = 0, row = 0;
            bool real = cpu_pack_column(j->d, panel / 2, panel % 2 * 16 + c, &part, &row);
            if (!real || count < slots) memset(buf[c], 0, words * 4);
            if (real && count) pack__row(j, &j->d->src[part], row, k0, count, buf[c]);
        }
        j->transpose16(rows, words, (uint32_t *)(void *)dst);
        dst += words * 64;
    }
}

static void pack__range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct pack_job *j = ctx;
    for (uint32_t p = 2 * begin; p < 2 * end; p++) pack__panel(j, p);
}

static bool pack__valid(const struct backend *b, const struct be_weight_desc *d, uint64_t *n)
{
    if (d->k == 0 || d->src_count < 1 || d->src_count > 3) return false;
    if (d->glu && (d->src_count != 2 || d->src[0].n != d->src[1].n)) return false;
    *n = 0;
    for (uint32_t s = 0; s < d->src_count; s++) {
        bool quants = d->src[s].dtype == BE_QUANT;
        if ((quants ? !d->src[s].quants || d->k % 32 : !d->src[s].data) || d->src[s].n == 0 ||
            quants != (d->src[0].dtype == BE_QUANT))
            return false;
        *n += d->src[s].n;
    }
    return *n < UINT32_MAX - 64 && d->k < UINT32_MAX - 64 && (b->act == BE_F32 || b->act == BE_BF16);
}

/* ---- memory of the data. Huge pages round a weight up to 2 MB, a third of an expert's 3 or 6 MB; so weights
 * of such sizes are packed into slabs. A slab is freed with its last weight. What is left over at its end is
 * never touched, and so is no memory. */

#define SLAB_BYTES ((size_t)128 << 20)
#define SLAB_FROM  ((size_t)512 << 10) /* smaller ones take no huge pages */
#define SLAB_TO    ((size_t)32 << 20)

struct cpu_slab {
    char *mem;
    size_t used;
    uint32_t weights;
};

static void pack__slab_leave(struct backend *b, struct cpu_slab *s)
{
    if (--s->weights > 0) return;
    if (b->slab == s) b->slab = NULL;
    cpu_mem_free(s->mem);
    free(s);
}

static bool pack__alloc_data(struct backend *b, struct be_weight *w, size_t bytes)
{
    if (bytes < SLAB_FROM || bytes > SLAB_TO) {
        w->data = cpu_mem_alloc(bytes);
        return w->data != NULL;
    }
    if (!b->slab || SLAB_BYTES - b->slab->used < bytes) {
        struct cpu_slab *s = calloc(1, sizeof *s);
        char *mem = s ? cpu_mem_alloc(SLAB_BYTES) : NULL;
        if (!mem) {
            free(s);
            return false;
        }
        s->mem = mem;
        b->slab = s; /* the one before belongs to its weights alone from now on */
    }
    w->slab = b->slab;
    w->slab->weights++;
    w->data = w->slab->mem + w->slab->used;
    w->slab->used += (bytes + 63) / 64 * 64;
    return true;
}

/* Room for CPU_M_BLOCK rows of the widest input, in f32 (which the sets without bf16 arithmetic need). */
static enum be_result pack__grow_scratch(struct backend *b, uint32_t kpad)
{
    size_t bytes = (size_t)CPU_M_BLOCK * kpad * 4;
    if (bytes <= b->rows_scratch_bytes) return BE_OK;
    void *p = cpu_mem_alloc(bytes);
    if (!p) return BE_NOMEM;
    cpu_mem_free(b->rows_scratch);
    b->rows_scratch = p;
    b->rows_scratch_bytes = bytes;
    return BE_OK;
}

/* false: no memory for a row, or a scale is outside f16. */
static bool pack__codes(struct backend *b, const struct be_weight_desc *d, struct be_weight *w)
{
    void *rows = cpu_mem_alloc(cpu_quant_row_bytes(w) * b->threads);
    bool ok = rows && cpu_quant_pack(b, d, w, rows);
    cpu_mem_free(rows);
    return ok;
}

enum be_result cpu_weight_pack(struct backend *b, const struct be_weight_desc *d, struct be_weight **out)
{
    uint64_t n;
    if (!pack__valid(b, d, &n)) {
        snprintf(b->error, sizeof b->error, "weight of %u inputs and %u parts is not supported", d->k,
                 d->src_count);
        return BE_UNSUPPORTED;
    }
    struct be_weight *w = calloc(1, sizeof *w);
    if (!w) return BE_NOMEM;
    w->type = b->act;
    w->k = d->k;
    w->kpad = (uint32_t)be_ld(d->k);
    w->n = (uint32_t)n;
    w->glu = d->glu;
    w->pairs = (uint32_t)(d->glu ? be_ld(n / 2) / 16 : be_ld(n) / 32);
    w->panel_bytes = w->type == BE_F32 ? (size_t)w->k * 64 : (size_t)w->kpad * 32;
    bool quants = d->src[0].dtype == BE_QUANT;
    if (quants) cpu_quant_shape(d, w);
    size_t data = w->panel_bytes * 2 * w->pairs, bias = d->bias ? (size_t)w->pairs * 32 * sizeof(float) : 0;
    w->bytes = data + bias;
    w->bias = bias ? cpu_mem_alloc(bias) : NULL;
    if (!pack__alloc_data(b, w, data) || (bias && !w->bias) || pack__grow_scratch(b, w->kpad) != BE_OK) {
        snprintf(b->error, sizeof b->error, "out of memory: a weight of %zu bytes", w->bytes);
        cpu_weight_free(b, w);
        return BE_NOMEM;
    }
    struct pack_job j = {
        .d = d, .w = w, .transpose16 = b->kern->transpose16 ? b->kern->transpose16 : pack__transpose16};
    for (uint32_t p = 0; w->bias && p < w->pairs; p++) {
        for (uint32_t c = 0; c < 32; c++) {
            uint32_t part = 0, row = 0;
            if (!cpu_pack_column(d, p, c, &part, &row)) continue;
            for (uint32_t s = 0; s < part; s++) row += d->src[s].n;
            w->bias[p * 32 + c] = d->bias[row];
        }
    }
    if (!quants) cpu_pool_run(b->pool, w->pairs, 1, pack__range, &j);
    else if (!pack__codes(b, d, w)) {
        snprintf(b->error, sizeof b->error, "a scale is not a finite f16");
        cpu_weight_free(b, w);
        return BE_UNSUPPORTED;
    }
    *out = w;
    return BE_OK;
}

void cpu_weight_free(struct backend *b, struct be_weight *w)
{
    if (!w) return;
    if (w->slab) {
        pack__slab_leave(b, w->slab);
    } else {
        cpu_mem_free(w->data);
    }
    cpu_mem_free(w->bias);
    free(w);
}
