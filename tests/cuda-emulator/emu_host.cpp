/* The emulator's side of the runtime interface: device and pinned memory, streams, events, graphs, launch
 * checks, fault injection. Any thread may call; one recursive lock makes it serial. Streams run at once, or
 * with CUEMU_LAZY=1 as late as something waits for them, in a random legal interleaving. */
#include "tests/cuda-emulator/emu_rt.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>

using namespace cuemu;

typedef std::lock_guard<std::recursive_mutex> Lock;
static std::recursive_mutex &mu = *new std::recursive_mutex;

/* One operation of a stream: run fn, record an event, or wait for one. */
enum OpKind { OP_RUN, OP_RECORD, OP_WAIT };
struct Op {
    OpKind kind;
    std::function<void()> fn;
    CuEvent *ev;
    uint64_t gen;
};
struct CuEvent {
    uint64_t rec = 0, done = 0; /* generations recorded, reached */
    CuGraph *cap = nullptr;     /* recorded in this capture, by cap_stream; the capture may be long over */
    CuStream *cap_stream = nullptr;
    std::chrono::steady_clock::time_point at;
};
struct CuGraph {
    std::vector<Op> ops;
    CuStream *origin = nullptr;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    bool invalid = false; /* a call that may not be captured came in between */
};
struct CuGraphExec {
    std::vector<Op> ops;
};
struct CuStream {
    std::deque<Op> q;
    CuGraph *cap = nullptr;
    bool unjoined = false; /* of a stream that joined a capture: has work that the origin did not wait for */
    bool nonblocking = false;
};

