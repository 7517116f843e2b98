/* An incremental check for JSON (RFC 8259), byte by byte, for model text that is still growing
 * (tool_parse.h). Builds no values. Pure.
 */
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
    bool key;            /* the string at hand is a key */
};

/* One more byte; false: this is no JSON. Containers nest up to 127 deep. */
bool tool_json_step(struct tool_json *j, char c);
/* All of the text is one value, white space around it allowed. */
bool tool_json_whole(const char *text, size_t len);

#endif
