/* Fields of the table (fields.def) that need more than their type and range. v: the field's value, never
 * null. Worker thread; internal to server/input/. */
#ifndef KVASIR_PARSE_H
#define KVASIR_PARSE_H

#include "config/base/status.h"

#include <jansson.h>

struct generation;
struct inference_request;

typedef enum status field_reader(struct generation *g, json_t *v, const char *name);
field_reader read_n_predict, read_num_predict, read_n, read_best_of, read_vllm_xargs, read_logit_bias,
    read_stop, read_stop_token_ids, read_stream_options, read_logprobs, read_top_logprobs, read_top,
    read_prompt_logprobs, read_nothing, read_cache_salt, read_add_generation_prompt, read_receipt,
    read_truncate_prompt_tokens, read_no_truncation, read_modalities, read_mm_processor_kwargs,
    read_trace_decode_token_ids, read_continuations;
/* given.c, after all fields: at most max_tokens of given output; nothing else ends it. */
void gen_given_resolve(struct inference_request *q);
/* Of struct sampling_bias by token id, for qsort. */
int bias_order(const void *a, const void *b);

#endif
