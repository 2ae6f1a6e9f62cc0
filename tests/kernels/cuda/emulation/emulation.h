// CUDA's words on a CPU: each thread of a launch is a fiber, all fibers share one thread of the machine. A fiber runs until it
// waits: for its warp, for its block, for a word in memory or for a copy. What it says of memory is stronger than a GPU's: a
// store is seen at once by all. Copies of the copy engine arrive late and in any order, and until then their target is filled
// with NaNs: who does not wait for one finds out.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <cstring>
#include <memory>
#include <vector>

#include "model.h"

#define __device__
#define __forceinline__ inline
#define __global__
#define __constant__
#define __noinline__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __builtin_assume(condition)

struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct int2 { int x, y; };
struct alignas(16) ulonglong2 { unsigned long long x, y; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) { return {x, y}; }

namespace emulation {

using u32 = unsigned;
using u64 = unsigned long long;
constexpr u32 ALL = ~0u;
constexpr int SHARED_BYTES = 1 << 18;
constexpr int STACK_BYTES = 1 << 18;
constexpr u64 PATIENCE = 100'000;  // rounds over all fibers before a launch counts as stuck; a good one takes a few thousand

// What lanes of a warp hand each other. Two sets in turn: a lane writes to one only after all have read it.
struct Meeting {
    unsigned char values[2][32][64];
    u64 arrivals = 0;
};
struct Copy {
    void* to;
    const void* from;
    u32 bytes, barrier, delay;
};
struct Fiber;
struct Block {
    std::unique_ptr<unsigned char, void (*)(void*)> memory{static_cast<unsigned char*>(std::aligned_alloc(SHARED_BYTES, SHARED_BYTES)), std::free};
    Meeting whole[16], parts[16][32];  // of each warp; of some of its lanes, by the first
    u64 barriers[16] = {};             // arrivals at each of the named barriers
    std::vector<Copy> copies;
    std::vector<Fiber*> fibers;
    Block* neighbour = nullptr;  // in a cluster of two, if there are as many
};
struct Dim3 { unsigned x; };
struct Fiber {
    ucontext_t first;  // where it begins,
    jmp_buf at;        // and where it waits: unlike a context it is left and found without a system call
    bool begun = false;
    std::unique_ptr<char[]> stack{new char[STACK_BYTES]};  // of which few pages are ever touched
    Dim3 thread, block_index;
    Block* block;
    int gpu;
    u64 met[2] = {}, barriers[16] = {}, clusters = 0;
    bool ended = false;
};
inline Fiber* current;
inline jmp_buf scheduler;

inline void wait() {
    if (!_setjmp(current->at)) _longjmp(scheduler, 1);
}
// Runs a fiber until it waits.
inline void resume(Fiber& fiber) {
    current = &fiber;
    if (_setjmp(scheduler)) return;
    if (fiber.begun) _longjmp(fiber.at, 1);
    fiber.begun = true;
    setcontext(&fiber.first);
}
inline bool broken;  // a thread did what no GPU would survive: the launch ends
inline void give_up() {
    broken = true;
    while (true) wait();
}
inline unsigned char* shared_memory() { return current->block->memory.get(); }
inline u32 shared_address(const void* p) { return u32(static_cast<const unsigned char*>(p) - shared_memory()); }

template <class T>
void meet(const T& mine, T (&all)[32], u32 mask = ALL) {
    static_assert(sizeof(T) <= sizeof(Meeting::values[0][0]), "a lane's part of an exchange");
    const u32 warp = current->thread.x / 32, lane = current->thread.x % 32;
    Meeting& meeting = mask == ALL ? current->block->whole[warp] : current->block->parts[warp][__builtin_ctz(mask)];
    const u64 turn = current->met[mask != ALL]++;
    std::memcpy(meeting.values[turn & 1][lane], &mine, sizeof(T));
    ++meeting.arrivals;
    while (meeting.arrivals < u64(__builtin_popcount(mask)) * (turn + 1)) wait();
    for (int i = 0; i < 32; ++i) std::memcpy(&all[i], meeting.values[turn & 1][i], sizeof(T));
}
inline void meet_block(int which, u32 threads) {
    const u64 target = ++current->barriers[which] * threads;
    ++current->block->barriers[which];
    while (current->block->barriers[which] < target) wait();
}
// All threads of both blocks that have not ended.
inline void meet_cluster() {
    const u64 turn = ++current->clusters;
    const auto has_come = [&](const Fiber* fiber) { return fiber->ended || fiber->clusters >= turn; };
    const auto have_come = [&](const Block* block) { return std::all_of(block->fibers.begin(), block->fibers.end(), has_come); };
    while (!have_come(current->block) || !have_come(current->block->neighbour)) wait();
}
inline void arrive_block(int which) {
    ++current->barriers[which];
    ++current->block->barriers[which];
}

// An mbarrier, in the eight bytes that it has.
struct Barrier {
    u32 pending : 15, count : 15, parity : 1, unused : 1;
    int bytes;

