/* See machine.h. */
#include "config/base/assert.h"
#include "config/base/id_table.h"
#include "config/base/list.h"
#include "server/grammar/machine.h"

#include <stdlib.h>
#include <string.h>

/* Bytes that may be built before everything is dropped; if active matchers need more than half of that for
 * their current states, twice their need, up to a limit. */
#define MADE_MAX         ((size_t)16 << 20)
#define MADE_LIMIT       ((size_t)64 << 20)
#define MADE_SHORT       ((size_t)1 << 20) /* the limit where memory for grammars is short */
#define EMPTINESS_STATES 1024u
/* Work limit of one byte's step from one state, which depends on both alone (some milliseconds): above it the
 * step is not computed, and masks that need it fail. The parts of a step are limited likewise. */
#define WORK_NEXT  ((size_t)1 << 21)
#define WORK_STATE 256u /* a state's table takes some hundred bytes */
#define WORK_CONT  10u  /* a step from a continuation to its first terminals */
#define WORK_PLACE 12u
#define TOGETHER   8u /* items that end at once: above that, their continuations are computed together */

static bool fine(const struct grammar *g)
{
    return !g->failed && !rx_status(g->pool);
}

static bool items_reserve(struct grammar *g, size_t more)
{
    return LIST_RESERVE(g->items, g->item_cap, g->item_count + more);
}

/* ---- continuations: shared lists ---- */

static uint32_t cons(struct grammar *g, gx what, uint32_t rest)
{
    uint32_t hash = (uint32_t)mix(mix(1, what), rest), at = hash;
    for (uint32_t id; (id = id_table_next(&g->continuation_table, hash, &at));)
        if (g->continuations[id].what == what && g->continuations[id].rest == rest) return id;
    if (!LIST_RESERVE(g->continuations, g->continuation_cap, g->continuation_count + 1u) ||
        !id_table_add(&g->continuation_table, hash, g->continuation_count)) {
        g->failed = true;
        return 0;
    }
    g->continuations[g->continuation_count] = (struct continuation){.what = what, .rest = rest};
    return g->continuation_count++;
}

struct work {
    uint32_t *items;
    uint32_t count;
    size_t cap;
};

static void push(struct grammar *g, struct work *w, uint32_t continuation)
{
    rx_spend(g->pool, WORK_CONT);
    if (g->continuations[continuation].stamp == g->stamp) return; /* already visited */
    g->continuations[continuation].stamp = g->stamp;
    if (!LIST_RESERVE(w->items, w->cap, w->count + 1u)) g->failed = true;
    else w->items[w->count++] = continuation;
}

static void members(struct grammar *g, struct work *w, gx node, uint32_t rest)
{
    gx what;
    if (members__ends(g, node)) push(g, w, rest);
    for (uint32_t at = 0, then; fine(g) && members__next(g, node, &at, &what, &then);) {
        gx next = *members__node(g, then);
        if (!next)
            next = grammar__node(g, (struct gx_node){.kind = GX_MEMBERS, .a = then, .productive = true});
        *members__node(g, then) = next;
        if (!next) g->failed = true;
        else push(g, w, cons(g, what, cons(g, next, rest)));
    }
}

/* One step of the closure of `what` then `rest`: adds its items, pushes what remains to visit. */
static void begin_one(struct grammar *g, struct work *w, uint32_t continuation)
{
    struct gx_node n = g->nodes[g->continuations[continuation].what];
    uint32_t rest = g->continuations[continuation].rest;
    switch (n.kind) {
    case GX_EMPTY: push(g, w, rest); break;
    case GX_REGEX:
        if (!items_reserve(g, 1)) g->failed = true;
        else g->items[g->item_count++] = (struct item){rx_live(g->pool, n.a, EMPTINESS_STATES), rest};
        if (n.nullable) push(g, w, rest);
        break;
    case GX_SEQ: push(g, w, cons(g, n.a, cons(g, n.b, rest))); break;
    case GX_ALT:
        for (uint32_t i = 0; i < n.b; i++)
            if (g->nodes[g->list[n.a + i]].productive) push(g, w, cons(g, g->list[n.a + i], rest));
        break;
    case GX_REPEAT:
        if (n.b == 0) push(g, w, rest);
        if (!g->nodes[n.a].productive) break;
        if (n.c == 1) {
            push(g, w, cons(g, n.a, rest));
        } else if (n.c == RX_NO_LIMIT && n.b == 0) {
            push(g, w, cons(g, n.a, continuation));
        } else {
            gx less = grammar__repeat(g, n.a, n.b ? n.b - 1 : 0, n.c == RX_NO_LIMIT ? n.c : n.c - 1);
            if (!less) g->failed = true;
            else push(g, w, cons(g, n.a, cons(g, less, rest)));
        }
        break;
    case GX_RULE: push(g, w, cons(g, n.a, rest)); break;
    case GX_MEMBERS: members(g, w, g->continuations[continuation].what, rest); break;
    default: break;
    }
}

