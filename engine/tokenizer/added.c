/* Added tokens in a text: a byte trie, leftmost-longest, with the rules of single_word, lstrip, rstrip and of
 * control (which bytes may be part of a token). Pure after the trie is built; any thread. */
#include "config/base/assert.h"
#include "engine/tokenizer/internal.h"
#include "engine/tokenizer/unicode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct needle {
    const char *s;
    size_t len;
    uint32_t hit;
};

static int by_bytes(const void *a, const void *b)
{
    const struct needle *x = a, *y = b;
    size_t n = x->len < y->len ? x->len : y->len;
    int c = memcmp(x->s, y->s, n);
    if (c) return c;
    if (x->len != y->len) return x->len < y->len ? -1 : 1;
    return x->hit < y->hit ? -1 : x->hit > y->hit;
}

/* A pending node for the needles [lo, hi), which share their first `depth` bytes. */
struct job {
    size_t lo, hi, depth;
    uint32_t node;
};

static void build_nodes(struct tok_trie *trie, const struct needle *n, size_t count, struct job *jobs)
{
    uint32_t node_count = 1, edge_count = 0;
    size_t job_count = 0, done = 0;
    for (size_t i = 0; i < count;) { /* children of the root */
        size_t j = i;
        while (j < count && n[j].s[0] == n[i].s[0]) j++;
        trie->root[(uint8_t)n[i].s[0]] = node_count;
        jobs[job_count++] = (struct job){i, j, 1, node_count++};
        i = j;
    }
    for (; done < job_count; done++) {
        struct job b = jobs[done];
        struct tok_trie_node *node = &trie->nodes[b.node];
        node->edge = edge_count;
        size_t i = b.lo;
        while (i < b.hi && n[i].len == b.depth) { /* equal needles: the first one wins */
            if (!node->hit) node->hit = n[i].hit;
            i++;
        }
        while (i < b.hi) {
            size_t j = i;
            while (j < b.hi && n[j].s[b.depth] == n[i].s[b.depth]) j++;
            trie->edge_byte[edge_count] = (uint8_t)n[i].s[b.depth];
            trie->edge_node[edge_count] = node_count;
            edge_count++;
            node->edge_count++;
            jobs[job_count++] = (struct job){i, j, b.depth + 1, node_count++};
            i = j;
        }
    }
}

enum status tok__build_trie(struct tok_trie *trie, const struct tok_added *added, size_t count,
                            bool normalized)
{
    ASSERT(!trie->nodes);
    struct needle *n = calloc(count + 1, sizeof *n);
    if (!n) return ST_NOMEM;
    size_t used = 0, bytes = 0;
    for (size_t i = 0; i < count; i++) {
        if (added[i].normalized != normalized || added[i].needle_len == 0) continue;
        n[used++] = (struct needle){added[i].needle, added[i].needle_len, (uint32_t)i + 1};
        bytes += added[i].needle_len;
    }
    qsort(n, used, sizeof *n, by_bytes);
    struct job *jobs = malloc((bytes + 1) * sizeof *jobs);
    trie->nodes = calloc(bytes + 1, sizeof *trie->nodes);
    trie->edge_byte = calloc(bytes + 1, 1);
    trie->edge_node = calloc(bytes + 1, sizeof *trie->edge_node);
    enum status st = jobs && trie->nodes && trie->edge_byte && trie->edge_node ? ST_OK : ST_NOMEM;
    if (!st) build_nodes(trie, n, used, jobs);
    trie->any = used > 0;
    free(jobs);
    free(n);
    return st;
}

void tok__trie_fini(struct tok_trie *trie)
{
    free(trie->nodes);
    free(trie->edge_byte);
    free(trie->edge_node);
    *trie = (struct tok_trie){.any = false};
}

static uint32_t child(const struct tok_trie *trie, uint32_t node, uint8_t byte)
{
    uint32_t lo = trie->nodes[node].edge, hi = lo + trie->nodes[node].edge_count;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (trie->edge_byte[mid] == byte) return trie->edge_node[mid];
        if (trie->edge_byte[mid] < byte) lo = mid + 1;
        else hi = mid;
    }
    return 0;
}

static bool permits(unsigned control, const struct tok_added *a)
{
    return control == TOK_CONTROL_ALL || (!a->special && (control == TOK_CONTROL_NONSPECIAL || !a->guarded));
}

/* White space, words, and tags of HTML that mark up text: added so that they take one token, as text takes it
 * anywhere. All else ("<think>", "[INST]") is a marker. */
