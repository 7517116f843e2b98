/* Template source -> tokens: white space control, raw blocks, comments, literals. The rules are Jinja2's
 * lexer with trim_blocks and lstrip_blocks on. Runs at parse time on any thread; memory from the template's
 * arena. */
#include "config/base/assert.h"
#include "config/base/utf8.h"
#include "config/base/hex.h"
#include "server/jinja/internal.h"

#include <stdio.h>

struct lex {
    struct jn_base *b;
    const char *src, *p, *end;
    struct jn_tokens *out;
    bool line_start; /* the token before ended with a newline */
    uint32_t line;
};

static void push(struct lex *x, enum jn_tok type, const char *p, size_t len, const char *op)
{
    struct jn_tokens *o = x->out;
    JN_ROOM(x->b, o->v, o->count, o->cap);
    ASSERT(type == T_STRING || (p >= x->src && p + len <= x->end));
    struct jn_token *t = &o->v[o->count++];
    *t = (struct jn_token){.type = (uint8_t)type, .line = x->line, .p = p, .len = (uint32_t)len};
    if (op) memcpy(t->op, op, strlen(op));
}

static _Noreturn void lex_fail(struct lex *x, const char *what)
{
    x->b->line = x->line;
    jn_fail(x->b, JINJA_SYNTAX, "%s", what);
}

static void count_lines(struct lex *x, const char *from, const char *to)
{
    for (; from < to; from++) x->line += *from == '\n';
}

static const char *skip_space(const char *p, const char *end)
{
    size_t len = (size_t)(end - p);
    return jinja_trim(p, &len, 1);
}

/* Emits the data before a tag; sign is '-', '+' or 0; a variable tag is not subject to lstrip_blocks. */
static void push_data(struct lex *x, const char *from, const char *to, char sign, bool variable)
{
    const char *stop = to;
    if (sign == '-') {
        size_t len = (size_t)(to - from);
        jinja_trim(from, &len, 2);
        stop = from + len;
    } else if (sign != '+' && !variable) {
        const char *bol = to;
        while (bol > from && bol[-1] != '\n') bol--;
        if ((bol > from || x->line_start) && skip_space(bol, to) >= to) stop = bol;
    }
    if (stop > from) push(x, T_DATA, from, (size_t)(stop - from), NULL);
    count_lines(x, from, to);
}

/* Past "%}", "-%}" or "+%}" at p (first is '%' or '#'), white space control applied; NULL if there is none.
 */
static const char *block_close(const char *p, const char *end, char first)
{
    char sign = 0;
    if (p < end && (*p == '-' || *p == '+')) sign = *p++;
    if (end - p < 2 || p[0] != first || p[1] != '}') return NULL;
    p += 2;
    if (sign == '-') return skip_space(p, end);
    if (!sign && p < end && *p == '\n') p++;
    return p;
}

static const char *word_at(const char *p, const char *end, const char *word)
{
    size_t n = strlen(word);
    return (size_t)(end - p) >= n && memcmp(p, word, n) == 0 ? p + n : NULL;
}

/* Is this "{% raw %}"? p points after "{%" and the sign. */
static const char *raw_open(const char *p, const char *end)
{
    p = word_at(skip_space(p, end), end, "raw");
    if (!p) return NULL;
    p = skip_space(p, end);
    if (end - p >= 3 && p[0] == '-' && p[1] == '%' && p[2] == '}') return skip_space(p + 3, end);
    return end - p >= 2 && p[0] == '%' && p[1] == '}' ? p + 2 : NULL;
}

static void lex_raw(struct lex *x)
{
    for (const char *q = x->p; q + 1 < x->end; q++) {
        if (q[0] != '{' || q[1] != '%') continue;
        const char *r = q + 2;
        char sign = 0;
        if (r < x->end && (*r == '-' || *r == '+')) sign = *r++;
        r = word_at(skip_space(r, x->end), x->end, "endraw");
        if (!r) continue;
        r = block_close(skip_space(r, x->end), x->end, '%');
        if (!r) continue;
        push_data(x, x->p, q, sign, false);
        count_lines(x, q, r);
        x->line_start = r[-1] == '\n';
        x->p = r;
        return;
    }
    lex_fail(x, "missing end of raw directive");
}

