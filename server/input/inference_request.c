/* See inference_request.h. */
#include "server/input/inference_request.h"

void inference_request_free(struct inference_request *q)
{
    chat_messages_free(&q->messages);
    arena_free(&q->arena);
}
