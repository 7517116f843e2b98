/* Follows a sequence through a grammar: the states after its tokens, and the masks of those where it samples.
 * See mask.h. */
#include "config/base/assert.h"
#include "config/base/list.h"
#include "server/grammar/mask.h"

#include <stdlib.h>
#include <string.h>

static void unref(struct matcher *m)
{
    unsigned refs = atomic_fetch_sub(&m->refs, 1);
    ASSERT_CMP(refs, >, 0);
    if (refs > 1) return;
    mask__drop(m->g, m->walk.mask);
    for (uint32_t i = 0; i < READY; i++) mask__drop(m->g, m->ready[i].mask);
    grammar_unref(m->g);
    free(m->tokens);
    free(m->at);
    free(m->walk.path);
    free(m);
}

/* For so many tokens; before each of them, and after the last, is a state. */
static bool reserve(struct matcher *m, uint32_t count)
{
    uint32_t cap = m->cap;
    return LIST_RESERVE(m->tokens, cap, count + 1) && LIST_RESERVE(m->at, m->cap, count + 1);
}

enum status matcher_create(struct grammar *g, const struct grammar_vocab *v, struct matcher **out)
{
    struct matcher *m = calloc(1, sizeof *m);
    if (!m) return ST_NOMEM;
    atomic_init(&m->refs, 1);
    m->g = grammar_ref(g);
    m->v = v;
    m->generation = UINT32_MAX;
    m->walk.path = malloc((v->depth + 1u) * sizeof *m->walk.path);
    if (!m->walk.path || !reserve(m, 64)) {
        unref(m);
        return ST_NOMEM;
    }
    m->at[0] = (struct reached){0};
    *out = m;
    return ST_OK;
}

void matcher_threads(struct matcher *m, struct mask_threads *t, uint64_t tenant)
{
    m->threads = t;
    m->tenant = tenant;
}

void matcher_stop(void *matcher)
{
    struct matcher *m = matcher;
    atomic_store(&m->stopped, true);
}

void matcher_free(struct matcher *m)
{
    if (!m) return;
    matcher_stop(m);
    unref(m);
}

enum matcher_failure matcher_failure(const struct matcher *m)
{
    return (enum matcher_failure)atomic_load(&m->failure);
}

/* ---- current state ---- */

static void ready_drop(struct matcher *m, struct ready *r)
{
    mask__drop(m->g, r->mask);
    *r = (struct ready){0};
}

/* Sets the tokens whose mask is needed, keeping known states. False: out of memory. */
static bool aim(struct matcher *m, const uint32_t *tokens, uint32_t count)
{
    uint32_t same = 0;
    if (!reserve(m, count)) return false;
    while (same < count && same < m->target && m->tokens[same] == tokens[same]) same++;
    if (count > same) memcpy(m->tokens + same, tokens + same, (count - same) * sizeof *tokens);
    m->target = count;
    if (m->count > same) m->count = same;
    if (m->known > same) m->known = same;
    for (uint32_t i = 0; i < READY; i++)
        if (m->ready[i].set && m->ready[i].count > same) ready_drop(m, &m->ready[i]);
    return true;
}

/* STATE_DEAD also if it could not be computed. */
static uint32_t after_token(struct matcher *m, uint32_t state, uint32_t token, uint64_t *work)
{
    const struct grammar_vocab *v = m->v;
    ++*work;
    if (token >= v->count || v->at[token] == v->at[token + 1]) return STATE_DEAD;
    for (size_t i = v->at[token]; i < v->at[token + 1] && state; i++) {
        struct move *to = machine__known(m->g, state, v->bytes[i]);
        if (!to) to = machine__make(m->g, state, v->bytes[i]);
        if (to) *work += WORK_BYTE + (uint64_t)to->work;
        state = to ? to->next : STATE_DEAD;
    }
    return state;
}

/* Under the lock, as the grammar's owner: computes the states of the tokens; false: *p is spent, or the
 * grammar is full. */
static bool go(struct matcher *m, struct pace *p)
{
    struct grammar *g = m->g;
    if (m->generation != g->generation) {
        m->again = m->count;
        m->count = 0;
        m->generation = g->generation;
    }
    m->at[0].state = STATE_FIRST;
    while (m->count < m->target && !g->failed) {
        uint64_t work = 0, before = rx_pool_work(g->pool);
        uint32_t i = m->count;
        size_t made = machine__allocated(g);
        if (pace_over(p)) return false;
        uint32_t state = after_token(m, m->at[i].state, m->tokens[i], &work);
        pace_use(p, WORK_BYTE + rx_pool_work(g->pool) - before);
        if (g->full || g->later) return false;
        m->at[i + 1].state = state;
        if (i + 1 > m->known) {
            m->at[i + 1].charged = false;
            m->at[i + 1].spent = m->at[i].spent + work;
            m->known = i + 1;
        }
        if (i < m->again) g->rebuilt_bytes += machine__allocated(g) - made;
        m->count = i + 1;
    }
    return true;
}

