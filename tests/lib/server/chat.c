/* See chat.h. */
#include "tests/lib/server/chat.h"

#include "server/json/fields.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* Replaces what the parser would reject, and is removed afterwards. */
#define NONE "\001"

struct chat_messages chat_of(const json_t *messages, bool arguments_as_text)
{
    const struct chat_limits limits = {
        .images_max = 16, .videos_max = 4, .arguments_as_text = arguments_as_text};
    json_t *copy = json_deep_copy(messages), *message, *part;
    struct chat_messages m = {0};
    struct api_error e = {0};
    size_t i, k;
    json_array_foreach(copy, i, message) {
        json_t *content = json_object_get(message, "content");
        const char *role = json_string_value(json_object_get(message, "role"));
        if (json_is_array(content) && !json_array_size(content))
            json_array_append_new(content, json_pack("{s:s,s:s}", "type", "text", "text", ""));
        if (role && strcmp(role, "tool") == 0 && !json_object_get(message, "tool_call_id"))
            json_object_set_new(message, "tool_call_id", json_string(NONE));
        json_array_foreach(content, k, part) {
            const char *type = json_string_value(json_object_get(part, "type"));
            if (!type || strcmp(type, "text") == 0) continue;
            if (role && strcmp(role, "assistant") == 0) json_array_set_new(content, k, json_string(NONE));
            else json_object_set_new(part, type, json_string("data:,"));
        }
    }
    if (json_array_size(copy) && chat_messages_parse(copy, &limits, &m, &e))
        fail_msg("%s: %s", e.param, e.message);
    for (i = 0; i < m.count; i++) {
        if (json_is(json_object_get(m.list[i].more, "tool_call_id"), NONE))
            json_object_del(m.list[i].more, "tool_call_id");
        for (k = 0; k < m.list[i].part_count; k++) {
            if (text_is(m.list[i].parts[k].text, NONE)) m.list[i].parts[k].text = (struct text){0};
        }
    }
    json_decref(copy);
    return m;
}
