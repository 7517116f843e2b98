/* The product shared by linear and attention of the avx2 set: rows of f32 times columns in lanes,
 *
 *   c[row][column] = (add ? c : 0) + sum over k of a[row][k] * b[k][column]         k ascending, one fused
 *     multiply-add each, whatever the number of rows
 *
 * b is f32 with a line of columns per k, or bf16 with a line of pairs (two neighbouring k of one column) per
 * two k: the pair's halves become f32 by a shift and a mask, for the bf16 is the upper half of the f32. */
#ifndef KVASIR_CPU_MUL_AVX2_H
#define KVASIR_CPU_MUL_AVX2_H

#include "kernels/cpu/simd/lanes8.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MUL_INLINE static inline __attribute__((always_inline))
#define MUL_ROWS   6u /* registers: 6 x 2 sums, 2 vectors of b, 1 broadcast */

struct mul_avx2 {
    const float *a; /* row stride lda floats */
    size_t lda;
    const char *const *b; /* [parts] of `lines` lines each; all begin b_at bytes after these */
    size_t b_at;
    size_t b_step, b_next; /* from line to line; columns 8 to 15 are 32 bytes after 0 to 7, columns 16 to 31
                              b_next bytes after 0 to 15 */
    uint32_t lines, parts;
    float *c; /* row stride ldc floats */
    size_t ldc;
    size_t ask, ask_more; /* distances to bytes to prefetch with each line; 0 = none */
};

/* *s0 += x w0, *s1 += x w1, with x broadcast. Written in assembly, because the compiler's choice of
 * multiply-add form spills some of the twelve sums: their chains then wait for stores. */
MUL_INLINE void mul__two(__m256 *s0, __m256 *s1, const float *x, __m256 w0, __m256 w1)
{
#if defined(__aarch64__)
    __m256 v = _mm256_set1_ps(*x);
    *s0 = _mm256_fmadd_ps(v, w0, *s0);
    *s1 = _mm256_fmadd_ps(v, w1, *s1);
#else
    __m256 v;
    __asm__("vbroadcastss %3, %2\n\tvfmadd231ps %4, %2, %0\n\tvfmadd231ps %5, %2, %1"
            : "+x"(*s0), "+x"(*s1), "=&x"(v)
            : "m"(*x), "x"(w0), "x"(w1));
#endif
}

MUL_INLINE void mul__one(__m256 *s, const float *x, __m256 w)
{
#if defined(__aarch64__)
    *s = _mm256_fmadd_ps(_mm256_set1_ps(*x), w, *s);
#else
    __m256 v;
    __asm__("vbroadcastss %2, %1\n\tvfmadd231ps %3, %1, %0" : "+x"(*s), "=&x"(v) : "m"(*x), "x"(w));
#endif
}

/* 8 columns of a line; of bf16 their even or odd k. */
MUL_INLINE __m256 mul__b(const char *p, bool bf16, bool odd)
{
    if (!bf16) return _mm256_loadu_ps((const float *)(const void *)p);
    __m256i two = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm256_castsi256_ps(odd ? _mm256_and_si256(two, _mm256_set1_epi32((int)0xffff0000))
                                   : _mm256_slli_epi32(two, 16));
}

MUL_INLINE void mul__ask(const struct mul_avx2 *m, const char *b)
{
    if (m->ask) _mm_prefetch(b + m->ask, _MM_HINT_T0);
    if (m->ask_more) _mm_prefetch(b + m->ask_more, _MM_HINT_T1);
}

/* `rows` rows (a constant, up to MUL_ROWS) of 16 columns, or of 8. The sums are named variables: an array
 * would be kept in memory. */
MUL_INLINE void mul__some(const struct mul_avx2 *m, const uint32_t rows, const bool bf16, const bool add,
                          const bool wide)
{
    const float *a = m->a;
    size_t lda = m->lda, step = m->b_step;
#define MUL_EACH(X) X(0, p0, q0) X(1, p1, q1) X(2, p2, q2) X(3, p3, q3) X(4, p4, q4) X(5, p5, q5)
#define MUL_BEGIN(R, P, Q)                                                                                   \
    __m256 P = add && R < rows ? _mm256_loadu_ps(m->c + R * m->ldc) : _mm256_setzero_ps();                   \
    __m256 Q = add && wide && R < rows ? _mm256_loadu_ps(m->c + R * m->ldc + 8) : _mm256_setzero_ps();
#define MUL_STEP(R, P, Q)                                                                                    \
    if (R < rows && wide) mul__two(&P, &Q, a + R * lda, w0, w1);                                             \
    if (R < rows && !wide) mul__one(&P, a + R * lda, w0);
#define MUL_END(R, P, Q)                                                                                     \
    if (R < rows) _mm256_storeu_ps(m->c + R * m->ldc, P);                                                    \
    if (R < rows && wide) _mm256_storeu_ps(m->c + R * m->ldc + 8, Q);
    MUL_EACH(MUL_BEGIN)
    for (uint32_t part = 0; part < m->parts; part++) {
        const char *b = m->b[part] + m->b_at, *end = b + m->lines * step;
        for (; b < end; b += step) {
            mul__ask(m, b);
            for (uint32_t odd = 0; odd < (bf16 ? 2u : 1u); odd++, a++) {
                __m256 w0 = mul__b(b, bf16, odd), w1 = mul__b(wide ? b + 32 : b, bf16, odd);
                MUL_EACH(MUL_STEP)
            }
        }
    }
    MUL_EACH(MUL_END)
#undef MUL_EACH
#undef MUL_BEGIN
#undef MUL_STEP
#undef MUL_END
}

