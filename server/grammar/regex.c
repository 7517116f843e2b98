/* See regex.h. Expressions are kept in a normal form: right-nested sequences, sorted lists of alternatives,
 * byte sets merged, common prefixes factored out. A residual is a set of items: an item is a sequence of
 * cells, the rest of the innermost sequence first, then of the enclosing ones. */
#include "server/grammar/regex.h"

#include "config/base/utf8.h"
#include "server/grammar/reserve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { K_NONE = 0, K_EMPTY, K_BYTES, K_CONCAT, K_ALT, K_AND, K_NOT, K_REPEAT };
/* Is the language non-empty? UNSURE: a bounded search did not decide. */
enum emptiness { LIFE_UNKNOWN = 0, LIFE_SOME, LIFE_NONE, LIFE_UNSURE };

struct node {
    uint8_t kind, emptiness;
    bool nullable, logic, counts; /* logic: contains AND or NOT; counts: a cell has a counter */
    uint32_t a, b, c;             /* CONCAT a, b; NOT a; REPEAT a{b,c}; ALT, AND: list[a..a+b); BYTES set a */
    uint32_t first, first_count;  /* its transitions; count FIRST_UNKNOWN: not computed yet */
    uint32_t first_work, life_work; /* work to compute them; to find `emptiness` */
    uint32_t least;                 /* minimum length of a match */
};
#define FIRST_UNKNOWN UINT32_MAX
/* One transition: a byte of the set, or (LOGIC) what an AND or NOT takes; then `rest`. */
struct first {
    uint32_t what;
    rx rest;
};
#define LOGIC 0x80000000u

struct rx_pool {
    struct node *nodes;
    size_t count, cap, max;
    uint32_t *list;
    size_t list_count, list_cap, list_max;
    uint32_t (*sets)[8];
    size_t set_count, set_cap;
    struct first *firsts;
    size_t first_count, first_cap;
    struct first *todo; /* of a closure */
    size_t todo_cap;
    struct seen { /* visited by a closure; free unless stamped */
        rx what, rest;
        uint32_t stamp;
    } * seen;
    size_t seen_count, seen_cap;
    uint32_t stamp;
    size_t work, work_max;
    bool free_of_charge; /* current work is counted elsewhere */
    bool over, full;     /* work_max exceeded; capacity exceeded */
    rx kept;
    uint32_t *slots; /* hash of nodes; 0 = free (K_NONE is never stored) */
    size_t slot_count;
    struct memo {
        uint64_t key; /* 0 = free */
        rx value;
        uint32_t work;
    } * memo;
    size_t memo_count, memo_cap;
    struct taken {
        rx a, one;
        uint32_t work;
        bool yes;
    } taken[64]; /* a covers one text of `one` */
    enum status st;
};

#define MEMO_MAX (1u << 18)
#define LIST_MAX ((size_t)1 << 25) /* items of all lists, and transitions: 128 MiB, 256 MiB */
#define SET_MAX  (1u << 15)        /* items of one set, and transitions of one */
/* Work in units of 2 to 5 ns: per node found or created; and per visited item of a list, a set or a closure.
 */
#define WORK_NODE  16u
#define WORK_ITEM  4u
#define WORK_COUNT 96u /* per merged item with counters */

static rx fail(struct rx_pool *p, enum status st)
{
    if (!p->st) p->st = st;
    return RX_NONE;
}

static rx fail_full(struct rx_pool *p)
{
    p->full = true;
    return fail(p, ST_TOO_LARGE);
}

bool rx_pool_full(const struct rx_pool *p)
{
    return p->full;
}

/* Work is counted as if nothing were cached: a lookup counts what the computation cost. So it is a function
 * of the expressions alone. */
void rx_spend(struct rx_pool *p, size_t units)
{
    if (p->free_of_charge) return;
    p->work += units;
    if (p->work <= p->work_max || p->st) return;
    p->over = true;
    (void)fail(p, ST_TOO_LARGE);
}

static uint32_t since(const struct rx_pool *p, size_t before)
{
    return p->work - before > UINT32_MAX ? UINT32_MAX : (uint32_t)(p->work - before);
}

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9E3779B97F4A7C15ull;
    return h ^ h >> 29;
}

/* ---- nodes ---- */

static bool is_list(enum kind k)
{
    return k == K_ALT || k == K_AND;
}

static uint64_t hash_of(const struct rx_pool *p, const struct node *n, const uint32_t *items)
{
    uint64_t h = mix(n->kind, n->b);
    if (n->kind == K_BYTES)
        for (int i = 0; i < 8; i++) h = mix(h, items[i]);
    else if (is_list(n->kind))
        for (uint32_t i = 0; i < n->b; i++) h = mix(h, items[i]);
    else h = mix(mix(h, n->a), n->c);
    (void)p;
    return h;
}

static const uint32_t *items_of(const struct rx_pool *p, const struct node *n)
{
    return n->kind == K_BYTES ? p->sets[n->a] : is_list(n->kind) ? p->list + n->a : NULL;
}

static bool same(const struct rx_pool *p, const struct node *x, const struct node *y, const uint32_t *items)
{
    if (x->kind != y->kind || x->b != y->b) return false;
    if (x->kind == K_BYTES) return memcmp(p->sets[x->a], items, sizeof *p->sets) == 0;
    if (is_list(x->kind)) return memcmp(p->list + x->a, items, x->b * sizeof *items) == 0;
    return x->a == y->a && x->c == y->c;
}

