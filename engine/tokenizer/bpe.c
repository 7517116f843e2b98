/* One word of the pre-tokenizer -> ids. Byte-pair merges: always the pair of lowest rank, leftmost first,
 * until none is left. Short words use an array, long ones a heap (O(n log n)); both give the same result.
 * Pure; any thread, state in the caller's encoder. */
#include "config/base/assert.h"
#include "config/base/list.h"
#include "engine/tokenizer/internal.h"
#include "engine/tokenizer/unicode.h"

#include <stdlib.h>
#include <string.h>

enum { ARRAY_MAX = 40, CACHED_BYTES_MAX = 64 };

void tok__encoder_fini(struct tok_encoder *e)
{
    free(e->ids);
    free(e->cache);
    free(e->sym);
    free(e->rank);
    free(e->prev);
    free(e->next);
    free(e->heap);
    *e = (struct tok_encoder){.t = NULL};
}

static enum status reserve_ids(struct tok_encoder *e, size_t extra)
{
    if (extra > e->ids_max || e->count > e->ids_max - extra) return ST_TOO_LARGE;
    return LIST_RESERVE(e->ids, e->cap, e->count + extra) ? ST_OK : ST_NOMEM;
}

enum status tok__emit(struct tok_encoder *e, uint32_t id)
{
    ASSERT(id < e->t->vocab_size);
    enum status st = reserve_ids(e, 1);
    if (!st) e->ids[e->count++] = id;
    return st;
}

static enum status emit_all(struct tok_encoder *e, const uint32_t *ids, size_t n)
{
    enum status st = reserve_ids(e, n);
    if (st || n == 0) return st; /* every byte was dropped */
    memcpy(e->ids + e->count, ids, n * sizeof *ids);
    e->count += n;
    return ST_OK;
}

static enum status reserve_scratch(struct tok_encoder *e, size_t n)
{
    uint32_t **arrays[] = {&e->sym, &e->rank, &e->prev, &e->next};
    size_t cap = 0;
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        cap = e->scratch_cap;
        if (!LIST_RESERVE(*arrays[i], cap, n)) return ST_NOMEM;
    }
    e->scratch_cap = cap;
    /* Every merge removes one entry and adds at most two, and there are fewer merges than symbols. */
    return LIST_RESERVE(e->heap, e->heap_cap, 2 * n) ? ST_OK : ST_NOMEM;
}

/* ---- initial symbols ---- */

/* Writes the symbols of s[0..len) to ids, which has room for len; returns how many. */
static size_t symbols(const struct tokenizer *t, const uint8_t *s, size_t len, uint32_t *ids)
{
    size_t n = 0;
    bool unk = false; /* a pending unknown symbol: with fuse_unk the next one may join it */
    for (size_t i = 0; i < len;) {
        uint32_t cp;
        unsigned bytes = t->byte_level ? 1 : uni_decode(s + i, &cp);
        uint32_t id = t->byte_level ? t->byte_id[s[i]] : tok__char_id(t, cp);
        if (id != TOK_NO_ID) {
            if (unk) ids[n++] = t->unk_id;
            unk = false;
            ids[n++] = id;
        } else {
            bool all = t->byte_fallback && !t->byte_level;
            for (unsigned k = 0; k < bytes && all; k++) all = t->byte_id[s[i + k]] != TOK_NO_ID;
            if (all) { /* a pending unknown symbol stays pending here, as in the reference */
                for (unsigned k = 0; k < bytes; k++) ids[n++] = t->byte_id[s[i + k]];
            } else { /* without an unknown token it is dropped */
                if (unk && !t->fuse_unk) ids[n++] = t->unk_id;
                unk = t->unk_id != TOK_NO_ID;
            }
        }
        i += bytes;
    }
    if (unk) ids[n++] = t->unk_id;
    return n;
}

/* ---- merges ---- */

static size_t merge_array(const struct tok_merges *m, uint32_t *ids, uint32_t *rank, size_t n)
{
    for (size_t i = 0; i + 1 < n; i++) rank[i] = tok__merge_rank(m, ids[i], ids[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            if (rank[i] < rank[best]) best = i;
        }
        if (rank[best] == TOK_NO_RANK) break;
        ASSERT_SLOW(rank[best] < m->count);
        ids[best] = m->merged[rank[best]];
        memmove(ids + best + 1, ids + best + 2, (n - best - 2) * sizeof *ids);
        if (best + 3 < n) memmove(rank + best + 1, rank + best + 2, (n - best - 3) * sizeof *rank);
        n--;
        if (best > 0) rank[best - 1] = tok__merge_rank(m, ids[best - 1], ids[best]);
        if (best + 1 < n) rank[best] = tok__merge_rank(m, ids[best], ids[best + 1]);
    }
    return n;
}

static void sift_down(uint64_t *heap, size_t n, size_t at)
{
    uint64_t x = heap[at];
    for (;;) {
        size_t c = 2 * at + 1;
        if (c >= n) break;
        if (c + 1 < n && heap[c + 1] < heap[c]) c++;
        if (heap[c] >= x) break;
        heap[at] = heap[c];
        at = c;
    }
    heap[at] = x;
}

