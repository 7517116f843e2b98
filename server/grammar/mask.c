/* Masks of a grammar's states: computed by an interruptible walk over the vocabulary trie, and cached. */
#include "server/grammar/mask.h"

#include "config/base/assert.h"
#include "config/base/clock.h"

#include <stdlib.h>
#include <string.h>

void grammar_count_in(struct grammar *g, struct grammar_memory *memory)
{
    work_lock(&g->lock);
    g->memory = memory;
    machine__count(g);
    work_unlock(&g->lock);
}

size_t grammar_bytes(const struct grammar *g)
{
    return atomic_load(&g->bytes);
}

bool grammar_shared(const struct grammar *g)
{
    return atomic_load(&g->refs) > 1;
}

/* ---- pace ---- */

struct pace pace_of(uint64_t units, uint32_t ns, bool planner)
{
    return (struct pace){units, ns ? now_ns() + ns : 0, planner};
}

bool pace_over(const struct pace *p)
{
    return !p->left || (p->end_ns && now_ns() >= p->end_ns);
}

/* ---- ownership ---- */

bool mask__own(struct grammar *g, const void *who, bool planner)
{
    if (g->masks->owner) return g->masks->owner == who;
    if (!planner) machine__tidy(g);
    g->masks->owner = who;
    return true;
}

void mask__disown(struct grammar *g, const void *who, bool planner)
{
    if (g->masks->owner == who) g->masks->owner = NULL;
    machine__count(g);
    if (!planner) machine__tidy(g);
}

/* ---- the walk ---- */

static void set(uint32_t *bits, uint32_t id)
{
    bits[id >> 5] |= 1u << (id & 31);
}

/* The work of the step, if this walk takes it for the first time. */
static uint64_t charge(struct grammar *g, uint32_t state, struct move *to)
{
    struct transitions *m = g->states[state].transitions;
    uint32_t stamp = g->masks->stamp, work = m->stamp != stamp ? m->work : 0;
    to->stamp = m->stamp = stamp;
    return (uint64_t)work + to->work;
}

/* Continues a walk; false: neither finished nor over the limit. */
static bool walk(struct grammar *g, const struct grammar_vocab *v, struct walk *w, struct pace *p)
{
    const struct trie *t = w->t;
    uint32_t i = w->at, *bits = w->mask->bits, stamp = g->masks->stamp;
    uint64_t cost = w->mask->cost, done = 0, made = 0, before = rx_pool_work(g->pool);
    bool late = false;
    for (; i < t->count && cost <= WORK_MASK && done + made <= p->left && !late; done++) {
        const struct trie_node *n = &t->nodes[i];
        uint32_t from = w->path[n->depth - 1];
        struct move *to = machine__known(g, from, n->byte);
        if (!to) {
            to = machine__make(g, from, n->byte);
            if (!to) break;
            made = rx_pool_work(g->pool) - before;
            late = p->end_ns && now_ns() >= p->end_ns;
        }
        cost += 1 + (to->stamp != stamp ? charge(g, from, to) : 0);
        if (!to->next) {
            i = n->skip;
            continue;
        }
        w->path[n->depth] = to->next;
        if (n->token != NO_TOKEN) set(bits, n->token);
        if (n->twins) /* flag in the node: the twin table is large and accessed randomly */
            for (uint32_t id = v->twin[n->token]; id != NO_TOKEN; id = v->twin[id]) set(bits, id);
        i++;
    }
    w->at = i;
    w->mask->cost = cost;
    pace_use(p, done + made);
    return i >= t->count || cost > WORK_MASK;
}

/* Items that only jointly accept unlimited ordinary characters (a name matches a pattern or it does not).
 * Names are skipped: they are many and do not help. */
static bool all_take(struct grammar *g, const struct state *s)
{
    enum { MANY = 8 };
    rx all[MANY];
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->item_count; i++) {
        rx left = g->items[s->items + i].residual;
        if (rx_bounded(g->pool, left)) continue;
        if (count < MANY) all[count] = left;
        count++;
    }
    if (count < 2 || count > MANY) return false;
    for (uint32_t i = 0; i < count; i++) all[i] = rx_widened(g->pool, all[i]);
    return rx_free_run(g->pool, rx_union(g->pool, all, count), g->one[TOKEN_CLASS_ORDINARY]) == RX_NO_LIMIT;
}

/* How many such characters can follow in any case. Visits all items, because their order is unspecified. */
static uint32_t free_run(struct grammar *g, const struct state *s, rx one)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < s->item_count; i++) {
        uint32_t run = rx_free_run(g->pool, g->items[s->items + i].residual, one);
        most = run > most ? run : most;
    }
    return most;
}

