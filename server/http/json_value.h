/* Values of jansson as JSON, as json_parser.h reads it: with whole numbers that 64 bits don't hold
 * (fields.h). */
#ifndef KVASIR_JSON_VALUE_H
#define KVASIR_JSON_VALUE_H

#include "server/http/json_writer.h"

#include <jansson.h>

void jw_value(struct json_writer *o, const json_t *v); /* NULL writes null */
/* The shortest text that reads back to the same number. */
void jw_double(struct json_writer *o, double v);

#endif
