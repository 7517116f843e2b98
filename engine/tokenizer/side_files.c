/* tokenizer_config.json, special_tokens_map.json and added_tokens.json: more added tokens, other flags, the
 * names of special tokens, as transformers' AutoTokenizer takes them. A token that the vocabulary lacks gets
 * the next id, whatever id a file gives it. Runs at start-up only. */
#include "config/base/assert.h"
#include "config/base/json.h"
#include "config/base/list.h"
#include "config/base/utf8.h"
#include "engine/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

#define SIDE_FILE_BYTES_MAX ((size_t)64 << 20)

/* ---- named tokens ---- */

enum status tok__put_role(struct tokenizer *t, const char *role, const char *content, size_t len,
                          const struct tok_added *flags, struct err *err)
{
    ASSERT(role[0] && flags->special);
    size_t i = 0;
    while (i < t->role_count && strcmp(t->roles[i].role, role) != 0) i++;
    if (!LIST_RESERVE(t->roles, t->role_cap, i + 1)) return err_nomem(err, "special tokens");
    struct tok_role *r = &t->roles[i];
    if (i < t->role_count) free(r->content);
    else *r = (struct tok_role){.role = strdup(role)};
    t->role_count += i == t->role_count;
    r->content = strndup(content, len);
    r->flags = *flags;
    return r->role && r->content ? ST_OK : err_nomem(err, "special tokens");
}

/* Makes it an added token, unless it is one of the first `listed` ones. */
static enum status add_special(struct tokenizer *t, const struct tok_role *token, size_t listed,
                               struct err *err)
{
    uint32_t id;
    if (!token->content[0]) return ST_OK;
    enum status st = tok__add_token(t, token->content, strlen(token->content), &id, err);
    for (size_t i = 0; i < listed && !st; i++)
        if (t->added[i].id == id) return ST_OK;
    return st ? st : tok__put_added(t, id, &token->flags, err);
}

/* A listed token that has a role is special, whatever its entry says. */
static void make_special(struct tokenizer *t, const struct tok_role *role)
{
    uint32_t id = tok__literal_id(t, role->content, strlen(role->content));
    for (size_t i = 0; i < t->added_count; i++)
        if (t->added[i].id == id && t->added[i].listed) {
            t->added[i].special = true;
            t->flags[id] |= TOK_SPECIAL;
        }
}

enum { RANKS = 8 };
/* Below RANKS: transformers adds the tokens of lower ranks first. */
static size_t rank(const struct tok_role *role)
{
    static const char *const first[RANKS - 1] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                 "pad_token", "cls_token", "mask_token"};
    size_t i = 0;
    while (i < RANKS - 1 && strcmp(role->role, first[i]) != 0) i++;
    return i;
}

enum status tok__add_roles(struct tokenizer *t, struct err *err)
{
    enum status st = ST_OK;
    size_t listed = t->added_count;
    for (size_t i = 0; i < t->role_count; i++) make_special(t, &t->roles[i]);
    for (size_t k = 0; k < RANKS; k++)
        for (size_t i = 0; i < t->role_count && !st; i++)
            if (rank(&t->roles[i]) == k) st = add_special(t, &t->roles[i], listed, err);
    return st;
}

/* What the files have been read into, besides the tokenizer. */
struct side_files {
    struct tok_loader l;    /* l.d: the file that is read */
    struct tok_role *extra; /* special tokens without a name */
    size_t extra_count, extra_cap;
};

/* A string or an object with content and flags; other values are no token. role NULL: it has no name. */
static enum status read_special(struct side_files *f, const char *role, uint32_t value)
{
    const struct json_doc *d = f->l.d;
    bool object = json_kind(d, value) == JSON_OBJECT;
    uint32_t text = object ? json_get_live(d, value, "content") : value;
    struct tok_added flags = {.special = true};
    if (json_kind(d, text) != JSON_STRING) return ST_OK;
    enum status st = object ? tok__read_flags(&f->l, value, "special tokens", true, &flags) : ST_OK;
    if (st) return st;
    char *content = json_str_dup(d, text, NULL);
    if (!content) return err_nomem(f->l.err, "special tokens");
    if (role) {
        flags.special = true;
        st = tok__put_role(f->l.t, role, content, strlen(content), &flags, f->l.err);
        free(content);
        return st;
    }
    if (!LIST_RESERVE(f->extra, f->extra_cap, f->extra_count + 1)) {
        free(content);
        return err_nomem(f->l.err, "special tokens");
    }
    f->extra[f->extra_count++] = (struct tok_role){.content = content, .flags = flags};
    return ST_OK;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n > m && strcmp(s + n - m, end) == 0;
}

