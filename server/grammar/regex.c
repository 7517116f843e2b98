/* See regex.h. Expressions are kept in a normal form that makes equal languages of the common kinds equal
 * numbers: alternatives are sorted lists, with byte sets united and common first bytes factored out. */
#include "server/grammar/regex.h"

#include "server/grammar/room.h"

#include <stdlib.h>
#include <string.h>

enum kind { K_NONE = 0, K_EMPTY, K_BYTES, K_CONCAT, K_ALT, K_AND, K_NOT, K_REPEAT };
enum life { LIFE_UNKNOWN = 0, LIFE_SOME, LIFE_NONE };

struct node {
    uint8_t kind, nullable, logic, life; /* logic: and or not within; life: whether it matches anything */
    uint32_t a, b, c; /* CONCAT a, b; NOT a; REPEAT a{b,c}; ALT, AND: list[a..a+b); BYTES set a */
};

struct rx_pool {
    struct node *nodes;
    size_t count, cap, max;
    uint32_t *list;
    size_t list_count, list_cap;
    uint32_t (*sets)[8];
    size_t set_count, set_cap;
    uint32_t *slots; /* hash of nodes; 0 = free (K_NONE is never looked up) */
    size_t slot_count;
    struct memo {
        uint64_t key; /* 0 = free */
        rx value;
    } * memo;
    size_t memo_count, memo_cap;
    struct taken {
        rx a, one;
        bool yes;
    } taken[64]; /* a covers one text of `one` */
    enum status st;
};

#define MEMO_MAX (1u << 18)
#define LIST_MAX ((size_t)1 << 24) /* items of all lists: 64 MiB */

