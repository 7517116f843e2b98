/* See build.h. Its result is what machine.c runs. */
#include "server/grammar/build.h"

#include "config/base/assert.h"
#include "config/base/id_table.h"
#include "config/base/list.h"
#include "server/grammar/machine.h"

#include <stdlib.h>
#include <string.h>

#define NODES_MAX        (1u << 21)
#define REGEXES_MAX      ((size_t)1 << 21)
#define EMPTINESS_STATES 4096u
#define WORK_MAX         ((size_t)1 << 26) /* limit on work while building: some tenths of a second */
/* Limit on lazily built data, above which it is dropped: a walk reaches its work limit first. */
#define ROOM_NODES ((size_t)1 << 21)
#define ROOM_ITEMS ((size_t)1 << 25)

struct grammar_builder {
    struct grammar *g;
    enum status st; /* of the first failed call */
};

gx grammar__node(struct grammar *g, struct gx_node n)
{
    if (!LIST_RESERVE(g->nodes, g->node_cap, g->node_count + 1u)) return 0;
    if (!g->node_count) g->nodes[g->node_count++] = (struct gx_node){.kind = GX_FAILED};
    g->nodes[g->node_count] = n;
    return g->node_count++;
}

static gx add(struct grammar_builder *b, struct gx_node n)
{
    if (b->st) return 0;
    if (b->g->node_count >= NODES_MAX) {
        b->st = ST_TOO_LARGE;
        return 0;
    }
    gx out = grammar__node(b->g, n);
    if (!out) b->st = ST_NOMEM;
    return out;
}