namespace cuemu
{
std::map<uintptr_t, Alloc> &allocs = *new std::map<uintptr_t, Alloc>;
char *dev_lo, *dev_hi;
[[maybe_unused]] static char *dev_next;
static size_t dev_used, dev_cap;
static std::map<uintptr_t, size_t> pinned;
static std::unordered_map<const void *, int> dynamic_limit; /* of kernels, raised by cudaFuncSetAttribute */
static CuStream null_stream;
static std::vector<CuStream *> streams{&null_stream};
static int guard_depth;

/* ---- errors and fault injection */

static cudaError_t last_error, sticky_error;
static struct {
    unsigned long countdown;
    cudaError_t error;
    bool sticky;
} faults[CUEMU_FAIL_KINDS];
static int slow_ms[CUEMU_FAIL_KINDS]; /* each such call takes so long; -1: once its countdown is over, it
                                         never comes back */
static unsigned long count_allocations, count_launches, count_syncs, count_graphs;

static cudaError_t fail(cudaError_t e)
{
    if (e) last_error = e;
    return e;
}
static void faults_from_env()
{
    static bool done;
    if (done) return;
    done = true;
    const char *s = getenv("CUEMU_FAIL");
    if (!s || !*s) return;
    static const char *const names[CUEMU_FAIL_KINDS] = {"malloc", "host",  "launch", "copy",
                                                        "sync",   "graph", "blas"};
    char what[16] = "", tail[16] = "";
    unsigned long n = 1;
    int error = cudaErrorLaunchFailure, fields = sscanf(s, "%15[a-z]:%lu:%d:%15s", what, &n, &error, tail);
    for (int k = 0; k < CUEMU_FAIL_KINDS; k++)
        if (fields >= 2 && !strcmp(what, names[k])) {
            cuemu_fail_at(static_cast<cuemu_fail_kind>(k), n, error, !strcmp(tail, "sticky"));
            slow_ms[k] = !strcmp(tail, "hang") ? -1 : !strcmp(tail, "slow") ? error : 0;
            return;
        }
    fatal("CUEMU_FAIL=%s is not WHAT:N[:ERROR[:sticky]], WHAT:N:0:hang or WHAT:N:MILLISECONDS:slow", s);
}
/* First line of every call that can fail: the error that was injected, or the sticky one. */
static cudaError_t gate(cuemu_fail_kind kind)
{
    faults_from_env();
    if (sticky_error) return sticky_error;
    auto &f = faults[kind];
    if (slow_ms[kind] > 0) {
        if (f.countdown > 1) f.countdown--;
        else usleep(static_cast<useconds_t>(slow_ms[kind]) * 1000);
        return cudaSuccess;
    }
    if (!f.countdown || --f.countdown) return cudaSuccess;
    while (slow_ms[kind] < 0) pause();
    if (f.sticky) sticky_error = f.error;
    return fail(f.error);
}
bool inject_blas()
{
    Lock lk(mu);
    return gate(CUEMU_FAIL_BLAS) != cudaSuccess;
}

/* ---- device memory: each allocation ends at a guard page and no address is used twice; under ASan it is a
 * heap block with redzones */

static void leaks(int status, void *)
{
    if (status || allocs.empty()) return;
    auto &a = allocs.begin()->second;
    fprintf(stderr, "cuemu: error: %zu device allocations were never freed, one of %zu bytes from %s:%d\n",
            allocs.size(), a.n, a.file, a.line);
    fflush(nullptr);
    _exit(97);
}
static void dev_init()
{
    if (dev_cap) return;
    dev_cap = env_u64("CUEMU_MEM_MB", 4096) << 20;
    on_exit(leaks, nullptr);
#ifndef CUEMU_ASAN
    size_t n = static_cast<size_t>(256) << 30; /* of addresses */
    void *p = mmap(nullptr, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) fatal("no address space for device memory");
    dev_lo = dev_next = static_cast<char *>(p);
    dev_hi = dev_lo + n;
#endif
}
bool find_alloc(const void *p, size_t n, uintptr_t *base, Alloc *a)
{
    uintptr_t u = reinterpret_cast<uintptr_t>(p);
    auto it = allocs.upper_bound(u);
    if (it == allocs.begin()) return false;
    --it;
    if (u + n > it->first + it->second.n || u >= it->first + it->second.n) return false;
    if (base) *base = it->first;
    if (a) *a = it->second;
    return true;
}
void check_range(const char *call, const void *p, size_t n, const char *arg)
{
    if (!n || find_alloc(p, n)) return;
    char d[256];
    describe_address(d, sizeof d, static_cast<const char *>(p) + (find_alloc(p, 1) ? n - 1 : 0));
    fatal("%s: %s, %zu bytes at %p, does not lie in one device allocation (%s)", call, arg, n, p, d);
}
[[maybe_unused]] static size_t pages(size_t n)
{
    return (n + 4095) & ~static_cast<size_t>(4095);
}
/* CUEMU_GUARD: device memory is unmapped while host code runs. */
static void guard(bool open)
{
#ifndef CUEMU_ASAN
    if (!opt.guard) return;
    if (open ? guard_depth++ : --guard_depth) return;
    for (auto &a : allocs) {
        uintptr_t lo = a.first & ~static_cast<uintptr_t>(4095);
        mprotect(reinterpret_cast<void *>(lo), pages(a.first + a.second.n - lo),
                 open ? PROT_READ | PROT_WRITE : PROT_NONE);
    }
#else
    (void)open;
    (void)guard_depth;
#endif
}
#ifndef CUEMU_ASAN
/* An allocation of n bytes at the end of its pages, aligned to 256; the up to 255 bytes behind it and those
 * before it hold canaries. */
static char *dev_map(size_t n)
{
    size_t sz = pages(n);
    char *lo = dev_next;
    dev_next += sz + 4096;
    if (dev_next > dev_hi || mprotect(lo, sz, PROT_READ | PROT_WRITE) != 0) return nullptr;
    char *q = lo + (sz - n) / 256 * 256;
    memset(lo, CANARY, static_cast<size_t>(q - lo));
    memset(q + n, CANARY, static_cast<size_t>(lo + sz - q) - n);
    return q;
}
static void dev_unmap(char *q, const Alloc &a)
{
    char *lo = reinterpret_cast<char *>(reinterpret_cast<uintptr_t>(q) & ~static_cast<uintptr_t>(4095));
    size_t sz = pages(static_cast<size_t>(q - lo) + a.n);
    for (char *p = lo; p < lo + sz; p++) {
        if (p == q) p += a.n;
        if (p < lo + sz && static_cast<unsigned char>(*p) != CANARY)
            fatal("out-of-bounds write %s the device allocation of %zu bytes from %s:%d",
                  p < q ? "before" : "behind", a.n, a.file, a.line);
    }
    madvise(lo, sz, MADV_DONTNEED);
    race_forget(lo, sz);
    mprotect(lo, sz, PROT_NONE);
}
#endif

/* ---- streams */

/* For calls that a capture in progress forbids, unless it is relaxed: they fail, and it ends without a graph.
 */
static bool capturing_strict()
{
    bool found = false;
    for (CuStream *s : streams)
        if (s->cap && s->cap->mode != cudaStreamCaptureModeRelaxed) found = s->cap->invalid = true;
    return found;
}
/* Is the capture that an event was recorded in still going on? */
static bool captured(const CuEvent *e)
{
    for (CuStream *s : streams)
        if (e->cap && s->cap == e->cap) return true;
    return false;
}
static cudaError_t spoil(CuEvent *e)
{
    e->cap->invalid = true;
    return fail(cudaErrorCapturedEvent);
}
/* The same for calls that no stream in capture takes. */
static cudaError_t spoil(CuStream *s)
{
    s->cap->invalid = true;
    return fail(cudaErrorStreamCaptureUnsupported);
}
static CuStream *stream_of(cudaStream_t s)
{
    return s ? s : &null_stream;
}
static bool ready(CuStream *s)
{
    return !s->q.empty() && (s->q.front().kind != OP_WAIT || s->q.front().ev->done >= s->q.front().gen);
}
static void run_op(Op &o)
{
    if (o.kind == OP_RUN) {
        guard(true);
        o.fn();
        guard(false);
    } else if (o.kind == OP_RECORD && o.ev->done < o.gen) {
        o.ev->done = o.gen;
        o.ev->at = std::chrono::steady_clock::now();
    }
}
static bool step()
{
    std::vector<CuStream *> can;
    for (CuStream *s : streams)
        if (ready(s)) can.push_back(s);
    if (can.empty()) return false;
    CuStream *s = can[rnd() % can.size()];
    Op o = std::move(s->q.front());
    s->q.pop_front();
    run_op(o);
    return true;
}
template <class P> static void drain(P done)
{
    Lock lk(mu);
    while (!done())
        if (!step()) fatal("streams deadlocked: one waits for an event that nothing records");
}
static void drain_all()
{
    drain([] {
        for (CuStream *s : streams)
            if (!s->q.empty()) return false;
        return true;
    });
}
static void push(cudaStream_t st, Op o)
{
    Lock lk(mu);
    CuStream *s = stream_of(st);
    if (s->cap) {
        if (s != s->cap->origin) s->unjoined = true;
        s->cap->ops.push_back(std::move(o));
        return;
    }
    if (s == &null_stream && capturing_strict()) {
        fprintf(stderr, "cuemu: the null stream is used while another stream is captured\n");
        fail(cudaErrorStreamCaptureUnsupported);
        return;
    }
    if (!opt.lazy) {
        run_op(o);
        return;
    }
    if (s == &null_stream)
        for (CuStream *x : streams)
            if (!x->nonblocking) drain([x] { return x->q.empty(); });
    s->q.push_back(std::move(o));
    if (s == &null_stream) {
        drain([s] { return s->q.empty(); });
    } else {
        while (rnd() % 4 == 0 && step()) {
        }
    }
}
void stream_push(cudaStream_t s, std::function<void()> fn)
{
    push(s, Op{OP_RUN, std::move(fn), nullptr, 0});
}
static bool is_pinned(const void *p)
{
    auto it = pinned.upper_bound(reinterpret_cast<uintptr_t>(p));
    if (it == pinned.begin()) return false;
    --it;
    return reinterpret_cast<uintptr_t>(p) < it->first + it->second;
}
static void check_copy(void *dst, const void *src, size_t n, cudaMemcpyKind kind)
{
    bool dd = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice,
         sd = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (kind == cudaMemcpyDefault) {
        dd = find_alloc(dst, 1);
        sd = find_alloc(src, 1);
    }
    if (dd) {
        check_range("cudaMemcpy", dst, n, "the destination");
    } else if (find_alloc(dst, 1)) {
        fatal("cudaMemcpy of kind %d, but the destination is device memory", kind);
    }
    if (sd) {
        check_range("cudaMemcpy", src, n, "the source");
    } else if (find_alloc(src, 1)) {
        fatal("cudaMemcpy of kind %d, but the source is device memory", kind);
    }
}
static void do_copy(void *dst, const void *src, size_t n)
{
    if (!n) return;
    memmove(dst, src, n);
    if (opt.uninit && find_alloc(dst, 1)) race_host_write(dst, n);
}
/* Pinned memory that queued copies will read. */
static std::vector<std::pair<const char *, size_t>> host_reads;
static bool read_later(const char *p, size_t n)
{
    for (const auto &r : host_reads)
        if (r.first < p + n && p < r.first + r.second) return true;
    return false;
}
static void copy_async(void *dst, const void *src, size_t n, cudaMemcpyKind kind, cudaStream_t st)
{
    if (!n) return;
    check_copy(dst, src, n, kind);
    CuStream *s = stream_of(st);
    bool from_host = !find_alloc(src, 1), to_host = !find_alloc(dst, 1);
    if (from_host && !is_pinned(src) && !s->cap) { /* pageable source: staged at the call */
        const char *c = static_cast<const char *>(src);
        if (!opt.lazy) {
            stream_push(st, [=] { do_copy(dst, c, n); });
            return;
        }
        auto staged = std::make_shared<std::vector<char>>(c, c + n);
        stream_push(st, [=] { do_copy(dst, staged->data(), n); });
        return;
    }
    /* Poisoned before the push, which may already make progress, and after queued copies from there. */
    if (opt.lazy && to_host && is_pinned(dst) && !s->cap) {
        drain([=] { return !read_later(static_cast<const char *>(dst), n); });
        memset(dst, 0xff, n);
    }
    const char *from = opt.lazy && from_host && !s->cap ? static_cast<const char *>(src) : nullptr;
    if (from) host_reads.emplace_back(from, n);
    stream_push(st, [=] {
        do_copy(dst, src, n);
        if (from) host_reads.erase(std::find(host_reads.begin(), host_reads.end(), std::make_pair(from, n)));
    });
    if (opt.lazy && to_host && !is_pinned(dst) && !s->cap) drain([s] { return s->q.empty(); });
}
} // namespace cuemu

