// CUDA C++ on the host, for tests: the names that a kernel of backends/cuda/source/ uses, over ordinary memory.
//
// A thread is a fiber, and a block's fibers run in turn until each of them waits for its warp or its block; blocks run
// one after another, those of a cluster together. With random turns warps come in any order, and threads are interrupted
// between accesses to memory. Warp collectives (mma, shuffles, __syncwarp) need all 32 lanes.
// Asynchronous copies spoil their destination at once and fill it when a wait asks for them (boxes: one at their
// barrier), so that reading too early reads 0xCB, as does shared memory that nobody has written. The compiler calls the
// checks at the end of this file before each access to memory, which must lie in an operand, in shared memory, on the
// thread's stack, or in the program; operands and shared memory are aligned as the access wants. Whatever goes wrong
// ends the run with a message.
#pragma once

#include <sys/mman.h>

#include <cmath>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <tuple>
#include <type_traits>
#include <utility>

#if !defined(__x86_64__) && !defined(CUDA_ON_HOST_UCONTEXT)
#define CUDA_ON_HOST_UCONTEXT 1
#endif
#ifdef CUDA_ON_HOST_UCONTEXT
#include <ucontext.h>
#endif

// Unchecked: the emulation itself, where checks would cost time.
#define CUDA_ON_HOST_UNCHECKED no_sanitize("kernel-address,alignment,bounds,null,shift-exponent")
#define CUDA_ON_HOST_PLAIN __attribute__((CUDA_ON_HOST_UNCHECKED, noinline))

