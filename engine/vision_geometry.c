/* What the vision tower has to know of one image besides its pixels: how many patches and tokens it has, in
 * which order they run through the tower, which of them see each other, their 2-D rotary angles and their
 * places in the table of positions. Host arithmetic and uploads; no layer is run here. Formulas: transformers
 * vision_utils.py.
 *
 * Order of rows in the tower: frame by frame; inside a frame token by token (window by window where the tower
 * has windows, else in raster order); inside a token its merge x merge patches in raster order; last the
 * patches that form no token. A tower that pools has merge 1: plain raster order.
 */
#include "engine/internal.h"

#include "config/base/assert.h"
#include "config/base/checked.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TAPS_MAX VISION_ANTIALIAS_SIDE_MAX

static uint32_t merge_of(const struct desc_vision *d)
{
    return d->end == VISION_MERGE ? d->merge : 1;
}

/* Bytes of one layer's keys and values in a block. */
static size_t layer_bytes(const struct engine *e)
{
    const struct desc_vision *d = &e->net.desc.vision;
    return d->layers ? e->ops->kv_layer_bytes(e->be, BE_KV_ACT, d->heads, d->hidden / d->heads) : 0;
}

uint32_t vision_patches_max(const struct engine *e)
{
    const struct desc_vision *d = &e->net.desc.vision;
    if (d->image_size)
        return (d->image_size / d->patch) * (d->image_size / d->patch) + (d->names.class_row != NULL);
    uint64_t per_token = (uint64_t)d->merge * d->merge, context = per_token * e->plan.context_max;
    const struct image_config *c = &e->info.image.config;
    uint64_t tile = c->tiles.rule ? (uint64_t)c->tiles.side * c->tiles.side : 0,
             area = (c->area_max > tile ? c->area_max : tile) / ((uint64_t)d->patch * d->patch);
    if (area < per_token) area = per_token;
    uint64_t n = area < context ? area : context;
    return n > UINT32_MAX / 64 ? UINT32_MAX / 64 : (uint32_t)n;
}

enum status vision_measure(const struct engine *e, const struct image_u8 *pixels, struct engine_features *f,
                           struct err *err)
{
    const struct desc_vision *d = &e->net.desc.vision;
    uint32_t unit = d->image_size ? 1 : image_multiple(&e->info.image.config),
             frames = pixels->frames ? pixels->frames : d->depth;
    uint64_t size = d->image_size, context = e->plan.context_max;
    if (d->image_size && (pixels->width != size || pixels->height != size || pixels->frames))
        return err_set(err, ST_INVALID,
                       "an image of %u x %u pixels was not prepared for this model (%u x %u)", pixels->width,
                       pixels->height, d->image_size, d->image_size);
    if (!pixels->width || !pixels->height || pixels->width % unit || pixels->height % unit ||
        frames % d->depth || ((d->names.class_row || d->halve) && frames > d->depth))
        return err_set(
            err, ST_INVALID,
            "an image of %u x %u pixels and %u frames was not prepared for this model (multiples of %u)",
            pixels->width, pixels->height, frames, unit);
    f->frames = frames / d->depth;
    f->grid_h = pixels->height / d->patch;
    f->grid_w = pixels->width / d->patch;
    size_t patches;
    bool ok = !mul_overflows((size_t)f->grid_h * f->grid_w, f->frames, &patches);
    uint64_t tokens =
        d->tokens ? d->tokens : (uint64_t)(f->grid_h / d->merge) * (f->grid_w / d->merge) * f->frames;
    if (d->position_axis && (f->grid_h > d->position_axis || f->grid_w > d->position_axis))
        return err_set(err, ST_INVALID, "an image of %u x %u pixels is over the tower's %u positions a side",
                       pixels->width, pixels->height, d->position_axis);
    if (!ok || tokens > context ||
        patches > UINT32_MAX / 64) /* row numbers and their multiples stay in 32 bits */
        return err_set(err, ST_TOO_LARGE,
                       "an image of %u x %u pixels takes more tokens than the context holds (%u)",
                       pixels->width, pixels->height, e->plan.context_max);
    f->patches = (uint32_t)patches + (d->names.class_row != NULL);
    f->tokens = (uint32_t)tokens;
    return ST_OK;
}

