/* Threads of a block meeting one another: barriers, warp operations, shared memory, asynchronous copies,
 * tensor cores. Runs on the fiber of the calling thread. Every misuse that CUDA leaves undefined ends in a
 * report that names kernel, block, thread and source line. */
#include "tests/cuda-emulator/emu_rt.h"

namespace cuemu
{
/* ---- barriers */

static void bar_release(Bar &r)
{
    if (opt.sched == POLICY_FIFO) {
        for (Th *x : r.wait) make_runnable(x);
    } else { /* the back of the queue runs first: keeps the order of arrival */
        for (size_t i = r.wait.size(); i--;) make_runnable(r.wait[i]);
    }
    r.wait.clear();
    r.arrived = 0;
}
/* The names are literals, mostly one and the same. */
static bool same_place(const char *a_file, int a_line, const char *file, int line)
{
    return a_line == line && (a_file == file || strcmp(a_file, file) == 0);
}
static void bar_arrive(Bar &r, int id, int expect, bool wait, const char *what, const char *file, int line)
{
    Th *t = self();
    Block *b = t->blk;
    stat_barriers++;
    spins = 0;
    if (r.arrived == 0) {
        r.file = file;
        r.line = line;
        r.expect = expect;
        r.members.clear();
    } else if (id == 0 && !same_place(r.file, r.line, file, line)) {
        fatal("divergent __syncthreads: %d threads wait at %s:%d, this one is at %s:%d", r.arrived, r.file,
              r.line, file, line);
    } else if (id && r.expect != expect) {
        fatal("named barrier %d: thread counts %d and %d differ", id, r.expect, expect);
    }
    r.arrived++;
    if (id) r.members.push_back(t);
    if (r.arrived < (id ? expect : b->nlive)) {
        if (!wait) return;
        r.wait.push_back(t);
        wait_here(what, file, line);
        return;
    }
    if (!id && b->nlive < b->n && !opt.exit_ok)
        fatal("__syncthreads at %s:%d completed by %d of %d threads: the others have ended", file, line,
              b->nlive, b->n);
    for (int k = 0; k < 3; k++) {
        r.result[k] = r.acc[k];
        r.acc[k] = k == 1;
    }
    if (id) {
        race_join(b, r.members);
    } else {
        race_syncthreads(b);
    }
    bar_release(r);
    if (wait && opt.sched != POLICY_FIFO) {
        make_runnable(t, opt.sched == POLICY_RAND);
        wait_here(what, file, line);
    }
}
void syncthreads(const char *file, int line)
{
    bar_arrive(self()->blk->bar[0], 0, 0, true, "__syncthreads", file, line);
}
int syncthreads_red(int pred, int kind, const char *file, int line)
{
    Bar &r = self()->blk->bar[0];
    if (kind == 0) {
        r.acc[0] += pred != 0;
    } else if (kind == 1) {
        r.acc[1] &= pred != 0;
    } else {
        r.acc[2] |= pred != 0;
    }
    bar_arrive(r, 0, 0, true, "__syncthreads", file, line);
    return r.result[kind];
}
void bar_sync(int id, int threads, bool wait, const char *file, int line)
{
    if (id < 1 || id > 15 || threads < 32 || threads % 32 || threads > self()->blk->n)
        fatal("named barrier %d for %d threads at %s:%d: ids are 1..15, counts multiples of 32 up to the "
              "block's size",
              id, threads, file, line);
    bar_arrive(self()->blk->bar[id], id, threads, wait, "bar.sync", file, line);
}
/* A thread has ended: nobody may be waiting for it. */
void thread_leaves(Th *t)
{
    Block *b = t->blk;
    Warp *w = t->wp;
    if (!t->copies.empty())
        fatal("the thread ends with %zu cp.async copies that were never waited for", t->copies.size());
    t->state = TH_DONE;
    w->live &= ~(1u << t->lane);
    b->nlive--;
    if (w->pending)
        for (Group &g : w->g)
            if (g.on && g.c.mask >> t->lane & 1)
                fatal("the thread ended although lanes %#x wait for it in %s at %s:%d (mask %#x)", g.c.posted,
                      g.what, g.file, g.line, g.c.mask);
    Bar &r = b->bar[0];
    if (r.arrived && b->nlive && !opt.exit_ok)
        fatal("the thread ended while %d threads wait at __syncthreads %s:%d", r.arrived, r.file, r.line);
    if (r.arrived && r.arrived >= b->nlive) {
        bar_release(r);
        race_syncthreads(b);
    }
    if (b->nlive == 0)
        for (int i = 1; i < 16; i++)
            if (b->bar[i].arrived)
                fatal("the block ended with %d of %d arrivals at named barrier %d", b->bar[i].arrived,
                      b->bar[i].expect, i);
}

/* ---- warp operations: the last arriver computes for all */

static void syncwarp_fn(Coll &)
{
}
/* The pending group of this mask, or a free one; reports masks that overlap. */
static Group *find_group(Warp *w, Th *t, unsigned mask, const char *what, const char *file, int line)
{
    Group *spare = nullptr;
    for (int i = 0, left = w->pending; i < 32 && (left || !spare); i++) {
        Group &x = w->g[i];
        if (!x.on) {
            if (!spare) spare = &x;
            continue;
        }
        left--;
        if (x.c.mask == mask) return &x;
        if (x.c.mask & mask && (x.c.mask >> t->lane & 1 || x.c.posted & mask))
            fatal("%s at %s:%d with mask %#x overlaps pending %s at %s:%d with mask %#x", what, file, line,
                  mask, x.what, x.file, x.line, x.c.mask);
    }
    return spare;
}
void warp_collective(unsigned mask, CollFn fn, void *in, const char *what, const char *file, int line)
{
    Th *t = self();
    Warp *w = t->wp;
    stat_collectives++;
    spins = 0;
    if (!(mask >> t->lane & 1))
        fatal("%s at %s:%d: the calling lane %d is not in its mask %#x", what, file, line, t->lane, mask);
    unsigned gone = mask & w->exist & ~w->live;
    if (gone) fatal("%s at %s:%d: mask %#x names lanes %#x, which have ended", what, file, line, mask, gone);
    Group *g = find_group(w, t, mask, what, file, line);
    if (!g->on) {
        g->on = true;
        w->pending++;
        g->what = what;
        g->fn = fn;
        g->file = file;
        g->line = line;
        g->c.mask = mask;
        g->c.posted = 0;
    } else if (g->fn != fn || !same_place(g->file, g->line, file, line)) {
        fatal("divergent warp operation: lanes %#x are in %s at %s:%d, lane %d is in %s at %s:%d",
              g->c.posted, g->what, g->file, g->line, t->lane, what, file, line);
    }
    g->c.in[t->lane] = in;
    g->c.posted |= 1u << t->lane;
    if ((g->c.posted & w->exist) != (mask & w->exist)) {
        wait_here(what, file, line);
        return;
    }
    g->on = false;
    w->pending--;
    g->fn(g->c);
    if (fn == syncwarp_fn) race_syncwarp(w, g->c.posted);
    unsigned others = g->c.posted & ~(1u << t->lane);
    for (int i = 0; i < 32; i++) {
        int l = opt.sched == POLICY_FWD ? 31 - i : i;
        if (others >> l & 1) make_runnable(w->lane[l]);
    }
    if (opt.sched == POLICY_RAND) {
        make_runnable(t);
        wait_here(what, file, line);
    }
}
void syncwarp(unsigned mask, const char *file, int line)
{
    warp_collective(mask, syncwarp_fn, nullptr, "__syncwarp", file, line);
}
void shfl_bad(int lane, int src, const Coll &c)
{
    fatal("shuffle: lane %d reads lane %d, which does not take part (mask %#x)", lane, src, c.mask);
}

/* ---- shared memory: NaN patterns at block start, canaries in the gaps, checked at block end (the sanitizer
 * sees its own poison instead) */

static void gap_fill(char *p, size_t n)
{
#ifndef CUEMU_ASAN
    memset(p, CANARY, n);
#endif
    __asan_poison_memory_region(p, n);
}
#ifndef CUEMU_ASAN
static bool gap_intact(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (static_cast<unsigned char>(p[i]) != CANARY) return false;
    return true;
}
#endif
void block_memory_init(Block *b)
{
    __asan_unpoison_memory_region(b->dyn, SLAB_DYN);
    memset(b->dyn, 0xff, b->dyn_n);
#ifdef CUEMU_ASAN
    __asan_poison_memory_region(b->dyn + b->dyn_n, SLAB_DYN - b->dyn_n);
#else
    gap_fill(b->dyn + b->dyn_n, SHARED_GAP);
#endif
    __asan_poison_memory_region(b->stat, SLAB_STAT);
    b->gaps.clear();
    b->vars.clear();
    b->stat_n = 0;
    hopper_block_begin(b);
}
void block_memory_check(Block *b)
{
    hopper_block_end(b);
#ifndef CUEMU_ASAN
    for (auto &g : b->gaps)
        if (!gap_intact(b->dyn + g.first, g.second))
            fatal("out-of-bounds write to dynamic shared memory: the gap at byte %zu is damaged", g.first);
    if (!gap_intact(b->dyn + b->dyn_n, SHARED_GAP))
        fatal("out-of-bounds write behind the %zu bytes of dynamic shared memory", b->dyn_n);
    for (auto &v : b->vars) {
        size_t end = v.second.off + v.second.n, gap = (end + 15) / 16 * 16 + SHARED_GAP - end;
        if (!gap_intact(b->stat + end, gap))
            fatal("out-of-bounds write behind shared variable '%s' of %zu bytes", v.second.name, v.second.n);
    }
#endif
}
void *shared_dynamic()
{
    return self()->blk->dyn;
}
void *shared_static(const void *tag, size_t n, size_t align, const char *name)
{
    Block *b = self()->blk;
    auto it = b->vars.find(tag);
    if (it != b->vars.end()) return b->stat + it->second.off;
    size_t off = (b->stat_n + align - 1) / align * align, used = n;
    for (auto &v : b->vars) used += v.second.n;
    if (used > SHARED_STATIC_MAX) fatal("static shared memory exceeds 48 KiB at '%s'", name);
    b->vars[tag] = SharedVar{off, n, name};
    b->stat_n = (off + n + 15) / 16 * 16 + SHARED_GAP;
    if (b->stat_n > SLAB_STAT) fatal("too many shared variables at '%s'", name);
    __asan_unpoison_memory_region(b->stat + off, n);
    memset(b->stat + off, 0xff, n);
    race_fresh(b->stat + off, n);
    gap_fill(b->stat + off + n, b->stat_n - off - n);
    return b->stat + off;
}
void shared_gap(void *p, size_t n)
{
    if (!cur) return;
    Block *b = self()->blk;
    char *c = static_cast<char *>(p);
    std::pair<size_t, size_t> gap(static_cast<size_t>(c - b->dyn), n);
    for (auto &x : b->gaps)
        if (x == gap) return;
    if (c < b->dyn || gap.first + n > b->dyn_n)
        fatal("dynamic shared memory: a piece ends at byte %zu, the launch gave %zu bytes (cu_carve on the "
              "host must make the "
              "same takes)",
              gap.first + n, b->dyn_n);
    b->gaps.push_back(gap);
    gap_fill(c, n);
}
bool is_shared(const void *p, size_t n)
{
    Block *b = self()->blk;
    const char *c = static_cast<const char *>(p);
    if (c >= b->dyn && c + n <= b->dyn + b->dyn_n) return true;
    return c >= b->stat && c + n <= b->stat + b->stat_n;
}
void thread_fence(bool wide)
{
    if (wide) race_fence(self());
}
void atomic_begin(const void *p, int n)
{
    maybe_yield();
    if (reinterpret_cast<uintptr_t>(p) % static_cast<unsigned>(n)) fatal("misaligned atomic on %p", p);
    uint32_t site = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(__builtin_return_address(0)));
    race_atomic(self(), p);
    race_access(self(), p, static_cast<size_t>(n), true, true, site);
}
void atomic_end(bool changed)
{
    if (changed) spins = 0;
}

