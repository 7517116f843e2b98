/* Eight lanes of 32 bits. On x86-64 these are AVX2's registers and intrinsics; on ARM64 a pair of NEON
 * registers, with the operations that the files of the set use, by the same names: one source is the sets
 * `avx2` and `neon`, and every bit of theirs is equal. Floats: IEEE operations and fused multiply-adds, each
 * rounded once; max and min take the second operand when one is NaN. Only a NaN's own bits differ.
 *
 * What an operation does here is what the set needs of it: maddubs and the packs of 16 bits are exact where
 * x86 would saturate a sum, and a shuffle takes only the constants that its callers give. */
#ifndef KVASIR_CPU_LANES8_H
#define KVASIR_CPU_LANES8_H

#if !defined(__aarch64__)
#include <immintrin.h>

/* The compiler may neither drop v nor compute it again. */
#define V8_KEEP(v) __asm__ volatile("" : "+x"(v))

#else
#include <arm_neon.h>
#include <stdint.h>

#define V8_KEEP(v)                     __asm__ volatile("" : "+w"((v).lo), "+w"((v).hi))
#define V8_OP                          static inline __attribute__((always_inline, unused))

typedef struct {
    float32x4_t lo, hi;
} __m256;
typedef struct {
    int32x4_t lo, hi;
} __m256i;
typedef float32x4_t __m128;
typedef int32x4_t __m128i;

enum { _CMP_EQ_OQ, _CMP_LT_OQ, _CMP_GE_OQ, _CMP_GT_OQ, _CMP_NLT_UQ, _CMP_UNORD_Q };
enum { _MM_FROUND_TO_NEAREST_INT = 0, _MM_FROUND_NO_EXC = 8, _MM_HINT_T0 = 3, _MM_HINT_T1 = 2 };
#define _mm_prefetch(p, hint)          __builtin_prefetch(p, 0, hint)

/* ---- registers as other types */
#define V8_S16(x)                      vreinterpretq_s16_s32(x)
#define V8_U16(x)                      vreinterpretq_u16_s32(x)
#define V8_U8(x)                       vreinterpretq_u8_s32(x)
#define V8_S8(x)                       vreinterpretq_s8_s32(x)
#define V8_U32(x)                      vreinterpretq_u32_s32(x)
#define V8_F32(x)                      vreinterpretq_f32_s32(x)

V8_OP __m256 _mm256_castsi256_ps(__m256i a)
{
    return (__m256){V8_F32(a.lo), V8_F32(a.hi)};
}
V8_OP __m256i _mm256_castps_si256(__m256 a)
{
    return (__m256i){vreinterpretq_s32_f32(a.lo), vreinterpretq_s32_f32(a.hi)};
}
V8_OP __m128 _mm256_castps256_ps128(__m256 a)
{
    return a.lo;
}
V8_OP __m128i _mm256_castsi256_si128(__m256i a)
{
    return a.lo;
}
#define _mm256_extractf128_ps(a, high) ((high) ? (a).hi : (a).lo)

