/* tokenizer.json and its side files -> struct tokenizer. Every component is read by name; an unsupported one
 * fails the load with ST_UNSUPPORTED. Runs at start-up only. */
#include "config/base/assert.h"
#include "config/base/json.h"
#include "config/base/list.h"
#include "config/base/utf8.h"
#include "engine/tokenizer/internal.h"
#include "engine/tokenizer/unicode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX ((size_t)512 << 20)

static enum status unsupported_type(struct tok_loader *l, const char *where, uint32_t node)
{
    size_t len = 0;
    uint32_t type = json_get(l->d, node, "type");
    const char *name = json_kind(l->d, type) == JSON_STRING ? json_raw(l->d, type, &len) : "";
    return err_set(l->err, ST_UNSUPPORTED, "%s: type \"%.*s\" is not supported", where,
                   len > 80 ? 80 : (int)len, name);
}

static bool type_is(struct tok_loader *l, uint32_t node, const char *type)
{
    return json_str_eq(l->d, json_get(l->d, node, "type"), type);
}

enum status tok__get_bool(struct tok_loader *l, uint32_t node, const char *where, const char *key,
                          bool absent, bool *out)
{
    uint32_t v = json_get_live(l->d, node, key);
    *out = absent;
    if (v == JSON_NONE || json_bool(l->d, v, out)) return ST_OK;
    return err_set(l->err, ST_FORMAT, "%s: \"%s\" is not a boolean", where, key);
}

enum status tok__get_string(struct tok_loader *l, uint32_t node, const char *where, const char *key,
                            char **out, size_t *len)
{
    uint32_t v = json_get_live(l->d, node, key);
    if (json_kind(l->d, v) != JSON_STRING)
        return err_set(l->err, ST_FORMAT, "%s: \"%s\" is not a string", where, key);
    *out = json_str_dup(l->d, v, len);
    return *out ? ST_OK : err_nomem(l->err, where);
}

/* {"type":"Sequence", KEY:[...]} or one component: calls fn for each, in order. */
typedef enum status component_fn(struct tok_loader *l, uint32_t node);

static enum status each_component(struct tok_loader *l, uint32_t node, const char *where, const char *key,
                                  int depth, component_fn *fn)
{
    if (node == JSON_NONE) return ST_OK;
    if (json_kind(l->d, node) != JSON_OBJECT) return err_set(l->err, ST_FORMAT, "%s is not an object", where);
    if (!type_is(l, node, "Sequence")) return fn(l, node);
    if (depth > 4) return err_set(l->err, ST_UNSUPPORTED, "%s: sequences nested too deeply", where);
    uint32_t list = json_get_live(l->d, node, key);
    if (json_kind(l->d, list) != JSON_ARRAY)
        return err_set(l->err, ST_FORMAT, "%s: a Sequence without \"%s\"", where, key);
    uint32_t item = json_first(l->d, list);
    for (uint32_t i = 0; i < json_count(l->d, list); i++, item = json_next(l->d, item)) {
        enum status st = each_component(l, item, where, key, depth + 1, fn);
        if (st) return st;
    }
    return ST_OK;
}

/* ---- normalizer ---- */

static enum status read_replace(struct tok_loader *l, uint32_t node, const char *where, struct tok_norm *out)
{
    uint32_t pattern = json_get_live(l->d, node, "pattern");
    if (json_get_live(l->d, pattern, "String") == JSON_NONE) {
        return err_set(l->err, ST_UNSUPPORTED, "%s: a Replace pattern that is not a String is not supported",
                       where);
    }
    *out = (struct tok_norm){.kind = TOK_NORM_REPLACE};
    enum status st = tok__get_string(l, pattern, where, "String", &out->from, &out->from_len);
    if (!st) st = tok__get_string(l, node, where, "content", &out->to, &out->to_len);
    if (!st && out->from_len == 0)
        st = err_set(l->err, ST_UNSUPPORTED, "%s: a Replace with an empty pattern is not supported", where);
    if (st) {
        free(out->from);
        free(out->to);
        *out = (struct tok_norm){.kind = TOK_NORM_REPLACE};
    }
    return st;
}

