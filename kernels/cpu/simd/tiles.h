/* How AMX tiles are set up. */
#ifndef KVASIR_CPU_TILES_H
#define KVASIR_CPU_TILES_H

#include <immintrin.h>
#include <stdint.h>

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t colsb[16]; /* bytes of a row of tile i */
    uint8_t rows[16];
};

static inline void tiles_load(const struct tile_config *c)
{
    __asm__ volatile(""
                     :
                     : "r"(c)
                     : "memory"); /* gcc's intrinsic names only the first 8 bytes as its input */
    _tile_loadconfig(c);
}

#endif