static bool rehash(struct rx_pool *p, size_t slots)
{
    uint32_t *to = calloc(slots, sizeof *to);
    if (!to) return false;
    free(p->slots);
    p->slots = to;
    p->slot_count = slots;
    for (size_t i = 3; i < p->count; i++) {
        uint64_t h = hash_of(p, &p->nodes[i], items_of(p, &p->nodes[i]));
        while (to[h & (slots - 1)]) h++;
        to[h & (slots - 1)] = (uint32_t)i;
    }
    return true;
}

static uint32_t times(uint32_t x, uint32_t y)
{
    uint64_t n = (uint64_t)x * y;
    if (!x || !y) return 0;
    return x == RX_NO_LIMIT || y == RX_NO_LIMIT || n > UINT32_MAX ? RX_NO_LIMIT : (uint32_t)n;
}

static void facts(const struct rx_pool *p, struct node *n, const uint32_t *items)
{
    const struct node *a = &p->nodes[n->a], *b = &p->nodes[n->b];
    switch (n->kind) {
    case K_CONCAT:
        n->nullable = a->nullable && b->nullable;
        n->logic = a->logic || b->logic;
        n->counts = (a->kind == K_REPEAT && a->counts) || b->counts;
        n->least = a->least > RX_NO_LIMIT - b->least ? RX_NO_LIMIT : a->least + b->least;
        break;
    case K_NOT:
        n->nullable = !a->nullable;
        n->logic = true;
        break;
    case K_REPEAT:
        n->nullable = n->b == 0 || a->nullable;
        n->logic = a->logic;
        n->counts = n->b > 0 || n->c != RX_NO_LIMIT;
        n->least = times(a->least, n->b);
        break;
    case K_ALT:
    case K_AND:
        n->nullable = n->kind == K_AND;
        n->logic = n->kind == K_AND;
        n->least = n->kind == K_AND ? 0 : RX_NO_LIMIT;
        for (uint32_t i = 0; i < n->b; i++) {
            const struct node *x = &p->nodes[items[i]];
            n->nullable = n->kind == K_AND ? n->nullable && x->nullable : n->nullable || x->nullable;
            n->logic = n->logic || x->logic;
            if ((x->least > n->least) == (n->kind == K_AND)) n->least = x->least;
        }
        break;
    default: n->least = n->kind == K_BYTES; break;
    }
    n->emptiness = n->nullable || !n->logic ? LIFE_SOME : LIFE_UNKNOWN;
}

/* The node with these parts: existing or new. */
static rx intern(struct rx_pool *p, struct node n, const uint32_t *items)
{
    if (p->st) return RX_NONE;
    rx_spend(p, WORK_NODE + (is_list(n.kind) ? n.b : 0));
    if (p->st) return RX_NONE;
    if (2 * p->count >= p->slot_count && !rehash(p, 2 * p->slot_count)) return fail(p, ST_NOMEM);
    uint64_t h = hash_of(p, &n, items);
    uint32_t at;
    for (; (at = p->slots[h & (p->slot_count - 1)]); h++)
        if (same(p, &p->nodes[at], &n, items)) return at;
    if (p->count >= p->max) return fail_full(p);
    facts(p, &n, items);
    n.first_count = FIRST_UNKNOWN;
    if (n.kind == K_BYTES) {
        if (!array_reserve((void **)&p->sets, &p->set_cap, p->set_count + 1, sizeof *p->sets))
            return fail(p, ST_NOMEM);
        memcpy(p->sets[p->set_count], items, sizeof *p->sets);
        n.a = (uint32_t)p->set_count++;
    } else if (is_list(n.kind)) {
        if (p->list_count + n.b > p->list_max) return fail_full(p);
        if (!array_reserve((void **)&p->list, &p->list_cap, p->list_count + n.b, sizeof *p->list))
            return fail(p, ST_NOMEM);
        memcpy(p->list + p->list_count, items, n.b * sizeof *items);
        n.a = (uint32_t)p->list_count;
        p->list_count += n.b;
    }
    if (!array_reserve((void **)&p->nodes, &p->cap, p->count + 1, sizeof *p->nodes)) return fail(p, ST_NOMEM);
    p->nodes[p->count] = n;
    p->slots[h & (p->slot_count - 1)] = (uint32_t)p->count;
    return (rx)p->count++;
}

enum status rx_pool_create(size_t nodes_max, struct rx_pool **out)
{
    struct rx_pool *p = calloc(1, sizeof *p);
    if (!p) return ST_NOMEM;
    p->max = nodes_max < 16 ? 16 : nodes_max;
    p->work_max = SIZE_MAX;
    p->list_max = LIST_MAX;
    p->count = 3;
    if (!array_reserve((void **)&p->nodes, &p->cap, 64, sizeof *p->nodes) || !rehash(p, 64)) {
        rx_pool_free(p);
        return ST_NOMEM;
    }
    p->nodes[RX_NONE] = (struct node){.kind = K_NONE, .emptiness = LIFE_NONE, .first_count = FIRST_UNKNOWN};
    p->nodes[RX_EMPTY] = (struct node){
        .kind = K_EMPTY, .nullable = true, .emptiness = LIFE_SOME, .first_count = FIRST_UNKNOWN};
    p->nodes[RX_ALL] =
        (struct node){.kind = K_NOT, .nullable = true, .emptiness = LIFE_SOME, .first_count = FIRST_UNKNOWN};
    *out = p;
    return ST_OK;
}

