/* The access checker. The .cu files of the race build are compiled with -fsanitize=thread, but linked with
 * the hooks below instead of the sanitizer's runtime: every load and store of kernel code arrives here with
 * its address. Checked are bounds, reads of uninitialised shared memory, and data races by happens-before,
 * independent of the schedule that ran: a thread has a clock; __syncthreads makes all clocks of the block
 * known to all, __syncwarp and named barriers those of their members; shuffles, votes and mma order nothing
 * (that is CUDA's rule); a cp.async writes at issue and again when it lands, and its bytes count as
 * uninitialised in between; blocks of one launch are unordered unless they meet at an atomic after a
 * __threadfence; launches are ordered. Atomics conflict with plain accesses only. Each byte of shared and
 * device memory has a shadow cell with its last write and its last two reads by different threads. */
#include "tests/cuda-emulator/emu_rt.h"

#include <sys/mman.h>
#include <unistd.h>

extern "C" char __executable_start, end;

namespace cuemu
{
struct Cell {
    uint64_t w, r, r2;
    uint32_t wsite, rsite;
};
static Cell *shadow_dev, *shadow_smem;
static uint32_t launch_id;
static uint64_t reports;
static std::set<std::pair<uint32_t, uint32_t>> &seen = *new std::set<std::pair<uint32_t, uint32_t>>;
static std::unordered_map<const void *, std::set<unsigned>>
    released; /* blocks that an atomic's location has published in this launch */

/* ---- records: valid 1 | atomic 1 | launch 16 | block 18 | thread 10 | clock 18 */

static inline uint64_t record(const Th *t, bool atomic)
{
    return 1ull << 63 | static_cast<uint64_t>(atomic) << 62 |
           static_cast<uint64_t>(launch_id & 0xffff) << 46 |
           static_cast<uint64_t>(t->blk->linear & 0x3ffff) << 28 | static_cast<uint64_t>(t->lin) << 18 |
           (t->own & 0x3ffff);
}
static inline bool rec_atomic(uint64_t r)
{
    return r >> 62 & 1;
}
static inline unsigned rec_launch(uint64_t r)
{
    return static_cast<unsigned>(r >> 46 & 0xffff);
}
static inline unsigned rec_block(uint64_t r)
{
    return static_cast<unsigned>(r >> 28 & 0x3ffff);
}
static inline unsigned rec_thread(uint64_t r)
{
    return static_cast<unsigned>(r >> 18 & 1023);
}
static inline unsigned rec_clock(uint64_t r)
{
    return static_cast<unsigned>(r & 0x3ffff);
}
/* Has `prev` happened before the current access of t? */
static bool ordered_in_launch(uint64_t prev, const Th *t)
{
    const Block *b = t->blk;
    if (rec_block(prev) != (b->linear & 0x3ffff)) return b->known.count(rec_block(prev)) != 0;
    unsigned u = rec_thread(prev);
    if (u == static_cast<unsigned>(t->lin)) return true;
    uint32_t known = b->base[u];
    if (t->row_epoch == b->epoch) {
        uint32_t x = b->rows[static_cast<size_t>(t->lin) * b->cols + u];
        if (x > known) known = x;
    }
    return known >= rec_clock(prev);
}

static inline bool ordered(uint64_t prev, const Th *t)
{
    return !(prev >> 63) || rec_launch(prev) != (launch_id & 0xffff) || ordered_in_launch(prev, t);
}

/* ---- sites: a program counter (the link is not position-independent, so it fits), or an interned file:line
 * with the top bit set
 */

static std::vector<std::pair<const char *, int>> &sites = *new std::vector<std::pair<const char *, int>>;
uint32_t site_of(const char *file, int line)
{
    for (size_t i = 0; i < sites.size(); i++)
        if (sites[i].second == line && sites[i].first == file) return static_cast<uint32_t>(i) | 1u << 31;
    sites.emplace_back(file, line);
    return static_cast<uint32_t>(sites.size() - 1) | 1u << 31;
}
static void describe_site(char *out, size_t n, uint32_t site)
{
    if (site >> 31) {
        auto &s = sites[site & 0x7fffffff];
        snprintf(out, n, "%s:%d", s.first, s.second);
        return;
    }
    char exe[256], cmd[512], line[256];
    ssize_t k = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[k > 0 ? k : 0] = 0;
    snprintf(out, n, "program counter %#x", site);
    snprintf(cmd, sizeof cmd, "addr2line -e '%s' %#x 2>/dev/null", exe, site - 1);
    FILE *f = popen(cmd, "r");
    if (!f) return;
    if (fgets(line, sizeof line, f) && line[0] != '?') {
        line[strcspn(line, "\n")] = 0;
        const char *slash = strrchr(line, '/');
        snprintf(out, n, "%s", slash ? slash + 1 : line);
    }
    pclose(f);
}

/* ---- reports: once for each pair of sites, at most 20; the process ends with 98 */

static void finish(int, void *)
{
    fflush(nullptr);
    fprintf(stderr, "cuemu: %llu access errors, %zu distinct\n", static_cast<unsigned long long>(reports),
            seen.size());
    _exit(98);
}
static void report(const char *kind, const Th *t, const void *p, size_t n, bool write, uint32_t site,
                   uint64_t prev, uint32_t prev_site, bool prev_write)
{
    if (!reports++) on_exit(finish, nullptr);
    if (!seen.insert({site, prev_site}).second || seen.size() > 20) return;
    char in[256], what[256], at[256], other[256] = "";
    where(in, sizeof in, t);
    describe_address(what, sizeof what, p);
    describe_site(at, sizeof at, site);
    fflush(stdout);
    fprintf(stderr, "cuemu: %s: %s of %zu bytes at %s\n  %s\n  in %s\n", kind, write ? "write" : "read", n,
            at, what, in);
    if (!prev) return;
    describe_site(other, sizeof other, prev_site);
    fprintf(stderr, "  conflicts with %s%s by block #%u thread %u at %s\n", prev_write ? "write" : "read",
            rec_atomic(prev) ? " (atomic)" : "", rec_block(prev), rec_thread(prev), other);
}

/* ---- the check */

static Cell *map_shadow(size_t bytes)
{
    void *p = mmap(nullptr, bytes * sizeof(Cell), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) fatal("no address space for the access checker");
    return static_cast<Cell *>(p);
}
static Cell *shadow(const void *addr)
{
    const char *p = static_cast<const char *>(addr);
    if (p >= smem_lo && p < smem_hi) {
        if (!shadow_smem) shadow_smem = map_shadow(static_cast<size_t>(smem_hi - smem_lo));
        return shadow_smem + (p - smem_lo);
    }
    if (dev_lo && p >= dev_lo && p < dev_hi) {
        if (!shadow_dev) shadow_dev = map_shadow(static_cast<size_t>(dev_hi - dev_lo));
        return shadow_dev + (p - dev_lo);
    }
    return nullptr;
}
/* In this block's shared memory, in one variable or outside of all gaps. */
static bool shared_ok(const Block *b, const char *c, size_t n)
{
    if (!is_shared(c, n)) return false;
    if (c < b->stat) {
        for (auto &g : b->gaps)
            if (c + n > b->dyn + g.first && c < b->dyn + g.first + g.second) return false;
        return true;
    }
    for (auto &v : b->vars) {
        const char *q = b->stat + v.second.off;
        if (c >= q && c + n <= q + v.second.n) return true;
    }
    return false;
}
static bool device_ok(const char *c, size_t n)
{
    static const char *lo, *hi; /* the allocation that was hit last */
    static size_t count;
    if (c >= lo && c + n <= hi && count == allocs.size()) return true;
    uintptr_t base;
    Alloc a;
    if (!find_alloc(c, n, &base, &a)) return false;
    lo = reinterpret_cast<const char *>(base);
    hi = lo + a.n;
    count = allocs.size();
    return true;
}
static void check_cell(Cell &x, const Th *t, const char *p, size_t n, bool write, bool atomic,
                       bool must_be_written, uint32_t site, uint64_t me)
{
    if (!ordered(x.w, t) && !(atomic && rec_atomic(x.w)))
        report("data race", t, p, n, write, site, x.w, x.wsite, true);
    if (write) {
        if (!ordered(x.r, t) && !(atomic && rec_atomic(x.r))) {
            report("data race", t, p, n, write, site, x.r, x.rsite, false);
        } else if (!ordered(x.r2, t) && !(atomic && rec_atomic(x.r2))) {
            report("data race", t, p, n, write, site, x.r2, x.rsite, false);
        }
        x.w = me;
        x.wsite = site;
        x.r = x.r2 = 0;
        return;
    }
    if (!(x.w >> 63) && must_be_written) {
        report("read of uninitialised memory", t, p, n, write, site, 0, 0, false);
        x.w = 1ull << 63 | 1ull << 46; /* once for each byte */
    }
    if ((x.r ^ me) >> 18) x.r2 = x.r;
    x.r = me;
    x.rsite = site;
}
void race_access(Th *t, const void *p, size_t n, bool write, bool atomic, uint32_t site)
{
    const char *c = static_cast<const char *>(p);
    Cell *s = shadow(p);
    if (!s) {
        if (c >= stack_lo && c < stack_hi) {
            report("access to another thread's local memory", t, p, n, write, site, 0, 0, false);
        } else if (c < &__executable_start || c >= &end) { /* the program's image holds constants */
            report("kernel access to host memory", t, p, n, write, site, 0, 0, false);
        }
        return;
    }
    bool smem = c >= smem_lo && c < smem_hi;
    if (smem && !shared_ok(t->blk, c, n)) {
        report("out-of-bounds shared memory access", t, p, n, write, site, 0, 0, false);
        return;
    }
    if (!smem && !device_ok(c, n)) {
        report("out-of-bounds device memory access", t, p, n, write, site, 0, 0, false);
        fatal("the access would fault");
    }
    uint64_t me = record(t, atomic);
    Cell was = {}, now = {};
    for (size_t i = 0; i < n; i++) {
        if (i &&
            !memcmp(&s[i], &was, sizeof was)) { /* the same history as the byte before: the same outcome */
            s[i] = now;
            continue;
        }
        was = s[i];
        check_cell(s[i], t, c + i, n, write, atomic, smem || opt.uninit, site, me);
        now = s[i];
    }
    if (write && !atomic && !smem && !t->dirty) {
        t->dirty = true;
        t->blk->ndirty++;
    }
}

/* ---- what orders accesses */

void race_launch()
{
    released.clear();
    if ((++launch_id & 0xffff) == 0) launch_id++;
}
void race_block(Block *b)
{
    size_t n = static_cast<size_t>(b->n);
    b->epoch++;
    b->cols = n + BARRIERS_MAX <= 1024 ? n + BARRIERS_MAX : n;
    b->base.assign(b->cols, 0);
    b->wide = false;
    b->known.clear();
    b->ndirty = 0;
    if (b->rows.size() < n * b->cols) b->rows.resize(n * b->cols);
    for (size_t i = 0; i < n; i++) {
        Th &t = b->th[i];
        t.own = 1;
        t.row_epoch = t.fence_epoch = t.proxy = 0;
        t.dirty = false;
    }
    race_fresh(b->dyn, b->dyn_n);
}
void race_syncthreads(Block *b)
{
    size_t n = static_cast<size_t>(b->n);
    for (size_t i = 0; b->wide && i < n; i++) /* what one has seen of the copy engine, all have now */
        for (size_t u = n; u < b->cols && b->th[i].row_epoch == b->epoch; u++)
            if (b->rows[i * b->cols + u] > b->base[u]) b->base[u] = b->rows[i * b->cols + u];
    b->epoch++; /* voids all rows */
    for (int i = 0; i < b->n; i++) b->base[static_cast<size_t>(i)] = b->th[static_cast<size_t>(i)].own++;
}
/* The clocks that a thread knows of beyond the block's base, cleared when a barrier has voided them. */
static uint32_t *row_of(Th *t)
{
    Block *b = t->blk;
    uint32_t *r = &b->rows[static_cast<size_t>(t->lin) * b->cols];
    if (t->row_epoch != b->epoch) {
        memset(r, 0, b->cols * 4);
        t->row_epoch = b->epoch;
    }
    return r;
}
/* Members learn what each of them knows. Only their own warp's columns matter until a named barrier has made
 * rows wide. */
static void join(Block *b, Th **v, size_t n)
{
    size_t lo = 0, hi = b->cols;
    if (!b->wide) {
        lo = static_cast<size_t>(v[0]->lin) & ~static_cast<size_t>(31);
        hi = static_cast<size_t>(b->n) < lo + 32 ? static_cast<size_t>(b->n) : lo + 32;
    }
    static std::vector<uint32_t> most;
    most.assign(hi - lo, 0);
    for (size_t i = 0; i < n; i++) {
        uint32_t *r = row_of(v[i]);
        for (size_t u = lo; u < hi; u++)
            if (r[u] > most[u - lo]) most[u - lo] = r[u];
        uint32_t &own = most[static_cast<size_t>(v[i]->lin) - lo];
        if (v[i]->own > own) own = v[i]->own;
    }
    for (size_t i = 0; i < n; i++) {
        memcpy(row_of(v[i]) + lo, most.data(), (hi - lo) * 4);
        v[i]->own++;
    }
}
void race_syncwarp(Warp *w, unsigned mask)
{
    Th *v[32];
    size_t n = 0;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) v[n++] = w->lane[i];
    join(v[0]->blk, v, n);
}
void race_join(Block *b, std::vector<Th *> &members)
{
    b->wide = true;
    join(b, members.data(), members.size());
}
void race_fence(Th *t)
{
    if (t->dirty) {
        t->dirty = false;
        t->blk->ndirty--;
    }
    t->fence_epoch = t->blk->epoch;
}
/* An atomic on device memory publishes its block if every thread of it that wrote has fenced since, or the
 * acting thread fenced after the last barrier; and it learns of all blocks published there. */
