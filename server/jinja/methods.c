/* Methods of strings, dicts, lists and tuples, loops, cyclers (one table says which types have which;
 * Python's semantics), and the global functions. */
#include "config/base/utf8.h"
#include "server/jinja/internal.h"

#include <ctype.h>
#include <time.h>

#define ON(t_)  (1u << (t_))
#define ARG_MAX 4

/* METHOD, "name", types that have it, how many arguments it takes and needs, their names: relevant only where
 * Python allows keywords; positional-only ones have names that no template can write. */
#define METHODS(M)                                                                                           \
    M(CAPITALIZE, "capitalize", ON(JN_STR), 0, 0, 0)                                                         \
    M(CASEFOLD, "casefold", ON(JN_STR), 0, 0, 0)                                                             \
    M(CENTER, "center", ON(JN_STR), 2, 1, "-", "-")                                                          \
    M(COUNT, "count", ON(JN_STR), 3, 1, "-", "-", "-")                                                       \
    M(ENDSWITH, "endswith", ON(JN_STR), 3, 1, "-", "-", "-")                                                 \
    M(FIND, "find", ON(JN_STR), 3, 1, "-", "-", "-")                                                         \
    M(FORMAT, "format", ON(JN_STR), 0, 0, 0)                                                                 \
    M(FORMAT_MAP, "format_map", ON(JN_STR), 0, 0, 0)                                                         \
    M(INDEX, "index", ON(JN_STR), 3, 1, "-", "-", "-")                                                       \
    M(ISALNUM, "isalnum", ON(JN_STR), 0, 0, 0)                                                               \
    M(ISALPHA, "isalpha", ON(JN_STR), 0, 0, 0)                                                               \
    M(ISASCII, "isascii", ON(JN_STR), 0, 0, 0)                                                               \
    M(ISDECIMAL, "isdecimal", ON(JN_STR), 0, 0, 0)                                                           \
    M(ISDIGIT, "isdigit", ON(JN_STR), 0, 0, 0)                                                               \
    M(ISLOWER, "islower", ON(JN_STR), 0, 0, 0)                                                               \
    M(ISSPACE, "isspace", ON(JN_STR), 0, 0, 0)                                                               \
    M(ISUPPER, "isupper", ON(JN_STR), 0, 0, 0)                                                               \
    M(JOIN, "join", ON(JN_STR), 1, 1, "-")                                                                   \
    M(LJUST, "ljust", ON(JN_STR), 2, 1, "-", "-")                                                            \
    M(LOWER, "lower", ON(JN_STR), 0, 0, 0)                                                                   \
    M(LSTRIP, "lstrip", ON(JN_STR), 1, 0, "-")                                                               \
    M(PARTITION, "partition", ON(JN_STR), 1, 1, "-")                                                         \
    M(REMOVEPREFIX, "removeprefix", ON(JN_STR), 1, 1, "-")                                                   \
    M(REMOVESUFFIX, "removesuffix", ON(JN_STR), 1, 1, "-")                                                   \
    M(REPLACE, "replace", ON(JN_STR), 3, 2, "-", "-", "-")                                                   \
    M(RFIND, "rfind", ON(JN_STR), 3, 1, "-", "-", "-")                                                       \
    M(RINDEX, "rindex", ON(JN_STR), 3, 1, "-", "-", "-")                                                     \
    M(RJUST, "rjust", ON(JN_STR), 2, 1, "-", "-")                                                            \
    M(RPARTITION, "rpartition", ON(JN_STR), 1, 1, "-")                                                       \
    M(RSPLIT, "rsplit", ON(JN_STR), 2, 0, "sep", "maxsplit")                                                 \
    M(RSTRIP, "rstrip", ON(JN_STR), 1, 0, "-")                                                               \
    M(SPLIT, "split", ON(JN_STR), 2, 0, "sep", "maxsplit")                                                   \
    M(SPLITLINES, "splitlines", ON(JN_STR), 1, 0, "keepends")                                                \
    M(STARTSWITH, "startswith", ON(JN_STR), 3, 1, "-", "-", "-")                                             \
    M(STRIP, "strip", ON(JN_STR), 1, 0, "-")                                                                 \
    M(SWAPCASE, "swapcase", ON(JN_STR), 0, 0, 0)                                                             \
    M(TITLE, "title", ON(JN_STR), 0, 0, 0)                                                                   \
    M(UPPER, "upper", ON(JN_STR), 0, 0, 0)                                                                   \
    M(ZFILL, "zfill", ON(JN_STR), 1, 1, "-")                                                                 \
    M(GET, "get", ON(JN_DICT), 2, 1, "-", "-")                                                               \
    M(ITEMS, "items", ON(JN_DICT), 0, 0, 0)                                                                  \
    M(KEYS, "keys", ON(JN_DICT), 0, 0, 0)                                                                    \
    M(VALUES, "values", ON(JN_DICT), 0, 0, 0)                                                                \
    M(COPY, "copy", ON(JN_DICT) | ON(JN_LIST), 0, 0, 0)                                                      \
    M(SEQ_COUNT, "count", ON(JN_LIST) | ON(JN_TUPLE) | ON(JN_RANGE), 1, 1, "-")                              \
    M(SEQ_INDEX, "index", ON(JN_LIST) | ON(JN_TUPLE) | ON(JN_RANGE), 1, 1, "-")                              \
    M(CYCLE, "cycle", ON(JN_LOOP), 0, 0, 0)                                                                  \
    M(CHANGED, "changed", ON(JN_LOOP), 0, 0, 0)                                                              \
    M(NEXT, "next", ON(JN_CYCLER), 0, 0, 0)                                                                  \
    M(RESET, "reset", ON(JN_CYCLER), 0, 0, 0)
