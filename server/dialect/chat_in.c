/* OpenAI's chat completions and completions: their bodies -> a request. Worker thread. */
#include "server/dialect/openai.h"
#include "server/input/fields.h"
#include "server/json/fields.h"

static enum status read_chat(struct generation *g, json_t *root)
{
    if (gen_fields(g, root, API_CHAT, API_CHAT) || gen_resolve(g, root, API_CHAT) ||
        gen_parse_tools(g, root) || gen_tools_resolve(g, &names_openai) || gen_parse_reasoning(g, root))
        return ST_INVALID;
    return gen_read_chat(g, root);
}

static enum status read_completion(struct generation *g, json_t *root)
{
    if (gen_fields(g, root, API_TEXT, API_TEXT) || gen_resolve(g, root, API_TEXT)) return ST_INVALID;
    return gen_read_completion(g, field(root, "prompt"), field(root, "suffix"));
}

const struct dialect dialect_chat = {.kind = GEN_CHAT,
                                     .source = "messages",
                                     .plain = true,
                                     .read = read_chat,
                                     .response = openai_response,
                                     .head = chat_head,
                                     .news = openai_news,
                                     .progress = openai_progress,
                                     .tail = openai_tail,
                                     .error = openai_error,
                                     .logprob = logprobs_entry,
                                     .own = &openai_chat};
const struct dialect dialect_completions = {.kind = GEN_COMPLETION,
                                            .source = "prompt",
                                            .plain = true,
                                            .read = read_completion,
                                            .response = openai_response,
                                            .news = openai_news,
                                            .progress = openai_progress,
                                            .tail = openai_tail,
                                            .error = openai_error,
                                            .logprob = completion_logprob,
                                            .own = &openai_completions};
const struct dialect dialect_chat_tokens = {.source = "messages",
                                            .read = tokenize_read,
                                            .counted =
                                                "{\"object\":\"response.input_tokens\",\"input_tokens\":"};
