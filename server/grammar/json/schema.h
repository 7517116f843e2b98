/* Shared by the JSON Schema files: schema.c (schemas -> grammars), object.c (objects and arrays),
 * value.c (scalars), merge.c (two schemas -> their conjunction), not.c (a schema -> its
 * negation), format.c (formats of strings), shape.c (values of keywords). Internal to
 * server/grammar/. */
#ifndef KVASIR_JSON_SCHEMA_H
#define KVASIR_JSON_SCHEMA_H

#include "server/grammar/build.h"

#define MERGES_MAX  4000u /* schema merges per grammar */
#define FORMATS_MAX 17u
#define NOTES_MAX   64u      /* of keywords that are not enforced */
#define KEPT_MAX    1000000u /* keys of intermediate schemas: some 100 bytes each */

struct path { /* of the current schema, for messages: a list towards the root */
    const struct path *up;
    const char *key; /* NULL: the index */
    size_t index;
};

struct schema_maker {
    struct grammar_builder *b;
    struct rx_pool *p;
    const json_t *root;
    const struct grammar_json_options *opt;
    struct grammar_error *error;
    json_t *keep;    /* array: intermediate schemas still referenced */
    json_t *rules;   /* object: a schema's text -> its rule; its address -> its expression */
    json_t *checked; /* object: the addresses of schemas already checked */
    json_t *sets;    /* object: the address of a list of values -> an object with their canonical texts */
    unsigned depth, merges, forks;
    size_t kept;
    unsigned relaxed, exact; /* keywords left out; exact: none may be, because their strings are excluded */
    bool old_refs, no_if;    /* drafts 4 to 7: siblings of "$ref" are ignored; 4 to 6: "if" is ignored */
    gx any, comma, colon;    /* rule of any value; punctuation; 0 = not built yet */
    rx string, plain, blank; /* any string literal; one without needless \u; 0 = not built yet */
    rx formats[FORMATS_MAX]; /* format.c's; 0 = not built yet */
    enum status st;
};

/* Internal keywords, which clients can't use (schema.c rejects them). SK_ALL: further schemas that also
 * apply, each with keywords that can't be merged; SK_SOME: a list of {"pattern", "names" or "outside",
 * "schema"}: some property with such a name matches this schema. */
#define SK_ALL                                                                                               \
    "\x01"                                                                                                   \
    "all"
#define SK_SOME                                                                                              \
    "\x01"                                                                                                   \
    "some"
#define SK_NOT_VALUES                                                                                        \
    "\x01"                                                                                                   \
    "not values"
#define SK_NOT_PATTERN                                                                                       \
    "\x01"                                                                                                   \
    "not pattern"
#define SK_NOT_FORMAT                                                                                        \
    "\x01"                                                                                                   \
    "not format"
#define SK_FRACTION                                                                                          \
    "\x01"                                                                                                   \
    "fraction" /* a type: numbers that are not integers */

/* schema.c. s must outlive m. */
gx schema_compile(struct schema_maker *m, const json_t *s, const struct path *at);
gx schema_sign(struct schema_maker *m, const char *text); /* with optional white space after it */
gx schema_enclosed(struct schema_maker *m, const char *brackets, gx inside); /* "{}" or "[]" */
gx schema_value(struct schema_maker *m, const json_t *v);                    /* exactly this value */
/* All values of the schema if it enumerates them; kept; NULL: it does not. */
json_t *schema_values(struct schema_maker *m, const json_t *s, const struct path *at);

/* object.c; s without $ref, allOf and alternatives. */
gx schema_object(struct schema_maker *m, const json_t *s, const struct path *at);
gx schema_array(struct schema_maker *m, const json_t *s, const struct path *at);

/* value.c: literals of strings and numbers. */
rx schema_any_string(struct schema_maker *m);
rx schema_plain_string(struct schema_maker *m);
rx schema_this_string(struct schema_maker *m, const char *s, size_t len);
/* relax: one that can't be enforced gives RX_ALL. */
rx schema_pattern(struct schema_maker *m, const json_t *pattern, bool relax, const struct path *at);
rx schema_string(struct schema_maker *m, const json_t *s, const struct path *at);
rx schema_number(struct schema_maker *m, const json_t *s, unsigned types, const struct path *at);
/* The strings that satisfy any of the schemas. */
rx schema_language(struct schema_maker *m, const json_t *s, const struct path *at);
bool schema_has_name(struct schema_maker *m, rx names, const char *name);
/* "min" and "max" of `what`, where they are given. */
void schema_counts(struct schema_maker *m, const json_t *s, const char *what, uint32_t *min, uint32_t *max,
                   const struct path *at);