#define M(id, ...) M_##id,
enum method_id { METHODS(M) };
#undef M
#define M(id, name, types, max, required, ...) {name, types, max, required, {__VA_ARGS__}},
static const struct method {
    const char *name;
    uint32_t types;
    uint32_t args_max, required;
    const char *params[ARG_MAX];
} methods[] = {METHODS(M)};
#undef M

static bool name_is(const struct jinja_str *s, const char *name)
{
    return s->len == strlen(name) && memcmp(s->p, name, s->len) == 0;
}

int32_t jn_find_method(struct jinja_value self, const struct jinja_str *name)
{
    static const char *const list_forbidden[] = {"append", "clear",  "pop",    "reverse", "insert",
                                                 "sort",   "extend", "remove", NULL};
    static const char *const dict_forbidden[] = {"clear",  "pop",      "popitem", "setdefault",
                                                 "update", "fromkeys", NULL};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if ((methods[i].types & ON(self.type)) && name_is(name, methods[i].name)) return (int32_t)i;
    const char *const *f = self.type == JN_LIST   ? list_forbidden
                           : self.type == JN_DICT ? dict_forbidden
                                                  : NULL;
    for (; f && *f; f++)
        if (name_is(name, *f)) return -2;
    return -1;
}

/* ---- strings: searching ---- */

/* The optional [start, end) of find, count, startswith ... in bytes of s; false if the window can't contain a
 * match. */
static bool window(struct jinja_ctx *c, const struct jinja_str *s, const struct jinja_value *args,
                   size_t *from, size_t *to)
{
    int64_t n = s->chars, a = 0, b = n;
    if (args[0].type != JN_MISSING && args[0].type != JN_NONE) a = jn_want_int(c, "start", args[0]);
    if (args[1].type != JN_MISSING && args[1].type != JN_NONE) b = jn_want_int(c, "end", args[1]);
    if (a < 0) a = a + n < 0 ? 0 : a + n;
    if (b < 0) b = b + n < 0 ? 0 : b + n;
    if (b > n) b = n;
    if (a > b) return false;
    *from = jn_byte_of_char(s, (size_t)a);
    *to = jn_byte_of_char(s, (size_t)b);
    return true;
}

static const char *last_hit(struct jinja_ctx *c, const char *p, size_t len, const struct jinja_str *sub)
{
    if (sub->len > len) return NULL;
    for (const char *q = p + (len - sub->len);; q--) {
        if (!sub->len) return q;
        if (*q == *sub->p) {
            jn_charge(c, sub->len);
            if (memcmp(q, sub->p, sub->len) == 0) return q;
        }
        if (q == p) return NULL;
    }
}

