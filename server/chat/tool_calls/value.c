/* See value.h. */
#include "server/chat/tool_calls/value.h"

#include "config/base/assert.h"
#include "config/base/json_text.h"

#include <strings.h>

#define COMMENT_MAX 256u
#define KEY_MAX     128u /* of a key that is looked for ahead */
#define CURLY_OPEN  "\xE2\x80\x9C"
#define CURLY_CLOSE "\xE2\x80\x9D"
#define TOKEN       'T' /* mark of a string in quote tokens */
/* A level's kind, and flags. */
enum {
    OBJECT = 1,
    ARRAY,
    KEYWORDS /* arguments in parentheses */,
    TUPLE,
    KIND = 7,
    ITEMS = 64,
    DOUBLED = 128
};

enum { AT_KEY = 0, AT_COLON, AT_VALUE, IN_STRING, IN_WORD, AT_END };
enum { ON = -1 }; /* no event */

/* ---- output ---- */

static void put(struct value_reader *r, struct buf *to, const char *s, size_t len)
{
    if (!r->st) r->st = buf_add(to, s, len);
}

static void puts_(struct value_reader *r, const char *s)
{
    put(r, r->out, s, strlen(s));
}

enum status value_escape(struct buf *out, const char *s, size_t len)
{
    enum status st = ST_OK;
    struct json_escape e;
    for (size_t i = 0; i < len && !st; i += e.plain + e.used) {
        e = json_escape_next(s + i, len - i, JSON_ESCAPE_MUST);
        st = buf_add(out, s + i, e.plain);
        if (!st) st = buf_adds(out, e.text);
    }
    return st;
}

static void odd(struct value_reader *r, enum value_odds odds)
{
    if (r->odds < odds) r->odds = odds;
}

static bool is_array(const struct value_reader *r)
{
    int kind = r->level ? r->kinds[r->level] & KIND : 0;
    return kind == ARRAY || kind == TUPLE;
}

static bool is_closer(char c)
{
    return c == '}' || c == ']' || c == ')';
}

/* The current string or word is the key of a watched member. */
static struct buf *target(const struct value_reader *r)
{
    return r->is_key && r->level == r->watch ? r->key : r->out;
}

/* Writes what separates two tokens: as it is written, if that is `want` (',' ':' or 0) and white space. */
static void gap(struct value_reader *r, const struct tag_text *t, char want)
{
    bool found = !want, plain = true;
    for (size_t i = r->gap; i < r->at; i++) {
        char c = t->s[i];
        if (is_blank(c)) continue;
        if (c == want && !found) found = true;
        else plain = false;
        if (!plain) odd(r, c == '=' || c == ',' || c == ';' ? VALUE_NOTATION : VALUE_REPAIRED);
    }
    if (!found && plain) odd(r, VALUE_REPAIRED);
    if (r->level <= r->watch) return;
    if (found && plain) put(r, r->out, t->s + r->gap, r->at - r->gap);
    else if (want) puts_(r, want == ',' ? ", " : ": ");
}

/* ---- looking ahead ---- */

static bool in_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.' || c == '$' || (unsigned char)c >= 0x80;
}

int value_key_at(const struct tag_text *t, size_t i)
{
    i = blanks_skip(t, i);
    if (i == t->len) return -1;
    char mark = t->s[i] == '"' || t->s[i] == '\'' ? t->s[i] : 0;
    size_t from = i += mark != 0;
    while (i < t->len && i - from < KEY_MAX && (mark ? t->s[i] != mark && t->s[i] != '\n' : in_word(t->s[i])))
        i += mark && t->s[i] == '\\' ? 2 : 1;
    if (i >= t->len) return -1;
    if (i - from >= KEY_MAX) return mark != 0;
    if (i == from && !mark) return 0;
    if (mark && t->s[i] != mark) return 0;
    i = blanks_skip(t, i + (mark != 0));
    return i == t->len ? -1 : t->s[i] == ':' || t->s[i] == '=' || is_blank(t->s[i]);
}