static struct tok_norm *set_prepend(struct tok_norm *n)
{
    *n = (struct tok_norm){.kind = TOK_NORM_PREPEND};
    return n;
}

static enum status add_normalizer(struct tok_loader *l, uint32_t node)
{
    struct tokenizer *t = l->t;
    if (t->norm_count == TOK_STEPS_MAX)
        return err_set(l->err, ST_UNSUPPORTED, "normalizer: more than %d steps", TOK_STEPS_MAX);
    struct tok_norm *n = &t->norms[t->norm_count];
    enum status st = ST_OK;
    if (type_is(l, node, "NFC")) *n = (struct tok_norm){.kind = TOK_NORM_NFC};
    else if (type_is(l, node, "Replace")) st = read_replace(l, node, "normalizer", n);
    else if (type_is(l, node, "Prepend"))
        st = tok__get_string(l, node, "normalizer", "prepend", &set_prepend(n)->to, &n->to_len);
    else st = unsupported_type(l, "normalizer", node);
    if (!st) t->norm_count++;
    return st;
}

/* ---- pre_tokenizer ---- */

#define WORDS(letters, numbers, others)                                                                      \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?" letters "|" numbers "| ?" others SPACES
#define SPACES "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define MARKS  "\\p{Lm}\\p{Lo}\\p{M}]"
#define OTHERS "[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
static const struct {
    const char *regex;
    enum tok_pattern pattern;
} patterns[] = {
    {WORDS("\\p{L}+", "\\p{N}", OTHERS), TOK_PATTERN_DIGIT},
    {WORDS("\\p{L}+", "\\p{N}{1,3}", OTHERS), TOK_PATTERN_DIGITS3},
    {WORDS("\\p{L}+", "\\p{N}+", OTHERS), TOK_PATTERN_DIGITS},
    {WORDS("[\\p{L}\\p{M}]+", "\\p{N}", "[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*"), TOK_PATTERN_DIGIT_MARKS},
    {WORDS("\\p{L}+", "\\p{N}", "[^\\s\\p{L}\\p{N}\\r\\n]+"), TOK_PATTERN_DIGIT_BARE},
    {"\\p{N}", TOK_PATTERN_NUMBERS}, /* these two leave gaps, which are words */
    {"\\p{N}{1,3}", TOK_PATTERN_NUMBERS3},
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", TOK_PATTERN_PLAIN},
    {"[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}" MARKS "*[\\p{Ll}" MARKS
     "+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}" MARKS "+[\\p{Ll}" MARKS
     "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" SPACES,
     TOK_PATTERN_CASED},
};

#define SAME(a, b)                                                                                           \
    {                                                                                                        \
        .kind = TOK_NORM_REPLACE, .from = a, .to = b, .from_len = sizeof a - 1, .to_len = sizeof b - 1       \
    }
/* In these patterns the first means what the second does. */
static const struct tok_norm spellings[] = {
    SAME("\r", "\\r"),
    SAME("\n", "\\n"),
    SAME("'(?i:[sdmt]|ll|ve|re)", "(?i:'s|'t|'re|'ve|'m|'ll|'d)"),
    SAME("]?+\\p{L}", "]?\\p{L}"),
    SAME("\\p{L}++", "\\p{L}+"),
    SAME("]++", "]+"),
    SAME("]*+|", "]*|"),
    SAME("{1}|", "|"),
    SAME("\\s*[\\r\\n]+|", "\\s*[\\r\\n]|"),
    SAME("(?!\\S)|\\s+", "(?!\\S)|\\s"),
};

/* The text in one spelling, NUL-terminated; NULL: out of memory. */
static char *one_spelling(const char *regex)
{
    struct tok_textbuf b = {.mixed = false};
    struct tok_text x = {.s = (const uint8_t *)regex, .len = strlen(regex) + 1};
    if (!tok__normalize(spellings, sizeof spellings / sizeof *spellings, &x, true, &b)) return (char *)b.s;
    tok__textbuf_fini(&b);
    return NULL;
}

