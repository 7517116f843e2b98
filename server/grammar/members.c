/* Members of an object or array during matching (build.h's gb_members). A member state records what is
 * written so far. States are built when reached, so names in any order cost only what a text visits. */
#include "config/base/assert.h"
#include "config/base/id_table.h"
#include "config/base/list.h"
#include "server/grammar/machine.h"

#include <stdlib.h>
#include <string.h>

/* Above so many names any_order is ignored: the successors cost quadratic time. */
#define ANY_ORDER_MAX 512u

struct table { /* of one gb_members call */
    struct gb_member *list;
    size_t count;
    uint32_t names, words; /* words: of a set of names */
    uint32_t *required, *able,
        *kept; /* sets: able: with a satisfiable member; kept: tracked in a member state */
    uint32_t (*implies)[2];
    size_t implies_count;
    uint32_t min, max, all; /* all: all bits of `wants` */
    bool any_order, further;
    gx comma;
};
/* Layout of a member state in `words`; S_NODE: its node, once it has one. */
enum { S_NODE, S_TABLE, S_COMMA, S_LAST, S_COUNT, S_GIVEN, S_SEEN /* [words] */ };

struct members {
    struct table *tables;
    size_t table_count, table_cap;
    uint32_t *words;
    size_t word_count, word_cap, word_base;
    struct id_table found; /* member states built on demand */
};

static bool has(const uint32_t *set, uint32_t i)
{
    return set[i >> 5] >> (i & 31) & 1;
}

static void put(uint32_t *set, uint32_t i)
{
    set[i >> 5] |= 1u << (i & 31);
}

static void table_free(struct table *t)
{
    free(t->list);
    free(t->required);
    free(t->implies);
}

size_t members__bytes(const struct members *m)
{
    return m ? m->word_cap * sizeof *m->words + m->found.cap * sizeof *m->found.slots : 0;
}

size_t members__allocated(const struct members *m)
{
    return m ? (m->word_count - m->word_base) * sizeof *m->words : 0;
}

void members__free(struct members *m)
{
    if (!m) return;
    for (size_t i = 0; i < m->table_count; i++) table_free(&m->tables[i]);
    free(m->tables);
    free(m->words);
    id_table_free(&m->found);
    free(m);
}

bool members__add(struct grammar *g, const struct gb_members *from, struct gx_node *out)
{
    struct members *m = g->members ? g->members : (g->members = calloc(1, sizeof *m));
    uint32_t words = from->names / 32 + 1;
    ASSERT_CMP(from->wants, <=, GB_WANTS_MAX);
    struct table t = {.count = from->count,
                      .names = from->names,
                      .words = words,
                      .implies_count = from->implies_count,
                      .min = from->min,
                      .max = from->max,
                      .all = (1u << from->wants) - 1,
                      .any_order = from->any_order && from->names <= ANY_ORDER_MAX,
                      .comma = from->comma};
    if (!m || !LIST_RESERVE(m->tables, m->table_cap, m->table_count + 1) ||
        !LIST_RESERVE(m->words, m->word_cap, m->word_count + S_SEEN + words))
        return false;
    t.list = malloc((t.count + 1) * sizeof *t.list);
    t.required = calloc(3 * (size_t)words, sizeof *t.required);
    t.implies = malloc((t.implies_count + 1) * sizeof *t.implies);
    if (!t.list || !t.required || !t.implies) {
        table_free(&t);
        return false;
    }
    t.able = t.required + words;
    t.kept = t.able + words;
    if (t.count) memcpy(t.list, from->list, t.count * sizeof *t.list);
    if (t.implies_count) memcpy(t.implies, from->implies, t.implies_count * sizeof *t.implies);
    for (uint32_t i = 0; i < t.names; i++) {
        if (from->required && from->required[i]) put(t.required, i);
        if (t.any_order) put(t.kept, i);
    }
    for (size_t i = 0; i < t.implies_count; i++) {
        put(t.kept, t.implies[i][0]);
        put(t.kept, t.implies[i][1]);
    }
    m->tables[m->table_count] = t;
    memset(m->words + m->word_count, 0, (S_SEEN + words) * sizeof *m->words);
    m->words[m->word_count + S_TABLE] = (uint32_t)m->table_count++;
    *out = (struct gx_node){.kind = GX_MEMBERS, .a = (uint32_t)m->word_count};
    m->word_count += S_SEEN + words;
    return true;
}

/* ---- can it be finished? ---- */

/* A word of the set of names >= `from`. */
static uint32_t beyond(uint32_t from, uint32_t word)
{
    if (from <= 32 * word) return UINT32_MAX;
    return from >= 32 * word + 32 ? 0 : UINT32_MAX << (from & 31);
}

