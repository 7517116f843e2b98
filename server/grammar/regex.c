/* See regex.h: expressions. They are kept in a normal form: right-nested sequences, sorted lists of
 * alternatives, byte sets merged, common prefixes factored out. A residual is a set of items: an item is a
 * sequence of cells, the rest of the innermost sequence first, then of the enclosing ones. */
#include "config/base/assert.h"
#include "config/base/list.h"
#include "server/grammar/regex_pool.h"

#include "config/base/utf8.h"

#include <stdio.h>
#include <string.h>

rx rx__fail(struct rx_pool *p, enum status st)
{
    if (!p->st) p->st = st;
    return RX_NONE;
}

rx rx__fail_full(struct rx_pool *p)
{
    p->full = true;
    return rx__fail(p, ST_TOO_LARGE);
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
    if (p->work > p->pause || (p->stop && atomic_load_explicit(p->stop, memory_order_relaxed)))
        (void)rx__fail(p, ST_AGAIN);
    if (p->work > p->work_max) (void)rx__fail(p, ST_TOO_LARGE);
}

/* Growth of a large table takes milliseconds, which are not counted as work. */
bool rx__may_grow(struct rx_pool *p, size_t slots)
{
    if (p->pause != SIZE_MAX && slots >= 1u << 15) (void)rx__fail(p, ST_AGAIN);
    return !p->st;
}

#define BASE_NODES (RX_ALL + 1u)

/* ---- nodes ---- */

static bool is_list(enum kind k)
{
    return k == K_ALT || k == K_AND;
}

static uint32_t hash_of(const struct node *n, const uint32_t *items)
{
    uint64_t h = mix(n->kind, n->b);
    uint32_t count = n->kind == K_BYTES ? 8 : is_list(n->kind) ? n->b : 0;
    for (uint32_t i = 0; i < count; i++) h = mix(h, items[i]);
    return (uint32_t)(count ? h : mix(mix(h, n->a), n->c));
}

static const uint32_t *items_of(const struct rx_pool *p, const struct node *n)
{
    return n->kind == K_BYTES ? p->sets[n->a] : p->list + n->a;
}

static bool same(const struct rx_pool *p, const struct node *x, const struct node *y, const uint32_t *items)
{
    size_t size = x->kind == K_BYTES ? sizeof *p->sets : x->b * sizeof *items;
    if (x->kind != y->kind || x->b != y->b) return false;
    if (x->kind == K_BYTES || is_list(x->kind)) return memcmp(items_of(p, x), items, size) == 0;
    return x->a == y->a && x->c == y->c;
}

static uint32_t times(uint32_t x, uint32_t y)
{
    uint64_t n = (uint64_t)x * y;
    if (!x || !y) return 0;
    return x == RX_NO_LIMIT || y == RX_NO_LIMIT || n > UINT32_MAX ? RX_NO_LIMIT : (uint32_t)n;
}