/* ---- memory and constants */
V8_OP __m256 _mm256_set1_ps(float x)
{
    return (__m256){vdupq_n_f32(x), vdupq_n_f32(x)};
}
V8_OP __m256 _mm256_setzero_ps(void)
{
    return _mm256_set1_ps(0);
}
V8_OP __m256i _mm256_set1_epi32(int x)
{
    return (__m256i){vdupq_n_s32(x), vdupq_n_s32(x)};
}
V8_OP __m256i _mm256_setzero_si256(void)
{
    return _mm256_set1_epi32(0);
}
V8_OP __m256i _mm256_set1_epi16(short x)
{
    return _mm256_set1_epi32((int)((uint32_t)(uint16_t)x * 0x10001u));
}
V8_OP __m256i _mm256_set1_epi8(char x)
{
    return _mm256_set1_epi32((int)((uint32_t)(uint8_t)x * 0x1010101u));
}
V8_OP __m256i _mm256_setr_epi32(int a, int b, int c, int d, int e, int f, int g, int h)
{
    return (__m256i){(int32x4_t){a, b, c, d}, (int32x4_t){e, f, g, h}};
}
V8_OP __m256 _mm256_loadu_ps(const float *p)
{
    return (__m256){vld1q_f32(p), vld1q_f32(p + 4)};
}
V8_OP void _mm256_storeu_ps(float *p, __m256 a)
{
    vst1q_f32(p, a.lo);
    vst1q_f32(p + 4, a.hi);
}
#define _mm256_load_ps                 _mm256_loadu_ps
#define _mm256_store_ps                _mm256_storeu_ps
V8_OP __m128i _mm_loadu_si128(const __m128i *p)
{
    return vreinterpretq_s32_u8(vld1q_u8((const uint8_t *)p));
}
V8_OP void _mm_storeu_si128(__m128i *p, __m128i a)
{
    vst1q_u8((uint8_t *)p, V8_U8(a));
}
V8_OP __m256i _mm256_loadu_si256(const __m256i *p)
{
    return (__m256i){vreinterpretq_s32_u8(vld1q_u8((const uint8_t *)p)),
                     vreinterpretq_s32_u8(vld1q_u8((const uint8_t *)p + 16))};
}
V8_OP void _mm256_storeu_si256(__m256i *p, __m256i a)
{
    vst1q_u8((uint8_t *)p, V8_U8(a.lo));
    vst1q_u8((uint8_t *)p + 16, V8_U8(a.hi));
}
#define _mm256_store_si256             _mm256_storeu_si256
V8_OP __m256i _mm256_broadcastsi128_si256(__m128i a)
{
    return (__m256i){a, a};
}
V8_OP __m128i _mm_cvtsi32_si128(int x)
{
    return vdupq_n_s32(x);
}
V8_OP float _mm_cvtss_f32(__m128 a)
{
    return vgetq_lane_f32(a, 0);
}

/* ---- floats */
#define V8_EACH(name, op)                                                                                    \
    V8_OP __m256 name(__m256 a, __m256 b)                                                                    \
    {                                                                                                        \
        return (__m256){op(a.lo, b.lo), op(a.hi, b.hi)};                                                     \
    }