static bool same_regex(const char *a, const char *b)
{
    char *x = one_spelling(a), *y = one_spelling(b);
    bool same = x && y && strcmp(x, y) == 0;
    free(x);
    free(y);
    return same;
}

static enum status read_behavior(struct tok_loader *l, uint32_t node, enum tok_behavior *out)
{
    static const char *const names[] = {"Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous",
                                        "Removed"};
    uint32_t v = json_get(l->d, node, "behavior");
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        if (json_str_eq(l->d, v, names[i])) {
            *out = (enum tok_behavior)i;
            return ST_OK;
        }
    }
    return err_set(l->err, ST_FORMAT, "pre_tokenizer: a Split without a known \"behavior\"");
}

static enum status read_split(struct tok_loader *l, uint32_t node, struct tok_split *s)
{
    uint32_t pattern = json_get_live(l->d, node, "pattern"), regex = json_get_live(l->d, pattern, "Regex");
    bool invert;
    enum status st = read_behavior(l, node, &s->behavior);
    if (!st) st = tok__get_bool(l, node, "pre_tokenizer", "invert", false, &invert);
    if (st) return st;
    if (regex == JSON_NONE) {
        if (invert)
            return err_set(l->err, ST_UNSUPPORTED,
                           "pre_tokenizer: a Split on a String with \"invert\" is not supported");
        s->pattern = TOK_PATTERN_LITERAL;
        if ((st = tok__get_string(l, pattern, "pre_tokenizer", "String", &s->literal, &s->literal_len)))
            return st;
        if (s->literal_len > 0) return ST_OK;
        free(s->literal);
        s->literal = NULL;
        return err_set(l->err, ST_UNSUPPORTED, "pre_tokenizer: a Split on an empty String is not supported");
    }
    /* The known patterns match every character: "remove all but the matches" is "isolate the matches". */
    bool isolates = invert ? s->behavior == TOK_REMOVED : s->behavior == TOK_ISOLATED;
    char *text = json_kind(l->d, regex) == JSON_STRING ? json_str_dup(l->d, regex, NULL) : NULL;
    size_t at = 0, count = sizeof patterns / sizeof *patterns;
    while (text && at < count && !same_regex(text, patterns[at].regex)) at++;
    bool gaps = at < count &&
                (patterns[at].pattern == TOK_PATTERN_NUMBERS || patterns[at].pattern == TOK_PATTERN_NUMBERS3);
    if (text && at < count && isolates && !(gaps && invert)) {
        free(text);
        s->pattern = patterns[at].pattern;
        s->behavior = TOK_ISOLATED;
        return ST_OK;
    }
    free(text);
    size_t len = 0;
    const char *raw = json_kind(l->d, regex) == JSON_STRING ? json_raw(l->d, regex, &len) : "";
    return err_set(l->err, ST_UNSUPPORTED, "pre_tokenizer: this Split is not supported: pattern \"%.*s\"",
                   len > 300 ? 300 : (int)len, raw);
}

static enum status read_byte_level(struct tok_loader *l, uint32_t node, bool *split)
{
    bool prefix;
    enum status st = tok__get_bool(l, node, "pre_tokenizer", "add_prefix_space", true, &prefix);
    if (!st) st = tok__get_bool(l, node, "pre_tokenizer", "use_regex", true, split);
    if (!st && prefix)
        st = err_set(l->err, ST_UNSUPPORTED,
                     "pre_tokenizer: ByteLevel with \"add_prefix_space\" is not supported");
    l->t->byte_level = true;
    return st;
}

static enum status read_digits(struct tok_loader *l, uint32_t node)
{
    bool each;
    enum status st = tok__get_bool(l, node, "pre_tokenizer", "individual_digits", false, &each);
    if (!st && !each)
        st = err_set(l->err, ST_UNSUPPORTED,
                     "pre_tokenizer: Digits without \"individual_digits\" is not supported");
    return st;
}

/* " " -> U+2581, one more in front of a text (prepend_scheme first) or of every piece (always); with `split`,
 * words begin with one. */
