/* See packed.h. Formulas: transformers' integrations of these methods, and AutoAWQ's and GPTQModel's packing.
 */
#include "engine/checkpoint/packed.h"

#include "config/base/floats.h"

#include <string.h>

#define SPAN      32u  /* numbers of a row to a scale, in quants */
#define FP8_BLOCK 128u /* of weight_scale_inv, both ways */

/* ---- values of tensors ---- */

static uint32_t word_at(const struct stf_tensor *t, size_t i)
{
    uint32_t w;
    memcpy(&w, (const char *)t->data + 4 * i, 4);
    return w;
}

static float float_at(const struct stf_tensor *t, size_t i)
{
    struct stf_tensor one = *t;
    size_t size = t->dtype == STF_F32 ? 4 : 2;
    float f = 0;
    one.data = (const char *)t->data + size * i;
    one.bytes = size;
    (void)stf_to_f32(&one, &f); /* packed_open() checked the type */
    return f;
}

/* Sign, four bits of exponent (bias 7), three of mantissa; no infinities. */
static float e4m3(uint8_t v)
{
    uint32_t e = v >> 3 & 15, m = v & 7, u = (e + 120) << 23 | m << 20;
    float f = e ? float_of((v & 127) == 127 ? 0x7fc00000 : u) : (float)m * 0x1p-9f;
    return v >> 7 ? -f : f;
}

/* Code i, with `word` codes per word. */
static uint32_t mask_of(const struct packed *p)
{
    return p->word == 4 ? 255 : 15;
}

static uint32_t part_of(const struct packed *p, uint32_t word, uint32_t i)
{
    return word >> 32 / p->word * (i % p->word) & mask_of(p);
}

/* ---- which layout ---- */

static bool is_float(const struct stf_tensor *t)
{
    return t->dtype == STF_F32 || t->dtype == STF_F16 || t->dtype == STF_BF16;
}

static bool shaped(const struct stf_tensor *t, enum stf_dtype type, uint64_t rows, uint64_t cols)
{
    return t && t->dtype == type && t->rank == 2 && t->shape[0] == rows && t->shape[1] == cols;
}

/* How many share a scale, from their number or from the configuration; 0: unknown. */
static uint32_t shared(uint64_t all, uint64_t parts, uint32_t said)
{
    if (said && parts > 1) return (all - 1) / said + 1 == parts ? said : 0;
    if (parts == 0 || all % parts) return 0;
    return (uint32_t)(all / parts);
}

static enum status wrong(struct err *err, const struct stf_tensor *t, const char *what)
{
    return err_set(err, ST_FORMAT, "tensor %s: %s", t->name, what);
}

/* Scales of F8 and I8: one, one a row, or one a block of both. */
static enum status open_rows(packed_find *find, void *arg, const struct desc_packing *said, struct packed *p,
                             struct err *err)
{
    const struct stf_tensor *inv = find(arg, ".weight_scale_inv"),
                            *s = inv ? inv : find(arg, ".weight_scale");
    if (!s) return wrong(err, p->t[0], "its weight_scale is missing");
    if (!is_float(s)) return wrong(err, s, "scales must be floats");
    if (find(arg, ".weight_zero_point") || (said->zeros && p->kind == PACKED_INT8))
        return err_set(err, ST_UNSUPPORTED, "tensor %s: zero points of 8 bits are not served", p->t[0]->name);
    p->t[1] = s;
    uint64_t rows = s->rank > 0 ? s->shape[0] : 1, cols = s->rank > 1 ? s->shape[1] : 1;
    if (s->rank > 2 || rows == 0 || cols == 0) return wrong(err, s, "has a shape that scales don't have");
    bool blocks = inv || (rows != p->n && (rows > 1 || cols > 1));
    p->down = blocks ? FP8_BLOCK : rows == 1 ? p->n : 1;
    p->along = blocks ? FP8_BLOCK : shared(p->k, cols, said->group);
    if (!p->down || !p->along || (p->n - 1) / p->down + 1 != rows || (p->k - 1) / p->along + 1 != cols)
        return wrong(err, s, "does not fit the weight's rows, groups, or blocks of 128");
    return ST_OK;
}