static rx fail(struct rx_pool *p, enum status st)
{
    if (!p->st) p->st = st;
    return RX_NONE;
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

static void facts(const struct rx_pool *p, struct node *n, const uint32_t *items)
{
    const struct node *a = &p->nodes[n->a], *b = &p->nodes[n->b];
    switch (n->kind) {
    case K_CONCAT:
        n->nullable = a->nullable && b->nullable;
        n->logic = a->logic || b->logic;
        break;
    case K_NOT:
        n->nullable = !a->nullable;
        n->logic = true;
        break;
    case K_REPEAT:
        n->nullable = n->b == 0 || a->nullable;
        n->logic = a->logic;
        break;
    case K_ALT:
    case K_AND:
        n->nullable = n->kind == K_AND;
        n->logic = n->kind == K_AND;
        for (uint32_t i = 0; i < n->b; i++) {
            const struct node *x = &p->nodes[items[i]];
            n->nullable = n->kind == K_AND ? n->nullable && x->nullable : n->nullable || x->nullable;
            n->logic = n->logic || x->logic;
        }
        break;
    default: break;
    }
    n->life = n->nullable || !n->logic ? LIFE_SOME : LIFE_UNKNOWN;
}

/* The node with these parts: the one that there is, or a new one. */
static rx intern(struct rx_pool *p, struct node n, const uint32_t *items)
{
    if (p->st) return RX_NONE;
    if (2 * p->count >= p->slot_count && !rehash(p, 2 * p->slot_count)) return fail(p, ST_NOMEM);
    uint64_t h = hash_of(p, &n, items);
    uint32_t at;
    for (; (at = p->slots[h & (p->slot_count - 1)]); h++)
        if (same(p, &p->nodes[at], &n, items)) return at;
    if (p->count >= p->max) return fail(p, ST_TOO_LARGE);
    facts(p, &n, items);
    if (n.kind == K_BYTES) {
        if (!array_room((void **)&p->sets, &p->set_cap, p->set_count + 1, sizeof *p->sets))
            return fail(p, ST_NOMEM);
        memcpy(p->sets[p->set_count], items, sizeof *p->sets);
        n.a = (uint32_t)p->set_count++;
    } else if (is_list(n.kind)) {
        if (p->list_count + n.b > LIST_MAX) return fail(p, ST_TOO_LARGE);
        if (!array_room((void **)&p->list, &p->list_cap, p->list_count + n.b, sizeof *p->list))
            return fail(p, ST_NOMEM);
        memcpy(p->list + p->list_count, items, n.b * sizeof *items);
        n.a = (uint32_t)p->list_count;
        p->list_count += n.b;
    }
    if (!array_room((void **)&p->nodes, &p->cap, p->count + 1, sizeof *p->nodes)) return fail(p, ST_NOMEM);
    p->nodes[p->count] = n;
    p->slots[h & (p->slot_count - 1)] = (uint32_t)p->count;
    return (rx)p->count++;
}

enum status rx_pool_create(size_t nodes_max, struct rx_pool **out)
{
    struct rx_pool *p = calloc(1, sizeof *p);
    if (!p) return ST_NOMEM;
    p->max = nodes_max < 16 ? 16 : nodes_max;
    p->count = 3;
    if (!array_room((void **)&p->nodes, &p->cap, 64, sizeof *p->nodes) || !rehash(p, 64)) {
        rx_pool_free(p);
        return ST_NOMEM;
    }
    p->nodes[RX_NONE] = (struct node){.kind = K_NONE, .life = LIFE_NONE};
    p->nodes[RX_EMPTY] = (struct node){.kind = K_EMPTY, .nullable = true, .life = LIFE_SOME};
    p->nodes[RX_ALL] = (struct node){.kind = K_NOT, .nullable = true, .logic = false, .life = LIFE_SOME};
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
    free(p);
}

enum status rx_status(const struct rx_pool *p)
{
    return p->st;
}

size_t rx_pool_bytes(const struct rx_pool *p)
{
    return p->cap * sizeof *p->nodes + p->list_cap * sizeof *p->list + p->set_cap * sizeof *p->sets +
           p->slot_count * sizeof *p->slots + p->memo_cap * sizeof *p->memo;
}

size_t rx_pool_count(const struct rx_pool *p)
{
    return p->count;
}

void rx_pool_cut(struct rx_pool *p, size_t count)
{
    p->list_count = p->set_count = 0;
    p->count = count;
    for (size_t i = 3; i < count; i++) {
        const struct node *n = &p->nodes[i];
        if (n->kind == K_BYTES) p->set_count = n->a + 1u;
        if (is_list(n->kind)) p->list_count = n->a + n->b;
    }
    if (p->memo) memset(p->memo, 0, p->memo_cap * sizeof *p->memo);
    p->memo_count = 0;
    memset(p->taken, 0, sizeof p->taken);
    p->st = ST_OK;
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

/* Sorted, each once. */
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

/* The byte set that x begins with, where it does with one; RX_NONE: it does not. */
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

/* xa|xb -> x(a|b), x|y -> [xy]: what one step merges another may merge on. */
static bool factor(struct rx_pool *p, struct parts *t)
{
    for (size_t i = 0; i < t->count; i++) {
        rx head = head_of(p, t->items[i]);
        for (size_t k = i + 1; k < t->count && head; k++) {
            rx other = head_of(p, t->items[k]), both = RX_NONE, ti = tail_of(p, t->items[i]),
               tk = tail_of(p, t->items[k]);
            if (other == head) {
                both = rx_concat(p, head, rx_alt(p, ti, tk));
            } else if (other && ti == tk) {
                uint32_t set[8];
                for (int w = 0; w < 8; w++)
                    set[w] = p->sets[p->nodes[head].a][w] | p->sets[p->nodes[other].a][w];
                both = rx_concat(p, rx_bytes(p, set), ti);
            }
            if (!both) continue;
            t->items[i] = both;
            t->items[k] = t->items[--t->count];
            return true;
        }
    }
    return false;
}

rx rx_alt(struct rx_pool *p, rx a, rx b)
{
    if (a == b || b == RX_NONE) return a;
    if (a == RX_NONE) return b;
    if (a == RX_ALL || b == RX_ALL) return RX_ALL;
    struct parts t = {.cap = 32};
    t.items = t.first;
    parts_add(p, &t, K_ALT, a);
    parts_add(p, &t, K_ALT, b);
    while (!t.failed && factor(p, &t)) {
    }
    parts_sort(&t);
    bool nullable = false;
    for (size_t i = 0; i < t.count; i++)
        nullable = nullable || (t.items[i] != RX_EMPTY && p->nodes[t.items[i]].nullable);
    if (nullable && t.count > 1 && t.items[0] == RX_EMPTY)
        memmove(t.items, t.items + 1, --t.count * sizeof *t.items);
    rx out = t.failed       ? fail(p, ST_NOMEM)
             : t.count == 1 ? t.items[0]
                            : intern(p, (struct node){.kind = K_ALT, .b = (uint32_t)t.count}, t.items);
    if (t.items != t.first) free(t.items);
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
    parts_sort(&t);
    bool none = false;
    for (size_t i = 0; i < t.count; i++) /* x and not x */
        if (p->nodes[t.items[i]].kind == K_NOT)
            none = none || bsearch(&p->nodes[t.items[i]].a, t.items, t.count, sizeof *t.items, by_number);
    rx out = t.failed       ? fail(p, ST_NOMEM)
             : none         ? RX_NONE
             : t.count == 1 ? t.items[0]
                            : intern(p, (struct node){.kind = K_AND, .b = (uint32_t)t.count}, t.items);
    if (t.items != t.first) free(t.items);
    return out;
}

rx rx_not(struct rx_pool *p, rx a)
{
    if (a == RX_NONE) return p->st ? RX_NONE : RX_ALL;
    if (a == RX_ALL) return RX_NONE;
    if (p->nodes[a].kind == K_NOT) return p->nodes[a].a;
    return intern(p, (struct node){.kind = K_NOT, .a = a}, NULL);
}

rx rx_repeat(struct rx_pool *p, rx a, uint32_t min, uint32_t max)
{
    if (max == 0 || a == RX_EMPTY) return RX_EMPTY;
    if (a == RX_NONE) return min ? RX_NONE : RX_EMPTY;
    if (max < min) return RX_NONE;
    if (p->nodes[a].nullable) min = 0;
    if (a == RX_ALL) return RX_ALL;
    if (max == 1) return min ? a : rx_alt(p, a, RX_EMPTY);
    return intern(p, (struct node){.kind = K_REPEAT, .a = a, .b = min, .c = max}, NULL);
}

/* ---- characters ---- */

static size_t utf8_put(uint32_t c, uint8_t out[4])
{
    if (c < 0x80) {
        out[0] = (uint8_t)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint8_t lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = n; --i > 0; c >>= 6) out[i] = (uint8_t)(0x80 | (c & 0x3F));
    out[0] = (uint8_t)(lead[n] | c);
    return n;
}

/* Texts of n bytes from `from` to `to`, byte by byte, both of the same length. */
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
        size_t n = utf8_put(a, x);
        utf8_put(b, y);
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

static bool memo_room(struct rx_pool *p)
{
    if (2 * (p->memo_count + 1) < p->memo_cap) return true;
    size_t old = p->memo_cap, cap = old ? 2 * old : 1024;
    if (cap > 2 * MEMO_MAX) { /* begins anew */
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

static rx derive(struct rx_pool *p, rx a, uint8_t byte)
{
    const struct node n = p->nodes[a];
    rx out;
    switch (n.kind) {
    case K_BYTES: return p->sets[n.a][byte >> 5] >> (byte & 31) & 1 ? RX_EMPTY : RX_NONE;
    case K_CONCAT:
        out = rx_concat(p, rx_derivative(p, n.a, byte), n.b);
        return p->nodes[n.a].nullable ? rx_alt(p, out, rx_derivative(p, n.b, byte)) : out;
    case K_ALT:
        out = RX_NONE;
        for (uint32_t i = 0; i < n.b; i++) out = rx_alt(p, out, rx_derivative(p, p->list[n.a + i], byte));
        return out;
    case K_AND:
        out = RX_ALL;
        for (uint32_t i = 0; i < n.b && out; i++)
            out = rx_and(p, out, rx_derivative(p, p->list[n.a + i], byte));
        return out;
    case K_NOT: return a == RX_ALL ? RX_ALL : rx_not(p, rx_derivative(p, n.a, byte));
    case K_REPEAT:
        out = rx_repeat(p, n.a, n.b ? n.b - 1 : 0, n.c == RX_NO_LIMIT ? n.c : n.c - 1);
        return rx_concat(p, rx_derivative(p, n.a, byte), out);
    default: return RX_NONE;
    }
}

rx rx_derivative(struct rx_pool *p, rx a, uint8_t byte)
{
    if (p->nodes[a].kind <= K_BYTES || a == RX_ALL) return derive(p, a, byte);
    uint64_t key = (uint64_t)a << 8 | byte;
    if (p->memo) {
        const struct memo *m = memo_at(p, key);
        if (m->key) return m->value;
    }
    rx out = derive(p, a, byte);
    if (p->st) return RX_NONE;
    if (!memo_room(p)) return fail(p, ST_NOMEM);
    struct memo *m = memo_at(p, key);
    if (!m->key) p->memo_count++;
    *m = (struct memo){key, out};
    return out;
}

/* Splits the classes by the set: by its bytes or by all others, whichever are fewer. */
static void split(struct rx_classes *s, const uint32_t set[8])
{
    uint16_t inside[256] = {0}; /* of a class: how many of those bytes it has */
    uint16_t twin[256] = {0};   /* the class that they become; 0 = none yet */
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

void rx_classes_add(const struct rx_pool *p, rx a, struct rx_classes *c)
{
    for (;;) {
        const struct node *n = &p->nodes[a];
        if (c->count >= 256) return;
        switch (n->kind) {
        case K_BYTES:
            if (c->seen[n->a % 64] != n->a + 1) split(c, p->sets[n->a]);
            c->seen[n->a % 64] = n->a + 1;
            return;
        case K_CONCAT:
            rx_classes_add(p, n->a, c);
            if (!p->nodes[n->a].nullable) return;
            a = n->b;
            continue;
        case K_ALT:
        case K_AND:
            for (uint32_t i = 0; i < n->b; i++) rx_classes_add(p, p->list[n->a + i], c);
            return;
        case K_NOT:
        case K_REPEAT:
            if (a == RX_ALL) return;
            a = n->a;
            continue;
        default: return;
        }
    }
}

/* ---- questions about whole languages: walks over derivatives ---- */

struct pairs {
    uint64_t *seen; /* hash set; 0 = free; holds key + 1 */
    uint64_t *queue;
    size_t cap, count, at;
};

static bool pairs_open(struct pairs *q, size_t states)
{
    *q = (struct pairs){.cap = 64};
    while (q->cap < 4 * states) q->cap *= 2;
    q->seen = calloc(q->cap, sizeof *q->seen);
    q->queue = malloc((states + 1) * sizeof *q->queue);
    return q->seen && q->queue;
}

static void pairs_close(struct pairs *q)
{
    free(q->seen);
    free(q->queue);
}

static void pairs_put(struct pairs *q, uint64_t key, size_t states)
{
    uint64_t h = mix(7, key);
    for (; q->seen[h & (q->cap - 1)]; h++)
        if (q->seen[h & (q->cap - 1)] == key + 1) return;
    if (q->count > states) return;
    q->seen[h & (q->cap - 1)] = key + 1;
    if (q->count < states) q->queue[q->count] = key;
    q->count++;
}

bool rx_matches_nothing(struct rx_pool *p, rx a, size_t states)
{
    struct pairs q;
    if (p->nodes[a].life) return p->nodes[a].life == LIFE_NONE;
    bool some = !pairs_open(&q, states);
    if (!some) pairs_put(&q, a, states);
    while (!some && q.at < q.count && q.at < states) {
        rx x = (rx)q.queue[q.at++];
        struct rx_classes classes;
        uint32_t done[8] = {0};
        rx_classes_begin(&classes);
        rx_classes_add(p, x, &classes);
        for (unsigned b = 0; b < 256 && !some; b++) {
            uint8_t c = classes.of_byte[b];
            if (done[c >> 5] >> (c & 31) & 1) continue;
            done[c >> 5] |= 1u << (c & 31);
            rx next = rx_derivative(p, x, (uint8_t)b);
            some = p->nodes[next].life == LIFE_SOME || p->st;
            if (next && p->nodes[next].life == LIFE_UNKNOWN) pairs_put(&q, next, states);
        }
    }
    some = some || q.count > states;
    if (!p->st) {
        if (some) p->nodes[a].life = LIFE_SOME;
        else /* nothing is within reach of any of them */
            for (size_t i = 0; i < q.count; i++) p->nodes[q.queue[i]].life = LIFE_NONE;
    }
    pairs_close(&q);
    return !some;
}

/* Walks a and `of` together over the texts of `of`: at each place a must have some text left, or, `whole`,
 * match where `of` does. */
static bool covers(struct rx_pool *p, rx a, rx of, bool whole, size_t states)
{
    enum { LIFE_STATES = 1024 }; /* as the machine asks: what it finds is kept */
    struct pairs q;
    bool ok = pairs_open(&q, states);
    if (ok) pairs_put(&q, (uint64_t)a << 32 | of, states);
    while (ok && q.at < q.count && q.at < states) {
        rx x = (rx)(q.queue[q.at] >> 32), y = (rx)q.queue[q.at];
        q.at++;
        struct rx_classes classes;
        uint32_t done[8] = {0};
        rx_classes_begin(&classes);
        rx_classes_add(p, x, &classes);
        rx_classes_add(p, y, &classes);
        for (unsigned b = 0; b < 256 && ok; b++) {
            uint8_t c = classes.of_byte[b];
            if (done[c >> 5] >> (c & 31) & 1) continue;
            done[c >> 5] |= 1u << (c & 31);
            rx to = rx_derivative(p, y, (uint8_t)b), here;
            if (!to) continue;
            here = rx_derivative(p, x, (uint8_t)b);
            ok = here && !p->st && !rx_matches_nothing(p, here, LIFE_STATES) &&
                 !(whole && p->nodes[to].nullable && !p->nodes[here].nullable);
            if (ok) pairs_put(&q, (uint64_t)here << 32 | to, states);
        }
    }
    ok = ok && q.count <= states && !p->st;
    pairs_close(&q);
    return ok;
}

/* covers, of a text of `one`; remembered. */
static bool takes(struct rx_pool *p, rx a, rx one)
{
    struct taken *t = &p->taken[mix(a, one) % (sizeof p->taken / sizeof *p->taken)];
    if (t->a != a || t->one != one) *t = (struct taken){a, one, covers(p, a, one, true, 128)};
    return t->yes;
}

#define BOUNDED_NODES 8192u
/* Has it texts of a few lengths only? *left: nodes that may be looked at. */
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

bool rx_bounded(const struct rx_pool *p, rx a)
{
    uint32_t left = BOUNDED_NODES;
    return bounded(p, a, &left);
}

rx rx_widened(struct rx_pool *p, rx a)
{
    struct node n = p->nodes[a], h = p->nodes[n.kind == K_CONCAT ? n.a : a];
    uint32_t left = BOUNDED_NODES;
    rx out = RX_ALL;
    if (h.kind != K_AND || (n.kind == K_CONCAT && !rx_bounded(p, n.b))) return a;
    for (uint32_t i = 0; i < h.b; i++) {
        rx part = p->list[h.a + i];
        struct node x = p->nodes[part];
        if (x.kind != K_NOT || part == RX_ALL || !bounded(p, x.a, &left)) out = rx_and(p, out, part);
    }
    return n.kind == K_CONCAT ? rx_concat(p, out, n.b) : out;
}

uint32_t rx_free_run(struct rx_pool *p, rx a, rx one)
{
    struct node n = p->nodes[a];
    rx head = n.kind == K_CONCAT ? n.a : a;
    struct node h = p->nodes[head];
    uint32_t most = 0;
    if (h.kind == K_REPEAT && takes(p, h.a, one)) return h.c;
    rx wide = rx_widened(p, a);
    if (wide != a && rx_free_run(p, wide, one) == RX_NO_LIMIT) return RX_NO_LIMIT;
    if (n.kind == K_ALT) {
        for (uint32_t i = 0; i < n.b; i++) {
            uint32_t run = rx_free_run(p, p->list[n.a + i], one);
            most = run > most ? run : most;
        }
        if (most) return most;
    }
    if (n.kind <= K_BYTES || (!n.logic && n.kind != K_ALT)) return 0;
    return covers(p, a, rx_repeat(p, one, 0, RX_NO_LIMIT), false, 64) ? RX_NO_LIMIT : 0;
}