struct uint2 { alignas(8) unsigned x; unsigned y; };
struct uint3 { unsigned x, y, z; };
struct uint4 { alignas(16) unsigned x; unsigned y, z, w; };
struct int2 { alignas(8) int x; int y; };
struct int4 { alignas(16) int x; int y, z, w; };
struct float2 { alignas(8) float x; float y; };
struct float3 { float x, y, z; };
struct float4 { alignas(16) float x; float y, z, w; };
struct dim3 { unsigned x = 1, y = 1, z = 1; };
// A matrix of numbers of two bytes, of which boxes of 64 columns are copied. As cuda_on_host.py fills it.
struct alignas(64) BoxMap {
    const unsigned char* base;
    long long rows, columns, pitch, box_rows;  // pitch: bytes from row to row
    long long box_pieces;  // that are copied at once; 0: the map is one of single boxes
    long long halves;  // whether a box has rows of both halves in turn
    long long unused[9];
};
static_assert(sizeof(BoxMap) == 128, "as large as CUDA's");
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float3 make_float3(float x, float y, float z) { return {x, y, z}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace on_host {
namespace {

constexpr unsigned LANES = 32, MOST_THREADS = 1024, MOST_COPIES = 512, MOST_RANGES = 64;
constexpr unsigned MOST_BLOCKS = 8, MOST_FIBERS = 2048, MOST_BOXES = 1024;  // of a cluster
constexpr unsigned long MOST_FRESH_LOADS = 1ul << 24;  // of a cluster; others do not run at the same time
constexpr int MOST_BYTES = 232448;  // of shared memory, and so to wait for
constexpr unsigned ACCESSES = 10;  // from one interruption to the next, about
constexpr std::size_t STACK = 256 << 10, GUARD = 4096;
constexpr int POISON = 0xCB;

// ---- fibers -----------------------------------------------------------------------------------------------------

#ifdef CUDA_ON_HOST_UCONTEXT
typedef ucontext_t Context;
CUDA_ON_HOST_PLAIN void change(Context& from, Context& to) { swapcontext(&from, &to); }
void prepare(Context& context, unsigned char* low, unsigned char* high, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = low;
    context.uc_stack.ss_size = static_cast<std::size_t>(high - low);
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
}
#else
// The registers that a call preserves lie on the stack; its pointer is all that is kept of a fiber.
typedef void* Context;
extern "C" void cuda_on_host_change(void** from, void* to) __attribute__((visibility("hidden")));
__asm__(R"(
.text
.p2align 4
.hidden cuda_on_host_change
cuda_on_host_change:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
CUDA_ON_HOST_PLAIN void change(Context& from, Context& to) { cuda_on_host_change(&from, to); }
void prepare(Context& context, unsigned char*, unsigned char* high, void (*entry)()) {
    void** top = reinterpret_cast<void**>(reinterpret_cast<std::uintptr_t>(high) & ~std::uintptr_t{15});
    *--top = nullptr;  // where `entry` would return to: the stack is aligned as behind a call
    *--top = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; i++) *--top = nullptr;
    context = top;
}
#endif

enum class State { READY, INTERRUPTED, WARP, BLOCK, MEETING, BARRIER, DONE };

struct Copy { unsigned char* to; const unsigned char* from; unsigned bytes, group; };

struct Warp { unsigned arrived; const char* at; };

struct Block {
    uint3 index;
    unsigned char* shared;
    unsigned done;  // threads that have returned
    alignas(8) unsigned short barriers[16][4];  // as in shared memory
};

// A box on its way to a block of the cluster.
struct Box {
    BoxMap map;
    Block* block;
    unsigned char* to;
    int column, row;
    unsigned short* barrier;
};

struct Fiber {
    Context context;
    State state;
    uint3 thread;
    Block* block;
    unsigned lane;
    Warp* warp;
    // What a collective is given and gives.
    unsigned long long given, taken;
    unsigned source;
    const unsigned* a;
    unsigned b[2];
    float* c;
    // Copies asked for and not yet made, oldest first in a ring, and the group that is open.
    Copy copies[MOST_COPIES];
    unsigned oldest, pending, group;
    bool waited;  // for the kernel before
    // A barrier that it waits at, while the number of its phases has this parity.
    const unsigned short* barrier;
    unsigned parity;
};

struct Range { const unsigned char* start; std::size_t bytes; unsigned argument; };

Fiber fibers[MOST_FIBERS];
Warp warps[MOST_FIBERS / LANES];
Block blocks[MOST_BLOCKS];
Box boxes[MOST_BOXES];  // oldest first
unsigned box_count = 0;
Fiber* now = nullptr;
Context scheduler;
// Those of the block that runs.
uint3 block_index;
unsigned char* shared = nullptr;
dim3 grid_size, block_size;
unsigned cluster_size = 1;
unsigned char* stacks = nullptr;
std::size_t stack_bytes = 0;
std::size_t shared_bytes = 0;
Range ranges[MOST_RANGES];
unsigned range_count = 0;
unsigned early = ~0u;  // of the arguments, those that a thread may use before it has waited
unsigned long fresh_loads = 0;
unsigned long long turns = 0;  // of which random numbers are made; 0: turns are in order
void (*body)() = nullptr;
bool failed = false;
char message[600];
std::mutex one_at_a_time;

CUDA_ON_HOST_PLAIN void leave() { change(now->context, scheduler); }

CUDA_ON_HOST_PLAIN unsigned draw(unsigned below) {
    turns = turns * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<unsigned>(turns >> 33) % below;
}

// Before an access to memory: whoever is READY may have to wait for a turn.
CUDA_ON_HOST_PLAIN void interrupt() {
    if (!turns || now->state != State::READY || draw(ACCESSES)) return;
    now->state = State::INTERRUPTED;
    leave();
}

// Ends the run. A fiber that fails is left where it is.
CUDA_ON_HOST_PLAIN void fail(const char* format, ...) {
    if (!failed) {
        int length = 0;
        if (now)
            length = std::snprintf(message, sizeof message, "thread %u of block (%u, %u, %u): ", now->thread.x,
                                   block_index.x, block_index.y, block_index.z);
        va_list values;
        va_start(values, format);
        std::vsnprintf(message + length, sizeof message - static_cast<std::size_t>(length), format, values);
        va_end(values);
    }
    failed = true;
    if (now) leave();
}

// Waits for the other lanes; the last one does `work(lanes)` for all of them.
template <class Work> CUDA_ON_HOST_PLAIN void together(const char* what, unsigned mask, Work work) {
    Warp& warp = *now->warp;
    if (mask != 0xFFFFFFFFu) fail("%s with mask %08x: only the full mask is emulated", what, mask);
    if (warp.arrived && std::strcmp(warp.at, what)) fail("at %s while lanes of its warp are at %s", what, warp.at);
    warp.at = what;
    if (++warp.arrived < LANES) {
        now->state = State::WARP;
        leave();
        return;
    }
    Fiber* lanes = fibers + (&warp - warps) * LANES;
    work(lanes);
    warp.arrived = 0;
    for (unsigned lane = 0; lane < LANES; lane++) lanes[lane].state = State::READY;
}

CUDA_ON_HOST_PLAIN unsigned long long exchange(const char* what, unsigned mask, unsigned long long value,
                                               unsigned source) {
    now->given = value;
    now->source = source;
    together(what, mask, [](Fiber* lanes) __attribute__((CUDA_ON_HOST_UNCHECKED)) {
        for (unsigned lane = 0; lane < LANES; lane++) lanes[lane].taken = lanes[lanes[lane].source].given;
    });
    return now->taken;
}

template <class T> T exchange(const char* what, unsigned mask, T value, unsigned source) {
    static_assert(std::is_arithmetic_v<T> && sizeof(T) <= 8, "a shuffle moves numbers");
    unsigned long long bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    bits = exchange(what, mask, bits, source);
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// ---- memory -----------------------------------------------------------------------------------------------------

extern "C" const unsigned char __ehdr_start[] __attribute__((visibility("hidden")));  // this library in memory
extern "C" const unsigned char _end[] __attribute__((visibility("hidden")));

CUDA_ON_HOST_PLAIN bool within(const unsigned char* at, std::size_t bytes, const unsigned char* start,
                               std::size_t size) {
    return at >= start && bytes <= size && static_cast<std::size_t>(at - start) <= size - bytes;
}

CUDA_ON_HOST_PLAIN unsigned long code_offset(const void* caller) {
    return static_cast<unsigned long>(static_cast<const unsigned char*>(caller) - __ehdr_start);
}

CUDA_ON_HOST_PLAIN void refuse(const unsigned char* at, std::size_t bytes, const char* does, const void* caller) {
    const Range* nearest = nullptr;
    long distance = 1 << 20;
    const Range all_shared = {shared, shared_bytes, 0};
    for (unsigned i = 0; i <= range_count; i++) {
        const Range& range = i < range_count ? ranges[i] : all_shared;
        const long before = range.start - at, after = at - range.start - static_cast<long>(range.bytes);
        const long away = before > after ? before : after;
        if (away < distance) distance = away, nearest = &range;
    }
    const unsigned long offset = code_offset(caller);
    char where[80];
    if (nearest == &all_shared)
        std::snprintf(where, sizeof where, "shared memory of %zu bytes", shared_bytes);
    else if (nearest)
        std::snprintf(where, sizeof where, "argument %u of %zu bytes", nearest->argument, nearest->bytes);
    if (nearest)
        fail("%s %zu bytes at offset %ld of %s [code+0x%lx]", does, bytes, static_cast<long>(at - nearest->start),
             where, offset);
    else
        fail("%s %zu bytes at %p, which is no operand's [code+0x%lx]", does, bytes, static_cast<const void*>(at),
             offset);
}

// What the kernel before leaves is there for threads that have waited for it, or met one that has.
CUDA_ON_HOST_PLAIN void check_early(unsigned argument, const char* does, const void* caller) {
    if (early >> argument & 1 || now->waited) return;
    fail("%s argument %u before it has waited for the kernel before [code+0x%lx]", does, argument, code_offset(caller));
}

// A thread may use operands, shared memory, its stack (and what other lanes lend of theirs) and the program's data.
CUDA_ON_HOST_PLAIN void check(const void* where, std::size_t bytes, const char* does, const void* caller) {
    if (!now) return;
    interrupt();
    const unsigned char* at = static_cast<const unsigned char*>(where);
    static unsigned last = 0;
    if (within(at, bytes, stacks, stack_bytes) || within(at, bytes, shared, shared_bytes)) return;
    if (last >= range_count || !within(at, bytes, ranges[last].start, ranges[last].bytes)) last = 0;
    for (; last < range_count; last++)
        if (within(at, bytes, ranges[last].start, ranges[last].bytes))
            return check_early(ranges[last].argument, does, caller);
    if (within(at, bytes, __ehdr_start, static_cast<std::size_t>(_end - __ehdr_start))) return;
    refuse(at, bytes, does, caller);
}

CUDA_ON_HOST_PLAIN void start_copy(unsigned char* to, const unsigned char* from, unsigned bytes) {
    const void* caller = __builtin_return_address(0);
    if (reinterpret_cast<std::uintptr_t>(to) % bytes) fail("copy_async of %u bytes to a misaligned address", bytes);
    if (!within(to, bytes, shared, shared_bytes)) refuse(to, bytes, "copies", caller);
    if (from) check(from, bytes, "copies", caller);
    if (now->pending == MOST_COPIES) fail("more than %u asynchronous copies under way", MOST_COPIES);
    std::memset(to, POISON, bytes);
    now->copies[(now->oldest + now->pending++) % MOST_COPIES] = {to, from, bytes, now->group};
}

CUDA_ON_HOST_PLAIN void finish_copies(unsigned left) {
    while (now->pending) {
        const Copy& copy = now->copies[now->oldest];
        if (copy.group + left >= now->group) break;
        if (copy.from)
            std::memcpy(copy.to, copy.from, copy.bytes);
        else
            std::memset(copy.to, 0, copy.bytes);
        now->oldest = (now->oldest + 1) % MOST_COPIES;
        now->pending--;
    }
}

// ---- barriers and boxes -----------------------------------------------------------------------------------------

// A barrier is four numbers: arrivals missing of the phase, those of a phase, phases that are over, and bytes missing
// by 16 (below zero where they come before they are expected).
constexpr unsigned short NOT_MADE = 0x101 * POISON;

CUDA_ON_HOST_PLAIN unsigned short* numbers_of(void* barrier) {
    const void* caller = __builtin_return_address(0);
    if (reinterpret_cast<std::uintptr_t>(barrier) % 8)
        fail("a barrier at a misaligned address [code+0x%lx]", code_offset(caller));
    check(barrier, 8, "uses a barrier of", caller);
    return static_cast<unsigned short*>(barrier);
}

CUDA_ON_HOST_PLAIN bool is_made(const unsigned short* barrier) {
    if (barrier[1] == NOT_MADE) fail("a barrier that nobody has made");
    return barrier[1] != NOT_MADE;
}

CUDA_ON_HOST_PLAIN void count_at(unsigned short* barrier, unsigned arrivals, int bytes) {
    if (!is_made(barrier)) return;
    if (arrivals > barrier[0]) return fail("more threads arrive at a barrier than the %u of a phase", barrier[1]);
    const int missing = static_cast<short>(barrier[3]) + bytes / 16;
    if (missing > MOST_BYTES / 16 || missing < -MOST_BYTES / 16)
        return fail("a barrier of %d bytes, which is more than shared memory has", missing * 16);
    barrier[0] -= static_cast<unsigned short>(arrivals);
    barrier[3] = static_cast<unsigned short>(missing);
    if (!barrier[0] && !missing) barrier[0] = barrier[1], ++barrier[2];
}

// The place in another block of the cluster of one in this block's shared memory.
CUDA_ON_HOST_PLAIN unsigned char* place_in(unsigned rank, const void* here, std::size_t bytes, const char* does,
                                           const void* caller) {
    const unsigned char* at = static_cast<const unsigned char*>(here);
    if (!within(at, bytes, shared, shared_bytes)) refuse(at, bytes, does, caller);
    if (rank >= cluster_size) fail("block %d of a cluster of %u", static_cast<int>(rank), cluster_size);
    if (blocks[rank].done == block_size.x) fail("block %u of the cluster, to which this is sent, has returned", rank);
    return blocks[rank].shared + (at - shared);
}

CUDA_ON_HOST_PLAIN void arrive_in(void* barrier, int rank) {
    const void* caller = __builtin_return_address(0);
    void* there = place_in(static_cast<unsigned>(rank), barrier, 8, "arrives at a barrier of", caller);
    count_at(static_cast<unsigned short*>(there), 1, 0);
}

// What of a box lies in the matrix: rows or columns from `first` to before `end`.
struct Part { long long first, end; };
CUDA_ON_HOST_PLAIN Part inside(long long from, long long size, long long all) {
    const long long first = from > 0 ? from : 0, end = from + size < all ? from + size : all;
    return {first, end > first ? end : first};
}

CUDA_ON_HOST_PLAIN void start_box(void* to, const BoxMap& map, int column, int row, void* barrier, unsigned ranks) {
    const void* caller = __builtin_return_address(0);
    const unsigned char* at = static_cast<const unsigned char*>(to);
    const std::size_t bytes = static_cast<std::size_t>(map.box_rows) * 128;
    if ((at - shared) % 1024) fail("a box that is copied to an address that is not aligned to 1024 bytes");
    if (!ranks) fail("a box that is copied to no block");
    const Part rows = inside(row, map.box_rows, map.rows), columns = inside(column, 64, map.columns);
    if (rows.end > rows.first && columns.end > columns.first)
        check(map.base + rows.first * map.pitch + columns.first * 2,
              static_cast<std::size_t>((rows.end - 1 - rows.first) * map.pitch + (columns.end - columns.first) * 2),
              "copies", caller);
    for (unsigned rank = 0; rank < 16; rank++) {
        if (!(ranks >> rank & 1)) continue;
        unsigned char* there = place_in(rank, to, bytes, "copies", caller);
        void* counts = place_in(rank, barrier, 8, "counts at a barrier of", caller);
        if (box_count == MOST_BOXES) fail("more than %u copies of boxes under way", MOST_BOXES);
        if (is_made(static_cast<unsigned short*>(counts))) std::memset(there, POISON, bytes);
        boxes[box_count++] = {map, &blocks[rank], there, column, row, static_cast<unsigned short*>(counts)};
    }
}

// Chunk j of row r of a box lies at chunk j ^ (r & 7).
CUDA_ON_HOST_PLAIN void finish_box(const Box& box) {
    const BoxMap& map = box.map;
    const Part columns = inside(box.column, 64, map.columns);
    for (long long r = 0; r < map.box_rows; r++) {
        const long long row = box.row + r;
        unsigned char line[128] = {};
        if (row >= 0 && row < map.rows && columns.end > columns.first)
            std::memcpy(line + (columns.first - box.column) * 2, map.base + row * map.pitch + columns.first * 2,
                        static_cast<std::size_t>(columns.end - columns.first) * 2);
        for (unsigned j = 0; j < 8; j++) std::memcpy(box.to + r * 128 + (j ^ (r & 7)) * 16, line + j * 16, 16);
    }
    count_at(box.barrier, 0, -static_cast<int>(map.box_rows) * 128);
}

// Copies boxes, oldest first, until the phase of a barrier that somebody waits for is over. Whether there were any.
CUDA_ON_HOST_PLAIN bool finish_boxes(const unsigned short* barrier, unsigned parity) {
    unsigned left = 0;
    for (unsigned i = 0; i < box_count; i++)
        if (boxes[i].barrier == barrier && barrier[2] % 2 == parity)
            finish_box(boxes[i]);
        else
            boxes[left++] = boxes[i];
    const bool any = left < box_count;
    box_count = left;
    return any;
}

}  // namespace
}  // namespace on_host

#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define SHARED_BYTES(name) unsigned char* const name = ::on_host::shared
#define threadIdx (::on_host::now->thread)
#define blockIdx (static_cast<const uint3&>(::on_host::block_index))
#define gridDim (static_cast<const dim3&>(::on_host::grid_size))
#define blockDim (static_cast<const dim3&>(::on_host::block_size))
#define warpSize 32
#define __expf expf
#define __logf logf

// ---- CUDA's own functions ---------------------------------------------------------------------------------------

namespace {

inline void __syncthreads() {
    on_host::now->state = on_host::State::BLOCK;
    on_host::leave();
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) {
    on_host::together("__syncwarp", mask, [](on_host::Fiber*) {});
}
inline void __threadfence() { __asm__ volatile("" ::: "memory"); }
inline void __threadfence_block() { __asm__ volatile("" ::: "memory"); }
inline void __trap() { on_host::fail("__trap"); }

template <class T> T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    const unsigned lane = on_host::now->lane, in = static_cast<unsigned>(width - 1);
    return on_host::exchange("__shfl_sync", mask, value, (lane & ~in) | (static_cast<unsigned>(source) & in));
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
    const unsigned lane = on_host::now->lane, in = static_cast<unsigned>(width - 1);
    const unsigned other = lane ^ static_cast<unsigned>(bits);
    return on_host::exchange("__shfl_xor_sync", mask, value, other <= (lane | in) && other < 32 ? other : lane);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    const unsigned lane = on_host::now->lane, in = static_cast<unsigned>(width - 1);
    return on_host::exchange("__shfl_down_sync", mask, value, (lane & in) + by <= in ? lane + by : lane);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    const unsigned lane = on_host::now->lane, in = static_cast<unsigned>(width - 1);
    return on_host::exchange("__shfl_up_sync", mask, value, (lane & in) >= by ? lane - by : lane);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    on_host::now->given = predicate != 0;
    on_host::together("__ballot_sync", mask, [](on_host::Fiber* lanes) {
        unsigned all = 0;
        for (unsigned lane = 0; lane < 32; lane++) all |= static_cast<unsigned>(lanes[lane].given) << lane;
        for (unsigned lane = 0; lane < 32; lane++) lanes[lane].taken = all;
    });
    return static_cast<unsigned>(on_host::now->taken);
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == 0xFFFFFFFFu; }

template <class To, class From> To cuda_on_host_bits(From value) {
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}
inline unsigned __float_as_uint(float value) { return cuda_on_host_bits<unsigned>(value); }
inline int __float_as_int(float value) { return cuda_on_host_bits<int>(value); }
inline float __uint_as_float(unsigned bits) { return cuda_on_host_bits<float>(bits); }
inline float __int_as_float(int bits) { return cuda_on_host_bits<float>(bits); }

inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const unsigned long long both = static_cast<unsigned long long>(y) << 32 | x;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) out |= static_cast<unsigned>(both >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i;
    return out;
}
inline int __dp4a(int a, int b, int c) {
    unsigned sum = static_cast<unsigned>(c);
    for (int i = 0; i < 4; i++)
        sum += static_cast<unsigned>(static_cast<signed char>(a >> 8 * i) * static_cast<signed char>(b >> 8 * i));
    return static_cast<int>(sum);
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 4; i++) c += (a >> 8 * i & 0xFF) * (b >> 8 * i & 0xFF);
    return c;
}
inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline int __clz(int value) { return value ? __builtin_clz(static_cast<unsigned>(value)) : 32; }

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline unsigned min(int a, unsigned b) { return min(static_cast<unsigned>(a), b); }
inline unsigned max(int a, unsigned b) { return max(static_cast<unsigned>(a), b); }
inline unsigned min(unsigned a, int b) { return min(a, static_cast<unsigned>(b)); }
inline unsigned max(unsigned a, int b) { return max(a, static_cast<unsigned>(b)); }
inline long min(long a, long b) { return a < b ? a : b; }
inline long max(long a, long b) { return a > b ? a : b; }
inline long long min(long long a, long long b) { return a < b ? a : b; }
inline long long max(long long a, long long b) { return a > b ? a : b; }
inline float min(float a, float b) { return std::fmin(a, b); }
inline float max(float a, float b) { return std::fmax(a, b); }
#define rsqrtf cuda_on_host_rsqrtf  // newer C libraries have one of that name
inline float rsqrtf(float value) { return 1.0f / std::sqrt(value); }
inline float __frcp_rn(float value) { return 1.0f / value; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fadd_rd(float a, float b) {
    const float sum = a + b, part = sum - a;
    return (a - (sum - part)) + (b - part) < 0 ? std::nextafter(sum, -INFINITY) : sum;
}
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }

template <class T> __forceinline__ T __ldg(const T* from) { return *from; }
template <class T> CUDA_ON_HOST_PLAIN T cuda_on_host_add(T* where, T value) {
    const T old = *where;
    *where = old + value;
    return old;
}
template <class T> __forceinline__ T atomicAdd(T* where, T value) {
    static_cast<void>(*static_cast<volatile T*>(where));  // whether it may
    return cuda_on_host_add(where, value);
}

// ---- what intrinsics.cuh has ------------------------------------------------------------------------------------

inline float from_bf16(unsigned short bits) { return __uint_as_float(static_cast<unsigned>(bits) << 16); }

// To the nearest, ties to even; a NaN becomes the one that cvt gives.
inline unsigned short to_bf16(float value) {
    const unsigned bits = __float_as_uint(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FFF;
    return static_cast<unsigned short>((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}

inline float from_f16(unsigned short bits) {
    const unsigned sign = (bits & 0x8000u) << 16, rest = bits & 0x7FFFu;
    if (rest < 0x400u) {  // zero or subnormal: rest * 2^-24, exactly
        const float small = static_cast<float>(rest) * 0x1p-24f;
        return sign ? -small : small;
    }
    return __uint_as_float(sign | (rest >= 0x7C00u ? 0x7F800000u | rest << 13 : (rest << 13) + 0x38000000u));
}

inline unsigned short to_f16(float value) {
    const unsigned bits = __float_as_uint(value), sign = bits >> 16 & 0x8000u, rest = bits & 0x7FFFFFFFu;
    if (rest > 0x7F800000u) return 0x7FFF;
    unsigned half;
    if (rest >= 0x47800000u)  // 2^16 and more
        half = 0x7C00u;
    else if (rest < 0x38800000u)  // subnormal: beside 0.5, a float's last place is 2^-24
        half = __float_as_uint(__uint_as_float(rest) + 0.5f) - 0x3F000000u;
    else
        half = (rest - 0x38000000u + 0xFFFu + (rest >> 13 & 1)) >> 13;
    return static_cast<unsigned short>(sign | half);
}

inline unsigned pair_bf16(float low, float high) { return to_bf16(low) | static_cast<unsigned>(to_bf16(high)) << 16; }
inline unsigned pair_f16(float low, float high) { return to_f16(low) | static_cast<unsigned>(to_f16(high)) << 16; }

// a * b + c of floats with few bits, as a float rounded to odd: its rounding to fewer bits is that of the exact value.
inline float cuda_on_host_fma_odd(float a, float b, float c) {
    const double product = static_cast<double>(a) * b, added = c;
    const double sum = product + added;
    if (!std::isfinite(sum)) return static_cast<float>(sum);
    const double back = sum - product;
    const double error = (product - (sum - back)) + (added - back);
    auto bits = cuda_on_host_bits<unsigned long long>(sum);
    if (error != 0 && !(bits & 1)) bits += (error > 0) == (sum > 0) ? 1 : -1ull;
    const double odd = cuda_on_host_bits<double>(bits);
    const float near = static_cast<float>(odd);
    if (near == odd) return near;
    return __uint_as_float((__float_as_uint(near) - (std::fabs(near) > std::fabs(odd))) | 1);
}
inline unsigned fma_bf16(unsigned a, unsigned b, unsigned c) {
    unsigned out = 0;
    for (int i = 0; i < 32; i += 16) {
        const auto part = [i](unsigned pair) { return from_bf16(static_cast<unsigned short>(pair >> i)); };
        out |= static_cast<unsigned>(to_bf16(cuda_on_host_fma_odd(part(a), part(b), part(c)))) << i;
    }
    return out;
}
inline unsigned fma_f16(unsigned a, unsigned b, unsigned c) {
    unsigned out = 0;
    for (int i = 0; i < 32; i += 16) {
        const auto part = [i](unsigned pair) { return from_f16(static_cast<unsigned short>(pair >> i)); };
        out |= static_cast<unsigned>(to_f16(cuda_on_host_fma_odd(part(a), part(b), part(c)))) << i;
    }
    return out;
}

// mma.sync.aligned.m16n8k16.row.col, by the fragments of the PTX ISA: lane 4 * g + t has of A rows g and g + 8, of B
// column g, of C rows g and g + 8; and of each the pairs that begin at 2 * t, and 8 further along k.
typedef float CudaOnHostRow __attribute__((vector_size(32)));
template <float (*widen)(unsigned short)> CUDA_ON_HOST_PLAIN void cuda_on_host_multiply(on_host::Fiber* lanes) {
    float a[16][16];
    CudaOnHostRow b[16], c[16];
    for (unsigned lane = 0; lane < 32; lane++) {
        const on_host::Fiber& fiber = lanes[lane];
        const unsigned g = lane / 4, t = lane % 4;
        for (unsigned i = 0; i < 8; i++)
            a[g + i / 2 % 2 * 8][2 * t + i % 2 + i / 4 * 8] =
                widen(static_cast<unsigned short>(fiber.a[i / 2] >> 16 * (i % 2)));
        for (unsigned i = 0; i < 4; i++)
            b[2 * t + i % 2 + i / 2 * 8][g] = widen(static_cast<unsigned short>(fiber.b[i / 2] >> 16 * (i % 2)));
    }
    for (unsigned row = 0; row < 16; row++) {
        c[row] = a[row][0] * b[0];
        for (unsigned k = 1; k < 16; k++) c[row] += a[row][k] * b[k];
    }
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned i = 0; i < 4; i++) lanes[lane].c[i] += c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
}
template <float (*widen)(unsigned short)>
CUDA_ON_HOST_PLAIN void cuda_on_host_mma(const char* what, float* c, const unsigned* a, unsigned b0, unsigned b1) {
    on_host::now->a = a;
    on_host::now->b[0] = b0;
    on_host::now->b[1] = b1;
    on_host::now->c = c;
    on_host::together(what, 0xFFFFFFFFu, cuda_on_host_multiply<widen>);
}
inline void mma_bf16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    cuda_on_host_mma<from_bf16>("mma_bf16", c, a, b0, b1);
}
inline void mma_f16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    cuda_on_host_mma<from_f16>("mma_f16", c, a, b0, b1);
}