static enum status read_metaspace(struct tok_loader *l, uint32_t node, struct tok_split *s, bool *split)
{
    struct tokenizer *t = l->t;
    uint32_t scheme = json_get_live(l->d, node, "prepend_scheme");
    bool first = json_str_eq(l->d, scheme, "first"), never = json_str_eq(l->d, scheme, "never");
    struct tok_norm *to = &t->spaces[0], *front = set_prepend(&t->spaces[1]);
    if (t->split_count || t->space_count)
        return err_set(l->err, ST_UNSUPPORTED, "pre_tokenizer: a Metaspace after a step is not supported");
    enum status st = tok__get_bool(l, node, "pre_tokenizer", "split", true, split);
    *to = (struct tok_norm){.kind = TOK_NORM_REPLACE, .from = strdup(" "), .from_len = 1};
    if (!st) st = tok__get_string(l, node, "pre_tokenizer", "replacement", &to->to, &to->to_len);
    if (!st && to->to_len == 0) st = err_set(l->err, ST_FORMAT, "pre_tokenizer: \"replacement\" is empty");
    if (st) return st;
    *s = (struct tok_split){.pattern = TOK_PATTERN_LITERAL,
                            .behavior = TOK_MERGED_WITH_NEXT,
                            .literal = *split ? strdup(to->to) : NULL,
                            .literal_len = to->to_len};
    front->to = strdup(to->to);
    front->to_len = to->to_len;
    front->first = first;
    front->once = true;
    t->space_count = never ? 1 : 2;
    return to->from && front->to && (!*split || s->literal) ? ST_OK : err_nomem(l->err, "pre_tokenizer");
}

static enum status add_pre_tokenizer(struct tok_loader *l, uint32_t node)
{
    struct tokenizer *t = l->t;
    if (t->byte_level)
        return err_set(l->err, ST_UNSUPPORTED, "pre_tokenizer: a step after ByteLevel is not supported");
    if (t->split_count == TOK_STEPS_MAX)
        return err_set(l->err, ST_UNSUPPORTED, "pre_tokenizer: more than %d steps", TOK_STEPS_MAX);
    struct tok_split *s = &t->splits[t->split_count];
    bool used = true;
    enum status st;
    if (type_is(l, node, "Split")) {
        st = read_split(l, node, s);
    } else if (type_is(l, node, "ByteLevel")) {
        st = read_byte_level(l, node, &used);
        *s = (struct tok_split){.pattern = TOK_PATTERN_PLAIN};
    } else if (type_is(l, node, "Digits")) {
        st = read_digits(l, node);
        *s = (struct tok_split){.pattern = TOK_PATTERN_NUMBERS};
    } else if (type_is(l, node, "Metaspace")) {
        st = read_metaspace(l, node, s, &used);
    } else {
        st = unsupported_type(l, "pre_tokenizer", node);
    }
    if (!st && used) t->split_count++;
    return st;
}

/* ---- decoder ---- */

static enum status read_strip(struct tok_loader *l, uint32_t node)
{
    uint64_t start = 0, stop = 0;
    (void)json_uint(l->d, json_get_live(l->d, node, "start"), &start);
    (void)json_uint(l->d, json_get_live(l->d, node, "stop"), &stop);
    l->t->decode_strip = start == 1;
    if (start <= 1 && stop == 0 && json_str_eq(l->d, json_get(l->d, node, "content"), " ")) return ST_OK;
    return err_set(l->err, ST_UNSUPPORTED, "decoder: only a Strip of one space at the start is supported");
}