/* Adds the items reachable from what was pushed; true: the text may end there. */
static bool begin_all(struct grammar *g, struct work *w)
{
    size_t from = g->item_count;
    bool accepts = false;
    while (w->count && fine(g)) {
        uint32_t c = w->items[--w->count];
        if (c) begin_one(g, w, c);
        else accepts = true;
    }
    if (!fine(g)) g->item_count = from;
    free(w->items);
    return accepts;
}

/* The items after `continuation`; cached. */
static void begin(struct grammar *g, uint32_t continuation)
{
    struct work w = {0};
    size_t from = g->item_count, before = rx_pool_work(g->pool);
    if (g->continuations[continuation].known) {
        rx_spend(g->pool, g->continuations[continuation].work);
        return;
    }
    g->stamp++;
    push(g, &w, continuation);
    bool accepts = begin_all(g, &w);
    struct continuation *c = &g->continuations[continuation];
    if (!fine(g)) return;
    ASSERT(!c->known && from <= g->item_count);
    c->work = (uint32_t)(rx_pool_work(g->pool) - before);
    c->items = (uint32_t)from;
    c->item_count = (uint32_t)(g->item_count - from);
    c->accepts = accepts;
    c->known = true;
}

/* ---- states ---- */

static int by_continuation(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    if (x->continuation != y->continuation) return x->continuation < y->continuation ? -1 : 1;
    return x->residual < y->residual ? -1 : x->residual > y->residual;
}

static uint32_t state_hash(const struct item *p, uint32_t n, bool accepts)
{
    uint64_t h = mix(n, accepts);
    for (uint32_t i = 0; i < n; i++) h = mix(mix(h, p[i].residual), p[i].continuation);
    return (uint32_t)h;
}

/* Merges the items from `from` on that have the same continuation. Work is charged where items are added,
 * because their order here depends on earlier work. */
static void unite(struct grammar *g, size_t from)
{
    rx_pool_free_of_charge(g->pool, true);
    struct item *p = g->items + from;
    size_t n = g->item_count - from, m = 0;
    rx *residual = NULL;
    size_t cap = 0;
    qsort(p, n, sizeof *p, by_continuation);
    for (size_t i = 0, k; i < n; i = k) {
        uint32_t continuation = p[i].continuation;
        for (k = i + 1; k < n && p[k].continuation == continuation; k++) {
        }
        if (k - i > 1 && !LIST_RESERVE(residual, cap, k - i)) {
            g->failed = true;
            break;
        }
        for (size_t j = i; k - i > 1 && j < k; j++) residual[j - i] = p[j].residual;
        p[m++] = (struct item){k - i > 1 ? rx_union(g->pool, residual, k - i) : p[i].residual, continuation};
    }
    free(residual);
    g->item_count = from + m;
    rx_pool_free_of_charge(g->pool, false);
}

static bool place_add(struct grammar *g, struct item p)
{
    rx_spend(g->pool, WORK_PLACE + 8 * (size_t)rx_items(g->pool, p.residual));
    if (!items_reserve(g, 1)) g->failed = true;
    else g->items[g->item_count++] = p;
    return fine(g);
}

/* The state of the merged items from `from` on; consumes them. */
static uint32_t state_of(struct grammar *g, size_t from, bool accepts)
{
    ASSERT_CMP(from, <=, g->item_count);
    struct item *p = g->items + from;
    uint32_t m = (uint32_t)(g->item_count - from);
    g->item_count = from;
    if (!fine(g) || (!m && !accepts)) return STATE_DEAD;
    uint32_t hash = state_hash(p, m, accepts), at = hash;
    for (uint32_t id; (id = id_table_next(&g->state_table, hash, &at));) {
        const struct state *s = &g->states[id];
        if (s->item_count == m && s->accepts == accepts &&
            (!m || memcmp(g->items + s->items, p, m * sizeof *p) == 0))
            return id;
    }
    if (!LIST_RESERVE(g->states, g->state_cap, g->state_count + 1u) ||
        !id_table_add(&g->state_table, hash, g->state_count)) {
        g->failed = true;
        return STATE_DEAD;
    }
    g->item_count += m;
    g->states[g->state_count] = (struct state){
        .items = (uint32_t)from, .item_count = m, .accepts = accepts, .token_class = TOKEN_CLASS_UNKNOWN};
    return g->state_count++;
}

