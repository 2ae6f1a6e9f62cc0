// Exchange between SMs inside a token. Every word carries its own readiness: the lowest mantissa bit of a number
// is the parity of the pass that wrote it, so a reader knows a fresh word from the one of the pass before. The bit
// costs half a unit in the last place of FP32; no value can be mistaken, nothing has to be cleared, and no fence is
// needed because the flag is in the data.
//
// Why a word is never overwritten before all have read it: each layer has its own mailboxes, a pass ends with an
// exchange that every SM takes part in after its last read (sampling.cuh), and a word is written once a pass.
#pragma once
#include "mma.cuh"
#include "watchdog.cuh"

DEVICE u32 tagged(float value, u32 epoch) { return (__float_as_uint(value) & ~1u) | epoch; }
DEVICE float untagged(u32 word) { return __uint_as_float(word & ~1u); }

// Relaxed: orders nothing but itself.
DEVICE void post(u32* to, u32 word) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}
DEVICE void post(u32* to, u32 first, u32 second) {
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(first), "r"(second) : "memory");
}
DEVICE void post(u64* to, u64 word) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}

// Relaxed, past the L1: four words, each valid by itself.
DEVICE uint4 peek4(const u32* from) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}
DEVICE ulonglong2 peek2(const u64* from) {
    ulonglong2 v;
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0,%1}, [%2];" : "=l"(v.x), "=l"(v.y) : "l"(from) : "memory");
    return v;
}
DEVICE uint2 peek2(const u32* from) {
    uint2 v;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from) : "memory");
    return v;
}

DEVICE bool fresh(const uint4& v, u32 epoch) {
    return (((v.x ^ epoch) | (v.y ^ epoch) | (v.z ^ epoch) | (v.w ^ epoch)) & 1u) == 0;
}
DEVICE bool fresh(const uint2& v, u32 epoch) { return (((v.x ^ epoch) | (v.y ^ epoch)) & 1u) == 0; }

// Where each vector of a layer lies, in words.
namespace mail {
constexpr int QUERIES = 0;
constexpr int KEYS = QUERIES + model::Q_DIM;
constexpr int VALUES = KEYS + model::KV_DIM;
constexpr int HEADS_OUT = VALUES + model::KV_DIM;                       // attention's result, [Q_DIM]
constexpr int AFTER_ATTENTION = HEADS_OUT + model::Q_DIM;               // residual, [LANES][HIDDEN]
constexpr int GATED = AFTER_ATTENTION + model::LANES * model::HIDDEN;   // [FFN]
constexpr int AFTER_MLP = GATED + model::FFN;                           // residual, [LANES][HIDDEN]
constexpr int LANES_ATTENTION = AFTER_MLP + model::LANES * model::HIDDEN;  // module outputs, for other lanes
constexpr int LANES_MLP = LANES_ATTENTION + (model::LANES > 1 ? model::LANES * model::HIDDEN : 0);
constexpr int PARTIALS = LANES_MLP + (model::LANES > 1 ? model::LANES * model::HIDDEN : 0);
constexpr int PARTIAL_ROW = model::HEAD_DIM + 2;                         // accumulator, maximum, sum; 8 bytes each
constexpr int PARTIAL_ITEM = model::QUERIES_PER_KV * PARTIAL_ROW;
constexpr int LAYER = round_up(PARTIALS + model::KV_HEADS * model::MAX_SPLITS * PARTIAL_ITEM * 2, 32);
static_assert(KEYS % 4 == 0 && VALUES % 4 == 0 && HEADS_OUT % 4 == 0 && AFTER_ATTENTION % 4 == 0 && GATED % 4 == 0 &&
                  AFTER_MLP % 4 == 0 && PARTIALS % 4 == 0,
              "vectors are read in 16-byte words");
static_assert(size_t(LAYER) * model::LAYERS == model::MAIL_WORDS, "the host reserves as much");
}  // namespace mail