/* ---- cp.async: the destination holds 0xFF from the issue on; the data land at once (rev), as late as the
 * wait (fwd, fifo) or by coin (rand) */

static void copy_now(CopyOp &c)
{
    Th *t = self();
    unsigned char *d = static_cast<unsigned char *>(c.dst);
    if (c.valid) {
        race_access(t, c.src, static_cast<size_t>(c.valid), false, false, c.site);
        memcpy(d, c.src, static_cast<size_t>(c.valid));
    }
    memset(d + c.valid, 0, static_cast<size_t>(c.bytes - c.valid));
    race_access(t, d, static_cast<size_t>(c.bytes), true, false, c.site);
    c.done = true;
}
void cp_async(void *dst, const void *src, int bytes, int valid, const char *file, int line)
{
    Th *t = self();
    unsigned mis = static_cast<unsigned>(bytes) - 1;
    if (reinterpret_cast<uintptr_t>(dst) & mis || reinterpret_cast<uintptr_t>(src) & mis)
        fatal("cp.async of %d bytes is misaligned (to %p from %p) at %s:%d", bytes, dst, src, file, line);
    if (!is_shared(dst, static_cast<size_t>(bytes)))
        fatal("cp.async at %s:%d: the destination is not shared memory of this block", file, line);
    CopyOp c{dst, src, bytes, valid, t->copy_group, false, site_of(file, line)};
    race_access(t, dst, static_cast<size_t>(bytes), true, false, c.site);
    race_pending(dst, static_cast<size_t>(bytes));
    memset(dst, 0xff, static_cast<size_t>(bytes));
    if (valid) { /* a bad source faults here, where it was written */
        const volatile unsigned char *s = static_cast<const volatile unsigned char *>(src);
        (void)s[0];
        (void)s[valid - 1];
    }
    if (opt.sched == POLICY_REV || (opt.sched == POLICY_RAND && rnd() & 1)) copy_now(c);
    t->copies.push_back(c);
}
void cp_async_commit()
{
    self()->copy_group++;
}
void cp_async_wait(int pending)
{
    Th *t = self();
    size_t kept = 0;
    for (CopyOp &c : t->copies) {
        if (c.group >= t->copy_group - pending) {
            t->copies[kept++] = c;
        } else if (!c.done) {
            copy_now(c);
        }
    }
    t->copies.resize(kept);
}

