/* See json_value.h. */
#include "server/http/json_value.h"

#include "server/http/fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void jo_double(struct json_out *o, double v)
{
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    jo_text(o, text);
    if (!strpbrk(text, ".e")) jo_text(o, ".0"); /* as jo_float32 */
}

static void object(struct json_out *o, json_t *v)
{
    const char *key, *front = "{";
    json_t *member;
    json_object_foreach(v, key, member)
    {
        jo_text(o, front);
        jo_cstring(o, key);
        jo_text(o, ":");
        jo_value(o, member);
        front = ",";
    }
    jo_text(o, *front == '{' ? "{}" : "}");
}

/* Recursive: what was read has at most LIMIT_JSON_DEPTH levels. */
void jo_value(struct json_out *o, const json_t *v)
{
    const char *digits = json_big_int(v);
    if (digits) {
        jo_text(o, digits);
        return;
    }
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_OBJECT: object(o, (json_t *)(uintptr_t)v); break;
    case JSON_ARRAY:
        jo_text(o, "[");
        for (size_t i = 0; i < json_array_size(v) && !o->st; i++) {
            if (i) jo_text(o, ",");
            jo_value(o, json_array_get(v, i));
        }
        jo_text(o, "]");
        break;
    case JSON_STRING: jo_string(o, json_string_value(v), json_string_length(v)); break;
    case JSON_INTEGER: jo_int(o, json_integer_value(v)); break;
    case JSON_REAL: jo_double(o, json_real_value(v)); break;
    case JSON_TRUE: jo_text(o, "true"); break;
    case JSON_FALSE: jo_text(o, "false"); break;
    default: jo_text(o, "null");
    }
}