void rx_pool_free(struct rx_pool *p)
{
    if (!p) return;
    free(p->nodes);
    free(p->list);
    free(p->sets);
    free(p->slots);
    free(p->memo);
    free(p->firsts);
    free(p->todo);
    free(p->seen);
    free(p);
}

enum status rx_status(const struct rx_pool *p)
{
    return p->st;
}

rx *rx_pool_kept(struct rx_pool *p)
{
    return &p->kept;
}

void rx_pool_room(struct rx_pool *p, size_t nodes, size_t items)
{
    p->max = p->count + nodes;
    p->list_max = p->list_count + items;
}

void rx_pool_work_max(struct rx_pool *p, size_t most)
{
    p->work_max = most == SIZE_MAX ? most : p->work + most;
    if (p->st == ST_TOO_LARGE && !p->full) p->st = ST_OK;
    p->over = false;
}

size_t rx_pool_work(const struct rx_pool *p)
{
    return p->work;
}

void rx_pool_free_of_charge(struct rx_pool *p, bool begin)
{
    p->free_of_charge = begin;
}

uint32_t rx_items(const struct rx_pool *p, rx a)
{
    return p->nodes[a].kind == K_ALT ? p->nodes[a].b : 1;
}

size_t rx_pool_used(const struct rx_pool *p)
{
    return p->count * (sizeof *p->nodes + 2 * sizeof *p->slots) + p->list_count * sizeof *p->list +
           p->first_count * sizeof *p->firsts + p->memo_count * sizeof *p->memo;
}

size_t rx_pool_bytes(const struct rx_pool *p)
{
    return p->cap * sizeof *p->nodes + p->list_cap * sizeof *p->list + p->set_cap * sizeof *p->sets +
           p->slot_count * sizeof *p->slots + p->memo_cap * sizeof *p->memo +
           p->first_cap * sizeof *p->firsts + p->todo_cap * sizeof *p->todo;
}

size_t rx_pool_count(const struct rx_pool *p)
{
    return p->count;
}

void rx_pool_cut(struct rx_pool *p, size_t count)
{
    p->list_count = p->set_count = p->first_count = 0;
    p->count = count;
    for (size_t i = 0; i < count; i++) {
        struct node *n = &p->nodes[i];
        n->first_count = FIRST_UNKNOWN;
        if (n->kind == K_BYTES) p->set_count = n->a + 1u;
        if (is_list(n->kind)) p->list_count = n->a + n->b;
    }
    if (p->memo) memset(p->memo, 0, p->memo_cap * sizeof *p->memo);
    p->memo_count = 0;
    memset(p->taken, 0, sizeof p->taken);
    p->st = ST_OK;
    p->full = p->over = false;
    if (!rehash(p, p->slot_count)) p->st = ST_NOMEM;
}

/* ---- normal forms ---- */

rx rx_bytes(struct rx_pool *p, const uint32_t set[8])
{
    uint32_t any = 0;
    for (int i = 0; i < 8; i++) any |= set[i];
    return any ? intern(p, (struct node){.kind = K_BYTES}, set) : RX_NONE;
}

static rx range(struct rx_pool *p, unsigned from, unsigned to)
{
    uint32_t set[8] = {0};
    for (unsigned b = from; b <= to; b++) set[b >> 5] |= 1u << (b & 31);
    return rx_bytes(p, set);
}

rx rx_literal(struct rx_pool *p, const void *bytes, size_t len)
{
    const uint8_t *s = bytes;
    rx out = RX_EMPTY;
    while (len-- > 0) out = rx_concat(p, range(p, s[len], s[len]), out);
    return out;
}

/* a then b, as one cell before the others. */
static rx cons(struct rx_pool *p, rx a, rx b)
{
    if (a == RX_NONE || b == RX_NONE) return RX_NONE;
    if (a == RX_EMPTY) return b;
    if (b == RX_EMPTY || (a == RX_ALL && b == RX_ALL)) return a;
    return intern(p, (struct node){.kind = K_CONCAT, .a = a, .b = b}, NULL);
}

rx rx_concat(struct rx_pool *p, rx a, rx b)
{
    if (a == RX_NONE || b == RX_NONE) return RX_NONE;
    if (a == RX_EMPTY) return b;
    if (b == RX_EMPTY) return a;
    if (a == RX_ALL && b == RX_ALL) return a;
    size_t n = 0;
    for (rx x = a; p->nodes[x].kind == K_CONCAT; x = p->nodes[x].b) n++;
    rx *heads = n ? malloc(n * sizeof *heads) : NULL, last = a;
    if (n && !heads) return fail(p, ST_NOMEM);
    for (size_t i = 0; i < n; i++, last = p->nodes[last].b) heads[i] = p->nodes[last].a;
    rx out = intern(p, (struct node){.kind = K_CONCAT, .a = last, .b = b}, NULL);
    while (n-- > 0) out = intern(p, (struct node){.kind = K_CONCAT, .a = heads[n], .b = out}, NULL);
    free(heads);
    return out;
}

struct parts {
    uint32_t *items;
    size_t count, cap;
    uint32_t first[32];
    bool failed;
};

