/* An answer's way through a grammar, and the tokens that may follow. */
#include "server/grammar/vocab.h"

#include <stdlib.h>
#include <string.h>

#define MASKS        64u /* kept for a grammar */
#define FORCED_BYTES 64u

struct matcher {
    struct grammar *g;
    const struct grammar_vocab *v;
    uint32_t *tokens; /* [count]: those that were looked at */
    uint32_t *states; /* [count + 1]: before the first one, and after each */
    uint32_t count, cap;
    uint32_t era;      /* of the states */
    uint32_t *path;    /* [v->depth + 1] of a walk */
    atomic_bool stuck; /* some mask had nothing but the end though the text was not complete */
};

enum status matcher_create(struct grammar *g, const struct grammar_vocab *v, struct matcher **out)
{
    struct matcher *m = calloc(1, sizeof *m);
    if (m) {
        m->cap = 64;
        m->tokens = malloc(m->cap * sizeof *m->tokens);
        m->states = malloc((m->cap + 1u) * sizeof *m->states);
        m->path = malloc((v->depth + 1u) * sizeof *m->path);
    }
    if (!m || !m->tokens || !m->states || !m->path) {
        if (m) {
            free(m->tokens);
            free(m->states);
            free(m->path);
        }
        free(m);
        return ST_NOMEM;
    }
    m->g = grammar_ref(g);
    m->v = v;
    m->era = UINT32_MAX;
    *out = m;
    return ST_OK;
}

void matcher_free(struct matcher *m)
{
    if (!m) return;
    grammar_unref(m->g);
    free(m->tokens);
    free(m->states);
    free(m->path);
    free(m);
}

/* ---- where it stands; under the grammar's lock ---- */

static uint32_t after_token(struct matcher *m, uint32_t state, uint32_t token)
{
    const struct grammar_vocab *v = m->v;
    if (token >= v->count || v->at[token] == v->at[token + 1]) return STATE_DEAD;
    for (size_t i = v->at[token]; i < v->at[token + 1] && state; i++)
        state = machine__next(m->g, state, v->bytes[i]);
    return state;
}

/* The state after the tokens; what is known of them is kept. */
static uint32_t go(struct matcher *m, const uint32_t *tokens, uint32_t count)
{
    uint32_t same = 0;
    machine__tidy(m->g);
    if (m->g->failed) return STATE_DEAD;
    uint32_t again = m->era != m->g->era ? m->count : 0; /* so many tokens' states were dropped */
    size_t before = again ? machine__made(m->g) : 0;
    if (m->era != m->g->era) m->count = 0;
    m->era = m->g->era;
    m->states[0] = STATE_FIRST;
    while (same < count && same < m->count && m->tokens[same] == tokens[same]) same++;
    m->count = same;
    if (count > m->cap) {
        uint32_t cap = 2 * count;
        uint32_t *t = realloc(m->tokens, cap * sizeof *t);
        if (t) m->tokens = t;
        uint32_t *s = realloc(m->states, (cap + 1u) * sizeof *s);
        if (s) m->states = s;
        if (!t || !s) return STATE_DEAD;
        m->cap = cap;
    }
    for (; m->count < count; m->count++) {
        m->tokens[m->count] = tokens[m->count];
        m->states[m->count + 1] = after_token(m, m->states[m->count], tokens[m->count]);
    }
    if (again) m->g->found_again += machine__made(m->g) - before;
    return m->states[count];
}

/* ---- masks ---- */

static void set(uint32_t *bits, uint32_t id)
{
    bits[id >> 5] |= 1u << (id & 31);
}

static void walk(struct matcher *m, const struct trie *t, uint32_t state, uint32_t *bits)
{
    struct grammar *g = m->g;
    m->path[0] = state;
    for (uint32_t i = 0; i < t->count;) {
        const struct trie_node *n = &t->nodes[i];
        uint32_t to = machine__next(g, m->path[n->depth - 1], n->byte);
        if (!to) {
            i = n->skip;
            continue;
        }
        m->path[n->depth] = to;
        if (n->token != NO_TOKEN) set(bits, n->token);
        if (n->twins) /* asked of the node: their table is large and would be read at random */
            for (uint32_t id = m->v->twin[n->token]; id != NO_TOKEN; id = m->v->twin[id]) set(bits, id);
        i++;
    }
}