/* What the decimals that are left must still add. */
static uint64_t lacks(const struct node *n)
{
    uint64_t rest = n->b;
    for (uint32_t k = 0; k < n->c / 2; k++) rest = rest * 10 % n->a;
    return rest ? n->a - rest : 0;
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
    case K_MULTIPLE: n->nullable = lacks(n) == 0; break;
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
rx rx__intern(struct rx_pool *p, struct node n, const uint32_t *items)
{
    ASSERT(n.kind > K_EMPTY && n.kind <= K_MULTIPLE);
    if (p->st) return RX_NONE;
    uint32_t listed = is_list(n.kind) ? n.b : 0;
    rx_spend(p, WORK_NODE + listed);
    if (p->st || (id_table_grows(&p->table) && !rx__may_grow(p, p->table.cap))) return RX_NONE;
    uint32_t hash = hash_of(&n, items), at = hash;
    for (uint32_t id; (id = id_table_next(&p->table, hash, &at));)
        if (same(p, &p->nodes[id], &n, items)) return id;
    if (p->count >= p->max || p->list_count + listed > p->list_max) return rx__fail_full(p);
    facts(p, &n, items);
    n.first_count = FIRST_UNKNOWN;
    if (!LIST_RESERVE(p->sets, p->set_cap, p->set_count + 1) ||
        !LIST_RESERVE(p->list, p->list_cap, p->list_count + listed) ||
        !LIST_RESERVE(p->nodes, p->cap, p->count + 1) || !id_table_add(&p->table, hash, (uint32_t)p->count))
        return rx__fail(p, ST_NOMEM);
    if (n.kind == K_BYTES) {
        n.a = (uint32_t)p->set_count++;
        memcpy(p->sets[n.a], items, sizeof *p->sets);
    } else if (listed) {
        n.a = (uint32_t)p->list_count;
        memcpy(p->list + n.a, items, listed * sizeof *items);
        p->list_count += listed;
    }
    p->nodes[p->count] = n;
    return (rx)p->count++;
}

enum status rx_pool_create(size_t nodes_max, struct rx_pool **out)
{
    struct rx_pool *p = calloc(1, sizeof *p);
    if (!p) return ST_NOMEM;
    p->max = nodes_max < 16 ? 16 : nodes_max;
    p->work_max = p->pause = SIZE_MAX;
    p->list_max = LIST_MAX;
    if (!LIST_RESERVE(p->nodes, p->cap, 64)) {
        rx_pool_free(p);
        return ST_NOMEM;
    }
    static const struct node first[] = {
        [RX_NONE] = {.kind = K_NONE, .emptiness = LIFE_NONE, .first_count = FIRST_UNKNOWN},
        [RX_EMPTY] = {.kind = K_EMPTY,
                      .nullable = true,
                      .emptiness = LIFE_SOME,
                      .first_count = FIRST_UNKNOWN},
        [RX_ALL] = {.kind = K_NOT, .nullable = true, .emptiness = LIFE_SOME, .first_count = FIRST_UNKNOWN}};
    memcpy(p->nodes, first, sizeof first);
    p->count = BASE_NODES; /* in no table: never looked up */
    *out = p;
    return ST_OK;
}

/* What is built on demand besides nodes. */
static void caches_free(struct rx_pool *p)
{
    free(p->memo);
    free(p->firsts);
    free(p->todo);
    free(p->seen);
    id_table_free(&p->table);
    id_table_free(&p->memo_table);
    p->memo = NULL;
    p->firsts = p->todo = NULL;
    p->seen = NULL;
    p->memo_count = p->memo_cap = p->first_count = p->first_cap = p->todo_cap = p->seen_count = p->seen_cap =
        0;
}

void rx_pool_free(struct rx_pool *p)
{
    if (!p) return;
    caches_free(p);
    free(p->nodes);
    free(p->list);
    free(p->sets);
    free(p->parts);
    free(p);
}

enum status rx_status(const struct rx_pool *p)
{
    return p->st;
}

void rx_pool_stop(struct rx_pool *p, const atomic_bool *stop)
{
    p->stop = stop;
}

void rx_pool_pause(struct rx_pool *p, size_t most)
{
    p->pause = most == SIZE_MAX ? most : p->work + most;
}

rx *rx_pool_kept(struct rx_pool *p)
{
    return &p->kept;
}

void rx_pool_work_max(struct rx_pool *p, size_t most)
{
    p->work_max = most == SIZE_MAX ? most : p->work + most;
    if (p->st == ST_AGAIN || (p->st == ST_TOO_LARGE && !p->full)) p->st = ST_OK;
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

static size_t bytes_used(const struct rx_pool *p)
{
    return p->count * (sizeof *p->nodes + 2 * sizeof *p->table.slots) + p->list_count * sizeof *p->list +
           p->first_count * sizeof *p->firsts + p->memo_count * sizeof *p->memo;
}

void rx_pool_base(struct rx_pool *p, size_t nodes, size_t items)
{
    p->base = p->count;
    p->base_bytes = bytes_used(p);
    p->max = p->count + nodes;
    p->list_max = p->list_count + items;
}

size_t rx_pool_made(const struct rx_pool *p)
{
    return bytes_used(p) - p->base_bytes;
}

size_t rx_pool_bytes(const struct rx_pool *p)
{
    return p->cap * sizeof *p->nodes + p->list_cap * sizeof *p->list + p->set_cap * sizeof *p->sets +
           (p->table.cap + (size_t)p->memo_table.cap) * sizeof *p->table.slots +
           p->memo_cap * sizeof *p->memo + p->first_cap * sizeof *p->firsts + p->todo_cap * sizeof *p->todo;
}

void rx_pool_cut(struct rx_pool *p)
{
    ASSERT(p->base && p->base <= p->count);
    caches_free(p);
    memset(p->taken, 0, sizeof p->taken);
    p->st = ST_OK;
    p->full = false;
    p->list_count = p->set_count = 0;
    p->count = p->base;
    for (size_t i = 0; i < p->count; i++) {
        struct node *n = &p->nodes[i];
        n->first_count = FIRST_UNKNOWN;
        if (n->kind == K_BYTES) p->set_count = n->a + 1u;
        if (is_list(n->kind)) p->list_count = n->a + n->b;
        if (i >= BASE_NODES && !id_table_add(&p->table, hash_of(n, items_of(p, n)), (uint32_t)i))
            p->st = ST_NOMEM;
    }
    LIST_FIT(p->nodes, p->cap, p->count);
    LIST_FIT(p->list, p->list_cap, p->list_count);
    LIST_FIT(p->sets, p->set_cap, p->set_count);
}

/* ---- normal forms ---- */

rx rx_bytes(struct rx_pool *p, const uint32_t set[8])
{
    uint32_t any = 0;
    for (int i = 0; i < 8; i++) any |= set[i];
    return any ? rx__intern(p, (struct node){.kind = K_BYTES}, set) : RX_NONE;
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

rx rx__cons(struct rx_pool *p, rx a, rx b)
{
    if (a == RX_NONE || b == RX_NONE) return RX_NONE;
    if (a == RX_EMPTY) return b;
    if (b == RX_EMPTY || (a == RX_ALL && b == RX_ALL)) return a;
    return rx__intern(p, (struct node){.kind = K_CONCAT, .a = a, .b = b}, NULL);
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
    if (n && !heads) return rx__fail(p, ST_NOMEM);
    for (size_t i = 0; i < n; i++, last = p->nodes[last].b) heads[i] = p->nodes[last].a;
    rx out = rx__intern(p, (struct node){.kind = K_CONCAT, .a = last, .b = b}, NULL);
    while (n-- > 0) out = rx__intern(p, (struct node){.kind = K_CONCAT, .a = heads[n], .b = out}, NULL);
    free(heads);
    return out;
}

void rx__push(struct rx_pool *p, enum kind kind, rx x)
{
    const struct node *n = &p->nodes[x];
    size_t m = n->kind == kind ? n->b : 1;
    if (!LIST_RESERVE(p->parts, p->part_cap, p->part_count + m)) {
        (void)rx__fail(p, ST_NOMEM);
        return;
    }
    if (n->kind == kind) memcpy(p->parts + p->part_count, p->list + n->a, m * sizeof *p->parts);
    else p->parts[p->part_count] = x;
    p->part_count += m;
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

void rx__sort(struct rx_pool *p, size_t from)
{
    size_t n = from;
    ASSERT_CMP(from, <=, p->part_count);
    for (size_t i = from + 1; i < p->part_count; i++)
        if (p->parts[i - 1] >= p->parts[i]) {
            qsort(p->parts + from, p->part_count - from, sizeof *p->parts, by_number);
            break;
        }
    for (size_t i = from; i < p->part_count; i++)
        if (n == from || p->parts[n - 1] != p->parts[i]) p->parts[n++] = p->parts[i];
    p->part_count = n;
}

rx rx__head(const struct rx_pool *p, rx x)
{
    const struct node *n = &p->nodes[x];
    if (n->kind == K_BYTES) return x;
    return n->kind == K_CONCAT && p->nodes[n->a].kind == K_BYTES ? n->a : RX_NONE;
}

rx rx__tail(const struct rx_pool *p, rx x)
{
    return p->nodes[x].kind == K_CONCAT ? p->nodes[x].b : RX_EMPTY;
}

/* xa and xb with a common prefix become x(a|b); x|y -> [xy]. RX_NONE: nothing in common. */
static rx factor(struct rx_pool *p, rx x, rx y)
{
    rx first = rx__head(p, x), other = rx__head(p, y);
    if (!first || !other) return RX_NONE;
    if (first != other) {
        if (rx__tail(p, x) != rx__tail(p, y)) return RX_NONE;
        uint32_t set[8];
        for (int w = 0; w < 8; w++) set[w] = p->sets[p->nodes[first].a][w] | p->sets[p->nodes[other].a][w];
        return rx__cons(p, rx_bytes(p, set), rx__tail(p, x));
    }
    size_t from = p->part_count;
    for (; first && first == other; first = rx__head(p, x), other = rx__head(p, y)) {
        rx__push(p, K_NONE, first);
        x = rx__tail(p, x);
        y = rx__tail(p, y);
    }
    rx out = rx_alt(p, x, y);
    while (p->part_count > from) out = rx__cons(p, p->parts[--p->part_count], out);
    return out;
}

/* The node of the list, if it is none of these special cases; removes the list. */
static rx list_end(struct rx_pool *p, size_t from, enum kind kind, rx empty)
{
    ASSERT_CMP(from, <=, p->part_count);
    size_t n = p->part_count - from;
    rx *items = p->parts + from;
    p->part_count = from;
    return !n ? empty : n == 1 ? *items : rx__intern(p, (struct node){.kind = kind, .b = (uint32_t)n}, items);
}

/* Without the empty string if another part matches it. */
rx rx__alt_end(struct rx_pool *p, size_t from)
{
    bool nullable = false, all = false;
    rx__sort(p, from);
    rx *items = p->parts + from;
    size_t n = p->part_count - from, drop = 0;
    for (size_t i = 0; i < n; i++) {
        nullable = nullable || (items[i] != RX_EMPTY && p->nodes[items[i]].nullable);
        all = all || items[i] == RX_ALL;
    }
    drop += n && items[0] == RX_NONE;
    drop += nullable && n - drop > 1 && items[drop] == RX_EMPTY;
    if (drop) memmove(items, items + drop, (n - drop) * sizeof *items);
    p->part_count -= drop;
    rx out = all ? RX_ALL : list_end(p, from, K_ALT, RX_NONE);
    p->part_count = from;
    return out;
}

rx rx_alt(struct rx_pool *p, rx a, rx b)
{
    if (a == b || b == RX_NONE) return a;
    if (a == RX_NONE) return b;
    if (a == RX_ALL || b == RX_ALL) return RX_ALL;
    size_t more = p->part_count;
    rx__push(p, K_ALT, b);
    size_t from = p->part_count;
    rx__push(p, K_ALT, a);
    for (size_t k = more; k < from && !p->st; k++) {
        rx x = p->parts[k];
        for (size_t i = from; i < p->part_count; i++) {
            rx both = factor(p, x, p->parts[i]);
            if (!both) continue;
            x = both; /* it may now combine with others */
            p->parts[i] = p->parts[--p->part_count];
            i = from - 1;
        }
        rx_spend(p, 2 * (p->part_count - from));
        rx__push(p, K_ALT, x);
    }
    rx out = rx__alt_end(p, from);
    p->part_count = more;
    return out;
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

rx rx__and_end(struct rx_pool *p, size_t from)
{
    bool none = false;
    rx__sort(p, from);
    const rx *items = p->parts + from;
    size_t n = p->part_count - from;
    for (size_t i = 0; i < n; i++) /* x and not x */
        if (p->nodes[items[i]].kind == K_NOT)
            none = none || bsearch(&p->nodes[items[i]].a, items, n, sizeof *items, by_number);
    if (!none) return list_end(p, from, K_AND, RX_ALL);
    p->part_count = from;
    return RX_NONE;
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
    size_t from = p->part_count;
    rx__push(p, K_AND, a);
    rx__push(p, K_AND, b);
    return rx__and_end(p, from);
}

rx rx_not(struct rx_pool *p, rx a)
{
    if (a == RX_NONE) return p->st ? RX_NONE : RX_ALL;
    if (a == RX_ALL) return RX_NONE;
    if (p->nodes[a].kind == K_NOT) return p->nodes[a].a;
    return rx__intern(p, (struct node){.kind = K_NOT, .a = a}, NULL);
}

rx rx_multiple(struct rx_pool *p, uint32_t n, uint32_t decimals)
{
    return rx__intern(p, (struct node){.kind = K_MULTIPLE, .a = n, .c = 2 * decimals}, NULL);
}

rx rx__digit(struct rx_pool *p, struct node n, unsigned digit)
{
    bool after = n.c & 1;
    uint64_t most = 1;
    n = (struct node){.kind = K_MULTIPLE, .a = n.a, .b = n.b, .c = n.c};
    if (digit == 10 ? after || !n.c : n.c == 1 && digit) return RX_NONE;
    if (digit == 10) n.c++;
    else if (n.c != 1) n.b = (uint32_t)(((uint64_t)n.b * 10 + digit) % n.a);
    if (digit != 10 && after && n.c > 1) n.c -= 2;
    for (uint32_t k = 0; k < n.c / 2; k++) most *= 10;
    return (n.c & 1) && lacks(&n) >= most ? RX_NONE : rx__intern(p, n, NULL);
}

/* The alternatives except the empty string. */
static rx without_empty(struct rx_pool *p, rx a)
{
    const struct node *n = &p->nodes[a];
    if (n->kind != K_ALT || p->list[n->a] != RX_EMPTY) return a;
    size_t from = p->part_count;
    rx__push(p, K_ALT, a);
    if (!p->st) p->parts[from] = p->parts[--p->part_count];
    return rx__alt_end(p, from);
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
    return rx__intern(p, (struct node){.kind = K_REPEAT, .a = a, .b = min, .c = max}, NULL);
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

bool rx_nullable(const struct rx_pool *p, rx a)
{
    return p->nodes[a].nullable;
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