V8_OP float32x4_t v4_max(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}
V8_OP float32x4_t v4_min(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcltq_f32(a, b), a, b);
}
V8_EACH(_mm256_add_ps, vaddq_f32)
V8_EACH(_mm256_sub_ps, vsubq_f32)
V8_EACH(_mm256_mul_ps, vmulq_f32)
V8_EACH(_mm256_div_ps, vdivq_f32)
V8_EACH(_mm256_max_ps, v4_max)
V8_EACH(_mm256_min_ps, v4_min)
V8_EACH(_mm256_unpacklo_ps, vzip1q_f32)
V8_EACH(_mm256_unpackhi_ps, vzip2q_f32)
#define _mm_add_ps                       vaddq_f32
#define _mm_add_ss                       vaddq_f32 /* of which lane 0 is used */
#define _mm_max_ps                       v4_max
#define _mm_max_ss                       v4_max
#define _mm_movehl_ps(a, b)              vcombine_f32(vget_high_f32(b), vget_high_f32(a))
#define _mm_shuffle_ps(a, b, lane)       vdupq_laneq_f32(a, lane) /* of which lane 0 is used */
V8_OP __m256 _mm256_fmadd_ps(__m256 a, __m256 b, __m256 c)
{
    return (__m256){vfmaq_f32(c.lo, a.lo, b.lo), vfmaq_f32(c.hi, a.hi, b.hi)};
}
V8_OP __m256 _mm256_fnmadd_ps(__m256 a, __m256 b, __m256 c)
{
    return (__m256){vfmsq_f32(c.lo, a.lo, b.lo), vfmsq_f32(c.hi, a.hi, b.hi)};
}
#define _mm256_round_ps(a, nearest_even) ((__m256){vrndnq_f32((a).lo), vrndnq_f32((a).hi)})
V8_OP __m256i _mm256_cvtps_epi32(__m256 a)
{
    return (__m256i){vcvtnq_s32_f32(a.lo), vcvtnq_s32_f32(a.hi)};
}
V8_OP __m256 _mm256_cvtepi32_ps(__m256i a)
{
    return (__m256){vcvtq_f32_s32(a.lo), vcvtq_f32_s32(a.hi)};
}
V8_OP __m256 _mm256_cvtph_ps(__m128i a)
{
    float16x8_t h = vreinterpretq_f16_s32(a);
    return (__m256){vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
}
V8_OP uint32x4_t v4_cmp(float32x4_t a, float32x4_t b, const int how)
{
    switch (how) {
    case _CMP_EQ_OQ: return vceqq_f32(a, b);
    case _CMP_LT_OQ: return vcltq_f32(a, b);
    case _CMP_GE_OQ: return vcgeq_f32(a, b);
    case _CMP_GT_OQ: return vcgtq_f32(a, b);
    case _CMP_NLT_UQ: return vmvnq_u32(vcltq_f32(a, b));
    default: return vmvnq_u32(vandq_u32(vceqq_f32(a, a), vceqq_f32(b, b)));
    }
}
V8_OP __m256 _mm256_cmp_ps(__m256 a, __m256 b, const int how)
{
    return (__m256){vreinterpretq_f32_u32(v4_cmp(a.lo, b.lo, how)),
                    vreinterpretq_f32_u32(v4_cmp(a.hi, b.hi, how))};
}
/* Lanes of b where the mask is negative. */
V8_OP float32x4_t v4_blend(float32x4_t a, float32x4_t b, float32x4_t mask)
{
    return vbslq_f32(vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_f32(mask), 31)), b, a);
}
V8_OP __m256 _mm256_blendv_ps(__m256 a, __m256 b, __m256 mask)
{
    return (__m256){v4_blend(a.lo, b.lo, mask.lo), v4_blend(a.hi, b.hi, mask.hi)};
}
V8_OP uint32_t v4_signs(float32x4_t a)
{
    const uint32x4_t place = {1, 2, 4, 8};
    return vaddvq_u32(vmulq_u32(vshrq_n_u32(vreinterpretq_u32_f32(a), 31), place));
}
V8_OP int _mm256_movemask_ps(__m256 a)
{
    return (int)(v4_signs(a.lo) | v4_signs(a.hi) << 4);
}
/* 0x44: the lower two of a and of b; 0xee: the upper two. */
V8_OP float32x4_t v4_halves(float32x4_t a, float32x4_t b, const int which)
{
    return which == 0x44 ? vcombine_f32(vget_low_f32(a), vget_low_f32(b))
                         : vcombine_f32(vget_high_f32(a), vget_high_f32(b));
}
#define _mm256_shuffle_ps(a, b, which)                                                                       \
    ((__m256){v4_halves((a).lo, (b).lo, which), v4_halves((a).hi, (b).hi, which)})
/* 0x20: the lower register of a and of b; 0x31: the upper. */
#define _mm256_permute2f128_ps(a, b, which)                                                                  \
    ((which) == 0x20 ? (__m256){(a).lo, (b).lo} : (__m256){(a).hi, (b).hi})

/* ---- integers */
#define V8_INT(name, op, type, back)                                                                         \
    V8_OP __m256i name(__m256i a, __m256i b)                                                                 \
    {                                                                                                        \
        return (__m256i){back(op(type(a.lo), type(b.lo))), back(op(type(a.hi), type(b.hi)))};                \
    }
