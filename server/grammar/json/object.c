/* Objects and arrays of JSON schemas. Property keywords of several schemas apply together: SK_ALL has the
 * additional ones (merge.c), and each name and pattern is checked against all. */
#include "config/base/assert.h"
#include "config/base/id_table.h"
#include "config/base/list.h"
#include "server/grammar/json/schema.h"

#include <stdlib.h>
#include <string.h>

#define CLASSES_MAX 64u
#define DEMANDS_MAX 64u
#define LIFE_STATES 4096u
#define MEMBERS_MAX 8192u
#define UNIQUE_MAX  400u                /* stored per state, so quadratic */
#define IMPLIED_MAX ((uint64_t)1 << 24) /* steps of the dependency closure, over all names */

/* ---- properties ---- */

struct kind { /* a class of additional property names with the same schemas */
    rx names;
    json_t *schemas;  /* array */
    uint64_t matched; /* schemas with a matching pattern */
    uint32_t wanted;
};

struct object {
    struct schema_maker *m;
    const json_t *s;
    const struct path *at;
    json_t *listed;  /* name -> its schema */
    json_t *numbers; /* name -> its index in listed */
    rx names;        /* allowed property names; RX_ALL: any */
    rx wanted[GB_WANTS_MAX];
    json_t *wanted_schema[GB_WANTS_MAX];
    uint32_t wants;
    struct kind classes[CLASSES_MAX];
    size_t class_count;
    struct gb_member *members;
    size_t count, cap;
    uint32_t (*implies)[2];
    size_t implies_count, implies_cap;
};

static void list_name(struct object *o, const char *name)
{
    struct schema_maker *m = o->m;
    if (!name || m->st || json_object_get(o->listed, name)) return;
    json_t *v = schema_property_of_all(m, o->s, name, o->at);
    if (o->names != RX_ALL && !schema_has_name(m, o->names, name)) v = json_false();
    json_object_set(o->listed, name, v);
}

static void list_names(struct object *o)
{
    static const char *const keys[] = {"dependencies", "dependentRequired"};
    json_t *v, *one;
    const char *key;
    size_t i, k;
    for (i = 0; i < schema_sibling_count(o->s); i++)
        json_object_foreach(json_object_get(schema_siblings(o->s, i), "properties"), key, v)
            list_name(o, key);
    json_array_foreach(json_object_get(o->s, "required"), k, v) list_name(o, json_string_value(v));
    for (i = 0; i < 2 * schema_sibling_count(o->s); i++)
        json_object_foreach(json_object_get(schema_siblings(o->s, i / 2), keys[i % 2]), key, v) {
            if (!json_is_array(v) || !json_array_size(v)) continue;
            list_name(o, key);
            json_array_foreach(v, k, one) list_name(o, json_string_value(one));
        }
}

static void number_names(struct object *o)
{
    const char *key;
    json_t *v;
    json_int_t n = 0;
    json_object_foreach(o->listed, key, v) {
        if (json_object_set_new(o->numbers, key, json_integer(n++))) return (void)schema_nomem(o->m);
    }
}

static uint32_t number_of(const struct object *o, const char *name)
{
    const json_t *n = json_object_get(o->numbers, name);
    return n ? (uint32_t)json_integer_value(n) : GB_FURTHER;
}

/* dependentRequired. */
static void list_implied(struct object *o)
{
    static const char *const keys[] = {"dependencies", "dependentRequired"};
    const char *key;
    json_t *v, *one;
    size_t k;
    for (size_t i = 0; i < 2 * schema_sibling_count(o->s); i++)
        json_object_foreach(json_object_get(schema_siblings(o->s, i / 2), keys[i % 2]), key, v) {
            json_array_foreach(v, k, one) {
                if (!json_is_string(one)) continue;
                if (!LIST_RESERVE(o->implies, o->implies_cap, o->implies_count + 1))
                    return (void)schema_nomem(o->m);
                o->implies[o->implies_count][0] = number_of(o, key);
                o->implies[o->implies_count++][1] = number_of(o, json_string_value(one));
            }
        }
}

