/* See inference_request.h. */
#include "server/input/inference_request.h"

void inference_request_shed(struct inference_request *q)
{
    json_t **values[] = {&q->tools, &q->documents, &q->variables};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        json_decref(*values[i]);
        *values[i] = NULL;
    }
    chat_messages_free(&q->messages);
}

void inference_request_free(struct inference_request *q)
{
    inference_request_shed(q);
    json_decref(q->format.schema);
    q->format.schema = NULL;
    arena_free(&q->arena);
}
