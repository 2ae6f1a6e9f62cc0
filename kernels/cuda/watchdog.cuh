// No spin waits for ever. A spin that outlasts its budget writes who waited for what and raises `aborted`;
// from then on every spin gives up at once, so that all threads run to the end of the pass and leave together. Only a producer of
// experts does not look while it waits for a copy that it has asked for (Producer::land): that one comes, or the GPU has failed.
#pragma once
#include "model.h"
#include "contract.h"

DEVICE u64 global_ns() {
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

DEVICE u32 load_relaxed(const u32* p) {
    u32 v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

DEVICE u64 load_relaxed(const u64* p) {
    u64 v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

// Where a thread is, for the report.
struct Place {
    u32 sm, warp;
    int phase, layer, position;
};

// By value: a reference would keep the caller's place in local memory.
__device__ __noinline__ void report_stuck(const Params* params, Place place, Wait wait) {
    Control* c = params->control;
    if (atomicCAS(&c->wait, 0u, u32(wait)) != 0u) return;
    c->sm = place.sm;
    c->warp = place.warp;
    c->phase = u32(place.phase);
    c->layer = u32(place.layer);
    c->position = u32(place.position);
    __threadfence();
    atomicExch(&c->aborted, 1u);
    for (int r = 0; r < model::RANKS; ++r) {  // the others would only find out by waiting as long
        if (r != params->rank) *static_cast<volatile u32*>(&params->peers[r].control->aborted) = 1u;
    }
}

// For a wait that only lasts if another thread's does, which has a Spin: gives up when that one has reported. Reporting is a
// call, and a call cannot be made while sums of wgmma are in the registers.
class QuietSpin {
public:
    DEVICE explicit QuietSpin(const Params& params) : params_(params) {}

    DEVICE bool hopeless() { return !(++turns_ & 255u) && load_relaxed(&params_.control->aborted); }

private:
    const Params& params_;
    u32 turns_ = 0;
};

// Where a thread looks at many words at once, `hopeless` stands between the loads and the first use of any: it is a branch, which
// the compiler does not move uses across. Without one it puts each word's check right behind its load, as soon as the checks need
// more than the seven predicates, and a look takes the L2's latency once for each word.
// All lanes ask in a loop that a warp leaves together: a call by some of them has the compiler take lanes for apart from there on.
class Spin {
public:

    DEVICE Spin(const Params& params, const Place& place, Wait wait) : params_(params), place_(place), wait_(wait) {}

    // True once waiting has become pointless. Cheap except every 256th time.
    DEVICE bool hopeless() {
        if (++turns_ & 255u) return false;
        if (load_relaxed(&params_.control->aborted)) return true;
        const u64 now = global_ns();
        if (!start_) start_ = now;
        if (now - start_ < params_.spin_budget_ns) return false;
        report_stuck(&params_, place_, wait_);
        return true;
    }

private:
    const Params& params_;
    const Place& place_;
    const Wait wait_;
    u32 turns_ = 0;
    u64 start_ = 0;
};
