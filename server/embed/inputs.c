/* What is embedded or scored, as chats: a prompt for each input, of texts and images. */
#include "server/embed/embed.h"
#include "server/json/fields.h"

#include "engine/model/model_info.h"

#include <string.h>
#include <utf8proc.h>

/* Without white space around it, and with a full stop unless it ends in punctuation, as the model's own
 * script has it. NULL: out of memory. */
static json_t *sentence(const char *text, size_t len)
{
    static const char space[] = {' ', '\t', '\n', '\v', '\f', '\r', 0x1c, 0x1d, 0x1e, 0x1f};
    utf8proc_int32_t last = 0;
    struct buf b;
    while (len && memchr(space, *text, sizeof space)) text++, len--;
    while (len && memchr(space, text[len - 1], sizeof space)) len--;
    size_t at = len;
    while (at && ((unsigned char)text[--at] & 0xc0) == 0x80) continue;
    if (len) (void)utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(len - at), &last);
    utf8proc_category_t kind = utf8proc_category(last);
    bool ended = !len || (kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_PO);
    buf_init(&b, SIZE_MAX / 4);
    return embed_text_end(&b, !buf_add(&b, text, len) && !buf_adds(&b, ended ? "" : "."));
}

json_t *embed_instruction(const json_t *given, const char *fallback)
{
    json_t *text = given ? sentence(json_string_value(given), json_string_length(given)) : NULL;
    if (given && (!text || json_string_length(text))) return text;
    json_decref(text);
    return json_string(fallback);
}

enum status embed_begin(struct generation *g, uint32_t each, struct chat_reader *r)
{
    g->q.messages_each = each;
    g->q.add_generation_prompt = true;
    if (g->ctx->model->own_prompts) g->q.add_special_tokens = false; /* the prompt format has them */
    return gen_read_begin(g, r);
}

enum status embed_message(struct generation *g, struct chat_reader *r, enum chat_role role, const char *text)
{
    struct chat_message *m;
    if (r->out->count % g->q.messages_each == 0) r->images = r->videos = 0;
    if (chat_message_add(r, role, &m)) return ST_INVALID;
    m->list = true;
    return text ? chat_copy_add(r, (struct text){text, strlen(text)}, 0) : ST_OK;
}

enum status embed_item(struct chat_reader *r, const char *field, int32_t index, const json_t *v)
{
    static const char *const names[] = {"image", "text"};
    r->at = (struct chat_place){.field = field, .index = index};
    if (json_is_string(v)) return chat_content_read(r, v, "");
    if (json_object_get(v, "content")) return chat_content_read(r, json_object_get(v, "content"), ".content");
    enum status st = ST_OK;
    bool any = false;
    for (size_t i = 0; i < 2 && !st; i++) {
        const json_t *of = json_object_get(v, names[i]);
        char path[16];
        snprintf(path, sizeof path, ".%s", names[i]);
        if (!of || json_is_null(of)) continue;
        any = true;
        for (size_t k = 0; k < (json_is_array(of) ? json_array_size(of) : 1) && !st; k++) {
            json_t *one = json_array_get(of, k), *part;
            if (!one) one = (json_t *)(uintptr_t)of; /* jansson's signatures lack the const */
            part = json_pack("[{s:s, s:O}]", "type", names[i], names[i], one);
            st = part ? chat_content_read(r, part, path) : chat_no_memory(r);
            json_decref(part);
        }
    }
    if (any || st) return st;
    return chat_fault(r, "invalid_type", "",
                      "An input must be a string, or an object with text, image or content.");
}
