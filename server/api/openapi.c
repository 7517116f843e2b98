/* GET /openapi.json, the description of this interface: a file built into the program, with the fields of
 * requests from their table (input/fields.def). In the file's "x-operations" a row [path, summary, schema of
 * the body or null, schema of the response, of its events] stands for a path; without a body it is a GET; one
 * under /v1 is there without it too.
 * tests/api/test_openapi.py compares it with what the server does. */
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