static uint64_t allowance(const struct matcher *m)
{
    return WORK_SEQUENCE + (uint64_t)m->target * (WORK_TOKEN + (uint64_t)WORK_WALKS * m->v->all.count);
}

/* Stores the result and charges its work. */
static enum mask_state resolve(struct matcher *m, enum mask_state st, struct mask *mask,
                               enum matcher_failure why, bool planner)
{
    ASSERT((st == MASK_READY) == (mask != NULL) && st != MASK_LATER);
    ASSERT_CMP(m->count, <=, m->target);
    struct ready *r = &m->ready[m->target % READY];
    struct reached *at = &m->at[m->target];
    if (st == MASK_READY && !at->charged) {
        at->charged = true;
        at->spent += mask->cost;
    }
    if (st == MASK_READY && at->spent > allowance(m)) {
        mask__drop(m->g, mask);
        mask = NULL;
        st = MASK_FAILED;
        why = MATCHER_ANSWER_COST;
    }
    ready_drop(m, r);
    *r = (struct ready){.count = m->target, .set = true, .state = st, .why = why, .mask = mask};
    m->clean = false;
    mask__disown(m->g, m, planner);
    return st;
}

static void abandon(struct matcher *m)
{
    mask__abandon(m->g, &m->walk);
    m->clean = false;
    mask__disown(m->g, m, m->threads != NULL);
}

/* The grammar is full together with what others built: drops everything and restarts. So whether it fits does
 * not depend on others. */
static enum mask_state begin_anew(struct matcher *m)
{
    ASSERT(m->g->masks->owner == m);
    mask__abandon(m->g, &m->walk);
    if (m->clean) return resolve(m, MASK_FAILED, NULL, MATCHER_MASK_COST, false);
    machine__drop(m->g);
    m->clean = true;
    return MASK_LATER;
}

/* Under the lock: continues the mask after m->tokens[0..target). LATER: *p is spent, and this matcher owns
 * the grammar until it continues or abandons. BUSY: another mask is in progress. */
static enum mask_state make(struct matcher *m, struct pace *p)
{
    struct mask *mask = NULL;
    enum matcher_failure why = MATCHER_FINE;
    uint64_t before = p->left;
    if (!mask__own(m->g, m, p->planner)) return MASK_BUSY;
    m->g->later = false;
    rx_pool_pause(m->g->pool, p->planner ? p->left : SIZE_MAX);
    bool there = go(m, p);
    enum mask_state st = MASK_LATER;
    if (there && !m->walk.mask)
        st = mask__begin(m->g, m->v, m->g->failed ? STATE_DEAD : m->at[m->target].state, &m->walk, &mask,
                         &why);
    if (m->walk.mask && there) st = mask__go_on(m->g, m->v, &m->walk, p, &mask, &why);
    m->worked += before - p->left;
    rx_pool_pause(m->g->pool, SIZE_MAX);
    m->g->later = false;
    if (st == MASK_LATER && m->g->full && !p->planner) st = begin_anew(m);
    else if (st != MASK_LATER) st = resolve(m, st, mask, why, p->planner);
    if (st == MASK_LATER) machine__count(m->g);
    return st;
}

/* ---- called by the planner ---- */

static enum mask_state response(struct matcher *m, const struct ready *r)
{
    if (r->state == MASK_FAILED) atomic_store(&m->failure, (int)r->why);
    return r->state;
}

static struct pace pace_here(const struct matcher *m, bool brief)
{
    bool s = brief || m->slow;
    return pace_of(s ? WORK_SHORT : WORK_INLINE, s ? SHORT_NS : INLINE_NS, m->threads != NULL);
}

enum mask_state matcher_prepare(void *matcher, const uint32_t *tokens, uint32_t count, bool brief)
{
    struct matcher *m = matcher;
    if (atomic_load(&m->job)) return MASK_LATER;
    if (!aim(m, tokens, count)) {
        atomic_store(&m->failure, MATCHER_MEMORY);
        return MASK_FAILED;
    }
    struct ready *r = &m->ready[count % READY];
    if (r->set && r->count == count) return response(m, r);
    if (!work_lock_try(&m->g->lock)) return MASK_BUSY;
    m->worked = 0;
    enum mask_state st = MASK_LATER;
    for (bool here = !m->threads || !machine__untidy(m->g); here && st == MASK_LATER; here = !m->threads) {
        struct pace p = pace_here(m, brief);
        st = make(m, &p);
    }
    work_unlock(&m->g->lock);
    if (st == MASK_BUSY) return MASK_LATER; /* until the other mask is done */
    if (st != MASK_LATER) m->slow = false;
    if (st != MASK_LATER) return response(m, r);
    m->slow = true;
    atomic_fetch_add(&m->refs, 1);
    atomic_store(&m->job, true);
    mask_threads__add(m->threads, m);
    return MASK_LATER;
}

