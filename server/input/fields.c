/* See fields.h. */
#include "server/input/fields.h"

#include "config/base/log.h"
#include "server/input/input.h"
#include "server/input/parse.h"
#include "server/json/fields.h"
#include "server/json/parser.h"

#include <math.h>
#include <string.h>

enum field_kind {
    KIND_BOOL,
    KIND_SET,
    KIND_INT,
    KIND_UINT,
    KIND_FLOAT,
    KIND_TEXT,
    KIND_LOOSE,
    KIND_PRESENT,
    KIND_READ,
    KIND_PART,
    KIND_IGNORED,
    KIND_REFUSED,
    KIND_EMPTY,
    KIND_NEUTRAL,
    KIND_ELSEWHERE
};

struct field_row {
    const char *name;
    unsigned apis;
    enum field_kind kind;
    size_t at, has; /* of the member in struct inference_request; has: of the one for its presence, or 0 */
    int64_t from, to;
    double low, high; /* FLOAT; NEUTRAL: low */
    field_reader *read;
    const char *schema; /* READ, PART: "" = anything */
    const char *use;    /* ELSEWHERE */
    const char *help;
};

#define AT(member)               offsetof(struct inference_request, member)
#define BOOL(m)                  .kind = KIND_BOOL, .at = AT(m)
#define SET(m)                   .kind = KIND_SET, .at = AT(m)
#define INT(m, lo, hi)           .kind = KIND_INT, .at = AT(m), .from = (lo), .to = (hi)
#define INT_SET(m, lo, hi)       .kind = KIND_INT, .at = AT(m), .has = AT(has_##m), .from = (lo), .to = (hi)
#define UINT(m, lo, hi)          .kind = KIND_UINT, .at = AT(m), .from = (lo), .to = (hi)
#define FLOAT(m, lo, hi)         .kind = KIND_FLOAT, .at = AT(m), .low = (lo), .high = (hi)
#define TEXT(m)                  .kind = KIND_TEXT, .at = AT(m)
#define LOOSE(m)                 .kind = KIND_LOOSE, .at = AT(m)
#define PRESENT(m)               .kind = KIND_PRESENT, .at = AT(m)
#define READ(f, as)              .kind = KIND_READ, .read = read_##f, .schema = (as)
#define PART(as)                 .kind = KIND_PART, .schema = (as)
#define IGNORED                  .kind = KIND_IGNORED
#define REFUSED                  .kind = KIND_REFUSED
#define EMPTY                    .kind = KIND_EMPTY
#define NEUTRAL(value)           .kind = KIND_NEUTRAL, .low = (value)
#define ELSEWHERE(field)         .kind = KIND_ELSEWHERE, .use = (field)
#define FIELD(n, of, what, text) {.name = #n, .apis = (of), what, .help = (text)},
static const struct field_row rows[] = {
#include "server/input/fields.def"
};
#undef FIELD
enum { ROWS = sizeof rows / sizeof *rows };

/* ---- reading ---- */

static bool is_empty(json_t *v)
{
    return (json_is_array(v) && !json_array_size(v)) || (json_is_object(v) && !json_object_size(v)) ||
           (json_is_string(v) && !json_string_length(v));
}

/* The value has no effect: so, or less if 0 means off. */
static bool is_neutral(json_t *v, double neutral)
{
    if (!json_is_boolean(v) && !json_is_number(v)) return false;
    double n = json_is_boolean(v) ? json_is_true(v) : json_number_value(v);
    return n <= neutral && (neutral < 1 || n >= neutral);
}

static enum status refuse(struct generation *g, const struct field_row *row)
{
    return api_fail(g->e, 400, "unsupported_parameter", row->name, "%s is not supported.", row->name);
}

static enum status number_read(struct generation *g, const struct field_row *row, json_t *from, void *to)
{
    bool has = false;
    int64_t i;
    double d;
    if (row->kind == KIND_FLOAT) {
        if (field_num(g->e, from, row->name, row->low, row->high, &d, NULL)) return ST_INVALID;
        *(float *)to = (float)d;
        return ST_OK;
    }
    if (field_int(g->e, from, row->name, row->from, row->to, &i, &has)) return ST_INVALID;
    if (row->kind == KIND_UINT) *(uint32_t *)to = i < 0 ? 0 : (uint32_t)i;
    else *(int64_t *)to = i;
    if (row->has) *(bool *)((char *)&g->q + row->has) = true;
    return ST_OK;
}