/* Every "*_token" of an object; with `all`, every key. */
static enum status read_roles(struct side_files *f, uint32_t object, bool all)
{
    uint32_t key = json_first(f->l.d, object);
    enum status st = ST_OK;
    for (uint32_t i = 0; i < json_count(f->l.d, object) && !st; i++) {
        uint32_t value = json_next(f->l.d, key);
        char *name = json_str_dup(f->l.d, key, NULL);
        if (!name) return err_nomem(f->l.err, "special tokens");
        if (*name && (all || ends_with(name, "_token"))) st = read_special(f, name, value);
        free(name);
        key = json_next(f->l.d, value);
    }
    return st;
}

/* The names of a file, and its lists and objects of further special tokens; the older list counts only
 * without the newer one. */
static enum status read_names(struct side_files *f)
{
    static const char *const keys[] = {"extra_special_tokens", "additional_special_tokens",
                                       "model_specific_special_tokens"};
    enum status st = read_roles(f, 0, false);
    bool listed = false;
    for (size_t k = 0; k < sizeof keys / sizeof *keys && !st; k++) {
        uint32_t node = json_get_live(f->l.d, 0, keys[k]), item = json_first(f->l.d, node);
        if (json_kind(f->l.d, node) == JSON_OBJECT) st = read_roles(f, node, true);
        if (json_kind(f->l.d, node) != JSON_ARRAY || listed) continue;
        listed = json_count(f->l.d, node) > 0;
        for (uint32_t i = 0; i < json_count(f->l.d, node) && !st; i++, item = json_next(f->l.d, item))
            st = read_special(f, NULL, item);
    }
    return st;
}

/* ---- listed tokens ---- */

/* added_tokens_decoder, a value: its flags replace those of tokenizer.json. */
static enum status put_described(struct side_files *f, uint32_t value)
{
    struct tok_added flags = {.listed = true};
    char *content = NULL;
    size_t len = 0;
    uint32_t id;
    enum status st = tok__read_flags(&f->l, value, "added_tokens_decoder", false, &flags);
    if (!st) st = tok__get_string(&f->l, value, "added_tokens_decoder", "content", &content, &len);
    if (!st && len > 0) st = tok__add_token(f->l.t, content, len, &id, f->l.err);
    if (!st && len > 0) st = tok__put_added(f->l.t, id, &flags, f->l.err);
    free(content);
    return st;
}

static bool holds(const struct tok_role *list, size_t count, const char *content)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(list[i].content, content) == 0) return true;
    return false;
}

/* added_tokens.json, a pair: special if the other files name it. Of two ids the higher one's flags count. */
static enum status put_named(struct side_files *f, uint32_t key, uint64_t listed)
{
    char *content = json_str_dup(f->l.d, key, NULL);
    if (!content) return err_nomem(f->l.err, "added tokens");
    struct tokenizer *t = f->l.t;
    size_t len = strlen(content);
    bool special = holds(t->roles, t->role_count, content) || holds(f->extra, f->extra_count, content);
    struct tok_added flags = {.special = special, .normalized = !special};
    uint32_t id;
    enum status st = len > 0 ? tok__add_token(t, content, len, &id, f->l.err) : ST_OK;
    if (!st && len > 0 && (listed > id || !(t->flags[id] & TOK_ADDED)))
        st = tok__put_added(t, id, &flags, f->l.err);
    free(content);
    return st;
}

struct listed {
    uint64_t id;
    uint32_t key, value;
};

