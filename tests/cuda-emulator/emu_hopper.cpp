/* Hopper's asynchronous instructions, modelled from the PTX ISA: barriers in shared memory that count
 * arrivals and bytes, bulk copies, and warpgroup products with operands in shared memory. Runs on the fiber
 * of the calling thread.
 *
 * What is deferred: a bulk copy lands at once (rev), when somebody waits for its barrier (fwd, fifo) or by
 * coin (rand); until then its destination holds 0xFF. A product reads shared memory at its issue (rev), at
 * the wait for its group (fwd, fifo) or by coin (rand); its registers hold a NaN pattern until that wait. So
 * a stage that is read too early or handed back too early, and a sum that is read before the wait, give wrong
 * results in the plain build. The access checker sees: bulk copies as writes by the copy engine, known to
 * those who have waited for the barrier's phase; products as reads by each warp's first lane, once at the
 * issue and once at the wait; shared memory that ordinary stores or cp.async have written and no proxy fence
 * followed.
 *
 * A product is done warp by warp (warp w of a group has rows 16 w ...), as PTX defines the registers; that
 * the four warps of a group issue the same products is checked at the block's end. Stricter than the ISA:
 * every group of products begins with a fence; bytes are announced before they come; only 128-byte swizzle.
 * Registers of A are taken at the issue. */
#include "tests/cuda-emulator/emu_hopper.h"
#include "tests/cuda-emulator/emu_rt.h"

#include <memory>