/* ---- memory calls */

cudaError_t cuemu_malloc(void **p, size_t n, const char *file, int line)
{
    Lock lk(mu);
    dev_init();
    *p = nullptr;
    count_allocations++;
    if (cudaError_t e = gate(CUEMU_FAIL_MALLOC)) return e;
    if (capturing_strict()) return fail(cudaErrorStreamCaptureUnsupported);
    if (!n) return cudaSuccess;
    if (n > dev_cap || dev_used > dev_cap - n) return fail(cudaErrorMemoryAllocation);
#ifdef CUEMU_ASAN
    void *h;
    char *q = posix_memalign(&h, 256, n) ? nullptr : static_cast<char *>(h);
#else
    char *q = dev_map(n);
#endif
    if (!q) return fail(cudaErrorMemoryAllocation);
    const size_t whole = static_cast<size_t>(4)
                         << 18; /* of large ones the two ends, so that unused memory stays unmapped */
    memset(q, 0xff, n < whole ? n : whole / 2);
    if (n >= whole) memset(q + n - whole / 2, 0xff, whole / 2);
    guard(true);
    allocs[reinterpret_cast<uintptr_t>(q)] = Alloc{n, file, line};
    guard(false);
    dev_used += n;
    *p = q;
    return cudaSuccess;
}
static void free_now(void *p)
{
    auto it = allocs.find(reinterpret_cast<uintptr_t>(p));
    if (it == allocs.end()) fatal("cudaFree of %p, which is not an allocation", p);
    dev_used -= it->second.n;
    guard(true);
#ifdef CUEMU_ASAN
    free(p);
#else
    dev_unmap(static_cast<char *>(p), it->second);
#endif
    allocs.erase(it);
    guard(false);
}
cudaError_t cudaFree(void *p)
{
    Lock lk(mu);
    if (!p) return cudaSuccess;
    count_allocations++;
    if (sticky_error) return sticky_error;
    if (capturing_strict()) return fail(cudaErrorStreamCaptureUnsupported);
    drain_all();
    free_now(p);
    return cudaSuccess;
}
cudaError_t cuemu_malloc_async(void **p, size_t n, cudaStream_t st, const char *file, int line)
{
    Lock lk(mu);
    *p = nullptr;
    return stream_of(st)->cap ? spoil(stream_of(st)) : cuemu_malloc(p, n, file, line);
}
cudaError_t cudaFreeAsync(void *p, cudaStream_t st)
{
    Lock lk(mu);
    if (!p) return cudaSuccess;
    count_allocations++;
    if (sticky_error) return sticky_error;
    if (stream_of(st)->cap) return spoil(stream_of(st));
    if (!find_alloc(p, 1)) fatal("cudaFreeAsync of %p, which is not an allocation", p);
    stream_push(st, [p] { free_now(p); });
    return cudaSuccess;
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
    *pool = nullptr;
    return device ? fail(cudaErrorInvalidDevice) : cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr attr, void *)
{
    return attr == cudaMemPoolAttrReleaseThreshold ? cudaSuccess : fail(cudaErrorInvalidValue);
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t)
{
    return cudaSuccess;
}
cudaError_t cuemu_malloc_host(void **p, size_t n)
{
    Lock lk(mu);
    count_allocations++;
    if (cudaError_t e = gate(CUEMU_FAIL_HOST)) return e;
    if (capturing_strict()) return fail(cudaErrorStreamCaptureUnsupported);
    if (posix_memalign(p, 4096, n ? n : 1)) return fail(cudaErrorMemoryAllocation);
    memset(*p, 0xff, n);
    pinned[reinterpret_cast<uintptr_t>(*p)] = n;
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void *p)
{
    Lock lk(mu);
    if (!p) return cudaSuccess;
    count_allocations++;
    drain_all();
    if (!pinned.erase(reinterpret_cast<uintptr_t>(p)))
        fatal("cudaFreeHost of %p, which is not pinned memory", p);
    free(p);
    return cudaSuccess;
}
cudaError_t cudaHostRegister(void *p, size_t n, unsigned)
{
    Lock lk(mu);
    if (cudaError_t e = gate(CUEMU_FAIL_HOST)) return e;
    if (is_pinned(p)) return fail(cudaErrorHostMemoryAlreadyRegistered);
    pinned[reinterpret_cast<uintptr_t>(p)] = n;
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *p)
{
    Lock lk(mu);
    drain_all();
    return pinned.erase(reinterpret_cast<uintptr_t>(p)) ? cudaSuccess
                                                        : fail(cudaErrorHostMemoryNotRegistered);
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    Lock lk(mu);
    dev_init();
    if (sticky_error) return sticky_error;
    *total_bytes = dev_cap;
    *free_bytes = dev_cap - dev_used;
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void *dst, const void *src, size_t n, cudaMemcpyKind kind)
{
    Lock lk(mu);
    if (cudaError_t e = gate(CUEMU_FAIL_COPY)) return e;
    if (capturing_strict()) return fail(cudaErrorStreamCaptureUnsupported);
    count_syncs++;
    if (!n) return cudaSuccess;
    check_copy(dst, src, n, kind);
    stream_push(nullptr, [=] { do_copy(dst, src, n); });
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, cudaMemcpyKind kind, cudaStream_t s)
{
    Lock lk(mu);
    if (cudaError_t e = gate(CUEMU_FAIL_COPY)) return e;
    copy_async(dst, src, n, kind, s);
    return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t s)
{
    Lock lk(mu);
    if (cudaError_t e = gate(CUEMU_FAIL_COPY)) return e;
    if (width > dpitch || width > spitch) return fail(cudaErrorInvalidValue);
    for (size_t i = 0; i < height; i++)
        copy_async(static_cast<char *>(dst) + i * dpitch, static_cast<const char *>(src) + i * spitch, width,
                   kind, s);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *dst, int value, size_t n, cudaStream_t s)
{
    Lock lk(mu);
    if (cudaError_t e = gate(CUEMU_FAIL_COPY)) return e;
    if (!n) return cudaSuccess;
    check_range("cudaMemset", dst, n, "the destination");
    stream_push(s, [=] {
        memset(dst, value, n);
        if (opt.uninit) race_host_write(dst, n);
    });
    return cudaSuccess;
}
cudaError_t cudaMemset(void *dst, int value, size_t n)
{
    return cudaMemsetAsync(dst, value, n, nullptr);
}