/* Places that take ordinary characters without end only all together (a name matches a pattern or it does
 * not). Names are left aside: they are many, and do not help. */
static bool all_take(struct grammar *g, const struct state *s)
{
    enum { MANY = 8 };
    rx all[MANY];
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->place_count; i++) {
        rx left = g->places[s->places + i].left;
        if (rx_bounded(g->pool, left)) continue;
        if (count == MANY) return false;
        all[count++] = rx_widened(g->pool, left);
    }
    return count > 1 &&
           rx_free_run(g->pool, rx_union(g->pool, all, count), g->one[SLICE_ORDINARY]) == RX_NO_LIMIT;
}

/* How many such characters can follow in any case. */
static uint32_t free_run(struct grammar *g, const struct state *s, rx one)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < s->place_count && most != RX_NO_LIMIT; i++) {
        uint32_t run = rx_free_run(g->pool, g->places[s->places + i].left, one);
        most = run > most ? run : most;
    }
    return most;
}

/* The first slice that the state takes whole. */
static int slice_of(struct grammar *g, uint32_t state)
{
    struct state *s = &g->states[state];
    if (s->slice != SLICE_UNKNOWN) return s->slice;
    uint32_t run[SLICE_KINDS];
    run[SLICE_ORDINARY] = free_run(g, s, g->one[SLICE_ORDINARY]);
    if (!run[SLICE_ORDINARY] && all_take(g, s)) run[SLICE_ORDINARY] = RX_NO_LIMIT;
    run[SLICE_WORD] = run[SLICE_ORDINARY] ? run[SLICE_ORDINARY] : free_run(g, s, g->one[SLICE_WORD]);
    int k = 0;
    while (k < SLICES && run[slice_kinds[k].what] < slice_kinds[k].chars) k++;
    s->slice = (int8_t)(k == SLICES ? -1 : k);
    return s->slice;
}

static void mask_make(struct matcher *m, uint32_t state, uint32_t *bits)
{
    const struct grammar_vocab *v = m->v;
    int k = slice_of(m->g, state);
    if (k < 0) {
        memset(bits, 0, v->words * sizeof *bits);
        walk(m, &v->all, state, bits);
    } else {
        memcpy(bits, v->slices[k].bits, v->words * sizeof *bits);
        walk(m, &v->slices[k].rest, state, bits);
    }
    if (m->g->states[state].accepts)
        for (uint32_t i = 0; i < v->end_count; i++) set(bits, v->end_ids[i]);
}

/* The state's mask as it was kept, or made and kept; NULL: no memory to keep it. */
static const uint32_t *mask_kept(struct matcher *m, uint32_t state)
{
    struct grammar *g = m->g;
    if (!g->masks) g->masks = calloc(MASKS + 1, sizeof *g->masks);
    if (!g->masks) return NULL;
    if (g->mask_vocab != m->v) /* another tokenizer: never in a server */
        for (uint32_t i = 0; i < MASKS; i++) {
            free(g->masks[i].bits);
            g->masks[i] = (struct mask){0};
        }
    g->mask_vocab = m->v;
    struct mask *oldest = &g->masks[0];
    for (uint32_t i = 0; i < MASKS; i++) {
        struct mask *k = &g->masks[i];
        if (k->state == state) {
            k->used = ++g->mask_clock;
            return k->bits;
        }
        if (!k->bits || (oldest->bits && k->used < oldest->used)) oldest = k;
        if (!k->bits) break;
    }
    if (!oldest->bits) oldest->bits = malloc((m->v->words + 1u) * sizeof *oldest->bits);
    if (!oldest->bits) return NULL;
    mask_make(m, state, oldest->bits);
    oldest->state = g->failed ? 0 : state;
    oldest->used = ++g->mask_clock;
    return oldest->bits;
}

size_t grammar_bytes(struct grammar *g)
{
    size_t n = 0;
    pthread_mutex_lock(&g->lock);
    for (uint32_t i = 0; g->masks && g->masks[i].bits; i++) n += g->mask_vocab->words * sizeof(uint32_t);
    n += rx_pool_bytes(g->pool) + members__bytes(g->members) + machine__bytes(g);
    if (g->failed) n = SIZE_MAX;
    pthread_mutex_unlock(&g->lock);
    return n;
}