static enum status open_groups(const struct stf_tensor *g, struct packed *p, uint64_t groups, struct err *err)
{
    if (g->dtype != STF_I32 || g->rank != 1 || g->shape[0] != p->k)
        return wrong(err, g, "must name a group for each input");
    for (uint32_t i = 0; i < p->k; i++)
        if (word_at(g, i) >= groups) return wrong(err, g, "names a group that there isn't");
    p->t[3] = g;
    return ST_OK;
}

static enum status open_words(packed_find *find, void *arg, const struct desc_packing *said, struct packed *p,
                              struct err *err)
{
    const struct stf_tensor *s = find(arg, ".weight_scale"), *z = find(arg, ".weight_zero_point");
    p->word = shaped(p->t[0], STF_I32, p->n, (p->k + 3ull) / 4) ? 4 : 8;
    if (!shaped(p->t[0], STF_I32, p->n, (p->k + p->word - 1ull) / p->word))
        return err_set(err, ST_UNSUPPORTED, "tensor %s: only 4 or 8 bits in words of 32 are served",
                       p->t[0]->name);
    if (!s || !is_float(s) || s->rank != 2 || s->shape[0] != p->n ||
        !(p->along = shared(p->k, s->shape[1], said->group)))
        return wrong(err, p->t[0], "weight_scale must have a row of scales for each of its rows");
    p->down = 1;
    if (!z && said->zeros) return wrong(err, p->t[0], "its weight_zero_point is missing");
    if (z && !shaped(z, STF_I32, (p->n + p->word - 1ull) / p->word, s->shape[1]))
        return wrong(err, z, "must have a word for the zero points of 8 rows (of 4 with 8 bits)");
    p->t[1] = s;
    p->t[2] = z;
    const struct stf_tensor *g = find(arg, ".weight_g_idx");
    /* llm-compressor leaves -1 where it did not reorder. */
    bool none = g && g->dtype == STF_I32 && g->bytes >= 4 && word_at(g, 0) == UINT32_MAX;
    return g && !none ? open_groups(g, p, s->shape[1], err) : ST_OK;
}

static enum status open_columns(packed_find *find, void *arg, struct packed *p, struct err *err)
{
    const struct stf_tensor *q = p->t[0], *s = find(arg, ".scales"), *z = find(arg, ".qzeros"),
                            *g = find(arg, ".g_idx");
    bool whole = p->n % 8 == 0 && p->k % 8 == 0;
    p->word = shaped(q, STF_I32, p->k / 4, p->n) ? 4 : 8;
    if (whole && shaped(q, STF_I32, p->k, p->n / 8)) p->kind = PACKED_AWQ;
    else if (whole && shaped(q, STF_I32, p->k / p->word, p->n)) p->kind = PACKED_GPTQ;
    else
        return err_set(err, ST_UNSUPPORTED,
                       "tensor %s: only 4 bits in words of 32 are served (AWQ's gemm layout, GPTQ; GPTQ's 8)",
                       q->name);
    if (!s || !is_float(s) || s->rank != 2 || s->shape[1] != p->n || !shared(p->k, s->shape[0], 0))
        return wrong(err, q, "scales must have a row for each group of its inputs");
    if (!shaped(z, STF_I32, s->shape[0], p->n / p->word))
        return wrong(err, q, "qzeros must be as scales are");
    p->down = 1;
    p->along = shared(p->k, s->shape[0], 0);
    p->t[1] = s;
    p->t[2] = z;
    return g && p->kind == PACKED_GPTQ ? open_groups(g, p, s->shape[0], err) : ST_OK;
}

static void set_quants(struct packed *p)
{
    p->bits = p->kind == PACKED_INT8 || p->word == 4 ? 8 : 4;
    p->off = p->kind == PACKED_INT8 || (p->kind == PACKED_WORDS && !p->t[2]) ? 1u << (p->bits - 1) : 0;
    p->quants = p->kind != PACKED_FP8 && p->k % SPAN == 0 && p->along % SPAN == 0;
    /* inputs of a group that are not adjacent */
    for (uint32_t i = 0; p->t[3] && i < p->k; i++)
        if (word_at(p->t[3], i) != i / p->along) p->quants = false;
}