    void check() {
        if (pending || bytes) return;
        parity ^= 1;
        pending = count;
    }
};
static_assert(sizeof(Barrier) == 8, "as on a GPU");
inline Barrier& barrier_at(u32 address) { return *reinterpret_cast<Barrier*>(shared_memory() + address); }
inline void barrier_init(u32 address, u32 count) { barrier_at(address) = Barrier{count, count, 0, 0, 0}; }
inline void barrier_arrive(u32 address) {
    Barrier& barrier = barrier_at(address);
    if (!barrier.pending) {
        std::fprintf(stderr, "thread %u of block %u arrives where all have arrived\n", current->thread.x, current->block_index.x);
        give_up();
    }
    --barrier.pending;
    barrier.check();
}
inline void barrier_expect(u32 address, u32 bytes) {
    barrier_at(address).bytes += int(bytes);
    barrier_arrive(address);
}
inline u32 barrier_passed(u32 address, u32 parity) {
    if (barrier_at(address).parity != parity) return 1;
    wait();
    return barrier_at(address).parity != parity;
}
inline void await_barrier(u32 address, u32 parity, const u32* aborted) {
    while (!barrier_passed(address, parity) && !*aborted) {}
}

// An address of the neighbour's shared memory.
constexpr u32 NEIGHBOURS = 1u << 31;
inline u32 neighbours_address(u32 address) { return address | NEIGHBOURS; }
inline void send(u32 to, std::initializer_list<float> words, u32 barrier) {
    unsigned char* memory = current->block->neighbour->memory.get();
    std::copy(words.begin(), words.end(), reinterpret_cast<float*>(memory + (to & ~NEIGHBOURS)));
    Barrier& counts = *reinterpret_cast<Barrier*>(memory + (barrier & ~NEIGHBOURS));
    counts.bytes -= int(words.size() * sizeof(float));
    counts.check();
}

// A clock that stands still but for who reads it: what is read later is more.
inline u64 ticks() {
    static u64 read = 0;
    return ++read;
}

inline u64 copied_bytes = 0;  // by the copy engine, since the library was loaded
inline void copy(u32 to, const void* from, u32 bytes, u32 barrier) {
    if (to % 16 || reinterpret_cast<u64>(from) % 16 || bytes % 16 || !bytes) {
        std::fprintf(stderr, "a copy of %u bytes from %p to %u: all must be multiples of 16\n", bytes, from, to);
        give_up();
    }
    copied_bytes += bytes;
    std::memset(shared_memory() + to, 0xff, bytes);
    current->block->copies.push_back({shared_memory() + to, from, bytes, barrier, 1 + u32(std::rand()) % 40});
}
inline void land_copies(Block& block) {
    for (size_t i = 0; i < block.copies.size();) {
        Copy& copy = block.copies[i];
        if (--copy.delay) {
            ++i;
            continue;
        }
        std::memcpy(copy.to, copy.from, copy.bytes);
        Barrier& barrier = *reinterpret_cast<Barrier*>(block.memory.get() + copy.barrier);
        barrier.bytes -= int(copy.bytes);
        barrier.check();
        block.copies.erase(block.copies.begin() + long(i));
    }
}

// Whoever looks again and again at a word lets the others run between.
template <class T>
T load(const T* from) {
    wait();
    return *from;
}

inline float f16(u32 bits) {
    const unsigned short half = static_cast<unsigned short>(bits);
    _Float16 value;
    std::memcpy(&value, &half, 2);
    return float(value);
}
inline u32 f16_bits(float value) {
    const _Float16 half = _Float16(value);
    unsigned short bits;
    std::memcpy(&bits, &half, 2);
    return bits;
}
inline u32 saturated_bits(float value) { return f16_bits(std::isnan(value) ? value : fminf(fmaxf(value, -65504.0f), 65504.0f)); }
inline float from_bits(u32 bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
inline u32 to_bits(float value) {
    u32 bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}
inline u32 add_halves(u32 a, u32 b) {
    return f16_bits(f16(a & 0xffff) + f16(b & 0xffff)) | f16_bits(f16(a >> 16) + f16(b >> 16)) << 16;
}
inline u32 larger_halves(u32 a, u32 b) {
    const u32 lower = (a & 0xffff) > (b & 0xffff) ? a : b, upper = a > b ? a : b;
    return (lower & 0xffff) | (upper & 0xffff0000u);
}
// E4M3: found by trying all that there are, of two as near the even one.
inline float e4m3(u32 bits) {
    const u32 exponent = bits >> 3 & 15, mantissa = bits & 7;
    const float magnitude = exponent ? ldexpf(1.0f + float(mantissa) / 8, int(exponent) - 7) : ldexpf(float(mantissa), -9);
    const float value = (bits & 0x7f) == 0x7f ? NAN : magnitude;
    return bits & 0x80 ? -value : value;
}
inline u32 e4m3_bits(float value) {
    if (std::isnan(value)) return 0x7f;
    const float magnitude = fminf(fabsf(value), 448.0f);
    u32 nearest = 0;
    for (u32 bits = 1; bits < 0x7f; ++bits) {
        const float distance = fabsf(e4m3(bits) - magnitude), least = fabsf(e4m3(nearest) - magnitude);
        if (distance < least || (distance == least && bits % 2 == 0)) nearest = bits;
    }
    return nearest | (std::signbit(value) ? 0x80 : 0);
}
inline u32 e4m3_halves(u32 halves) { return e4m3_bits(f16(halves & 0xffff)) | e4m3_bits(f16(halves >> 16)) << 8; }
inline u32 halves_of_e4m3(u32 pair) { return f16_bits(e4m3(pair & 0xff)) | f16_bits(e4m3(pair >> 8 & 0xff)) << 16; }
inline float bf16(u32 bits) { return from_bits(bits << 16); }
inline u32 bf16_bits(float value) {
    const u32 bits = to_bits(value);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// mma.sync.m16n8k16: of A lane 4 g + j has rows g and g + 8, of B column g, of the sums columns 2 j and 2 j + 1.
template <float (*NUMBER)(u32)>
void multiply(float& c0, float& c1, float& c2, float& c3, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    struct Operands { u32 a[4], b[2]; } all[32];
    meet(Operands{{a0, a1, a2, a3}, {b0, b1}}, all);
    const u32 lane = current->thread.x % 32;
    float* sums[] = {&c0, &c1, &c2, &c3};
    for (u32 e = 0; e < 4; ++e) {
        const u32 row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
        float sum = 0.0f;
        for (u32 k = 0; k < 16; ++k) {
            const u32 a = all[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2], b = all[column * 4 + k % 8 / 2].b[k / 8];
            sum += NUMBER(k & 1 ? a >> 16 : a & 0xffff) * NUMBER(k & 1 ? b >> 16 : b & 0xffff);
        }
        *sums[e] += sum;
    }
}
inline u32 transposed(u32 pair) {
    u32 all[32];
    meet(pair, all);
    const u32 g = current->thread.x % 32 / 4, j = current->thread.x % 4;
    const auto at = [&](u32 row) { return all[row * 4 + g / 2] >> g % 2 * 16 & 0xffff; };
    return at(2 * j) | at(2 * j + 1) << 16;
}

// wgmma: 64 tokens by `N / 2` rows, operands in shared memory as their descriptors say. A product ends where it begins.
template <float (*NUMBER)(u32)>
float operand(u64 descriptor, u32 row, u32 k) {
    const u32 width = descriptor >> 62 == 1 ? 128 : 64;
    u32 at = u32(descriptor & 0x3fff) * 16 + row / 8 * (u32(descriptor >> 32 & 0x3fff) * 16) + row % 8 * width + k * 2;
    at ^= (at >> 7 & (width / 16 - 1)) << 4;
    unsigned short bits;
    std::memcpy(&bits, shared_memory() + at, 2);
    return NUMBER(bits);
}
template <float (*NUMBER)(u32), int N>
void multiply_warpgroup(float (&sums)[N], u64 a, u64 b) {
    const u32 thread = current->thread.x % 128, g = thread % 32 / 4, j = thread % 4;
    float tokens[2][16];
    for (u32 h = 0; h < 2; ++h) {
        for (u32 k = 0; k < 16; ++k) tokens[h][k] = operand<NUMBER>(a, thread / 32 * 16 + g + 8 * h, k);
    }
    for (u32 e = 0; e < N / 2; ++e) {
        float sum[2] = {};
        for (u32 k = 0; k < 16; ++k) {
            const float weight = operand<NUMBER>(b, e / 2 * 8 + 2 * j + e % 2, k);
            for (u32 h = 0; h < 2; ++h) sum[h] += tokens[h][k] * weight;
        }
        for (u32 h = 0; h < 2; ++h) sums[e / 2 * 4 + 2 * h + e % 2] += sum[h];
    }
}
// wgmma with 64 rows in registers as A and eight columns of FP16 as B, whose pieces of eight numbers lie apart as the descriptor says.
inline void multiply_rows(float& c0, float& c1, float& c2, float& c3, u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int adds) {
    struct Rows { u32 a[4]; } all[32];
    meet(Rows{{a0, a1, a2, a3}}, all);
    const u32 lane = current->thread.x % 32;
    float* sums[] = {&c0, &c1, &c2, &c3};
    for (u32 e = 0; e < 4; ++e) {
        const u32 row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
        float sum = 0.0f;
        for (u32 k = 0; k < 16; ++k) {
            const u32 a = all[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2];
            unsigned short bits;
            std::memcpy(&bits, shared_memory() + u32(b & 0x3fff) * 16 + k / 8 * (u32(b >> 16 & 0x3fff) * 16) + column * 16 + k % 8 * 2, 2);
            sum += f16(k & 1 ? a >> 16 : a & 0xffff) * f16(bits);
        }
        *sums[e] = adds ? *sums[e] + sum : sum;
    }
}
// The same with eight columns of each of several requests, as far apart as the descriptor says.
template <int N>
void multiply_rows(float (&sums)[N], const u32* rows, u64 vectors, int adds) {
    for (int r = 0; r < N / 4; ++r) {
        float* c = sums + 4 * r;
        multiply_rows(c[0], c[1], c[2], c[3], rows[0], rows[1], rows[2], rows[3], vectors + u32(r) * (vectors >> 32 & 0x3fff), adds);
    }
}
// Numbers of eight bits as an integer times a power of two, the same for subnormals as for the least exponent.
struct Parts {
    int integer, exponent;
};
inline Parts e4m3_parts(u32 bits) {
    const int exponent = bits >> 3 & 15, integer = int(bits & 7) | (exponent ? 8 : 0);
    return {bits & 0x80 ? -integer : integer, (exponent ? exponent : 1) - 10};
}
inline Parts e5m2_parts(u32 bits) {
    const int exponent = bits >> 2 & 31, integer = int(bits & 3) | (exponent ? 4 : 0);
    return {bits & 0x80 ? -integer : integer, (exponent ? exponent : 1) - 17};
}
// Number k of a row of an operand in shared memory, or of a column, whose pieces of sixteen lie apart as the descriptor says.
inline u32 byte_of_operand(u64 descriptor, u32 row, u32 k) {
    const u32 block = u32(descriptor & 0x3fff) * 16 + k / 16 * (u32(descriptor >> 16 & 0x3fff) * 16) + row / 8 * (u32(descriptor >> 32 & 0x3fff) * 16);
    const u32 at = block + row % 8 * 16 + k % 16;
    if (at >= 227 << 10) std::abort();  // a block has no more on a GPU
    return shared_memory()[at];
}
// The sum of 32 products and of what is there before, each cut off below 2^-13 of the power of two that exponents allow the largest one,
// which is what is known of the tensor cores; then it is exact. `integers`: bits of both factors' fractions.
inline float sum_cut_off(const Parts (&products)[32], int integers, float before = 0.0f) {
    int largest = before != 0.0f ? std::ilogb(before) : -1000;
    for (const Parts& product : products) {
        if (product.integer) largest = std::max(largest, product.exponent + integers);
    }
    const int least = largest - 13;
    double sum = std::trunc(std::ldexp(double(before), -least));
    for (const Parts& product : products) sum += std::trunc(std::ldexp(double(product.integer), product.exponent - least));
    return float(std::ldexp(sum, least));
}
inline Parts product_of(const Parts& a, const Parts& b) { return {a.integer * b.integer, a.exponent + b.exponent}; }
// wgmma with 64 rows of E5M2 as A and columns of E4M3 as B, 32 numbers.
template <int N>
void multiply_e5m2(float (&sums)[N], const u32* rows, u64 vectors) {
    struct Rows { u32 a[4]; } all[32];
    meet(Rows{{rows[0], rows[1], rows[2], rows[3]}}, all);
    const u32 lane = current->thread.x % 32;
    for (int e = 0; e < N; ++e) {
        const u32 row = lane / 4 + u32(e) / 2 % 2 * 8, column = u32(e) / 4 * 8 + lane % 4 * 2 + u32(e) % 2;
        Parts products[32];
        for (u32 k = 0; k < 32; ++k) {
            const u32 a = all[row % 8 * 4 + k % 16 / 4].a[row / 8 + k / 16 * 2] >> k % 4 * 8 & 0xff;
            products[k] = product_of(e5m2_parts(a), e4m3_parts(byte_of_operand(vectors, column, k)));
        }
        sums[e] = sum_cut_off(products, 5);
    }
}
// wgmma with 64 rows of E4M3 as A, in shared memory too.
template <int ADDS, int N>
void multiply_e4m3(float (&sums)[N], u64 rows, u64 vectors) {
    const u32 thread = current->thread.x % 128, lane = thread % 32;
    const auto is_number = [](u32 bits) { return (bits & 0x7f) != 0x7f; };
    for (int e = 0; e < N; ++e) {
        const u32 row = thread / 32 * 16 + lane / 4 + u32(e) / 2 % 2 * 8, column = u32(e) / 4 * 8 + lane % 4 * 2 + u32(e) % 2;
        Parts products[32];
        bool are_numbers = !(ADDS && std::isnan(sums[e]));
        for (u32 k = 0; k < 32; ++k) {
            const u32 weight = byte_of_operand(rows, row, k), digit = byte_of_operand(vectors, column, k);
            are_numbers &= is_number(weight) && is_number(digit);
            products[k] = product_of(e4m3_parts(weight), e4m3_parts(digit));
        }
        sums[e] = are_numbers ? sum_cut_off(products, 6, ADDS ? sums[e] : 0.0f) : std::numeric_limits<float>::quiet_NaN();
    }
}
constexpr auto NUMBER = WEIGHTS_PTX[0] == 'b' ? bf16 : f16;

// Runs `thread` as every thread of every block of every GPU; false if they wait for each other for ever, or one gave up.
inline bool run(int gpus, int blocks, int threads, void (*thread)()) {
    std::vector<std::unique_ptr<Block>> all_blocks;
    std::vector<std::unique_ptr<Fiber>> fibers;
    for (int b = 0; b < gpus * blocks; ++b) {
        all_blocks.push_back(std::make_unique<Block>());
        std::memset(all_blocks.back()->memory.get(), 0xff, SHARED_BYTES);
        for (int t = 0; t < threads; ++t) {
            auto fiber = std::make_unique<Fiber>();
            fiber->thread.x = unsigned(t);
            fiber->block_index.x = unsigned(b % blocks);
            fiber->gpu = b / blocks;
            fiber->block = all_blocks.back().get();
            getcontext(&fiber->first);
            fiber->first.uc_stack.ss_sp = fiber->stack.get();
            fiber->first.uc_stack.ss_size = STACK_BYTES;
            makecontext(&fiber->first, thread, 0);
            fiber->block->fibers.push_back(fiber.get());
            fibers.push_back(std::move(fiber));
        }
    }
    for (int b = 0; b < gpus * blocks; ++b) {
        if ((b ^ 1) < gpus * blocks) all_blocks[b]->neighbour = all_blocks[b ^ 1].get();
    }
    broken = false;
    for (u64 round = 0; round < PATIENCE && !broken; ++round) {
        bool left = false;
        for (auto& fiber : fibers) {
            if (fiber->ended) continue;
            left = true;
            resume(*fiber);
        }
        for (auto& block : all_blocks) land_copies(*block);
        if (!left) return true;
    }
    return false;
}

}  // namespace emulation

#define threadIdx (emulation::current->thread)
#define blockIdx (emulation::current->block_index)

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int offset) {
    T all[32];
    emulation::meet(value, all, mask);
    return all[threadIdx.x % 32 ^ unsigned(offset)];
}
template <class T>
T __shfl_sync(unsigned mask, T value, int lane) {
    T all[32];
    emulation::meet(value, all, mask);
    return all[lane & 31];
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    int all[32];
    emulation::meet(predicate, all, mask);
    unsigned result = 0;
    for (int i = 0; i < 32; ++i) result |= unsigned((mask >> i & 1) && all[i]) << i;
    return result;
}
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline void __syncwarp(unsigned mask = ~0u) { __ballot_sync(mask, 1); }
template <class T>
T __reduce_max_sync(unsigned mask, T value) {
    T all[32];
    emulation::meet(value, all, mask);
    for (int i = 0; i < 32; ++i) value = (mask >> i & 1) && all[i] > value ? all[i] : value;
    return value;
}
template <class T>
T __reduce_or_sync(unsigned mask, T value) {
    T all[32];
    emulation::meet(value, all, mask);
    for (int i = 0; i < 32; ++i) value |= mask >> i & 1 ? all[i] : T(0);
    return value;
}
template <class T>
T __reduce_add_sync(unsigned mask, T value) {
    T all[32], sum = 0;
    emulation::meet(value, all, mask);
    for (int i = 0; i < 32; ++i) sum += mask >> i & 1 ? all[i] : T(0);
    return sum;
}
inline unsigned __activemask() { return ~0u; }
inline void __syncthreads() { emulation::meet_block(0, THREADS_OF_A_BLOCK); }
inline void __threadfence() {}
inline void __threadfence_system() {}
template <class T> T __ldg(const T* from) { return *from; }
template <class T> T __ldcg(const T* from) { return *from; }
template <class T> T __ldcs(const T* from) { return *from; }
inline float __uint_as_float(unsigned bits) { return emulation::from_bits(bits); }
inline unsigned __float_as_uint(float value) { return emulation::to_bits(value); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __int_as_float(int bits) { return emulation::from_bits(unsigned(bits)); }
inline int __float_as_int(float value) { return int(emulation::to_bits(value)); }
inline float __expf(float x) { return expf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
using std::max;
using std::min;
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned which) {
    const unsigned long long bytes = (unsigned long long)high << 32 | low;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) result |= unsigned(bytes >> 8 * (which >> 4 * i & 7) & 0xff) << 8 * i;
    return result;
}
inline int __ffs(unsigned x) { return __builtin_ffs(int(x)); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(unsigned x) { return x ? __builtin_clz(x) : 32; }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
inline unsigned long long __float2ull_rz(float x) { return (unsigned long long)x; }
inline unsigned long long __cvta_generic_to_shared(const void* p) { return emulation::shared_address(p); }
template <class T, class U>
T atomicAdd(T* to, U value) {
    const T old = *to;
    *to += value;
    return old;
}
template <class T, class U>
T atomicOr(T* to, U value) {
    const T old = *to;
    *to |= value;
    return old;
}
template <class T>
T atomicCAS(T* to, T expected, T value) {
    const T old = *to;
    if (old == expected) *to = value;
    return old;
}
template <class T>
T atomicExch(T* to, T value) {
    const T old = *to;
    *to = value;
    return old;
}