void matcher_mask(struct matcher *m, const uint32_t *tokens, uint32_t count, uint32_t *bits, uint32_t words)
{
    const struct grammar_vocab *v = m->v;
    uint32_t n = words < v->words ? words : v->words;
    const uint32_t *mask = NULL;
    memset(bits, 0, words * sizeof *bits);
    pthread_mutex_lock(&m->g->lock);
    uint32_t state = go(m, tokens, count);
    if (state && m->g->states[state].place_count) mask = mask_kept(m, state);
    bool complete = state && m->g->states[state].accepts;
    uint32_t any = 0;
    for (uint32_t i = 0; mask && !m->g->failed && i < n; i++) any |= bits[i] = mask[i];
    pthread_mutex_unlock(&m->g->lock);
    if (any) return;
    if (!complete) atomic_store(&m->stuck, true);
    for (uint32_t i = 0; i < v->end_count; i++)
        if (v->end_ids[i] >> 5 < words) set(bits, v->end_ids[i]);
}

bool matcher_complete(struct matcher *m, const uint32_t *tokens, uint32_t count)
{
    for (uint32_t i = 0; count && i < m->v->end_count; i++)
        if (tokens[count - 1] == m->v->end_ids[i]) {
            count--;
            break;
        }
    pthread_mutex_lock(&m->g->lock);
    uint32_t state = go(m, tokens, count);
    bool complete = state && m->g->states[state].accepts;
    pthread_mutex_unlock(&m->g->lock);
    return complete;
}

bool matcher_gave_up(struct matcher *m, const uint32_t *tokens, uint32_t count, uint32_t end)
{
    bool is_end = false;
    if (!atomic_load(&m->stuck)) return false; /* without waiting for who makes a mask */
    for (uint32_t i = 0; i < m->v->end_count; i++) is_end = is_end || m->v->end_ids[i] == end;
    return is_end && !matcher_complete(m, tokens, count);
}

/* ---- guesses ---- */

/* The only byte that can follow; -1: there are several, or the text may end. */
static int only_byte(struct grammar *g, uint32_t state)
{
    int found = -1;
    if (g->states[state].accepts) return -1;
    for (unsigned b = 0; b < 256; b++) {
        if (!machine__next(g, state, (uint8_t)b)) continue;
        if (found >= 0) return -1;
        found = (int)b;
    }
    return found;
}

/* The longest token that begins text[0..len); its length in *used. */
static uint32_t longest(const struct grammar_vocab *v, const uint8_t *text, size_t len, size_t *used)
{
    uint32_t found = NO_TOKEN;
    for (uint32_t i = 0; i < v->all.count;) {
        const struct trie_node *n = &v->all.nodes[i];
        if (n->depth > len || n->byte != text[n->depth - 1]) {
            i = n->skip;
            continue;
        }
        if (n->token != NO_TOKEN) {
            found = n->token;
            *used = n->depth;
        }
        uint32_t end = n->skip, depth = n->depth;
        for (i++; i < end &&
                  (v->all.nodes[i].depth != depth + 1 || depth == len || v->all.nodes[i].byte != text[depth]);
             i = v->all.nodes[i].skip) {
        }
        if (i >= end) break;
    }
    return found;
}

uint32_t matcher_forced(struct matcher *m, const uint32_t *tokens, uint32_t count, uint32_t most,
                        uint32_t *out)
{
    uint8_t text[FORCED_BYTES];
    size_t len = 0, at = 0, used = 0;
    uint32_t n = 0;
    pthread_mutex_lock(&m->g->lock);
    uint32_t state = go(m, tokens, count);
    for (int b; state && len < sizeof text && (b = only_byte(m->g, state)) >= 0; len++) {
        text[len] = (uint8_t)b;
        state = machine__next(m->g, state, (uint8_t)b);
    }
    /* What can be the end of the forced text or the beginning of a longer token is no guess. */
    bool open = state && m->g->states[state].place_count > 0;
    pthread_mutex_unlock(&m->g->lock);
    while (n < most && at < len) {
        uint32_t id = longest(m->v, text + at, len - at, &used);
        if (id == NO_TOKEN) break;
        at += used;
        if (open && at == len) break;
        out[n++] = id;
    }
    return n;
}