static void check_size(struct object *o, uint32_t min, uint32_t max)
{
    size_t n = json_object_size(o->listed);
    if (n > MEMBERS_MAX) (void)schema_refuse(o->m, o->at, ST_TOO_LARGE, "too many properties");
    if ((uint64_t)o->implies_count * o->implies_count * n > IMPLIED_MAX)
        (void)schema_refuse(o->m, o->at, ST_TOO_LARGE, "too many properties ask for others");
    if (o->implies_count && min && max != RX_NO_LIMIT)
        (void)schema_refuse(o->m, o->at, ST_UNSUPPORTED,
                            "\"dependentRequired\" with both \"minProperties\" and \"maxProperties\" "
                            "is not supported");
}

/* Names that match none of these properties and patterns. */
static rx outside(struct schema_maker *m, const json_t *s, const struct path *at)
{
    rx in = RX_NONE;
    const char *key;
    json_t *v;
    json_object_foreach(json_object_get(s, "properties"), key, v)
        in = rx_alt(m->p, in, schema_this_string(m, key, strlen(key)));
    json_object_foreach(json_object_get(s, "patternProperties"), key, v) {
        json_t *text = json_string(key);
        in = rx_alt(m->p, in, schema_pattern(m, text, false, at));
        json_decref(text);
    }
    return rx_and(m->p, schema_plain_string(m), rx_not(m->p, in));
}

static void list_wanted(struct object *o)
{
    json_t *v, *list = json_object_get(o->s, SK_SOME);
    size_t i;
    json_array_foreach(list, i, v) {
        json_t *pattern = json_object_get(v, "pattern"), *names = json_object_get(v, "names");
        if (o->wants == GB_WANTS_MAX) {
            (void)schema_refuse(o->m, o->at, ST_TOO_LARGE, "the schema asks for too much at once");
            return;
        }
        o->wanted[o->wants] =
            pattern ? rx_and(o->m->p, schema_plain_string(o->m), schema_pattern(o->m, pattern, false, o->at))
            : names ? rx_and(o->m->p, schema_plain_string(o->m), schema_language(o->m, names, o->at))
                    : outside(o->m, json_object_get(v, "outside"), o->at);
        o->wanted_schema[o->wants++] = json_object_get(v, "schema");
    }
}

/* Splits the classes by names; matching ones get the schema and bits. */
static bool split(struct object *o, rx by, json_t *schema, uint64_t matched, uint32_t wanted)
{
    struct rx_pool *p = o->m->p;
    ASSERT(o->class_count <= CLASSES_MAX && o->wants <= GB_WANTS_MAX);
    for (size_t i = o->class_count; i-- > 0;) {
        struct kind *c = &o->classes[i];
        rx in = rx_and(p, c->names, by), out = rx_and(p, c->names, rx_not(p, by));
        if (rx_matches_nothing(p, in, LIFE_STATES)) continue;
        if (!rx_matches_nothing(p, out, LIFE_STATES)) {
            if (o->class_count == CLASSES_MAX)
                return (void)schema_refuse(o->m, o->at, ST_TOO_LARGE,
                                           "there are too many overlapping patterns of names"),
                       false;
            struct kind *rest = &o->classes[o->class_count++];
            *rest = *c;
            rest->names = out;
            rest->schemas = json_copy(c->schemas);
        }
        c->names = in;
        c->matched |= matched;
        c->wanted |= wanted;
        if (schema) json_array_append(c->schemas, schema);
    }
    return true;
}

