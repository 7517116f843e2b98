/* The emulator's execution core: one fiber for each CUDA thread, all on the OS thread that launched; a run
 * queue under one of four policies; blocks sequentially (or a few interleaved); reports. A thread that must
 * wait stores its state and jumps straight to the next runnable fiber; one that ends runs the next fresh
 * thread on the same stack, so kernels without barriers never switch. It knows nothing of memory or
 * streams. */
#include "tests/cuda-emulator/emu_rt.h"

#include <cstdarg>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__) && !defined(CUEMU_UCONTEXT)
/* cuemu_switch(void **save, void *to): stores the callee-saved registers on the stack it leaves and takes
 * those of the one it enters. */
asm(R"(
.text
.globl cuemu_switch
.type cuemu_switch,@function
cuemu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cuemu_switch,.-cuemu_switch
)");
extern "C" void cuemu_switch(void **save, void *to);
#else
#include <ucontext.h>
static void cuemu_switch(void **save, void *to)
{
    ucontext_t here;
    *save = &here;
    swapcontext(&here, static_cast<ucontext_t *>(to));
}
#endif

namespace cuemu
{
__thread Thread *cur;
Options opt;
const Launch *launch_now;
char *smem_lo, *smem_hi, *stack_lo, *stack_hi;
/* Leaked on purpose: a plain static container dies before LeakSanitizer looks at what it holds. */
std::vector<Block *> &slots = *new std::vector<Block *>;
static std::vector<Fiber *> &fibers_all = *new std::vector<Fiber *>;
uint64_t spins, stat_threads, stat_switches, stat_collectives, stat_barriers;
static char *stack_next;
static Fiber main_fiber;
static std::vector<Fiber *> fibers_free;
static const Body *body_now;
static std::deque<Th *> queue;
static std::vector<unsigned> order; /* of blocks */
static size_t next_block;
static int blocks_active;
static Fiber *dead;   /* left by a thread that ended; recycled by the launching context */
static Th *successor; /* whom it wants to run next */
static uint64_t rng;

uint64_t rnd()
{
    uint64_t x = rng += 0x9E3779B97F4A7C15ull;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}
uint64_t env_u64(const char *name, uint64_t otherwise)
{
    const char *s = getenv(name);
    return s && *s ? strtoull(s, nullptr, 10) : otherwise;
}

/* ---- reports */

void stop()
{
    fflush(stdout);
    if (getenv("CUEMU_ABORT")) abort();
    _exit(97);
}
void where(char *buf, size_t n, const Th *t)
{
    if (!t || !launch_now) {
        snprintf(buf, n, "host code");
        return;
    }
    snprintf(buf, n, "kernel %s block (%u,%u,%u) thread (%u,%u,%u) [warp %d lane %d]", launch_now->name,
             t->bid.x, t->bid.y, t->bid.z, t->tid.x, t->tid.y, t->tid.z, t->lin / 32, t->lane);
}
static const char *policy_name()
{
    static const char *const names[] = {"fwd", "rev", "fifo", "rand"};
    return names[opt.sched];
}
void fatal(const char *fmt, ...)
{
    char w[256];
    where(w, sizeof w, cur ? self() : nullptr);
    fflush(stdout);
    fprintf(stderr, "cuemu: error: ");
    va_list ap;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "\n  in %s (CUEMU_SCHED=%s CUEMU_SEED=%llu)\n", w, policy_name(),
            static_cast<unsigned long long>(opt.seed));
    stop();
}
/* Says what an address is, for reports. */
void describe_address(char *buf, size_t n, const void *addr)
{
    const char *p = static_cast<const char *>(addr);
    uintptr_t base;
    Alloc a;
    if (p >= smem_lo && p < smem_hi) {
        size_t slot = static_cast<size_t>(p - smem_lo) / SLAB, off = static_cast<size_t>(p - smem_lo) % SLAB;
        if (off < SLAB_DYN) {
            snprintf(buf, n, "dynamic shared memory, byte %zu of %zu", off,
                     slot < slots.size() ? slots[slot]->dyn_n : 0);
            return;
        }
        off -= SLAB_DYN;
        if (slot < slots.size())
            for (auto &v : slots[slot]->vars)
                if (off >= v.second.off && off < v.second.off + v.second.n + SHARED_GAP) {
                    snprintf(buf, n, "shared variable '%s', byte %zu of %zu", v.second.name,
                             off - v.second.off, v.second.n);
                    return;
                }
        snprintf(buf, n, "static shared memory, byte %zu", off);
    } else if (p >= stack_lo && p < stack_hi) {
        bool over = static_cast<size_t>(p - stack_lo) % (static_cast<size_t>(opt.stack_kb) << 10) < 4096;
        snprintf(buf, n, "%s", over ? "guard page of a fiber's stack: stack overflow" : "a fiber's stack");
    } else if (find_alloc(p, 1, &base, &a)) {
        snprintf(buf, n, "device allocation of %zu bytes from %s:%d, byte %zu", a.n, a.file, a.line,
                 static_cast<size_t>(reinterpret_cast<uintptr_t>(p) - base));
    } else {
        auto it = allocs.upper_bound(reinterpret_cast<uintptr_t>(p));
        if (it != allocs.begin()) {
            --it;
            size_t past = reinterpret_cast<uintptr_t>(p) - it->first - it->second.n;
            if (past < 65536) {
                snprintf(buf, n, "%zu bytes past the device allocation of %zu bytes from %s:%d", past,
                         it->second.n, it->second.file, it->second.line);
                return;
            }
        }
        snprintf(buf, n, "not device memory");
    }
}
[[maybe_unused]] static void crash(int sig, siginfo_t *si, void *)
{
    char w[256], d[256];
    where(w, sizeof w, cur ? self() : nullptr);
    describe_address(d, sizeof d, si->si_addr);
    fprintf(stderr, "cuemu: signal %d at address %p (%s)\n  in %s (CUEMU_SCHED=%s CUEMU_SEED=%llu)\n", sig,
            si->si_addr, d, w, policy_name(), static_cast<unsigned long long>(opt.seed));
    void *bt[24];
    int n = backtrace(bt, 24);
    backtrace_symbols_fd(bt, n, 2);
    stop();
}

