/* See step_cost.h. */
#include "scheduler/step_cost.h"

#include <math.h>

/* Typical size of each term in a step: the weights move in proportion to it. */
static const double typical[STEP_TERMS] = {1, 64, 16, 64 * 1024, 16 * 1024};
/* Before anything was measured, in microseconds: a small model on a slow machine. */
static const double at_first[STEP_TERMS] = {5000, 1000, 1000, 0.1, 0.1};
enum { FIRST_ROWS = 8, ROWS_GROWTH = 4, EARLY_STEPS = 8, LEAST_US = 100 };

void step_cost_init(struct step_cost *c, const struct engine_caps *caps)
{
    double bytes = 0;
    *c = (struct step_cost){.group_count = caps->group_count, .rows_max = FIRST_ROWS};
    for (uint32_t i = 0; i < STEP_TERMS; i++) c->us[i] = at_first[i];
    for (uint32_t g = 0; g < caps->group_count; g++) bytes += (double)caps->groups[g].bytes_per_token;
    for (uint32_t g = 0; g < caps->group_count; g++) {
        c->share[g] = bytes > 0 ? (double)caps->groups[g].bytes_per_token / bytes : 1.0 / caps->group_count;
        c->window[g] = caps->groups[g].window;
    }
}

/* Keys visible to the queries at [position, position + count), each the last `window` up to itself (0 =
 * all). */
static double pairs(uint32_t window, uint32_t position, uint32_t count)
{
    double p = position, n = count, w = window, rising = n;
    if (window)
        rising = position >= window ? 0
                 : n < w - p        ? n
                                    : w - p; /* queries whose window reaches the beginning */
    return rising * p + rising * (rising + 1) / 2 + (n - rising) * w;
}

void step_load_add(const struct step_cost *c, struct step_load *l, uint32_t position, uint32_t count,
                   bool sampled)
{
    double seen = 0;
    for (uint32_t g = 0; g < c->group_count; g++) seen += c->share[g] * pairs(c->window[g], position, count);
    l->n[STEP_FIXED] = 1;
    l->n[STEP_ROWS] += count;
    l->n[STEP_SAMPLED] += sampled;
    l->n[count > 1 ? STEP_PREFILL_PAIRS : STEP_DECODE_PAIRS] += seen;
}

double step_cost_us(const struct step_cost *c, const struct step_load *l)
{
    double us = 0;
    for (uint32_t i = 0; i < STEP_TERMS; i++) us += c->us[i] * l->n[i];
    return us;
}

void step_cost_learn(struct step_cost *c, const struct step_load *l, double us)
{
    double expected = step_cost_us(c, l), miss = us - expected, norm = 0,
           pace = c->steps < EARLY_STEPS ? 0.7 : 0.25;
    /* A step delayed by something else (another process, cold memory) says little about the next one, so its
     * time is clamped: an absurd weight of rows would make chunks so short that it could hardly recover. */
    double most = (c->steps < EARLY_STEPS ? 10 : 1) * fmax(expected, LEAST_US);
    if (miss > most) miss = most;
    for (uint32_t i = 0; i < STEP_TERMS; i++) norm += l->n[i] / typical[i] * (l->n[i] / typical[i]);
    for (uint32_t i = 0; i < STEP_TERMS; i++) {
        c->us[i] += pace * miss * (l->n[i] / typical[i]) / norm / typical[i];
        if (c->us[i] < 0) c->us[i] = 0;
    }
    if (c->steps < UINT32_MAX) c->steps++;
    if (l->n[STEP_ROWS] > c->rows_max) c->rows_max = (uint32_t)l->n[STEP_ROWS];
}

double step_cost_chunk_us(const struct step_cost *c, uint32_t position, uint32_t count, bool sampled)
{
    struct step_load l = {{0}};
    step_load_add(c, &l, position, count, sampled);
    return step_cost_us(c, &l) - c->us[STEP_FIXED];
}

uint32_t step_cost_fit(const struct step_cost *c, uint32_t position, uint32_t most, double us)
{
    uint32_t lo = 1, hi = most ? most : 1;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo + 1) / 2;
        if (step_cost_chunk_us(c, position, mid, false) <= us) lo = mid;
        else hi = mid - 1;
    }
    return lo;
}

uint32_t step_cost_rows(const struct step_cost *c)
{
    return c->rows_max < UINT32_MAX / ROWS_GROWTH ? c->rows_max * ROWS_GROWTH : UINT32_MAX;
}
