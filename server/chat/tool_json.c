/* See tool_json.h. */
#include "server/chat/tool_json.h"

#include <string.h>

#define DEPTH_MAX 127u

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static bool in_object(const struct tool_json *j)
{
    return j->depth && (j->objects[j->depth / 64] >> (j->depth % 64) & 1);
}

static bool json_push(struct tool_json *j, bool object)
{
    if (j->depth >= DEPTH_MAX) return false;
    j->depth++;
    uint64_t bit = (uint64_t)1 << (j->depth % 64), *word = &j->objects[j->depth / 64];
    *word = object ? *word | bit : *word & ~bit;
    j->state = object ? J_FIRST_KEY : J_FIRST_ITEM;
    return true;
}

static bool json_pop(struct tool_json *j, bool object)
{
    if (!j->depth || in_object(j) != object) return false;
    j->depth--;
    j->state = j->depth ? J_AFTER : J_DONE;
    return true;
}

static bool json_value(struct tool_json *j, char c)
{
    static const char *const literals[] = {"true", "false", "null"};
    if (c == '{' || c == '[') return json_push(j, c == '{');
    if (c == '"') {
        j->key = false;
        j->state = J_STRING;
        return true;
    }
    if (c == '-' || (c >= '0' && c <= '9')) {
        j->state = c == '-' ? J_MINUS : c == '0' ? J_ZERO : J_INT;
        return true;
    }
    for (size_t i = 0; i < 3; i++) {
        if (c != literals[i][0]) continue;
        j->state = J_LITERAL;
        j->literal = literals[i] + 1;
        return true;
    }
    return false;
}

static bool json_number(struct tool_json *j, char c, bool *more)
{
    bool digit = c >= '0' && c <= '9', e = c == 'e' || c == 'E';
    *more = true;
    switch (j->state) {
    case J_MINUS: j->state = c == '0' ? J_ZERO : J_INT; return digit;
    case J_ZERO:
    case J_INT:
        if (digit && j->state == J_INT) return true;
        *more = c == '.' || e;
        if (*more) j->state = e ? J_E : J_POINT;
        return true;
    case J_POINT: j->state = J_FRACTION; return digit;
    case J_FRACTION:
        if (digit) return true;
        *more = e;
        if (e) j->state = J_E;
        return true;
    case J_E: j->state = c == '+' || c == '-' ? J_E_SIGN : J_EXPONENT; return digit || c == '+' || c == '-';
    case J_E_SIGN: j->state = J_EXPONENT; return digit;
    default: /* J_EXPONENT */ *more = digit; return true;
    }
}

static bool json_string_byte(struct tool_json *j, char c)
{
    if (j->state == J_HEX) {
        if (--j->left == 0) j->state = J_STRING;
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    }
    if (j->state == J_ESCAPE) {
        j->state = c == 'u' ? J_HEX : J_STRING;
        j->left = 4;
        return c && strchr("\"\\/bfnrtu", c);
    }
    if (c == '\\') j->state = J_ESCAPE;
    if (c == '"') j->state = j->key ? J_COLON : j->depth ? J_AFTER : J_DONE;
    return (unsigned char)c >= 0x20;
}

bool tool_json_step(struct tool_json *j, char c)
{
    if (j->state >= J_STRING && j->state <= J_HEX) return json_string_byte(j, c);
    if (j->state == J_LITERAL) {
        if (c != *j->literal) return false;
        if (!*++j->literal) j->state = j->depth ? J_AFTER : J_DONE;
        return true;
    }
    if (j->state >= J_MINUS && j->state <= J_EXPONENT) {
        bool more;
        if (!json_number(j, c, &more)) return false;
        if (more) return true;
        j->state = j->depth ? J_AFTER : J_DONE; /* c follows the number */
    }
    if (is_space(c)) return true;
    switch (j->state) {
    case J_VALUE: return json_value(j, c);
    case J_FIRST_ITEM: return c == ']' ? json_pop(j, false) : json_value(j, c);
    case J_FIRST_KEY:
        if (c == '}') return json_pop(j, true);
        /* fallthrough */
    case J_KEY:
        j->key = true;
        j->state = J_STRING;
        return c == '"';
    case J_COLON: j->state = J_VALUE; return c == ':';
    case J_AFTER:
        if (c == ',') {
            j->state = in_object(j) ? J_KEY : J_VALUE;
            return true;
        }
        return (c == '}' || c == ']') && json_pop(j, c == '}');
    default: return false; /* J_DONE */
    }
}

bool tool_json_whole(const char *text, size_t len)
{
    struct tool_json j = {0};
    for (size_t i = 0; i < len; i++) {
        if (!tool_json_step(&j, text[i])) return false;
    }
    /* A number has no terminator: white space after it shows whether it may end here. */
    return len && tool_json_step(&j, ' ') && j.state == J_DONE;
}
