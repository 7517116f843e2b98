/* A small read-only JSON reader for files of a checkpoint (config.json, safetensors headers, a 30 MB
 * tokenizer.json). The document is parsed once into a flat array of nodes that point into the text; strings
 * are unescaped on request. Pure and reentrant. HTTP bodies are read with jansson in server/, not with this.
 * Follows RFC 8259; duplicate keys: json_get finds the last. */
#ifndef KVASIR_JSON_H
#define KVASIR_JSON_H

#include "config/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum json_kind { JSON_NULL = 0, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

/* One value. Children of an array follow it; children of an object are key (a STRING node), value, key,
 * value... */
struct json_node {
    uint32_t next;   /* index of the node after this value and its descendants */
    uint32_t count;  /* elements of an array, pairs of an object */
    uint32_t len;    /* bytes of a number's or a string's raw text (without quotes) */
    uint8_t kind;    /* enum json_kind */
    uint8_t escaped; /* a string that holds backslashes */
    uint16_t unused;
    uint64_t at; /* byte offset of the raw text */
};

struct json_doc {
    const char *text; /* borrowed, or owned */
    size_t len;
    struct json_node *nodes;
    uint32_t node_count;
    char *owned;
};

#define JSON_NONE UINT32_MAX /* "no such value" */

/* Parses text[0..len). The text is borrowed and must outlive the document. ST_FORMAT names the byte offset;
 * ST_TOO_LARGE above depth 64, 4 GiB of text or 2^31 nodes. `name` is used in messages. */
enum status json_parse(const char *text, size_t len, const char *name, struct json_doc *out,
                       struct err *err) KV_MUST_CHECK;
/* Reads and parses a file of at most max_bytes. ST_NOT_FOUND when it doesn't exist. */
enum status json_doc_load(const char *path, size_t max_bytes, struct json_doc *out,
                          struct err *err) KV_MUST_CHECK;
/* The same for DIR/NAME. *path receives that path, owned by the caller, also on error. */
enum status json_load(const char *dir, const char *name, size_t max_bytes, struct json_doc *out, char **path,
                      struct err *err) KV_MUST_CHECK;
void json_free(struct json_doc *doc);

/* Navigation. Node 0 is the root. Every function accepts JSON_NONE and returns "absent". */
enum json_kind json_kind(const struct json_doc *d, uint32_t node); /* JSON_NONE -> JSON_NULL */
uint32_t json_get(const struct json_doc *d, uint32_t object,
                  const char *key); /* JSON_NONE if absent or not an object */
uint32_t json_get_live(const struct json_doc *d, uint32_t object,
                       const char *key); /* as json_get; JSON null counts as absent */
uint32_t json_first(const struct json_doc *d,
                    uint32_t container); /* first child (object: first key); JSON_NONE if empty */
uint32_t json_at(const struct json_doc *d, uint32_t array, uint32_t idx); /* O(idx) */
static inline uint32_t json_next(const struct json_doc *d, uint32_t node)
{
    return d->nodes[node].next;
}
uint32_t json_count(const struct json_doc *d, uint32_t container);

/* Values. Return false (out untouched) when the node is of another kind or does not fit. */
bool json_int(const struct json_doc *d, uint32_t node, int64_t *out); /* 5 and 5.0, not 5.5 */
bool json_uint(const struct json_doc *d, uint32_t node, uint64_t *out);
bool json_double(const struct json_doc *d, uint32_t node, double *out);
bool json_bool(const struct json_doc *d, uint32_t node, bool *out);
bool json_str_eq(const struct json_doc *d, uint32_t node, const char *s);
/* Unescapes into dst (capacity cap); *len = bytes needed (without NUL). Lone surrogates become U+FFFD. At
 * most as long as the raw text. false if not a string or it doesn't fit. No NUL is written. */
bool json_str_copy(const struct json_doc *d, uint32_t node, char *dst, size_t cap, size_t *len);
/* A freshly allocated NUL-terminated copy (caller frees), NULL if not a string or out of memory. */
char *json_str_dup(const struct json_doc *d, uint32_t node, size_t *len);
/* Raw bytes between the quotes of a string (or of a number), for zero-copy compares when nodes[node].escaped
 * is 0. */
const char *json_raw(const struct json_doc *d, uint32_t node, size_t *len);

#endif