static struct jinja_value find(struct jinja_ctx *c, const struct jinja_str *s, const struct jinja_value *arg,
                               bool last, bool must)
{
    const struct jinja_str *sub = jn_want_str(c, "find", arg[0]);
    size_t from, to;
    const char *hit = NULL;
    jn_charge(c, s->len);
    if (window(c, s, arg + 1, &from, &to)) {
        if (last) hit = last_hit(c, s->p + from, to - from, sub);
        else hit = sub->len ? memmem(s->p + from, to - from, sub->p, sub->len) : s->p + from;
    }
    if (!hit && must) jn_error(c, "substring not found");
    return JN_V(JN_INT, i, hit ? (int64_t)jn_char_of_byte(s, (size_t)(hit - s->p)) : -1);
}

static struct jinja_value count_sub(struct jinja_ctx *c, const struct jinja_str *s,
                                    const struct jinja_value *arg)
{
    const struct jinja_str *sub = jn_want_str(c, "count", arg[0]);
    size_t from, to;
    int64_t n = 0;
    jn_charge(c, s->len);
    if (!window(c, s, arg + 1, &from, &to)) return JN_V(JN_INT, i, 0);
    if (!sub->len) return JN_V(JN_INT, i, (int64_t)jn_count_chars(s->p + from, to - from) + 1);
    for (const char *hit; (hit = memmem(s->p + from, to - from, sub->p, sub->len)) != NULL; n++)
        from = (size_t)(hit - s->p) + sub->len;
    return JN_V(JN_INT, i, n);
}

static bool has_affix(const struct jinja_str *s, size_t from, size_t to, const struct jinja_str *affix,
                      bool end)
{
    if (affix->len > to - from) return false;
    return memcmp(s->p + (end ? to - affix->len : from), affix->p, affix->len) == 0;
}

static struct jinja_value starts_ends(struct jinja_ctx *c, const struct jinja_str *s,
                                      const struct jinja_value *arg, bool end)
{
    size_t from, to;
    bool open = window(c, s, arg + 1, &from, &to), hit = false;
    if (arg[0].type == JN_TUPLE) {
        for (uint32_t i = 0; i < arg[0].u.l->count && !hit; i++)
            hit = open && has_affix(s, from, to, jn_want_str(c, "affix", arg[0].u.l->v[i]), end);
    } else {
        const struct jinja_str *affix = jn_want_str(c, "first arg", arg[0]);
        hit = open && has_affix(s, from, to, affix, end);
    }
    return JN_V(JN_BOOL, i, hit);
}

/* ---- strings: splitting ---- */

static void split_space(struct jinja_ctx *c, const struct jinja_str *s, int64_t max, struct jinja_list *out)
{
    const char *p = s->p, *end = s->p + s->len, *next;
    for (;;) {
        while (p < end && jn_is_space(jn_decode(p, end, &next))) p = next;
        if (p >= end) return;
        const char *q = p;
        if (max-- <= 0) { /* the rest, with the white space at its end */
            jn_list_push(c, out, jn_slice_bytes(c, s, (size_t)(p - s->p), s->len));
            return;
        }
        while (q < end && !jn_is_space(jn_decode(q, end, &next))) q = next;
        jn_list_push(c, out, jn_slice_bytes(c, s, (size_t)(p - s->p), (size_t)(q - s->p)));
        p = q;
    }
}

static void rsplit_space(struct jinja_ctx *c, const struct jinja_str *s, int64_t max, struct jinja_list *out)
{
    struct jinja_list all = {0};
    split_space(c, s, INT64_MAX, &all);
    uint32_t keep = max < (int64_t)all.count ? (uint32_t)max : all.count;
    if (keep < all.count) { /* everything before the last `keep` words is one element */
        const struct jinja_str *last = all.v[all.count - keep - 1].u.s;
        jn_list_push(c, out, jn_slice_bytes(c, s, 0, (size_t)(last->p - s->p) + last->len));
    }
    for (uint32_t i = all.count - keep; i < all.count; i++) jn_list_push(c, out, all.v[i]);
}

