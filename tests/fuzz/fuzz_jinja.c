/* Chat templates: any text is rejected or rendered within its limits. */
#include "server/chat/template.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const chat =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"be \\u00e9 \"}, {\"role\": \"user\", \"content\": "
    "[{\"type\": \"text\", \"text\": \"A b\"}, {\"type\": \"image\"}]}, {\"role\": \"assistant\", "
    "\"content\": "
    "\"x\\n\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"a\": [1, 2.5, null, "
    "true]}}}]}], \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}], \"n\": 7, "
    "\"bos_token\": \"<s>\", \"add_generation_prompt\": true}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct tm now = {.tm_year = 125, .tm_mon = 6, .tm_mday = 26};
    static json_t *variables;
    if (!variables && !(variables = json_loads(chat, 0, NULL))) abort();
    struct jinja_limits limits = JINJA_LIMITS_DEFAULT;
    limits.steps_max = 100000;
    limits.loops_max = 10000;
    limits.arena_bytes_max = 4u << 20;
    limits.output_bytes_max = 1u << 20;
    limits.depth_max = 200;
    struct jinja_template *t;
    struct jinja_error e = {0};
    if (jinja_parse((const char *)data, size, &limits, &t, &e)) {
        if (!e.message[0]) abort();
        return 0;
    }
    (void)jinja_iterates_content(t);
    struct jinja_ctx *c = jinja_ctx_create(&limits);
    struct jinja_output out = {0};
    const char *key;
    json_t *v;
    json_object_foreach(variables, key, v) jinja_set(c, key, template_value(c, v, JINJA_INPUT));
    jinja_set_now(c, &now);
    if (!jinja_render(t, c, &out, &e)) {
        size_t len = 0;
        for (size_t i = 0; i < out.run_count; i++) len += out.runs[i].len;
        if (len != out.len || out.text[len]) abort();
        jinja_output_free(&out);
    } else if (!e.message[0]) {
        abort();
    }
    jinja_ctx_destroy(c);
    jinja_free(t);
    return 0;
}