static void lex_comment(struct lex *x)
{
    for (const char *q = x->p; q + 1 < x->end; q++) {
        const char *r = block_close(q, x->end, '#');
        if (!r) continue;
        count_lines(x, x->p, r);
        x->line_start = r[-1] == '\n';
        x->p = r;
        return;
    }
    lex_fail(x, "missing end of comment tag");
}

/* ---- inside tags ---- */

/* The escape after a backslash (p) -> bytes at *out. Python's unicode-escape. */
static const char *unescape(struct lex *x, const char *p, const char *end, char **out)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *hit = memchr(from, *p, sizeof from - 1);
    if (hit) {
        *(*out)++ = to[hit - from];
        return p + 1;
    }
    if (*p == '\n') return p + 1;
    if (*p >= '0' && *p <= '7') {
        uint32_t cp = 0;
        for (int i = 0; i < 3 && p < end && *p >= '0' && *p <= '7'; i++) cp = cp * 8 + (uint32_t)(*p++ - '0');
        *out += utf8_encode(cp, *out);
        return p;
    }
    if (*p == 'x' || *p == 'u' || *p == 'U') {
        int digits = *p == 'x' ? 2 : *p == 'u' ? 4 : 8;
        uint32_t cp = 0;
        p++;
        for (int i = 0; i < digits; i++, p++) {
            int d = p < end ? hex_digit(*p) : -1;
            if (d < 0) lex_fail(x, "broken escape in a string literal");
            cp = cp << 4 | (uint32_t)d;
        }
        if (cp > 0x10ffff) lex_fail(x, "illegal Unicode character in a string literal");
        *out += utf8_encode(cp, *out);
        return p;
    }
    if (*p == 'N') lex_fail(x, "named characters in string literals are not supported");
    *(*out)++ = '\\';
    if ((unsigned char)*p >= 0x80) { /* the reference escapes it before handling the backslash */
        const char *next;
        uint32_t cp = jn_decode(p, end, &next);
        *out += snprintf(*out, 11, cp < 0x100 ? "x%02x" : cp < 0x10000 ? "u%04x" : "U%08x", cp);
        return next;
    }
    *(*out)++ = *p;
    return p + 1;
}

static void lex_string(struct lex *x)
{
    char quote = *x->p;
    const char *q = x->p + 1;
    size_t escapes = 0;
    while (q < x->end && *q != quote) {
        if (*q == '\\') {
            escapes++;
            q++;
        }
        if (q < x->end) q++;
    }
    if (q >= x->end) lex_fail(x, "unterminated string literal");
    size_t len = (size_t)(q - x->p - 1);
    const char *text = x->p + 1;
    if (escapes) {
        char *buf = jn_alloc(x->b, len + escapes * 12 + 4), *o = buf;
        for (const char *s = x->p + 1; s < q;) {
            if (*s == '\\') s = unescape(x, s + 1, q, &o);
            else *o++ = *s++;
        }
        text = buf;
        len = (size_t)(o - buf);
    }
    push(x, T_STRING, text, len, NULL);
    count_lines(x, x->p, q);
    x->p = q + 1;
}

static const char *digits(const char *p, const char *end)
{
    while (p < end && *p >= '0' && *p <= '9') p++;
    return p;
}

/* Past an exponent; p if there is none. */
static const char *exponent(const char *p, const char *end)
{
    if (p >= end || (*p | 32) != 'e') return p;
    const char *from = p + 1 < end && (p[1] == '+' || p[1] == '-') ? p + 2 : p + 1, *to = digits(from, end);
    return to > from ? to : p;
}

static bool lex_number(struct lex *x)
{
    const char *from = x->p, *end = x->end, *whole = digits(from, end), *to = whole, *stop;
    if (whole == from) return false;
    if (from == x->src || from[-1] != '.') { /* `a.0.1`: two indexes, not a float */
        if (to < end && *to == '.' && (stop = digits(to + 1, end)) > to + 1) to = stop;
        to = exponent(to, end);
    }
    if (to < end && (*to == '_' || (*from == '0' && to == from + 1 && strchr("xXoObB", *to) && *to)))
        lex_fail(x, "numbers with underscores or another base than ten are not supported");
    push(x, to > whole ? T_FLOAT : T_INT, from, (size_t)(to - from), NULL);
    x->p = to;
    return true;
}

