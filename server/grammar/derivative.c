/* See regex.h: residuals. The transitions of an expression are found once, by a closure over its positions;
 * the residual after a byte is the set of what follows them. */
#include "config/base/assert.h"
#include "config/base/list.h"
#include "server/grammar/regex_pool.h"

#include <string.h>

#define MEMO_MAX     (1u << 18)
#define SET_MAX      (1u << 15) /* items of one set, and transitions of one */
#define WORK_COUNT   96u        /* per merged item with counters */
#define SPINE_MAX    24u        /* cells of an item searched for counters */
#define COUNTERS_MAX 4u

/* ---- sets of items ---- */

struct counted { /* an item relative to one of its counters */
    uint64_t key;
    uint32_t min, max;
    rx item, base, rest;
    uint32_t at; /* number of cells before it */
};

/* The k-th counter of the item: false if it has fewer. */
static bool counter_of(const struct rx_pool *p, rx item, uint32_t k, struct counted *out)
{
    *out = (struct counted){.item = item};
    for (rx x = item; p->nodes[x].counts && out->at < SPINE_MAX; x = p->nodes[x].b, out->at++) {
        const struct node *n = &p->nodes[x], *h = n->kind == K_CONCAT ? &p->nodes[n->a] : n;
        if (h->kind == K_REPEAT && (h->b || h->c != RX_NO_LIMIT) && k-- == 0) {
            out->base = h->a;
            out->min = h->b;
            out->max = h->c;
            out->rest = n->kind == K_CONCAT ? n->b : RX_EMPTY;
            out->key = mix(mix(out->key, h->a), out->rest);
            return true;
        }
        if (n->kind != K_CONCAT) return false;
        out->key = mix(out->key, n->a);
    }
    return false;
}

static int by_counter(const void *a, const void *b)
{
    const struct counted *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    if (x->min != y->min) return x->min < y->min ? -1 : 1;
    return x->max < y->max ? -1 : x->max > y->max;
}

static bool same_but_count(const struct rx_pool *p, const struct counted *x, const struct counted *y)
{
    if (x->base != y->base || x->rest != y->rest || x->at != y->at) return false;
    rx a = x->item, b = y->item;
    for (uint32_t i = 0; i < x->at; i++, a = p->nodes[a].b, b = p->nodes[b].b)
        if (p->nodes[a].a != p->nodes[b].a) return false;
    return true;
}

static rx with_count(struct rx_pool *p, const struct counted *c)
{
    ASSERT(c->at < SPINE_MAX && c->min <= c->max);
    rx cells[SPINE_MAX], x = c->item;
    for (uint32_t i = 0; i < c->at; i++, x = p->nodes[x].b) cells[i] = p->nodes[x].a;
    rx out = rx__cons(
        p, rx__intern(p, (struct node){.kind = K_REPEAT, .a = c->base, .b = c->min, .c = c->max}, NULL),
        c->rest);
    for (uint32_t i = c->at; i-- > 0;) out = rx__cons(p, cells[i], out);
    return out;
}

/* In the list from there on, merges items that differ in one count only, if their counts leave no gap: a{1,2}
 * and a{3,5} become a{1,5}. So a nested repeat has as many items as its own count, not the product of both.
 */
static void merge_counts(struct rx_pool *p, size_t from)
{
    struct counted *list = NULL, c;
    for (uint32_t k = COUNTERS_MAX; k-- > 0;) {
        size_t n = 0, kept = from;
        for (size_t i = from; i < p->part_count; i++) n += counter_of(p, p->parts[i], k, &c);
        if (n < 2) continue;
        if (!list) list = malloc((p->part_count - from) * sizeof *list);
        if (!list) {
            (void)rx__fail(p, ST_NOMEM);
            return;
        }
        n = 0;
        for (size_t i = from; i < p->part_count; i++)
            if (counter_of(p, p->parts[i], k, &c)) list[n++] = c;
            else p->parts[kept++] = p->parts[i];
        qsort(list, n, sizeof *list, by_counter);
        for (size_t i = 0; i < n;) {
            c = list[i++];
            bool changed = false;
            for (; i < n && same_but_count(p, &c, &list[i]) && list[i].min <= c.max + (c.max < RX_NO_LIMIT);
                 i++) {
                changed = changed || list[i].max > c.max;
                if (list[i].max > c.max) c.max = list[i].max;
            }
            p->parts[kept++] = changed ? with_count(p, &c) : c.item;
        }
        p->part_count = kept;
    }
    free(list);
}