static void list_classes(struct object *o)
{
    struct schema_maker *m = o->m;
    rx listed = RX_NONE;
    const char *key;
    json_t *v;
    size_t n = schema_sibling_count(o->s);
    json_object_foreach(o->listed, key, v)
        listed = rx_alt(m->p, listed, schema_this_string(m, key, strlen(key)));
    rx left = rx_and(m->p, rx_and(m->p, schema_plain_string(m), o->names), rx_not(m->p, listed));
    if (rx_matches_nothing(m->p, left, LIFE_STATES)) return;
    o->classes[o->class_count++] = (struct kind){.names = left, .schemas = json_array()};
    if (n > DEMANDS_MAX) {
        (void)schema_refuse(m, o->at, ST_TOO_LARGE, "too many schemas hold together");
        return;
    }
    for (size_t i = 0; i < n; i++)
        json_object_foreach(json_object_get(schema_siblings(o->s, i), "patternProperties"), key, v) {
            struct path in = {o->at, "patternProperties", 0}, here = {&in, key, 0};
            json_t *text = json_string(key);
            rx by = schema_pattern(m, text, false, &here);
            json_decref(text);
            if (m->st || !split(o, by, v, (uint64_t)1 << i, 0)) return;
        }
    for (uint32_t i = 0; i < o->wants; i++)
        if (!split(o, o->wanted[i], NULL, 0, 1u << i)) return;
    for (size_t i = 0; i < n; i++) {
        json_t *rest = json_object_get(schema_siblings(o->s, i), "additionalProperties");
        for (size_t k = 0; k < o->class_count && rest; k++)
            if (!(o->classes[k].matched >> i & 1)) json_array_append(o->classes[k].schemas, rest);
    }
}

/* Members with these names: with this schema, and with each combination of additional wants. */
static void add_members(struct object *o, rx names, uint32_t name, json_t *schema, uint32_t wanted,
                        const struct path *at)
{
    struct schema_maker *m = o->m;
    gx text = gb_regex(m->b, names);
    for (uint32_t gives = 0; gives < 1u << o->wants && !m->st; gives++) {
        if (gives & ~wanted) continue;
        json_t *all = json_pack("[O]", schema);
        for (uint32_t i = 0; i < o->wants; i++)
            if (gives >> i & 1) json_array_append(all, o->wanted_schema[i]);
        json_t *v = schema_together(m, all);
        if (!LIST_RESERVE(o->members, o->cap, o->count + 1)) return (void)schema_nomem(o->m);
        gx what = json_is_false(v) ? gb_alt(m->b, NULL, 0)
                                   : GB_SEQ(m->b, text, schema_sign(m, ":"), schema_compile(m, v, at));
        o->members[o->count++] = (struct gb_member){what, name, gives};
    }
}

static gx object_of(struct object *o, uint32_t min, uint32_t max)
{
    struct schema_maker *m = o->m;
    struct path in = {o->at, "properties", 0}, rest = {o->at, "additionalProperties", 0};
    const char *key;
    json_t *v;
    uint32_t n = 0;
    size_t i;
    bool *required = calloc(json_object_size(o->listed) + 1, sizeof *required);
    if (!required) return schema_nomem(o->m) == ST_OK;
    json_array_foreach(json_object_get(o->s, "required"), i, v)
        if (json_is_string(v)) required[number_of(o, json_string_value(v))] = true;
    json_object_foreach(o->listed, key, v) {
        struct path here = {&in, key, 0};
        uint32_t wanted = 0;
        for (uint32_t k = 0; k < o->wants; k++)
            if (schema_has_name(m, o->wanted[k], key)) wanted |= 1u << k;
        add_members(o, schema_this_string(m, key, strlen(key)), n++, v, wanted, &here);
        if (m->st) break;
    }
    for (i = 0; i < o->class_count && !m->st; i++)
        add_members(o, o->classes[i].names, GB_FURTHER,
                    schema_together(m, json_incref(o->classes[i].schemas)), o->classes[i].wanted, &rest);
    struct gb_members list = {.list = o->members,
                              .count = o->count,
                              .names = n,
                              .required = required,
                              .implies = o->implies,
                              .implies_count = o->implies_count,
                              .min = min,
                              .max = max,
                              .wants = o->wants,
                              .any_order = m->opt->any_order,
                              .comma = schema_sign(m, ",")};
    gx out = m->st ? 0 : schema_enclosed(m, "{}", gb_members(m->b, &list));
    free(required);
    return out;
}