static enum status row_read(struct generation *g, const struct field_row *row, json_t *from, json_t *v)
{
    enum { LONGEST = 1024 };
    void *to = (char *)&g->q + row->at;
    bool is = false;
    switch (row->kind) {
    case KIND_BOOL: return field_bool(g->e, from, row->name, to);
    case KIND_SET:
        if (field_bool(g->e, from, row->name, &is)) return ST_INVALID;
        if (is) *(bool *)to = true;
        return ST_OK;
    case KIND_INT:
    case KIND_UINT:
    case KIND_FLOAT: return number_read(g, row, from, to);
    case KIND_TEXT:
    case KIND_LOOSE:
        if (json_string_length(v) > LONGEST) return ST_OK; /* counts as absent: it is kept until the end */
        if (json_is_string(v)) return arena_text(&g->q.arena, v, to) ? gen_nomem(g) : ST_OK;
        return row->kind == KIND_LOOSE
                   ? ST_OK
                   : api_fail(g->e, 400, "invalid_type", row->name, "%s must be a string.", row->name);
    case KIND_PRESENT: *(bool *)to = true; return ST_OK;
    case KIND_READ: return row->read(g, v, row->name);
    case KIND_PART:
    case KIND_IGNORED: return ST_OK;
    case KIND_REFUSED: return refuse(g, row);
    case KIND_EMPTY: return is_empty(v) ? ST_OK : refuse(g, row);
    case KIND_NEUTRAL:
        return is_neutral(v, row->low)
                   ? ST_OK
                   : api_fail(g->e, 400, "unsupported_parameter", row->name,
                              "%s is not supported: leave it out, or send %g.", row->name, row->low);
    case KIND_ELSEWHERE: break;
    }
    bool one = strcmp(row->name, "n") == 0 && json_is_integer(v) && json_integer_value(v) == 1;
    if (one || (!json_is_object(v) && is_empty(v))) return ST_OK;
    return api_fail(g->e, 400, "unsupported_parameter", row->name, "%s is not supported here%s%s.", row->name,
                    row->use ? ": use " : "", row->use ? row->use : "");
}

/* ---- names that are not in the table ---- */

/* A schema's text, with ' for ". */
static json_t *schema_of(const char *text)
{
    char quoted[2048];
    size_t n = 0;
    json_t *out;
    for (; text[n] && n + 1 < sizeof quoted; n++) quoted[n] = (char)(text[n] == '\'' ? '"' : text[n]);
    return json_from_text(n ? quoted : "{}", n ? n : 2, &out) ? NULL : out;
}

/* Warns of members of `from` that are nearly one of names[0..count). in: "reasoning." or empty. */
static void note_near(struct generation *g, json_t *from, const char *in, const char *const *names,
                      size_t count)
{
    enum { WARNINGS_MAX = 8, LOOKED_AT_MAX = 64 };
    const char *key;
    size_t looked_at = 0;
    json_t *v;
    json_object_foreach(from, key, v) {
        size_t i = 0;
        while (i < count && strcmp(key, names[i]) != 0) i++;
        bool other = strcmp(key, "models") == 0; /* of a router: not a slip */
        if (i < count || other || json_is_null(v) || looked_at++ >= LOOKED_AT_MAX) continue;
        const char *near = field_near(key, names, count);
        if (!near || json_array_size(g->misspelt) >= WARNINGS_MAX) continue;
        if (!g->misspelt) g->misspelt = json_array();
        (void)json_array_append_new(
            g->misspelt,
            json_sprintf("The field '%s%s' is unknown and ignored: '%s' is similar.", in, key, near));
    }
}

