/* Recurrent layers in plain C: causal convolution and gated delta rule. Sums are in double. */
#include "kernels/cpu/internal.h"

#include <math.h>

/* ---- causal convolution: one sequence and channel at a time */

static void ref__conv_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct be_conv_args *a = ctx;
    const struct be_states *s = a->states;
    uint32_t before = a->k - 1;
    for (uint32_t item = begin; item < end; item++) {
        uint32_t seq = item / a->c, c = item % a->c;
        const float *from = state_at(s, s->from[seq], a->layer_offset);
        float *to = state_at(s, s->to[seq], a->layer_offset), old[BE_CONV_K_MAX], kept[BE_CONV_K_MAX];
        float *x = a->x + (size_t)s->first[seq] * a->stride + c;
        for (uint32_t j = 0; j < before; j++) old[j] = from ? from[(size_t)j * a->c + c] : 0;
        const float *times = a->times ? a->times + (size_t)s->first[seq] * a->stride + c : NULL;
        for (uint32_t t = 0; times && t < s->count[seq]; t++) x[t * a->stride] *= times[t * a->stride];
        for (uint32_t j = 0; j < before; j++) { /* the last rows of old and x[0, kept) */
            uint32_t at = s->kept[seq] + j;
            kept[j] = at < before ? old[at] : x[(at - before) * a->stride];
        }
        for (uint32_t j = 0; to && j < before; j++) to[(size_t)j * a->c + c] = kept[j];
        for (uint32_t t = 0; t < s->count[seq]; t++) {
            double sum = 0;
            float now = x[t * a->stride];
            for (uint32_t j = 0; j < before; j++) sum += (double)a->weight[(size_t)j * a->c + c] * old[j];
            sum += (double)a->weight[(size_t)before * a->c + c] * now;
            if (a->bias) sum += (double)a->bias[c];
            x[t * a->stride] = (float)(times ? sum : sum / (1 + exp(-sum)));
            memmove(old, old + 1, (before - 1) * sizeof *old);
            old[before - 1] = now;
        }
    }
}

void ref_conv(struct backend *b, const struct be_conv_args *a)
{
    struct be_conv_args job = *a;
    cpu_pool_run(b->pool, a->states->seq_count * a->c, 64, ref__conv_range, &job);
}

/* ---- gated delta rule */

static void ref__l2(float *x, uint32_t n, double scale)
{
    double sum = 1e-6;
    for (uint32_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    for (uint32_t i = 0; i < n; i++) x[i] = (float)((double)x[i] / sqrt(sum) * scale);
}

static void ref__delta_prepare(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct be_delta_args *a = ctx;
    uint32_t keys = a->key_heads, values = a->value_heads, dk = a->key_dim;
    for (uint32_t seq = begin; seq < end; seq++)
        for (uint32_t t = 0; t < a->states->count[seq]; t++) {
            size_t row = (size_t)a->states->first[seq] + t;
            float *qk = a->qkv + row * a->stride, *gate = a->gates + row * 2 * values;
            for (uint32_t h = 0; h < 2 * keys; h++)
                ref__l2(qk + (size_t)h * dk, dk, h < keys ? 1 / sqrt((double)dk) : 1);
            for (uint32_t h = 0; h < values; h++) {
                double x = (double)gate[values + h] + (double)a->dt_bias[h];
                gate[h] = (float)(1 / (1 + exp(-(double)gate[h])));
                gate[values + h] = (float)exp((double)a->decay[h] * (fmax(x, 0) + log1p(exp(-fabs(x)))));
            }
        }
}

/* Column `col` of a head's state through all rows of a sequence. */
static void ref__delta_column(const struct be_delta_args *a, uint32_t seq, uint32_t h, uint32_t col)
{
    const struct be_states *st = a->states;
    uint32_t dk = a->key_dim, dv = a->value_dim,
             kh = a->tiled ? h % a->key_heads : h * a->key_heads / a->value_heads;
    size_t head = (size_t)h * dk * dv + col;
    const float *from = state_at(st, st->from[seq], a->layer_offset);
    float *to = state_at(st, st->to[seq], a->layer_offset), s[1024];
    for (uint32_t i = 0; i < dk; i++) s[i] = from ? from[head + (size_t)i * dv] : 0;
    for (uint32_t t = 0; t < st->count[seq]; t++) {
        size_t row = (size_t)st->first[seq] + t;
        float *x = a->qkv + row * a->stride, *v = x + 2 * (size_t)a->key_heads * dk + (size_t)h * dv + col;
        const float *q = x + (size_t)kh * dk, *k = q + (size_t)a->key_heads * dk,
                    *gate = a->gates + row * 2 * a->value_heads + h;
        float g = gate[a->value_heads];
        double seen = 0, out = 0;
        for (uint32_t i = 0; i < dk; i++) seen += (double)s[i] * (double)k[i];
        float d = gate[0] * (*v - g * (float)seen);
        for (uint32_t i = 0; i < dk; i++) {
            s[i] = g * s[i] + k[i] * d;
            out += (double)s[i] * (double)q[i];
        }
        if (a->outputs) *v = (float)out;
        for (uint32_t i = 0; to && t + 1 == st->kept[seq] && i < dk; i++) to[head + (size_t)i * dv] = s[i];
    }
}

static void ref__delta_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct be_delta_args *a = ctx;
    uint32_t columns = a->value_heads * a->value_dim;
    for (uint32_t item = begin; item < end; item++)
        ref__delta_column(a, item / columns, item % columns / a->value_dim, item % a->value_dim);
}

void ref_delta(struct backend *b, const struct be_delta_args *a)
{
    struct be_delta_args job = *a;
    cpu_pool_run(b->pool, a->states->seq_count, 1, ref__delta_prepare, &job);
    cpu_pool_run(b->pool, a->states->seq_count * a->value_heads * a->value_dim, 8, ref__delta_range, &job);
}