/* ---- order ---- */

/* One frame's tokens in tower order -> raster index of each; window_end[i]: token index after the window that
 * i lies in. */
static void order_tokens(const struct desc_vision *d, uint32_t h, uint32_t w, uint32_t *token,
                         uint32_t *window_begin, uint32_t *window_end)
{
    uint32_t side = d->window ? d->window : (h > w ? h : w), n = 0;
    for (uint32_t y0 = 0; y0 < h; y0 += side) {
        for (uint32_t x0 = 0; x0 < w; x0 += side) {
            uint32_t first = n, y1 = h - y0 < side ? h : y0 + side, x1 = w - x0 < side ? w : x0 + side;
            for (uint32_t y = y0; y < y1; y++)
                for (uint32_t x = x0; x < x1; x++) token[n++] = y * w + x;
            for (uint32_t i = first; i < n; i++) {
                window_begin[i] = first;
                window_end[i] = n;
            }
        }
    }
}

/* torch.bucketize of index / size (a quotient, or a multiple of 1 / size) among arange(1 / side, 1, 1 /
 * side), in the reference's floats: its arange steps in double within blocks of 8 that begin in float, and in
 * double alone after the last 16. */
static uint32_t bucket_of(uint32_t index, uint32_t size, uint32_t side, bool quotient)
{
    double step = 1.0 / side;
    float at = quotient ? (float)index / (float)size
                        : fminf((float)index * (1.0f / (float)size), (float)(1.0 - 1e-6));
    uint32_t count = (uint32_t)ceil((1.0 - step) / step), n = 0;
    for (; n < count; n++) {
        uint32_t first = n < count / 16 * 16 ? n / 8 * 8 : n;
        double base = step + step * first;
        if (n < count / 16 * 16) base = (double)(float)base;
        if ((float)(base + (n - first) * step) > at) break;
    }
    return n < side ? n : side - 1;
}

/* Half the width of an antialiased lookup, in entries. */
static double antialias_support(const struct desc_vision *d, uint32_t size)
{
    double scale = (double)d->position_side / size;
    return scale > 1 ? scale : 1;
}

/* Entries of the position table along one axis of `size` patches; at most TAPS_MAX. */
static uint32_t axis_count(const struct desc_vision *d, uint32_t size)
{
    if (d->position_lookup == LOOKUP_BICUBIC) return 4;
    if (d->position_lookup == LOOKUP_BUCKETS || d->position_lookup == LOOKUP_QUOTIENT) return 1;
    if (d->position_lookup != LOOKUP_ANTIALIAS) return 2;
    uint32_t most = (uint32_t)ceil(antialias_support(d, size)) * 2 + 1;
    return most < d->position_side ? most : d->position_side;
}

/* torch's interpolate with antialias. */
static void antialias_taps(const struct desc_vision *d, uint32_t index, uint32_t size, uint32_t *tap,
                           float *weight)
{
    uint32_t side = d->position_side, n = axis_count(d, size);
    float scale = (float)side / (float)size, support = (float)antialias_support(d, size), sum = 0,
          inverse = scale >= 1 ? 1 / scale : 1, centre = (float)((double)scale * (index + 0.5));
    float first = (float)((double)(centre - support) + 0.5), last = (float)((double)(centre + support) + 0.5);
    uint32_t from = first > 0 ? (uint32_t)first : 0, end = last < (float)side ? (uint32_t)last : side;
    for (uint32_t k = 0; k < n; k++) {
        float far = fabsf(((float)(from + k) - centre + 0.5f) * inverse);
        tap[k] = from + k < end ? from + k : end - 1;
        weight[k] = from + k < end && far < 1 ? 1 - far : 0;
        sum += weight[k];
    }
    for (uint32_t k = 0; k < n; k++) weight[k] /= sum;
}