/* The set of the items from there on; removes them. */
static rx set_end(struct rx_pool *p, size_t from)
{
    bool counts = false;
    rx__sort(p, from);
    size_t n = p->part_count - from;
    for (size_t i = 0; i < n; i++) counts = counts || p->nodes[p->parts[from + i]].counts;
    rx_spend(p, (counts ? WORK_COUNT : WORK_ITEM) * n);
    if (counts && n > 1) merge_counts(p, from);
    if (p->part_count - from > SET_MAX) (void)rx__fail(p, ST_TOO_LARGE);
    return rx__alt_end(p, from);
}

rx rx_union(struct rx_pool *p, const rx *list, size_t n)
{
    size_t from = p->part_count;
    for (size_t i = 0; i < n; i++)
        if (list[i]) rx__push(p, K_ALT, list[i]);
    return set_end(p, from);
}

/* Was the pair already visited in this closure? Marks it. */
static bool seen_before(struct rx_pool *p, rx what, rx rest)
{
    if (2 * (p->seen_count + 1) > p->seen_cap) {
        size_t cap = p->seen_cap ? 2 * p->seen_cap : 256, old = p->seen_cap;
        struct seen *was = p->seen, *to = calloc(cap, sizeof *to);
        if (!to) return rx__fail(p, ST_NOMEM), true;
        p->seen = to;
        p->seen_cap = cap;
        p->seen_count = 0;
        for (size_t i = 0; i < old; i++)
            if (was[i].stamp == p->stamp) (void)seen_before(p, was[i].what, was[i].rest);
        free(was);
    }
    uint64_t h = mix(mix(what, 1), rest);
    for (; p->seen[h & (p->seen_cap - 1)].stamp == p->stamp; h++) {
        const struct seen *s = &p->seen[h & (p->seen_cap - 1)];
        if (s->what == what && s->rest == rest) return true;
    }
    p->seen[h & (p->seen_cap - 1)] = (struct seen){what, rest, p->stamp};
    p->seen_count++;
    return false;
}

static void first_add(struct rx_pool *p, uint32_t what, rx rest)
{
    if (!LIST_RESERVE(p->firsts, p->first_cap, p->first_count + 1)) (void)rx__fail(p, ST_NOMEM);
    else p->firsts[p->first_count++] = (struct first){what, rest};
}

/* Queues `what` then `rest` unless already visited. */
static void visit(struct rx_pool *p, size_t *todo, rx what, rx rest)
{
    const struct node *n = &p->nodes[what];
    rx head = rx__head(p, what);
    rx_spend(p, WORK_NODE);
    if (n->kind == K_AND || n->kind == K_NOT) {
        first_add(p, what | LOGIC, rest);
        return;
    }
    if (head) {
        first_add(p, p->nodes[head].a, rx__cons(p, rx__tail(p, what), rest));
        return;
    }
    if (n->kind <= K_EMPTY || p->st || seen_before(p, what, rest)) return;
    if (!LIST_RESERVE(p->todo, p->todo_cap, *todo + 1)) (void)rx__fail(p, ST_NOMEM);
    else p->todo[(*todo)++] = (struct first){what, rest};
}