static void parts_add(struct rx_pool *p, struct parts *t, enum kind kind, rx x)
{
    const struct node *n = &p->nodes[x];
    size_t m = n->kind == kind ? n->b : 1;
    if (t->count + m > t->cap) {
        size_t cap = 2 * (t->count + m);
        uint32_t *to = malloc(cap * sizeof *to);
        if (!to) {
            t->failed = true;
            return;
        }
        memcpy(to, t->items, t->count * sizeof *to);
        if (t->items != t->first) free(t->items);
        t->items = to;
        t->cap = cap;
    }
    if (n->kind == kind) memcpy(t->items + t->count, p->list + n->a, m * sizeof *t->items);
    else t->items[t->count] = x;
    t->count += m;
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Sorts and removes duplicates. */
static void parts_sort(struct parts *t)
{
    size_t n = 0;
    for (size_t i = 1; i < t->count; i++)
        if (t->items[i - 1] >= t->items[i]) {
            qsort(t->items, t->count, sizeof *t->items, by_number);
            break;
        }
    for (size_t i = 0; i < t->count; i++)
        if (!n || t->items[n - 1] != t->items[i]) t->items[n++] = t->items[i];
    t->count = n;
}

/* The byte set that x begins with; RX_NONE: none. */
static rx head_of(const struct rx_pool *p, rx x)
{
    const struct node *n = &p->nodes[x];
    if (n->kind == K_BYTES) return x;
    return n->kind == K_CONCAT && p->nodes[n->a].kind == K_BYTES ? n->a : RX_NONE;
}

static rx tail_of(const struct rx_pool *p, rx x)
{
    return p->nodes[x].kind == K_CONCAT ? p->nodes[x].b : RX_EMPTY;
}

/* xa and xb with a common prefix become x(a|b); x|y -> [xy]. RX_NONE: nothing in common. */
static rx factor(struct rx_pool *p, rx x, rx y)
{
    rx first = head_of(p, x), other = head_of(p, y);
    if (!first || !other) return RX_NONE;
    if (first != other) {
        if (tail_of(p, x) != tail_of(p, y)) return RX_NONE;
        uint32_t set[8];
        for (int w = 0; w < 8; w++) set[w] = p->sets[p->nodes[first].a][w] | p->sets[p->nodes[other].a][w];
        return cons(p, rx_bytes(p, set), tail_of(p, x));
    }
    struct parts heads = {.cap = 32};
    heads.items = heads.first;
    for (; first && first == other; first = head_of(p, x), other = head_of(p, y)) {
        parts_add(p, &heads, K_NONE, first);
        x = tail_of(p, x);
        y = tail_of(p, y);
    }
    rx out = heads.failed ? fail(p, ST_NOMEM) : rx_alt(p, x, y);
    while (heads.count && out) out = cons(p, heads.items[--heads.count], out);
    if (heads.items != heads.first) free(heads.items);
    return out;
}

/* Sorted, without the empty string if another part matches it; consumed. */
static rx parts_end(struct rx_pool *p, struct parts *t)
{
    bool nullable = false, all = false;
    parts_sort(t);
    for (size_t i = 0; i < t->count; i++) {
        nullable = nullable || (t->items[i] != RX_EMPTY && p->nodes[t->items[i]].nullable);
        all = all || t->items[i] == RX_ALL;
    }
    if (t->count && t->items[0] == RX_NONE) memmove(t->items, t->items + 1, --t->count * sizeof *t->items);
    if (nullable && t->count > 1 && t->items[0] == RX_EMPTY)
        memmove(t->items, t->items + 1, --t->count * sizeof *t->items);
    rx out = t->failed       ? fail(p, ST_NOMEM)
             : !t->count     ? RX_NONE
             : all           ? RX_ALL
             : t->count == 1 ? t->items[0]
                             : intern(p, (struct node){.kind = K_ALT, .b = (uint32_t)t->count}, t->items);
    if (t->items != t->first) free(t->items);
    return out;
}

rx rx_alt(struct rx_pool *p, rx a, rx b)
{
    if (a == b || b == RX_NONE) return a;
    if (a == RX_NONE) return b;
    if (a == RX_ALL || b == RX_ALL) return RX_ALL;
    struct parts t = {.cap = 32}, more = {.cap = 32};
    t.items = t.first;
    more.items = more.first;
    parts_add(p, &t, K_ALT, a);
    parts_add(p, &more, K_ALT, b);
    for (size_t k = 0; k < more.count && !t.failed && !more.failed && !p->st; k++) {
        rx x = more.items[k];
        for (size_t i = 0; i < t.count; i++) {
            rx both = factor(p, x, t.items[i]);
            if (!both) continue;
            x = both; /* it may now combine with others */
            t.items[i] = t.items[--t.count];
            i = SIZE_MAX;
        }
        rx_spend(p, 2 * t.count);
        parts_add(p, &t, K_ALT, x);
    }
    t.failed = t.failed || more.failed;
    if (more.items != more.first) free(more.items);
    return parts_end(p, &t);
}

rx rx_alt_list(struct rx_pool *p, const rx *list, size_t n)
{
    if (n < 2) return n ? list[0] : RX_NONE;
    return rx_alt(p, rx_alt_list(p, list, n / 2), rx_alt_list(p, list + n / 2, n - n / 2));
}

rx rx_concat_list(struct rx_pool *p, const rx *list, size_t n)
{
    rx out = RX_EMPTY;
    while (n-- > 0) out = rx_concat(p, list[n], out);
    return out;
}

/* The intersection of the parts, which are consumed. */
static rx and_end(struct rx_pool *p, struct parts *t)
{
    bool none = false;
    parts_sort(t);
    for (size_t i = 0; i < t->count; i++) /* x and not x */
        if (p->nodes[t->items[i]].kind == K_NOT)
            none = none || bsearch(&p->nodes[t->items[i]].a, t->items, t->count, sizeof *t->items, by_number);
    rx out = t->failed       ? fail(p, ST_NOMEM)
             : none          ? RX_NONE
             : !t->count     ? RX_ALL
             : t->count == 1 ? t->items[0]
                             : intern(p, (struct node){.kind = K_AND, .b = (uint32_t)t->count}, t->items);
    if (t->items != t->first) free(t->items);
    return out;
}

rx rx_and(struct rx_pool *p, rx a, rx b)
{
    if (a == b || b == RX_ALL) return a;
    if (a == RX_ALL) return b;
    if (a == RX_NONE || b == RX_NONE) return RX_NONE;
    if (a == RX_EMPTY || b == RX_EMPTY)
        return p->nodes[a].nullable && p->nodes[b].nullable ? RX_EMPTY : RX_NONE;
    if (p->nodes[a].kind == K_BYTES && p->nodes[b].kind == K_BYTES) {
        uint32_t set[8];
        for (int w = 0; w < 8; w++) set[w] = p->sets[p->nodes[a].a][w] & p->sets[p->nodes[b].a][w];
        return rx_bytes(p, set);
    }
    struct parts t = {.cap = 32};
    t.items = t.first;
    parts_add(p, &t, K_AND, a);
    parts_add(p, &t, K_AND, b);
    return and_end(p, &t);
}

rx rx_not(struct rx_pool *p, rx a)
{
    if (a == RX_NONE) return p->st ? RX_NONE : RX_ALL;
    if (a == RX_ALL) return RX_NONE;
    if (p->nodes[a].kind == K_NOT) return p->nodes[a].a;
    return intern(p, (struct node){.kind = K_NOT, .a = a}, NULL);
}

/* The alternatives except the empty string. */
static rx without_empty(struct rx_pool *p, rx a)
{
    const struct node *n = &p->nodes[a];
    if (n->kind != K_ALT || p->list[n->a] != RX_EMPTY) return a;
    struct parts t = {.cap = 32};
    t.items = t.first;
    parts_add(p, &t, K_ALT, a);
    t.items[0] = t.items[--t.count];
    return parts_end(p, &t);
}

rx rx_repeat(struct rx_pool *p, rx a, uint32_t min, uint32_t max)
{
    if (max == 0 || a == RX_EMPTY) return RX_EMPTY;
    if (a == RX_NONE) return min ? RX_NONE : RX_EMPTY;
    if (max < min) return RX_NONE;
    if (p->nodes[a].nullable) min = 0;
    if (a == RX_ALL) return RX_ALL;
    if (max == 1) return min ? a : rx_alt(p, a, RX_EMPTY);
    a = without_empty(p, a);
    struct node n = p->nodes[a];
    uint32_t least = times(n.b, min), most = times(n.c, max);
    /* a{b,c}{min,max}: k times it is a{kb,kc}; no count may be missing between k and k + 1 times. */
    bool whole = max == min || (n.c == RX_NO_LIMIT && min > 0) ||
                 (uint64_t)n.b * (min + 1ull) <= (uint64_t)n.c * min + 1;
    if (n.kind == K_REPEAT && whole && least < RX_NO_LIMIT &&
        (most < RX_NO_LIMIT || n.c == RX_NO_LIMIT || max == RX_NO_LIMIT))
        return rx_repeat(p, n.a, least, most);
    return intern(p, (struct node){.kind = K_REPEAT, .a = a, .b = min, .c = max}, NULL);
}

/* ---- characters ---- */

/* Byte strings from `from` to `to`, both of n bytes. */
static rx between(struct rx_pool *p, const uint8_t *from, const uint8_t *to, size_t n)
{
    static const uint8_t low[3] = {0x80, 0x80, 0x80}, high[3] = {0xBF, 0xBF, 0xBF};
    if (n == 1) return range(p, from[0], to[0]);
    if (from[0] == to[0])
        return rx_concat(p, range(p, from[0], from[0]), between(p, from + 1, to + 1, n - 1));
    unsigned first = from[0], last = to[0];
    rx out = RX_NONE;
    if (memcmp(from + 1, low, n - 1) != 0) {
        out = rx_concat(p, range(p, first, first), between(p, from + 1, high, n - 1));
        first++;
    }
    if (memcmp(to + 1, high, n - 1) != 0) {
        out = rx_alt(p, out, rx_concat(p, range(p, last, last), between(p, low, to + 1, n - 1)));
        last--;
    }
    if (first <= last)
        out = rx_alt(p, out, rx_concat(p, range(p, first, last), between(p, low, high, n - 1)));
    return out;
}

rx rx_chars(struct rx_pool *p, uint32_t from, uint32_t to)
{
    static const uint32_t ends[] = {0x7F, 0x7FF, 0xD7FF, 0xDFFF, 0xFFFF, 0x10FFFF};
    rx out = RX_NONE;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        uint32_t low = i ? ends[i - 1] + 1 : 0, a = from > low ? from : low, b = to < ends[i] ? to : ends[i];
        uint8_t x[4], y[4];
        if (a > b || i == 3) continue;
        size_t n = utf8_encode(a, x);
        (void)utf8_encode(b, y);
        out = rx_alt(p, out, between(p, x, y, n));
    }
    return out;
}

