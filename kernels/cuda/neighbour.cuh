// Blocks in clusters of two: what one sends is in the other's shared memory after a fifth of the time that an exchange by mailbox takes.
#pragma once
#include "stream.cuh"

// Where the other block has what lies at `p` here.
DEVICE u32 neighbours_address(const void* p) {
    u32 address;
    asm volatile(
        "{\n .reg .b32 rank;\n"
        " mov.u32 rank, %%cluster_ctarank;\n"
        " xor.b32 rank, rank, 1;\n"
        " mapa.shared::cluster.u32 %0, %1, rank;\n}"
        : "=r"(address)
        : "r"(shared_address(p)));
    return address;
}
// Asynchronous, into the neighbour's shared memory; completion counts 4 or 8 bytes on its barrier. Visible to who has seen that passed by
// neighbour_has_sent.
DEVICE void send(u32 to, float word, u32 barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to), "f"(word), "r"(barrier)
                 : "memory");
}
DEVICE void send(u32 to, float first, float second, u32 barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to), "f"(first),
                 "f"(second), "r"(barrier)
                 : "memory");
}
DEVICE bool neighbour_has_sent(u64* barrier, u32 parity) {
    u32 done;
    asm volatile(
        "{\n .reg .pred p;\n"
        " mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        " selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
    return done != 0;
}
// All threads of both blocks that have not left; what they did before it is visible after it.
DEVICE void cluster_sync() { asm volatile("barrier.cluster.arrive.aligned;\n barrier.cluster.wait.aligned;" ::: "memory"); }

// What this block's neighbour sends it, a round of some bytes at a time.
template <bool IN_PAIRS>
struct Neighbour {
    u64 sent;  // barrier
    u32 turn;  // parity of the rounds so far

    DEVICE void init() {
        barrier_init(&sent, 1);
        turn = 0;
    }
    // By one thread, once a round, at any time of it.
    DEVICE void expect(u32 bytes) { barrier_expect(&sent, bytes); }
    DEVICE void await(const Params& params) {
        QuietSpin spin(params);
        while (!neighbour_has_sent(&sent, turn) && !spin.hopeless()) {}
    }
    // By one thread, when all others have waited.
    DEVICE void end_round() { turn ^= 1u; }
    // The neighbour's.
    DEVICE u32 barrier() const { return neighbours_address(&sent); }
};
template <>
struct Neighbour<false> {
    DEVICE void init() {}
    DEVICE void expect(u32) {}
    DEVICE void await(const Params&) {}
    DEVICE void end_round() {}
    DEVICE u32 barrier() const { return 0; }
};
