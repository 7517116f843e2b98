/* See regex.h: questions about whole languages, answered by bounded walks over residuals. */
#include "config/base/assert.h"
#include "server/grammar/regex_pool.h"

#include <string.h>

/* Work limit above which a question counts as undecided: per state that may be visited; less if the first one
 * is wide, or far from an end. */
#define LIFE_WORK     512u
#define LIFE_WIDE     8192u
#define COVERS_WORK   (1u << 19)
#define SEARCH_PART   4u /* divisor of the charged work: repeated lookups are cached */
#define BOUNDED_NODES 8192u

struct search {     /* reached pairs */
    uint64_t *seen; /* hash set; 0 = free; holds key + 1 */
    struct at {
        rx x, y;
        struct rx_classes *classes; /* NULL: not expanded yet */
        unsigned byte;              /* next to try */
    } * path;
    size_t cap, count, depth, states;
    size_t before, work_max; /* the pool's */
};

/* The search has its own work limit, independent of the caller's: so the result depends on the expression
 * alone. */
static bool search_open(struct rx_pool *p, struct search *q, size_t states, size_t work)
{
    *q = (struct search){.cap = 64, .states = states, .before = p->work, .work_max = p->work_max};
    p->work_max = p->work + work;
    while (q->cap < 4 * states) q->cap *= 2;
    q->seen = calloc(q->cap, sizeof *q->seen);
    q->path = malloc((states + 1) * sizeof *q->path);
    if (!q->seen || !q->path) (void)rx__fail(p, ST_NOMEM);
    return !p->st;
}

static void search_close(struct rx_pool *p, struct search *q)
{
    while (q->path && q->depth) free(q->path[--q->depth].classes);
    free(q->seen);
    free(q->path);
    if (p->st == ST_TOO_LARGE && !p->full) p->st = ST_OK;
    p->work_max = q->work_max;
    p->work = q->before + (p->work - q->before) / SEARCH_PART;
    rx_spend(p, 0);
}

/* Visits the pair unless already visited; false: too many. */
static bool search_put(struct search *q, rx x, rx y)
{
    uint64_t key = (uint64_t)x << 32 | y, h = mix(7, key);
    for (; q->seen[h & (q->cap - 1)]; h++)
        if (q->seen[h & (q->cap - 1)] == key + 1) return true;
    if (q->count == q->states) return false;
    ASSERT(q->count < q->cap / 2 && q->depth <= q->states); /* a free slot ends each search */
    q->seen[h & (q->cap - 1)] = key + 1;
    q->count++;
    q->path[q->depth++] = (struct at){.x = x, .y = y};
    return true;
}

/* The next untried byte, one per class, at the current pair; *at: that pair. -1: all tried. -2: undecided. */
static int search_next(struct rx_pool *p, struct search *q, struct at *at)
{
    while (q->depth) {
        struct at *top = &q->path[q->depth - 1];
        if (!top->classes) {
            top->classes = malloc(sizeof *top->classes);
            if (!top->classes) return (void)rx__fail(p, ST_NOMEM), -2;
            rx_classes_begin(top->classes);
            rx_classes_add(p, top->x, top->classes);
            if (top->y) rx_classes_add(p, top->y, top->classes);
        }
        struct rx_classes *c = top->classes;
        while (top->byte < 256 && !c->size[c->of_byte[top->byte]]) top->byte++;
        if (top->byte < 256) {
            if (p->st) return -2;
            c->size[c->of_byte[top->byte]] = 0; /* tried */
            *at = *top;
            return (int)top->byte;
        }
        free(c);
        q->depth--;
    }
    return -1;
}

static enum emptiness walk(struct rx_pool *p, rx a, size_t states)
{
    struct search q;
    struct at at;
    struct rx_classes classes;
    enum emptiness found = search_open(p, &q, states, LIFE_WORK * states) ? LIFE_NONE : LIFE_UNSURE;
    rx_classes_begin(&classes);
    rx_classes_add(p, a, &classes);
    if (p->work - q.before > LIFE_WIDE || p->nodes[a].least > states)
        p->work_max = p->work + LIFE_WORK * states / 32;
    if (p->st || !search_put(&q, a, 0)) found = LIFE_UNSURE;
    for (int byte; found == LIFE_NONE && (byte = search_next(p, &q, &at)) != -1;) {
        rx to = byte < 0 ? RX_NONE : rx_derivative(p, at.x, (uint8_t)byte);
        if (byte < 0 || p->st) found = LIFE_UNSURE;
        else if (p->nodes[to].nullable || !p->nodes[to].logic) found = to ? LIFE_SOME : found;
        else if (!search_put(&q, to, 0)) found = LIFE_UNSURE;
    }
    search_close(p, &q);
    return found;
}

/* Derives a property of a sequence or alternatives from its parts. Result and work depend on the expression
 * alone: all parts are visited, whatever is found. */
static enum emptiness life_of(struct rx_pool *p, rx a, size_t states)
{
    struct node n = p->nodes[a];
    size_t before = p->work;
    rx_spend(p, n.emptiness ? n.life_work : WORK_ITEM);
    if (p->st) return LIFE_UNSURE;
    if (n.emptiness) return n.emptiness;
    enum emptiness out = n.kind == K_ALT ? LIFE_NONE : LIFE_SOME, part;
    bool none = false;
    for (uint32_t i = 0; n.kind == K_AND && i < n.b; i++)
        none = life_of(p, p->list[n.a + i], states) == LIFE_NONE || none;
    if (n.kind == K_AND || n.kind == K_NOT) out = none ? LIFE_NONE : walk(p, a, states);
    if (n.kind == K_REPEAT) out = life_of(p, n.a, states);
    for (uint32_t i = 0; n.kind == K_ALT && i < n.b; i++) {
        part = life_of(p, p->list[n.a + i], states);
        if (part != LIFE_NONE && out != LIFE_SOME) out = part;
    }
    for (rx x = a; n.kind == K_CONCAT && out != LIFE_NONE; x = n.b) {
        n = p->nodes[x];
        if (n.nullable || !n.logic) break;
        part = life_of(p, n.kind == K_CONCAT ? n.a : x, states);
        if (part != LIFE_SOME) out = part;
    }
    if (p->st) return LIFE_UNSURE;
    ASSERT(out != LIFE_UNKNOWN);
    p->nodes[a].emptiness = (uint8_t)out;
    p->nodes[a].life_work = rx__since(p, before);
    return out;
}