/* ---- steps ---- */

/* Sets the work limit from here. */
static void limit(struct grammar *g)
{
    rx_pool_work_max(g->pool, WORK_NEXT);
}

bool machine__ended(struct grammar *g, bool *over)
{
    enum status st = rx_status(g->pool);
    *over = st == ST_TOO_LARGE;
    g->full = rx_pool_full(g->pool);
    g->later = g->later || st == ST_AGAIN;
    g->failed = g->failed || (st && !*over && st != ST_AGAIN);
    rx_pool_work_max(g->pool, SIZE_MAX);
    return !g->failed && !g->full && !g->later;
}

static bool transitions_make(struct grammar *g, uint32_t state)
{
    const struct state *s = &g->states[state];
    struct rx_classes classes;
    size_t before = rx_pool_work(g->pool);
    bool over;
    limit(g);
    rx_classes_begin(&classes);
    for (uint32_t i = 0; i < s->item_count; i++)
        rx_classes_add(g->pool, g->items[s->items + i].residual, &classes);
    size_t work = rx_pool_work(g->pool) - before;
    if (!machine__ended(g, &over)) return false;
    if (over) rx_classes_begin(&classes);
    size_t bytes = sizeof(struct transitions) + classes.count * sizeof(struct move);
    struct transitions *m = malloc(bytes);
    if (!m) {
        g->failed = true;
        return false;
    }
    memcpy(m->of_byte, classes.of_byte, sizeof m->of_byte);
    m->count = classes.count;
    m->work = over ? WORK_OVER : WORK_STATE + (uint32_t)work;
    m->stamp = 0;
    for (uint32_t i = 0; i < m->count; i++)
        m->to[i] = (struct move){.next = over ? STATE_DEAD : STATE_UNKNOWN, .work = over ? WORK_OVER : 0};
    g->states[state].transitions = m;
    g->transition_bytes += bytes;
    return true;
}

/* The state after the byte. */
static uint32_t step(struct grammar *g, uint32_t state, uint8_t byte)
{
    uint32_t first = g->states[state].items, n = g->states[state].item_count, ending = 0;
    bool accepts = false;
    /* Continuations come first: they add items. Many are computed together, because each alone might have the
     * items of all. */
    struct work w = {0};
    g->stamp++;
    for (uint32_t i = 0; i < n && fine(g); i++) {
        struct item p = g->items[first + i];
        if (!rx_nullable(g->pool, rx_derivative(g->pool, p.residual, byte))) continue;
        ending++;
        push(g, &w, p.continuation);
    }
    bool together = ending > TOGETHER;
    for (uint32_t i = 0; i < w.count && !together && fine(g); i++) begin(g, w.items[i]);
    size_t from = g->item_count;
    if (together) accepts = begin_all(g, &w);
    else free(w.items);
    for (uint32_t i = 0; i < n && fine(g); i++) {
        struct item p = g->items[first + i];
        rx residual = rx_live(g->pool, rx_derivative(g->pool, p.residual, byte), EMPTINESS_STATES);
        if (!residual) continue;
        bool ends = !together && rx_nullable(g->pool, residual);
        if (residual != RX_EMPTY && !place_add(g, (struct item){residual, p.continuation})) break;
        if (!ends) continue;
        const struct continuation *c = &g->continuations[p.continuation];
        accepts = accepts || c->accepts;
        for (uint32_t k = 0; k < c->item_count && place_add(g, g->items[c->items + k]); k++) {
        }
    }
    unite(g, from);
    return state_of(g, from, accepts);
}

struct move *machine__make(struct grammar *g, uint32_t state, uint8_t byte)
{
    ASSERT(state != STATE_DEAD && state < g->state_count);
    if (g->failed || g->full || g->later || (!g->states[state].transitions && !transitions_make(g, state)))
        return NULL;
    struct transitions *m = g->states[state].transitions;
    struct move *to = &m->to[m->of_byte[byte]];
    if (to->next != STATE_UNKNOWN) return to;
    size_t before = rx_pool_work(g->pool);
    bool over;
    limit(g);
    uint32_t next = step(g, state, byte);
    size_t work = rx_pool_work(g->pool) - before;
    if (!machine__ended(g, &over)) return NULL;
    *to = over ? (struct move){.next = STATE_DEAD, .work = WORK_OVER}
               : (struct move){.next = next, .work = (uint32_t)work};
    return to;
}

