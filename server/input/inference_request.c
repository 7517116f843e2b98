/* See inference_request.h: its memory. */
#include "server/input/inference_request.h"

#include <stdlib.h>

struct request_block {
    struct request_block *next;
    max_align_t data[];
};

void *request_alloc(struct inference_request *q, size_t count, size_t size)
{
    if (size && count > (SIZE_MAX - sizeof(struct request_block)) / size) return NULL;
    struct request_block *b = calloc(1, sizeof *b + count * size);
    if (!b) return NULL;
    b->next = q->memory.blocks;
    q->memory.blocks = b;
    return b->data;
}

enum status request_text(struct inference_request *q, json_t *v, struct text *out)
{
    if (!q->memory.values && !(q->memory.values = json_array())) return ST_NOMEM;
    *out = (struct text){json_string_value(v), json_string_length(v)};
    return json_array_append(q->memory.values, v) ? ST_NOMEM : ST_OK;
}

void inference_request_free(struct inference_request *q)
{
    for (struct request_block *b = q->memory.blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    json_decref(q->memory.values);
    q->memory = (struct request_memory){0};
}