bool rx_matches_nothing(struct rx_pool *p, rx a, size_t states)
{
    return life_of(p, a, states) == LIFE_NONE;
}

rx rx_live(struct rx_pool *p, rx a, size_t states)
{
    struct node n = p->nodes[a];
    if (!n.logic) return a;
    if (n.kind != K_ALT) return rx_matches_nothing(p, a, states) ? RX_NONE : a;
    size_t from = p->part_count;
    for (uint32_t i = 0; i < n.b; i++) {
        rx x = p->list[n.a + i];
        if (!rx_matches_nothing(p, x, states)) rx__push(p, K_ALT, x);
    }
    return rx__alt_end(p, from);
}

/* Walks a and `of` together over the strings of `of`: at each position a must have a non-empty residual, or,
 * with `whole`, match where `of` does. */
static bool covers(struct rx_pool *p, rx a, rx of, bool whole, size_t states)
{
    enum { EMPTINESS_STATES = 1024 }; /* as in the machine: results are cached */
    struct search q;
    struct at at;
    if (p->st) return false;
    bool ok = search_open(p, &q, states, COVERS_WORK) && search_put(&q, a, of);
    for (int byte; ok && (byte = search_next(p, &q, &at)) != -1;) {
        rx to = byte < 0 ? RX_NONE : rx_derivative(p, at.y, (uint8_t)byte), here;
        ok = byte >= 0;
        if (!to) continue;
        here = rx_derivative(p, at.x, (uint8_t)byte);
        ok = here && !p->st && !rx_matches_nothing(p, here, EMPTINESS_STATES) &&
             !(whole && p->nodes[to].nullable && !p->nodes[here].nullable) && search_put(&q, here, to);
    }
    ok = ok && !p->st;
    search_close(p, &q);
    return ok;
}

/* covers, for one string of `one`; cached. */
static bool takes(struct rx_pool *p, rx a, rx one)
{
    struct taken *t = &p->taken[mix(a, one) % (sizeof p->taken / sizeof *p->taken)];
    size_t before = p->work;
    if (t->a == a && t->one == one) {
        rx_spend(p, t->work);
        return t->yes;
    }
    bool yes = covers(p, a, one, true, 128);
    if (!p->st) *t = (struct taken){a, one, rx__since(p, before), yes};
    return yes;
}

/* Are its strings of only a few lengths? *left: nodes that may be visited. */
static bool bounded(const struct rx_pool *p, rx a, uint32_t *left)
{
    const struct node *n = &p->nodes[a];
    if (*left == 0 || n->logic || n->kind == K_NOT || n->kind == K_REPEAT || n->kind == K_MULTIPLE)
        return false;
    --*left;
    if (n->kind == K_CONCAT) return bounded(p, n->a, left) && bounded(p, n->b, left);
    for (uint32_t i = 0; n->kind == K_ALT && i < n->b; i++)
        if (!bounded(p, p->list[n->a + i], left)) return false;
    return true;
}

bool rx_bounded(struct rx_pool *p, rx a)
{
    uint32_t left = p->st ? 0 : BOUNDED_NODES;
    bool yes = bounded(p, a, &left);
    rx_spend(p, p->st ? 1 : BOUNDED_NODES - left + 1);
    return yes;
}

rx rx_widened(struct rx_pool *p, rx a)
{
    struct node n = p->nodes[a], h = p->nodes[n.kind == K_CONCAT ? n.a : a];
    size_t from = p->part_count;
    if (h.kind != K_AND || (n.kind == K_CONCAT && !rx_bounded(p, n.b))) return a;
    for (uint32_t i = 0; i < h.b; i++) {
        rx part = p->list[h.a + i];
        struct node x = p->nodes[part];
        if (x.kind != K_NOT || !rx_bounded(p, x.a)) rx__push(p, K_AND, part);
    }
    rx out = rx__and_end(p, from);
    return n.kind == K_CONCAT ? rx_concat(p, out, n.b) : out;
}

uint32_t rx_free_run(struct rx_pool *p, rx a, rx one)
{
    struct node n = p->nodes[a];
    rx head = n.kind == K_CONCAT ? n.a : a;
    struct node h = p->nodes[head];
    uint32_t most = 0;
    rx_spend(p, WORK_ITEM);
    if (p->st) return 0;
    if (h.kind == K_REPEAT && takes(p, h.a, one)) return h.c;
    rx wide = rx_widened(p, a);
    if (wide != a && rx_free_run(p, wide, one) == RX_NO_LIMIT) return RX_NO_LIMIT;
    for (uint32_t i = 0; n.kind == K_ALT && i < n.b; i++) {
        uint32_t run = rx_free_run(p, p->list[n.a + i], one);
        most = run > most ? run : most;
    }
    if (most) return most;
    if (n.kind <= K_BYTES || (!n.logic && n.kind != K_ALT)) return 0;
    return covers(p, a, rx_repeat(p, one, 0, RX_NO_LIMIT), false, 64) ? RX_NO_LIMIT : 0;
}