/* Where place `index` of `size` lies among the table's `side`, in float32 in transformers' order: of the
 * bilinear ones vision_utils.py, of the bicubic one torch's grid_sample. */
static float axis_place(enum desc_lookup lookup, float index, float size, float side)
{
    if (lookup == LOOKUP_CORNERS) return index * (side - 1) / (size > 1 ? size - 1 : 1);
    if (lookup == LOOKUP_CENTRES) return (index + 0.5f) * side / size - 0.5f;
    float norm = (index + 0.5f) / size * 2 - 1;
    return ((norm + 1) * side - 1) / 2;
}

static void axis_taps(const struct desc_vision *d, uint32_t index, uint32_t size, uint32_t tap[TAPS_MAX],
                      float weight[TAPS_MAX])
{
    const float a = -0.75f;
    uint32_t side = d->position_side, n = axis_count(d, size);
    if (d->position_lookup == LOOKUP_ANTIALIAS) {
        antialias_taps(d, index, size, tap, weight);
        return;
    }
    if (n == 1) {
        tap[0] = bucket_of(index, size, side, d->position_lookup == LOOKUP_QUOTIENT);
        weight[0] = 1;
        return;
    }
    float src = axis_place(d->position_lookup, (float)index, (float)size, (float)side), low = floorf(src);
    for (uint32_t k = 0; k < n; k++) {
        float offset = (float)k - (float)(n / 2 - 1), at = low + offset, far = fabsf(src - low - offset);
        tap[k] = at < 0 ? 0 : at < (float)side ? (uint32_t)at : side - 1;
        if (n == 2) weight[k] = far < 1.0f ? 1.0f - far : 0.0f;
        else if (far <= 1) weight[k] = ((a + 2) * far - (a + 3)) * far * far + 1;
        else weight[k] = ((a * far - 5 * a) * far + 8 * a) * far - 4 * a;
    }
}

/* ---- the block ---- */

/* Offsets in bytes of the parts of f->work. One walk counts, the same walk lays out. */
struct layout {
    size_t resid, cos, sin, index, bytes;
    size_t words; /* of the index part */
    size_t area;  /* bytes from here on: q and kv, or scratch needed before and after the layers */
    size_t kv, patches, raw, pooled; /* bytes within the area */
    size_t pos, lo, hi, wlo, whi, seq_row, seq_table, table, order, token_row, rope, table_rows,
        table_weights, halved_hi, halved_row, mean_rows, mean_weights; /* words */
    uint32_t taps; /* entries of the position table for a patch; 0: no lookup */
};

static size_t reserve(size_t *used, size_t n)
{
    size_t at = *used;
    *used += (n + 15) / 16 * 16;
    return at;
}