#define V8_SELF(x) (x)
V8_INT(_mm256_add_epi32, vaddq_s32, V8_SELF, V8_SELF)
V8_INT(_mm256_sub_epi32, vsubq_s32, V8_SELF, V8_SELF)
V8_INT(_mm256_and_si256, vandq_s32, V8_SELF, V8_SELF)
V8_INT(_mm256_or_si256, vorrq_s32, V8_SELF, V8_SELF)
V8_INT(_mm256_xor_si256, veorq_s32, V8_SELF, V8_SELF)
V8_INT(_mm256_cmpgt_epi32, vcgtq_s32, V8_SELF, vreinterpretq_s32_u32)
V8_INT(_mm256_max_epu32, vmaxq_u32, V8_U32, vreinterpretq_s32_u32)
V8_INT(_mm256_add_epi64, vaddq_s64, vreinterpretq_s64_s32, vreinterpretq_s32_s64)
V8_OP __m256 _mm256_and_ps(__m256 a, __m256 b)
{
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(a), _mm256_castps_si256(b)));
}
V8_OP __m256 _mm256_or_ps(__m256 a, __m256 b)
{
    return _mm256_castsi256_ps(_mm256_or_si256(_mm256_castps_si256(a), _mm256_castps_si256(b)));
}
V8_OP __m256 _mm256_andnot_ps(__m256 a, __m256 b)
{
    __m256i x = _mm256_castps_si256(a), y = _mm256_castps_si256(b);
    return _mm256_castsi256_ps((__m256i){vbicq_s32(y.lo, x.lo), vbicq_s32(y.hi, x.hi)});
}
V8_OP __m256i _mm256_slli_epi32(__m256i a, int n)
{
    return (__m256i){vshlq_s32(a.lo, vdupq_n_s32(n)), vshlq_s32(a.hi, vdupq_n_s32(n))};
}
V8_OP __m256i _mm256_srai_epi32(__m256i a, int n)
{
    return _mm256_slli_epi32(a, -n);
}
V8_OP __m256i _mm256_srli_epi32(__m256i a, int n)
{
    return (__m256i){vreinterpretq_s32_u32(vshlq_u32(V8_U32(a.lo), vdupq_n_s32(-n))),
                     vreinterpretq_s32_u32(vshlq_u32(V8_U32(a.hi), vdupq_n_s32(-n)))};
}
V8_OP __m256i _mm256_slli_epi16(__m256i a, int n)
{
    int16x8_t by = vdupq_n_s16((int16_t)n);
    return (__m256i){vreinterpretq_s32_u16(vshlq_u16(V8_U16(a.lo), by)),
                     vreinterpretq_s32_u16(vshlq_u16(V8_U16(a.hi), by))};
}
V8_OP __m256i _mm256_srli_epi16(__m256i a, int n)
{
    return _mm256_slli_epi16(a, -n);
}
V8_OP __m256i _mm256_srl_epi16(__m256i a, __m128i n)
{
    return _mm256_slli_epi16(a, -vgetq_lane_s32(n, 0));
}
V8_OP __m256i _mm256_cvtepu16_epi32(__m128i a)
{
    return (__m256i){vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(V8_U16(a)))),
                     vreinterpretq_s32_u32(vmovl_high_u16(V8_U16(a)))};
}
V8_OP __m256i _mm256_cvtepi16_epi32(__m128i a)
{
    return (__m256i){vmovl_s16(vget_low_s16(V8_S16(a))), vmovl_high_s16(V8_S16(a))};
}
/* Neighbouring products of 16 bits, added. */
V8_OP int32x4_t v4_madd(int32x4_t a, int32x4_t b)
{
    return vpaddq_s32(vmull_s16(vget_low_s16(V8_S16(a)), vget_low_s16(V8_S16(b))),
                      vmull_high_s16(V8_S16(a), V8_S16(b)));
}
V8_OP __m256i _mm256_madd_epi16(__m256i a, __m256i b)
{
    return (__m256i){v4_madd(a.lo, b.lo), v4_madd(a.hi, b.hi)};
}
/* Neighbouring products of bytes of a (unsigned) and b (signed), added, in 16 bits. */
V8_OP int32x4_t v4_maddubs(int32x4_t a, int32x4_t b)
{
    int16x8_t low = vmulq_s16(vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(V8_U8(a)))),
                              vmovl_s8(vget_low_s8(V8_S8(b)))),
              high = vmulq_s16(vreinterpretq_s16_u16(vmovl_high_u8(V8_U8(a))), vmovl_high_s8(V8_S8(b)));
    return vreinterpretq_s32_s16(vpaddq_s16(low, high));
}
V8_OP __m256i _mm256_maddubs_epi16(__m256i a, __m256i b)
{
    return (__m256i){v4_maddubs(a.lo, b.lo), v4_maddubs(a.hi, b.hi)};
}
/* dot and, of each four bytes, the products of a and b (both signed). */
V8_OP int32x4_t v4_dot(int32x4_t dot, int32x4_t a, int32x4_t b)
{
#if defined(__ARM_FEATURE_DOTPROD)
    return vdotq_s32(dot, V8_S8(a), V8_S8(b));
#else
    return vaddq_s32(dot, vpaddq_s32(vpaddlq_s16(vmull_s8(vget_low_s8(V8_S8(a)), vget_low_s8(V8_S8(b)))),
                                     vpaddlq_s16(vmull_high_s8(V8_S8(a), V8_S8(b)))));
#endif
}
V8_OP __m256i v8_dot(__m256i dot, __m256i a, __m256i b)
{
    return (__m256i){v4_dot(dot.lo, a.lo, b.lo), v4_dot(dot.hi, a.hi, b.hi)};
}
/* Halves of the result come from a and b, register by register. */
#define V8_PACK(name, op, type, wide, back)                                                                  \
    V8_OP __m256i name(__m256i a, __m256i b)                                                                 \
    {                                                                                                        \
        return (__m256i){back(type(op(wide(a.lo)), op(wide(b.lo)))),                                         \
                         back(type(op(wide(a.hi)), op(wide(b.hi))))};                                        \
    }
