/* One weight: from one tensor or several, as quants or floats, in the kernels' order. See
 * weights_internal.h. */
#include "engine/checkpoint/weights_internal.h"

#include "config/base/assert.h"

#include <stdlib.h>
#include <string.h>

#define SIZE_REORDER_MAX 32768u

/* Index in the file of element i of the required order.
 *   halves: heads of D rows, in each of whose halves the pairs (j, j + D/4) rotate; wanted: pairs (j, j +
 *           D/2), those of the first half first
 *   pairs: load_pair_row()
 *   planes: D planes, interleaved in columns; wanted: one after another */
uint32_t load_stored_at(enum order order, uint32_t i, uint32_t n, uint32_t head_dim, uint32_t rotary)
{
    uint32_t d = head_dim, quarter = d / 4;
    if (order == ORDER_PAIRS) return load_pair_row(i, d, rotary);
    if (order == ORDER_PLANES) return i % (n / d) * d + i / (n / d);
    if (order != ORDER_HALVES) return i;
    uint32_t at = i % d, pair = at % (d / 2), half = at / (d / 2);
    return i - at + pair / quarter * (d / 2) + half * quarter + pair % quarter;
}

/* [n, k] from src to dst, elements of `size` bytes: rows in order, or columns where that is of planes. */
static void reorder(enum order order, const struct linear_spec *s, const char *src, uint32_t n, uint32_t k,
                    size_t size, char *dst)
{
    bool columns = order == ORDER_PLANES;
    for (uint32_t r = 0; r < n; r++) {
        const char *row =
            src + (size_t)(columns ? r : load_stored_at(order, r, n, s->head_dim, s->rotary)) * k * size;
        char *to = dst + (size_t)r * k * size;
        if (!columns) memcpy(to, row, k * size);
        for (uint32_t c = 0; columns && c < k; c++)
            memcpy(to + c * size, row + load_stored_at(order, c, k, s->head_dim, 0) * size, size);
    }
}

/* The same of a vector that was read into the slab. */
void load_reorder_vector(struct loader *ld, const float *v, enum order order, uint32_t n)
{
    if (ld->inventory || ld->st || !v) return;
    float copy[SIZE_REORDER_MAX], *host = ld->host + (v - ld->slab);
    ASSERT_CMP(n, <=, SIZE_REORDER_MAX);
    memcpy(copy, host, n * sizeof *copy);
    for (uint32_t i = 0; i < n; i++)
        host[i] = copy[load_stored_at(order, i, n, order == ORDER_PLANES ? 3 : n, n)];
}

static void packed(struct loader *ld, enum be_result r, const struct stf_tensor *const *t, uint32_t count)
{
    if (r == BE_NOMEM) ld->st = err_nomem(ld->err, t[0]->name);
    else if (r == BE_UNSUPPORTED)
        ld->st = err_set(ld->err, ST_UNSUPPORTED, "tensor %s: no kernel for its shape", t[0]->name);
    else if (r != BE_OK)
        ld->st = err_set(ld->err, ST_DEVICE, "tensor %s: %s", t[0]->name, ld->ops->last_error(ld->be));
    for (uint32_t i = 0; i < count && !ld->st; i++) load_after_read(ld, t[i]);
}

void load_pack(struct loader *ld, const struct be_weight_desc *d, const struct stf_tensor *const *t,
               uint32_t count, struct be_weight **out)
{
    packed(ld, ld->ops->weight_pack(ld->be, d, out), t, count);
}

/* false: not as quants (their scales are outside the backend's range). */
static bool pack_quants(struct loader *ld, const struct be_weight_desc *d, const struct stf_tensor *const *t,
                        uint32_t count, struct be_weight **out)
{
    enum be_result r = ld->ops->weight_pack(ld->be, d, out);
    if (r == BE_UNSUPPORTED) return false;
    packed(ld, r, t, count);
    return true;
}

/* Part i of `s` in the backend's source format. *moved: the caller frees it. */
static const void *part_data(struct loader *ld, const struct linear_spec *s, uint32_t i,
                             const struct stf_tensor *t, const struct packed *packed, enum be_dtype *type,
                             void **moved)
{
    enum order order = s->part[i].order;
    const void *data = t->data;
    if (packed || t->dtype == STF_GGML) {
        *type = ld->format.act;
        data = *moved = load_floats(ld, t, packed);
    } else {
        *type = load_be_type(t->dtype);
    }
    size_t size = be_dtype_bytes(*type), bytes = (size_t)s->part[i].n * s->k * size;
    if (!ld->st) data = (const char *)data + (size_t)s->part[i].first * s->k * size;
    /* The format does not align tensors; files almost always do. */
    if (ld->st || ((uintptr_t)data % size == 0 && order == ORDER_KEPT)) return data;
    void *copy = malloc(bytes ? bytes : 1);
    if (!copy) ld->st = err_nomem(ld->err, t->name);
    else if (order == ORDER_KEPT) memcpy(copy, data, bytes);
    else reorder(order, s, data, s->part[i].n, s->k, size, copy);
    free(*moved);
    return *moved = copy;
}

