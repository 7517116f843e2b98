/* GET /openapi.json, the description of this interface: a file built into the program, with the fields of
 * requests from their table (input/fields.def). Schemas and responses are short there: schema(), response().
 * In its "x-operations" a row [path, summary, schema of the body or null, schema of the response, of its
 * events] stands for a path; without a body it is a GET; one under /v1 is there without it too.
 * tests/api/test_openapi.py compares the document with what the server does. */
#include "server/http/request.h"
#include "server/api/api.h"
#include "server/input/fields.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The assembler puts the file in: relative to where make runs. A NUL after it makes it a string. */
__asm__(".pushsection .rodata\n"
        ".global kvasir_openapi\n"
        "kvasir_openapi: .incbin \"server/api/openapi.json\"\n"
        ".byte 0\n"
        ".popsection\n");
extern const char kvasir_openapi[];

static bool starts(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static void expand(json_t *v, json_t *(*made)(json_t *));

static json_t *reference(const char *what, const char *name)
{
    return json_pack("{s:o}", "$ref", json_sprintf("#/components/%s/%s", what, name));
}

/* A schema in text: "integer"; "string?", which may be null; "[T]", an array; "#Usage", a reference; "any";
 * "asc|desc", one of these strings; with a description after ": ". */
static json_t *schema_text(const char *text)
{
    const char *about = strstr(text, ": ");
    size_t n = about ? (size_t)(about - text) : strlen(text);
    bool null = text[n - 1] == '?', array = *text == '[';
    char inner[64];
    n -= null;
    if (strchr(text, '|') && !about) {
        json_t *words = json_array();
        for (; *text; text += n + (text[n] == '|')) {
            n = strcspn(text, "|");
            (void)json_array_append_new(words, json_stringn(text, n));
        }
        return json_pack("{s:s,s:o}", "type", "string", "enum", words);
    }
    snprintf(inner, sizeof inner, "%.*s", (int)(array ? n - 2 : n), text + array);
    json_t *out = *text == '#'                          ? reference("schemas", inner + 1)
                  : strcmp(inner, "any") == 0 && !array ? json_object()
                                                        : json_pack("{s:s}", "type", array ? "array" : inner);
    if (null && *text == '#') return json_pack("{s:[o,{s:s}]}", "anyOf", out, "type", "null");
    if (null) (void)json_object_set_new(out, "type", json_pack("[s,s]", array ? "array" : inner, "null"));
    if (array) (void)json_object_set_new(out, "items", schema_text(inner));
    if (about) (void)json_object_set_new(out, "description", json_string(about + 2));
    return out;
}

/* A schema: as text; {"{}": properties}, or {"[]": those of an array's items}, "name!" a required one; or in
 * full. */
static json_t *schema(json_t *v)
{
    json_t *fields = json_object_get(v, "{}"), *items = json_object_get(v, "[]"), *field;
    if (json_is_string(v)) return schema_text(json_string_value(v));
    if (!fields && !items) return expand(v, NULL), json_incref(v);
    json_t *required = json_array(), *properties = json_object(), *out = json_pack("{s:s}", "type", "object");
    const char *key;
    json_object_foreach(fields ? fields : items, key, field) {
        char name[64];
        size_t n = strlen(key) - (key[strlen(key) - 1] == '!');
        snprintf(name, sizeof name, "%.*s", (int)n, key);
        if (key[n]) (void)json_array_append_new(required, json_string(name));
        (void)json_object_set_new(properties, name, schema(field));
    }
    if (json_array_size(required)) (void)json_object_set(out, "required", required);
    json_decref(required);
    (void)json_object_set_new(out, "properties", properties);
    return fields ? out : json_pack("{s:s,s:o}", "type", "array", "items", out);
}

static json_t *media(const char *name)
{
    return json_pack("{s:o}", "schema", reference("schemas", name));
}

/* The response of a status: "#Name", a reference; another text, its description; {"{}": ...}, its schema; or
 * in full. */
static json_t *response(json_t *v)
{
    const char *text = json_string_value(v);
    if (text && *text == '#') return reference("responses", text + 1);
    if (text) return json_pack("{s:s}", "description", text);
    if (!json_object_get(v, "{}")) return expand(v, NULL), json_incref(v);
    return json_pack("{s:s,s:{s:{s:o}}}", "description", "The response.", "content", "application/json",
                     "schema", schema(v));
}

/* What v holds in short, in place. made: of each of its members; NULL: what their keys say. */
static void expand(json_t *v, json_t *(*made)(json_t *))
{
    static const struct {
        const char *key;
        json_t *(*itself)(json_t *), *(*members)(json_t *);
    } keys[] = {
        {"schema", schema, NULL},     {"items", schema, NULL},      {"additionalProperties", schema, NULL},
        {"properties", NULL, schema}, {"schemas", NULL, schema},    {"oneOf", NULL, schema},
        {"anyOf", NULL, schema},      {"responses", NULL, response}};
    const char *key;
    json_t *m;
    size_t i;
    json_array_foreach(v, i, m) {
        if (made) (void)json_array_set_new(v, i, made(m));
        else expand(m, NULL);
    }
    json_object_foreach(v, key, m) {
        for (i = 0; i < sizeof keys / sizeof *keys && strcmp(key, keys[i].key) != 0;) i++;
        bool known = i < sizeof keys / sizeof *keys;
        json_t *(*of)(json_t *) = made ? made : known ? keys[i].itself : NULL;
        if (of) (void)json_object_set_new(v, key, of(m));
        else expand(m, known ? keys[i].members : NULL);
    }
}

static json_t *operation(const char *path, const char *summary, const char *body, const char *response,
                         const char *events)
{
    bool ollama = starts(path, "/api/"), messages = starts(path, "/v1/messages");
    json_t *kinds = json_pack("{s:o}", "application/json", media(response));
    if (events)
        (void)json_object_set_new(kinds, ollama ? "application/x-ndjson" : "text/event-stream",
                                  media(events));
    const char *error = ollama     ? "OllamaError"
                        : messages ? "MessagesError"
                                   : "Error",
               *what = events && !ollama ? "The response; with stream: true, server-sent events."
                                         : "The response.";
    json_t *out = json_pack("{s:s, s:{s:{s:s, s:o}, s:{s:o}}}", "summary", summary, "responses", "200",
                            "description", what, "content", kinds, "default", "$ref",
                            json_sprintf("#/components/responses/%s", error));
    if (body)
        (void)json_object_set_new(
            out, "requestBody",
            json_pack("{s:b, s:{s:o}}", "required", 1, "content", "application/json", media(body)));
    return out;
}

/* To "paths" what "x-operations" says. */
static void put_operations(json_t *doc)
{
    json_t *paths = json_object_get(doc, "paths"), *rows = json_object_get(doc, "x-operations"), *row;
    size_t i;
    json_array_foreach(rows, i, row) {
        const char *text[5];
        for (size_t k = 0; k < 5; k++) text[k] = json_string_value(json_array_get(row, k));
        const char *path = text[0];
        json_t *made = operation(path, text[1], text[2], text[3], text[4]);
        (void)json_object_set_new(paths, path, json_pack("{s:o}", text[2] ? "post" : "get", made));
        if (!starts(path, "/v1/")) continue;
        char pointer[100];
        size_t n = (size_t)snprintf(pointer, sizeof pointer, "#/paths/");
        for (const char *p = path; *p && n + 3 < sizeof pointer; p++)
            n += (size_t)snprintf(pointer + n, sizeof pointer - n, *p == '/' ? "~1" : "%c", *p);
        (void)json_object_set_new(paths, path + 3, json_pack("{s:s}", "$ref", pointer));
    }
    (void)json_object_del(doc, "x-operations");
}

/* The fields of requests, from the table that the server reads them by. */
static void put_fields(json_t *schemas)
{
    static const struct {
        const char *schema;
        unsigned api;
    } of[] = {{"ChatRequest", API_CHAT},           {"CompletionRequest", API_TEXT},
              {"ResponsesRequest", API_RESPONSES}, {"MessagesRequest", API_MESSAGES},
              {"CountTokensRequest", API_COUNT},   {"OllamaRequest", API_OLLAMA},
              {"EmbeddingsRequest", API_EMBED},    {"ClassifyRequest", API_CLASSIFY},
              {"RerankRequest", API_RERANK},       {"ScoreRequest", API_SCORE},
              {"TokenizeRequest", API_TOKENIZE},   {"OllamaEmbedRequest", API_OLLAMA_EMBED}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        (void)json_object_set_new(json_object_get(schemas, of[i].schema), "properties",
                                  fields_schema(of[i].api));
}

/* The document, made once: on the loop alone. NULL: out of memory. */
static const char *document(void)
{
    static char *text;
    if (text) return text;
    json_t *doc = json_loads(kvasir_openapi, 0, NULL);
    expand(doc, NULL);
    put_operations(doc);
    put_fields(json_object_get(json_object_get(doc, "components"), "schemas"));
    text = json_dumps(doc, 0);
    json_decref(doc);
    return text;
}

void api_openapi_start(struct request *r)
{
    const char *text = document();
    request_respond(r, text && !buf_add(&r->response.out, text, strlen(text)) ? 200 : 500);
}
