/* Internals that the emulator's own files share. Kernels never see this: it pulls in the C++ library, and its
 * functions are not instrumented by the access checker. One recursive lock (emu_host.cpp) makes emulation
 * serial; fibers never change their OS thread. */
#ifndef KVASIR_CUEMU_RT_H
#define KVASIR_CUEMU_RT_H

#include "tests/cuda-emulator/emu.h"
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define CUEMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CUEMU_ASAN 1
#endif
#endif
#ifdef CUEMU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define __asan_poison_memory_region(p, n)   (static_cast<void>(p), static_cast<void>(n))
#define __asan_unpoison_memory_region(p, n) (static_cast<void>(p), static_cast<void>(n))
#endif

namespace cuemu
{
struct Body { /* a kernel with its arguments */
    void (*invoke)(const void *);
    std::vector<char> data;
};
enum ThState { TH_FRESH, TH_RUN, TH_WAIT, TH_DONE };
enum Policy { POLICY_FWD, POLICY_REV, POLICY_FIFO, POLICY_RAND };
struct Block;
struct Warp;
struct Fiber {
    void *sp;
    char *lo; /* the stack without its guard page */
    size_t size;
    void *fake; /* ASan's */
};
struct CopyOp { /* one cp.async of a thread */
    void *dst;
    const void *src;
    int bytes, valid, group;
    bool done;
    uint32_t site;
};
struct Th : Thread {
    Block *blk;
    Warp *wp;
    Fiber *fib;
    ThState state;
    const char *wait_what, *wait_file; /* where it waits */
    int wait_line;
    std::vector<CopyOp> copies;
    int copy_group;
    /* access checker: own clock, epoch in which its row of known clocks is valid, wrote to device memory
     * since its last fence */
    uint32_t own, row_epoch, fence_epoch;
    uint32_t proxy; /* own clock at the last proxy fence */
    bool dirty;
};
struct Group { /* lanes that wait for one another in a warp operation */
    bool on;
    const char *what, *file;
    int line;
    CollFn fn;
    Coll c;
};
struct Warp {
    Th *lane[32];
    unsigned exist, live;
    Group g[32];
    int pending;
};
struct Bar {
    int arrived, expect;
    const char *file;
    int line;
    std::vector<Th *> wait, members;
    int acc[3], result[3]; /* count, and, or */
};
struct SharedVar {
    size_t off, n;
    const char *name;
};
struct Block {
    int slot, n, nlive, nwarps;
    uint3 bid;
    unsigned linear;
    std::vector<Th> th;
    std::vector<Warp> wp;
    Bar bar[16];
    char *dyn, *stat;
    size_t dyn_n, stat_n;
    std::unordered_map<const void *, SharedVar> vars;
    std::vector<std::pair<size_t, size_t>> gaps; /* of the dynamic part: offset, bytes */
    /* access checker */
    uint32_t epoch;
    size_t cols; /* of rows: threads, and one for each barrier that bulk copies may arrive at */
    std::vector<uint32_t> base, rows;
    bool wide;
    std::set<unsigned> known;
    int ndirty;
    void *hopper; /* emu_hopper.cpp's, or NULL */
};
enum { BARRIERS_MAX = 32 }; /* mbarriers of a block */
struct Options {
    Policy sched;
    uint64_t seed;
    bool lazy, guard, exit_ok, uninit, mma_double;
    int resident, preempt, stack_kb;
};
struct Alloc {
    size_t n;
    const char *file;
    int line;
};

/* Shared memory: one slab for each resident block. Canary bytes stand in every gap. */
enum {
    SLAB_DYN = 256 << 10,
    SLAB_STAT = 64 << 10,
    SLAB = SLAB_DYN + SLAB_STAT,
    SHARED_GAP = 64,
    CANARY = 0xfd,
    RESIDENT_MAX = 256
};
enum {
    SHARED_STATIC_MAX = 48 << 10,
    SHARED_OPTIN_MAX = 163 << 10,
    SHARED_OPTIN_90 = 227 << 10,
    SHARED_GAP_SLACK = 16 << 10
};

extern Options opt;
extern const Launch *launch_now; /* the kernel that runs, NULL in host code */
extern char *smem_lo, *smem_hi, *dev_lo, *dev_hi, *stack_lo, *stack_hi;
extern std::map<uintptr_t, Alloc> &allocs;
extern std::vector<Block *> &slots;
extern uint64_t spins, stat_threads, stat_switches, stat_collectives, stat_barriers;

static inline Th *self()
{
    return static_cast<Th *>(cur);
}
uint64_t rnd();
uint64_t env_u64(const char *name, uint64_t otherwise);
void where(char *buf, size_t n, const Th *t);
void describe_address(char *buf, size_t n, const void *p);
bool find_alloc(const void *p, size_t n, uintptr_t *base = nullptr, Alloc *a = nullptr);
bool is_shared(const void *p, size_t n);
[[noreturn]] void stop();

/* scheduler (emu_core.cpp) */
void run_grid(const Launch &l, const Body &body);
void make_runnable(Th *t, bool back = true);
void wait_here(const char *what, const char *file,
               int line); /* until somebody makes the current thread runnable */
void yield_now();
void maybe_yield();

/* blocks and what lives in them (emu_sync.cpp) */
void block_memory_init(Block *b);
void block_memory_check(Block *b);
void thread_leaves(Th *t);
void gemm_f32(size_t m, size_t n, size_t k, const float *a, const float *b, float *c);
void stream_push(cudaStream_t s, std::function<void()> fn);
void check_range(const char *call, const void *p, size_t n, const char *arg);
bool inject_blas();

/* emu_hopper.cpp */
void hopper_block_begin(Block *b);
void hopper_block_end(Block *b);

/* access checker (emu_race.cpp); a site is a program counter or an interned file:line */
#ifdef CUEMU_RACE
uint32_t site_of(const char *file, int line);
void race_access(Th *t, const void *p, size_t n, bool write, bool atomic, uint32_t site);
void race_launch();
void race_block(Block *b);
void race_syncthreads(Block *b);
void race_syncwarp(Warp *w, unsigned mask);
void race_join(Block *b, std::vector<Th *> &members);
void race_atomic(Th *t, const void *p);
void race_fence(Th *t);
void race_host_write(void *p, size_t n);
void race_pending(void *p, size_t n);
void race_fresh(void *p, size_t n);
void race_forget(void *p, size_t n);
/* For emu_hopper.cpp. The copy engine's writes count as those of a further thread for each barrier, with the
 * barrier's phases as its clock. race_landed: a bulk copy has written; race_learn: that goes to those who
 * will have waited (known: a row of clocks); race_release and race_acquire: a thread's knowledge to and from
 * a barrier; race_async_read: a read by the tensor cores, for t; open: it may still go on, so that no write
 * can come after it yet. */
void race_barriers(Block *b);
void race_landed(Block *b, void *p, size_t n, uint32_t barrier, uint32_t phase, uint32_t site);
void race_learn(Block *b, std::vector<uint32_t> &known, uint32_t barrier, uint32_t phase);
void race_release(Th *t, std::vector<uint32_t> &known);
void race_acquire(Th *t, const std::vector<uint32_t> &known);
void race_proxy(Th *t);
void race_async_read(Th *t, const void *p, size_t n, uint32_t site, bool open);
#else
static inline uint32_t site_of(const char *, int)
{
    return 0;
}
static inline void race_access(Th *, const void *, size_t, bool, bool, uint32_t)
{
}
static inline void race_launch()
{
}
static inline void race_block(Block *)
{
}
static inline void race_syncthreads(Block *)
{
}
static inline void race_syncwarp(Warp *, unsigned)
{
}
static inline void race_join(Block *, std::vector<Th *> &)
{
}
static inline void race_atomic(Th *, const void *)
{
}
static inline void race_fence(Th *)
{
}
static inline void race_host_write(void *, size_t)
{
}
static inline void race_pending(void *, size_t)
{
}
static inline void race_fresh(void *, size_t)
{
}
static inline void race_forget(void *, size_t)
{
}
static inline void race_barriers(Block *)
{
}
static inline void race_landed(Block *, void *, size_t, uint32_t, uint32_t, uint32_t)
{
}
static inline void race_learn(Block *, std::vector<uint32_t> &, uint32_t, uint32_t)
{
}
static inline void race_release(Th *, std::vector<uint32_t> &)
{
}
static inline void race_acquire(Th *, const std::vector<uint32_t> &)
{
}
static inline void race_proxy(Th *)
{
}
static inline void race_async_read(Th *, const void *, size_t, uint32_t, bool)
{
}
#endif
} // namespace cuemu
#endif