static void split_sep(struct jinja_ctx *c, const struct jinja_str *s, const struct jinja_str *sep,
                      int64_t max, struct jinja_list *out)
{
    size_t from = 0;
    while (max-- > 0) {
        const char *hit = memmem(s->p + from, s->len - from, sep->p, sep->len);
        if (!hit) break;
        jn_list_push(c, out, jn_slice_bytes(c, s, from, (size_t)(hit - s->p)));
        from = (size_t)(hit - s->p) + sep->len;
        jn_charge(c, 64);
    }
    jn_list_push(c, out, jn_slice_bytes(c, s, from, s->len));
}

static void rsplit_sep(struct jinja_ctx *c, const struct jinja_str *s, const struct jinja_str *sep,
                       int64_t max, struct jinja_list *out)
{
    struct jinja_list back = {0};
    size_t to = s->len;
    while (max-- > 0) {
        const char *hit = last_hit(c, s->p, to, sep);
        if (!hit) break;
        jn_list_push(c, &back, jn_slice_bytes(c, s, (size_t)(hit - s->p) + sep->len, to));
        to = (size_t)(hit - s->p);
        jn_charge(c, 64);
    }
    jn_list_push(c, out, jn_slice_bytes(c, s, 0, to));
    for (uint32_t i = back.count; i > 0; i--) jn_list_push(c, out, back.v[i - 1]);
}

static struct jinja_value split(struct jinja_ctx *c, const struct jinja_str *s, const struct jinja_value *arg,
                                bool right)
{
    struct jinja_value out = jn_new_list(c, JN_LIST, 4);
    int64_t max = arg[1].type == JN_MISSING ? -1 : jn_want_int(c, "maxsplit", arg[1]);
    if (max < 0) max = INT64_MAX;
    jn_charge(c, s->len);
    if (arg[0].type == JN_MISSING || arg[0].type == JN_NONE) {
        if (right) rsplit_space(c, s, max, out.u.l);
        else split_space(c, s, max, out.u.l);
        return out;
    }
    const struct jinja_str *sep = jn_want_str(c, "separator", arg[0]);
    if (!sep->len) jn_error(c, "empty separator");
    if (right) rsplit_sep(c, s, sep, max, out.u.l);
    else split_sep(c, s, sep, max, out.u.l);
    return out;
}

static struct jinja_value partition(struct jinja_ctx *c, const struct jinja_str *s, struct jinja_value by,
                                    bool right)
{
    const struct jinja_str *sep = jn_want_str(c, "partition", by);
    struct jinja_value out = jn_new_list(c, JN_TUPLE, 3);
    if (!sep->len) jn_error(c, "empty separator");
    const char *hit = right ? last_hit(c, s->p, s->len, sep) : memmem(s->p, s->len, sep->p, sep->len);
    size_t at = hit ? (size_t)(hit - s->p) : right ? 0 : s->len, after = hit ? at + sep->len : at;
    jn_list_push(c, out.u.l, jn_slice_bytes(c, s, 0, at));
    jn_list_push(c, out.u.l, jn_slice_bytes(c, s, at, after));
    jn_list_push(c, out.u.l, jn_slice_bytes(c, s, after, s->len));
    return out;
}

static struct jinja_value join(struct jinja_ctx *c, const struct jinja_str *sep, struct jinja_value items)
{
    const struct jinja_list *l = jn_items_of(c, items);
    struct jn_sb sb = jn_sb_new(c);
    for (uint32_t i = 0; i < l->count; i++) {
        if (i) jn_sb_str(c, &sb, sep);
        jn_sb_str(c, &sb, jn_want_str(c, "sequence item", l->v[i]));
    }
    return jn_sb_value(c, &sb);
}

/* ---- strings: mapping, padding, classes ---- */

static struct jinja_value recase(struct jinja_ctx *c, const struct jinja_str *s, bool title)
{
    struct jn_sb sb = jn_sb_new(c);
    const char *end = s->p + s->len, *next;
    bool inside = false;
    for (const char *p = s->p; p < end; p = next) {
        uint32_t cp = jn_decode(p, end, &next);
        char out[4];
        int k = jn_case_of(cp);
        uint32_t to = title    ? (inside ? jn_to_lower(cp) : jn_to_title(cp))
                      : k == 1 ? jn_to_upper(cp)
                               : jn_to_lower(cp);
        inside = k != 0;
        jn_sb_bytes(c, &sb, out, utf8_encode(to, out), jn_origin_at(s, (size_t)(p - s->p)));
    }
    return jn_sb_value(c, &sb);
}