/* One of the tags is at i: like tag_at. */
static int tags_at(const struct tag_text *t, size_t i, const char *const *tags)
{
    int most = 0;
    for (; tags && *tags; tags++) {
        int found = tag_at(t, i, *tags);
        if (found > 0) return (int)strlen(*tags);
        if (found < 0) most = -1;
    }
    return most;
}

int value_end_at(const struct tag_text *t, size_t i, const char *const *ends, const char *const *opens)
{
    int found = tags_at(t, i, ends);
    if (found <= 0) return found;
    i = blanks_skip(t, i + (size_t)found);
    return i < t->len ? tags_at(t, i, opens) : t->final ? 1 : -1;
}

/* Bytes of a comment at i; 0: there is none; -1: the text is too short. */
static int comment_at(const struct tag_text *t, size_t i)
{
    if (t->s[i] != '/') return 0;
    if (i + 1 == t->len) return t->final ? 0 : -1;
    const char *end = t->s[i + 1] == '/' ? "\n" : t->s[i + 1] == '*' ? "*/" : NULL;
    if (!end) return 0;
    size_t most = t->len - i - 2 < COMMENT_MAX ? t->len - i - 2 : COMMENT_MAX;
    const char *hit = memmem(t->s + i + 2, most, end, strlen(end));
    return hit ? (int)(hit - t->s - (long)i) + (int)strlen(end) : t->final || most == COMMENT_MAX ? 0 : -1;
}

static int quote_token_at(const struct value_reader *r, const struct tag_text *t, size_t i)
{
    return r->quote && t->s[i] == r->quote[0] ? tag_at(t, i, r->quote) : 0;
}

/* A comma at i ends the value before it: what follows may be an element. Like tag_at. */
static int comma_ends(const struct value_reader *r, const struct tag_text *t, size_t i)
{
    size_t j = blanks_skip(t, i + 1);
    if (is_array(r)) return 1;
    if (j == t->len) return t->final ? 1 : -1;
    if (is_closer(t->s[j]) || t->s[j] == ',' || is_blank(t->s[j])) return 1;
    int found = comment_at(t, j);
    if (!found) found = quote_token_at(r, t, j);
    if (!found) found = tags_at(t, j, r->ends);
    if (!found) found = value_key_at(t, j);
    return found < 0 && t->final ? 1 : found;
}

/* A quote that ends at i ends its string. Like tag_at. */
static int quote_closes(const struct value_reader *r, const struct tag_text *t, size_t i)
{
    size_t j = blanks_skip(t, i);
    if (r->is_key) return 1;
    if (j == t->len) return t->final ? 1 : -1;
    char c = t->s[j];
    if (!r->level) return 0;
    if (is_closer(c) || is_blank(c)) return 1;
    if (c == ',' || c == ';') return comma_ends(r, t, j);
    int found = tags_at(t, j, r->ends);
    if (!found) found = quote_token_at(r, t, j);
    if (found) return found;
    if (is_array(r)) return c == (char)r->mark; /* no comma */
    found = j > i || c == '"' || c == '\'' ? value_key_at(t, j) : 0;
    return found < 0 && t->final ? 0 : found;
}

/* ---- structure ---- */

static int value_end(struct value_reader *r)
{
    r->gap = r->at;
    r->part = !r->level ? AT_END : is_array(r) ? AT_VALUE : AT_KEY;
    return !r->level ? (int)VALUE_DONE : r->level == r->watch ? (int)VALUE_NEXT : ON;
}

/* An element of the innermost level begins. */
static void element(struct value_reader *r, const struct tag_text *t)
{
    bool first = !(r->kinds[r->level] & ITEMS);
    r->kinds[r->level] |= ITEMS;
    gap(r, t, first ? 0 : ',');
}

static void level_close(struct value_reader *r, const struct tag_text *t)
{
    ASSERT(r->level && r->watch <= r->level);
    gap(r, t, 0);
    if (r->level > r->watch) puts_(r, is_array(r) ? "]" : "}");
    r->level--;
    if (r->watch > r->level) r->watch = r->level;
    r->gap = r->at;
}