static bool is_plain_text(const struct tok_added *a)
{
    static const char html[] =
        " a b blockquote body br caption code col dd del div dl dt em footer h1 h2 h3 h4 "
        "h5 h6 head header hr html i iframe ins li ol p pre s section small span strong "
        "sub sup table tbody td tfoot th thead title tr u ul ";
    size_t from = a->len > 1 && a->content[1] == '/' ? 2 : 1;
    char name[16];
    if (a->content[0] == '<' && a->content[a->len - 1] == '>' && a->len > from + 1 && a->len - from < 14) {
        snprintf(name, sizeof name, " %.*s ", (int)(a->len - from - 1), a->content + from);
        return strstr(html, name);
    }
    for (size_t i = 0; i < a->len;) {
        uint32_t cp;
        i += uni_decode((const uint8_t *)a->content + i, &cp);
        if (uni_class(cp) == UNI_OTHER) return false;
    }
    return true;
}

void tok_guard(struct tokenizer *t, const char *text, size_t len)
{
    for (size_t i = 0; i < t->added_count; i++) {
        struct tok_added *a = &t->added[i];
        bool written = !a->special && a->len > 0 && memmem(text, len, a->content, a->len);
        if (written && !is_plain_text(a)) a->guarded = true;
    }
}

/* Longest added token that starts at `at` and that all of its bytes allow; NULL if none. */
static const struct tok_added *match_at(const struct tokenizer *t, const struct tok_trie *trie,
                                        const struct tok_text *x, size_t at)
{
    const struct tok_added *best = NULL;
    uint32_t node = trie->root[x->s[at]];
    unsigned control = x->control ? x->control[at] : x->all; /* the strictest on the way */
    for (size_t i = at; node && control != TOK_CONTROL_NONE;) {
        uint32_t hit = trie->nodes[node].hit;
        if (hit && permits(control, &t->added[hit - 1])) best = &t->added[hit - 1];
        if (++i >= x->len) break;
        if (x->control && x->control[i] > control) control = x->control[i];
        node = child(trie, node, x->s[i]);
    }
    return best;
}

static size_t char_before(const uint8_t *s, size_t at, uint32_t *cp)
{
    size_t i = at - 1;
    while (i > 0 && (s[i] & 0xC0) == 0x80) i--;
    uni_decode(s + i, cp);
    return i;
}

static bool is_space(uint32_t cp)
{
    unsigned cls = uni_class(cp);
    return cls == UNI_SPACE || cls == UNI_NEWLINE;
}

static bool stands_alone(const struct tok_text *x, size_t start, size_t end)
{
    uint32_t cp;
    if (start > 0) {
        char_before(x->s, start, &cp);
        if (uni_props(cp) & UNI_WORD) return false;
    }
    if (end < x->len) {
        uni_decode(x->s + end, &cp);
        if (uni_props(cp) & UNI_WORD) return false;
    }
    return true;
}

static enum status emit_text(const struct tok_text *x, size_t from, size_t to,
                             const struct tok_added_sink *sink)
{
    if (from >= to) return ST_OK;
    struct tok_text part = {x->s + from, to - from, x->control ? x->control + from : NULL, x->all};
    return sink->text(sink->ctx, &part);
}

enum status tok__find_added(const struct tokenizer *t, const struct tok_trie *trie, const struct tok_text *x,
                            const struct tok_added_sink *sink)
{
    if (!trie->any || (!x->control && x->all == TOK_CONTROL_NONE)) return emit_text(x, 0, x->len, sink);
    size_t done = 0;                       /* text before it was emitted */
    size_t spaces_from = 0, spaces_to = 0; /* the last run of white space walked: not walked again */
    enum status st;
    for (size_t i = 0; i < x->len;) {
        const struct tok_added *hit = trie->root[x->s[i]] ? match_at(t, trie, x, i) : NULL;
        if (!hit) {
            i++;
            continue;
        }
        size_t start = i, end = i + hit->needle_len;
        i = end; /* if the rules below reject a hit, shorter ones are not tried, as in the reference */
        if (hit->single_word && !stands_alone(x, start, end)) continue;
        uint32_t cp;
        if (hit->lstrip) {
            while (start > done) {
                size_t before = char_before(x->s, start, &cp);
                if (!is_space(cp)) break;
                start = before;
            }
            if (start < done) start = done;
        }
        if (hit->rstrip) {
            if (end >= spaces_from && end < spaces_to) end = spaces_to;
            spaces_from = end;
            while (end < x->len) {
                unsigned n = uni_decode(x->s + end, &cp);
                if (!is_space(cp)) break;
                end += n;
            }
            spaces_to = end;
        }
        ASSERT(start <= end && end <= x->len);
        if ((st = emit_text(x, done, start, sink))) return st;
        if ((st = sink->token(sink->ctx, hit->id))) return st;
        done = end;
    }
    return emit_text(x, done, x->len, sink);
}
