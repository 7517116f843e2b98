/* Interface of gemm_sm90.cu for linear.cu, experts.cu and the self-check: the products of gemm.cuh with
 * Hopper instructions. */
#ifndef KVASIR_CUDA_GEMM_SM90_CUH
#define KVASIR_CUDA_GEMM_SM90_CUH

#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/hopper.cuh"

struct gemm_sm90_job {
    struct gemm_job g; /* g.w and the experts' weights in tiled order (struct be_weight) */
    uint32_t rows;     /* weight rows of a warpgroup: 16, 32, 64 */
    uint32_t atoms;    /* of 64 k in a weight row */
    uint32_t row_tiles, token_tiles, items;
    uint32_t *trouble; /* self-check: set if a wait takes too long; NULL: the kernel traps instead */
};

bool cuda_gemm_sm90_init(struct backend *b);
/* Tile width for that many tokens; any choice gives the same bits. */
uint32_t cuda_gemm_sm90_width(const struct backend *b, size_t tokens, uint32_t wrows, bool grouped);
/* tiles: of tokens, `width` each. */
void cuda_gemm_sm90(struct backend *b, const struct gemm_job &g, uint32_t width, uint32_t tiles, bool grouped,
                    uint32_t *trouble);

#endif