/* May this member come now, ignoring what follows? S_LAST is one more than the index of the last name. */
static bool open(const struct table *t, const uint32_t *s, const struct gb_member *e)
{
    if (e->name == GB_FURTHER) return true;
    return !has(s + S_SEEN, e->name) && (t->any_order || e->name >= s[S_LAST]);
}

/* The fewest members that give all missing bits of `wants`. */
static uint32_t givers(const struct grammar *g, const struct table *t, const uint32_t *s)
{
    uint32_t best[1u << GB_WANTS_MAX];
    for (uint32_t i = 0; i <= t->all; i++) best[i] = i == s[S_GIVEN] ? 0 : RX_NO_LIMIT;
    for (uint32_t from = 0; from < t->all; from++) /* larger sets come later */
        for (size_t k = 0; k < t->count && best[from] != RX_NO_LIMIT; k++) {
            const struct gb_member *e = &t->list[k];
            uint32_t to = from | e->gives;
            if (to != from && g->nodes[e->what].productive && open(t, s, e) && best[from] + 1 < best[to])
                best[to] = best[from] + 1;
        }
    return best[t->all];
}

/* Removes names from the set until each name's requirements are in the set or written. */
static void drop_unable(const struct table *t, const uint32_t *seen, uint32_t *set)
{
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = 0; i < t->implies_count; i++) {
            uint32_t a = t->implies[i][0], b = t->implies[i][1];
            if (!has(set, a) || has(set, b) || has(seen, b)) continue;
            set[a >> 5] &= ~(1u << (a & 31));
            changed = true;
        }
    }
}

/* need: scratch for a set. Exact except for dependencies combined with both a minimum and a maximum number of
 * members, which json/object.c rejects. */
static bool can_finish(const struct grammar *g, const struct table *t, const uint32_t *s, uint32_t *need)
{
    uint64_t missing = 0, left = 0, more = 0;
    const uint32_t *seen = s + S_SEEN;
    if (t->min > t->max) return false;
    for (uint32_t i = 0; i < t->words; i++) need[i] = t->required[i];
    for (bool changed = t->implies_count > 0; changed;) {
        changed = false;
        for (size_t i = 0; i < t->implies_count; i++) {
            uint32_t a = t->implies[i][0], b = t->implies[i][1];
            if (!(has(need, a) || has(seen, a)) || has(need, b)) continue;
            put(need, b);
            changed = true;
        }
    }
    for (uint32_t i = 0; i < t->words; i++) {
        uint32_t later = beyond(s[S_LAST], i);
        /* A name that is not tracked and already passed was written if required. */
        uint32_t lacks = need[i] & ~seen[i] & (later | t->kept[i]);
        if (lacks & ~(t->able[i] & later)) return false;
        missing += (unsigned)__builtin_popcount(lacks);
    }
    if (s[S_GIVEN] != t->all) {
        uint32_t n = givers(g, t, s);
        if (n == RX_NO_LIMIT) return false;
        more = t->max == RX_NO_LIMIT ? 0 : n;
    }
    if (t->max != RX_NO_LIMIT && s[S_COUNT] + missing + more > t->max) return false;
    if (t->further || s[S_COUNT] >= t->min) return true;
    for (uint32_t i = 0; i < t->words; i++) need[i] = t->able[i] & ~seen[i] & beyond(s[S_LAST], i);
    drop_unable(t, seen, need);
    for (uint32_t i = 0; i < t->words; i++) left += (unsigned)__builtin_popcount(need[i]);
    return s[S_COUNT] + left >= t->min;
}

void members__facts(struct grammar *g, struct gx_node *n)
{
    const uint32_t *s = g->members->words + n->a;
    struct table *t = &g->members->tables[s[S_TABLE]];
    for (size_t i = 0; i < t->count; i++) {
        const struct gb_member *e = &t->list[i];
        if (!g->nodes[e->what].productive) continue;
        if (e->name == GB_FURTHER) t->further = true;
        else put(t->able, e->name);
    }
    drop_unable(t, s + S_SEEN, t->able);
    uint32_t *need = calloc(t->words, sizeof *need);
    if (!need) {
        g->failed = true;
        return;
    }
    n->productive = g->nodes[t->comma].productive && can_finish(g, t, s, need);
    free(need);
    n->nullable = members__ends(g, (gx)(n - g->nodes));
}

bool members__ends(const struct grammar *g, gx node)
{
    const uint32_t *s = g->members->words + g->nodes[node].a;
    const struct table *t = &g->members->tables[s[S_TABLE]];
    if (s[S_COMMA] || s[S_COUNT] < t->min || s[S_GIVEN] != t->all) return false;
    for (uint32_t i = 0; i < t->words; i++) {
        if (t->required[i] & ~s[S_SEEN + i] & (beyond(s[S_LAST], i) | t->kept[i])) return false;
    }
    for (size_t i = 0; i < t->implies_count; i++)
        if (has(s + S_SEEN, t->implies[i][0]) && !has(s + S_SEEN, t->implies[i][1])) return false;
    return true;
}

