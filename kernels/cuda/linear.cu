/* be_ops.linear: gemm_lt.cu, gemm.cuh, or on Hopper gemm_sm90.cu, over one weight. */
#include "kernels/cuda/gemm_sm90.cuh"

bool cuda_linear_init(struct backend *b)
{
    return gemm_init<false>(b);
}

/* More than 65535 tiles of tokens take several launches; a token's sums don't depend on that. */
void cuda_linear(struct backend *b, const struct be_linear_args *a)
{
    const struct be_weight *w = a->w;
    uint32_t n = w->glu ? w->n / 2 : w->n, lt_rows = cuda_lt_rows(b, a);
    uint32_t width = w->atoms ? cuda_gemm_sm90_width(b, a->t, w->wrows, false) : gemm_width(w->type, a->t),
             most = lt_rows ? lt_rows : 65535u * width;
    bool f32_out = a->epilogue <= BE_EPI_ADD_F32;
    uint32_t ld = f32_out ? n : (uint32_t)be_ld(n);
    size_t elem = be_dtype_bytes(w->type);
    for (uint32_t first = 0; first < a->t; first += most) {
        struct gemm_job j = {};
        j.w = w->data;
        j.bias = w->bias;
        j.x = static_cast<const char *>(a->x) + (size_t)first * w->kpad * elem;
        j.out = static_cast<char *>(a->out) + (size_t)first * ld * (f32_out ? 4 : elem);
        j.kpad = w->kpad;
        j.wrows = w->wrows;
        j.n = n;
        j.t = a->t - first < most ? a->t - first : most;
        j.ld = ld;
        j.epilogue = a->epilogue;
        if (a->add) j.add = a->add + (size_t)first * w->n;
        if (lt_rows) cuda_lt_linear(b, w, j);
        else if (w->atoms) cuda_gemm_sm90(b, j, width, cu_div_up(j.t, width), false, nullptr);
        else gemm_run<false>(b, j, width, cu_div_up(j.t, width));
    }
}
