/* The mask cache of a grammar. */
#include "config/base/assert.h"
#include "server/grammar/mask.h"

#include <stdlib.h>
#include <string.h>

struct masks *masks__create(void)
{
    return calloc(1, sizeof(struct masks));
}

size_t mask__bytes(const struct grammar *g)
{
    return sizeof(struct mask) + g->masks->words * sizeof(uint32_t);
}

void mask__drop(struct grammar *g, struct mask *mask)
{
    if (!mask || atomic_fetch_sub(&mask->refs, 1) > 1) return;
    ASSERT_CMP(mask__bytes(g), <=, atomic_load(&g->masks->bytes));
    atomic_fetch_sub(&g->masks->bytes, mask__bytes(g));
    free(mask);
}

void masks__drop(struct grammar *g)
{
    for (uint32_t i = 0; i < MASKS; i++) {
        mask__drop(g, g->masks->kept[i].mask);
        g->masks->kept[i] = (struct kept){0};
    }
}

void masks__free(struct grammar *g)
{
    masks__drop(g);
    free(g->masks);
}

struct kept *mask__kept(struct masks *k, uint32_t state)
{
    for (uint32_t i = 0; i < MASKS; i++)
        if (k->kept[i].state == state) return &k->kept[i];
    return NULL;
}

void mask__keep(struct grammar *g, uint32_t state, struct mask *mask)
{
    struct masks *k = g->masks;
    ASSERT(state != STATE_DEAD && !mask__kept(k, state));
    struct kept *to = &k->kept[0];
    for (uint32_t i = 1; i < MASKS; i++)
        if (k->kept[i].used < to->used) to = &k->kept[i];
    mask__drop(g, to->mask);
    atomic_fetch_add(&mask->refs, 1);
    *to = (struct kept){.state = state, .used = ++k->clock, .mask = mask};
}

size_t masks__bytes(const struct grammar *g)
{
    return sizeof *g->masks + atomic_load(&g->masks->bytes);
}