/* The first token class that the state accepts whole; none if that is expensive to decide. */
static int token_class_of(struct grammar *g, uint32_t state)
{
    struct state *s = &g->states[state];
    if (s->token_class != TOKEN_CLASS_UNKNOWN) return s->token_class;
    uint32_t run[TOKEN_CLASS_KINDS];
    size_t before = rx_pool_work(g->pool);
    rx_pool_work_max(g->pool, WORK_CLASSES);
    run[TOKEN_CLASS_ORDINARY] = free_run(g, s, g->one[TOKEN_CLASS_ORDINARY]);
    if (!run[TOKEN_CLASS_ORDINARY] && all_take(g, s)) run[TOKEN_CLASS_ORDINARY] = RX_NO_LIMIT;
    run[TOKEN_CLASS_WORD] =
        run[TOKEN_CLASS_ORDINARY] ? run[TOKEN_CLASS_ORDINARY] : free_run(g, s, g->one[TOKEN_CLASS_WORD]);
    size_t work = rx_pool_work(g->pool) - before;
    bool over;
    int k = 0;
    if (!machine__ended(g, &over)) return -1;
    while (k < TOKEN_CLASSES && run[token_class_kinds[k].what] < token_class_kinds[k].chars) k++;
    s->token_class = (int8_t)(over || k == TOKEN_CLASSES ? -1 : k);
    s->token_class_work = over ? WORK_CLASSES : (uint32_t)work;
    return s->token_class;
}

/* ---- masks ---- */

void mask__abandon(struct grammar *g, struct walk *w)
{
    mask__drop(g, w->mask);
    w->mask = NULL;
}

enum mask_state mask__begin(struct grammar *g, const struct grammar_vocab *v, uint32_t state, struct walk *w,
                            struct mask **out, enum matcher_failure *why)
{
    struct masks *k = g->masks;
    *why = g->failed ? MATCHER_MEMORY : MATCHER_STUCK;
    if (g->failed || !state) return MASK_FAILED;
    if (k->vocab != v) masks__drop(g); /* another vocabulary: never in a server */
    k->vocab = v;
    k->words = v->words;
    struct kept *at = mask__kept(k, state);
    if (at) {
        at->used = ++k->clock;
        atomic_fetch_add(&at->mask->refs, 1);
        *out = at->mask;
        return MASK_READY;
    }
    ASSERT(!w->mask && state < g->state_count);
    w->mask = malloc(mask__bytes(g));
    if (!w->mask) {
        *why = MATCHER_MEMORY;
        return MASK_FAILED;
    }
    atomic_init(&w->mask->refs, 1);
    atomic_fetch_add(&k->bytes, mask__bytes(g));
    k->stamp++;
    int token_class = token_class_of(g, state);
    if (g->later) {
        mask__abandon(g, w);
        return MASK_LATER;
    }
    w->mask->cost = g->states[state].token_class_work;
    w->t = token_class < 0 ? &v->all : &v->token_classes[token_class].rest;
    if (token_class < 0) memset(w->mask->bits, 0, v->words * sizeof *w->mask->bits);
    else memcpy(w->mask->bits, v->token_classes[token_class].bits, v->words * sizeof *w->mask->bits);
    w->at = 0;
    w->path[0] = state;
    return MASK_LATER;
}

enum mask_state mask__go_on(struct grammar *g, const struct grammar_vocab *v, struct walk *w, struct pace *p,
                            struct mask **out, enum matcher_failure *why)
{
    ASSERT(w->mask && g->masks->vocab == v);
    struct mask *mask = w->mask;
    bool done = !g->full && walk(g, v, w, p), any = false;
    if (g->full || (!done && !g->failed)) return MASK_LATER;
    uint32_t state = w->path[0];
    if (!g->failed && g->states[state].accepts)
        for (uint32_t i = 0; i < v->end_count; i++) set(mask->bits, v->end_ids[i]);
    for (uint32_t i = 0; i < v->words && !any; i++) any = mask->bits[i] != 0;
    w->mask = NULL;
    *why = g->failed ? MATCHER_MEMORY : mask->cost > WORK_MASK ? MATCHER_MASK_COST : MATCHER_STUCK;
    if (*why != MATCHER_STUCK || !any) {
        mask__drop(g, mask);
        return MASK_FAILED;
    }
    mask__keep(g, state, mask);
    *out = mask;
    return MASK_READY;
}
