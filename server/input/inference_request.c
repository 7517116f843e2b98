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
    q->inputs = NULL;
    q->input_count = 0;
    q->suffix = (struct text){0};
}

void inference_request_form_free(struct inference_request *q)
{
    json_decref(q->format.schema);
    q->format.schema = NULL;
    q->format.text = (struct text){0};
    q->format.choices = q->tool_choice.allowed = NULL;
    q->format.choice_count = q->tool_choice.allowed_count = 0;
    arena_free(&q->form);
}

void inference_request_free(struct inference_request *q)
{
    inference_request_shed(q);
    inference_request_form_free(q);
    arena_free(&q->arena);
}
