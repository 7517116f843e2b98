/* Attention for AVX-512: bf16 by vdpbf16ps, f32 by fused multiply-add. See attn/driver.h. The AMX set uses
 * the f32 half. */
#include "kernels/cpu/attn/v16.h"

#include "kernels/cpu/attn/vec.h"

static void avx512__attn_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    struct attn_call *c = ctx;
    attn__range(&c->job, begin, end, c->b, worker);
}

void avx512_attn(struct backend *b, const struct be_attn_args *a)
{
    struct attn_call c;
    uint32_t n = attn__plan(b, a, &c);
    cpu_pool_run(b->pool, n, c.grain, avx512__attn_range, &c);
}
