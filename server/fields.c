/* See fields.h. */
#include "server/fields.h"

#include <math.h>
#include <stddef.h>

json_t *field(json_t *object, const char *name)
{
    json_t *v = json_object_get(object, name);
    return v && !json_is_null(v) ? v : NULL;
}

bool json_to_int(json_t *v, int64_t *out)
{
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return true;
    }
    if (!json_is_real(v)) return false;
    double d = json_real_value(v);
    if (d < -9.2e18 || d > 9.2e18 || d - floor(d) > 0) return false;
    *out = (int64_t)d;
    return true;
}

enum status field_bool(struct api_error *e, json_t *root, const char *name, bool *out)
{
    json_t *v = field(root, name);
    if (!v) return ST_OK;
    if (!json_is_boolean(v)) return api_fail(e, 400, "invalid_type", name, "%s must be a boolean.", name);
    *out = json_is_true(v);
    return ST_OK;
}

enum status field_int(struct api_error *e, json_t *root, const char *name, int64_t min, int64_t max, int64_t *out, bool *has)
{
    json_t *v = field(root, name);
    if (has) *has = false;
    if (!v) return ST_OK;
    int64_t i;
    if (!json_to_int(v, &i)) return api_fail(e, 400, "invalid_type", name, "%s must be an integer.", name);
    if (i < min || i > max) {
        return max == INT64_MAX ? api_fail(e, 400, "invalid_value", name, "%s must be at least %lld.", name, (long long)min)
                                : api_fail(e, 400, "invalid_value", name, "%s must be from %lld to %lld.", name, (long long)min, (long long)max);
    }
    *out = i;
    if (has) *has = true;
    return ST_OK;
}

enum status field_num(struct api_error *e, json_t *root, const char *name, double min, double max, double *out, bool *has)
{
    json_t *v = field(root, name);
    if (has) *has = false;
    if (!v) return ST_OK;
    if (!json_is_number(v)) return api_fail(e, 400, "invalid_type", name, "%s must be a number.", name);
    double d = json_number_value(v);
    if (!(d >= min && d <= max)) return api_fail(e, 400, "invalid_value", name, "%s must be from %g to %g.", name, min, max);
    *out = d;
    if (has) *has = true;
    return ST_OK;
}