static enum status add_decoder(struct tok_loader *l, uint32_t node)
{
    struct tokenizer *t = l->t;
    if (t->decode_byte_level)
        return err_set(l->err, ST_UNSUPPORTED, "decoder: a step after ByteLevel is not supported");
    if (type_is(l, node, "ByteLevel")) {
        if (t->decode_replace_count || t->decode_byte_fallback)
            return err_set(l->err, ST_UNSUPPORTED, "decoder: ByteLevel after another step is not supported");
        t->decode_byte_level = true;
        return ST_OK;
    }
    if (type_is(l, node, "ByteFallback")) {
        t->decode_byte_fallback = true;
        return ST_OK;
    }
    if (type_is(l, node, "Fuse")) return ST_OK;
    if (type_is(l, node, "Strip")) return read_strip(l, node);
    if (!type_is(l, node, "Replace")) return unsupported_type(l, "decoder", node);
    if (t->decode_byte_fallback)
        return err_set(l->err, ST_UNSUPPORTED, "decoder: Replace after ByteFallback is not supported");
    if (t->decode_replace_count == TOK_STEPS_MAX)
        return err_set(l->err, ST_UNSUPPORTED, "decoder: more than %d steps", TOK_STEPS_MAX);
    enum status st = read_replace(l, node, "decoder", &t->decode_replace[t->decode_replace_count]);
    if (!st) t->decode_replace_count++;
    return st;
}

/* ---- post_processor ---- */

/* Appends the ids of special token `name` to the prefix, or after $A to the suffix. */
static enum status add_template_token(struct tok_loader *l, uint32_t node, uint32_t special, bool after)
{
    struct tokenizer *t = l->t;
    char *name = NULL;
    size_t len;
    enum status st = tok__get_string(l, node, "post_processor", "id", &name, &len);
    if (st) return st;
    uint32_t ids = json_get_live(l->d, json_get_live(l->d, special, name), "ids");
    if (json_count(l->d, ids) == 0)
        st = err_set(l->err, ST_FORMAT, "post_processor: no ids for \"%.80s\"", name);
    uint32_t item = json_first(l->d, ids);
    for (uint32_t i = 0; i < json_count(l->d, ids) && !st; i++, item = json_next(l->d, item)) {
        uint64_t id;
        uint32_t *list = after ? t->suffix : t->prefix;
        size_t *count = after ? &t->suffix_count : &t->prefix_count;
        if (!json_uint(l->d, item, &id) || id >= t->vocab_size || !(t->flags[id] & TOK_EXISTS)) {
            st = err_set(l->err, ST_FORMAT, "post_processor: \"%.80s\" has an id that is no token", name);
        } else if (*count == TOK_TEMPLATE_MAX) {
            st = err_set(l->err, ST_UNSUPPORTED, "post_processor: more than %d tokens on a side",
                         TOK_TEMPLATE_MAX);
        } else {
            list[(*count)++] = (uint32_t)id;
        }
    }
    free(name);
    return st;
}

static enum status read_template(struct tok_loader *l, uint32_t node)
{
    uint32_t single = json_get_live(l->d, node, "single"),
             special = json_get_live(l->d, node, "special_tokens");
    if (json_kind(l->d, single) != JSON_ARRAY)
        return err_set(l->err, ST_FORMAT, "post_processor: a template without \"single\"");
    if (l->t->prefix_count || l->t->suffix_count)
        return err_set(l->err, ST_UNSUPPORTED, "post_processor: two templates are not supported");
    bool after = false;
    uint32_t item = json_first(l->d, single);
    for (uint32_t i = 0; i < json_count(l->d, single); i++, item = json_next(l->d, item)) {
        uint32_t token = json_get_live(l->d, item, "SpecialToken"),
                 sequence = json_get_live(l->d, item, "Sequence");
        enum status st = ST_OK;
        if (token != JSON_NONE) st = add_template_token(l, token, special, after);
        else if (after || !json_str_eq(l->d, json_get(l->d, sequence, "id"), "A"))
            st = err_set(l->err, ST_UNSUPPORTED,
                         "post_processor: a \"single\" that is not text with tokens around it");
        else after = true;
        if (st) return st;
    }
    return after ? ST_OK : err_set(l->err, ST_UNSUPPORTED, "post_processor: a \"single\" without the text");
}

static enum status add_post_processor(struct tok_loader *l, uint32_t node)
{
    if (type_is(l, node, "ByteLevel")) return ST_OK; /* concerns offsets only */
    if (type_is(l, node, "TemplateProcessing")) return read_template(l, node);
    return unsupported_type(l, "post_processor", node);
}