uint32_t matcher_drafts(void *matcher, const uint32_t *tokens, uint32_t count, uint32_t drafts)
{
    struct matcher *m = matcher;
    uint32_t n = 0;
    struct pace p = pace_here(m, false);
    for (; n < drafts && n + 1 < READY; n++) {
        const struct ready *r = &m->ready[(count + n) % READY];
        uint32_t id = tokens[count + n];
        if (!r->mask || id >= m->v->count || !(r->mask->bits[id >> 5] >> (id & 31) & 1)) break;
        if (!aim(m, tokens, count + n + 1)) break;
        r = &m->ready[m->target % READY];
        if (!(r->set && r->count == m->target)) {
            if (!work_lock_try(&m->g->lock)) break;
            enum mask_state st = make(m, &p);
            if (st == MASK_LATER) abandon(m);
            work_unlock(&m->g->lock);
            if (st != MASK_READY) break;
        }
        if (r->state != MASK_READY) break;
    }
    return n;
}

static const struct ready *find_ready(const struct matcher *m, const uint32_t *tokens, uint32_t count)
{
    const struct ready *r = &m->ready[count % READY];
    if (!r->set || r->count != count || m->target < count) return NULL;
    return memcmp(m->tokens, tokens, count * sizeof *tokens) == 0 ? r : NULL;
}

void matcher_mask(void *matcher, const uint32_t *tokens, uint32_t count, uint32_t *bits, uint32_t words)
{
    struct matcher *m = matcher;
    const struct grammar_vocab *v = m->v;
    const struct ready *r = find_ready(m, tokens, count);
    uint32_t n = words < v->words ? words : v->words, any = 0;
    if (!r && aim(m, tokens, count)) {
        work_lock(&m->g->lock);
        struct pace p = {.left = UINT64_MAX};
        while (make(m, &p) == MASK_LATER) {
        }
        work_unlock(&m->g->lock);
        r = find_ready(m, tokens, count);
    }
    memset(bits, 0, words * sizeof *bits);
    for (uint32_t i = 0; r && r->mask && i < n; i++) any |= bits[i] = r->mask->bits[i];
    for (uint32_t i = 0; i < v->end_count && !any; i++)
        if (v->end_ids[i] >> 5 < words) bits[v->end_ids[i] >> 5] |= 1u << (v->end_ids[i] & 31);
}

/* ---- on a mask thread ---- */

bool matcher__slice(struct matcher *m)
{
    struct pace p = pace_of(WORK_SLICE, SLICE_NS, false);
    work_lock(&m->g->lock);
    bool stopped = atomic_load(&m->stopped);
    if (stopped) abandon(m);
    bool done = stopped || make(m, &p) != MASK_LATER;
    work_unlock(&m->g->lock);
    return done;
}

void matcher__done(struct matcher *m)
{
    ASSERT(atomic_load(&m->job));
    atomic_store(&m->job, false);
    unref(m);
}

/* ---- forced tokens ---- */

#define FORCED_BYTES 64u

/* The only byte that can follow; -1: there are several, or the text may end, or *p is spent. */
static int only_byte(struct grammar *g, uint32_t state, struct pace *p)
{
    int found = -1;
    if (g->states[state].accepts) return -1;
    for (unsigned b = 0; b < 256; b++) {
        size_t before = rx_pool_work(g->pool);
        struct move *to = machine__known(g, state, (uint8_t)b);
        if (!to) to = machine__make(g, state, (uint8_t)b);
        pace_use(p, 1 + rx_pool_work(g->pool) - before);
        if (!to || to->work == WORK_OVER || !p->left) return -1;
        if (!to->next) continue;
        if (found >= 0) return -1;
        found = (int)b;
    }
    return found;
}

/* The longest token that is a prefix of text[0..len); its length in *used. */
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

uint32_t matcher_forced(void *matcher, const uint32_t *tokens, uint32_t count, uint32_t most, uint32_t *out)
{
    struct matcher *m = matcher;
    uint8_t text[FORCED_BYTES];
    size_t len = 0, at = 0, used = 0;
    uint32_t n = 0;
    struct pace p = pace_here(m, false);
    if (atomic_load(&m->job) || !aim(m, tokens, count) || !work_lock_try(&m->g->lock)) return 0;
    if (!mask__own(m->g, m, p.planner)) {
        work_unlock(&m->g->lock);
        return 0;
    }
    rx_pool_pause(m->g->pool, p.planner ? p.left : SIZE_MAX);
    uint32_t state = go(m, &p) && !m->g->failed && !m->g->full ? m->at[count].state : STATE_DEAD;
    for (int b; state && len < sizeof text && !pace_over(&p) && (b = only_byte(m->g, state, &p)) >= 0;
         len++) {
        text[len] = (uint8_t)b;
        state = machine__next(m->g, state, (uint8_t)b);
    }
    /* The end of the forced text may begin a longer token, so it is not drafted. */
    bool open = state && m->g->states[state].item_count > 0;
    rx_pool_pause(m->g->pool, SIZE_MAX);
    m->g->later = false;
    mask__disown(m->g, m, p.planner);
    work_unlock(&m->g->lock);
    while (n < most && at < len) {
        uint32_t id = longest(m->v, text + at, len - at, &used);
        if (id == NO_TOKEN) break;
        at += used;
        if (open && at == len) break;
        out[n++] = id;
    }
    return n;
}
