/* The syntaxes of tool calls, see tool_calls.h. A new one is a row here, and a new reader if none of the
 * existing ones can read its calls. */
#include "server/chat/tool_calls/tool_calls.h"

#include "config/base/assert.h"

#define CALL_NOTATION                                                                                        \
    .named = true, .before = "call:", .after = "{", .end = "}", .arguments = TOOL_ARGUMENTS_NOTATION,        \
    .after_key = ":", .comma = ","
#define CALL_TAGS .opens = {"<tool_call>", "<function="}, .closes = {"</tool_call>"}
#define CALL_LIST .before = "[{\"name\": \"", .after = "\", \"arguments\": ", .end = "}]"
#define CALL_KEYWORDS                                                                                        \
    .named = true, .after = "(", .arguments = TOOL_ARGUMENTS_VALUES, .after_key = "=", .comma = ", "

static const struct tool_syntax syntaxes[TOOL_SYNTAXES] = {
    [TOOL_SYNTAX_JSON] = {.marks = {"<tool_call>"},
                          CALL_TAGS,
                          .before = "\n{\"name\": \"",
                          .after = "\", \"arguments\": ",
                          .end = "}\n",
                          .between = "\n"},
    [TOOL_SYNTAX_XML] = {.marks = {"<tool_call>", "<parameter="},
                         CALL_TAGS,
                         .before = "\n<function=",
                         .after = ">\n",
                         .end = "</function>\n",
                         .arguments = TOOL_ARGUMENTS_TEXT,
                         .key = "<parameter=",
                         .after_key = ">\n",
                         .after_value = "\n</parameter>\n",
                         .between = "\n"},
    [TOOL_SYNTAX_GLM] = {.marks = {"<tool_call>", "<arg_key>"},
                         CALL_TAGS,
                         .tokens = {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"},
                         .after = "\n",
                         .arguments = TOOL_ARGUMENTS_TEXT,
                         .key = "<arg_key>",
                         .after_key = "</arg_key>\n<arg_value>",
                         .after_value = "</arg_value>\n",
                         .between = "\n"},
    [TOOL_SYNTAX_CALL] = {.marks = {"<|tool_call>call:"},
                          .opens = {"<|tool_call>"},
                          .closes = {"<tool_call|>"},
                          .quote = "<|\"|>",
                          CALL_NOTATION},
    [TOOL_SYNTAX_FUNCTION] = {.marks = {"<start_function_call>call:"},
                              .opens = {"<start_function_call>"},
                              .closes = {"<end_function_call>"},
                              .quote = "<escape>",
                              CALL_NOTATION},
    [TOOL_SYNTAX_MISTRAL] = {.marks = {"[TOOL_CALLS]", "[ARGS]"},
                             .opens = {"[TOOL_CALLS]"},
                             .tokens = {"[ARGS]", "[CALL_ID]"},
                             .named = true,
                             .after = "[ARGS]"},
    [TOOL_SYNTAX_MISTRAL_LIST] = {.marks = {"[TOOL_CALLS]"},
                                  .opens = {"[TOOL_CALLS]"},
                                  .named = true,
                                  CALL_LIST},
    [TOOL_SYNTAX_LFM2] = {.marks = {"List of tools: "},
                          .opens = {"<|tool_call_start|>"},
                          .closes = {"<|tool_call_end|>"},
                          CALL_KEYWORDS,
                          .before = "[",
                          .end = ")]"},
    [TOOL_SYNTAX_OLMO] = {.marks = {"<function_calls>"},
                          .opens = {"<function_calls>"},
                          .closes = {"</function_calls>"},
                          CALL_KEYWORDS,
                          .end = ")",
                          .between = "\n"},
    [TOOL_SYNTAX_GRANITE] = {.marks = {"<|tool_call|>"}, .opens = {"<|tool_call|>"}, CALL_LIST},
    [TOOL_SYNTAX_LLAMA] = {.marks = {"\"parameters\": dictionary of argument name"},
                           .opens = {"<|python_tag|>"},
                           .plain = true,
                           .before = "{\"name\": \"",
                           .after = "\", \"parameters\": ",
                           .end = "}",
                           .between = "; "},
};

const struct tool_syntax *tool_syntax(enum tool_call_syntax syntax)
{
    ASSERT_CMP(syntax, <, TOOL_SYNTAXES);
    return &syntaxes[syntax];
}

size_t tool_syntax_tags(enum tool_call_syntax syntax, const char *tags[TOOL_TAGS_MAX])
{
    const struct tool_syntax *s = &syntaxes[syntax];
    const char *const all[TOOL_TAGS_MAX] = {s->opens[0],  s->closes[0], s->quote,    s->tokens[0],
                                            s->tokens[1], s->tokens[2], s->tokens[3]};
    size_t n = 0;
    for (size_t i = 0; i < TOOL_TAGS_MAX; i++)
        if (all[i]) tags[n++] = all[i];
    return n;
}

static bool mentions(const char *source, size_t len, const char *word)
{
    return memmem(source, len, word, strlen(word)) != NULL;
}

enum tool_call_syntax tool_syntax_taught(const char *source, size_t len)
{
    size_t best = TOOL_SYNTAX_NONE, most = 0; /* the row of which most marks are there */
    for (size_t i = 1; i < TOOL_SYNTAXES; i++) {
        size_t n = 0;
        while (syntaxes[i].marks[n] && mentions(source, len, syntaxes[i].marks[n])) n++;
        if (syntaxes[i].marks[n] || n <= most) continue;
        best = i;
        most = n;
    }
    /* Some templates have another syntax between the same tags: <function=NAME> without <parameter=NAME>. */
    bool other = best == TOOL_SYNTAX_JSON && mentions(source, len, "<function=");
    return other ? TOOL_SYNTAX_NONE : (enum tool_call_syntax)best;
}