/* The innermost level that the bracket closes, or 0. */
static uint32_t opener(const struct value_reader *r, char c)
{
    unsigned kinds = c == '}'   ? 1u << OBJECT | 1u << KEYWORDS
                     : c == ')' ? 1u << KEYWORDS | 1u << TUPLE
                                : 1u << ARRAY;
    uint32_t level = r->level;
    while (level && !(kinds >> (r->kinds[level] & KIND) & 1)) level--;
    return level;
}

/* A closing bracket: closes what it belongs to and all in it; superfluous ones are skipped. */
static int pop(struct value_reader *r, const struct tag_text *t)
{
    uint32_t level = opener(r, t->s[r->at]);
    bool twice = level && r->kinds[level] & DOUBLED;
    if (level != r->level) odd(r, VALUE_REPAIRED);
    if (twice && r->at + 1 == t->len && !t->final) return VALUE_MORE;
    while (level && r->level >= level) level_close(r, t);
    r->at += twice && r->at + 1 < t->len && t->s[r->at + 1] == '}' ? 2 : 1;
    return level ? value_end(r) : ON;
}

static int push(struct value_reader *r, char c)
{
    if (r->level == VALUE_DEPTH_MAX) return VALUE_DEEP;
    if (c == '(') odd(r, VALUE_NOTATION);
    r->level++;
    r->kinds[r->level] = c == '{' ? OBJECT : c == '[' ? ARRAY : r->level == 1 ? KEYWORDS : TUPLE;
    if (r->level > r->watch) puts_(r, is_array(r) ? "[" : "{");
    r->gap = ++r->at;
    r->part = is_array(r) ? AT_VALUE : AT_KEY;
    return ON;
}

static int missing(struct value_reader *r)
{
    odd(r, VALUE_REPAIRED);
    puts_(r, "null");
    return value_end(r);
}

/* ---- strings ---- */

static size_t hex_digits(const struct tag_text *t, size_t i, size_t most)
{
    size_t n = 0;
    while (n < most && i + n < t->len && strchr("0123456789abcdefABCDEF", t->s[i + n]) && t->s[i + n]) n++;
    return n;
}

/* Bytes of the escape at i; 0: the text is too short. */
static size_t escape_len(const struct tag_text *t, size_t i)
{
    if (i + 1 >= t->len) return t->final ? t->len - i : 0;
    size_t most = t->s[i + 1] == 'u' ? 4 : t->s[i + 1] == 'x' ? 2 : 0, n = hex_digits(t, i + 2, most);
    if (n < most && i + 2 + n == t->len && !t->final) return 0;
    return n == most ? 2 + most : 2;
}

/* The string's text [from, to) as the inside of a JSON string. */
static void string_put(struct value_reader *r, const struct tag_text *t, size_t from, size_t to)
{
    struct buf *out = target(r);
    size_t plain = from;
    ASSERT(from <= to && to <= t->len);
    if (r->mark == TOKEN && !r->st) r->st = value_escape(out, t->s + from, to - from);
    for (size_t i = from; i < to && r->mark != TOKEN;) {
        unsigned char c = (unsigned char)t->s[i];
        size_t n = c == '\\' && i + 1 < to ? escape_len(t, i) : 1;
        if (n > to - i) n = to - i;
        char next = n > 1 ? t->s[i + 1] : 0;
        bool hex = next == 'x' && n == 4,
             known = (next == 'u' && n == 6) || (next && strchr("\"\\/bfnrt", next));
        if ((c >= 0x20 && c != '"' && c != '\\') || (n > 1 && known) ||
            (c == '\\' && n == 1 && i + 1 == to)) {
            i += n;
            continue;
        }
        put(r, out, t->s + plain, i - plain);
        odd(r, VALUE_NOTATION);
        if (hex && !r->st) r->st = buf_addf(out, "\\u00%.2s", t->s + i + 2);
        else if (next == '\'') put(r, out, "'", 1);
        else if (!r->st) r->st = value_escape(out, t->s + i, n = 1);
        plain = i += n;
    }
    if (r->mark != TOKEN) put(r, out, t->s + plain, to - plain);
}