static int by_id(const void *a, const void *b)
{
    const struct listed *x = a, *y = b;
    if (x->id != y->id) return x->id < y->id ? -1 : 1;
    return x->key < y->key ? -1 : x->key > y->key;
}

/* Adds tokens in the order of their ids. decoder: {"id": {"content": ...}}; otherwise {"content": id}. */
static enum status add_listed(struct side_files *f, uint32_t object, bool decoder)
{
    const struct json_doc *d = f->l.d;
    uint32_t key = json_first(d, object), count = json_count(d, object);
    struct listed *list = calloc(count + (size_t)1, sizeof *list);
    enum status st = list ? ST_OK : err_nomem(f->l.err, "added tokens");
    if (!st && object != JSON_NONE && json_kind(d, object) != JSON_OBJECT)
        st = err_set(f->l.err, ST_FORMAT, "added_tokens_decoder is not an object");
    for (uint32_t i = 0; i < count && !st; i++) {
        size_t len;
        list[i].key = key;
        list[i].value = json_next(d, key);
        if (decoder) list[i].id = strtoull(json_raw(d, key, &len), NULL, 10);
        else if (!json_uint(d, list[i].value, &list[i].id))
            st = err_set(f->l.err, ST_FORMAT, "a token without a number as its id");
        key = json_next(d, list[i].value);
    }
    if (!st) qsort(list, count, sizeof *list, by_id);
    for (uint32_t i = 0; i < count && !st; i++)
        st = decoder ? put_described(f, list[i].value) : put_named(f, list[i].key, list[i].id);
    free(list);
    return st;
}

/* ---- the files ---- */

static enum status read_config(struct side_files *f)
{
    enum status st = add_listed(f, json_get_live(f->l.d, 0, "added_tokens_decoder"), true);
    return st ? st : read_names(f);
}

static enum status read_added(struct side_files *f)
{
    return add_listed(f, 0, false);
}

/* Reads a file if it is there; *decoder, if not NULL: it has an added_tokens_decoder. */
static enum status read_file(struct side_files *f, const char *dir, const char *name, bool *decoder,
                             enum status (*read)(struct side_files *f))
{
    struct json_doc doc = {0};
    char *path;
    enum status st = json_load(dir, name, SIDE_FILE_BYTES_MAX, &doc, &path, f->l.err);
    if (!st) {
        f->l.d = &doc;
        if (json_kind(&doc, 0) != JSON_OBJECT) st = err_set(f->l.err, ST_FORMAT, "not an object");
        else if (!utf8_valid(doc.text, doc.len)) st = err_set(f->l.err, ST_FORMAT, "not UTF-8");
        else st = read(f);
        if (st) err_prefix(f->l.err, st, "%s", path);
        if (decoder) *decoder = json_get(&doc, 0, "added_tokens_decoder") != JSON_NONE;
        f->l.d = NULL;
        json_free(&doc);
    }
    free(path);
    return st == ST_NOT_FOUND ? ST_OK : st;
}

enum status tok__read_side_files(struct tokenizer *t, const char *dir, struct err *err)
{
    struct side_files f = {.l = {.t = t, .err = err}};
    bool decoder = false;
    enum status st = read_file(&f, dir, "tokenizer_config.json", &decoder, read_config);
    /* AutoTokenizer reads the older files only if tokenizer_config.json has no added_tokens_decoder, and then
     * prefers them. */
    if (!st && !decoder) st = read_file(&f, dir, "special_tokens_map.json", NULL, read_names);
    if (!st && !decoder) st = read_file(&f, dir, "added_tokens.json", NULL, read_added);
    for (size_t i = 0; i < t->added_count; i++) t->added[i].listed |= !decoder;
    size_t listed = t->added_count;
    if (!st) st = tok__add_roles(t, err);
    for (size_t i = 0; i < f.extra_count && !st; i++) st = add_special(t, &f.extra[i], listed, err);
    for (size_t i = 0; i < f.extra_count; i++) free(f.extra[i].content);
    free(f.extra);
    return st;
}