enum status packed_open(packed_find *find, void *arg, const struct desc_packing *said, uint32_t n, uint32_t k,
                        struct packed *p, struct err *err)
{
    enum status st;
    *p = (struct packed){.n = n, .k = k};
    if ((p->t[0] = find(arg, ".qweight"))) {
        st = open_columns(find, arg, p, err);
    } else if ((p->t[0] = find(arg, ".weight_packed"))) {
        p->kind = PACKED_WORDS;
        st = open_words(find, arg, said, p, err);
    } else {
        const struct stf_tensor *t = p->t[0] = find(arg, ".weight");
        if (!t || (t->dtype != STF_F8_E4M3 && t->dtype != STF_I8)) return ST_NOT_FOUND;
        if (!shaped(t, t->dtype, n, k)) return wrong(err, t, "has another shape than config.json implies");
        p->kind = t->dtype == STF_I8 ? PACKED_INT8 : PACKED_FP8;
        st = open_rows(find, arg, said, p, err);
    }
    p->more = said->zeros_plain ? 0 : UINT32_MAX / mask_of(p);
    if (!st) set_quants(p);
    return st;
}

/* ---- rows ---- */

static uint32_t nibble(const struct stf_tensor *t, size_t word, uint32_t at)
{
    return word_at(t, word) >> 4 * at & 15;
}

static uint32_t group_of(const struct packed *p, uint32_t i)
{
    return p->t[3] ? word_at(p->t[3], i) : i / p->along;
}

/* Scale of input i of a row, and its zero point. */
static float scale_of(const struct packed *p, uint32_t row, uint32_t i, int32_t *zero)
{
    static const uint8_t awq[8] = {0, 4, 1, 5, 2, 6, 3, 7}; /* position of a column in a word */
    const struct stf_tensor *s = p->t[1], *z = p->t[2];
    size_t g = group_of(p, i), cols = (p->k + p->along - 1) / p->along, n = p->n;
    switch (p->kind) {
    case PACKED_FP8:
    case PACKED_INT8: *zero = 0; return float_at(s, row / p->down * cols + g);
    case PACKED_WORDS:
        *zero = (int32_t)(z ? part_of(p, word_at(z, row / p->word * cols + g), row) : mask_of(p) / 2 + 1);
        return float_at(s, row * cols + g);
    case PACKED_AWQ: *zero = (int32_t)nibble(z, g * (n / 8) + row / 8, awq[row % 8]); break;
    case PACKED_GPTQ:
        *zero = (int32_t)part_of(p, word_at(z, g * (n / p->word) + row / p->word) + p->more, row);
        break;
    }
    return float_at(s, g * n + row);
}

static int32_t code_of(const struct packed *p, uint32_t row, uint32_t i)
{
    static const uint8_t awq[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    const struct stf_tensor *q = p->t[0];
    size_t n = p->n;
    switch (p->kind) {
    case PACKED_WORDS:
        return (int32_t)part_of(p, word_at(q, row * ((p->k - 1ull) / p->word + 1) + i / p->word), i);
    case PACKED_AWQ: return (int32_t)nibble(q, i * (n / 8) + row / 8, awq[row % 8]);
    case PACKED_GPTQ: return (int32_t)part_of(p, word_at(q, i / p->word * n + row), i);
    default: return ((const int8_t *)q->data)[(size_t)row * p->k + i];
    }
}

void packed_quants(const struct packed *p, uint32_t row, uint8_t *code, float *scale, float *min)
{
    int32_t up = p->kind == PACKED_INT8 ? 128 : 0;
    for (uint32_t i = 0; i < p->k; i++) code[i] = (uint8_t)(code_of(p, row, i) + up);
    for (uint32_t g = 0; g < p->k / SPAN; g++) {
        int32_t zero = 0;
        scale[g] = scale_of(p, row, g * SPAN, &zero);
        if (!p->off) min[g] = -scale[g] * (float)zero;
    }
}

void packed_floats(const struct packed *p, uint32_t row, uint32_t first, uint32_t n, float *out)
{
    float scale = 0;
    int32_t zero = 0;
    for (uint32_t i = first; i < first + n; i++) {
        if (i == first || i % p->along == 0 || p->t[3]) scale = scale_of(p, row, i, &zero);
        if (p->kind == PACKED_FP8)
            *out++ = e4m3(((const uint8_t *)p->t[0]->data)[(size_t)row * p->k + i]) * scale;
        else *out++ = (float)(code_of(p, row, i) - zero) * scale;
    }
}