/* ---- added tokens ---- */

static struct tok_added *find_added(struct tokenizer *t, uint32_t id)
{
    for (size_t i = 0; i < t->added_count && t->flags[id] & TOK_ADDED; i++)
        if (t->added[i].id == id) return &t->added[i];
    return NULL;
}

enum status tok__put_added(struct tokenizer *t, uint32_t id, const struct tok_added *flags, struct err *err)
{
    ASSERT_CMP(id, <, t->vocab_size);
    struct tok_added *a = find_added(t, id);
    if (!a && !LIST_RESERVE(t->added, t->added_cap, t->added_count + 1))
        return err_nomem(err, "added_tokens");
    if (!a) a = &t->added[t->added_count++];
    *a = *flags;
    a->id = id;
    unsigned bits = (t->flags[id] | TOK_ADDED) & ~(unsigned)TOK_SPECIAL;
    t->flags[id] = (uint8_t)(bits | (a->special ? TOK_SPECIAL : 0));
    return ST_OK;
}

enum status tok__read_flags(struct tok_loader *l, uint32_t node, const char *where, bool special,
                            struct tok_added *out)
{
    enum status st = tok__get_bool(l, node, where, "special", special, &out->special);
    if (!st) st = tok__get_bool(l, node, where, "single_word", false, &out->single_word);
    if (!st) st = tok__get_bool(l, node, where, "lstrip", false, &out->lstrip);
    if (!st) st = tok__get_bool(l, node, where, "rstrip", false, &out->rstrip);
    if (!st) st = tok__get_bool(l, node, where, "normalized", !out->special, &out->normalized);
    return st;
}

static enum status read_added(struct tok_loader *l, uint32_t list)
{
    struct tokenizer *t = l->t;
    if (list != JSON_NONE && json_kind(l->d, list) != JSON_ARRAY)
        return err_set(l->err, ST_FORMAT, "added_tokens is not an array");
    uint32_t node = json_first(l->d, list);
    for (uint32_t i = 0; i < json_count(l->d, list); i++, node = json_next(l->d, node)) {
        uint64_t id = 0;
        char *content = NULL;
        size_t len;
        struct tok_added flags = {0};
        (void)json_uint(l->d, json_get(l->d, node, "id"), &id); /* checked when the vocabulary was read */
        enum status st = tok__read_flags(l, node, "added_tokens", false, &flags);
        if (!st) st = tok__get_string(l, node, "added_tokens", "content", &content, &len);
        if (!st && len > 0 && (st = tok__add_literal(t, (uint32_t)id, content, len, l->err)))
            err_prefix(l->err, st, "added_tokens");
        if (!st && len > 0) st = tok__put_added(t, (uint32_t)id, &flags, l->err);
        free(content);
        if (st) return st;
    }
    return ST_OK;
}

/* The needles and their tries; last, because side files may add tokens. */
static enum status finish_added(struct tokenizer *t, struct err *err)
{
    enum status st = ST_OK;
    for (size_t i = 0; i < t->added_count && !st; i++) {
        struct tok_added *a = &t->added[i];
        struct tok_textbuf buf = {.mixed = false};
        a->content = t->literals + t->literal[a->id].at;
        a->len = t->literal[a->id].len;
        struct tok_text text = {.s = (const uint8_t *)a->content, .len = a->len};
        if (a->normalized) st = tok__normalize(t->norms, t->norm_count, &text, true, &buf);
        const void *needle = a->normalized ? buf.s : text.s;
        a->needle_len = a->normalized ? buf.len : a->len;
        a->needle = malloc(a->needle_len + 1);
        if (!a->needle) st = ST_NOMEM;
        else if (a->needle_len) memcpy(a->needle, needle, a->needle_len);
        tok__textbuf_fini(&buf);
    }
    if (!st) st = tok__build_trie(&t->raw_trie, t->added, t->added_count, false);
    if (!st) st = tok__build_trie(&t->normal_trie, t->added, t->added_count, true);
    return st ? err_set(err, st, "added_tokens: %s", status_name(st)) : ST_OK;
}

