/* Writes jansson values as JSON, including integers beyond 64 bits as parser.h reads them (fields.h). */
#ifndef KVASIR_JSON_VALUE_H
#define KVASIR_JSON_VALUE_H

#include "server/json/writer.h"

#include <jansson.h>

void jw_value(struct json_writer *o, const json_t *v); /* NULL writes null */

#endif
