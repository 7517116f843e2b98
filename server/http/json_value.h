/* Values of jansson as JSON, as json_in.h reads it: with whole numbers that 64 bits don't hold (fields.h). */
#ifndef KVASIR_JSON_VALUE_H
#define KVASIR_JSON_VALUE_H

#include "server/http/json_out.h"

#include <jansson.h>

void jo_value(struct json_out *o, const json_t *v); /* NULL writes null */
/* The shortest text that reads back to the same number. */
void jo_double(struct json_out *o, double v);

#endif