/* The schema that s, with all its siblings, gives for the property of this name; kept. */
json_t *schema_property_of_all(struct schema_maker *m, const json_t *s, const char *name,
                               const struct path *at);
json_t *schema_prefix(const json_t *s); /* prefixItems */
const json_t *schema_item(const json_t *s, size_t i);
json_t *schema_siblings(const json_t *s, size_t i); /* s itself, then those of SK_ALL */
size_t schema_sibling_count(const json_t *s);
/* The list's only schema, or the conjunction of all; consumes the list; kept. */
json_t *schema_together(struct schema_maker *m, json_t *list);
enum verdict { NO, YES, UNKNOWN };
enum verdict schema_valid(struct schema_maker *m, const json_t *s, const json_t *v);

/* merge.c, used by all others. Records the first error; returns its status. */
enum status schema_refuse(struct schema_maker *m, const struct path *at, enum status st, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* This can't be enforced: noted, or refused. at NULL: not noted. */
void schema_relax(struct schema_maker *m, const struct path *at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
enum status schema_nomem(struct schema_maker *m);
/* Work on the schema's JSON counts as that on expressions does, in units of some 10 ns. */
void schema_spend(struct schema_maker *m, size_t units);
/* Consumes a reference; the result lives as long as m. */
json_t *keep(struct schema_maker *m, json_t *made);
/* Values compared as in JSON Schema: 1 equals 1.0. Returns a canonical text, owned by the caller; schema_add:
 * is v new to the set of such texts? */
char *schema_text(struct schema_maker *m, const json_t *v);
bool schema_same(struct schema_maker *m, const json_t *a, const json_t *b);
bool schema_listed(struct schema_maker *m, const json_t *list, const json_t *v); /* list is immutable */
bool schema_add(struct schema_maker *m, json_t *set, const json_t *v);
/* A new reference to the conjunction of a and b; NULL: see m->st. Neither may have "$ref" at its top. */
json_t *schema_merge(struct schema_maker *m, const json_t *a, const json_t *b, const struct path *at);
/* The schema with $ref and allOf merged in; a new reference; NULL: see m->st. */
json_t *schema_merged(struct schema_maker *m, const json_t *s, const struct path *at);
/* The target of "$ref"; borrowed; NULL: see m->st. */
json_t *schema_target(struct schema_maker *m, const json_t *ref, const struct path *at);
json_t *schema_without(const json_t *s, const char *key);

/* shape.c: rejects a schema whose keywords have values of a wrong type; drops nulls, and writes the booleans
 * exclusiveMinimum and exclusiveMaximum of draft 4 as numbers. */
void schema_check_shape(struct schema_maker *m, json_t *s, const struct path *at);

/* not.c: the negation of s; a new reference. */
json_t *schema_not(struct schema_maker *m, const json_t *s, const struct path *at);
/* Is it unsatisfiable; are both together, with further schemas (NULL: none)? False if that is not obvious. */
bool schema_empty(struct schema_maker *m, const json_t *s);
bool schema_disjoint(struct schema_maker *m, const json_t *a, const json_t *b, const json_t *with);

/* format.c: string literals of this format; RX_NONE: unknown format, ignored. */
rx schema_format(struct schema_maker *m, const char *name);

/* Bits of the JSON types. */
enum {
    JT_NULL = 1,
    JT_BOOLEAN = 2,
    JT_INTEGER = 4,
    JT_NUMBER = 8, /* not an integer; "number" is both */
    JT_STRING = 16,
    JT_ARRAY = 32,
    JT_OBJECT = 64,
    JT_ALL = 127
};
unsigned schema_type_named(const json_t *name); /* 0: unknown */
unsigned schema_types(const json_t *schema);    /* by "type" alone */
json_t *schema_types_list(unsigned bits);       /* for "type"; a new reference */
unsigned value_type(const json_t *value);

#endif