static struct layout lay_out(const struct engine *e, const struct engine_features *f)
{
    const struct desc_vision *d = &e->net.desc.vision;
    size_t n = f->patches, frame = (size_t)f->grid_h * f->grid_w, half = d->hidden / d->heads / 2;
    struct layout l = {0};
    l.pos = reserve(&l.words, n);
    l.lo = reserve(&l.words, n);
    l.hi = reserve(&l.words, n);
    l.wlo = reserve(&l.words, d->window || d->halve ? n : 0);
    l.whi = reserve(&l.words, d->window || d->halve ? n : 0);
    l.halved_hi = reserve(&l.words, d->halve ? n / 4 : 0);
    l.halved_row = reserve(&l.words, d->halve ? 4 : 0);
    l.mean_rows = reserve(&l.words, d->halve ? n : 0);
    l.mean_weights = reserve(&l.words, d->halve ? n : 0);
    l.seq_row = reserve(&l.words, 4);
    l.seq_table = reserve(&l.words, 1);
    l.table = reserve(&l.words, (n + BE_BLOCK_TOKENS - 1) / BE_BLOCK_TOKENS);
    l.order = reserve(&l.words, frame);
    l.token_row = reserve(&l.words, d->window ? f->tokens : 0);
    l.rope = reserve(&l.words, d->rope_theta > 0 ? 3 * n : 0);
    l.taps = d->position_axis   ? 2
             : d->position_side ? axis_count(d, f->grid_h) * axis_count(d, f->grid_w)
                                : 0;
    l.table_rows = reserve(&l.words, l.taps * frame);
    l.table_weights = reserve(&l.words, l.taps * frame);
    size_t used = 0; /* words of the whole block */
    l.resid = reserve(&used, n * d->hidden);
    l.cos = reserve(&used, d->rope_theta > 0 ? n * half : 0);
    l.sin = reserve(&used, d->rope_theta > 0 ? n * half : 0);
    l.index = reserve(&used, l.words);
    l.area = used * 4;
    /* Three uses of one stretch of memory, none of which outlives its part of the work. */
    size_t act = be_dtype_bytes(e->plan.act), layer = layer_bytes(e),
           values = (size_t)d->patch * d->patch * 3 * d->depth,
           rgb = d->image_size ? (size_t)d->image_size * d->image_size * 3 * d->depth : frame * values;
    l.kv = (n * d->hidden * act + 63) / 64 * 64; /* after q */
    size_t most = l.kv + (n + BE_BLOCK_TOKENS - 1) / BE_BLOCK_TOKENS *
                             ((layer + BE_KV_GRAIN - 1) / BE_KV_GRAIN * BE_KV_GRAIN);
    l.patches = (rgb + 63) / 64 * 64; /* after rgb */
    l.raw = (l.patches + n * be_ld(values) * act + 63) / 64 * 64;
    size_t end = l.raw + (d->end == VISION_EMBED ? n * values * 4 : 0);
    if (end > most) most = end;
    l.pooled = d->end != VISION_MERGE ? (n * d->hidden * 4 + 63) / 64 * 64 : 0; /* after dense */
    end = l.pooled + 4 * (size_t)f->tokens *
                         (d->end != VISION_MERGE ? d->hidden
                          : d->window            ? e->net.desc.hidden
                                                 : 0);
    if (end > most) most = end;
    l.bytes = l.area + most;
    return l;
}

uint64_t vision_image_bytes(const struct engine *e, uint32_t patches)
{
    const struct desc_vision *d = &e->net.desc.vision;
    uint32_t tokens = d->tokens ? d->tokens : patches / (d->merge * d->merge);
    struct engine_features f = {
        .frames = 1, .grid_h = 1, .grid_w = patches, .patches = patches, .tokens = tokens};
    return lay_out(e, &f).bytes +
           (uint64_t)(1 + d->deepstack_count) * tokens * e->net.desc.hidden * sizeof(float);
}

/* A row chunk of a layer is at most one slice, but not so small that reading the weights dominates. */
static uint32_t row_chunk_of(const struct engine *e, const struct engine_features *f)
{
    uint64_t rows = VISION_SLICE / (VISION_ROW_KEYS + (uint64_t)f->grid_h * f->grid_w) / 32 * 32;
    if (rows < 256) rows = 256;
    if (rows > e->v.rows) rows = e->v.rows;
    return rows < f->patches ? (uint32_t)rows : f->patches;
}

