/* An incremental JSON validator (RFC 8259), byte by byte, for growing model text (tool_parse.h). Builds no
 * values. Pure. */
#ifndef KVASIR_TOOL_JSON_H
#define KVASIR_TOOL_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    J_VALUE = 0,
    J_FIRST_ITEM,
    J_FIRST_KEY,
    J_KEY,
    J_COLON,
    J_AFTER,
    J_STRING,
    J_ESCAPE,
    J_HEX,
    J_LITERAL,
    J_MINUS,
    J_ZERO,
    J_INT,
    J_POINT,
    J_FRACTION,
    J_E,
    J_E_SIGN,
    J_EXPONENT,
    J_DONE
};

/* All zero: the beginning of a value. */
struct tool_json {
    uint8_t state, left; /* J_*; left: bytes of a literal or hex digits to come */
    const char *literal;
    uint32_t depth;
    uint64_t objects[2]; /* bit d: the container at depth d is an object */
    bool key;            /* the current string is a key */
};

/* Consumes one byte; false: not JSON. Containers nest up to 127 deep. */
bool tool_json_step(struct tool_json *j, char c);
/* Is the whole text one value? White space around it is allowed. */
bool tool_json_whole(const char *text, size_t len);

#endif
