/* The `messages` of a chat: parts of all kinds, calls and results of tools, in templates of several families.
 * The first byte picks template and limits. */
#include "server/chat/messages.h"
#include "server/chat/template.h"
#include "server/json/fields.h"
#include "server/json/parser.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define TEMPLATES 3u
static struct template *templates[TEMPLATES];

static void set_up(void)
{
    static const char *const dirs[TEMPLATES] = {
        "tests/golden/qwen/qwen3_vl_f32", "tests/golden/gemma3/vision_f32", "tests/golden/qwen/qwen2_vl_f32"};
    struct err err;
    for (uint32_t i = 0; i < TEMPLATES; i++)
        if (template_load(dirs[i], &templates[i], &err)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!templates[0]) set_up();
    json_t *list;
    if (!size || json_from_text((const char *)data + 1, size - 1, &list)) return 0;
    struct chat_limits limits = CHAT_LIMITS_DEFAULT;
    limits.videos_max = data[0] & 4 ? 2 : 0;
    limits.arguments_as_text = data[0] & 8;
    limits.text_only = data[0] & 16;
    struct chat_messages messages = {0};
    struct api_error error = {0};
    if (chat_messages_parse(list, &limits, &messages, &error)) {
        if (!error.http || !error.message[0]) abort();
        json_decref(list);
        return 0;
    }
    struct template_request request = {.messages = &messages,
                                       .image_placeholder = "<image>",
                                       .video_placeholder = "<video>",
                                       .add_generation_prompt = data[0] & 64,
                                       .trace = data[0] & 128};
    struct template_result out = {0};
    struct err err = {""};
    if (template_render(templates[data[0] % 4 % TEMPLATES], &request, &out, &err) && !err.msg[0]) abort();
    size_t at = 0;
    for (size_t i = 0; i < out.run_count; at += out.runs[i++].len)
        if (out.runs[i].text != out.text + at || !out.runs[i].len) abort();
    if (at != out.len) abort();
    template_result_free(&out);
    chat_messages_free(&messages);
    json_decref(list);
    return 0;
}
