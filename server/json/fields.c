/* See fields.h. */
#include "server/json/fields.h"

#include "config/base/assert.h"
#include <ctype.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

json_t *field(json_t *object, const char *name)
{
    json_t *v = json_object_get(object, name);
    return v && !json_is_null(v) ? v : NULL;
}

bool json_is(const json_t *v, const char *text)
{
    return json_is_string(v) && json_string_length(v) == strlen(text) &&
           memcmp(json_string_value(v), text, strlen(text)) == 0;
}

bool json_to_int(json_t *v, int64_t *out)
{
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return true;
    }
    if (!json_is_real(v)) return false;
    double d = json_real_value(v);
    if (!(d >= -0x1p63 && d < 0x1p63) || d - floor(d) > 0) return false;
    *out = (int64_t)d;
    return true;
}

enum { NEAR_MAX = 48 };

/* Letters and digits in lower case; their number, or 0 for long names. */
static size_t letters(const char *s, char out[NEAR_MAX])
{
    size_t n = 0;
    for (; *s && n < NEAR_MAX; s++)
        if (*s != '_' && *s != '-') out[n++] = (char)tolower((unsigned char)*s);
    return n < NEAR_MAX ? n : 0;
}

/* Insertions, deletions, substitutions and transpositions of neighbours that make a[0..n) of b[0..m). */
static size_t slips(const char *a, size_t n, const char *b, size_t m)
{
    size_t d[NEAR_MAX][NEAR_MAX];
    for (size_t i = 0; i <= n; i++) {
        for (size_t j = 0; j <= m; j++) {
            size_t best = i ? d[i - 1][j] + 1 : j;
            if (i && j && d[i][j - 1] + 1 < best) best = d[i][j - 1] + 1;
            size_t same = i && j ? d[i - 1][j - 1] + (a[i - 1] != b[j - 1]) : i + j;
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped && d[i - 2][j - 2] + 1 < same) same = d[i - 2][j - 2] + 1;
            d[i][j] = same < best ? same : best;
        }
    }
    return d[n][m];
}

const char *field_near(const char *name, const char *const *known, size_t count)
{
    char a[NEAR_MAX], b[NEAR_MAX];
    size_t n = letters(name, a), least = n < 5 ? 0 : n < 10 ? 1 : 2;
    const char *found = NULL;
    for (size_t i = 0; i < count && n; i++) {
        size_t m = letters(known[i], b), s = m ? slips(a, n, b, m) : SIZE_MAX;
        if (s > least || (found && s == least)) continue;
        found = known[i];
        least = s;
    }
    return found;
}

size_t fields_unknown(json_t *root, const char *const *known, size_t count, char *out, size_t cap)
{
    const char *key;
    json_t *v;
    size_t found = 0, at = 0;
    ASSERT(cap > 0);
    out[0] = '\0';
    json_object_foreach(root, key, v) {
        size_t i = 0;
        while (i < count && strcmp(key, known[i]) != 0) i++;
        if (i < count || json_is_null(v)) continue;
        size_t len = strlen(key), need = len + (found++ ? 2 : 0);
        if (at + need >= cap) continue;
        if (at) memcpy(out + at, ", ", 2);
        at += at ? 2 : 0;
        for (size_t k = 0; k < len; k++) out[at++] = key[k] > ' ' && key[k] <= '~' ? key[k] : '?';
        out[at] = '\0';
    }
    return found;
}

const char *json_big_int(const json_t *v)
{
    const json_t *text =
        json_is_object(v) && json_object_size(v) == 1 ? json_object_get(v, JSON_BIG_INT) : NULL;
    const char *s = json_string_value(text);
    size_t minus = s && *s == '-', digits = s ? strspn(s + minus, "0123456789") : 0;
    return digits && minus + digits == json_string_length(text) ? s : NULL;
}

enum status field_bool(struct api_error *e, json_t *root, const char *name, bool *out)
{
    json_t *v = field(root, name);
    if (!v) return ST_OK;
    if (!json_is_boolean(v)) return api_fail(e, 400, "invalid_type", name, "%s must be a boolean.", name);
    *out = json_is_true(v);
    return ST_OK;
}

enum status value_int(struct api_error *e, json_t *v, const char *name, int64_t min, int64_t max,
                      int64_t *out)
{
    int64_t i;
    ASSERT_CMP(min, <=, max);
    /* An integer beyond 64 bits is parsed as a double (parser.c). */
    bool beyond = json_is_real(v) && !(json_real_value(v) >= -0x1p63 && json_real_value(v) < 0x1p63);
    if (beyond)
        return api_fail(e, 400, "invalid_value", name, "%s must be from %lld to %lld.", name, (long long)min,
                        (long long)max);
    if (!json_to_int(v, &i)) return api_fail(e, 400, "invalid_type", name, "%s must be an integer.", name);
    if (i < min || i > max) {
        return max == INT64_MAX ? api_fail(e, 400, "invalid_value", name, "%s must be at least %lld.", name,
                                           (long long)min)
                                : api_fail(e, 400, "invalid_value", name, "%s must be from %lld to %lld.",
                                           name, (long long)min, (long long)max);
    }
    *out = i;
    return ST_OK;
}

enum status field_int(struct api_error *e, json_t *root, const char *name, int64_t min, int64_t max,
                      int64_t *out, bool *has)
{
    json_t *v = field(root, name);
    enum status st = v ? value_int(e, v, name, min, max, out) : ST_OK;
    if (has) *has = v && !st;
    return st;
}

enum status field_num(struct api_error *e, json_t *root, const char *name, double min, double max,
                      double *out, bool *has)
{
    json_t *v = field(root, name);
    if (has) *has = false;
    if (!v) return ST_OK;
    if (!json_is_number(v)) return api_fail(e, 400, "invalid_type", name, "%s must be a number.", name);
    double d = json_number_value(v);
    if (!(d >= min && d <= max))
        return api_fail(e, 400, "invalid_value", name, "%s must be from %g to %g.", name, min, max);
    *out = d;
    if (has) *has = true;
    return ST_OK;
}