/* Of an object whose members the schema of its row lists. */
static void note_within(struct generation *g, const struct field_row *row, json_t *v)
{
    enum { MEMBERS = 16 };
    const char *names[MEMBERS], *key;
    char in[64];
    size_t count = 0;
    json_t *schema = json_is_object(v) && row->schema ? schema_of(row->schema) : NULL, *one;
    json_object_foreach(json_object_get(schema, "properties"), key, one)
        if (count < MEMBERS) names[count++] = key;
    snprintf(in, sizeof in, "%s.", row->name);
    if (count) note_near(g, v, in, names, count);
    json_decref(schema);
}

static void note_unknown(struct generation *g, json_t *from, unsigned known)
{
    const char *names[ROWS];
    size_t count = 0;
    char unknown[300];
    for (size_t i = 0; i < ROWS; i++)
        if (rows[i].apis & known) names[count++] = rows[i].name;
    note_near(g, from, "", names, count);
    if (log_enabled(LOG_DEBUG) && fields_unknown(from, names, count, unknown, sizeof unknown))
        log_debug("req=%s fields that mean nothing here are ignored: %s", g->caller.id, unknown);
}

enum status fields_read(struct generation *g, json_t *from, unsigned read, unsigned known)
{
    note_unknown(g, from, known);
    for (size_t i = 0; i < ROWS; i++) {
        unsigned of = rows[i].kind == KIND_ELSEWHERE ? known : read; /* of a count, too */
        json_t *v = rows[i].apis & of ? field(from, rows[i].name) : NULL;
        if (v && row_read(g, &rows[i], from, v)) return ST_INVALID;
        if (v) note_within(g, &rows[i], v);
    }
    return ST_OK;
}

json_t *fields_part(unsigned api, json_t *from, const char *name)
{
    for (size_t i = 0; i < ROWS; i++)
        if (rows[i].apis & api && rows[i].kind == KIND_PART && strcmp(rows[i].name, name) == 0)
            return field(from, name);
    return NULL;
}

/* ---- as JSON Schema ---- */

static json_t *number_schema(const struct field_row *row)
{
    json_t *s = json_pack("{s:s}", "type", row->kind == KIND_FLOAT ? "number" : "integer");
    bool open = row->from == INT64_MIN, whole = row->kind != KIND_FLOAT;
    json_t *low = !whole ? json_real(row->low)
                  : open ? NULL
                         : json_integer(row->from),
           *high = !whole                 ? json_real(row->high)
                   : row->to >= INT32_MAX ? NULL
                                          : json_integer(row->to);
    if (low) (void)json_object_set_new(s, "minimum", low);
    if (high) (void)json_object_set_new(s, "maximum", high);
    return s;
}

/* Why a row is refused. */
static const char *refusal(const struct field_row *row, char *room, size_t cap)
{
    if (row->kind == KIND_REFUSED) return "Refused with 400 unless null.";
    if (row->kind == KIND_EMPTY) return "Refused with 400 unless empty.";
    if (row->kind == KIND_NEUTRAL)
        snprintf(room, cap, "Refused with 400 unless it has its neutral value (%g).", row->low);
    else if (row->use) snprintf(room, cap, "Refused with 400: use %s.", row->use);
    else return "Refused with 400 unless empty.";
    return room;
}

static json_t *row_schema(const struct field_row *row)
{
    const char *said = row->help;
    char room[100];
    json_t *s;
    switch (row->kind) {
    case KIND_BOOL:
    case KIND_SET: s = json_pack("{s:s}", "type", "boolean"); break;
    case KIND_INT:
    case KIND_UINT:
    case KIND_FLOAT: s = number_schema(row); break;
    case KIND_TEXT:
    case KIND_LOOSE: s = json_pack("{s:s}", "type", "string"); break;
    case KIND_READ:
    case KIND_PART: s = schema_of(row->schema); break;
    case KIND_PRESENT:
    case KIND_IGNORED: s = json_object(); break;
    default: s = json_object(); said = refusal(row, room, sizeof room);
    }
    if (s && *said) (void)json_object_set_new(s, "description", json_string(said));
    return s;
}

json_t *fields_schema(unsigned api)
{
    json_t *all = json_object();
    for (size_t i = 0; i < ROWS && all; i++)
        if (rows[i].apis & api) (void)json_object_set_new(all, rows[i].name, row_schema(&rows[i]));
    return all;
}
