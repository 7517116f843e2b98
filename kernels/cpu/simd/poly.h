/* Polynomials of both vector sets, the highest power first. Sums run from there, one fused multiply-add each
 * (v8_poly, v16_poly). */
#ifndef KVASIR_CPU_POLY_H
#define KVASIR_CPU_POLY_H

/* e^r, |r| <= ln2/2: 1 + r + r^2 p(r) with p of degree 4, fitted to 4e-9; e^0 is exactly 1. */
static const float poly_exp[] = {
    1.38145953e-3f, 8.36871937e-3f, 4.16683890e-2f, 0.166665211f, 0.499999940f, 1.0f, 1.0f};
/* (tanh(x) / x - 1) / x^2 of x^2, near 0 */
static const float poly_tanh[] = {-5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f,
                                  1.33314422036e-1f, -3.33332819422e-1f};
/* For gelu_erf (v16_gelu_erf): minimax of degree 11 on [0, 10]. */
static const float poly_erf[] = {-0x1.fc5ab0p-32f, 0x1.93da58p-26f, -0x1.11d122p-21f, 0x1.9ac40ep-18f,
                                 -0x1.6a872ep-15f, 0x1.4f0b0ep-13f, 0x1.1b0c62p-14f,  -0x1.408d26p-8f,
                                 0x1.2a27bep-5f,   0x1.45eedcp-2f,  0x1.988486p-1f,   0x1.62e430p-1f};
/* 2^f, |f| <= 1/2, minimax: below f32 rounding; of degree 4, to 2.6e-6. */
static const float poly_exp2[] = {
    0x1.41d32ap-13f, 0x1.5f456ap-10f, 0x1.3b2dbcp-7f, 0x1.c6aed4p-5f, 0x1.ebfbdap-3f, 0x1.62e430p-1f, 1.0f};
static const float poly_exp2_rough[] = {0x1.3997c4p-7f, 0x1.ca1440p-5f, 0x1.ec06dap-3f, 0x1.62e0dcp-1f,
                                        0x1.ffffe8p-1f};

#define POLY(set, p, x) set##_poly(p, sizeof(p) / sizeof *(p), x)

#endif