/* ---- streams and events */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    Lock lk(mu);
    if (sticky_error) return sticky_error;
    *s = new CuStream;
    (*s)->nonblocking = flags & cudaStreamNonBlocking;
    streams.push_back(*s);
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int)
{
    return cudaStreamCreateWithFlags(s, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    Lock lk(mu);
    drain([s] { return s->q.empty(); });
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i] == s) {
            streams.erase(streams.begin() + static_cast<long>(i));
            delete s;
            return cudaSuccess;
        }
    return fail(cudaErrorInvalidResourceHandle);
}
cudaError_t cudaStreamSynchronize(cudaStream_t st)
{
    Lock lk(mu);
    if (cudaError_t e = gate(CUEMU_FAIL_SYNC)) return e;
    CuStream *s = stream_of(st);
    if (s->cap) return spoil(s);
    count_syncs++;
    drain([s] { return s->q.empty(); });
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t st)
{
    Lock lk(mu);
    if (sticky_error) return sticky_error;
    CuStream *s = stream_of(st);
    if (s->cap) return spoil(s);
    if (!s->q.empty()) step();
    return s->q.empty() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaDeviceSynchronize()
{
    Lock lk(mu);
    if (cudaError_t e = gate(CUEMU_FAIL_SYNC)) return e;
    if (capturing_strict()) return fail(cudaErrorStreamCaptureUnsupported);
    count_syncs++;
    drain_all();
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned)
{
    Lock lk(mu);
    if (sticky_error) return sticky_error;
    *e = new CuEvent;
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *e)
{
    return cudaEventCreateWithFlags(e, cudaEventDefault);
}
cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    Lock lk(mu);
    drain([e] { return e->done >= e->rec; });
    delete e;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t st)
{
    Lock lk(mu);
    if (sticky_error) return sticky_error;
    CuStream *s = stream_of(st);
    e->cap = s->cap;
    e->cap_stream = s->cap ? s : nullptr;
    if (!s->cap) push(st, Op{OP_RECORD, nullptr, e, ++e->rec});
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t st, cudaEvent_t e, unsigned)
{
    Lock lk(mu);
    if (sticky_error) return sticky_error;
    CuStream *s = stream_of(st);
    if (captured(e)) { /* joins the capture, or joins another stream of it back */
        if (!s->cap) s->cap = e->cap;
        if (s != s->cap->origin) s->unjoined = true;
        e->cap_stream->unjoined = false;
        return cudaSuccess;
    }
    if (e->rec) push(st, Op{OP_WAIT, nullptr, e, e->rec});
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    Lock lk(mu);
    if (cudaError_t x = gate(CUEMU_FAIL_SYNC)) return x;
    if (captured(e)) return spoil(e);
    if (capturing_strict()) return fail(cudaErrorStreamCaptureUnsupported);
    count_syncs++;
    drain([e] { return e->done >= e->rec; });
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e)
{
    Lock lk(mu);
    if (sticky_error) return sticky_error;
    if (captured(e)) return spoil(e);
    if (capturing_strict()) return fail(cudaErrorStreamCaptureUnsupported);
    if (e->done < e->rec) step();
    return e->done >= e->rec ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b)
{
    Lock lk(mu);
    if (!a->done || !b->done || a->done < a->rec || b->done < b->rec) return fail(cudaErrorNotReady);
    *ms = std::chrono::duration<float, std::milli>(b->at - a->at).count();
    return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, void (*fn)(void *), void *arg)
{
    Lock lk(mu);
    if (sticky_error) return sticky_error;
    stream_push(s, [=] { fn(arg); });
    return cudaSuccess;
}

