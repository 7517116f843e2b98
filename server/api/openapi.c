/* GET /openapi.json: the description of this interface, a file built into the program, in which short forms
 * stand for what would be written many times:
 *
 *   "x-operations"  rows [path, summary, schema of the body or null, schema of the response, of its events].
 *                   Without a body it is a GET. Each becomes a path; one under /v1 is there without it too.
 *   "x-alike"       of a schema: rows [what a property is, its name, another's name, ...].
 *
 * tests/api/test_openapi.py compares it with what the server does. */
#include "server/http/request.h"
#include "server/api/api.h"

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

/* {"schema": a reference} */
static json_t *media(const char *schema)
{
    return json_pack("{s:{s:o}}", "schema", "$ref", json_sprintf("#/components/schemas/%s", schema));
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
    json_array_foreach(rows, i, row)
    {
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

/* To the schema's "properties" what its "x-alike" says. */
static void put_alike(json_t *schema)
{
    json_t *properties = json_object_get(schema, "properties"), *row;
    size_t i;
    json_array_foreach(json_object_get(schema, "x-alike"), i, row)
    {
        for (size_t k = 1; k < json_array_size(row); k++)
            (void)json_object_set(properties, json_string_value(json_array_get(row, k)),
                                  json_array_get(row, 0));
    }
    (void)json_object_del(schema, "x-alike");
}

/* The document, made once: on the loop alone. NULL: out of memory. */
static const char *document(void)
{
    static char *text;
    if (text) return text;
    json_t *doc = json_loads(kvasir_openapi, 0, NULL), *schema;
    const char *key;
    put_operations(doc);
    json_object_foreach(json_object_get(json_object_get(doc, "components"), "schemas"), key, schema)
        put_alike(schema);
    text = json_dumps(doc, 0);
    json_decref(doc);
    return text;
}

void api_openapi_start(struct request *r)
{
    const char *text = document();
    request_respond(r, text && !buf_add(&r->response.out, text, strlen(text)) ? 200 : 500);
}