V8_PACK(_mm256_packs_epi32, vqmovn_s32, vcombine_s16, V8_SELF, vreinterpretq_s32_s16)
V8_PACK(_mm256_packus_epi32, vqmovun_s32, vcombine_u16, V8_SELF, vreinterpretq_s32_u16)
V8_PACK(_mm256_packs_epi16, vqmovn_s16, vcombine_s8, V8_S16, vreinterpretq_s32_s8)
/* Bytes of a register, by indices below 16. */
V8_OP __m256i _mm256_shuffle_epi8(__m256i a, __m256i index)
{
    return (__m256i){vreinterpretq_s32_u8(vqtbl1q_u8(V8_U8(a.lo), V8_U8(index.lo))),
                     vreinterpretq_s32_u8(vqtbl1q_u8(V8_U8(a.hi), V8_U8(index.hi)))};
}
V8_OP int32x4_t v4_blend_bytes(int32x4_t a, int32x4_t b, int32x4_t mask)
{
    return vreinterpretq_s32_u8(
        vbslq_u8(vreinterpretq_u8_s8(vshrq_n_s8(V8_S8(mask), 7)), V8_U8(b), V8_U8(a)));
}
V8_OP __m256i _mm256_blendv_epi8(__m256i a, __m256i b, __m256i mask)
{
    return (__m256i){v4_blend_bytes(a.lo, b.lo, mask.lo), v4_blend_bytes(a.hi, b.hi, mask.hi)};
}
/* 0xaa: the upper 16 bits of each lane are b's. */
#define _mm256_blend_epi16(a, b, odd)                                                                        \
    ((__m256i){vbslq_s32(vdupq_n_u32(0xffff0000), (b).lo, (a).lo),                                           \
               vbslq_s32(vdupq_n_u32(0xffff0000), (b).hi, (a).hi)})
/* 0x08: the lower half of each register, in the lower one. */
#define _mm256_permute4x64_epi64(a, which)                                                                   \
    ((__m256i){vcombine_s32(vget_low_s32((a).lo), vget_low_s32((a).hi)), (a).hi})
V8_OP __m256i _mm256_permutevar8x32_epi32(__m256i a, __m256i index)
{
    int32_t from[8], at[8], to[8];
    _mm256_storeu_si256((__m256i *)(void *)from, a);
    _mm256_storeu_si256((__m256i *)(void *)at, index);
    for (int i = 0; i < 8; i++) to[i] = from[at[i] & 7];
    return _mm256_loadu_si256((const __m256i *)(const void *)to);
}

/* ---- masked memory: lanes whose mask is negative */
V8_OP __m256 _mm256_maskload_ps(const float *p, __m256i mask)
{
    int32_t m[8];
    float v[8];
    if (vminvq_u32(vandq_u32(V8_U32(mask.lo), V8_U32(mask.hi))) >> 31) return _mm256_loadu_ps(p);
    _mm256_storeu_si256((__m256i *)(void *)m, mask);
    for (int i = 0; i < 8; i++) v[i] = m[i] < 0 ? p[i] : 0;
    return _mm256_loadu_ps(v);
}
V8_OP void _mm256_maskstore_ps(float *p, __m256i mask, __m256 a)
{
    int32_t m[8];
    float v[8];
    _mm256_storeu_si256((__m256i *)(void *)m, mask);
    _mm256_storeu_ps(v, a);
    for (int i = 0; i < 8; i++)
        if (m[i] < 0) p[i] = v[i];
}
#endif
#endif