// Matrices (8, 8) of numbers of two bytes, by the PTX ISA: ldmatrix gives lane 4 g + t elements 2 t and 2 t + 1 of row g,
// or, turned, of column g; movmatrix turns what is held so.
template <bool TURNED> CUDA_ON_HOST_PLAIN void cuda_on_host_hand_out(on_host::Fiber* lanes) {
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned i = 0; i < 8; i++) {
            const unsigned g = lane / 4, of_pair = 2 * (lane % 4) + i % 2;
            const unsigned row = i / 2 * 8 + (TURNED ? of_pair : g), at = TURNED ? g : of_pair;
            const auto* from = reinterpret_cast<const unsigned char*>(lanes[row].given) + at * 2;
            std::memcpy(reinterpret_cast<unsigned char*>(lanes[lane].c) + i * 2, from, 2);
        }
}
template <bool TURNED>
__forceinline__ void cuda_on_host_load_matrices(const char* what, unsigned (&d)[4], const unsigned char* row) {
    if (reinterpret_cast<std::uintptr_t>(row) % 16) on_host::fail("%s from a misaligned address", what);
    if (!on_host::within(row, 16, on_host::shared, on_host::shared_bytes)) on_host::fail("%s, not shared memory", what);
    on_host::now->given = reinterpret_cast<unsigned long long>(row);
    on_host::now->c = reinterpret_cast<float*>(d);
    on_host::together(what, 0xFFFFFFFFu, cuda_on_host_hand_out<TURNED>);
}
inline void load_matrices(unsigned (&d)[4], const unsigned char* row) {
    cuda_on_host_load_matrices<false>("load_matrices", d, row);
}
inline void load_matrices_turned(unsigned (&d)[4], const unsigned char* row) {
    cuda_on_host_load_matrices<true>("load_matrices_turned", d, row);
}
inline unsigned turn_matrix(unsigned two) {
    const unsigned lane = on_host::now->lane, g = lane / 4, t = lane % 4;
    unsigned out = 0;
    for (unsigned j = 0; j < 2; j++) {
        const unsigned offered = on_host::exchange("turn_matrix", 0xFFFFFFFFu, two, (2 * t + j) * 4 + g / 2);
        out |= (offered >> 16 * (g % 2) & 0xFFFFu) << 16 * j;
    }
    return out;
}