gx schema_object(struct schema_maker *m, const json_t *s, const struct path *at)
{
    struct object *o = calloc(1, sizeof *o);
    uint32_t min = 0, max = RX_NO_LIMIT;
    if (!o) return (void)schema_nomem(m), 0;
    *o = (struct object){.m = m,
                         .s = s,
                         .at = at,
                         .names = RX_ALL,
                         .listed = keep(m, json_object()),
                         .numbers = keep(m, json_object())};
    schema_counts(m, s, "Properties", &min, &max, at);
    for (size_t i = 0; i < schema_sibling_count(s); i++) {
        json_t *names = json_object_get(schema_siblings(s, i), "propertyNames"),
               *unevaluated = json_object_get(schema_siblings(s, i), "unevaluatedProperties");
        struct path here = {at, "propertyNames", 0};
        if (names) o->names = rx_and(m->p, o->names, schema_language(m, names, &here));
        if (unevaluated && !json_is_true(unevaluated) && json_object_size(unevaluated))
            (void)schema_refuse(m, at, ST_UNSUPPORTED, "\"unevaluatedProperties\" is not supported");
        if (json_is_false(unevaluated))
            (void)schema_refuse(m, at, ST_UNSUPPORTED, "\"unevaluatedProperties\" is not supported");
    }
    if (!m->st) list_wanted(o);
    if (!m->st && o->wants && max != RX_NO_LIMIT)
        (void)schema_refuse(m, at, ST_UNSUPPORTED, "\"maxProperties\" with \"not\" is not supported");
    if (!m->st) list_names(o);
    if (!m->st) number_names(o);
    if (!m->st) list_implied(o);
    if (!m->st) check_size(o, min, max);
    if (!m->st) list_classes(o);
    gx out = m->st ? 0 : object_of(o, min, max);
    for (size_t i = 0; i < o->class_count; i++) json_decref(o->classes[i].schemas);
    free(o->members);
    free(o->implies);
    free(o);
    return out;
}

/* ---- arrays ---- */

static json_t *item_of_all(struct schema_maker *m, const json_t *s, size_t i)
{
    json_t *all = json_array();
    for (size_t k = 0; k < schema_sibling_count(s); k++) {
        const json_t *one = schema_item(schema_siblings(s, k), i);
        if (!json_is_true(one)) json_array_append(all, (json_t *)(uintptr_t)one);
    }
    return schema_together(m, all);
}

/* Distinct elements: each of the values at most once. */
static gx unique(struct schema_maker *m, json_t *values, uint32_t min, uint32_t max)
{
    size_t n = json_array_size(values), i;
    json_t *v;
    struct gb_member *list = calloc(n + 1, sizeof *list);
    gx out = 0;
    json_array_foreach(values, i, v)
        if (list) list[i] = (struct gb_member){schema_value(m, v), (uint32_t)i, 0};
    struct gb_members all = {.list = list,
                             .count = n,
                             .names = (uint32_t)n,
                             .min = min,
                             .max = max,
                             .any_order = true,
                             .comma = schema_sign(m, ",")};
    if (list) out = schema_enclosed(m, "[]", gb_members(m->b, &all));
    else (void)schema_nomem(m);
    free(list);
    return out;
}

/* Elements of which some match "contains". */
static gx containing(struct schema_maker *m, json_t *item, const json_t *const *some, uint32_t wants,
                     uint32_t min, uint32_t max, const struct path *at)
{
    ASSERT(wants && wants <= GB_WANTS_MAX);
    struct gb_member list[1u << GB_WANTS_MAX];
    struct path in = {at, "contains", 0};
    size_t n = 0;
    for (uint32_t gives = 0; gives < 1u << wants && !m->st; gives++) {
        json_t *all = json_pack("[O]", item);
        for (uint32_t i = 0; i < wants; i++)
            if (gives >> i & 1) json_array_append(all, (json_t *)(uintptr_t)some[i]);
        list[n++] = (struct gb_member){schema_compile(m, schema_together(m, all), &in), GB_FURTHER, gives};
    }
    struct gb_members all = {
        .list = list, .count = n, .min = min, .max = max, .wants = wants, .comma = schema_sign(m, ",")};
    return m->st ? 0 : schema_enclosed(m, "[]", gb_members(m->b, &all));
}