/* ---- errors and the device: compute capability 8.0, or CUEMU_CC=90 (Hopper's instructions are there in
 * either) */

static uint64_t capability()
{
    static const uint64_t cc = env_u64("CUEMU_CC", 80);
    return cc;
}
static int shared_optin()
{
    return capability() >= 90 ? SHARED_OPTIN_90 : SHARED_OPTIN_MAX;
}

cudaError_t cudaGetLastError()
{
    Lock lk(mu);
    cudaError_t e = last_error;
    last_error = cudaSuccess;
    return sticky_error ? sticky_error : e;
}
cudaError_t cudaPeekAtLastError()
{
    Lock lk(mu);
    return sticky_error ? sticky_error : last_error;
}
const char *cudaGetErrorName(cudaError_t e)
{
    switch (e) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorStreamCaptureUnjoined: return "cudaErrorStreamCaptureUnjoined";
    case cudaErrorCapturedEvent: return "cudaErrorCapturedEvent";
    default: return "cudaError";
    }
}
const char *cudaGetErrorString(cudaError_t e)
{
    static thread_local char buf[64];
    snprintf(buf, sizeof buf, "%s (%d, emulated)", cudaGetErrorName(e), static_cast<int>(e));
    return buf;
}
cudaError_t cudaGetDeviceCount(int *n)
{
    *n = env_u64("CUEMU_NO_DEVICE", 0) ? 0 : 1;
    return *n ? cudaSuccess : fail(cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int device)
{
    return device ? fail(cudaErrorInvalidDevice) : cudaSuccess;
}
cudaError_t cudaSetDeviceFlags(unsigned)
{
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    Lock lk(mu);
    if (device) return fail(cudaErrorInvalidDevice);
    dev_init();
    memset(p, 0, sizeof *p);
    strcpy(p->name, "emulated device");
    p->totalGlobalMem = dev_cap;
    p->sharedMemPerBlock = SHARED_STATIC_MAX;
    p->sharedMemPerBlockOptin = static_cast<size_t>(shared_optin());
    p->sharedMemPerMultiprocessor = static_cast<size_t>(shared_optin() + 1024);
    p->major = static_cast<int>(capability() / 10);
    p->minor = static_cast<int>(capability() % 10);
    p->multiProcessorCount = 4;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->regsPerBlock = 65536;
    p->l2CacheSize = 40 << 20;
    p->memoryBusWidth = 5120;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attr, int device)
{
    if (device) return fail(cudaErrorInvalidDevice);
    switch (attr) {
    case cudaDevAttrMultiProcessorCount: *value = 4; break;
    case cudaDevAttrClockRate:
    case cudaDevAttrMemoryClockRate: *value = 1000000; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = 5120; break;
    case cudaDevAttrL2CacheSize: *value = 40 << 20; break;
    case cudaDevAttrComputeCapabilityMajor: *value = static_cast<int>(capability() / 10); break;
    case cudaDevAttrComputeCapabilityMinor: *value = static_cast<int>(capability() % 10); break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = shared_optin() + 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = shared_optin(); break;
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrCooperativeLaunch: *value = 1; break;
    default: return fail(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *v)
{
    *v = 13000;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *v)
{
    *v = 13000;
    return cudaSuccess;
}
cudaError_t cuemu_func_attribute(const void *fn, cudaFuncAttribute a, int v)
{
    Lock lk(mu);
    if (sticky_error) return sticky_error;
    if (a != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (v < 0 || v > shared_optin() + SHARED_GAP_SLACK)
        return fail(cudaErrorInvalidValue); /* the slack is for the gaps between pieces */
    dynamic_limit[fn] = v;
    return cudaSuccess;
}

/* ---- graphs: capture keeps the operations with their arguments, a launch runs them in the order of capture
 */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode)
{
    Lock lk(mu);
    if (cudaError_t e = gate(CUEMU_FAIL_GRAPH)) return e;
    if (!s || s->cap) return fail(cudaErrorStreamCaptureUnsupported);
    s->cap = new CuGraph;
    s->cap->origin = s;
    s->cap->mode = mode;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g)
{
    Lock lk(mu);
    *g = nullptr;
    if (!s || !s->cap || s->cap->origin != s) return fail(cudaErrorStreamCaptureUnmatched);
    CuGraph *graph = s->cap;
    cudaError_t injected = gate(CUEMU_FAIL_GRAPH); /* ends the capture all the same */
    bool unjoined = false;
    for (CuStream *x : streams)
        if (x->cap == graph) {
            unjoined |= x != s && x->unjoined;
            x->cap = nullptr;
            x->unjoined = false;
        }
    graph->origin = nullptr;
    if (injected || unjoined || graph->invalid) {
        cudaError_t e = injected         ? injected
                        : graph->invalid ? cudaErrorStreamCaptureInvalidated
                                         : cudaErrorStreamCaptureUnjoined;
        delete graph;
        return fail(e);
    }
    *g = graph;
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus *status)
{
    Lock lk(mu);
    const CuGraph *g = stream_of(s)->cap;
    *status = !g           ? cudaStreamCaptureStatusNone
              : g->invalid ? cudaStreamCaptureStatusInvalidated
                           : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t g, void *nodes, size_t *count)
{
    if (nodes) return fail(cudaErrorNotSupported);
    *count = g->ops.size();
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long)
{
    Lock lk(mu);
    if (cudaError_t e = gate(CUEMU_FAIL_GRAPH)) return e;
    *x = new CuGraphExec;
    (*x)->ops = g->ops;
    return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t)
{
    Lock lk(mu);
    return gate(CUEMU_FAIL_GRAPH);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s)
{
    Lock lk(mu);
    if (cudaError_t e = gate(CUEMU_FAIL_GRAPH)) return e;
    count_graphs++;
    stream_push(s, [x] {
        for (Op &o : x->ops) run_op(o);
    });
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    Lock lk(mu);
    delete g;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x)
{
    Lock lk(mu);
    drain_all();
    delete x;
    return cudaSuccess;
}

/* ---- launches */

void cuemu::enqueue_kernel(const Launch &l, size_t arg_bytes, cudaStream_t s, void (*invoke)(const void *),
                           const void *closure, size_t n)
{
    Lock lk(mu);
    count_launches += stream_of(s)->cap == nullptr;
    if (gate(CUEMU_FAIL_LAUNCH)) return;
    size_t threads = static_cast<size_t>(l.b.x) * l.b.y * l.b.z;
    auto it = dynamic_limit.find(l.fn);
    size_t limit =
        it == dynamic_limit.end() ? static_cast<size_t>(SHARED_STATIC_MAX) : static_cast<size_t>(it->second);
    if (!threads || threads > 1024 || l.b.z > 64 || !l.g.x || !l.g.y || !l.g.z || l.g.x > 0x7fffffffu ||
        l.g.y > 65535 || l.g.z > 65535) {
        fprintf(stderr, "cuemu: %s: invalid launch, grid (%u,%u,%u) block (%u,%u,%u)\n", l.name, l.g.x, l.g.y,
                l.g.z, l.b.x, l.b.y, l.b.z);
        fail(cudaErrorInvalidConfiguration);
        return;
    }
    if (l.smem > limit || arg_bytes > 4096) {
        fprintf(stderr,
                "cuemu: %s: %zu bytes of dynamic shared memory (limit %zu), %zu bytes of parameters\n",
                l.name, l.smem, limit, arg_bytes);
        fail(cudaErrorInvalidValue);
        return;
    }
    const char *c = static_cast<const char *>(closure);
    Launch kept = l;
    auto body = std::make_shared<Body>(Body{invoke, std::vector<char>(c, c + n)});
    stream_push(s, [kept, body] { run_grid(kept, *body); });
}

void cuemu_fail_at(enum cuemu_fail_kind kind, unsigned long nth, int error, int sticky)
{
    Lock lk(mu);
    faults[kind].countdown = nth;
    faults[kind].error = static_cast<cudaError_t>(error);
    faults[kind].sticky = sticky;
    if (!nth) sticky_error = last_error = cudaSuccess;
}
void cuemu_counts(unsigned long *allocations, unsigned long *launches, unsigned long *syncs)
{
    Lock lk(mu);
    if (allocations) *allocations = count_allocations;
    if (launches) *launches = count_launches;
    if (syncs) *syncs = count_syncs;
}
unsigned long cuemu_graph_launches(void)
{
    Lock lk(mu);
    return count_graphs;
}