/* ---- the model ---- */

static bool absent_or_empty(struct tok_loader *l, uint32_t node, const char *key)
{
    uint32_t v = json_get_live(l->d, node, key);
    return v == JSON_NONE || json_str_eq(l->d, v, "");
}

static enum status read_model_options(struct tok_loader *l, uint32_t model)
{
    struct tokenizer *t = l->t;
    if (json_get_live(l->d, model, "type") != JSON_NONE && !type_is(l, model, "BPE"))
        return unsupported_type(l, "model", model);
    double dropout = 0;
    uint32_t v = json_get_live(l->d, model, "dropout");
    if (v != JSON_NONE && (!json_double(l->d, v, &dropout) || dropout != 0))
        return err_set(l->err, ST_UNSUPPORTED, "model: dropout is not supported");
    if (!absent_or_empty(l, model, "continuing_subword_prefix"))
        return err_set(l->err, ST_UNSUPPORTED, "model: continuing_subword_prefix is not supported");
    if (!absent_or_empty(l, model, "end_of_word_suffix"))
        return err_set(l->err, ST_UNSUPPORTED, "model: end_of_word_suffix is not supported");
    enum status st = tok__get_bool(l, model, "model", "fuse_unk", false, &t->fuse_unk);
    if (!st) st = tok__get_bool(l, model, "model", "byte_fallback", false, &t->byte_fallback);
    if (!st) st = tok__get_bool(l, model, "model", "ignore_merges", false, &t->ignore_merges);
    return st;
}

static enum status read_model(struct tok_loader *l, uint32_t model, uint32_t added)
{
    struct tokenizer *t = l->t;
    if (json_kind(l->d, model) != JSON_OBJECT) return err_set(l->err, ST_FORMAT, "model is not an object");
    enum status st = read_model_options(l, model);
    if (!st) st = tok__read_vocab(t, l->d, json_get_live(l->d, model, "vocab"), added, l->err);
    if (!st) st = tok__read_merges(t, l->d, json_get_live(l->d, model, "merges"), l->err);
    if (st) return st;
    t->unk_id = TOK_NO_ID;
    if (json_get_live(l->d, model, "unk_token") == JSON_NONE) return ST_OK;
    char *unk = NULL;
    size_t len;
    if ((st = tok__get_string(l, model, "model", "unk_token", &unk, &len))) return st;
    uint32_t id = tok__literal_id(t, unk, len);
    if (id == TOK_NO_ID || !(t->flags[id] & TOK_IN_MODEL))
        st = err_set(l->err, ST_FORMAT, "model: the unk_token \"%.80s\" is not in the vocabulary", unk);
    else t->unk_id = id;
    free(unk);
    return st;
}

static enum status read_tokenizer(struct tok_loader *l)
{
    uint32_t version = json_get(l->d, 0, "version"), added = json_get_live(l->d, 0, "added_tokens");
    if (json_kind(l->d, 0) != JSON_OBJECT) return err_set(l->err, ST_FORMAT, "not an object");
    if (!utf8_valid(l->d->text, l->d->len)) return err_set(l->err, ST_FORMAT, "not UTF-8");
    if (version != JSON_NONE && !json_str_eq(l->d, version, "1.0"))
        return err_set(l->err, ST_UNSUPPORTED, "a version other than \"1.0\" is not supported");
    enum status st = each_component(l, json_get_live(l->d, 0, "normalizer"), "normalizer", "normalizers", 0,
                                    add_normalizer);
    if (!st)
        st = each_component(l, json_get_live(l->d, 0, "pre_tokenizer"), "pre_tokenizer", "pretokenizers", 0,
                            add_pre_tokenizer);
    if (!st) st = each_component(l, json_get_live(l->d, 0, "decoder"), "decoder", "decoders", 0, add_decoder);
    if (!st && json_get_live(l->d, 0, "decoder") == JSON_NONE)
        st = err_set(l->err, ST_UNSUPPORTED, "no decoder: not supported");
    if (!st && l->t->decode_byte_level != l->t->byte_level)
        st = err_set(l->err, ST_UNSUPPORTED,
                     "pre_tokenizer and decoder: one of them is ByteLevel and the other is not");
    if (!st) st = read_model(l, json_get_live(l->d, 0, "model"), added);
    if (!st) st = read_added(l, added);
    if (!st)
        st = each_component(l, json_get_live(l->d, 0, "post_processor"), "post_processor", "processors", 0,
                            add_post_processor);
    return st;
}

