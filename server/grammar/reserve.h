/* Growable arrays. */
#ifndef KVASIR_GRAMMAR_RESERVE_H
#define KVASIR_GRAMMAR_RESERVE_H

#include <stdbool.h>
#include <stdlib.h>

/* Grows *at, of capacity *cap, to at least `need` items of `size` bytes; false: out of memory, nothing
 * changed. */
static inline bool array_reserve(void **at, size_t *cap, size_t need, size_t size)
{
    if (need <= *cap) return true;
    size_t n = *cap ? *cap : 64;
    while (n < need) n *= 2;
    void *to = realloc(*at, n * size);
    if (!to) return false;
    *at = to;
    *cap = n;
    return true;
}

/* Gives back capacity beyond `count`. */
static inline void array_fit(void **at, size_t *cap, size_t count, size_t size)
{
    void *to = *cap > count && count ? realloc(*at, count * size) : NULL;
    if (!to) return;
    *at = to;
    *cap = count;
}

#endif
