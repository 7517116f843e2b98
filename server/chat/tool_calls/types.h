/* Parameter types of a request's functions, from their schemas: calls written as
 * <parameter=NAME>text</parameter> (tool_calls/tags.c) don't distinguish "5" from 5; the schema does. Event
 * loop's and worker threads, one at a time. */
#ifndef KVASIR_TOOL_TYPES_H
#define KVASIR_TOOL_TYPES_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TYPE_STRING = 1,
    TYPE_INTEGER = 2,
    TYPE_NUMBER = 4, /* integers as well */
    TYPE_BOOLEAN = 8,
    TYPE_NULL = 16,
    TYPE_OBJECT = 32,
    TYPE_ARRAY = 64
};

struct tool_types;

/* tools: the request's field, already checked; not retained. NULL: out of memory. */
struct tool_types *tool_types_create(json_t *tools);
void tool_types_destroy(struct tool_types *t);
/* Is there a function of this name? t may be NULL: no. */
bool tool_types_knows(const struct tool_types *t, const char *function, size_t function_len);
/* Is this one of its properties? */
bool tool_types_lists(const struct tool_types *t, const char *function, size_t function_len,
                      const char *parameter, size_t parameter_len);
/* Allowed TYPE_* of its parameter, TYPE_STRING if the schema gives none; 0: no such parameter. */
uint8_t tool_types_of(const struct tool_types *t, const char *function, size_t function_len,
                      const char *parameter, size_t parameter_len);

#endif