static void push(uint64_t *heap, size_t *n, uint64_t x)
{
    size_t at = (*n)++;
    while (at > 0 && heap[(at - 1) / 2] > x) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = x;
}

/* The same on e->sym[0..n) with a heap of rank << 32 | position; the result is at the front of e->sym. An
 * entry is stale if the pair at its position has a different rank now (a rank names one pair). */
static size_t merge_heap(struct tok_encoder *e, size_t n)
{
    const struct tok_merges *m = &e->t->merges;
    ASSERT(n > 0 && n <= e->scratch_cap);
    const uint32_t none = UINT32_MAX;
    size_t heap_count = 0;
    for (uint32_t i = 0; i < n; i++) {
        e->prev[i] = i ? i - 1 : none;
        e->next[i] = i + 1 < n ? i + 1 : none;
        e->rank[i] = i + 1 < n ? tok__merge_rank(m, e->sym[i], e->sym[i + 1]) : TOK_NO_RANK;
        if (e->rank[i] != TOK_NO_RANK) e->heap[heap_count++] = (uint64_t)e->rank[i] << 32 | i;
    }
    for (size_t i = heap_count / 2; i-- > 0;) sift_down(e->heap, heap_count, i);
    while (heap_count > 0) {
        uint32_t at = (uint32_t)e->heap[0], rank = (uint32_t)(e->heap[0] >> 32);
        e->heap[0] = e->heap[--heap_count];
        if (heap_count) sift_down(e->heap, heap_count, 0);
        if (e->rank[at] != rank) continue;
        uint32_t gone = e->next[at], after = e->next[gone], before = e->prev[at];
        ASSERT(gone != none && rank < m->count);
        e->sym[at] = m->merged[rank];
        e->rank[gone] = TOK_NO_RANK; /* dead: no entry's rank */
        e->next[at] = after;
        if (after != none) e->prev[after] = at;
        e->rank[at] = after != none ? tok__merge_rank(m, e->sym[at], e->sym[after]) : TOK_NO_RANK;
        if (e->rank[at] != TOK_NO_RANK) push(e->heap, &heap_count, (uint64_t)e->rank[at] << 32 | at);
        if (before == none) continue;
        e->rank[before] = tok__merge_rank(m, e->sym[before], e->sym[at]);
        if (e->rank[before] != TOK_NO_RANK)
            push(e->heap, &heap_count, (uint64_t)e->rank[before] << 32 | before);
    }
    size_t out = 0;
    for (uint32_t i = 0; i != none; i = e->next[i]) e->sym[out++] = e->sym[i];
    return out;
}

static enum status encode_new(struct tok_encoder *e, const uint8_t *s, size_t len)
{
    if (e->t->ignore_merges) {
        uint32_t id = tok__word_id(e->t, (const char *)s, len);
        if (id != TOK_NO_ID) return tok__emit(e, id);
    }
    if (len <= ARRAY_MAX) {
        uint32_t ids[ARRAY_MAX], rank[ARRAY_MAX];
        size_t n = symbols(e->t, s, len, ids);
        return emit_all(e, ids, merge_array(&e->t->merges, ids, rank, n));
    }
    enum status st = reserve_scratch(e, len);
    if (st) return st;
    size_t n = symbols(e->t, s, len, e->sym);
    if (n / e->t->longest > e->ids_max - e->count) return ST_TOO_LARGE; /* whatever is merged */
    n = n > 0 ? merge_heap(e, n) : 0;
    return emit_all(e, e->sym, n);
}

/* A word whose ids don't depend on context. */
static enum status encode_cached(struct tok_encoder *e, const uint8_t *s, size_t len)
{
    if (!e->cache || len > CACHED_BYTES_MAX) return encode_new(e, s, len);
    struct tok_word_slot *slot = &e->cache[(uint32_t)(tok__hash(s, len) >> 32) & e->cache_mask];
    if (slot->len == len && memcmp(e->base + slot->at, s, len) == 0) {
        enum status st = reserve_ids(e, slot->count);
        if (st || slot->count == 0) return st;
        memcpy(e->ids + e->count, e->ids + slot->ids_at, slot->count * sizeof *e->ids);
        e->count += slot->count;
        return ST_OK;
    }
    size_t before = e->count;
    enum status st = encode_new(e, s, len);
    if (!st && e->count <= UINT32_MAX) {
        *slot = (struct tok_word_slot){(uint32_t)(s - e->base), (uint32_t)before, (uint16_t)len,
                                       (uint16_t)(e->count - before)};
    }
    return st;
}

enum status tok__encode_word(struct tok_encoder *e, const uint8_t *s, size_t len)
{
    ASSERT(s >= e->base);
    if (!e->t->joints) return encode_cached(e, s, len);
    size_t start = 0, i = 0;
    uint32_t left = 0, right;
    while (i < len) {
        unsigned n = uni_decode(s + i, &right);
        if (i > start && !tok__may_join(e->t->joints, left, right)) {
            enum status st = encode_cached(e, s + start, i - start);
            if (st) return st;
            start = i;
        }
        left = right;
        i += n;
    }
    return encode_cached(e, s + start, len - start);
}
