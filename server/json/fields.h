/* Typed reading of optional JSON fields with OpenAI's error codes. null counts as absent everywhere. The
 * getters leave *out alone when the field is absent, and return ST_INVALID with *e filled when it has the
 * wrong type or range. */
#ifndef KVASIR_FIELDS_H
#define KVASIR_FIELDS_H

#include "server/json/errors.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

json_t *field(json_t *object,
              const char *name); /* borrowed; NULL if absent, null, or `object` is no object */
bool json_is(const json_t *v, const char *text); /* exact match, also with respect to embedded NULs */
bool json_to_int(json_t *v, int64_t *out);       /* 5 and 5.0; not 5.5, "5", true */
enum status field_bool(struct api_error *e, json_t *root, const char *name, bool *out);
enum status field_int(struct api_error *e, json_t *root, const char *name, int64_t min, int64_t max,
                      int64_t *out, bool *has); /* has may be NULL */
enum status value_int(struct api_error *e, json_t *v, const char *name, int64_t min, int64_t max,
                      int64_t *out); /* the value of the field `name` */
enum status field_num(struct api_error *e, json_t *root, const char *name, double min, double max,
                      double *out, bool *has);
/* An integer beyond 64 bits inside another value of the body (parser.c): jansson can't hold it, so it is
 * an object with this one string member. Returns the digits, with the minus sign if any; NULL for anything
 * else. A client that sends such an object gets such a number. */
#define JSON_BIG_INT "\xEF\xB7\x90" /* U+FDD0, no character */
const char *json_big_int(const json_t *v);
/* The one of known[0..count) that the name is probably meant to be: equal but for case, underscores and a
 * slip of the finger (two in long names); NULL: none. */
const char *field_near(const char *name, const char *const *known, size_t count);
/* Writes the names of the fields of `root`, except nulls, that are not in known[0..count) into out,
 * comma-separated (as many as fit; non-printable and non-ASCII bytes as '?', for a log); returns their
 * number. */
size_t fields_unknown(json_t *root, const char *const *known, size_t count, char *out, size_t cap);

#endif
