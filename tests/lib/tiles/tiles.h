/* AMX tiles in plain C, so that the kernels of the amx set are tested on machines without them: the files of
 * this folder compile those of the set a second time with this in front. What a tile instruction computes is
 * from Intel's manual (volume 2, TDPBF16PS and the others); bf16 sums are only in that order, without its
 * flushing of denormal numbers. */
#ifndef KVASIR_TESTS_TILES_H
#define KVASIR_TESTS_TILES_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#undef _tile_dpbsud
#define _tile_loadconfig                 tiles_emulated_config
#define _tile_release                    tiles_emulated_release
#define _tile_loadd(T, P, STRIDE)        tiles_emulated_load(T, P, STRIDE)
#define _tile_stream_loadd(T, P, STRIDE) tiles_emulated_load(T, P, STRIDE)
#define _tile_stored(T, P, STRIDE)       tiles_emulated_store(T, P, STRIDE)
#define _tile_zero(T)                    tiles_emulated_zero(T)
#define _tile_dpbf16ps(C, A, B)          tiles_emulated_bf16(C, A, B)
#define _tile_dpbssd(C, A, B)            tiles_emulated_bytes(C, A, B, 1)
#define _tile_dpbsud(C, A, B)            tiles_emulated_bytes(C, A, B, 0)

struct tiles_emulated {
    uint8_t data[8][16][64];
    uint16_t colsb[8];
    uint8_t rows[8];
    int configured;
};
static __thread struct tiles_emulated tiles_now;

static inline struct tiles_emulated *tiles_emulated(int t)
{
    if (!tiles_now.configured || t < 0 || t > 7 || !tiles_now.rows[t]) __builtin_trap();
    return &tiles_now;
}
static inline void tiles_emulated_config(const void *config)
{
    const uint8_t *c = config;
    memset(&tiles_now, 0, sizeof tiles_now);
    memcpy(tiles_now.colsb, c + 16, sizeof tiles_now.colsb);
    memcpy(tiles_now.rows, c + 48, sizeof tiles_now.rows);
    if (c[0] != 1) __builtin_trap();
    for (int t = 0; t < 8; t++)
        if (tiles_now.rows[t] > 16 || tiles_now.colsb[t] > 64) __builtin_trap();
    tiles_now.configured = 1;
}
static inline void tiles_emulated_release(void)
{
    tiles_now.configured = 0;
}
static inline void tiles_emulated_zero(int t)
{
    memset(tiles_emulated(t)->data[t], 0, sizeof tiles_now.data[t]);
}
static inline void tiles_emulated_load(int t, const void *p, size_t stride)
{
    tiles_emulated_zero(t);
    for (size_t r = 0; r < tiles_now.rows[t]; r++)
        memcpy(tiles_now.data[t][r], (const char *)p + r * stride, tiles_now.colsb[t]);
}
static inline void tiles_emulated_store(int t, void *p, size_t stride)
{
    struct tiles_emulated *s = tiles_emulated(t);
    for (size_t r = 0; r < s->rows[t]; r++) memcpy((char *)p + r * stride, s->data[t][r], s->colsb[t]);
}
/* The shapes must fit, or the instruction faults. */
static inline struct tiles_emulated *tiles_emulated_three(int c, int a, int b)
{
    struct tiles_emulated *s = tiles_emulated(a);
    if (c == a || c == b || a == b || !s->rows[b] || !s->rows[c]) __builtin_trap();
    if (s->rows[c] != s->rows[a] || s->colsb[a] != 4 * s->rows[b] || s->colsb[c] != s->colsb[b])
        __builtin_trap();
    return s;
}
static inline void tiles_emulated_bf16(int c, int a, int b)
{
    struct tiles_emulated *s = tiles_emulated_three(c, a, b);
    for (size_t m = 0; m < s->rows[a]; m++)
        for (size_t k = 0; k < s->colsb[a] / 4u; k++)
            for (size_t half = 0; half < 2; half++) {
                uint16_t x16;
                memcpy(&x16, s->data[a][m] + 4 * k + 2 * half, 2);
                __m512 x = _mm512_castsi512_ps(_mm512_set1_epi32((int)((uint32_t)x16 << 16)));
                __m512i w = _mm512_loadu_si512(s->data[b][k]);
                w = half ? _mm512_and_si512(w, _mm512_set1_epi32((int)0xffff0000u))
                         : _mm512_slli_epi32(w, 16);
                __m512 sum = _mm512_fmadd_ps(x, _mm512_castsi512_ps(w), _mm512_loadu_ps(s->data[c][m]));
                _mm512_storeu_ps(s->data[c][m], sum);
            }
}
/* a: signed; b: signed or not. */
static inline void tiles_emulated_bytes(int c, int a, int b, int b_signed)
{
    struct tiles_emulated *s = tiles_emulated_three(c, a, b);
    for (size_t m = 0; m < s->rows[a]; m++)
        for (size_t n = 0; n < s->colsb[b] / 4u; n++) {
            int32_t sum;
            memcpy(&sum, s->data[c][m] + 4 * n, 4);
            for (size_t k = 0; k < s->colsb[a]; k++) {
                uint8_t w = s->data[b][k / 4][4 * n + k % 4];
                sum += (int8_t)s->data[a][m][k] * (b_signed ? (int8_t)w : w);
            }
            memcpy(s->data[c][m] + 4 * n, &sum, 4);
        }
}

#endif
