/* Calls as plain JSON at the beginning of the output, see tool_parse.h. */
#include "server/chat/tool_parse_internal.h"

#include <string.h>

/* Maximum bytes from the start of content to the brace of the arguments: the most text held back. */
#define HEAD_MAX 1024u
/* Maximum length of a string before the arguments: a name, a type, an id; and of a fence's language. */
#define STRING_MAX 64u
#define FENCE      "```"
#define FENCE_LEN  3u

enum found { FOUND_NOT, FOUND, FOUND_MORE /* the text is too short to decide */ };

struct head {
    const char *text;
    size_t len, i;
    size_t name_at, name_len, args_at;
    bool fenced;
};

static void blanks(struct head *h)
{
    while (h->i < h->len && tool__is_space(h->text[h->i])) h->i++;
}

static enum found expect(struct head *h, char c)
{
    blanks(h);
    if (h->i == h->len) return FOUND_MORE;
    if (h->text[h->i] != c) return FOUND_NOT;
    h->i++;
    return FOUND;
}

/* A string without escapes: the text between its quotes. */
static enum found string(struct head *h, size_t *at, size_t *len)
{
    enum found f = expect(h, '"');
    if (f != FOUND) return f;
    for (*at = h->i; h->i < h->len; h->i++) {
        char c = h->text[h->i];
        *len = h->i - *at;
        if (c == '"') {
            h->i++;
            return FOUND;
        }
        if (c == '\\' || (unsigned char)c < 0x20 || *len == STRING_MAX) return FOUND_NOT;
    }
    return FOUND_MORE;
}

static bool letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/* A code fence with an optional language; FOUND_NOT: not the beginning of a fence. */
static enum found fence(struct head *h)
{
    blanks(h);
    size_t left = h->len - h->i, n = left < FENCE_LEN ? left : FENCE_LEN;
    if (!left) return FOUND_MORE;
    if (h->text[h->i] != '`') return FOUND;
    if (memcmp(h->text + h->i, FENCE, n) != 0) return FOUND_NOT;
    if (n < FENCE_LEN) return FOUND_MORE;
    h->i += n;
    h->fenced = true;
    for (n = 0; h->i < h->len && letter(h->text[h->i]) && n < STRING_MAX; n++) h->i++;
    return h->i < h->len ? FOUND : FOUND_MORE;
}

static bool is(const struct head *h, size_t at, size_t len, const char *word)
{
    return len == strlen(word) && memcmp(h->text + at, word, len) == 0;
}

/* An object's members up to the arguments. */
static enum found members(struct head *h, const json_t *functions)
{
    enum found f = FOUND;
    while (f == FOUND) {
        size_t key, key_len, value, value_len;
        if ((f = string(h, &key, &key_len)) != FOUND || (f = expect(h, ':')) != FOUND) break;
        if (is(h, key, key_len, "arguments") || is(h, key, key_len, "parameters")) {
            if (!h->name_len) return FOUND_NOT;
            if ((f = expect(h, '{')) == FOUND) h->args_at = h->i - 1;
            return f;
        }
        bool name = is(h, key, key_len, "name");
        if (!name && !is(h, key, key_len, "type") && !is(h, key, key_len, "id")) return FOUND_NOT;
        if ((f = string(h, &value, &value_len)) != FOUND) break;
        if (name && (h->name_len || !json_object_getn(functions, h->text + value, value_len)))
            return FOUND_NOT;
        if (name) {
            h->name_at = value;
            h->name_len = value_len;
        }
        f = expect(h, ',');
    }
    return f;
}

static enum found head_find(struct head *h, const json_t *functions)
{
    enum found f = fence(h);
    if (f != FOUND) return f;
    if (expect(h, '[') == FOUND_MORE) return FOUND_MORE;
    f = expect(h, '{');
    return f == FOUND ? members(h, functions) : f;
}

enum status tool__bare_head(struct tool_parse *p, const char *text, size_t len, bool final,
                            const struct tool_sink *sink, bool *more)
{
    struct head h = {.text = text + p->at, .len = len - p->at};
    if (h.len > HEAD_MAX) h.len = HEAD_MAX;
    enum found f = head_find(&h, p->rules.bare);
    if (f == FOUND_MORE && h.len < HEAD_MAX && !final) return ST_OK;
    *more = true;
    if (f != FOUND) {
        tool__to(p, TOOL_TEXT);
        return ST_OK;
    }
    p->bare = true;
    p->fenced = p->fenced || h.fenced;
    p->scan = p->args_at = p->args_out = p->at + h.args_at;
    p->json = (struct tool_json){.state = J_VALUE, .depth = 1, .objects = {1u << 1, 0}};
    tool__to(p, TOOL_REST);
    return tool__call_begin(p, h.text + h.name_at, h.name_len, sink);
}

void tool__bare_end(struct tool_parse *p, const char *text, size_t len, bool final, bool *more)
{
    while (p->scan < len) {
        char c = text[p->scan];
        int tag = c == '<'                ? tool__tag_at(text, len, p->scan, tool__close(p), final)
                  : c == '`' && p->fenced ? tool__tag_at(text, len, p->scan, FENCE, final)
                                          : 0;
        if (tag < 0) return;
        if (tag) {
            p->scan += c == '<' ? strlen(tool__close(p)) : FENCE_LEN;
            p->fenced = p->fenced && c == '<';
        } else if (tool__is_space(c) || (c && strchr("}],;", c))) {
            p->scan++;
        } else {
            break;
        }
    }
    if (p->scan == len) return;
    tool__text_start(p, p->scan);
    if (p->state == TOOL_TEXT) tool__to(p, TOOL_BARE);
    *more = true;
}
