/* Sampling parameters of a request and the draw of one token. The draw depends on (logits of the row,
 * parameters, seed, position, history) and on nothing else: the random number is a counter-based generator's
 * value at (seed, position), so it doesn't depend on the batch. */
#ifndef KVASIR_SAMPLING_H
#define KVASIR_SAMPLING_H

#include <stdbool.h>
#include <stdint.h>

struct sampling_bias {
    uint32_t id;
    float bias; /* added to the logit; -100 and below = never */
};

struct sampling_params {
    float temperature;                         /* 0 = greedy: largest logit, ties by lower id */
    float top_p;                               /* (0, 1]; 1 = off */
    float min_p;                               /* [0, 1]; 0 = off */
    uint32_t top_k;                            /* 0 = off */
    float presence_penalty, frequency_penalty; /* over generated tokens */
    float repetition_penalty;                  /* over prompt and generated tokens; 1 = off */
    uint64_t seed;                             /* already mixed with the choice index by the caller */
    const struct sampling_bias *bias;          /* borrowed until the sequence ends */
    uint32_t bias_count;
    /* Ids that may not be drawn yet: set by the scheduler while min_tokens is not reached (eos and stop ids).
     */
    uint32_t logprobs; /* alternatives to report per sampled token, 0..20; UINT32_MAX = none, not even the
                          token's own */
    uint32_t prompt_logprobs; /* the same for prompt positions */
};
#define SAMPLING_TOP_MAX     20u
#define SAMPLING_NO_LOGPROBS UINT32_MAX

struct token_alt {
    uint32_t id;
    float logprob; /* natural log-softmax of the raw logits (before penalties, bias, temperature) */
};
/* A sampled token, or a scored prompt token, with what was asked about it. */
struct token_out {
    uint32_t id;
    float logprob;
    uint32_t rank; /* 1 = most likely */
    uint32_t top_count;
    struct token_alt top[SAMPLING_TOP_MAX]; /* descending, ties by lower id */
};

/* Uniform in [0,1) with 24 bits from the counter-based generator (Philox-4x32-10, key = seed, counter =
 * position). */
float sampling_uniform(uint64_t seed, uint64_t position);

#endif
