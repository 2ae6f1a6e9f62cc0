// Exchange between GPUs: words pushed straight into the mailboxes in the other GPUs' memory, polled where they land.
//
// A word carries its own readiness (words.cuh), so nothing has to be ordered: stores and loads are relaxed, at
// system scope, and there is no fence. What a GPU needs it finds in its own memory; no load crosses a link. Rows that a
// warp finishes together are neighbours in memory, and leave as whole 32-byte sectors however wide the single store is.
//
// A mailbox that other GPUs write has one place for each sender, so that sums can be made in the order of the lanes,
// the same on every GPU. It is free again one pass later, like those within a GPU: no GPU begins a pass before it has
// read the last word of the pass before from all others (sampling.cuh).
#pragma once
#include "watchdog.cuh"
#include "words.cuh"

// Relaxed, to any GPU's memory.
DEVICE void post_far(u32* to, u32 word) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}
DEVICE void post_far(u32* to, u32 first, u32 second) {
    asm volatile("st.relaxed.sys.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(first), "r"(second) : "memory");
}
DEVICE void post_far(u32* to, const uint4& words) {
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words.x), "r"(words.y), "r"(words.z),
                 "r"(words.w)
                 : "memory");
}
DEVICE void post_far(u64* to, u64 word) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}

DEVICE void post_far(u64* to, u64 first, u64 second) {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(first), "l"(second) : "memory");
}

// Relaxed, past the L1, from this GPU's memory, where another GPU writes.
DEVICE u32 load_far(const u32* from) {
    u32 v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
    return v;
}
DEVICE u64 load_far(const u64* from) {
    u64 v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(from) : "memory");
    return v;
}
DEVICE ulonglong2 peek2_far(const u64* from) {
    ulonglong2 v;
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0,%1}, [%2];" : "=l"(v.x), "=l"(v.y) : "l"(from) : "memory");
    return v;
}
DEVICE uint2 peek2_far(const u32* from) {
    uint2 v;
    asm volatile("ld.relaxed.sys.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from) : "memory");
    return v;
}
DEVICE uint4 peek4_far(const u32* from) {
    uint4 v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}

// Calls `visit` with every other GPU's addresses; this GPU's own are in `params` itself.
template <class Visit>
DEVICE void for_each_peer(const Params& params, Visit visit) {
    if constexpr (model::RANKS > 1) {
#pragma unroll
        for (int r = 0; r < model::RANKS; ++r) {
            if (r != params.rank) visit(params.peers[r]);
        }
    }
}