/* ---- all of it ---- */

static bool first_state(struct grammar *g)
{
    bool over, made = false;
    ASSERT(!g->continuation_count && !g->state_count);
    g->continuation_count = 1; /* the end */
    g->continuations[0] = (struct continuation){0};
    g->state_count = 1; /* none */
    g->states[0] = (struct state){0};
    limit(g);
    uint32_t start = cons(g, g->start, 0);
    if (!g->failed) begin(g, start);
    if (fine(g)) {
        const struct continuation *c = &g->continuations[start];
        size_t from = g->item_count;
        for (uint32_t k = 0; k < c->item_count && place_add(g, g->items[c->items + k]); k++) {
        }
        unite(g, from);
        made = state_of(g, from, c->accepts) == STATE_FIRST;
    }
    return machine__ended(g, &over) && !over && made;
}

/* All that is built on demand. */
static void made_free(struct grammar *g)
{
    for (uint32_t i = 1; i < g->state_count; i++) free(g->states[i].transitions);
    free(g->continuations);
    free(g->items);
    free(g->states);
    id_table_free(&g->continuation_table);
    id_table_free(&g->state_table);
    id_table_free(&g->repeat_table);
    g->continuations = NULL;
    g->items = NULL;
    g->states = NULL;
    g->continuation_count = g->state_count = 0;
    g->item_count = g->transition_bytes = g->continuation_cap = g->item_cap = g->state_cap = 0;
}

bool machine__open(struct grammar *g)
{
    g->failed = !LIST_RESERVE(g->continuations, g->continuation_cap, 64) ||
                !LIST_RESERVE(g->states, g->state_cap, 64) || !items_reserve(g, 256);
    return !g->failed && first_state(g);
}

size_t machine__bytes(const struct grammar *g)
{
    return g->continuation_cap * sizeof *g->continuations + g->item_cap * sizeof *g->items +
           g->state_cap * sizeof *g->states + g->transition_bytes + g->node_cap * sizeof *g->nodes +
           g->list_cap * sizeof *g->list +
           sizeof(struct id_slot) *
               ((size_t)g->continuation_table.cap + g->state_table.cap + g->repeat_table.cap);
}

void machine__count(struct grammar *g)
{
    size_t n = rx_pool_bytes(g->pool) + members__bytes(g->members) + machine__bytes(g) + masks__bytes(g);
    if (g->memory) atomic_fetch_add(&g->memory->used, n - g->counted); /* modulo 2^64 if it shrank */
    g->counted = g->memory ? n : 0;
    atomic_store(&g->bytes, g->failed ? SIZE_MAX : n);
}

void machine__close(struct grammar *g)
{
    if (g->memory) atomic_fetch_sub(&g->memory->used, g->counted);
    made_free(g);
    masks__free(g);
}

size_t machine__allocated(const struct grammar *g)
{
    return g->state_count * sizeof *g->states + g->transition_bytes +
           g->continuation_count * sizeof *g->continuations + g->item_count * sizeof *g->items +
           (g->node_count - g->node_base) * sizeof *g->nodes + rx_pool_made(g->pool) +
           members__allocated(g->members);
}

bool machine__untidy(const struct grammar *g)
{
    size_t made = machine__allocated(g);
    bool is_short = g->memory && atomic_load(&g->memory->used) > g->memory->most;
    return made > (is_short ? MADE_SHORT : MADE_LIMIT) || (made > MADE_MAX && made > 2 * g->rebuilt_bytes);
}

void machine__tidy(struct grammar *g)
{
    if (!machine__untidy(g)) return;
    machine__drop(g);
    machine__count(g);
}

void machine__drop(struct grammar *g)
{
    made_free(g);
    g->full = false;
    g->generation++;
    g->rebuilt_bytes = 0;
    g->node_count = g->node_base;
    LIST_FIT(g->nodes, g->node_cap, g->node_count);
    members__drop(g);
    rx_pool_cut(g->pool);
    masks__drop(g);
    if (!machine__open(g)) g->failed = true;
}