static void pad(struct jinja_ctx *c, struct jn_sb *sb, const struct jinja_str *fill, int64_t count)
{
    for (; count > 0; count--) jn_sb_str(c, sb, fill);
}

static struct jinja_value justify(struct jinja_ctx *c, const struct jinja_str *s,
                                  const struct jinja_value *arg, int32_t method)
{
    int64_t width = jn_want_int(c, "width", arg[0]), room = width - s->chars, left;
    struct jinja_value space = jn_lit(c, method == M_ZFILL ? "0" : " ");
    const struct jinja_str *fill =
        method != M_ZFILL && arg[1].type != JN_MISSING ? jn_want_str(c, "fill character", arg[1]) : space.u.s;
    if (fill->chars != 1) jn_error(c, "the fill character must be exactly one character long");
    if (room < 0) room = 0;
    left = method == M_LJUST ? 0 : method == M_CENTER ? room / 2 + (room & width & 1) : room;
    struct jn_sb sb = jn_sb_new(c);
    size_t sign = method == M_ZFILL && s->len && (s->p[0] == '+' || s->p[0] == '-') ? 1 : 0;
    jn_sb_slice(c, &sb, s, 0, sign);
    pad(c, &sb, fill, left);
    jn_sb_slice(c, &sb, s, sign, s->len);
    pad(c, &sb, fill, room - left);
    return jn_sb_value(c, &sb);
}

static bool all_chars(const struct jinja_str *s, int32_t method)
{
    const char *end = s->p + s->len;
    if (!s->len) return method == M_ISASCII;
    for (const char *p = s->p; p < end;) {
        uint32_t cp = jn_decode(p, end, &p);
        bool ok = method == M_ISALPHA   ? jn_is_alpha(cp)
                  : method == M_ISALNUM ? cp != '_' && jn_is_word(cp)
                  : method == M_ISSPACE ? jn_is_space(cp)
                  : method == M_ISASCII ? cp < 0x80
                                        : jn_is_decimal(cp);
        if (!ok) return false;
    }
    return true;
}

static struct jinja_value remove_affix(struct jinja_ctx *c, const struct jinja_str *s, struct jinja_value v,
                                       bool end)
{
    const struct jinja_str *affix = jn_want_str(c, "affix", v);
    if (!has_affix(s, 0, s->len, affix, end)) return jn_slice_bytes(c, s, 0, s->len);
    return end ? jn_slice_bytes(c, s, 0, s->len - affix->len) : jn_slice_bytes(c, s, affix->len, s->len);
}

static struct jinja_value call_string(struct jinja_ctx *c, const struct jinja_str *s, int32_t method,
                                      const struct jinja_value *arg)
{
    switch (method) {
    case M_CAPITALIZE: return jn_capitalize(c, s);
    case M_CASEFOLD:
    case M_LOWER: return jn_lower(c, s);
    case M_UPPER: return jn_upper(c, s);
    case M_TITLE:
    case M_SWAPCASE: return recase(c, s, method == M_TITLE);
    case M_CENTER:
    case M_LJUST:
    case M_RJUST:
    case M_ZFILL: return justify(c, s, arg, method);
    case M_COUNT: return count_sub(c, s, arg);
    case M_STARTSWITH:
    case M_ENDSWITH: return starts_ends(c, s, arg, method == M_ENDSWITH);
    case M_FIND:
    case M_RFIND:
    case M_INDEX:
    case M_RINDEX:
        return find(c, s, arg, method == M_RFIND || method == M_RINDEX,
                    method == M_INDEX || method == M_RINDEX);
    case M_ISLOWER:
    case M_ISUPPER: return JN_V(JN_BOOL, i, jn_str_cased(c, s) == (method == M_ISLOWER ? 1 : 2));
    case M_JOIN: return join(c, s, arg[0]);
    case M_STRIP:
    case M_LSTRIP:
    case M_RSTRIP: return jn_strip(c, s, arg[0], method == M_STRIP ? 3 : method == M_LSTRIP ? 1 : 2);
    case M_PARTITION:
    case M_RPARTITION: return partition(c, s, arg[0], method == M_RPARTITION);
    case M_REMOVEPREFIX:
    case M_REMOVESUFFIX: return remove_affix(c, s, arg[0], method == M_REMOVESUFFIX);
    case M_REPLACE:
        return jn_replace(c, s, jn_want_str(c, "replace", arg[0]), jn_want_str(c, "replace", arg[1]),
                          arg[2].type == JN_MISSING ? -1 : jn_want_int(c, "count", arg[2]));
    case M_SPLIT:
    case M_RSPLIT: return split(c, s, arg, method == M_RSPLIT);
    case M_SPLITLINES: return jn_splitlines(c, s, arg[0].type != JN_MISSING && jn_truth(arg[0]));
    default: jn_charge(c, s->len); return JN_V(JN_BOOL, i, all_chars(s, method));
    }
}