/* ---- matching ---- */

bool rx_nullable(const struct rx_pool *p, rx a)
{
    return p->nodes[a].nullable;
}

static struct memo *memo_at(struct rx_pool *p, uint64_t key)
{
    uint64_t h = mix(0, key);
    while (p->memo[h & (p->memo_cap - 1)].key && p->memo[h & (p->memo_cap - 1)].key != key) h++;
    return &p->memo[h & (p->memo_cap - 1)];
}

static bool memo_reserve(struct rx_pool *p)
{
    if (2 * (p->memo_count + 1) < p->memo_cap) return true;
    size_t old = p->memo_cap, cap = old ? 2 * old : 1024;
    if (cap > 2 * MEMO_MAX) { /* resets the cache */
        memset(p->memo, 0, old * sizeof *p->memo);
        p->memo_count = 0;
        return true;
    }
    struct memo *was = p->memo;
    p->memo = calloc(cap, sizeof *p->memo);
    if (!p->memo) {
        p->memo = was;
        return false;
    }
    p->memo_cap = cap;
    for (size_t i = 0; i < old; i++)
        if (was[i].key) *memo_at(p, was[i].key) = was[i];
    free(was);
    return true;
}

/* ---- sets of items ---- */

#define SPINE_MAX    24u /* cells of an item searched for counters */
#define COUNTERS_MAX 4u

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
    rx cells[SPINE_MAX], x = c->item;
    for (uint32_t i = 0; i < c->at; i++, x = p->nodes[x].b) cells[i] = p->nodes[x].a;
    rx out = cons(p, intern(p, (struct node){.kind = K_REPEAT, .a = c->base, .b = c->min, .c = c->max}, NULL),
                  c->rest);
    for (uint32_t i = c->at; i-- > 0;) out = cons(p, cells[i], out);
    return out;
}

