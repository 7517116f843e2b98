/* JSON of a request -> values of the template interpreter. Strings are borrowed, not copied. */
#include "server/json/fields.h"
#include "server/chat/template.h"

#include <string.h>

#define DEPTH_MAX 256

static struct jinja_value convert(struct jinja_ctx *c, const json_t *v, uint32_t origin, int depth)
{
    struct jinja_value out = jinja_none();
    if (depth > DEPTH_MAX) return out;
    switch (json_typeof(v)) {
    case JSON_STRING: return jinja_string(c, json_string_value(v), json_string_length(v), origin);
    case JSON_INTEGER: return jinja_with_origin(jinja_int(json_integer_value(v)), origin);
    case JSON_REAL: return jinja_with_origin(jinja_float(json_real_value(v)), origin);
    case JSON_TRUE: /* words of a closed set, however they are printed */
    case JSON_FALSE: return jinja_with_origin(jinja_bool(json_is_true(v)), JINJA_OURS(origin));
    case JSON_NULL: return jinja_with_origin(out, JINJA_OURS(origin));
    case JSON_ARRAY:
        out = jinja_list(c, origin);
        for (size_t i = 0; i < json_array_size(v); i++)
            jinja_list_add(c, out, convert(c, json_array_get(v, i), origin, depth + 1));
        return out;
    case JSON_OBJECT: {
        const char *key, *digits = json_big_int(v);
        if (digits) return jinja_int_digits(c, digits, strlen(digits), origin);
        json_t *item, *object = (json_t *)(uintptr_t)
                          v; /* iteration does not change it; jansson's signature lacks the const */
        out = jinja_dict(c, origin);
        json_object_foreach(object, key, item)
            jinja_dict_set(c, out, key, strlen(key), convert(c, item, origin, depth + 1));
        return out;
    }
    }
    return out;
}

struct jinja_value template_value(struct jinja_ctx *c, const json_t *v, uint32_t origin)
{
    return v ? convert(c, v, origin, 0) : jinja_none();
}