/* The schemas of "contains"; returns their number. */
static uint32_t contained(struct schema_maker *m, const json_t *s, const json_t *out[GB_WANTS_MAX],
                          const struct path *at)
{
    uint32_t n = 0;
    for (size_t i = 0; i < schema_sibling_count(s); i++) {
        const json_t *one = schema_siblings(s, i), *v = json_object_get(one, "contains");
        uint32_t least = 1, most = RX_NO_LIMIT;
        if (!v) continue;
        schema_counts(m, one, "Contains", &least, &most, at);
        if (!least && most == RX_NO_LIMIT) continue;
        if (least != 1 || most != RX_NO_LIMIT || n == GB_WANTS_MAX)
            (void)schema_refuse(m, at, ST_UNSUPPORTED, "\"contains\" with these counts is not supported");
        else out[n++] = v;
    }
    return n;
}

gx schema_array(struct schema_maker *m, const json_t *s, const struct path *at)
{
    uint32_t min = 0, max = RX_NO_LIMIT;
    const json_t *some[GB_WANTS_MAX];
    size_t n = 0;
    schema_counts(m, s, "Items", &min, &max, at);
    for (size_t i = 0; i < schema_sibling_count(s); i++) {
        size_t of_it = json_array_size(schema_prefix(schema_siblings(s, i)));
        n = of_it > n ? of_it : n;
    }
    bool once = json_is_true(json_object_get(s, "uniqueItems")) && max > 1;
    uint32_t wants = contained(m, s, some, at);
    if (m->st) return 0;
    if (max < min) return gb_alt(m->b, NULL, 0);
    if (n > max) n = max;
    json_t *rest = item_of_all(m, s, SIZE_MAX);
    if (wants && n)
        return (void)schema_refuse(m, at, ST_UNSUPPORTED, "\"contains\" with this is not supported"), 0;
    struct path in = {at, "items", 0};
    if (once && (json_is_false(rest) || max == n) && n < 2) once = false;
    json_t *values = once && !n && !wants ? schema_values(m, rest, at) : NULL;
    if (once && (!values || json_array_size(values) > UNIQUE_MAX))
        schema_relax(m, at, "\"uniqueItems\" is supported where \"items\" lists at most %u values",
                     UNIQUE_MAX);
    else if (once) return unique(m, values, min, max);
    if (wants) return containing(m, rest, some, wants, min, max, at);
    gx comma = schema_sign(m, ",");
    uint32_t more = json_is_false(rest)  ? 0
                    : max == RX_NO_LIMIT ? max
                                         : max - (uint32_t)n,
             need = min > n ? min - (uint32_t)n : 0;
    gx element = more ? schema_compile(m, rest, &in) : 0;
    if (m->st) return 0;
    if (!more && need) return gb_alt(m->b, NULL, 0);
    /* From the end: what may follow k elements, including the comma. */
    gx tail = !n || !more ? gb_list(m->b, element, comma, need, more)
                          : gb_repeat(m->b, GB_SEQ(m->b, comma, element), need, more);
    for (size_t k = n; k-- > 0 && !m->st;) {
        struct path one = {&in, NULL, k};
        gx here = schema_compile(m, item_of_all(m, s, k), &one);
        tail = k ? GB_SEQ(m->b, comma, here, tail) : GB_SEQ(m->b, here, tail);
        tail = gb_repeat(m->b, tail, k < min, 1);
    }
    return m->st ? 0 : schema_enclosed(m, "[]", tail);
}
