/* Global functions of a template: range, dict, namespace, cycler, joiner, raise_exception, strftime_now. */
#include "server/jinja/internal.h"

#include <stdio.h>

enum func_id { F_RANGE, F_DICT, F_NAMESPACE, F_CYCLER, F_JOINER, F_RAISE, F_STRFTIME, F_COUNT };
static const char *const names[F_COUNT] = {"range",           "dict",        "namespace", "cycler", "joiner",
                                           "raise_exception", "strftime_now"};

void jn_define_globals(struct jinja_ctx *c)
{
    for (uint32_t i = 0; i < F_COUNT; i++) {
        uint32_t sym = jn_find_sym(c->t, names[i], strlen(names[i]));
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

static int week_of_year(const struct tm *t, int first_weekday)
{
    return (t->tm_yday + 7 - (t->tm_wday + 7 - first_weekday) % 7) / 7;
}

/* One conversion of strftime in the C locale, as Python's datetime without a time zone prints it. Returns
 * false if there is no such one. */
static bool time_field(char ch, const struct tm *t, char out[64])
{
    static const char *const days[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                       "Thursday", "Friday", "Saturday"};
    static const char *const months[] = {"January",   "February", "March",    "April",
                                         "May",       "June",     "July",     "August",
                                         "September", "October",  "November", "December"};
    int h12 = t->tm_hour % 12 ? t->tm_hour % 12 : 12, year = t->tm_year + 1900;
    const char *day = days[(unsigned)t->tm_wday % 7], *month = months[(unsigned)t->tm_mon % 12];
    switch (ch) {
    case 'a': snprintf(out, 64, "%.3s", day); break;
    case 'A': snprintf(out, 64, "%s", day); break;
    case 'b':
    case 'h': snprintf(out, 64, "%.3s", month); break;
    case 'B': snprintf(out, 64, "%s", month); break;
    case 'c':
        snprintf(out, 64, "%.3s %.3s %2d %02d:%02d:%02d %d", day, month, t->tm_mday, t->tm_hour, t->tm_min,
                 t->tm_sec, year);
        break;
    case 'd': snprintf(out, 64, "%02d", t->tm_mday); break;
    case 'D':
    case 'x': snprintf(out, 64, "%02d/%02d/%02d", t->tm_mon + 1, t->tm_mday, year % 100); break;
    case 'e': snprintf(out, 64, "%2d", t->tm_mday); break;
    case 'f': snprintf(out, 64, "000000"); break; /* whole seconds */
    case 'F': snprintf(out, 64, "%d-%02d-%02d", year, t->tm_mon + 1, t->tm_mday); break;
    case 'H': snprintf(out, 64, "%02d", t->tm_hour); break;
    case 'I': snprintf(out, 64, "%02d", h12); break;
    case 'j': snprintf(out, 64, "%03d", t->tm_yday + 1); break;
    case 'm': snprintf(out, 64, "%02d", t->tm_mon + 1); break;
    case 'M': snprintf(out, 64, "%02d", t->tm_min); break;
    case 'n': snprintf(out, 64, "\n"); break;
    case 'p': snprintf(out, 64, "%s", t->tm_hour < 12 ? "AM" : "PM"); break;
    case 'r':
        snprintf(out, 64, "%02d:%02d:%02d %s", h12, t->tm_min, t->tm_sec, t->tm_hour < 12 ? "AM" : "PM");
        break;
    case 'R': snprintf(out, 64, "%02d:%02d", t->tm_hour, t->tm_min); break;
    case 'S': snprintf(out, 64, "%02d", t->tm_sec); break;
    case 't': snprintf(out, 64, "\t"); break;
    case 'T':
    case 'X': snprintf(out, 64, "%02d:%02d:%02d", t->tm_hour, t->tm_min, t->tm_sec); break;
    case 'u': snprintf(out, 64, "%d", t->tm_wday ? t->tm_wday : 7); break;
    case 'U': snprintf(out, 64, "%02d", week_of_year(t, 0)); break;
    case 'w': snprintf(out, 64, "%d", t->tm_wday); break;
    case 'W': snprintf(out, 64, "%02d", week_of_year(t, 1)); break;
    case 'y': snprintf(out, 64, "%02d", year % 100); break;
    case 'Y': snprintf(out, 64, "%d", year); break;
    case 'z':
    case 'Z': out[0] = '\0'; break; /* naive time has no zone */
    case '%': snprintf(out, 64, "%%"); break;
    default: return false;
    }
    return true;
}

static struct jinja_value strftime_now(struct jinja_ctx *c, const struct jn_args *a)
{
    static const char *const params[] = {"format"};
    struct jinja_value arg;
    jn_bind(c, "strftime_now", a, params, 1, 1, &arg);
    const struct jinja_str *f = jn_want_str(c, "strftime_now", arg);
    if (!c->have_now) { /* one moment for the whole render */
        time_t now = time(NULL);
        localtime_r(&now, &c->now);
        c->have_now = true;
    }
    struct jn_sb sb = jn_sb_new(c);
    for (size_t i = 0; i < f->len; i++) {
        char out[64];
        if (f->p[i] != '%' || i + 1 >= f->len) {
            jn_sb_slice(c, &sb, f, i, i + 1);
            continue;
        }
        size_t at = i++;
        if (f->p[i] == '-' && i + 1 < f->len &&
            time_field(f->p[i + 1], &c->now, out)) { /* glibc: no padding */
            const char *text = out;
            while ((*text == '0' || *text == ' ') && text[1]) text++;
            jn_sb_bytes(c, &sb, text, strlen(text), jn_origin_at(f, at));
            i++;
        } else if (time_field(f->p[i], &c->now, out)) {
            jn_sb_bytes(c, &sb, out, strlen(out), jn_origin_at(f, at));
        } else {
            jn_sb_slice(c, &sb, f, at, i + 1);
        }
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