/* Merges items that differ in one count only, if their counts leave no gap: a{1,2} and a{3,5} become a{1,5}.
 * So a nested repeat has as many items as its own count, not the product of both. */
static void merge_counts(struct rx_pool *p, struct parts *t)
{
    struct counted *list = NULL;
    for (uint32_t k = COUNTERS_MAX; k-- > 0 && !t->failed;) {
        size_t n = 0, kept = 0;
        struct counted c;
        for (size_t i = 0; i < t->count; i++) n += counter_of(p, t->items[i], k, &c);
        if (n < 2) continue;
        if (!list) list = malloc(t->count * sizeof *list);
        if (!list) {
            t->failed = true;
            break;
        }
        n = 0;
        for (size_t i = 0; i < t->count; i++)
            if (counter_of(p, t->items[i], k, &c)) list[n++] = c;
            else t->items[kept++] = t->items[i];
        qsort(list, n, sizeof *list, by_counter);
        for (size_t i = 0; i < n;) {
            c = list[i++];
            bool changed = false;
            for (; i < n && same_but_count(p, &c, &list[i]) && list[i].min <= c.max + (c.max < RX_NO_LIMIT);
                 i++) {
                changed = changed || list[i].max > c.max;
                if (list[i].max > c.max) c.max = list[i].max;
            }
            t->items[kept++] = changed ? with_count(p, &c) : c.item;
        }
        t->count = kept;
    }
    free(list);
}

/* The set of the items, which are consumed. */
static rx set_end(struct rx_pool *p, struct parts *t)
{
    bool counts = false;
    parts_sort(t);
    for (size_t i = 0; i < t->count; i++) counts = counts || p->nodes[t->items[i]].counts;
    rx_spend(p, (counts ? WORK_COUNT : WORK_ITEM) * t->count);
    if (counts && t->count > 1) merge_counts(p, t);
    if (t->count > SET_MAX) (void)fail(p, ST_TOO_LARGE);
    return parts_end(p, t);
}

rx rx_union(struct rx_pool *p, const rx *list, size_t n)
{
    struct parts t = {.cap = 32};
    t.items = t.first;
    for (size_t i = 0; i < n; i++)
        if (list[i]) parts_add(p, &t, K_ALT, list[i]);
    return set_end(p, &t);
}