/* The n-th row of a frame is the patch at that place. */
static void fill_patch(const struct engine *e, const struct engine_features *f, const struct layout *l,
                       uint32_t *w, uint32_t n, uint32_t row, uint32_t column)
{
    const struct desc_vision *d = &e->net.desc.vision;
    uint32_t *rows = &w[l->table_rows + l->taps * (size_t)n],
             *weights = &w[l->table_weights + l->taps * (size_t)n];
    w[l->order + n] = row * f->grid_w + column;
    if (d->position_axis) {
        rows[0] = d->position_pairs ? 2 * column : column;
        rows[1] = d->position_pairs ? 2 * row + 1 : d->position_axis + row;
        for (size_t j = 0; j < 2; j++) memcpy(&weights[j], &(float){1}, sizeof *weights);
    }
    if (!d->position_side) return;
    uint32_t ty[TAPS_MAX], tx[TAPS_MAX], each = axis_count(d, f->grid_w);
    float wy[TAPS_MAX], wx[TAPS_MAX];
    axis_taps(d, row, f->grid_h, ty, wy);
    axis_taps(d, column, f->grid_w, tx, wx);
    for (uint32_t j = 0; j < l->taps; j++) {
        float weight = wy[j / each] * wx[j % each];
        rows[j] = ty[j / each] * d->position_side + tx[j % each];
        memcpy(&weights[j], &weight, sizeof weight);
    }
}

static void fill_frame(const struct engine *e, const struct engine_features *f, const struct layout *l,
                       uint32_t *w, const uint32_t *token)
{
    const struct desc_vision *d = &e->net.desc.vision;
    uint32_t m = merge_of(d), across = f->grid_w / m, down = f->grid_h / m, n = 0;
    for (uint32_t i = 0; i < down * across; i++)
        for (uint32_t k = 0; k < m * m; k++) {
            uint32_t half = d->halve ? m / 2 : m, cell = d->halve ? 2 : 1, run = k / (cell * cell),
                     in = k % (cell * cell);
            fill_patch(e, f, l, w, n++, token[i] / across * m + run / half * cell + in / cell,
                       token[i] % across * m + run % half * cell + in % cell);
        }
    for (uint32_t i = 0; i < f->grid_h * f->grid_w; i++)
        if (i / f->grid_w >= down * m || i % f->grid_w >= across * m)
            fill_patch(e, f, l, w, n++, i / f->grid_w, i % f->grid_w);
}

/* Windows of four rows, and what takes the place of `whole` when they are one. */
static void fill_halved(const struct engine_features *f, const struct layout *l, uint32_t *w)
{
    uint32_t n = f->patches / 4, chunk = f->row_chunk < n ? f->row_chunk : n;
    for (uint32_t i = 0; i < f->patches; i++) {
        w[l->wlo + i] = i / 4 * 4;
        w[l->whi + i] = i / 4 * 4 + 3;
        w[l->mean_rows + i] = i;
        memcpy(&w[l->mean_weights + i], &(float){0.25f}, sizeof *w);
        w[l->halved_hi + i / 4] = n - 1;
    }
    w[l->halved_row + 1] = chunk;
    w[l->halved_row + 3] = n % chunk;
}

static void fill_rows(const struct engine *e, const struct engine_features *f, const struct layout *l,
                      uint32_t *w, const uint32_t *window_begin, const uint32_t *window_end)
{
    const struct desc_vision *d = &e->net.desc.vision;
    uint32_t m = merge_of(d), frame = f->patches / f->frames;
    for (uint32_t i = 0; i < f->patches; i++) {
        uint32_t first = i / frame * frame, in = i - first, token = in / (m * m);
        w[l->pos + i] = i;
        w[l->lo + i] = first;
        w[l->hi + i] = first + frame - 1;
        if (d->window) {
            w[l->wlo + i] = first + window_begin[token] * m * m;
            w[l->whi + i] = first + window_end[token] * m * m - 1;
        }
        if (d->rope_theta > 0) {
            w[l->rope + i] = w[l->order + in] / f->grid_w;
            w[l->rope + f->patches + i] = w[l->order + in] % f->grid_w;
        }
    }
    if (d->halve) fill_halved(f, l, w);
    w[l->seq_row + 1] = f->row_chunk;
    w[l->seq_row + 3] = f->patches % f->row_chunk; /* of the last row chunk, if it is smaller */
    size_t layer = layer_bytes(e);
    uint32_t unit = (uint32_t)((layer + BE_KV_GRAIN - 1) / BE_KV_GRAIN);
    for (uint32_t b = 0; b < (f->patches + BE_BLOCK_TOKENS - 1) / BE_BLOCK_TOKENS; b++)
        w[l->table + b] = b * unit;
}

