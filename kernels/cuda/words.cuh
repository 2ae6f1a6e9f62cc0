// Words that carry their own readiness: the lowest mantissa bit of a number is the parity of the pass that wrote it, so
// a reader knows a fresh word from the one of the pass before. The bit costs half a unit in the last place of FP32; no
// value can be mistaken, nothing has to be cleared, and no fence is needed because the flag is in the data.
#pragma once
#include "types.cuh"

DEVICE u32 tagged(float value, u32 epoch) { return (__float_as_uint(value) & ~1u) | epoch; }
DEVICE float untagged(u32 word) { return __uint_as_float(word & ~1u); }
DEVICE float4 untagged(const uint4& v) {
    return make_float4(untagged(v.x), untagged(v.y), untagged(v.z), untagged(v.w));
}
DEVICE uint4 tagged(const float4& v, u32 epoch) {
    return make_uint4(tagged(v.x, epoch), tagged(v.y, epoch), tagged(v.z, epoch), tagged(v.w, epoch));
}

// A number as a word has it.
DEVICE float as_posted(float value) { return untagged(__float_as_uint(value)); }

// Relaxed: orders nothing but itself.
DEVICE void post(u32* to, u32 word) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}
DEVICE void post(u32* to, u32 first, u32 second) {
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(first), "r"(second) : "memory");
}
DEVICE void post(u32* to, const uint4& words) {
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words.x), "r"(words.y), "r"(words.z),
                 "r"(words.w)
                 : "memory");
}
DEVICE void post(u64* to, u64 word) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}

// Ordinary stores, by name: where a condition stands before it, the compiler cuts the store of a vector into one for each word.
DEVICE void store_words(void* to, u32 word) { *static_cast<u32*>(to) = word; }
DEVICE void store_words(void* to, const uint2& words) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(words.x), "r"(words.y) : "memory");
}
DEVICE void store_words(void* to, const uint4& words) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
                 : "memory");
}
DEVICE void store_words(void* to, const float4& v) {
    store_words(to, make_uint4(__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w)));
}

// What was written before it, by this thread or by those it has met in a barrier, is visible to every thread that reads
// a word which this thread posts after it, and then comes to an `acquire_fence`.
DEVICE void release_fence() { asm volatile("fence.release.gpu;" ::: "memory"); }
// The other half. It waits for nothing: it only empties the L1.
DEVICE void acquire_fence() { asm volatile("fence.acquire.gpu;" ::: "memory"); }

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

// 1 if some word is not fresh, else 0.
DEVICE u32 stale(const uint4& v, u32 epoch) { return ((v.x ^ epoch) | (v.y ^ epoch) | (v.z ^ epoch) | (v.w ^ epoch)) & 1u; }
DEVICE bool fresh(const uint4& v, u32 epoch) { return stale(v, epoch) == 0; }
DEVICE bool fresh(const uint2& v, u32 epoch) { return (((v.x ^ epoch) | (v.y ^ epoch)) & 1u) == 0; }