/* One or two rows of 32 columns: otherwise few rows have too few chains of additions. */
MUL_INLINE void mul__few(const struct mul_avx2 *m, const uint32_t rows, const bool bf16, const bool add)
{
    const float *a = m->a;
    size_t lda = m->lda, step = m->b_step, next = m->b_next;
#define MUL_EACH(X) X(0, p0, q0) X(8, p1, q1) X(16, p2, q2) X(24, p3, q3)
#define MUL_BEGIN(C, P, Q)                                                                                   \
    __m256 P = add ? _mm256_loadu_ps(m->c + C) : _mm256_setzero_ps();                                        \
    __m256 Q = add && rows > 1 ? _mm256_loadu_ps(m->c + m->ldc + C) : _mm256_setzero_ps();
#define MUL_END(C, P, Q)                                                                                     \
    _mm256_storeu_ps(m->c + C, P);                                                                           \
    if (rows > 1) _mm256_storeu_ps(m->c + m->ldc + C, Q);
    MUL_EACH(MUL_BEGIN)
    for (uint32_t part = 0; part < m->parts; part++) {
        const char *b = m->b[part] + m->b_at, *end = b + m->lines * step;
        for (; b < end; b += step) {
            mul__ask(m, b);
            mul__ask(m, b + next);
            for (uint32_t odd = 0; odd < (bf16 ? 2u : 1u); odd++, a++) {
                __m256 w0 = mul__b(b, bf16, odd), w1 = mul__b(b + 32, bf16, odd),
                       w2 = mul__b(b + next, bf16, odd), w3 = mul__b(b + next + 32, bf16, odd);
                mul__two(&p0, &p1, a, w0, w1);
                mul__two(&p2, &p3, a, w2, w3);
                if (rows > 1) mul__two(&q0, &q1, a + lda, w0, w1);
                if (rows > 1) mul__two(&q2, &q3, a + lda, w2, w3);
            }
        }
    }
    MUL_EACH(MUL_END)
#undef MUL_EACH
#undef MUL_BEGIN
#undef MUL_END
}

/* 32 columns, `rows` from 1 to MUL_ROWS. */
MUL_INLINE void mul__32(const struct mul_avx2 *m, const uint32_t rows, const bool bf16, const bool add)
{
    if (rows <= 2) {
        mul__few(m, rows, bf16, add);
        return;
    }
    struct mul_avx2 right = *m;
    right.b_at += m->b_next;
    right.c += 16;
    mul__some(m, rows, bf16, add, true);
    mul__some(&right, rows, bf16, add, true);
}

/* Rows of the next group when `left` are left: six first, then the rest. Even groups (8 as 4 + 4) keep the
 * multipliers busier but measure slower, as the first group also waits for memory. */
MUL_INLINE uint32_t mul_group(uint32_t left)
{
    return left < MUL_ROWS ? left : MUL_ROWS;
}

/* Functions NAME1 to NAME6, of so many rows, from MUL(m, rows, ...), and a table of them. */
typedef void mul_fn(const struct mul_avx2 *m);
#define MUL_TABLE(NAME, MUL, ...)                                                                            \
    static void NAME##1(const struct mul_avx2 *m)                                                            \
    {                                                                                                        \
        MUL(m, 1, __VA_ARGS__);                                                                              \
    }                                                                                                        \
    static void NAME##2(const struct mul_avx2 *m)                                                            \
    {                                                                                                        \
        MUL(m, 2, __VA_ARGS__);                                                                              \
    }                                                                                                        \
    static void NAME##3(const struct mul_avx2 *m)                                                            \
    {                                                                                                        \
        MUL(m, 3, __VA_ARGS__);                                                                              \
    }                                                                                                        \
    static void NAME##4(const struct mul_avx2 *m)                                                            \
    {                                                                                                        \
        MUL(m, 4, __VA_ARGS__);                                                                              \
    }                                                                                                        \
    static void NAME##5(const struct mul_avx2 *m)                                                            \
    {                                                                                                        \
        MUL(m, 5, __VA_ARGS__);                                                                              \
    }                                                                                                        \
    static void NAME##6(const struct mul_avx2 *m)                                                            \
    {                                                                                                        \
        MUL(m, 6, __VA_ARGS__);                                                                              \
    }                                                                                                        \
    static mul_fn *const NAME[MUL_ROWS] = {NAME##1, NAME##2, NAME##3, NAME##4, NAME##5, NAME##6};

#endif