/* ---- containers ---- */

static struct jinja_value call_sequence(struct jinja_ctx *c, struct jinja_value self, int32_t method,
                                        struct jinja_value item)
{
    const struct jinja_list *l = jn_items_of(c, self);
    int64_t n = 0;
    for (uint32_t i = 0; i < l->count; i++) {
        if (!jn_equal(c, l->v[i], item)) continue;
        if (method == M_SEQ_INDEX) return JN_V(JN_INT, i, i);
        n++;
    }
    if (method == M_SEQ_INDEX) jn_error(c, "the value is not in the list");
    return JN_V(JN_INT, i, n);
}

static struct jinja_value copy_of(struct jinja_ctx *c, struct jinja_value self)
{
    struct jinja_value out = self.type == JN_LIST ? jn_new_list(c, JN_LIST, self.u.l->count) : jn_new_dict(c);
    out.origin = self.origin;
    if (self.type == JN_LIST)
        for (uint32_t i = 0; i < self.u.l->count; i++) jn_list_push(c, out.u.l, self.u.l->v[i]);
    else
        for (uint32_t i = 0; i < self.u.d->count; i++)
            jn_dict_put(c, out.u.d, self.u.d->k[i], self.u.d->v[i]);
    return out;
}

static struct jinja_value call_dict(struct jinja_ctx *c, struct jinja_value self, int32_t method,
                                    const struct jinja_value *arg)
{
    struct jinja_value out;
    if (method == M_COPY) return copy_of(c, self);
    if (method == M_GET) {
        if (jn_dict_find(c, self.u.d, arg[0], &out)) return out;
        return arg[1].type == JN_MISSING ? JN_V(JN_NONE, i, 0) : arg[1];
    }
    out = JN_V(JN_VIEW, d, self.u.d);
    out.kind = method == M_ITEMS ? JN_V_ITEMS : method == M_KEYS ? JN_V_KEYS : JN_V_VALUES;
    out.origin = self.origin;
    return out;
}

static struct jinja_value call_loop(struct jinja_ctx *c, struct jn_loop *l, int32_t method,
                                    const struct jn_args *a)
{
    if (a->kw_count) jn_error(c, "loop.%s() takes no keyword arguments", methods[method].name);
    if (method == M_CYCLE) {
        if (!a->count) jn_error(c, "no items for cycling given");
        return a->pos[l->index0 % a->count];
    }
    struct jinja_value now = jn_new_list(c, JN_TUPLE, a->count);
    for (uint32_t i = 0; i < a->count; i++) jn_list_push(c, now.u.l, a->pos[i]);
    bool changed = l->changed.type == JN_MISSING || !jn_equal(c, l->changed, now);
    if (changed) l->changed = now;
    return JN_V(JN_BOOL, i, changed);
}