/* The same as floats, each row times its number. */
static const void *scaled_data(struct loader *ld, const struct linear_spec *s, const void *data,
                               const float *scale, enum be_dtype *type, void **moved)
{
    size_t n = s->part[0].n, k = s->k;
    struct stf_tensor row = {.dtype = *type == BE_F32    ? STF_F32
                                      : *type == BE_BF16 ? STF_BF16
                                                         : STF_F16,
                             .rank = 1,
                             .shape = {k},
                             .bytes = k * be_dtype_bytes(*type)};
    float *out = ld->st ? NULL : malloc(n * k * sizeof *out);
    if (!ld->st && !out) ld->st = err_nomem(ld->err, s->part[0].stem);
    for (size_t r = 0; r < n && out; r++) {
        row.data = (const char *)data + r * row.bytes;
        (void)stf_to_f32(&row, out + r * k);
        for (size_t c = 0; c < k; c++) out[r * k + c] *= scale[r];
    }
    free(*moved);
    *type = BE_F32;
    return *moved = out;
}

static void read_bias(const struct linear_spec *s, uint32_t i, const struct stf_tensor *t, float *out)
{
    float copy[SIZE_REORDER_MAX];
    uint32_t d = s->head_dim;
    (void)stf_to_f32(t, out);
    for (float *end = out + s->part[i].n; s->part[i].order == ORDER_PAIRS && out < end; out += d) {
        memcpy(copy, out, d * sizeof *copy);
        for (uint32_t r = 0; r < d; r++) out[r] = copy[load_pair_row(r, d, s->rotary)];
    }
}

static void note_shape(struct weights_inventory *v, const struct weight_shape *s)
{
    for (uint32_t i = 0; i < v->shape_count; i++) {
        const struct weight_shape *x = &v->shapes[i];
        if (x->k == s->k && x->n == s->n && x->glu == s->glu && x->bias == s->bias) return;
    }
    if (v->shape_count < WEIGHT_SHAPES_MAX) v->shapes[v->shape_count++] = *s;
}

/* Without files: whether the configuration says that the matrix is in quants. */
static bool said_packed(const struct loader *ld, const struct linear_spec *s)
{
    char name[DESC_NAME_MAX];
    const struct desc_packing *p = &ld->desc->packing;
    if (ld->files || !p->bits || strncmp(s->part[0].stem, "text.layers.", 12) != 0) return false;
    load_expand(s->part[0].stem, s->layer, s->expert, "\"", name);
    /* A module is named by all of its path or by its end. */
    for (const char *path = name + 5, *at = path; at; at = strchr(at, '.') ? strchr(at, '.') + 1 : NULL) {
        const char *hit = strstr(p->kept, at);
        if (hit && (at == path || hit[-1] == '"')) return false;
    }
    return true;
}

/* A weight's tensors. */
struct linear {
    uint32_t count, total; /* of all; rows of all parts */
    const struct stf_tensor *part[3], *bias[3], *scales, *all[3 * PACKED_TENSORS + 4];
    struct packed packed[3];
    bool is_packed[3];
    bool quants; /* the parts stay quants, by: */
    struct quant_rows rows[3];
    struct be_quant kinds[3];
};

static bool take_part(struct loader *ld, const struct linear_spec *s, uint32_t i, struct linear *x)
{
    const struct part *part = &s->part[i];
    uint32_t whole = part->of ? part->of : part->n;
    uint64_t plain[2] = {s->transposed ? s->k : whole, s->transposed ? whole : s->k};
    const struct packed *packed = NULL;
    if (!s->whole_name && !s->rank &&
        load_take_packed(ld, part->stem, s->layer, s->expert, whole, s->k, &x->packed[i]))
        packed = &x->packed[i];
    x->is_packed[i] = packed != NULL;
    x->part[i] = packed ? packed->t[0]
                        : load_take(ld, part->stem, s->layer, s->expert, s->whole_name ? "" : ".weight",
                                    s->rank ? s->rank : 2, s->rank ? s->shape : plain);
    if (!x->part[i]) return false;
    for (uint32_t q = 0; q < PACKED_TENSORS && !(part->of && i); q++) {
        const struct stf_tensor *t = packed ? packed->t[q] : q == 0 ? x->part[i] : NULL;
        if (t) x->all[x->count++] = t;
    }
    x->total += part->n;
    x->quants = x->quants && part->order != ORDER_PLANES &&
                load_quant_of(ld, x->part[i], packed, s->k, &x->rows[i], &x->kinds[i]);
    if (!x->quants) return true;
    x->rows[i].first = part->first;
    x->rows[i].order = part->order;
    x->rows[i].head_dim = s->head_dim;
    x->rows[i].rotary = s->rotary;
    return true;
}