static bool lex_name(struct lex *x)
{
    const char *q = x->p, *next;
    while (q < x->end && jn_is_ident(jn_decode(q, x->end, &next), q == x->p)) q = next;
    if (q == x->p) return false;
    push(x, T_NAME, x->p, (size_t)(q - x->p), NULL);
    x->p = q;
    return true;
}

static bool lex_operator(struct lex *x, char *stack, size_t *depth, size_t depth_max)
{
    static const char *const doubles[] = {"//", "**", "==", "!=", ">=", "<="};
    char op[3] = {*x->p, 0, 0};
    for (size_t i = 0; i < sizeof doubles / sizeof *doubles; i++) {
        if (x->end - x->p >= 2 && memcmp(x->p, doubles[i], 2) == 0) op[1] = doubles[i][1];
    }
    if (!op[1] && !memchr("+-/*%~[](){}><=.:|,;", op[0], 20)) return false;
    if (op[0] == '(' || op[0] == '[' || op[0] == '{') {
        if (*depth == depth_max) lex_fail(x, "brackets are nested too deeply");
        stack[(*depth)++] = op[0] == '(' ? ')' : (char)(op[0] + 2);
    } else if (op[0] == ')' || op[0] == ']' || op[0] == '}') {
        if (!*depth || stack[*depth - 1] != op[0]) lex_fail(x, "a closing bracket has no partner");
        (*depth)--;
    }
    push(x, T_OP, x->p, op[1] ? 2 : 1, op);
    x->p += op[1] ? 2 : 1;
    return true;
}

static void lex_tag(struct lex *x, bool variable)
{
    char stack[256];
    size_t depth = 0;
    push(x, variable ? T_VAR_BEGIN : T_BLOCK_BEGIN, x->p, 0, NULL);
    while (x->p < x->end) {
        if (!depth) {
            const char *stop;
            if (variable) {
                stop = word_at(x->p, x->end, "-}}");
                if (stop) stop = skip_space(stop, x->end);
                else stop = word_at(x->p, x->end, "}}");
            } else {
                stop = block_close(x->p, x->end, '%');
            }
            if (stop) {
                push(x, variable ? T_VAR_END : T_BLOCK_END, x->p, 0, NULL);
                count_lines(x, x->p, stop);
                x->line_start = stop[-1] == '\n';
                x->p = stop;
                return;
            }
        }
        const char *q = skip_space(x->p, x->end);
        if (q > x->p) {
            count_lines(x, x->p, q);
            x->p = q;
        } else if (*x->p == '\'' || *x->p == '"') {
            lex_string(x);
        } else if (!lex_number(x) && !lex_name(x) && !lex_operator(x, stack, &depth, sizeof stack)) {
            lex_fail(x, "unexpected character in a tag");
        }
    }
    /* The parser reports the missing end. */
}

void jn_lex(struct jn_base *b, const char *src, size_t len, struct jn_tokens *out)
{
    struct lex x = {
        .b = b, .src = src, .p = src, .end = src + len, .out = out, .line_start = true, .line = 1};
    while (x.p < x.end) {
        const char *q = x.p;
        while (q < x.end && !(q[0] == '{' && q + 1 < x.end && (q[1] == '{' || q[1] == '%' || q[1] == '#'))) {
            const char *brace = memchr(q + 1, '{', (size_t)(x.end - q - 1));
            q = brace ? brace : x.end;
        }
        if (q >= x.end) {
            push(&x, T_DATA, x.p, (size_t)(x.end - x.p), NULL);
            break;
        }
        char kind = q[1], sign = 0;
        const char *r = q + 2;
        if (r < x.end && (*r == '-' || *r == '+')) sign = *r++;
        push_data(&x, x.p, q, sign, kind == '{');
        const char *raw = kind == '%' ? raw_open(r, x.end) : NULL;
        x.line_start = false;
        if (raw) {
            count_lines(&x, q, raw);
            x.line_start = raw[-1] == '\n';
            x.p = raw;
            lex_raw(&x);
        } else {
            x.p = r;
            if (kind == '#') lex_comment(&x);
            else lex_tag(&x, kind == '{');
        }
    }
    push(&x, T_EOF, x.end, 0, NULL);
}
