/* The f32 product behind the cuBLAS shim: c[m][n] = a[m][k] b[n][k]^T. An element is one chain over ascending
 * k, as the emulated tensor cores add it up: its bits depend on its own row and column alone. Always
 * optimised, never instrumented. */
#include <cstddef>
#include <cstring>
#include <vector>

namespace cuemu
{
void gemm_f32(size_t m, size_t n, size_t k, const float *a, const float *b, float *c);

typedef float v8 __attribute__((vector_size(32), aligned(4)));

struct Eight {
    v8 v;
};
/* Eight rows, [k][8], by NR columns. */
template <int NR> static void tile(size_t k, const Eight *a, const float *b, Eight *c)
{
    v8 acc[NR];
    memset(acc, 0, sizeof acc);
    for (size_t p = 0; p < k; p++)
        for (int j = 0; j < NR; j++) acc[j] += a[p].v * b[static_cast<size_t>(j) * k + p];
    memcpy(c, acc, sizeof acc);
}
void gemm_f32(size_t m, size_t n, size_t k, const float *a, const float *b, float *c)
{
    std::vector<Eight> rows(k), out(n);
    for (size_t i = 0; i < m; i += 8) {
        size_t count = m - i < 8 ? m - i : 8, j = 0;
        for (size_t p = 0; p < k; p++)
            for (size_t r = 0; r < 8; r++) rows[p].v[r] = r < count ? a[(i + r) * k + p] : 0;
        for (; j + 4 <= n; j += 4) tile<4>(k, rows.data(), b + j * k, &out[j]);
        for (; j < n; j++) tile<1>(k, rows.data(), b + j * k, &out[j]);
        for (size_t r = 0; r < count; r++)
            for (j = 0; j < n; j++) c[(i + r) * n + j] = out[j].v[r];
    }
}

/* c[16][n] += a[16][16] b[16][n], one after the other along k: a warp's share of a warpgroup's product.
 * twice: sums in double. */
void wgmma_f32(const float *a, const float *b, float *c, int n, bool twice);
void wgmma_f32(const float *a, const float *b, float *c, int n, bool twice)
{
    for (int i = 0; i < 16; i++) {
        const float *x = a + i * 16;
        float *y = c + static_cast<long>(i) * n;
        if (twice) {
            for (int j = 0; j < n; j++) {
                double s = static_cast<double>(y[j]);
                for (int k = 0; k < 16; k++)
                    s += static_cast<double>(x[k]) * static_cast<double>(b[k * n + j]);
                y[j] = static_cast<float>(s);
            }
            continue;
        }
        for (int j = 0; j < n; j += 8) {
            v8 s = *reinterpret_cast<const v8 *>(y + j);
            for (int k = 0; k < 16; k++) s += x[k] * *reinterpret_cast<const v8 *>(b + k * n + j);
            *reinterpret_cast<v8 *>(y + j) = s;
        }
    }
}
} // namespace cuemu