// Inline, so that a message names the kernel's line.
template <int BYTES> __forceinline__ void copy_async(void* to_shared, const void* from_global, bool there) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
    if (reinterpret_cast<std::uintptr_t>(from_global) % BYTES)
        on_host::fail("copy_async of %d bytes from a misaligned address", BYTES);
    on_host::start_copy(static_cast<unsigned char*>(to_shared),
                        there ? static_cast<const unsigned char*>(from_global) : nullptr, BYTES);
}
inline void copy_commit() { on_host::now->group++; }
template <int LEFT> void copy_wait() { on_host::finish_copies(LEFT); }

template <class T> __forceinline__ T load_stream(const T* from) { return *from; }
template <class T> __forceinline__ T load_kept(const T* from) { return *from; }
template <class T> __forceinline__ T load_fresh(const T* from) {
    if (++on_host::fresh_loads > on_host::MOST_FRESH_LOADS) on_host::fail("waits for another block, in load_fresh");
    __threadfence();
    return *from;
}
__forceinline__ int add_acq_rel(int* where, int value) { return atomicAdd(where, value); }
inline void depend_wait() { on_host::now->waited = true; }
inline void depend_launch() {}
inline void fetch_ahead(const void*) {}

// The two rows of a (16, 16) that a lane has results of.
inline void cuda_on_host_rows(const unsigned (&a)[4], float (&rows)[2][16]) {
    const int first = static_cast<int>(threadIdx.x % 32 / 4 * 4);
    for (int t = 0; t < 4; ++t)
        for (int i = 0; i < 4; ++i) {
            unsigned pair = __shfl_sync(0xFFFFFFFFu, a[i], first + t);
            for (int half = 0; half < 2; ++half)
                rows[i % 2][i / 2 * 8 + 2 * t + half] = from_bf16(static_cast<unsigned short>(pair >> (16 * half)));
        }
}

// Asynchronous products of a warpgroup, each at once. A lane's rows are its warp's, so warps need not wait for each other.
// `place`: where in the tile an element of b is, by its column and row.
template <int COUNT, class Place>
__forceinline__ void cuda_on_host_products(const char* what, float (&c)[COUNT], const unsigned (&a)[4],
                                           const unsigned char* tile, Place place) {
    if ((tile - on_host::shared) % 1024) on_host::fail("a tile that is not aligned to 1024 bytes, in %s", what);
    const unsigned lane = threadIdx.x % 32;
    float rows[2][16];
    cuda_on_host_rows(a, rows);
    for (int i = 0; i < COUNT; ++i) {
        const int column = i / 4 * 8 + static_cast<int>(lane % 4) * 2 + i % 2;
        for (int k = 0; k < 16; ++k)
            c[i] += rows[i / 2 % 2][k] *
                    from_bf16(*reinterpret_cast<const unsigned short*>(tile + place(column, k)));
    }
}
template <int COUNT>
void multiply_async(float (&c)[COUNT], const unsigned (&a)[4], const unsigned char* tile, int slab) {
    cuda_on_host_products("multiply_async", c, a, tile, [slab](int column, int k) {
        return column * 128 + (((slab * 2 + k / 8) ^ (column & 7)) * 16) + k % 8 * 2;
    });
}
template <int COUNT>
void multiply_async_rows(float (&c)[COUNT], const unsigned (&a)[4], const unsigned char* tile, int slab, int stride) {
    cuda_on_host_products("multiply_async_rows", c, a, tile, [slab, stride](int column, int k) {
        const int row = slab * 16 + k;
        return column / 64 * stride + row * 128 + ((column % 64 / 8) ^ (row & 7)) * 16 + column % 8 * 2;
    });
}
// The same with 16 rows of a warp's own in shared memory, at once for all of its lanes.
template <int COUNT> CUDA_ON_HOST_PLAIN void cuda_on_host_multiply_tiles(on_host::Fiber* lanes) {
    const unsigned long long given = lanes->given;
    const unsigned slab = lanes->source, first = lanes->thread.x / 32 % 4 * 16;
    for (unsigned lane = 1; lane < 32; lane++)
        if (lanes[lane].given != given || lanes[lane].source != slab)
            on_host::fail("lanes of a warp multiply different tiles, in multiply_async");
    const auto at = [slab](unsigned row, unsigned k) __attribute__((CUDA_ON_HOST_UNCHECKED)) {
        return row * 128 + ((slab * 2 + k / 8) ^ (row & 7)) * 16 + k % 8 * 2;
    };
    const auto number = [](const unsigned char* from) __attribute__((CUDA_ON_HOST_UNCHECKED)) {
        return static_cast<unsigned>(from[0] << 16 | from[1] << 24);
    };
    const unsigned char *a = on_host::shared + (given >> 32), *b = on_host::shared + (given & 0xFFFFFFFFu);
    union { CudaOnHostRow vectors[COUNT / 4]; unsigned bits[2 * COUNT]; } of_b[16], sum;
    for (unsigned column = 0; column < 2 * COUNT; column++)
        for (unsigned k = 0; k < 16; k++) of_b[k].bits[column] = number(b + at(column, k));
    for (unsigned row = 0; row < 16; row++) {
        std::memset(&sum, 0, sizeof sum);
        for (unsigned k = 0; k < 16; k++) {
            const float of_a = cuda_on_host_bits<float>(number(a + at(first + row, k)));
            for (unsigned i = 0; i < COUNT / 4; i++) sum.vectors[i] += of_a * of_b[k].vectors[i];
        }
        for (unsigned column = 0; column < 2 * COUNT; column++)
            lanes[row % 8 * 4 + column % 8 / 2].c[column / 8 * 4 + row / 8 * 2 + column % 2] +=
                cuda_on_host_bits<float>(sum.bits[column]);
    }
}
CUDA_ON_HOST_PLAIN void cuda_on_host_give_tiles(float* c, const unsigned char* a, const unsigned char* b, int slab,
                                                unsigned columns) {
    const void* caller = __builtin_return_address(0);
    if ((a - on_host::shared) % 1024 || (b - on_host::shared) % 1024)
        on_host::fail("a tile that is not aligned to 1024 bytes, in multiply_async");
    if (slab < 0 || slab > 3) on_host::fail("slab %d of a tile, in multiply_async", slab);
    if (!on_host::within(a, 64 * 128, on_host::shared, on_host::shared_bytes))
        on_host::refuse(a, 64 * 128, "multiplies", caller);
    if (!on_host::within(b, columns * 128, on_host::shared, on_host::shared_bytes))
        on_host::refuse(b, columns * 128, "multiplies", caller);
    on_host::now->given = static_cast<unsigned long long>(a - on_host::shared) << 32 | (b - on_host::shared);
    on_host::now->source = static_cast<unsigned>(slab);
    on_host::now->c = c;
}
template <int COUNT>
__forceinline__ void multiply_async(float (&c)[COUNT], const unsigned char* a_tile, const unsigned char* b_tile,
                                    int slab) {
    static_assert(COUNT % 4 == 0 && COUNT <= 128, "up to 256 columns, by eights");
    cuda_on_host_give_tiles(c, a_tile, b_tile, slab, 2 * COUNT);
    on_host::together("multiply_async", 0xFFFFFFFFu, cuda_on_host_multiply_tiles<COUNT>);
}
inline void multiply_fence() {}
inline void multiply_commit() {}
template <int LEFT> void multiply_wait() {}
template <int LEFT, int COUNT> void multiply_wait(float (&)[COUNT]) {}
template <int COUNT> void multiply_done(float (&)[COUNT]) {}
inline void fence_async() {}
template <int COUNT> void fewer_registers() {}
template <int COUNT> void more_registers() {}

