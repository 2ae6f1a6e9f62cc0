// The weight stream: bulk copies from the tape into ring slots, and the barriers that hand slots over.
#pragma once
#include "watchdog.cuh"

DEVICE u32 shared_address(const void* p) { return u32(__cvta_generic_to_shared(p)); }

// Before any thread uses the barrier there must be `fence_barrier_init` and a block barrier.
DEVICE void barrier_init(u64* barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the copy engine.
DEVICE void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Releases: what this thread read from the slot is read before the slot's next owner writes it.
DEVICE void barrier_arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// The same, but not before `word` is in its register. Threads that wait for an arrival see the loads before it as done, the
// copy engine does not: a load that hangs behind others for a microsecond may find what the engine put in the slot since.
// `zero` is 0, which the compiler must not know.
DEVICE void barrier_arrive_after(u64* barrier, u32 word, u32 zero) {
    asm volatile(
        "{\n .reg .b32 address;\n"
        " and.b32 address, %1, %2;\n"
        " add.u32 address, address, %0;\n"
        " mbarrier.arrive.shared::cta.b64 _, [address];\n}" ::"r"(shared_address(barrier)),
        "r"(word), "r"(zero)
        : "memory");
}

// One arrival that also expects `bytes` from the copy engine.
DEVICE void barrier_expect(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

// Acquires: after true, the copied bytes (or the arrivals' reads) are visible to this thread.
DEVICE bool barrier_passed(u64* barrier, u32 parity) {
    u32 done;
    asm volatile(
        "{\n .reg .pred p;\n"
        " mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        " selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
    return done != 0;
}

// The same at once: `barrier_passed` may hold a thread up for a while before it says no.
DEVICE bool barrier_has_passed(u64* barrier, u32 parity) {
    u32 done;
    asm volatile(
        "{\n .reg .pred p;\n"
        " mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        " selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
    return done != 0;
}

// By one thread; consumers wait as a warp (Core::wait_full).
DEVICE void barrier_wait(u64* barrier, u32 parity, const Params& params, const Place& place, Wait wait) {
    Spin spin(params, place, wait);
    while (!barrier_passed(barrier, parity)) {
        if (spin.hopeless()) return;
    }
}

// In one statement: behind a loop that calls the watchdog the compiler takes lanes for apart, and then all of decode keeps nothing in
// uniform registers. Gives up when another thread's wait has reported.
DEVICE void await_in_place(u64* barrier, u32 parity, const u32* aborted) {
    asm volatile(
        "{\n .reg .pred p;\n .reg .b32 looks, word;\n"
        " mov.b32 looks, 0;\n"
        "LOOK:\n"
        " mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        " @p bra PASSED;\n"
        " add.u32 looks, looks, 1;\n"
        " and.b32 word, looks, 255;\n"
        " setp.ne.u32 p, word, 0;\n"
        " @p bra LOOK;\n"
        " ld.relaxed.gpu.global.u32 word, [%2];\n"
        " setp.eq.u32 p, word, 0;\n"
        " @p bra LOOK;\n"
        "PASSED:\n}" ::"r"(shared_address(barrier)),
        "r"(parity), "l"(aborted)
        : "memory");
}

// Weights are read once a token and never again before 100 times the L2 has passed: let them leave first.
DEVICE u64 evict_first_policy() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Asynchronous; completion counts `bytes` on `barrier`. Addresses and size are multiples of 16.
DEVICE void bulk_copy(void* to, const void* from, u32 bytes, u64* barrier, u64 policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
            shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
        : "memory");
}

// The same for what others will read as well: it stays in the L2 as long as anything does.
DEVICE void copy_shared(void* to, const void* from, u32 bytes, u64* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

// Between this thread's loads and stores, and what the copy engine or wgmma do to the same memory.
DEVICE void fence_copies() { asm volatile("fence.proxy.async;" ::: "memory"); }

// The same for shared memory alone: stores to the mailboxes need not be seen by all SMs first.
DEVICE void fence_operand() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Asks for `bytes` (a multiple of 16) to be in the L2 soon.
DEVICE void prefetch_l2(const void* from, u32 bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

constexpr int SECTOR_BYTES = 32;

// The same for the sector at `from`, by the calling thread itself, which spares the copy engine's delay. A plain load
// whose result nobody uses would bring it into the L1, but the compiler removes that.
DEVICE void prefetch_sector(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// A walk over ring slots, the same on both ends.
struct Cursor {
    u32 slot = 0;
    u32 round = 0;  // parity of how often the ring has been walked

    DEVICE void advance(u32 slots) {
        if (++slot == slots) {
            slot = 0;
            round ^= 1u;
        }
    }
};
