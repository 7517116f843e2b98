/* Writes jansson values as JSON, including integers beyond 64 bits as json_parser.h reads them (fields.h). */
#ifndef KVASIR_JSON_VALUE_H
#define KVASIR_JSON_VALUE_H

#include "server/http/json_writer.h"

#include <jansson.h>

void jw_value(struct json_writer *o, const json_t *v); /* NULL writes null */
/* The shortest decimal that round-trips. */
void jw_double(struct json_writer *o, double v);

#endif