/* Computes the transitions of `a`: each initial position once, in about as many steps. */
static bool first_make(struct rx_pool *p, rx a)
{
    size_t from = p->first_count, todo = 0, before = p->work;
    if (p->first_count > LIST_MAX) return rx__fail_full(p), false;
    p->stamp++;
    p->seen_count = 0;
    visit(p, &todo, a, RX_EMPTY);
    while (todo && !p->st) {
        struct first f = p->todo[--todo];
        struct node n = p->nodes[f.what];
        rx less = f.what;
        if (p->first_count - from > SET_MAX || todo > SET_MAX) return rx__fail(p, ST_TOO_LARGE), false;
        switch (n.kind) {
        case K_CONCAT:
            visit(p, &todo, n.a, rx__cons(p, n.b, f.rest));
            if (p->nodes[n.a].nullable) visit(p, &todo, n.b, f.rest);
            break;
        case K_ALT:
            for (uint32_t i = 0; i < n.b; i++) visit(p, &todo, p->list[n.a + i], f.rest);
            break;
        case K_MULTIPLE:
            for (unsigned d = 0; d <= 10; d++) {
                less = rx__digit(p, n, d);
                rx byte = rx_literal(p, &"0123456789."[d], 1);
                if (less) first_add(p, p->nodes[byte].a, rx__cons(p, less, f.rest));
            }
            break;
        default: /* K_REPEAT; empty parts add nothing */
            if (n.b || n.c != RX_NO_LIMIT) {
                n.b -= n.b > 0;
                n.c -= n.c != RX_NO_LIMIT;
                less =
                    n.c ? rx__intern(p, (struct node){.kind = K_REPEAT, .a = n.a, .b = n.b, .c = n.c}, NULL)
                        : RX_EMPTY;
            }
            visit(p, &todo, n.a, rx__cons(p, less, f.rest));
        }
    }
    ASSERT(p->st || (!todo && p->nodes[a].first_count == FIRST_UNKNOWN));
    p->nodes[a].first = (uint32_t)from;
    p->nodes[a].first_count = (uint32_t)(p->first_count - from);
    p->nodes[a].first_work = rx__since(p, before);
    if (p->st) p->nodes[a].first_count = FIRST_UNKNOWN;
    return !p->st;
}

/* Its transitions exist; their work is charged when classes are computed, once for all bytes. */
static bool first_ready(struct rx_pool *p, rx a)
{
    size_t before = p->work;
    if (p->nodes[a].first_count == FIRST_UNKNOWN && !first_make(p, a)) return false;
    p->work = before;
    return true;
}

/* The combined derivatives of an AND's operands. */
static rx derive_and(struct rx_pool *p, struct node n, uint8_t byte)
{
    uint32_t set[8], sets = 0;
    size_t from = p->part_count;
    bool none = false, empty = false, nullable = true;
    rx bytes = RX_NONE;
    memset(set, 0xFF, sizeof set);
    for (uint32_t i = 0; i < n.b; i++) {
        rx x = rx_derivative(p, p->list[n.a + i], byte);
        rx_spend(p, WORK_NODE);
        none = none || x == RX_NONE;
        empty = empty || x == RX_EMPTY;
        nullable = nullable && p->nodes[x].nullable;
        if (p->nodes[x].kind == K_BYTES) {
            for (int w = 0; w < 8; w++) set[w] &= p->sets[p->nodes[x].a][w];
            sets++;
        } else if (x != RX_ALL) {
            rx__push(p, K_AND, x);
        }
    }
    rx_spend(p, WORK_ITEM * (p->part_count - from));
    if (sets) bytes = rx_bytes(p, set);
    none = none || (sets && !bytes) || (empty && !nullable);
    if (sets && !none) rx__push(p, K_AND, bytes);
    if (!none && !empty) return rx__and_end(p, from);
    p->part_count = from;
    return none ? RX_NONE : RX_EMPTY;
}

static rx derive(struct rx_pool *p, rx a, uint8_t byte)
{
    struct node n = p->nodes[a];
    if (n.kind == K_NOT) return rx_not(p, rx_derivative(p, n.a, byte));
    if (n.kind == K_AND) return derive_and(p, n, byte);
    if (!first_ready(p, a)) return RX_NONE;
    size_t from = p->part_count;
    n = p->nodes[a];
    rx_spend(p, n.first_count * (size_t)WORK_ITEM / 2);
    for (uint32_t i = 0; i < n.first_count && !p->st; i++) {
        struct first f = p->firsts[n.first + i];
        if (f.what & LOGIC) rx__push(p, K_ALT, rx__cons(p, rx_derivative(p, f.what & ~LOGIC, byte), f.rest));
        else if (p->sets[f.what][byte >> 5] >> (byte & 31) & 1) rx__push(p, K_ALT, f.rest);
    }
    rx_spend(p, WORK_ITEM * (p->part_count - from));
    return set_end(p, from);
}