struct jinja_value jn_call_method(struct jinja_ctx *c, const struct jn_bound *m, const struct jn_args *a)
{
    const struct method *d = &methods[m->method];
    struct jinja_value arg[ARG_MAX];
    if (m->method == M_FORMAT) return jn_str_format(c, m->self.u.s, a);
    if (m->method == M_FORMAT_MAP) {
        const struct jinja_dict *map = a->count == 1 && a->pos[0].type == JN_DICT ? a->pos[0].u.d : NULL;
        if (!map) jn_error(c, "format_map() takes one mapping");
        return jn_str_format(c, m->self.u.s, &(struct jn_args){0, 0, map->k, map->v, map->count});
    }
    if (m->self.type == JN_LOOP) return call_loop(c, m->self.u.p, m->method, a);
    jn_bind(c, d->name, a, d->params, d->args_max, d->required, arg);
    for (uint32_t i = d->args_max; i < ARG_MAX; i++) arg[i] = JN_V(JN_MISSING, i, 0);
    if (m->self.type == JN_STR) return call_string(c, m->self.u.s, m->method, arg);
    if (m->self.type == JN_DICT) return call_dict(c, m->self, m->method, arg);
    if (m->self.type == JN_CYCLER) {
        struct jn_cycler *cy = m->self.u.p;
        if (cy->joiner) jn_error(c, "'Joiner' object has no such method");
        struct jinja_value now = cy->items->v[cy->pos];
        cy->pos = m->method == M_RESET ? 0 : (cy->pos + 1) % cy->items->count;
        return m->method == M_RESET ? JN_V(JN_NONE, i, 0) : now;
    }
    if (m->method == M_COPY) return copy_of(c, m->self);
    return call_sequence(c, m->self, m->method, arg[0]);
}

/* ---- global functions: range, dict, namespace, cycler, joiner, raise_exception, strftime_now ---- */

enum func_id { F_RANGE, F_DICT, F_NAMESPACE, F_CYCLER, F_JOINER, F_RAISE, F_STRFTIME, F_COUNT };
static const char *const func_names[F_COUNT] = {
    "range", "dict", "namespace", "cycler", "joiner", "raise_exception", "strftime_now"};

void jn_define_globals(struct jinja_ctx *c)
{
    for (uint32_t i = 0; i < F_COUNT; i++) {
        uint32_t sym = jn_find_sym(c->t, func_names[i], strlen(func_names[i]));
        if (sym == JN_NO_SYM || c->root[sym].type != JN_MISSING) continue;
        c->root[sym] = (struct jinja_value){.type = JN_FUNC, .kind = (uint8_t)i};
    }
}

static struct jinja_value make_range(struct jinja_ctx *c, const struct jn_args *a)
{
    int64_t start = 0, stop, step = 1;
    if (a->kw_count || !a->count || a->count > 3) jn_error(c, "range expected 1 to 3 arguments");
    stop = jn_want_int(c, "range", a->pos[0]);
    if (a->count > 1) {
        start = stop;
        stop = jn_want_int(c, "range", a->pos[1]);
    }
    if (a->count > 2) step = jn_want_int(c, "range", a->pos[2]);
    if (!step) jn_error(c, "range() arg 3 must not be zero");
    uint64_t span = 0, stride = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
    if (step > 0 && stop > start) span = (uint64_t)stop - (uint64_t)start;
    if (step < 0 && stop < start) span = (uint64_t)start - (uint64_t)stop;
    uint64_t count = span / stride + (span % stride != 0);
    if (count > c->base.limits.range_max)
        jn_fail(&c->base, JINJA_LIMIT, "range too big: the sandbox blocks ranges larger than %u",
                c->base.limits.range_max);
    struct jn_range *r = jn_alloc(&c->base, sizeof *r);
    /* One step or none: the end of the only element may not be representable. */
    *r = (struct jn_range){.start = start,
                           .step = count > 1 || stride < ((uint64_t)1 << 40) ? step : 1,
                           .count = (uint32_t)count};
    return JN_V(JN_RANGE, p, r);
}

/* dict(mapping or pairs, key=value ...): also the body of namespace(). */
static struct jinja_value make_dict(struct jinja_ctx *c, const struct jn_args *a, const char *what)
{
    struct jinja_value d = jn_new_dict(c);
    if (a->count > 1) jn_error(c, "%s expected at most 1 argument, got %u", what, a->count);
    if (a->count && a->pos[0].type == JN_DICT) {
        const struct jinja_dict *src = a->pos[0].u.d;
        for (uint32_t i = 0; i < src->count; i++) jn_dict_put(c, d.u.d, src->k[i], src->v[i]);
    } else if (a->count) {
        const struct jinja_list *pairs = jn_items_of(c, a->pos[0]);
        for (uint32_t i = 0; i < pairs->count; i++) {
            const struct jinja_list *p = jn_items_of(c, pairs->v[i]);
            if (p->count != 2) jn_error(c, "%s: an element has length %u; 2 is required", what, p->count);
            jn_dict_put(c, d.u.d, p->v[0], p->v[1]);
        }
    }
    for (uint32_t k = 0; k < a->kw_count; k++) jn_dict_put(c, d.u.d, a->names[k], a->vals[k]);
    return d;
}