void race_atomic(Th *t, const void *p)
{
    const char *c = static_cast<const char *>(p);
    if (c >= smem_lo && c < smem_hi) return;
    Block *b = t->blk;
    std::set<unsigned> &s = released[p];
    if (b->ndirty == 0 || (t->fence_epoch == b->epoch && !t->dirty)) {
        s.insert(b->linear & 0x3ffff);
        s.insert(b->known.begin(), b->known.end());
    }
    b->known.insert(s.begin(), s.end());
}
/* ---- Hopper's barriers and proxies: rows are wide from the first barrier on */

void race_barriers(Block *b)
{
    b->wide = true;
    if (b->cols == static_cast<size_t>(b->n))
        fatal("the access checker has no room for barriers in blocks of so many threads");
}
void race_learn(Block *b, std::vector<uint32_t> &known, uint32_t barrier, uint32_t phase)
{
    known.resize(b->cols);
    known[static_cast<size_t>(b->n) + barrier] = phase;
}
void race_landed(Block *b, void *p, size_t n, uint32_t barrier, uint32_t phase, uint32_t site)
{
    Cell *s = shadow(p);
    uint64_t r = 1ull << 63 | static_cast<uint64_t>(launch_id & 0xffff) << 46 |
                 static_cast<uint64_t>(b->linear & 0x3ffff) << 28 |
                 static_cast<uint64_t>(static_cast<uint32_t>(b->n) + barrier) << 18 | (phase & 0x3ffff);
    for (size_t i = 0; i < n; i++) s[i] = Cell{r, 0, 0, site, 0};
}
void race_release(Th *t, std::vector<uint32_t> &known)
{
    known.resize(t->blk->cols);
    const uint32_t *r = row_of(t);
    for (size_t u = 0; u < t->blk->cols; u++)
        if (r[u] > known[u]) known[u] = r[u];
    known[static_cast<size_t>(t->lin)] = t->own++;
}
void race_acquire(Th *t, const std::vector<uint32_t> &known)
{
    uint32_t *r = row_of(t);
    for (size_t u = 0; u < known.size(); u++)
        if (known[u] > r[u]) r[u] = known[u];
}
void race_proxy(Th *t)
{
    t->proxy = t->own++;
}
void race_async_read(Th *t, const void *p, size_t n, uint32_t site, bool open)
{
    uint32_t own = t->own;
    if (open) t->own = 0x3ffff; /* a time that nobody has heard of */
    race_access(t, p, n, false, false, site);
    t->own = own;
    Cell *s = shadow(p);
    for (size_t i = 0; s && i < n; i++) {
        uint64_t w = s[i].w;
        unsigned u = rec_thread(w);
        if (!(w >> 63) || rec_launch(w) != (launch_id & 0xffff) || u >= static_cast<unsigned>(t->blk->n))
            continue;
        if (t->blk->th[u].proxy >= rec_clock(w)) continue;
        report("no proxy fence between an ordinary write and this", t, p, n, false, site, w, s[i].wsite,
               true);
        return;
    }
}
void race_host_write(void *p, size_t n)
{
    Cell *s = shadow(p);
    for (size_t i = 0; s && i < n; i++) s[i] = Cell{1ull << 63, 0, 0, 0, 0};
}
void race_pending(void *p, size_t n)
{
    Cell *s = shadow(p);
    for (size_t i = 0; i < n; i++) s[i].w = 0;
}
void race_fresh(void *p, size_t n)
{
    memset(static_cast<void *>(shadow(p)), 0, n * sizeof(Cell));
}
/* Device pages that are freed for good: gives the memory of their cells back. */
void race_forget(void *p, size_t n)
{
    if (!shadow_dev) return;
    uintptr_t lo = reinterpret_cast<uintptr_t>(shadow(p)), hi = lo + n * sizeof(Cell);
    lo = (lo + 4095) & ~static_cast<uintptr_t>(4095);
    hi &= ~static_cast<uintptr_t>(4095);
    if (hi > lo) madvise(reinterpret_cast<void *>(lo), hi - lo, MADV_DONTNEED);
}
/* Called by the instrumented code. Exempt: its own stack, its record (threadIdx and so on), the pointer to
 * that record. */