/* A string begins with `len` bytes, and ends with `close`, or (NULL) with its mark. */
static int string_begin(struct value_reader *r, char mark, size_t len, const char *close)
{
    if (mark != '"' || close) odd(r, VALUE_NOTATION);
    r->close = close;
    put(r, target(r), "\"", 1);
    r->mark = (uint8_t)mark;
    r->part = IN_STRING;
    r->at += len;
    r->from = r->run = r->at;
    return ON;
}

/* The string ends at `to`, its closing quote at `at`. */
static int string_end(struct value_reader *r, const struct tag_text *t, size_t to)
{
    string_put(r, t, r->from, to);
    put(r, target(r), "\"", 1);
    if (!r->is_key) return value_end(r);
    r->gap = r->at;
    r->part = AT_COLON;
    return ON;
}

static int string_read(struct value_reader *r, const struct tag_text *t)
{
    while (r->at < t->len) {
        char c = t->s[r->at];
        /* In strict JSON even both tags are text: a line break before them is not. */
        const char *const *opens = r->mark == TOKEN || t->s[r->at - 1] == '\n' ? r->opens : NULL;
        int tag = c == '<' || c == '[' ? value_end_at(t, r->at, r->ends, opens) : 0;
        int quote = r->close ? tag_at(t, r->at, r->close) : quote_token_at(r, t, r->at);
        size_t len = quote <= 0 ? 1 : strlen(r->close ? r->close : r->quote);
        if (tag > 0) return VALUE_TAG;
        if (!r->close && (quote > 0 || c == (char)r->mark)) {
            quote = quote_closes(r, t, r->at + len);
            if (!quote) odd(r, VALUE_REPAIRED);
        }
        if (quote > 0) {
            size_t to = r->at;
            r->at += len;
            return string_end(r, t, to);
        }
        size_t n = c == '\\' && r->mark != TOKEN ? escape_len(t, r->at) : 1;
        if (tag < 0 || quote < 0 || !n) break;
        r->at += n;
        if (!is_blank(c) && !is_closer(c)) r->run = r->at;
    }
    if (r->run > r->from) {
        string_put(r, t, r->from, r->run);
        r->from = r->run;
    }
    return VALUE_MORE;
}

/* ---- bare words ---- */

static size_t digits(const char *s, size_t i, size_t len)
{
    while (i < len && s[i] >= '0' && s[i] <= '9') i++;
    return i;
}

/* A number as JSON; also +1, .5 and 1. */
static bool number(struct value_reader *r, const char *s, size_t len)
{
    size_t sign = len && (s[0] == '-' || s[0] == '+'), point = digits(s, sign, len), i = point, to;
    bool whole = point > sign, fraction = false;
    if (whole && s[sign] == '0' && point > sign + 1) return false;
    if (i < len && s[i] == '.') {
        i = digits(s, point + 1, len);
        fraction = i > point + 1;
    }
    to = i;
    if (!whole && !fraction) return false;
    if (i < len && (s[i] == 'e' || s[i] == 'E')) {
        i += i + 1 < len && (s[i + 1] == '+' || s[i + 1] == '-') ? 2 : 1;
        size_t exponent = i;
        i = digits(s, i, len);
        if (i == exponent) return false;
    }
    if (i != len) return false;
    bool plus = s[0] == '+', end = to == point + 1;
    if (plus || end || !whole) odd(r, VALUE_NOTATION);
    if (s[0] == '-') puts_(r, "-");
    if (!whole) puts_(r, "0");
    put(r, r->out, s + sign, to - sign);
    if (end) puts_(r, "0");
    put(r, r->out, s + to, len - to);
    return true;
}

static const struct {
    const char *word, *json;
} words[] = {{"true", "true"}, {"false", "false"}, {"null", "null"}, {"none", "null"}, {"nil", "null"}};
enum { WORDS = sizeof words / sizeof *words };

/* A literal: adds its JSON. */
static bool literal(struct value_reader *r, const char *s, size_t len)
{
    for (size_t i = 0; i < WORDS; i++) {
        if (strlen(words[i].word) != len || strncasecmp(s, words[i].word, len) != 0) continue;
        if (memcmp(s, words[i].json, len) != 0) odd(r, VALUE_NOTATION);
        puts_(r, words[i].json);
        return true;
    }
    return number(r, s, len);
}

