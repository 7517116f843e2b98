/* The f32 product behind the cuBLAS shim: c[m][n] = a[m][k] b[n][k]^T. Eight running sums along k, added in a
 * fixed tree, then the rest of k in order: an element's bits depend on its own row and column alone. Always
 * optimised, never instrumented. */
#include <cstddef>
#include <cstring>

namespace cuemu
{
void gemm_f32(size_t m, size_t n, size_t k, const float *a, const float *b, float *c);

typedef float v8 __attribute__((vector_size(32), aligned(4)));

template <int MR, int NR> static void tile(size_t k, size_t n, const float *a, const float *b, float *c)
{
    v8 acc[MR][NR];
    memset(acc, 0, sizeof acc);
    size_t p = 0;
    for (; p + 8 <= k; p += 8)
        for (int i = 0; i < MR; i++) {
            v8 x = *reinterpret_cast<const v8 *>(a + static_cast<size_t>(i) * k + p);
            for (int j = 0; j < NR; j++)
                acc[i][j] += x * *reinterpret_cast<const v8 *>(b + static_cast<size_t>(j) * k + p);
        }
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < NR; j++) {
            v8 v = acc[i][j];
            float s = ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
            for (size_t q = p; q < k; q++)
                s += a[static_cast<size_t>(i) * k + q] * b[static_cast<size_t>(j) * k + q];
            c[static_cast<size_t>(i) * n + static_cast<size_t>(j)] = s;
        }
}
template <int MR> static void rows(size_t n, size_t k, const float *a, const float *b, float *c)
{
    size_t j = 0;
    for (; j + 4 <= n; j += 4) tile<MR, 4>(k, n, a, b + j * k, c + j);
    for (; j < n; j++) tile<MR, 1>(k, n, a, b + j * k, c + j);
}
void gemm_f32(size_t m, size_t n, size_t k, const float *a, const float *b, float *c)
{
    size_t i = 0;
    for (; i + 2 <= m; i += 2) rows<2>(n, k, a + i * k, b, c + i * n);
    for (; i < m; i++) rows<1>(n, k, a + i * k, b, c + i * n);
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