static inline __attribute__((always_inline)) void hook(void *p, size_t n, bool write, void *pc)
{
    if (!cur) return;
    Th *t = self();
    char *c = static_cast<char *>(p);
    if (c >= t->fib->lo && c < t->fib->lo + t->fib->size) return;
    if ((c >= reinterpret_cast<char *>(cur) && c < reinterpret_cast<char *>(cur) + sizeof(Thread)) ||
        p == static_cast<void *>(&cur))
        return;
    race_access(t, p, n, write, false, static_cast<uint32_t>(reinterpret_cast<uintptr_t>(pc)));
    maybe_yield();
}
} // namespace cuemu

#define PC __builtin_return_address(0)
#define HOOKS(NAME, N)                                                                                       \
    void __tsan_##NAME##read##N(void *p);                                                                    \
    void __tsan_##NAME##write##N(void *p);                                                                   \
    void __tsan_##NAME##read##N(void *p)                                                                     \
    {                                                                                                        \
        cuemu::hook(p, N, false, PC);                                                                        \
    }                                                                                                        \
    void __tsan_##NAME##write##N(void *p)                                                                    \
    {                                                                                                        \
        cuemu::hook(p, N, true, PC);                                                                         \
    }
#define HOOKS_ALL(NAME) HOOKS(NAME, 1) HOOKS(NAME, 2) HOOKS(NAME, 4) HOOKS(NAME, 8) HOOKS(NAME, 16)
extern "C" {
HOOKS_ALL()
HOOKS_ALL(unaligned_)
HOOKS_ALL(volatile_)
HOOKS_ALL(unaligned_volatile_)
void __tsan_read_range(void *p, size_t n);
void __tsan_write_range(void *p, size_t n);
void __tsan_init();
void __tsan_func_entry(void *);
void __tsan_func_exit();
void __tsan_vptr_update(void **, void *);
void __tsan_vptr_read(void **);
void __tsan_read_range(void *p, size_t n)
{
    cuemu::hook(p, n, false, PC);
}
void __tsan_write_range(void *p, size_t n)
{
    cuemu::hook(p, n, true, PC);
}
void __tsan_init()
{
}
void __tsan_func_entry(void *)
{
}
void __tsan_func_exit()
{
}
void __tsan_vptr_update(void **, void *)
{
}
void __tsan_vptr_read(void **)
{
}
}
