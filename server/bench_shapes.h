/* Sizes of released models, for `kvasir bench --shape`: what their config.json says; keys that are not there
 * take the family's defaults. */
#ifndef KVASIR_BENCH_SHAPES_H
#define KVASIR_BENCH_SHAPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* The i-th shape; NULL behind the last. */
const char *bench_shape_name(size_t i);
/* Writes the config.json of a shape. "NAME/N": with the first N layers only, of a model that memory does not
 * hold. false: unknown. */
bool bench_shape_write(const char *shape, FILE *f);
/* The same of its drafter; false: there is none. */
bool bench_drafter_write(const char *shape, FILE *f);

#endif