/* Was the pair already visited in this closure? Marks it. */
static bool seen_before(struct rx_pool *p, rx what, rx rest)
{
    if (2 * (p->seen_count + 1) > p->seen_cap) {
        size_t cap = p->seen_cap ? 2 * p->seen_cap : 256, old = p->seen_cap;
        struct seen *was = p->seen, *to = calloc(cap, sizeof *to);
        if (!to) return fail(p, ST_NOMEM), true;
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
    if (!array_reserve((void **)&p->firsts, &p->first_cap, p->first_count + 1, sizeof *p->firsts))
        (void)fail(p, ST_NOMEM);
    else p->firsts[p->first_count++] = (struct first){what, rest};
}

/* Queues `what` then `rest` unless already visited. */
static void visit(struct rx_pool *p, size_t *todo, rx what, rx rest)
{
    const struct node *n = &p->nodes[what];
    rx head = head_of(p, what);
    rx_spend(p, WORK_NODE);
    if (n->kind == K_AND || n->kind == K_NOT) {
        first_add(p, what | LOGIC, rest);
        return;
    }
    if (head) {
        first_add(p, p->nodes[head].a, cons(p, tail_of(p, what), rest));
        return;
    }
    if (n->kind <= K_EMPTY || p->st || seen_before(p, what, rest)) return;
    if (!array_reserve((void **)&p->todo, &p->todo_cap, *todo + 1, sizeof *p->todo)) (void)fail(p, ST_NOMEM);
    else p->todo[(*todo)++] = (struct first){what, rest};
}

/* Computes the transitions of `a`: each initial position once, in about as many steps. */
static bool first_make(struct rx_pool *p, rx a)
{
    size_t from = p->first_count, todo = 0, before = p->work;
    if (p->first_count > LIST_MAX) return fail_full(p), false;
    p->stamp++;
    p->seen_count = 0;
    visit(p, &todo, a, RX_EMPTY);
    while (todo && !p->st) {
        struct first f = p->todo[--todo];
        struct node n = p->nodes[f.what];
        rx less = f.what;
        if (p->first_count - from > SET_MAX || todo > SET_MAX) return fail(p, ST_TOO_LARGE), false;
        switch (n.kind) {
        case K_CONCAT:
            visit(p, &todo, n.a, cons(p, n.b, f.rest));
            if (p->nodes[n.a].nullable) visit(p, &todo, n.b, f.rest);
            break;
        case K_ALT:
            for (uint32_t i = 0; i < n.b; i++) visit(p, &todo, p->list[n.a + i], f.rest);
            break;
        default: /* K_REPEAT; empty parts add nothing */
            if (n.b || n.c != RX_NO_LIMIT) {
                n.b -= n.b > 0;
                n.c -= n.c != RX_NO_LIMIT;
                less = n.c ? intern(p, (struct node){.kind = K_REPEAT, .a = n.a, .b = n.b, .c = n.c}, NULL)
                           : RX_EMPTY;
            }
            visit(p, &todo, n.a, cons(p, less, f.rest));
        }
    }
    p->nodes[a].first = (uint32_t)from;
    p->nodes[a].first_count = (uint32_t)(p->first_count - from);
    p->nodes[a].first_work = since(p, before);
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
    struct parts t = {.cap = 32};
    bool none = false, empty = false, nullable = true;
    rx bytes = RX_NONE;
    t.items = t.first;
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
            parts_add(p, &t, K_AND, x);
        }
    }
    rx_spend(p, WORK_ITEM * t.count);
    if (sets) bytes = rx_bytes(p, set);
    none = none || (sets && !bytes) || (empty && !nullable);
    if (sets && !none) parts_add(p, &t, K_AND, bytes);
    if (none || empty || t.failed) t.count = 0;
    rx out = none ? RX_NONE : empty ? RX_EMPTY : t.failed ? fail(p, ST_NOMEM) : and_end(p, &t);
    if (t.items != t.first && (none || empty || t.failed)) free(t.items);
    return out;
}

static rx derive(struct rx_pool *p, rx a, uint8_t byte)
{
    struct node n = p->nodes[a];
    if (n.kind == K_NOT) return rx_not(p, rx_derivative(p, n.a, byte));
    if (n.kind == K_AND) return derive_and(p, n, byte);
    if (!first_ready(p, a)) return RX_NONE;
    struct parts t = {.cap = 32};
    t.items = t.first;
    n = p->nodes[a];
    rx_spend(p, n.first_count * (size_t)WORK_ITEM / 2);
    for (uint32_t i = 0; i < n.first_count && !p->st; i++) {
        struct first f = p->firsts[n.first + i];
        if (f.what & LOGIC) parts_add(p, &t, K_ALT, cons(p, rx_derivative(p, f.what & ~LOGIC, byte), f.rest));
        else if (p->sets[f.what][byte >> 5] >> (byte & 31) & 1) parts_add(p, &t, K_ALT, f.rest);
    }
    rx_spend(p, WORK_ITEM * t.count);
    return set_end(p, &t);
}

rx rx_derivative(struct rx_pool *p, rx a, uint8_t byte)
{
    const struct node *n = &p->nodes[a];
    if (n->kind <= K_EMPTY || a == RX_ALL) return a == RX_ALL ? a : RX_NONE;
    if (n->kind == K_BYTES) return p->sets[n->a][byte >> 5] >> (byte & 31) & 1 ? RX_EMPTY : RX_NONE;
    uint64_t key = (uint64_t)a << 8 | byte;
    size_t before = p->work;
    if (p->memo) {
        const struct memo *m = memo_at(p, key);
        if (m->key) {
            rx_spend(p, m->work);
            return p->st ? RX_NONE : m->value;
        }
    }
    rx_spend(p, WORK_NODE);
    rx out = derive(p, a, byte);
    if (p->st) return RX_NONE;
    if (!memo_reserve(p)) return fail(p, ST_NOMEM);
    struct memo *m = memo_at(p, key);
    if (!m->key) p->memo_count++;
    *m = (struct memo){key, out, since(p, before)};
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

/* ---- questions about whole languages: bounded walks over sets ---- */

/* Work limit above which a question counts as undecided: per state that may be visited; less if the first one
 * is wide, or far from an end. */
#define LIFE_WORK   512u
#define LIFE_WIDE   8192u
#define COVERS_WORK (1u << 19)
#define SEARCH_PART 4u /* divisor of the charged work: repeated lookups are cached */

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
    if (!q->seen || !q->path) (void)fail(p, ST_NOMEM);
    return !p->st;
}