/* Test frameworks take over SIGSEGV and would jump out of a fiber: ours stands while a kernel runs, and
 * outside of kernels if nobody else's does. */
struct CrashHandler {
    struct sigaction old_segv, old_bus;
    void install()
    {
#ifndef CUEMU_ASAN
        struct sigaction sa;
        memset(&sa, 0, sizeof sa);
        sa.sa_sigaction = crash;
        sa.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigaction(SIGSEGV, &sa, &old_segv);
        sigaction(SIGBUS, &sa, &old_bus);
#endif
    }
    void restore()
    {
#ifndef CUEMU_ASAN
        sigaction(SIGSEGV, &old_segv, nullptr);
        sigaction(SIGBUS, &old_bus, nullptr);
#endif
    }
};

/* Reads the environment and reserves address space, before any constructor of the program. */
struct Start {
    Start()
    {
        const char *s = getenv("CUEMU_SCHED");
        opt.sched = !s || !*s || !strcmp(s, "fwd") ? POLICY_FWD
                    : !strcmp(s, "rev")            ? POLICY_REV
                    : !strcmp(s, "fifo")           ? POLICY_FIFO
                                                   : POLICY_RAND;
        opt.seed = env_u64("CUEMU_SEED", 1);
        rng = 88172645463325252ull ^ opt.seed * 0x9E3779B97F4A7C15ull;
        opt.lazy = env_u64("CUEMU_LAZY", 0);
        opt.guard = env_u64("CUEMU_GUARD", 0);
        opt.exit_ok = env_u64("CUEMU_EXIT_OK", 0);
        opt.uninit = env_u64("CUEMU_UNINIT", 0);
        opt.mma_double = env_u64("CUEMU_MMA", 0);
        opt.resident = static_cast<int>(env_u64("CUEMU_RESIDENT", opt.sched == POLICY_RAND ? 2 : 1));
        opt.preempt = static_cast<int>(env_u64("CUEMU_PREEMPT", opt.sched == POLICY_RAND ? 64 : 0));
        if (opt.resident < 1 || opt.resident > RESIDENT_MAX) opt.resident = 1;
#ifdef CUEMU_ASAN
        opt.stack_kb = static_cast<int>(env_u64("CUEMU_STACK_KB", 256));
#else
        opt.stack_kb = static_cast<int>(env_u64("CUEMU_STACK_KB", 64));
        CrashHandler().install();
#endif
        size_t smem = static_cast<size_t>(SLAB) * RESIDENT_MAX,
               stacks = (static_cast<size_t>(opt.stack_kb) << 10) * 16384;
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        void *a = mmap(nullptr, smem, PROT_READ | PROT_WRITE, flags, -1, 0),
             *b = mmap(nullptr, stacks, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (a == MAP_FAILED || b == MAP_FAILED) {
            perror("cuemu: mmap");
            _exit(97);
        }
        smem_lo = static_cast<char *>(a);
        smem_hi = smem_lo + smem;
        stack_lo = stack_next = static_cast<char *>(b);
        stack_hi = stack_lo + stacks;
    }
    ~Start()
    {
        if (env_u64("CUEMU_STATS", 0))
            fprintf(stderr, "cuemu: threads %llu switches %llu warp operations %llu barrier arrivals %llu\n",
                    static_cast<unsigned long long>(stat_threads),
                    static_cast<unsigned long long>(stat_switches),
                    static_cast<unsigned long long>(stat_collectives),
                    static_cast<unsigned long long>(stat_barriers));
    }
};
__attribute__((init_priority(101))) static Start start_;

/* ---- fibers */

static void fiber_main();
static Fiber *fiber_get()
{
    Fiber *f;
    if (!fibers_free.empty()) {
        f = fibers_free.back();
        fibers_free.pop_back();
    } else {
        size_t sz = static_cast<size_t>(opt.stack_kb) << 10;
        if (stack_next + sz > stack_hi) fatal("out of fiber stacks");
        f = new Fiber;
        fibers_all.push_back(f);
        f->lo = stack_next + 4096;
        f->size = sz - 4096;
        mprotect(stack_next, 4096, PROT_NONE);
        stack_next += sz;
    }
#if defined(__x86_64__) && !defined(CUEMU_UCONTEXT)
    void **sp = reinterpret_cast<void **>(f->lo + f->size);
    *--sp =
        nullptr; /* a return address that ends backtraces; the stack is 8 mod 16 at entry, as after a call */
    *--sp = reinterpret_cast<void *>(fiber_main);
    for (int i = 0; i < 6; i++) *--sp = nullptr;
    f->sp = sp;
#else
    ucontext_t *u = reinterpret_cast<ucontext_t *>(f->lo);
    getcontext(u);
    u->uc_stack.ss_sp = f->lo + sizeof(ucontext_t) + 64;
    u->uc_stack.ss_size = f->size - sizeof(ucontext_t) - 64;
    u->uc_link = nullptr;
    makecontext(u, fiber_main, 0);
    f->sp = u;
#endif
    f->fake = nullptr;
    return f;
}
static inline void fiber_switch(Fiber *from, Fiber *to, bool dying)
{
#ifdef CUEMU_ASAN
    __sanitizer_start_switch_fiber(dying ? nullptr : &from->fake, to->lo, to->size);
#else
    (void)dying;
#endif
    stat_switches++;
    cuemu_switch(&from->sp, to->sp);
#ifdef CUEMU_ASAN
    __sanitizer_finish_switch_fiber(from->fake, nullptr, nullptr);
#endif
}

/* ---- the run queue */

void make_runnable(Th *t, bool back)
{
    if (back) {
        queue.push_back(t);
    } else {
        queue.push_front(t);
    }
}
static Th *pick()
{
    if (queue.empty()) return nullptr;
    Th *t;
    if (opt.sched == POLICY_FIFO) {
        t = queue.front();
        queue.pop_front();
        return t;
    }
    if (opt.sched == POLICY_RAND) std::swap(queue[rnd() % queue.size()], queue.back());
    t = queue.back();
    queue.pop_back();
    return t;
}
static void enter(Th *t) /* makes t current; gives it a stack if it never ran */
{
    cur = t;
    if (t->state == TH_FRESH) t->fib = fiber_get();
}
static void suspend()
{
    Th *me = self(), *next = pick();
    if (next != me) {
        if (next) {
            enter(next);
            fiber_switch(me->fib, next->fib, false);
        } else {
            cur = nullptr;
            fiber_switch(me->fib, &main_fiber, false);
        }
    }
    me->state = TH_RUN;
}
void wait_here(const char *what, const char *file, int line)
{
    Th *t = self();
    t->state = TH_WAIT;
    t->wait_what = what;
    t->wait_file = file;
    t->wait_line = line;
    suspend();
}
void yield_now()
{
    Th *t = self();
    t->state = TH_WAIT;
    make_runnable(t, opt.sched == POLICY_FIFO);
    suspend();
}
void maybe_yield()
{
    if (opt.preempt && !queue.empty() && rnd() % static_cast<unsigned>(opt.preempt) == 0) yield_now();
}
void spin_yield(const char *file, int line)
{
    if (++spins > 2000000)
        fatal("livelock: 2 million spins without progress at %s:%d (a cooperative launch is needed where "
              "blocks wait for blocks)",
              file, line);
    if (!queue.empty()) yield_now();
}

/* ---- blocks */

static void start_block_in(Block *b, unsigned linear)
{
    const Launch &l = *launch_now;
    b->linear = linear;
    b->bid = {linear % l.g.x, linear / l.g.x % l.g.y, linear / l.g.x / l.g.y};
    b->n = b->nlive = static_cast<int>(l.b.x * l.b.y * l.b.z);
    b->nwarps = (b->n + 31) / 32;
    b->dyn_n = l.smem;
    block_memory_init(b);
    if (b->th.size() < static_cast<size_t>(b->n)) b->th.resize(static_cast<size_t>(b->n));
    if (b->wp.size() < static_cast<size_t>(b->nwarps)) b->wp.resize(static_cast<size_t>(b->nwarps));
    for (Bar &r : b->bar) {
        r.arrived = 0;
        r.wait.clear();
        r.members.clear();
        r.acc[0] = r.acc[2] = 0;
        r.acc[1] = 1;
    }
    for (int w = 0; w < b->nwarps; w++) {
        Warp &p = b->wp[static_cast<size_t>(w)];
        p.exist = 0;
        p.pending = 0;
        for (Group &g : p.g) g.on = false;
    }
    for (int i = 0; i < b->n; i++) {
        Th &t = b->th[static_cast<size_t>(i)];
        unsigned u = static_cast<unsigned>(i);
        t.tid = {u % l.b.x, u / l.b.x % l.b.y, u / l.b.x / l.b.y};
        t.bid = b->bid;
        t.bdim = l.b;
        t.gdim = l.g;
        t.lane = i & 31;
        t.lin = i;
        t.blk = b;
        t.wp = &b->wp[static_cast<size_t>(i) / 32];
        t.wp->lane[t.lane] = &t;
        t.wp->exist |= 1u << t.lane;
        t.wp->live = t.wp->exist;
        t.fib = nullptr;
        t.state = TH_FRESH;
        t.copies.clear();
        t.copy_group = 0;
        t.wait_what = "";
    }
    race_block(b);
    if (opt.sched == POLICY_FWD) { /* the back of the queue runs first: thread 0 last in */
        for (int i = b->n; i--;) queue.push_back(&b->th[static_cast<size_t>(i)]);
    } else {
        for (int i = 0; i < b->n; i++) queue.push_back(&b->th[static_cast<size_t>(i)]);
    }
    blocks_active++;
}
static void start_block()
{
    if (next_block >= order.size()) return;
    for (Block *b : slots)
        if (b->nlive == 0) {
            start_block_in(b, order[next_block++]);
            return;
        }
}
static void thread_exit(Th *t)
{
    Block *b = t->blk;
    stat_threads++;
    spins = 0;
    thread_leaves(t);
    if (b->nlive == 0) {
        block_memory_check(b);
        blocks_active--;
        start_block();
    }
}
static void fiber_main()
{
#ifdef CUEMU_ASAN
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    Fiber *me = self()->fib;
    for (;;) {
        self()->state = TH_RUN;
        body_now->invoke(body_now->data.data());
        Th *t = self();
        t->fib = nullptr;
        thread_exit(t);
        Th *next = pick();
        if (next && next->state == TH_FRESH) { /* on this very stack */
            cur = next;
            next->fib = me;
            continue;
        }
        successor = next;
        dead = me;
        cur = nullptr;
        fiber_switch(me, &main_fiber, true);
        abort();
    }
}
[[noreturn]] static void deadlock()
{
    fflush(stdout);
    fprintf(stderr, "cuemu: error: deadlock in kernel %s (CUEMU_SCHED=%s CUEMU_SEED=%llu)\n",
            launch_now->name, policy_name(), static_cast<unsigned long long>(opt.seed));
    for (Block *b : slots) {
        if (!b->nlive) continue;
        std::map<std::string, std::pair<int, std::string>> sites;
        for (int i = 0; i < b->n; i++) {
            Th &t = b->th[static_cast<size_t>(i)];
            char s[256] = "have ended";
            if (t.state != TH_DONE)
                snprintf(s, sizeof s, "wait in %s at %s:%d", t.wait_what, t.wait_file, t.wait_line);
            auto &e = sites[s];
            e.first++;
            if (e.second.size() < 60) e.second += std::to_string(i) + " ";
        }
        fprintf(stderr, "  block (%u,%u,%u):\n", b->bid.x, b->bid.y, b->bid.z);
        for (auto &e : sites)
            fprintf(stderr, "    %d threads %s: %s...\n", e.second.first, e.first.c_str(),
                    e.second.second.c_str());
    }
    stop();
}
/* Once in each OS thread that launches: ASan must know the stack that it returns to, and a handler needs one
 * of its own when a fiber's is full. */
static void learn_own_stack()
{
    static thread_local char *lo;
    static thread_local size_t size;
    if (!lo) {
        pthread_attr_t at;
        void *p;
        pthread_getattr_np(pthread_self(), &at);
        pthread_attr_getstack(&at, &p, &size);
        pthread_attr_destroy(&at);
        lo = static_cast<char *>(p);
#ifndef CUEMU_ASAN
        stack_t ss;
        memset(&ss, 0, sizeof ss);
        ss.ss_size = 65536;
        ss.ss_sp = malloc(ss.ss_size);
        if (ss.ss_sp) sigaltstack(&ss, nullptr);
#endif
    }
    main_fiber.lo = lo;
    main_fiber.size = size;
}
void run_grid(const Launch &l, const Body &body)
{
    if (launch_now) fatal("a launch inside a kernel");
    learn_own_stack();
    size_t blocks = static_cast<size_t>(l.g.x) * l.g.y * l.g.z,
           resident = l.coop ? blocks : static_cast<size_t>(opt.resident);
    if (resident > RESIDENT_MAX)
        fatal("cooperative launch of %zu blocks: at most %d fit", resident, RESIDENT_MAX);
    CrashHandler handler;
    handler.install();
    launch_now = &l;
    body_now = &body;
    race_launch();
    order.resize(blocks);
    for (size_t i = 0; i < blocks; i++)
        order[i] = static_cast<unsigned>(opt.sched == POLICY_REV ? blocks - 1 - i : i);
    if (opt.sched == POLICY_RAND)
        for (size_t i = blocks; i > 1; i--) std::swap(order[i - 1], order[rnd() % i]);
    while (slots.size() < resident) {
        Block *b = new Block();
        b->slot = static_cast<int>(slots.size());
        b->dyn = smem_lo + static_cast<size_t>(b->slot) * SLAB;
        b->stat = b->dyn + SLAB_DYN;
        slots.push_back(b);
    }
    next_block = 0;
    blocks_active = 0;
    queue.clear();
    spins = 0;
    for (size_t i = 0; i < resident; i++) start_block();
    for (Th *next = pick(); next;) {
        enter(next);
        successor = nullptr;
        dead = nullptr;
        fiber_switch(&main_fiber, next->fib, false);
        next = nullptr;
        if (dead) {
            fibers_free.push_back(dead);
            next = successor;
        }
        if (!next) next = pick();
    }
    cur = nullptr;
    if (blocks_active) deadlock();
    launch_now = nullptr;
    body_now = nullptr;
    handler.restore();
}
} // namespace cuemu

#ifdef CUEMU_ASAN
/* Called by the sanitizers beside their own reports: where in the kernel it was. */
extern "C" {
void __asan_on_error();
void __ubsan_on_report();
void __asan_on_error()
{
    using namespace cuemu;
    char w[256], d[256];
    where(w, sizeof w, cur ? self() : nullptr);
    describe_address(d, sizeof d, __asan_get_report_address());
    fprintf(stderr, "cuemu: sanitizer error at %s\n  in %s (CUEMU_SCHED=%s CUEMU_SEED=%llu)\n", d, w,
            policy_name(), static_cast<unsigned long long>(opt.seed));
}
void __ubsan_on_report()
{
    using namespace cuemu;
    char w[256];
    where(w, sizeof w, cur ? self() : nullptr);
    fprintf(stderr, "cuemu: undefined behaviour in %s (CUEMU_SCHED=%s CUEMU_SEED=%llu)\n", w, policy_name(),
            static_cast<unsigned long long>(opt.seed));
}
}
#endif