static struct be_rows rows_at(const struct engine_features *f, const struct layout *l, const uint32_t *dev,
                              bool windowed)
{
    return (struct be_rows){.t = f->patches,
                            .seq_count = 1,
                            .seq_row = dev + l->seq_row,
                            .seq_table = dev + l->seq_table,
                            .tables = dev + l->table,
                            .pos = dev + l->pos,
                            .lo = dev + (windowed ? l->wlo : l->lo),
                            .hi = dev + (windowed ? l->whi : l->hi)};
}

enum status vision_prepare(struct engine *e, struct engine_features *f, struct err *err)
{
    const struct desc_vision *d = &e->net.desc.vision;
    struct layout l = lay_out(e, f);
    f->row_chunk = row_chunk_of(e, f);
    uint32_t m = merge_of(d), per_frame = (f->grid_h / m) * (f->grid_w / m);
    uint32_t *w = calloc(l.words + 3 * (size_t)per_frame, sizeof *w), *token = w ? w + l.words : NULL;
    enum be_result r = w ? e->ops->alloc(e->be, l.bytes, &f->work) : BE_NOMEM;
    if (r != BE_OK) {
        free(w);
        f->work = NULL;
        if (r == BE_DEVICE) return err_set(err, ST_DEVICE, "%s", e->ops->last_error(e->be));
        return err_set(err, ST_NOMEM, "out of memory for an image of %u patches", f->patches);
    }
    uint32_t *begin = token + per_frame, *end = begin + per_frame;
    order_tokens(d, f->grid_h / m, f->grid_w / m, token, begin, end);
    fill_frame(e, f, &l, w, token);
    fill_rows(e, f, &l, w, begin, end);
    for (uint32_t i = 0; d->window && i < f->tokens; i++)
        w[l.token_row + i / per_frame * per_frame + token[i % per_frame]] = i;
    uint32_t *base = f->work, *dev = base + l.index;
    e->ops->upload(e->be, dev, w, l.words * sizeof *w);
    free(w);
    f->bytes += l.bytes;
    f->resid = (float *)base + l.resid;
    char *area = (char *)f->work + l.area;
    f->q = f->rgb = (uint8_t *)area;
    f->kv = area + l.kv;
    f->patch_rows = area + l.patches;
    f->raw = (float *)(void *)(area + l.raw);
    f->dense = (float *)(void *)area;
    f->pooled = (float *)(void *)(area + l.pooled);
    f->order = dev + l.order;
    f->token_row = d->window ? dev + l.token_row : NULL;
    f->taps = l.taps;
    f->table_rows = dev + l.table_rows;
    f->table_weights = (const float *)(dev + l.table_weights);
    f->whole = rows_at(f, &l, dev, false);
    f->windowed = d->window || d->halve ? rows_at(f, &l, dev, true) : f->whole;
    f->halved = f->whole;
    f->halved.t /= 4;
    f->halved.seq_row = dev + l.halved_row;
    f->halved.hi = dev + l.halved_hi;
    f->mean_rows = dev + l.mean_rows;
    f->mean_weights = (const float *)(dev + l.mean_weights);
    if (d->rope_theta > 0) {
        f->cos = (float *)base + l.cos;
        f->sin = (float *)base + l.sin;
        e->ops->rope(e->be, &(struct be_rope_args){
                                .pos = (const int32_t *)(dev + l.rope), /* below 2^24: the same bits */
                                .t = f->patches,
                                .axes = 3, /* row, column, none */
                                .half = d->hidden / d->heads / 2,
                                .inv_freq = e->v.rope_freq,
                                .axis = e->v.rope_axis,
                                .scaling = 1.0f,
                                .cos = f->cos,
                                .sin = f->sin});
    }
    return ST_OK;
}