/* Checks and marks them as used; false: ld->st, or one is missing. */
static bool take_linear(struct loader *ld, const struct linear_spec *s, struct linear *x)
{
    x->quants = !s->transposed && !s->rank;
    for (uint32_t i = 0; i < s->part_count; i++)
        if (!take_part(ld, s, i, x)) return false;
    for (uint32_t i = 0; i < s->part_count && s->bias; i++) {
        uint64_t shape[1] = {s->part[i].n};
        x->bias[i] = load_take(ld, s->part[i].stem, s->layer, s->expert, ".bias", 1, shape);
        if (!x->bias[i]) return false;
        x->all[x->count++] = x->bias[i];
    }
    if (!s->scale) return true;
    x->scales = load_take(ld, s->scale, s->layer, 0, "", 1, (uint64_t[]){s->part[0].n});
    if (x->scales) x->all[x->count++] = x->scales;
    return x->scales;
}

static void count_linear(struct loader *ld, const struct linear_spec *s, struct linear *x)
{
    for (uint32_t i = 0; i < s->part_count && x->quants; i++) {
        load_note_quants(ld, &x->rows[i]);
        if (i) load_fuse_quants(&x->kinds[0], &x->kinds[i]);
    }
    if (said_packed(ld, s)) {
        x->quants = ld->format.quants;
        x->kinds[0] = (struct be_quant){.bits = ld->desc->packing.bits, .group = 32, .min = true};
    }
    ld->inventory->memory_bytes += load_kept_bytes(ld, x->quants ? &x->kinds[0] : NULL, x->total, s->k);
    ld->inventory->memory_bytes += s->bias ? 4ull * x->total : 0;
    if (!x->quants && !ld->alike)
        note_shape(ld->inventory, &(struct weight_shape){s->k, x->total, s->glu, s->bias});
}

/* Biases, and the numbers that rows are multiplied by; x->total each. */
static void read_rows(const struct linear_spec *s, const struct linear *x, float *bias, float *scale)
{
    for (uint32_t i = 0, at = 0; i < s->part_count && s->bias; at += s->part[i].n, i++)
        read_bias(s, i, x->bias[i], bias + at);
    for (uint32_t i = 0; scale && i < x->total; i++) scale[i] = 1;
    if (x->scales) (void)stf_to_f32(x->scales, scale);
    for (uint32_t i = 0; s->times > 0 && i < x->total; i++) scale[i] *= s->times;
    for (uint32_t i = 0; scale && s->bias && i < x->total; i++) bias[i] *= scale[i];
}

static void pack_linear(struct loader *ld, const struct linear_spec *s, struct linear *x,
                        struct be_weight **out)
{
    struct be_weight_desc d = {.k = s->k, .src_count = s->part_count, .grouped = ld->alike, .glu = s->glu};
    float *bias = malloc(2 * (size_t)x->total * sizeof *bias),
          *scale = bias && (x->scales || s->times > 0) ? bias + x->total : NULL;
    void *moved[3] = {NULL};
    bool quants = x->quants;
    if (!bias) {
        ld->st = err_nomem(ld->err, x->part[0]->name);
        return;
    }
    read_rows(s, x, bias, scale);
    if (s->bias) d.bias = bias;
    for (uint32_t i = 0; i < s->part_count; i++)
        d.src[i] = (struct be_weight_src){.transposed = s->transposed, .n = s->part[i].n};
    load_before_read(ld);
    if (quants) {
        x->rows[0].scale = scale;
        x->rows[0].groups = scale ? (uint32_t)be_ld(s->k) / x->kinds[0].group : x->rows[0].groups;
        for (uint32_t i = 0; i < s->part_count; i++) {
            d.src[i].dtype = BE_QUANT;
            d.src[i].quants = &x->kinds[i];
        }
        d.k = (uint32_t)be_ld(s->k);
        quants = pack_quants(ld, &d, x->all, x->count, out);
        d.k = s->k;
        if (!quants && ld->alike && !ld->st)
            ld->st = err_set(ld->err, ST_UNSUPPORTED, "tensor %s: a scale is beyond f16", x->part[0]->name);
    }
    for (uint32_t i = 0; i < s->part_count && !ld->st && !quants; i++)
        d.src[i].data = part_data(ld, s, i, x->part[i], x->is_packed[i] ? &x->packed[i] : NULL,
                                  &d.src[i].dtype, &moved[i]);
    if (scale && !ld->st && !quants)
        d.src[0].data = scaled_data(ld, s, d.src[0].data, scale, &d.src[0].dtype, &moved[0]);
    if (!ld->st && !quants) load_pack(ld, &d, x->all, x->count, out);
    for (uint32_t i = 0; i < 3; i++) free(moved[i]);
    free(bias);
}

void load_linear(struct loader *ld, const struct linear_spec *s, struct be_weight **out)
{
    ASSERT(s->part_count > 0 && s->part_count <= 3 && s->k > 0);
    struct linear x = {.count = 0};
    if (ld->each) {
        ld->each(ld, s, *out);
        return;
    }
    if (!take_linear(ld, s, &x)) return;
    if (ld->inventory) count_linear(ld, s, &x);
    else pack_linear(ld, s, &x, out);
}

void load_matrix(struct loader *ld, const char *stem, uint32_t layer, uint32_t k, uint32_t n, bool bias,
                 struct be_weight **out)
{
    load_linear(
        ld,
        &(struct linear_spec){.layer = layer, .k = k, .part_count = 1, .part = {{stem, n, 0}}, .bias = bias},
        out);
}