static struct jinja_value make_namespace(struct jinja_ctx *c, const struct jn_args *a)
{
    struct jinja_value d = make_dict(c, a, "namespace");
    for (uint32_t i = 0; i < d.u.d->count; i++)
        if (d.u.d->k[i].type == JN_STR && d.u.d->k[i].u.s->len && d.u.d->k[i].u.s->p[0] == '_')
            jn_error(c, "a namespace cannot store attributes that start with an underscore");
    d.type = JN_NS;
    return d;
}

static struct jinja_value make_cycler(struct jinja_ctx *c, const struct jn_args *a, bool joiner)
{
    struct jn_cycler *cy = jn_alloc(&c->base, sizeof *cy);
    *cy = (struct jn_cycler){.joiner = joiner};
    if (joiner) {
        static const char *const params[] = {"sep"};
        jn_bind(c, "joiner", a, params, 1, 0, &cy->sep);
        if (cy->sep.type == JN_MISSING) cy->sep = jn_lit(c, ", ");
    } else {
        if (!a->count || a->kw_count) jn_error(c, "at least one item has to be provided");
        cy->items = jn_new_list(c, JN_LIST, a->count).u.l;
        for (uint32_t i = 0; i < a->count; i++) jn_list_push(c, cy->items, a->pos[i]);
    }
    return JN_V(JN_CYCLER, p, cy);
}

/* ---- time ---- */

/* The time of the render, constant throughout. Python's strftime is the C library's; a time without a zone
 * prints none. */
static struct jinja_value strftime_now(struct jinja_ctx *c, const struct jn_args *a)
{
    static const char *const params[] = {"format"};
    struct jinja_value arg;
    jn_bind(c, "strftime_now", a, params, 1, 1, &arg);
    const struct jinja_str *f = jn_want_str(c, "strftime_now", arg);
    if (!c->have_now) { /* one time for the whole render */
        time_t now = time(NULL);
        localtime_r(&now, &c->now);
        c->have_now = true;
    }
    struct jn_sb sb = jn_sb_new(c);
    for (size_t i = 0; i < f->len; i++) {
        char conversion[4] = {'%'}, out[80] = "";
        size_t n = 1, at = i;
        if (f->p[i] == '%' && i + 1 < f->len && f->p[i + 1] == '-')
            conversion[n++] = f->p[++i]; /* no padding */
        if (f->p[at] != '%' || ++i >= f->len || !isalpha((unsigned char)f->p[i])) {
            i = f->p[at] == '%' && i < f->len && f->p[i] == '%' ? i : at; /* %% is one */
            jn_sb_slice(c, &sb, f, at, at + 1);
            continue;
        }
        conversion[n] = f->p[i];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        if (!strchr("zZ", f->p[i])) strftime(out, sizeof out, conversion, &c->now);
#pragma GCC diagnostic pop
        jn_sb_bytes(c, &sb, out, strlen(out), jn_origin_at(f, at));
    }
    return jn_sb_value(c, &sb);
}

struct jinja_value jn_call_func(struct jinja_ctx *c, uint32_t func, const struct jn_args *a)
{
    static const char *const message[] = {"message"};
    struct jinja_value v;
    switch (func) {
    case F_RANGE: return make_range(c, a);
    case F_DICT: return make_dict(c, a, "dict");
    case F_NAMESPACE: return make_namespace(c, a);
    case F_CYCLER: return make_cycler(c, a, false);
    case F_JOINER: return make_cycler(c, a, true);
    case F_STRFTIME: return strftime_now(c, a);
    default:
        jn_bind(c, "raise_exception", a, message, 1, 1, &v);
        v = jn_to_str(c, v);
        jn_fail(&c->base, JINJA_RAISED, "%.*s", v.u.s->len > 500 ? 500 : (int)v.u.s->len, v.u.s->p);
    }
}