rx rx_derivative(struct rx_pool *p, rx a, uint8_t byte)
{
    const struct node *n = &p->nodes[a];
    if (n->kind <= K_EMPTY || a == RX_ALL) return a == RX_ALL ? a : RX_NONE;
    if (n->kind == K_BYTES) return p->sets[n->a][byte >> 5] >> (byte & 31) & 1 ? RX_EMPTY : RX_NONE;
    uint32_t hash = (uint32_t)mix(0, (uint64_t)a << 8 | byte), at = hash;
    for (uint32_t id; (id = id_table_next(&p->memo_table, hash, &at));) {
        const struct memo *m = &p->memo[id];
        if (m->a != a || m->byte != byte) continue;
        rx_spend(p, m->work);
        return p->st ? RX_NONE : m->value;
    }
    size_t before = p->work;
    rx_spend(p, WORK_NODE);
    rx out = derive(p, a, byte);
    if (p->st || (id_table_grows(&p->memo_table) && !rx__may_grow(p, p->memo_table.cap))) return RX_NONE;
    if (p->memo_count >= MEMO_MAX) {
        id_table_free(&p->memo_table);
        p->memo_count = 0;
    }
    if (!LIST_RESERVE(p->memo, p->memo_cap, p->memo_count + 2) ||
        !id_table_add(&p->memo_table, hash, (uint32_t)++p->memo_count))
        return rx__fail(p, ST_NOMEM);
    ASSERT_CMP(p->memo_count, <=, MEMO_MAX);
    p->memo[p->memo_count] = (struct memo){a, out, rx__since(p, before), byte};
    return out;
}

/* Splits the classes by the set: by its bytes or their complement, whichever is smaller. */
static void split(struct rx_classes *s, const uint32_t set[8])
{
    uint16_t inside[256] = {0}; /* per class: how many of those bytes it has */
    uint16_t twin[256] = {0};   /* the new class of those bytes; 0 = none yet */
    uint8_t bytes[256];
    unsigned n = 0, in = 0;
    for (unsigned w = 0; w < 8; w++) in += (unsigned)__builtin_popcount(set[w]);
    for (unsigned w = 0; w < 8; w++)
        for (uint32_t left = in > 128 ? ~set[w] : set[w]; left; left &= left - 1)
            bytes[n++] = (uint8_t)(32 * w + (unsigned)__builtin_ctz(left));
    for (unsigned i = 0; i < n; i++) inside[s->of_byte[bytes[i]]]++;
    for (unsigned i = 0; i < n; i++) {
        uint8_t c = s->of_byte[bytes[i]];
        if (!twin[c] && inside[c] == s->size[c]) continue; /* all of it */
        if (!twin[c]) {
            twin[c] = (uint16_t)s->count++;
            s->size[twin[c]] = inside[c];
            s->size[c] = (uint16_t)(s->size[c] - inside[c]);
        }
        s->of_byte[bytes[i]] = (uint8_t)twin[c];
    }
}

void rx_classes_begin(struct rx_classes *c)
{
    memset(c, 0, sizeof *c);
    c->count = 1;
    c->size[0] = 256;
}

void rx_classes_add(struct rx_pool *p, rx a, struct rx_classes *c)
{
    struct node n = p->nodes[a];
    rx_spend(p, WORK_ITEM);
    if (n.kind <= K_EMPTY || a == RX_ALL || p->st) return;
    if (n.kind == K_NOT) rx_classes_add(p, n.a, c);
    for (uint32_t i = 0; n.kind == K_AND && i < n.b; i++) rx_classes_add(p, p->list[n.a + i], c);
    if (n.kind == K_AND || n.kind == K_NOT || !first_ready(p, a)) return;
    n = p->nodes[a];
    rx_spend(p, n.first_work + (size_t)WORK_ITEM * n.first_count);
    for (uint32_t i = 0; i < n.first_count && !p->st; i++) {
        uint32_t what = p->firsts[n.first + i].what, *seen = &c->seen[what % 64];
        if (what & LOGIC) rx_classes_add(p, what & ~LOGIC, c);
        else if (*seen != what + 1 && c->count < 256) split(c, p->sets[what]);
        if (!(what & LOGIC)) *seen = what + 1;
    }
}