// Barriers in shared memory: inline, so that a message names the kernel's line.
__forceinline__ void barrier_init(void* barrier, int count) {
    unsigned short* words = on_host::numbers_of(barrier);
    words[0] = words[1] = static_cast<unsigned short>(count);
    words[2] = words[3] = 0;
}
__forceinline__ void barrier_arrive(void* barrier) { on_host::count_at(on_host::numbers_of(barrier), 1, 0); }
__forceinline__ void barrier_arrive_copied(void* barrier) {
    copy_commit();
    copy_wait<0>();
    barrier_arrive(barrier);
}
__forceinline__ void barrier_arrive_in(void* barrier, int block) {
    on_host::arrive_in(on_host::numbers_of(barrier), block);
}
__forceinline__ void barrier_expect(void* barrier, int bytes) {
    if (bytes < 0 || bytes % 16 || bytes > on_host::MOST_BYTES) on_host::fail("barrier_expect of %d bytes", bytes);
    on_host::count_at(on_host::numbers_of(barrier), 1, bytes);
}
__forceinline__ void barrier_wait(void* barrier, unsigned parity) {
    const unsigned short* words = on_host::numbers_of(barrier);
    on_host::is_made(words);
    if (words[2] % 2 == parity) on_host::finish_boxes(words, parity);
    if (words[2] % 2 != parity) return;
    on_host::now->barrier = words;
    on_host::now->parity = parity;
    on_host::now->state = on_host::State::BARRIER;
    on_host::leave();
}
template <int COUNT> CUDA_ON_HOST_PLAIN unsigned short* cuda_on_host_barrier(int barrier) {
    if (barrier < 1 || barrier > 15) on_host::fail("barrier %d", barrier);
    unsigned short* words = on_host::now->block->barriers[barrier];
    if (!words[1]) words[0] = words[1] = COUNT;
    if (words[1] != COUNT)
        on_host::fail("barrier %d of %u threads and of %u", barrier, static_cast<unsigned>(words[1]), COUNT);
    return words;
}
template <int COUNT> void meet(int barrier) {
    unsigned short* words = cuda_on_host_barrier<COUNT>(barrier);
    const unsigned parity = words[2] % 2;
    barrier_arrive(words);
    barrier_wait(words, parity);
}
template <int COUNT> void come(int barrier) { barrier_arrive(cuda_on_host_barrier<COUNT>(barrier)); }
template <int COUNT> void sync_first() { meet<COUNT>(1); }

__forceinline__ void load_box(void* to_shared, const BoxMap& map, int column, int row, void* barrier) {
    if (map.box_pieces || map.halves) on_host::fail("a map of several boxes at once");
    const auto rank = static_cast<unsigned>(on_host::now->block - on_host::blocks);
    on_host::start_box(to_shared, map, column, row, on_host::numbers_of(barrier), 1u << rank);
}
__forceinline__ void load_boxes(void* to_shared, const BoxMap& map, int row, int piece, void* barrier) {
    const auto rank = static_cast<unsigned>(on_host::now->block - on_host::blocks);
    if (!map.box_pieces) on_host::fail("a map of single boxes");
    for (long long i = 0; i < map.box_pieces; i++)
        on_host::start_box(static_cast<unsigned char*>(to_shared) + i * map.box_rows * 128, map,
                           (piece + static_cast<int>(i)) * 64, row, on_host::numbers_of(barrier), 1u << rank);
}
__forceinline__ void load_halves_to(void* to_shared, const BoxMap& map, int column, int line, void* barrier,
                                    unsigned short blocks) {
    if (!map.halves) on_host::fail("a map without halves");
    if (line % 8) on_host::fail("line %d is no multiple of eight", line);
    BoxMap eight = map;
    eight.box_rows = 8;
    const long long half = map.rows / 2;
    for (int i = 0; i < map.box_rows / 8; i++) {
        const long long at = line + i / 2 * 8;
        on_host::start_box(static_cast<unsigned char*>(to_shared) + i * 1024, eight, column,
                           static_cast<int>(at < half ? i % 2 * half + at : map.rows), on_host::numbers_of(barrier),
                           blocks);
    }
}
__forceinline__ void load_halves(void* to_shared, const BoxMap& map, int column, int line, void* barrier) {
    const auto rank = static_cast<unsigned>(on_host::now->block - on_host::blocks);
    load_halves_to(to_shared, map, column, line, barrier, static_cast<unsigned short>(1u << rank));
}
__forceinline__ void load_box_to(void* to_shared, const BoxMap& map, int column, int row, void* barrier,
                                 unsigned short blocks) {
    if (map.box_pieces || map.halves) on_host::fail("a map of several boxes at once");
    on_host::start_box(to_shared, map, column, row, on_host::numbers_of(barrier), blocks);
}
inline int block_of_cluster() { return static_cast<int>(on_host::now->block - on_host::blocks); }
inline void meet_cluster() {
    on_host::now->state = on_host::State::MEETING;
    on_host::leave();
}