/* ---- all of it ---- */

/* A token of the vocabulary that isn't an added one becomes one, as with transformers' add_tokens. */
static enum status add_extra(struct tokenizer *t, const struct tok_extra *x, struct err *err)
{
    enum status st = ST_OK;
    for (uint32_t i = 0; i < x->count && !st; i++) {
        char number[16] = "", *content;
        if (x->digits) snprintf(number, sizeof number, "%0*u", (int)x->digits, i);
        int n = asprintf(&content, "%s%s%s", x->prefix, number, x->suffix);
        if (n < 0) return err_nomem(err, "added tokens");
        uint32_t id = tok__literal_id(t, content, (size_t)n);
        struct tok_added flags = {.special = x->special, .normalized = !x->special};
        free(content);
        if (id != TOK_NO_ID && !(t->flags[id] & TOK_ADDED)) st = tok__put_added(t, id, &flags, err);
    }
    return st;
}

enum status tok__finish(struct tokenizer *t, const struct tok_extra *extra, size_t extra_count,
                        struct err *err)
{
    enum status st = ST_OK;
    uni_init();
    for (size_t i = 0; i < extra_count && !st; i++) st = add_extra(t, &extra[i], err);
    if (!st) st = finish_added(t, err);
    return st ? st : tok__finish_vocab(t, err);
}

enum status tok_load_extra(const char *dir, const struct tok_extra *extra, size_t extra_count,
                           struct tokenizer **out, struct err *err)
{
    struct tokenizer *t = calloc(1, sizeof *t);
    struct json_doc doc = {0};
    char *path = NULL;
    enum status st =
        t ? json_load(dir, "tokenizer.json", FILE_BYTES_MAX, &doc, &path, err) : err_nomem(err, dir);
    if (st == ST_NOT_FOUND) st = tok__load_vocab_merges(dir, &doc, err);
    if (!st) {
        struct tok_loader l = {&doc, t, err};
        if ((st = read_tokenizer(&l))) err_prefix(err, st, "%s", path);
        json_free(&doc);
        if (!st) st = tok__read_side_files(t, dir, err);
        if (!st && (st = tok__finish(t, extra, extra_count, err))) err_prefix(err, st, "%s", path);
    }
    free(path);
    if (st) tok_free(t);
    else *out = t;
    return st;
}

void tok_free(struct tokenizer *t)
{
    if (!t) return;
    free(t->literal);
    free(t->bytes);
    free(t->word);
    free(t->flags);
    free(t->literals);
    free(t->texts);
    id_table_free(&t->by_literal);
    id_table_free(&t->by_word);
    free(t->merges.slots);
    free(t->merges.merged);
    free(t->joints);
    for (size_t i = 0; i < sizeof t->char_pages / sizeof *t->char_pages; i++) free(t->char_pages[i]);
    for (size_t i = 0; i < TOK_STEPS_MAX; i++) {
        free(t->norms[i].from);
        free(t->norms[i].to);
        free(t->decode_replace[i].from);
        free(t->decode_replace[i].to);
        free(t->splits[i].literal);
    }
    for (size_t i = 0; i < sizeof t->spaces / sizeof *t->spaces; i++) {
        free(t->spaces[i].from);
        free(t->spaces[i].to);
    }
    for (size_t i = 0; i < t->added_count; i++) free(t->added[i].needle);
    free(t->added);
    tok__trie_fini(&t->raw_trie);
    tok__trie_fini(&t->normal_trie);
    for (size_t i = 0; i < t->role_count; i++) {
        free(t->roles[i].role);
        free(t->roles[i].content);
    }
    free(t->roles);
    free(t);
}