static int word_end(struct value_reader *r, const struct tag_text *t)
{
    ASSERT(r->part == IN_WORD && r->from <= r->at);
    size_t to = blanks_trim(t, r->from, r->at);
    const char *s = t->s + r->from;
    if (r->is_key || !literal(r, s, to - r->from)) {
        odd(r, r->is_key ? VALUE_NOTATION : VALUE_REPAIRED);
        put(r, target(r), "\"", 1);
        if (!r->st) r->st = value_escape(target(r), s, to - r->from);
        put(r, target(r), "\"", 1);
    }
    int event = r->is_key ? ON : value_end(r);
    if (r->is_key) r->part = AT_COLON;
    r->gap = to;
    return event;
}

/* The word so far is a literal: a comma ends it. */
static bool is_literal(const struct value_reader *r, const struct tag_text *t)
{
    struct buf none;
    struct value_reader sub = {.out = &none};
    size_t to = blanks_trim(t, r->from, r->at);
    if (to - r->from > 64) return false;
    buf_init(&none, 256);
    bool is = literal(&sub, t->s + r->from, to - r->from) && !sub.st;
    buf_fini(&none);
    return is;
}

/* 1: the word ends here; 0: the byte is part of it; -1: too short. `run`: brackets that it has opened. */
static int word_ends(struct value_reader *r, const struct tag_text *t)
{
    char c = t->s[r->at];
    int tag = tags_at(t, r->at, r->ends);
    if (tag) return tag;
    if (r->is_key) return c == ':' || c == '=' || c == ',' || c == '}' || c == ')';
    if (c == '(' || c == '[') r->run++;
    if ((c == ')' || c == ']') && r->run) {
        r->run--;
        return 0;
    }
    if (c == ')') return opener(r, c) > 0;
    if (is_closer(c)) return r->level > 0;
    if (!r->level || is_array(r)) return c == ',' && r->level;
    if (c == ',' || c == ';') return comma_ends(r, t, r->at);
    if (!is_blank(c)) return 0;
    /* The comma is missing before a quoted key, or before any on a new line or after a literal. */
    size_t next = blanks_skip(t, r->at);
    if (next == t->len) return t->final ? 0 : -1;
    if (c != '\n' && t->s[next] != '"' && t->s[next] != '\'' && !is_literal(r, t)) return 0;
    tag = value_key_at(t, next);
    return tag < 0 && t->final ? 0 : tag;
}

static int word_read(struct value_reader *r, const struct tag_text *t)
{
    for (; r->at < t->len; r->at++) {
        int ends = word_ends(r, t);
        if (ends) return ends < 0 ? (int)VALUE_MORE : word_end(r, t);
    }
    return VALUE_MORE;
}

/* ---- the reader ---- */

void value_init(struct value_reader *r, size_t at, struct buf *out)
{
    *r = (struct value_reader){.at = at, .out = out, .part = AT_VALUE};
}

/* A key or a value begins: a string or a word. */
static int token_begin(struct value_reader *r, const struct tag_text *t, bool key)
{
    char c = t->s[r->at];
    int quote = quote_token_at(r, t, r->at), curly = tag_at(t, r->at, CURLY_OPEN);
    int triple = c == '"' ? tag_at(t, r->at, "\"\"\"") : c == '\'' ? tag_at(t, r->at, "'''") : 0;
    if (quote < 0 || curly < 0 || triple < 0) return VALUE_MORE;
    if (key || is_array(r)) element(r, t);
    r->is_key = key;
    if (key && r->level == r->watch) r->key->len = 0;
    if (quote) return string_begin(r, TOKEN, strlen(r->quote), r->quote);
    if (curly) return string_begin(r, '"', strlen(CURLY_OPEN), CURLY_CLOSE);
    if (triple) return string_begin(r, c, 3, c == '"' ? "\"\"\"" : "'''");
    if (strchr("\"'`", c)) return string_begin(r, c, 1, NULL);
    r->part = IN_WORD;
    r->from = r->at;
    r->run = 0;
    return ON;
}