inline float power_of_two(float exponent) { return exp2f(exponent); }
inline unsigned in_register(unsigned value) { return value; }
inline int dot_bytes(unsigned a, unsigned b, int c) {
    for (int i = 0; i < 4; i++)
        c = static_cast<int>(static_cast<unsigned>(c) + (a >> 8 * i & 0xFF) * static_cast<signed char>(b >> 8 * i));
    return c;
}

}  // namespace

// ---- a launch ---------------------------------------------------------------------------------------------------

namespace on_host {
namespace {

// The arguments lie in the program, where threads may read them.
template <class... P> struct Call {
    static void (*kernel)(P...);
    static std::tuple<P...> values;
    static void run() { std::apply(kernel, values); }
    template <std::size_t... I> static void take(void** arguments, std::index_sequence<I...>) {
        (std::memcpy(&std::get<I>(values), arguments[I], sizeof(P)), ...);
    }
};
template <class... P> void (*Call<P...>::kernel)(P...) = nullptr;
template <class... P> std::tuple<P...> Call<P...>::values;

template <class T> constexpr char letter() {
    if (std::is_pointer_v<T>) return 'p';
    if (std::is_same_v<T, float>) return 'f';
    if (std::is_same_v<T, BoxMap>) return 'm';
    return std::is_integral_v<T> && sizeof(T) == 4 ? 'i' : '?';
}
template <class... P> const char* parameters(void (*)(P...)) {
    static const char letters[] = {letter<P>()..., 0};
    return letters;
}

void enter() {
    body();
    now->state = State::DONE;
    unsigned pending = 0;
    if (++now->block->done == block_size.x)
        for (unsigned i = 0; i < box_count; i++) pending += boxes[i].block == now->block;
    if (pending) fail("the block has returned before %u boxes were copied to it: nobody waits for them", pending);
    leave();
}

CUDA_ON_HOST_PLAIN void start_cluster(unsigned threads) {
    fresh_loads = 0;
    box_count = 0;
    for (unsigned rank = 0; rank < cluster_size; rank++) {
        Block& block = blocks[rank];
        std::memset(block.shared, POISON, shared_bytes);
        std::memset(block.barriers, 0, sizeof block.barriers);
        block.done = 0;
    }
    for (unsigned i = 0; i < threads * cluster_size; i++) {
        Fiber& fiber = fibers[i];
        fiber.state = State::READY;
        fiber.thread = {i % threads, 0, 0};
        fiber.block = &blocks[i / threads];
        fiber.lane = i % LANES;
        fiber.warp = &warps[i / LANES];
        fiber.oldest = fiber.pending = fiber.group = 0;
        fiber.waited = false;
        warps[i / LANES] = {0, ""};
        // The lowest page is a guard. Stacks begin at different places, so that they share no cache set.
        unsigned char* low = stacks + i * STACK + GUARD;
        prepare(fiber.context, low, stacks + (i + 1) * STACK - i % 61 * 320, enter);
    }
}

// Runs each lane of a warp until it waits for the block or has returned, or the warp for a lane that does not come.
CUDA_ON_HOST_PLAIN bool run_warp(unsigned warp, bool reversed) {
    bool moved = false;
    block_index = fibers[warp * LANES].block->index;
    shared = fibers[warp * LANES].block->shared;
    for (bool again = true; again && !failed;) {
        again = false;
        for (unsigned i = 0; i < LANES && !failed; i++) {
            Fiber& fiber = fibers[warp * LANES + (reversed ? LANES - 1 - i : i)];
            if (fiber.state != State::READY) continue;
            now = &fiber;
            change(scheduler, fiber.context);
            now = nullptr;
            again = moved = true;
        }
    }
    return moved;
}

// Who of a block waits for what; nothing, where all of it have returned.
CUDA_ON_HOST_PLAIN int describe(const Block& block, unsigned threads, char* said, std::size_t room) {
    const Fiber* const of = fibers + (&block - blocks) * threads;
    unsigned at_block = 0, at_cluster = 0, at_barrier = 0, done = 0, first = threads, waits = threads;
    for (unsigned i = threads; i-- > 0;) {
        at_block += of[i].state == State::BLOCK;
        at_cluster += of[i].state == State::MEETING;
        at_barrier += of[i].state == State::BARRIER;
        done += of[i].state == State::DONE;
        if (of[i].state == State::WARP) first = i;
        if (of[i].state == State::BARRIER && of[i].barrier[3]) waits = i;
    }
    if (done == threads) return 0;
    char meeting[48] = "", missing[100] = "", barrier[60] = "";
    if (at_cluster) std::snprintf(meeting, sizeof meeting, "%u at meet_cluster, ", at_cluster);
    if (at_barrier) std::snprintf(barrier, sizeof barrier, "%u at a barrier in shared memory, ", at_barrier);
    if (waits < threads)
        std::snprintf(missing, sizeof missing, " (thread %u: %u arrivals and %d bytes are missing)", waits,
                      of[waits].barrier[0], static_cast<short>(of[waits].barrier[3]) * 16);
    if (first == threads)
        return std::snprintf(said, room,
                             "block (%u, %u, %u): %u threads wait at __syncthreads, %s%u have returned, and %u wait at "
                             "a barrier in shared memory%s", block.index.x, block.index.y, block.index.z, at_block,
                             meeting, done, at_barrier, missing);
    return std::snprintf(said, room,
                         "block (%u, %u, %u): %u threads wait at __syncthreads, %s%s%u have returned, and %u wait for "
                         "lanes of their warp (the first: thread %u at %s)", block.index.x, block.index.y,
                         block.index.z, at_block, meeting, barrier, done,
                         threads - at_block - at_cluster - at_barrier - done, first, of[first].warp->at);
}

CUDA_ON_HOST_PLAIN void report_deadlock(unsigned threads) {
    char said[MOST_BLOCKS * 400] = "";
    int length = 0;
    for (unsigned rank = 0; rank < cluster_size; rank++) {
        const int start = length ? length + 2 : 0;
        const int more = describe(blocks[rank], threads, said + start, sizeof said - static_cast<std::size_t>(start));
        if (more && length) std::memcpy(said + length, "; ", 2);
        if (more) length = start + more;
    }
    fail("deadlock in %s", said);
}

// Where all who have not returned wait for a block, or for the cluster, they go on.
CUDA_ON_HOST_PLAIN bool release(State at, Fiber* of, unsigned threads) {
    unsigned waiting = 0, done = 0;
    bool waited = false;
    for (unsigned i = 0; i < threads; i++) {
        waiting += of[i].state == at;
        done += of[i].state == State::DONE;
        waited |= of[i].waited;
    }
    if (!waiting || waiting + done < threads) return false;
    for (unsigned i = 0; i < threads; i++)
        if (of[i].state == at) of[i].state = State::READY, of[i].waited |= waited;
    return true;
}

CUDA_ON_HOST_PLAIN void run_cluster(unsigned threads, bool reversed) {
    const unsigned all = threads * cluster_size, count = all / LANES;
    unsigned order[MOST_FIBERS / LANES];
    start_cluster(threads);
    while (!failed) {
        bool moved = false;
        for (unsigned i = 0; i < all; i++)
            if (fibers[i].state == State::INTERRUPTED ||
                (fibers[i].state == State::BARRIER && fibers[i].barrier[2] % 2 != fibers[i].parity))
                fibers[i].state = State::READY;
        for (unsigned i = 0; i < count; i++) order[i] = reversed ? count - 1 - i : i;
        for (unsigned i = count; turns && i > 1; i--) std::swap(order[i - 1], order[draw(i)]);
        for (unsigned i = 0; i < count && !failed; i++) moved |= run_warp(order[i], reversed);
        if (moved || failed) continue;
        unsigned done = 0;
        for (unsigned rank = 0; rank < cluster_size; rank++) {
            moved |= release(State::BLOCK, fibers + rank * threads, threads);
            done += blocks[rank].done;
        }
        if (done == all) return;
        if (moved || release(State::MEETING, fibers, all)) continue;
        // Boxes that were asked for only when somebody waited already.
        for (unsigned i = 0; i < all; i++)
            if (fibers[i].state == State::BARRIER) moved |= finish_boxes(fibers[i].barrier, fibers[i].parity);
        if (!moved) report_deadlock(threads);
    }
}

// Stacks and shared memory of a launch. They go with it: a process may have so many guards and no more.
struct Memory {
    unsigned char* base = nullptr;

