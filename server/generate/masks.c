/* Which tokens a choice may take: what the matcher of its grammar allows, and, at the limit on reasoning
 * tokens, only the tag that ends the reasoning. The limit depends on the request and its tokens alone. */
#include "server/generate/generate.h"
#include "server/grammar/grammar.h"
#include "server/input/grammars.h"

#include "engine/tokenizer/tokenizer.h"

#include <string.h>

/* Maximum tokens of one character, within which the tag is not allowed. */
#define LATE 8u

/* Follows the text of tokens up to the end of `tag`, after white space alone if `first`. The number of tokens
 * read; UINT32_MAX: it is not there. */
static uint32_t tag_skip(const struct tokenizer *tok, const uint32_t *tokens, uint32_t count, const char *tag,
                         bool first)
{
    size_t len, k = 0, want = strlen(tag);
    for (uint32_t i = 0; i < count; i++) {
        const char *text = tok_bytes(tok, tokens[i], &len);
        for (size_t at = 0; at < len && k < want; at++) {
            if (text[at] == tag[k]) k++;
            else if (!first) k = text[at] == tag[0]; /* which a tag has only once */
            else if (k || !text[at] || !strchr(" \n\t\r", text[at])) return UINT32_MAX;
        }
        if (k == want) return i + 1;
    }
    return UINT32_MAX;
}

/* Reasoning has begun, is not closed, and has all of its tokens in tokens[0..count). */
static bool spent(const struct choice *c, const uint32_t *tokens, uint32_t count)
{
    const struct generation *g = c->gen;
    const struct tokenizer *tok = g->ctx->model->tok;
    enum reasoning_syntax syntax = g->rules.reasoning_syntax;
    uint32_t budget = g->rules.think.budget,
             begun = g->inside_reasoning ? 0 : tag_skip(tok, tokens, count, reasoning_open(syntax), true);
    if (begun == UINT32_MAX || count - begun < budget || count - begun - budget > LATE) return false;
    return tag_skip(tok, tokens + begun, count - begun, reasoning_close(syntax), false) == UINT32_MAX;
}

static enum mask_state prepare(void *arg, const uint32_t *tokens, uint32_t count, bool brief)
{
    const struct choice *c = arg;
    return c->inner.prepare ? c->inner.prepare(c->inner.arg, tokens, count, brief) : MASK_READY;
}

static uint32_t drafts(void *arg, const uint32_t *tokens, uint32_t count, uint32_t n)
{
    const struct choice *c = arg;
    if (c->inner.drafts) n = c->inner.drafts(c->inner.arg, tokens, count, n);
    for (uint32_t i = 0; i < n; i++)
        if (spent(c, tokens, count + i) && tokens[count + i] != c->gen->rules.think.close) return i;
    return n;
}

static void mask(void *arg, const uint32_t *tokens, uint32_t count, uint32_t *bits, uint32_t words)
{
    const struct choice *c = arg;
    uint32_t close = c->gen->rules.think.close, vocab = tok_vocab_size(c->gen->ctx->model->tok);
    memset(bits, 0, words * sizeof *bits);
    if (!c->inner.mask) {
        memset(bits, 0xFF, vocab / 32 * sizeof *bits);
        if (vocab % 32) bits[vocab / 32] = (1u << vocab % 32) - 1;
    }
    if (c->inner.mask) c->inner.mask(c->inner.arg, tokens, count, bits, words);
    /* The constraint forbids the tag only within a character. */
    if (!(bits[close >> 5] >> (close & 31) & 1) || !spent(c, tokens, count)) return;
    memset(bits, 0, words * sizeof *bits);
    bits[close >> 5] = 1u << (close & 31);
}

static uint32_t forced(void *arg, const uint32_t *tokens, uint32_t count, uint32_t most, uint32_t *out)
{
    const struct choice *c = arg;
    if (!spent(c, tokens, count))
        return c->inner.forced ? c->inner.forced(c->inner.arg, tokens, count, most, out) : 0;
    if (most) *out = c->gen->rules.think.close;
    return most > 0;
}

static void stop(void *arg)
{
    const struct choice *c = arg;
    if (c->inner.stop) c->inner.stop(c->inner.arg);
}

bool gen_constraint_start(struct choice *c)
{
    const struct generation *g = c->gen;
    if (g->grammar) {
        if (matcher_create(g->grammar, g->vocab, &c->matcher)) return false;
        matcher_threads(c->matcher, grammars_threads(g->ctx->grammars), g->caller.tenant);
        c->constraint = (struct sampling_constraint){.arg = c->matcher,
                                                     .prepare = matcher_prepare,
                                                     .drafts = matcher_drafts,
                                                     .mask = matcher_mask,
                                                     .forced = matcher_forced,
                                                     .stop = matcher_stop};
    }
    if (g->rules.think.limited) {
        c->inner = c->constraint;
        c->constraint = (struct sampling_constraint){
            .arg = c, .prepare = prepare, .drafts = drafts, .mask = mask, .forced = forced, .stop = stop};
    }
    if (c->constraint.mask) c->sampling.constraint = &c->constraint;
    return true;
}

const char *gen_constraint_failure(const struct choice *c, char *text, size_t cap)
{
    static const char *const why[] = {
        [MATCHER_STUCK] = "the output can't be completed: too many continuations in one place, or no token "
                          "is allowed there",
        [MATCHER_MASK_COST] = "computing the mask of one token takes too much work",
        [MATCHER_ANSWER_COST] = "computing the masks takes too much work for this number of tokens",
        [MATCHER_MEMORY] = "the server is out of memory for it"};
    enum matcher_failure f = matcher_failure(c->matcher);
    bool costs = f == MATCHER_MASK_COST || f == MATCHER_ANSWER_COST;
    snprintf(text, cap, "The constraint in %s could not be enforced: %s.%s", gen_constraint_param(c->gen),
             why[f] ? why[f] : why[MATCHER_STUCK],
             costs ? " Use fewer optional parts and counted repeats within each other, or character classes "
                     "instead of alternatives."
                   : "");
    return costs ? "constraint_too_costly" : f == MATCHER_MEMORY ? "out_of_memory" : "unsupported_schema";
}
