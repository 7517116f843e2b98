/* See value.h. */
#include "server/json/value.h"
#include "config/base/decimal.h"

#include "server/json/fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The shortest decimal that round-trips. */
static void jw_double(struct json_writer *o, double v)
{
    char text[DECIMAL_BYTES];
    decimal_shortest(v, false, 1, text);
    jw_text(o, text);
    if (!strpbrk(text, ".e")) jw_text(o, ".0"); /* like jw_float32 */
}

static void object(struct json_writer *o, json_t *v)
{
    const char *key, *front = "{";
    json_t *member;
    json_object_foreach(v, key, member) {
        jw_text(o, front);
        jw_put(o, "%s:", key);
        jw_value(o, member);
        front = ",";
    }
    jw_text(o, *front == '{' ? "{}" : "}");
}

/* Recursive: parsed values have at most LIMIT_JSON_DEPTH levels. */
void jw_value(struct json_writer *o, const json_t *v)
{
    const char *digits = json_big_int(v);
    if (digits) {
        jw_text(o, digits);
        return;
    }
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_OBJECT: object(o, (json_t *)(uintptr_t)v); break;
    case JSON_ARRAY:
        jw_text(o, "[");
        for (size_t i = 0; i < json_array_size(v) && !o->st; i++) {
            if (i) jw_text(o, ",");
            jw_value(o, json_array_get(v, i));
        }
        jw_text(o, "]");
        break;
    case JSON_STRING: jw_string(o, json_string_value(v), json_string_length(v)); break;
    case JSON_INTEGER: jw_int(o, json_integer_value(v)); break;
    case JSON_REAL: jw_double(o, json_real_value(v)); break;
    case JSON_TRUE: jw_text(o, "true"); break;
    case JSON_FALSE: jw_text(o, "false"); break;
    default: jw_text(o, "null");
    }
}