static void search_close(struct rx_pool *p, struct search *q)
{
    while (q->path && q->depth) free(q->path[--q->depth].classes);
    free(q->seen);
    free(q->path);
    if (p->st == ST_TOO_LARGE && !p->full) p->st = ST_OK;
    p->over = false;
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
            if (!top->classes) return (void)fail(p, ST_NOMEM), -2;
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
    p->nodes[a].emptiness = (uint8_t)out;
    p->nodes[a].life_work = since(p, before);
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
    struct parts t = {.cap = 32};
    t.items = t.first;
    for (uint32_t i = 0; i < n.b; i++) {
        rx x = p->list[n.a + i];
        if (!rx_matches_nothing(p, x, states)) parts_add(p, &t, K_ALT, x);
    }
    return parts_end(p, &t);
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
    if (!p->st) *t = (struct taken){a, one, since(p, before), yes};
    return yes;
}

#define BOUNDED_NODES 8192u
/* Are its strings of only a few lengths? *left: nodes that may be visited. */
static bool bounded(const struct rx_pool *p, rx a, uint32_t *left)
{
    const struct node *n = &p->nodes[a];
    if (*left == 0 || n->logic || n->kind == K_NOT || n->kind == K_REPEAT) return false;
    --*left;
    if (n->kind == K_CONCAT) return bounded(p, n->a, left) && bounded(p, n->b, left);
    for (uint32_t i = 0; n->kind == K_ALT && i < n->b; i++)
        if (!bounded(p, p->list[n->a + i], left)) return false;
    return true;
}

bool rx_bounded(struct rx_pool *p, rx a)
{
    uint32_t left = BOUNDED_NODES;
    bool yes = bounded(p, a, &left);
    rx_spend(p, BOUNDED_NODES - left + 1);
    return yes;
}

rx rx_widened(struct rx_pool *p, rx a)
{
    struct node n = p->nodes[a], h = p->nodes[n.kind == K_CONCAT ? n.a : a];
    struct parts t = {.cap = 32};
    t.items = t.first;
    if (h.kind != K_AND || (n.kind == K_CONCAT && !rx_bounded(p, n.b))) return a;
    for (uint32_t i = 0; i < h.b; i++) {
        rx part = p->list[h.a + i];
        struct node x = p->nodes[part];
        if (x.kind != K_NOT || !rx_bounded(p, x.a)) parts_add(p, &t, K_AND, part);
    }
    rx out = and_end(p, &t);
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

/* ---- inside JSON strings ---- */

static rx json_bytes(struct rx_pool *p, const uint32_t set[8])
{
    static const char special[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    uint32_t all[8], plain[8];
    memcpy(all, set, sizeof all); /* the pool may move its sets */
    memcpy(plain, set, sizeof plain);
    plain[0] = 0;
    plain['"' >> 5] &= ~(1u << ('"' & 31));
    plain['\\' >> 5] &= ~(1u << ('\\' & 31));
    rx out = rx_bytes(p, plain);
    for (int c = 0; c <= '\\'; c++) {
        const char *at = c ? strchr(special, c) : NULL;
        char text[8];
        if (!(all[c >> 5] >> (c & 31) & 1) || (c >= 0x20 && !at)) continue;
        if (at) snprintf(text, sizeof text, "\\%c", letter[at - special]);
        else snprintf(text, sizeof text, "\\u%04x", (unsigned)c);
        out = rx_alt(p, out, rx_literal(p, text, strlen(text)));
    }
    return out;
}

/* Every byte has one form, so the operators stay as they are. */
rx rx_in_json(struct rx_pool *p, rx a)
{
    static const uint32_t any[8] = {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u};
    rx out = RX_EMPTY, before = RX_EMPTY;
    for (; p->nodes[a].kind == K_CONCAT && !p->st; a = p->nodes[a].b)
        before = rx_concat(p, before, rx_in_json(p, p->nodes[a].a));
    struct node n = p->nodes[a];
    rx_spend(p, WORK_NODE);
    if (p->st) return RX_NONE;
    switch (n.kind) {
    case K_BYTES: out = json_bytes(p, p->sets[n.a]); break;
    case K_REPEAT: out = rx_repeat(p, rx_in_json(p, n.a), n.b, n.c); break;
    case K_NOT:
        out = rx_and(p, rx_repeat(p, json_bytes(p, any), 0, RX_NO_LIMIT), rx_not(p, rx_in_json(p, n.a)));
        break;
    case K_ALT:
    case K_AND:
        out = rx_in_json(p, p->list[n.a]);
        for (uint32_t i = 1; i < n.b; i++) {
            rx one = rx_in_json(p, p->list[n.a + i]);
            out = n.kind == K_ALT ? rx_alt(p, out, one) : rx_and(p, out, one);
        }
        break;
    default: out = a;
    }
    return rx_concat(p, before, out);
}
