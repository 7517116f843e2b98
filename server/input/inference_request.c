/* See inference_request.h. */
#include "server/input/inference_request.h"

void inference_request_free(struct inference_request *q)
{
    json_t *values[] = {q->tools, q->documents, q->variables, q->format.schema};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) json_decref(values[i]);
    chat_messages_free(&q->messages);
    arena_free(&q->arena);
}