/* ---- member states ---- */

static uint32_t size_of(const struct members *m, const uint32_t *s)
{
    return S_SEEN + m->tables[s[S_TABLE]].words;
}

/* The member state at the end of `words`; 0: out of memory. (0 is an initial state, which nothing leads back
 * to.) */
static uint32_t member_state(struct members *m)
{
    uint32_t *s = m->words + m->word_count, n = size_of(m, s);
    uint64_t h = 0;
    for (uint32_t i = S_TABLE; i < n; i++) h = mix(h, s[i]);
    uint32_t hash = (uint32_t)h, at = hash;
    for (uint32_t id; (id = id_table_next(&m->found, hash, &at));)
        if (memcmp(m->words + id + S_TABLE, s + S_TABLE, (n - S_TABLE) * sizeof *s) == 0) return id;
    s[S_NODE] = 0;
    uint32_t out = (uint32_t)m->word_count;
    if (!id_table_add(&m->found, hash, out)) return 0;
    m->word_count += n;
    return out;
}

uint32_t *members__node(struct grammar *g, uint32_t at)
{
    return &g->members->words[at + S_NODE];
}

/* In order: is a required name skipped between the last name and this one? */
static bool skips(const struct table *t, uint32_t from, uint32_t to, uint32_t name)
{
    for (uint32_t i = 0; i < t->words && from < to; i++) {
        uint32_t between = t->required[i] & beyond(from, i) & ~beyond(to, i);
        if (name != GB_FURTHER && name / 32 == i) between &= ~(1u << (name & 31));
        if (between) return true;
    }
    return false;
}

/* Work to check whether a state can be completed, and to store it. */
static size_t stand_work(const struct table *t, const uint32_t *s)
{
    size_t wants = s[S_GIVEN] != t->all ? ((size_t)t->all + 1) * t->count : 0;
    return 8 + t->words / 4 + t->implies_count + wants;
}

bool members__next(struct grammar *g, gx node, uint32_t *at, gx *what, uint32_t *then)
{
    struct members *m = g->members;
    uint32_t from = g->nodes[node].a;
    ASSERT(g->nodes[node].kind == GX_MEMBERS && from < m->word_count);
    const struct table *t = &m->tables[m->words[from + S_TABLE]];
    uint32_t n = S_SEEN + t->words, most = t->max != RX_NO_LIMIT ? t->max : t->min > 1 ? t->min : 1;
    /* Space for a state and a set. */
    if (!LIST_RESERVE(m->words, m->word_cap, m->word_count + 2 * (size_t)n)) {
        g->failed = true;
        return false;
    }
    const uint32_t *s = m->words + from;
    uint32_t *to = m->words + m->word_count, *need = to + n;
    bool comma = s[S_COUNT] && !s[S_COMMA];
    while (*at < t->count && !rx_status(g->pool)) {
        const struct gb_member *e = &t->list[(*at)++];
        rx_spend(g->pool, 1);
        if (!g->nodes[e->what].productive || !open(t, s, e) ||
            (t->max != RX_NO_LIMIT && s[S_COUNT] >= t->max))
            continue;
        rx_spend(g->pool, stand_work(t, s));
        memcpy(to, s, n * sizeof *s);
        to[S_COMMA] = 0;
        to[S_COUNT] += to[S_COUNT] < most;
        to[S_GIVEN] |= e->gives;
        if (e->name != GB_FURTHER && has(t->kept, e->name)) put(to + S_SEEN, e->name);
        if (!t->any_order) to[S_LAST] = e->name == GB_FURTHER ? t->names : e->name + 1;
        if (skips(t, s[S_LAST], to[S_LAST], e->name) || !can_finish(g, t, to, need)) continue;
        *what = e->what;
        if (comma) { /* some member can follow: found again after the comma */
            memcpy(to, s, n * sizeof *s);
            to[S_COMMA] = 1;
            *what = t->comma;
            *at = (uint32_t)t->count;
        }
        *then = member_state(m);
        if (!*then) g->failed = true;
        return *then != 0;
    }
    return false;
}

void members__base(struct grammar *g)
{
    if (g->members) g->members->word_base = g->members->word_count;
}

void members__drop(struct grammar *g)
{
    struct members *m = g->members;
    if (!m) return;
    ASSERT_CMP(m->word_base, <=, m->word_count);
    m->word_count = m->word_base;
    LIST_FIT(m->words, m->word_cap, m->word_count);
    id_table_free(&m->found);
}
