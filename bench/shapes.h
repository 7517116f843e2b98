/* Sizes of released models, for `kvasir bench --shape`: the keys of their config.json; absent keys take the
 * family's defaults. */
#ifndef KVASIR_BENCH_SHAPES_H
#define KVASIR_BENCH_SHAPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* The i-th shape; NULL after the last. */
const char *bench_shape_name(size_t i);
/* Writes the config.json of a shape. "NAME/N": the first N layers only, for models larger than memory. false:
 * unknown. */
bool bench_shape_write(const char *shape, FILE *f);
/* The same for its draft model; false: it has none. */
bool bench_drafter_write(const char *shape, FILE *f);

#endif