/* ---- tensor cores */

static inline float half_of(uint32_t r, int hi)
{
    return __uint_as_float(hi ? r & 0xffff0000u : r << 16);
}
void mma_bf16_fn(Coll &c)
{
    float A[16][16], B[16][8], C[16][8];
    for (int l = 0; l < 32; l++) {
        const MmaIn *p = static_cast<const MmaIn *>(c.in[l]);
        int g = l >> 2, t = l & 3;
        for (int h = 0; h < 2; h++) {
            A[g][2 * t + h] = half_of(p->a[0], h);
            A[g + 8][2 * t + h] = half_of(p->a[1], h);
            A[g][2 * t + 8 + h] = half_of(p->a[2], h);
            A[g + 8][2 * t + 8 + h] = half_of(p->a[3], h);
            B[2 * t + h][g] = half_of(p->b[0], h);
            B[2 * t + 8 + h][g] = half_of(p->b[1], h);
            C[g][2 * t + h] = p->c[h];
            C[g + 8][2 * t + h] = p->c[2 + h];
        }
    }
    if (opt.mma_double) {
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 8; j++) {
                double s = static_cast<double>(C[i][j]);
                for (int k = 0; k < 16; k++) s += static_cast<double>(A[i][k]) * static_cast<double>(B[k][j]);
                C[i][j] = static_cast<float>(s);
            }
    } else {
        for (int i = 0; i < 16; i++)
            for (int k = 0; k < 16; k++)
                for (int j = 0; j < 8; j++) C[i][j] += A[i][k] * B[k][j];
    }
    for (int l = 0; l < 32; l++) {
        const MmaIn *p = static_cast<const MmaIn *>(c.in[l]);
        int g = l >> 2, t = l & 3;
        for (int h = 0; h < 2; h++) {
            p->d[h] = C[g][2 * t + h];
            p->d[2 + h] = C[g + 8][2 * t + h];
        }
    }
}
void ldmatrix_fn(Coll &c)
{
    int count = static_cast<LdmatrixIn *>(c.in[0])->count;
    uint16_t M[4][8][8];
    Warp *w = self()->wp;
    uint32_t site = 0;
    for (Group &g : w->g)
        if (&g.c == &c) site = site_of(g.file, g.line);
    for (int i = 0; i < count; i++)
        for (int r = 0; r < 8; r++) {
            int lane = i * 8 + r;
            const void *p = static_cast<LdmatrixIn *>(c.in[lane])->row;
            if (reinterpret_cast<uintptr_t>(p) & 15)
                fatal("ldmatrix: the row address of lane %d is not aligned to 16 bytes", lane);
            if (!is_shared(p, 16))
                fatal("ldmatrix: the row address of lane %d is not shared memory of this block", lane);
            race_access(w->lane[lane], p, 16, false, false, site);
            memcpy(M[i][r], p, 16);
        }
    for (int l = 0; l < 32; l++) {
        LdmatrixIn *q = static_cast<LdmatrixIn *>(c.in[l]);
        int g = l >> 2, t = l & 3;
        for (int i = 0; i < count; i++) {
            uint16_t lo = q->trans ? M[i][2 * t][g] : M[i][g][2 * t],
                     hi = q->trans ? M[i][2 * t + 1][g] : M[i][g][2 * t + 1];
            q->r[i] = static_cast<uint32_t>(lo) | static_cast<uint32_t>(hi) << 16;
        }
    }
}
} // namespace cuemu