static void grammar_free(struct grammar *g)
{
    machine__close(g);
    rx_pool_free(g->pool);
    free(g->nodes);
    free(g->list);
    members__free(g->members);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

struct grammar *grammar_ref(struct grammar *g)
{
    ASSERT_CMP(atomic_fetch_add(&g->refs, 1), >, 0);
    return g;
}

void grammar_unref(struct grammar *g)
{
    if (g && atomic_fetch_sub(&g->refs, 1) == 1) grammar_free(g);
}

enum status gb_create(struct grammar_builder **out)
{
    struct grammar_builder *b = calloc(1, sizeof *b);
    struct grammar *g = calloc(1, sizeof *g);
    if (g) g->masks = masks__create();
    if (!b || !g || !g->masks || pthread_mutex_init(&g->lock, NULL)) {
        if (g) free(g->masks);
        free(b);
        free(g);
        return ST_NOMEM;
    }
    atomic_init(&g->refs, 1);
    b->g = g;
    if (rx_pool_create(REGEXES_MAX, &g->pool)) {
        gb_free(b);
        return ST_NOMEM;
    }
    rx_pool_work_max(b->g->pool, WORK_MAX);
    *out = b;
    return ST_OK;
}

void gb_free(struct grammar_builder *b)
{
    if (!b) return;
    if (b->g) grammar_unref(b->g);
    free(b);
}

struct rx_pool *gb_pool(struct grammar_builder *b)
{
    return b->g->pool;
}

gx gb_regex(struct grammar_builder *b, rx a)
{
    return add(b, (struct gx_node){.kind = a == RX_EMPTY ? GX_EMPTY : GX_REGEX, .a = a});
}

gx gb_literal(struct grammar_builder *b, const void *bytes, size_t len)
{
    return gb_regex(b, rx_literal(b->g->pool, bytes, len));
}

gx gb_seq(struct grammar_builder *b, const gx *list, size_t n)
{
    gx out = n ? list[n - 1] : add(b, (struct gx_node){.kind = GX_EMPTY});
    for (size_t i = n; i-- > 1 && out;)
        out = list[i - 1] ? add(b, (struct gx_node){.kind = GX_SEQ, .a = list[i - 1], .b = out}) : 0;
    return out;
}

gx gb_alt(struct grammar_builder *b, const gx *list, size_t n)
{
    struct grammar *g = b->g;
    if (n == 1) return list[0];
    if (b->st || n > UINT32_MAX / 2) return 0;
    for (size_t i = 0; i < n; i++)
        if (!list[i]) return 0;
    if (!LIST_RESERVE(g->list, g->list_cap, g->list_count + n)) {
        b->st = ST_NOMEM;
        return 0;
    }
    if (n) memcpy(g->list + g->list_count, list, n * sizeof *list);
    g->list_count += n;
    return add(b, (struct gx_node){.kind = GX_ALT, .a = (uint32_t)(g->list_count - n), .b = (uint32_t)n});
}

gx gb_repeat(struct grammar_builder *b, gx a, uint32_t min, uint32_t max)
{
    if (!a || b->st) return 0;
    if (max < min) return gb_alt(b, NULL, 0);
    if (min == 1 && max == 1) return a;
    if (!max) return gb_seq(b, NULL, 0);
    return add(b, (struct gx_node){.kind = GX_REPEAT, .a = a, .b = min, .c = max});
}

gx gb_list(struct grammar_builder *b, gx element, gx comma, uint32_t min, uint32_t max)
{
    if (!max) return gb_seq(b, NULL, 0);
    uint32_t least = min ? min - 1 : 0, most = max == RX_NO_LIMIT ? max : max - 1;
    gx more = gb_repeat(b, GB_SEQ(b, comma, element), least, most);
    return gb_repeat(b, GB_SEQ(b, element, more), min > 0, 1);
}

gx gb_members(struct grammar_builder *b, const struct gb_members *m)
{
    struct gx_node node;
    if (b->st || !m->comma || m->wants > GB_WANTS_MAX) return 0;
    for (size_t i = 0; i < m->count; i++) {
        ASSERT(m->list[i].name < m->names || m->list[i].name == GB_FURTHER);
        ASSERT_CMP(m->list[i].gives, <, 1u << m->wants);
        if (!m->list[i].what) return 0;
    }
    if (members__add(b->g, m, &node)) return add(b, node);
    b->st = ST_NOMEM;
    return 0;
}

gx gb_rule(struct grammar_builder *b)
{
    return add(b, (struct gx_node){.kind = GX_RULE});
}

void gb_define(struct grammar_builder *b, gx rule, gx body)
{
    ASSERT(!rule || b->g->nodes[rule].kind == GX_RULE);
    if (rule && body) b->g->nodes[rule].a = body;
}

rx grammar__character(struct rx_pool *p, enum token_class_of_what what)
{
    if (what == TOKEN_CLASS_WORD)
        return rx_alt(p, rx_chars(p, '0', '9'), rx_alt(p, rx_chars(p, 'A', 'Z'), rx_chars(p, 'a', 'z')));
    /* Without the two line terminators, which a pattern's dot does not match. */
    rx high = rx_alt(p, rx_chars(p, 0x5D, 0x2027), rx_chars(p, 0x202A, 0x10FFFF));
    return rx_alt(p, rx_chars(p, 0x20, 0x21), rx_alt(p, rx_chars(p, 0x23, 0x5B), high));
}

/* ---- the end ---- */

/* A : A x | y -> A : y x*, if that is the only left recursion. */
static void unroll(struct grammar_builder *b, gx rule)
{
    struct grammar *g = b->g;
    struct gx_node body = g->nodes[g->nodes[rule].a];
    if (body.kind != GX_ALT) return;
    gx *again = calloc(2 * (size_t)body.b + 1, sizeof *again), *first = again + body.b;
    size_t agains = 0, firsts = 0;
    if (!again) {
        b->st = ST_NOMEM;
        return;
    }
    for (uint32_t i = 0; i < body.b; i++) {
        gx x = g->list[body.a + i];
        const struct gx_node *n = &g->nodes[x];
        if (n->kind == GX_SEQ && n->a == rule) again[agains++] = n->b;
        else if (x != rule) first[firsts++] = x;
    }
    if (agains || firsts < body.b) {
        gx more = gb_repeat(b, gb_alt(b, again, agains), 0, RX_NO_LIMIT);
        gb_define(b, rule, GB_SEQ(b, gb_alt(b, first, firsts), more));
    }
    free(again);
}

/* A rule's facts are its body's, which are known sooner. */
static const struct gx_node *seen(const struct grammar *g, gx x)
{
    return &g->nodes[g->nodes[x].kind == GX_RULE ? g->nodes[x].a : x];
}

static void facts(struct grammar *g, struct gx_node *n)
{
    const struct gx_node *a = seen(g, n->kind >= GX_SEQ && n->kind <= GX_RULE ? n->a : 0), *b;
    switch (n->kind) {
    case GX_EMPTY: n->nullable = n->productive = true; break;
    case GX_REGEX:
        if (n->marked) break;
        n->marked = true;
        n->nullable = rx_nullable(g->pool, n->a);
        n->productive = n->a && !rx_matches_nothing(g->pool, n->a, EMPTINESS_STATES);
        break;
    case GX_SEQ:
        b = seen(g, n->b);
        n->nullable = a->nullable && b->nullable;
        n->productive = a->productive && b->productive;
        break;
    case GX_ALT:
        for (uint32_t i = 0; i < n->b; i++) {
            const struct gx_node *x = seen(g, g->list[n->a + i]);
            n->nullable = n->nullable || x->nullable;
            n->productive = n->productive || x->productive;
        }
        break;
    case GX_REPEAT:
        n->nullable = n->b == 0 || a->nullable;
        n->productive = n->b == 0 || a->productive;
        break;
    case GX_RULE:
        n->nullable = a->nullable;
        n->productive = a->productive;
        break;
    case GX_MEMBERS: members__facts(g, n); break;
    default: break;
    }
}

static void facts_all(struct grammar *g)
{
    for (bool changed = true; changed && !rx_status(g->pool);) {
        changed = false;
        rx_spend(g->pool, g->node_count);
        for (uint32_t i = 1; i < g->node_count; i++) {
            struct gx_node *n = &g->nodes[i], was = *n;
            facts(g, n);
            changed = changed || was.nullable != n->nullable || was.productive != n->productive;
        }
    }
}

/* Is an expression left-recursive? Depth first, with an explicit stack: color 1 is on the path. */
static enum status left_recursion(struct grammar *g, struct err *err)
{
    uint8_t *color = calloc(g->node_count, 1);
    struct frame {
        gx x;
        uint32_t child;
    } *stack = malloc((g->node_count + 1u) * sizeof *stack);
    enum status st = color && stack ? ST_OK : err_nomem(err, "a grammar");
    size_t depth = 0;
    for (gx from = 1; !st && (depth || from < g->node_count);) {
        if (!depth) { /* each is a root: some are only reached after a text */
            if (!color[from]) {
                color[from] = 1;
                stack[depth++] = (struct frame){from, 0};
            }
            from++;
            continue;
        }
        struct frame *f = &stack[depth - 1];
        const struct gx_node *n = &g->nodes[f->x];
        gx child = 0;
        uint32_t k = f->child++;
        if (n->kind == GX_SEQ) child = k == 0 ? n->a : k == 1 && g->nodes[n->a].nullable ? n->b : 0;
        else if (n->kind == GX_ALT) child = k < n->b ? g->list[n->a + k] : 0;
        else if (n->kind == GX_REPEAT || n->kind == GX_RULE) child = k == 0 ? n->a : 0;
        if (!child) {
            color[f->x] = 2;
            depth--;
        } else if (color[child] == 1) {
            st = err_set(err, ST_INVALID, "a rule of the grammar refers to itself before any text");
        } else if (!color[child]) {
            color[child] = 1;
            stack[depth++] = (struct frame){child, 0};
        }
    }
    ASSERT(st || !depth);
    free(color);
    free(stack);
    return st;
}

static enum status check(struct grammar_builder *b, gx start, struct err *err)
{
    struct grammar *g = b->g;
    enum status st = b->st ? b->st : rx_status(g->pool);
    if (st == ST_NOMEM) return err_set(err, st, "out of memory for a grammar");
    if (st) return err_set(err, st, "the grammar is too large");
    if (!start) return err_set(err, ST_INVALID, "the grammar is empty");
    g->start = start;
    uint32_t count = g->node_count;
    for (uint32_t i = 1; i < count; i++) {
        if (g->nodes[i].kind != GX_RULE) continue;
        if (!g->nodes[i].a) return err_set(err, ST_INVALID, "a rule of the grammar is not defined");
        unroll(b, i);
    }
    if (b->st) return err_set(err, b->st, "the grammar is too large");
    facts_all(g);
    if (rx_status(g->pool)) return err_set(err, rx_status(g->pool), "the grammar is too large");
    if (!g->nodes[start].productive)
        return err_set(err, ST_INVALID, "no text satisfies the schema or grammar");
    return left_recursion(g, err);
}

enum status gb_finish(struct grammar_builder *b, gx start, struct grammar **out, struct err *err)
{
    struct grammar *g = b->g;
    ASSERT(g); /* finished once */
    enum status st = check(b, start, err);
    rx_pool_stop(g->pool, NULL);
    if (!st) {
        for (int i = 0; i < TOKEN_CLASS_KINDS; i++)
            g->one[i] = grammar__character(g->pool, (enum token_class_of_what)i);
        rx_pool_base(g->pool, ROOM_NODES, ROOM_ITEMS);
        g->node_base = g->node_count;
        members__base(g);
        if (!machine__open(g))
            st = g->failed ? err_nomem(err, "a grammar")
                           : err_set(err, ST_TOO_LARGE, "the grammar can begin in too many ways");
    }
    if (!st) {
        machine__count(g);
        *out = g;
        b->g = NULL;
    }
    gb_free(b);
    return st;
}

/* ---- counts, decremented while it runs ---- */

gx grammar__repeat(struct grammar *g, gx a, uint32_t min, uint32_t max)
{
    ASSERT(a && a < g->node_count && min <= max);
    uint32_t hash = (uint32_t)mix((uint64_t)a << 32 | min, max), at = hash;
    for (uint32_t id; (id = id_table_next(&g->repeat_table, hash, &at));)
        if (g->nodes[id].a == a && g->nodes[id].b == min && g->nodes[id].c == max) return id;
    gx out = grammar__node(g, (struct gx_node){.kind = GX_REPEAT,
                                               .a = a,
                                               .b = min,
                                               .c = max,
                                               .nullable = min == 0 || g->nodes[a].nullable,
                                               .productive = true});
    return out && id_table_add(&g->repeat_table, hash, out) ? out : 0;
}
