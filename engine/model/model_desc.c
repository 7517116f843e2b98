/* Layouts of experts, and rotary frequencies. See model_desc.h. */
#include "engine/model/model_desc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void model_desc_free(struct model_desc *d)
{
    free(d->layers);
    *d = (struct model_desc){0};
}

bool desc_name_matches(const char *name, const char *pattern, const char *suffix)
{
    for (; *pattern; pattern++) {
        size_t digits = *pattern == '#' ? strspn(name, "0123456789") : 0;
        if (*pattern == '#' ? digits == 0 : *name != *pattern) return false;
        name += digits ? digits : 1;
    }
    return strcmp(name, suffix) == 0;
}

bool model_desc_experts(const struct model_desc *d, const char *name, uint32_t rank, const uint64_t *shape,
                        enum desc_experts *layout)
{
    uint64_t c = d->hidden, i = 0;
    for (uint32_t n = 0; n < d->layer_count; n++)
        if (d->layers[n].experts) i = d->layers[n].ff;
    if (i == 0 || !d->names.expert_gate_up) return false;
    if (d->names.expert_gate && desc_name_matches(name, d->names.expert_gate, ".weight")) {
        *layout = EXPERTS_EACH;
        return true;
    }
    bool wide = desc_name_matches(name, d->names.expert_gate_up, "");
    if (rank != 3 || (!wide && !desc_name_matches(name, d->names.expert_down_all, ""))) return false;
    /* A square tensor is ambiguous, but then the other one isn't: both square would require 2I = C and I = C.
     * (transformers decides tensor by tensor and would read a square one of a released file the wrong way
     * round.) */
    uint64_t out = wide ? 2 * i : c, in = wide ? c : i;
    if (out == in) return false;
    *layout = EXPERTS_OUT_IN;
    if (shape[1] == out && shape[2] == in) return true;
    *layout = EXPERTS_IN_OUT;
    return shape[1] == in && shape[2] == out;
}

/* ---- rotary embedding ---- */

/* Bounds of the ramp between unchanged and divided frequencies (YaRN). */
static double yarn_bound(const struct desc_rope *r, double rotations)
{
    return r->dim * log(r->original / (rotations * 2 * M_PI)) / (2 * log(r->theta));
}

static void yarn_range(const struct desc_rope *r, double *low, double *high)
{
    *low = yarn_bound(r, r->beta_fast);
    *high = yarn_bound(r, r->beta_slow);
    if (r->truncate) {
        *low = floor(*low);
        *high = ceil(*high);
    }
    if (*low < 0) *low = 0;
    if (*high > r->dim - 1) *high = r->dim - 1;
    if (*low == *high) *high += 0.001;
}

void desc_rope_frequencies(const struct desc_rope *r, float *out)
{
    double low = 0, high = 0;
    if (r->ramp == RAMP_YARN) yarn_range(r, &low, &high);
    /* transformers computes these in float32: exponent, power, reciprocal, division by the factor. */
    for (uint32_t k = 0; k < r->dim / 2; k++) {
        float exponent = (float)(2 * k) / (float)r->dim,
              power = (float)pow((double)(float)r->theta, (double)exponent), fast = 1.0f / power, ramp;
        if (r->ramp == RAMP_NONE) {
            out[k] = k + r->unrotated_pairs >= r->dim / 2 ? 0 : fast / (float)r->factor;
            continue;
        }
        float slow = 1.0f / ((float)r->factor * power);
        if (r->ramp == RAMP_YARN) {
            ramp = ((float)k - (float)low) / (float)(high - low);
        } else {
            float turns = (float)r->original / ((float)(2 * M_PI) / fast);
            ramp = 1.0f - (turns - (float)r->beta_slow) / (float)(r->beta_fast - r->beta_slow);
        }
        float share = 1.0f - (ramp < 0 ? 0 : ramp > 1 ? 1 : ramp);
        out[k] = slow * (1.0f - share) + fast * share;
    }
}