namespace cuemu
{
void wgmma_f32(const float *a, const float *b, float *c, int n, bool twice); /* emu_gemm.cpp */

struct MBar {
    const char *addr;
    uint32_t id, count, pending, phase; /* phase: how many have ended */
    int64_t tx;
    std::vector<Th *> wait;
    std::vector<uint32_t> known,
        next; /* access checker: what those learn who wait; what has come for this phase */
};
struct Bulk {
    char *dst;
    const char *src;
    uint32_t bytes;
    MBar *bar;
    Th *by;
    uint32_t site;
};
struct Sum {              /* the registers of a warp's accumulator while products on it are under way */
    std::vector<float> v; /* [16][n] */
    int pending;
};
struct Product {
    WgmmaIn in; /* of lane 0 */
    float *d[32];
    uint32_t a[32][4];
    int warp; /* of the group */
    uint32_t site;
    bool done;
};
struct WarpWork {
    bool fenced;
    std::deque<Product> products; /* not yet waited for, oldest first */
    std::vector<size_t> groups;   /* products of each committed group */
    size_t open;                  /* products that no group has yet */
    std::map<float *, Sum> sums;  /* by lane 0's registers */
    uint64_t trace;
};
struct HopperBlock {
    std::vector<std::unique_ptr<MBar>> bars;
    std::vector<Bulk> bulks;
    std::vector<WarpWork> warps;
};
static HopperBlock &of(Block *b)
{
    if (!b->hopper) b->hopper = new HopperBlock;
    HopperBlock &h = *static_cast<HopperBlock *>(b->hopper);
    if (h.warps.size() < static_cast<size_t>(b->nwarps)) h.warps.resize(static_cast<size_t>(b->nwarps));
    return h;
}

/* ---- barriers */

static MBar &bar_of(const void *p, const char *what, const char *file, int line)
{
    for (auto &m : of(self()->blk).bars)
        if (m->addr == p) return *m;
    fatal("%s at %s:%d: no barrier was initialised there", what, file, line);
}
uint32_t smem_addr(const void *p)
{
    Block *b = self()->blk;
    const char *c = static_cast<const char *>(p);
    if (c < b->dyn || c >= b->dyn + b->dyn_n) fatal("the address is not dynamic shared memory of this block");
    return static_cast<uint32_t>(c - b->dyn);
}
void mbar_init(uint64_t *bar, uint32_t count, const char *file, int line)
{
    Block *b = self()->blk;
    HopperBlock &h = of(b);
    if (smem_addr(bar) % 8 || !count)
        fatal("mbarrier.init at %s:%d: not aligned, or a count of 0", file, line);
    for (auto &m : h.bars)
        if (m->addr == reinterpret_cast<char *>(bar))
            fatal("mbarrier.init at %s:%d: there is a barrier already", file, line);
    if (h.bars.size() == BARRIERS_MAX)
        fatal("mbarrier.init at %s:%d: more than %d barriers", file, line, BARRIERS_MAX);
    h.bars.emplace_back(new MBar());
    MBar &m = *h.bars.back();
    m.addr = reinterpret_cast<char *>(bar);
    m.id = static_cast<uint32_t>(h.bars.size() - 1);
    m.count = m.pending = count;
    race_barriers(b);
}
static void bar_progress(MBar &m)
{
    if (m.pending || m.tx) return;
    m.phase++;
    m.pending = m.count;
    if (m.known.size() < m.next.size()) m.known.resize(m.next.size());
    for (size_t i = 0; i < m.next.size(); i++)
        if (m.next[i] > m.known[i]) m.known[i] = m.next[i];
    spins = 0;
    for (Th *t : m.wait) make_runnable(t);
    m.wait.clear();
}
static void land(const Bulk &c)
{
    race_landed(c.by->blk, c.dst, c.bytes, c.bar->id, c.bar->phase + 1, c.site);
    memcpy(c.dst, c.src, c.bytes);
    race_learn(c.by->blk, c.bar->next, c.bar->id, c.bar->phase + 1);
    c.bar->tx -= c.bytes;
    if (c.bar->tx < 0)
        fatal("a bulk copy brings %u bytes, but the barrier's phase %u had only %lld announced", c.bytes,
              c.bar->phase, static_cast<long long>(c.bar->tx + c.bytes));
    bar_progress(*c.bar);
}
/* The copies on their way to a barrier. */
static void land_for(Block *b, const MBar *m)
{
    HopperBlock &h = of(b);
    for (size_t i = 0; i < h.bulks.size();) {
        if (h.bulks[i].bar != m) {
            i++;
            continue;
        }
        Bulk c = h.bulks[i];
        h.bulks.erase(h.bulks.begin() + static_cast<long>(i));
        land(c);
    }
}
void mbar_arrive(uint64_t *bar, uint32_t bytes, const char *file, int line)
{
    maybe_yield();
    Th *t = self();
    MBar &m = bar_of(bar, "mbarrier.arrive", file, line);
    if (!m.pending)
        fatal("mbarrier.arrive at %s:%d: more than %u arrivals in one phase", file, line, m.count);
    m.tx += bytes;
    race_release(t, m.next);
    m.pending--;
    bar_progress(m);
}
void mbar_wait(uint64_t *bar, uint32_t parity, uint32_t *trouble, const char *file, int line)
{
    maybe_yield();
    Th *t = self();
    MBar &m = bar_of(bar, "mbarrier.try_wait", file, line);
    if (parity > 1) fatal("mbarrier.try_wait at %s:%d: a parity of %u", file, line, parity);
    while ((m.phase & 1) == parity) {
        land_for(t->blk, &m);
        if ((m.phase & 1) != parity) break;
        m.wait.push_back(t);
        wait_here("mbarrier.try_wait", file, line);
    }
    race_acquire(t, m.known);
    static const bool late = env_u64("CUEMU_WAIT_LATE", 0);
    if (late && trouble) *trouble = 1;
}

/* ---- bulk copies */

void bulk_copy(void *dst, const void *src, uint32_t bytes, uint64_t *bar, const char *file, int line)
{
    maybe_yield();
    Th *t = self();
    MBar &m = bar_of(bar, "cp.async.bulk", file, line);
    if (smem_addr(dst) % 16 || reinterpret_cast<uintptr_t>(src) % 16 || bytes % 16 || !bytes)
        fatal("cp.async.bulk of %u bytes is misaligned (to %p from %p) at %s:%d", bytes, dst, src, file,
              line);
    if (!is_shared(dst, bytes))
        fatal("cp.async.bulk at %s:%d: the destination leaves the block's shared memory", file, line);
    uint32_t site = site_of(file, line);
    race_access(t, src, bytes, false, false, site);
    race_access(t, dst, bytes, true, false, site);
    race_pending(dst, bytes);
    memset(dst, 0xff, bytes);
    const volatile char *s =
        static_cast<const volatile char *>(src); /* a bad source faults here, where it was written */
    (void)s[0];
    (void)s[bytes - 1];
    Bulk c{static_cast<char *>(dst), static_cast<const char *>(src), bytes, &m, t, site};
    if (!m.wait.empty() || opt.sched == POLICY_REV || (opt.sched == POLICY_RAND && rnd() & 1)) {
        land(c);
    } else {
        of(t->blk).bulks.push_back(c);
    }
}
void proxy_fence()
{
    race_proxy(self());
}

/* ---- operands in shared memory */

struct Operand {
    uint32_t start, wide, far;
};
static Operand decode(uint64_t d, const char *which)
{
    Operand o = {static_cast<uint32_t>(d & 0x3fff) << 4, static_cast<uint32_t>(d >> 16 & 0x3fff) << 4,
                 static_cast<uint32_t>(d >> 32 & 0x3fff) << 4};
    if (d >> 62 != 1) fatal("wgmma: operand %s has not the 128-byte swizzle", which);
    if (d >> 49 & 7 || d & ~0xc00e3fff3fff3fffull)
        fatal("wgmma: operand %s: base offset or other bits are set", which);
    if (o.start & 0x390 || o.far % 1024 || o.wide % 1024)
        fatal("wgmma: operand %s at byte %u is not aligned with its atoms (strides %u, %u)", which, o.start,
              o.wide, o.far);
    return o;
}
static bool reading_open; /* before the wait for the product */
/* The eight values from a logical address on: the swizzle works on the address bits. Checked as a read by t.
 */
static inline void eight_at(Th *t, uint32_t addr, uint32_t site, float *out, int step)
{
    addr ^= (addr >> 7 & 7) << 4;
    if (addr + 16 > t->blk->dyn_n)
        fatal("wgmma: an operand leaves the block's shared memory (byte %u)", addr);
    const char *p = t->blk->dyn + addr;
    race_async_read(t, p, 16, site, reading_open);
    uint16_t v[8];
    memcpy(v, p, 16);
    for (int i = 0; i < 8; i++) out[i * step] = __uint_as_float(static_cast<uint32_t>(v[i]) << 16);
}
/* rows x 16 values with k along the rows. */
static void read_k_rows(Th *t, const Operand &o, int first, int rows, uint32_t site, float *out, int out_row,
                        int out_k)
{
    for (int r = 0; r < rows; r++)
        for (int k = 0; k < 16; k += 8) {
            uint32_t m = static_cast<uint32_t>(first + r);
            eight_at(t, o.start + m / 8 * o.far + m % 8 * 128 + static_cast<uint32_t>(k) * 2, site,
                     out + r * out_row + k * out_k, out_k);
        }
}
static void read_n_rows(Th *t, const Operand &o, int n, uint32_t site, float *out) /* [16][n] */
{
    for (uint32_t k = 0; k < 16; k++)
        for (uint32_t i = 0; i < static_cast<uint32_t>(n); i += 8)
            eight_at(t, o.start + i / 64 * o.wide + k / 8 * o.far + k % 8 * 128 + i % 64 * 2, site,
                     out + static_cast<int>(k) * n + i, 1);
}
static void read_operands(Th *t, const Product &p, float *a, float *b)
{
    if (p.in.ar) {
        for (int l = 0; l < 32; l++)
            for (int i = 0; i < 8; i++) { /* register i / 2: rows g, g + 8; k 0.., 8.. */
                int row = l / 4 + i / 2 % 2 * 8, k = l % 4 * 2 + i / 4 * 8 + i % 2;
                uint32_t r = p.a[l][i / 2];
                a[row * 16 + k] = __uint_as_float(i % 2 ? r & 0xffff0000u : r << 16);
            }
    } else {
        read_k_rows(t, decode(p.in.a, "A"), 16 * p.warp, 16, p.site, a, 16, 1);
    }
    if (p.in.trans) {
        read_n_rows(t, decode(p.in.b, "B"), p.in.n, p.site, b);
    } else {
        read_k_rows(t, decode(p.in.b, "B"), 0, p.in.n, p.site, b, 1, p.in.n);
    }
}

/* ---- products */

static bool rows_there(const Product &p)
{
    return static_cast<uint32_t>(p.warp) * 16 < p.in.rows;
}
static void work(Th *t, WarpWork &w, Product &p)
{
    if (p.done) return;
    p.done = true;
    Sum &s = w.sums[p.d[0]];
    if (!rows_there(p)) {
        s.v.assign(s.v.size(), __uint_as_float(0xffffffffu));
        return;
    }
    static std::vector<float> a(256), b(16 * 256);
    read_operands(t, p, a.data(), b.data());
    if (!p.in.add) s.v.assign(s.v.size(), 0.0f);
    wgmma_f32(a.data(), b.data(), s.v.data(), p.in.n, opt.mma_double);
    static const bool wrong = env_u64("CUEMU_WGMMA_WRONG", 0);
    if (wrong) s.v[0] += 1.0f; /* a device that calculates otherwise: the backend's self-check must notice */
}
/* Register i of lane l in [16][n]. */
static size_t place(int l, int i, int n)
{
    return static_cast<size_t>((l / 4 + i / 2 % 2 * 8) * n + i / 4 * 8 + l % 4 * 2 + i % 2);
}
static void wgmma_fn(Coll &c)
{
    Th *t = self();
    HopperBlock &h = of(t->blk);
    WarpWork &w = h.warps[static_cast<size_t>(t->lin / 32)];
    Th *first = t->wp->lane[0];
    if (t->blk->n % 128 && t->lin / 128 == t->blk->n / 128)
        fatal("wgmma: the warps are not a whole warpgroup");
    if (!w.fenced) fatal("wgmma.mma_async without wgmma.fence before the first of its group");
    w.products.emplace_back();
    Product &p = w.products.back();
    p.in = *static_cast<WgmmaIn *>(c.in[0]);
    p.warp = t->lin / 32 % 4;
    p.done = false;
    p.site = 0;
    for (Group &g : t->wp->g)
        if (&g.c == &c) p.site = site_of(g.file, g.line);
    if (p.in.n % 8 || p.in.n > 256) fatal("wgmma: n = %d", p.in.n);
    for (int l = 0; l < 32; l++) {
        const WgmmaIn *in = static_cast<WgmmaIn *>(c.in[l]);
        if (in->a != p.in.a || in->b != p.in.b || in->add != p.in.add || in->rows != p.in.rows)
            fatal("wgmma: lanes 0 and %d differ in descriptor or scale", l);
        p.d[l] = in->d;
        if (in->ar) memcpy(p.a[l], in->ar, 16);
    }
    w.trace =
        (w.trace ^ p.in.a ^ p.in.b * 3 ^ static_cast<uint64_t>(p.in.n + p.in.add * 1024)) * 1099511628211ull;
    Sum &s = w.sums[p.d[0]];
    size_t n = static_cast<size_t>(p.in.n);
    if (!s.pending) { /* takes the registers over until the wait */
        s.v.resize(16 * n);
        for (int l = 0; l < 32; l++)
            for (int i = 0; i < p.in.n / 2; i++) {
                s.v[place(l, i, p.in.n)] = p.d[l][i];
                p.d[l][i] = __uint_as_float(0xffffffffu);
            }
    } else if (s.v.size() != 16 * n) {
        fatal("wgmma: an accumulator under way is used with another shape");
    }
    s.pending++;
    w.open++;
    reading_open = true;
#ifdef CUEMU_RACE
    if (rows_there(p)) { /* is what it reads there by now? */
        static std::vector<float> a(256), b(16 * 256);
        read_operands(first, p, a.data(), b.data());
    }
#endif
    if (opt.sched == POLICY_REV || (opt.sched == POLICY_RAND && rnd() & 1))
        for (Product &q : w.products) work(first, w, q);
    reading_open = false;
}
void wgmma(const WgmmaIn &in, const char *file, int line)
{
    WgmmaIn mine = in;
    warp_collective(0xffffffffu, wgmma_fn, &mine, "wgmma.mma_async", file, line);
}
static WarpWork &warp_work()
{
    return of(self()->blk).warps[static_cast<size_t>(self()->lin / 32)];
}
static void fence_fn(Coll &)
{
    warp_work().fenced = true;
}
static void commit_fn(Coll &)
{
    WarpWork &w = warp_work();
    w.groups.push_back(w.open);
    w.open = 0;
    w.fenced = false;
}
static void wait_fn(Coll &c)
{
    WarpWork &w = warp_work();
    Th *first = self()->wp->lane[0];
    size_t pending = static_cast<size_t>(*static_cast<int *>(c.in[0]));
    while (w.groups.size() > pending) {
        for (size_t i = w.groups.front(); i; i--) {
            Product &p = w.products.front();
#ifdef CUEMU_RACE
            if (p.done && rows_there(p)) { /* it may have read until now */
                static std::vector<float> a(256), b(16 * 256);
                read_operands(first, p, a.data(), b.data());
            }
#endif
            work(first, w, p);
            Sum &s = w.sums[p.d[0]];
            if (--s.pending == 0) {
                for (int l = 0; l < 32; l++)
                    for (int r = 0; r < p.in.n / 2; r++) p.d[l][r] = s.v[place(l, r, p.in.n)];
                w.sums.erase(p.d[0]);
            }
            w.products.pop_front();
        }
        w.groups.erase(w.groups.begin());
    }
}
void wgmma_fence(const char *file, int line)
{
    warp_collective(0xffffffffu, fence_fn, nullptr, "wgmma.fence", file, line);
}
void wgmma_commit(const char *file, int line)
{
    warp_collective(0xffffffffu, commit_fn, nullptr, "wgmma.commit_group", file, line);
}
void wgmma_wait(int pending, const char *file, int line)
{
    warp_collective(0xffffffffu, wait_fn, &pending, "wgmma.wait_group", file, line);
}

/* ---- a block's life */

void hopper_block_begin(Block *b)
{
    if (!b->hopper) return;
    HopperBlock &h = *static_cast<HopperBlock *>(b->hopper);
    h.bars.clear();
    h.bulks.clear();
    h.warps.clear();
}
void hopper_block_end(Block *b)
{
    if (!b->hopper) return;
    HopperBlock &h = *static_cast<HopperBlock *>(b->hopper);
    if (!h.bulks.empty())
        fatal("the block ends with %zu bulk copies that were never waited for", h.bulks.size());
    for (auto &m : h.bars)
        if (m->tx)
            fatal("the block ends while barrier %u still expects %lld bytes", m->id,
                  static_cast<long long>(m->tx));
    for (size_t i = 0; i < h.warps.size(); i++) {
        if (!h.warps[i].products.empty()) fatal("the block ends with products that were never waited for");
        if (h.warps[i].trace != h.warps[i / 4 * 4].trace)
            fatal("the warps of a warpgroup issued different products");
    }
}
} // namespace cuemu
