/* Sampling parameters of a request, and a sampled token. Sampling (sampler.h) depends only on the row's
 * logits, the parameters, the seed, the position and the history: the random number is a counter-based
 * generator's value at (seed, position), so it does not depend on the batch.
 *
 * To add a sampling parameter:
 *   - a row of server/input/fields.def, which is also its documentation
 *   - here its field in struct sampling_params, where a zero means off (else gen_defaults of
 *     server/input/resolve.c sets its default), and its effect in sampler.c. `cut` removes candidates,
 *     `modifies` and `change` are about logits; sampler_top_wanted and sampler_walks tell the engine what a
 *     draw needs. The order of effects is in sampler.h
 *   - a test in tests/unit/engine/test_sampler.c, and one over HTTP in tests/api/test_api.py
 * If generation_config.json may have it: also config/hf/generation.c, struct hf_generation in
 * engine/model/model_info.h, and engine/engine.c, which copies it. */
#ifndef KVASIR_SAMPLING_H
#define KVASIR_SAMPLING_H

#include <stdbool.h>
#include <stdint.h>

struct sampling_bias {
    uint32_t id;
    float bias; /* added to the logit; -100 and below = never */
};

/* Constrained decoding: which tokens may follow. tokens[0..count) is the output so far; all results depend on
 * it alone, except MASK_LATER and MASK_BUSY, which concern only timing. The planner calls `prepare`,
 * `drafts`, `forced` and `stop` between steps: never concurrently for one constraint. They are quick and
 * never block. */
enum mask_state {
    MASK_READY = 0,
    MASK_LATER, /* being computed; the planner is woken when it is ready, and nothing is sampled until then */
    MASK_BUSY,  /* another thread holds it briefly: retry, else as MASK_LATER */
    MASK_FAILED /* the output can't continue; permanent */
};
struct sampling_constraint {
    void *arg;
    /* Computes the mask for the next token. brief: others have taken most of the planner's time. */
    enum mask_state (*prepare)(void *arg, const uint32_t *tokens, uint32_t count, bool brief);
    /* tokens[count..count + drafts) are draft tokens, and the mask after tokens[0..count) is ready: how many
     * of them are allowed and have the mask after them ready too. */
    uint32_t (*drafts)(void *arg, const uint32_t *tokens, uint32_t count, uint32_t drafts);
    /* In the step: copies a ready mask into bits[0..words): bit id & 31 of bits[id >> 5] is set if the token
     * may follow. At least one is. */
    void (*mask)(void *arg, const uint32_t *tokens, uint32_t count, uint32_t *bits, uint32_t words);
    /* Writes up to `most` draft tokens that are forced: no other may follow; returns how many. */
    uint32_t (*forced)(void *arg, const uint32_t *tokens, uint32_t count, uint32_t most, uint32_t *out);
    void (*stop)(void *arg); /* the sequence has ended: drops work in progress. NULL: nothing */
};

/* No n-gram of `size` tokens occurs twice within the last `window` tokens: a token that would complete a
 * second one is never drawn, as in transformers' NoRepeatNGramLogitsProcessor. */
struct sampling_ngrams {
    uint32_t size;        /* 1..SAMPLING_NGRAM_MAX; 0 = off */
    uint32_t window;      /* 0 = all tokens */
    bool generated;       /* without the prompt's tokens */
    const uint32_t *free; /* tokens that may always follow; borrowed until the sequence ends */
    uint32_t free_count;
};
#define SAMPLING_NGRAM_MAX 1024u

struct sampling_params {
    float temperature;                         /* 0 = greedy: largest logit, ties by lower id */
    float top_p;                               /* (0, 1]; 1 = off */
    float min_p;                               /* [0, 1]; 0 = off */
    float top_n_sigma;                         /* 0 and below = off */
    uint32_t top_k;                            /* 0 = off */
    float presence_penalty, frequency_penalty; /* over generated tokens */
    float repetition_penalty;                  /* over prompt and generated tokens; 1 = off */
    struct sampling_ngrams ngrams;
    uint64_t seed;                    /* the caller has mixed in the choice index */
    const struct sampling_bias *bias; /* borrowed until the sequence ends */
    uint32_t bias_count;
    const struct sampling_constraint *constraint; /* NULL = none; borrowed until the sequence ends */
    uint32_t logprobs; /* alternatives to report per sampled token, 0..20; UINT32_MAX = none, nor its rank */
    uint32_t prompt_logprobs; /* the same for prompt positions */
};
#define SAMPLING_TOP_MAX     20u
#define SAMPLING_NO_LOGPROBS UINT32_MAX

struct token_alt {
    uint32_t id;
    float logprob; /* natural log-softmax of the raw logits (before penalties, bias, temperature) */
};
/* A sampled token or a scored prompt token, with its log-probs. */
struct token_out {
    uint32_t id;
    float logprob;
    uint32_t rank; /* 1 = most likely; 0 = not asked for */
    uint32_t top_count;
    struct token_alt top[SAMPLING_TOP_MAX]; /* descending, ties by lower id */
};

/* Uniform in [0,1) with 24 bits from the counter-based generator (Philox-4x32-10, key = seed, counter =
 * position). */
float sampling_uniform(uint64_t seed, uint64_t position);

#endif