    bool take(unsigned threads, std::size_t bytes) {
        stack_bytes = threads * cluster_size * STACK;
        void* found = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                           -1, 0);
        if (found == MAP_FAILED) return false;
        stacks = static_cast<unsigned char*>(found);
        for (unsigned i = 0; i < threads * cluster_size; i++) mprotect(stacks + i * STACK, GUARD, PROT_NONE);
        // 16 bytes past a multiple of 128: a kernel may count on no more than it asks for.
        const std::size_t pitch = (bytes + 16 + 127) / 128 * 128;
        base = static_cast<unsigned char*>(std::aligned_alloc(128, pitch * cluster_size));
        for (unsigned rank = 0; rank < cluster_size; rank++) blocks[rank].shared = base + rank * pitch + 16;
        shared_bytes = bytes;
        return base != nullptr;
    }

    ~Memory() {
        if (stacks) munmap(stacks, stack_bytes);
        stacks = nullptr;
        std::free(base);
    }
};

template <class... P>
int launch(void (*kernel)(P...), dim3 grid, unsigned threads, unsigned bytes, void** arguments, const void** starts,
           const std::size_t* sizes, unsigned before, int reversed, unsigned cluster, unsigned seed, char* said,
           int room) {
    const std::lock_guard<std::mutex> alone(one_at_a_time);
    Memory memory;
    failed = false;
    message[0] = 0;
    turns = seed;
    early = before;
    range_count = 0;
    for (unsigned i = 0; i < sizeof...(P); i++)
        if (starts[i]) ranges[range_count++] = {static_cast<const unsigned char*>(starts[i]), sizes[i], i};
    Call<P...>::kernel = kernel;
    Call<P...>::take(arguments, std::index_sequence_for<P...>{});
    body = Call<P...>::run;
    grid_size = grid;
    block_size = {threads, 1, 1};
    cluster_size = cluster;
    static_assert(sizeof...(P) <= MOST_RANGES, "few arguments");
    if (threads == 0 || threads > MOST_THREADS || threads % LANES)
        fail("a block of %u threads: whole warps, up to %u threads, are emulated", threads, MOST_THREADS);
    else if (cluster == 0 || cluster > MOST_BLOCKS || cluster * threads > MOST_FIBERS || grid.x % cluster)
        fail("a cluster of %u blocks of %u threads in a grid of %u: up to %u blocks and %u threads, which divide the "
             "grid, are emulated", cluster, threads, grid.x, MOST_BLOCKS, MOST_FIBERS);
    else if (!memory.take(threads, bytes))
        fail("no memory");
    const unsigned along = failed ? 0 : grid.x / cluster;
    const unsigned long long clusters = 1ull * along * grid.y * grid.z;
    for (unsigned long long i = 0; i < clusters && !failed; i++) {
        const unsigned long long at = reversed ? clusters - 1 - i : i;
        for (unsigned rank = 0; rank < cluster; rank++)
            blocks[rank].index = {static_cast<unsigned>(at % along) * cluster + rank,
                                  static_cast<unsigned>(at / along % grid.y),
                                  static_cast<unsigned>(at / along / grid.y)};
        run_cluster(threads, reversed != 0);
    }
    std::snprintf(said, static_cast<std::size_t>(room), "%s", message);
    return failed;
}

}  // namespace
}  // namespace on_host

// ---- what the compiler calls ------------------------------------------------------------------------------------
// -fsanitize=kernel-address: before an access; alignment and null: of an address; bounds, shift-exponent: of a number.

#define CUDA_ON_HOST_HIDDEN extern "C" __attribute__((visibility("hidden"), used)) CUDA_ON_HOST_PLAIN

#define CUDA_ON_HOST_ACCESS(bytes)                                                      \
    CUDA_ON_HOST_HIDDEN void __asan_load##bytes##_noabort(const void* at) {             \
        ::on_host::check(at, bytes, "reads", __builtin_return_address(0));              \
    }                                                                                   \
    CUDA_ON_HOST_HIDDEN void __asan_store##bytes##_noabort(const void* at) {            \
        ::on_host::check(at, bytes, "writes", __builtin_return_address(0));             \
    }
CUDA_ON_HOST_ACCESS(1)
CUDA_ON_HOST_ACCESS(2)
CUDA_ON_HOST_ACCESS(4)
CUDA_ON_HOST_ACCESS(8)
CUDA_ON_HOST_ACCESS(16)
CUDA_ON_HOST_HIDDEN void __asan_loadN_noabort(const void* at, std::size_t bytes) {
    ::on_host::check(at, bytes, "reads", __builtin_return_address(0));
}
CUDA_ON_HOST_HIDDEN void __asan_storeN_noabort(const void* at, std::size_t bytes) {
    ::on_host::check(at, bytes, "writes", __builtin_return_address(0));
}
CUDA_ON_HOST_HIDDEN void __asan_handle_no_return() {}

struct CudaOnHostPlace { const char* file; unsigned line, column; };
struct CudaOnHostMismatch { CudaOnHostPlace place; const void* type; unsigned char log_alignment, kind; };
CUDA_ON_HOST_HIDDEN void __ubsan_handle_type_mismatch_v1(const CudaOnHostMismatch* data, const void* at) {
    if (at)
        ::on_host::fail("misaligned address %p, which is used as if a multiple of %d [%s:%u]", at,
                        1 << data->log_alignment, data->place.file, data->place.line);
    else
        ::on_host::fail("null pointer [%s:%u]", data->place.file, data->place.line);
}
CUDA_ON_HOST_HIDDEN void __ubsan_handle_out_of_bounds(const CudaOnHostPlace* place, std::size_t index) {
    ::on_host::fail("subscript %ld is out of bounds [%s:%u]", static_cast<long>(index), place->file, place->line);
}
CUDA_ON_HOST_HIDDEN void __ubsan_handle_shift_out_of_bounds(const CudaOnHostPlace* place, std::size_t,
                                                            std::size_t by) {
    ::on_host::fail("shift by %ld [%s:%u]", static_cast<long>(by), place->file, place->line);
}

#define CUDA_ON_HOST_ENTRY(kernel)                                                                                  \
    extern "C" __attribute__((visibility("default"))) const char* cuda_on_host_parameters() {                       \
        return ::on_host::parameters(kernel);                                                                       \
    }                                                                                                               \
    extern "C" __attribute__((visibility("default"))) int cuda_on_host_run(                                         \
        unsigned x, unsigned y, unsigned z, unsigned threads, unsigned shared, void** arguments, const void** starts, \
        const std::size_t* sizes, unsigned early, int reversed, unsigned cluster, unsigned turns, char* message,    \
        int room) {                                                                                                 \
        return ::on_host::launch(kernel, dim3{x, y, z}, threads, shared, arguments, starts, sizes, early, reversed, \
                                 cluster, turns, message, room);                                                    \
    }