static int step(struct value_reader *r, const struct tag_text *t)
{
    char c = t->s[r->at];
    bool separates = is_blank(c) || ((c == ',' || c == ';') && r->level);
    int tag = tags_at(t, r->at, r->ends), skip = r->part == AT_KEY ? comment_at(t, r->at) : 0;
    if (tag) return tag > 0 ? VALUE_TAG : VALUE_MORE;
    if (!skip && !is_blank(c)) skip = space_at(t, r->at);
    if (skip < 0) return VALUE_MORE;
    r->at += (size_t)skip;
    if (skip) return ON;
    switch (r->part) {
    case AT_KEY:
        if (is_closer(c)) return pop(r, t);
        if (c == '{' && !(r->kinds[r->level] & (ITEMS | DOUBLED))) {
            odd(r, VALUE_REPAIRED);
            r->kinds[r->level] |= DOUBLED;
            r->gap = ++r->at;
            return ON;
        }
        if (!separates) return token_begin(r, t, true);
        break;
    case AT_COLON:
        if (!is_blank(c) && c != ':' && c != '=') {
            gap(r, t, ':');
            r->part = AT_VALUE;
            r->gap = r->at;
            return r->level == r->watch ? (int)VALUE_MEMBER : ON;
        }
        break;
    case AT_VALUE:
        if (r->level && !is_array(r) && (is_closer(c) || c == ',')) return missing(r);
        if (is_closer(c) && r->level) return pop(r, t);
        if (separates) break;
        if (c != '{' && c != '[' && c != '(') return token_begin(r, t, false);
        if (is_array(r)) element(r, t);
        return push(r, c);
    default: return VALUE_DONE;
    }
    r->at++;
    return ON;
}

enum value_event value_read(struct value_reader *r, const struct tag_text *t)
{
    int event = ON;
    while (event == ON && r->at < t->len && !r->st)
        event = r->part == IN_STRING ? string_read(r, t) : r->part == IN_WORD ? word_read(r, t) : step(r, t);
    return event == ON ? VALUE_MORE : (enum value_event)event;
}

void value_close(struct value_reader *r, const struct tag_text *t)
{
    ASSERT_CMP(r->at, <=, t->len);
    odd(r, VALUE_REPAIRED);
    if (r->part == IN_STRING) { /* the quote is missing, and the brackets at the end are none of its text */
        size_t to = r->at, brackets = 0;
        while (to > r->from && (is_blank(t->s[to - 1]) || (is_closer(t->s[to - 1]) && brackets++ < r->level)))
            to--;
        if (to > r->from && to < r->at && t->s[to - 1] == '\\') to++;
        (void)string_end(r, t, to);
    } else if (r->part == IN_WORD) {
        (void)word_end(r, t);
    }
    if (r->part == AT_COLON && r->level > r->watch) puts_(r, ": null");
    if (r->part == AT_VALUE && r->level > r->watch && !is_array(r)) puts_(r, "null");
    while (r->level) {
        r->gap = r->at;
        level_close(r, t);
    }
    (void)value_end(r);
}

bool value_may_end(const struct value_reader *r)
{
    return r->part != IN_STRING && r->part != AT_COLON;
}

void value_flush(struct value_reader *r, const struct tag_text *t)
{
    const char *s = t->s + r->from;
    size_t len = t->len - r->from;
    if (r->part == IN_STRING) string_put(r, t, r->from, t->len);
    if (r->part != IN_WORD) return;
    bool plain = strchr("-0123456789", *s) != NULL;
    for (size_t i = 0; i < 3; i++) plain = plain || strncmp(s, words[i].word, len) == 0;
    if (plain) put(r, target(r), s, len);
    else puts_(r, "\"");
    if (!plain && !r->st) r->st = value_escape(target(r), s, len);
}

int value_whole(const char *s, size_t len, struct buf *out)
{
    struct value_reader r;
    const struct tag_text t = {s, len, true};
    value_init(&r, 0, out);
    enum value_event event = value_read(&r, &t);
    if (event == VALUE_MORE && r.part == IN_WORD && !r.level) event = (enum value_event)word_end(&r, &t);
    if (r.st || event != VALUE_DONE || blanks_skip(&t, r.at) != len) return -1;
    return (int)r.odds;
}
