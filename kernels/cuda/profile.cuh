// Where the time of a token goes, by the clock of each SM: off unless compiled in.
//
// Each step of a pass (five a layer, with experts six, then head and sample) has three stamps, taken by one thread of the SM: begin,
// input ready, end. Of several requests they are one pass' steps, too: that thread's input is ready once those pieces are there that
// its warp fetches of all of them, and where an SM attends for one after the other, once the first one's is. Totals go to profile[sm][step kind][2] (wait, work) and the stamps of traced passes to
// profile[SMS * PROFILE_COUNT + ((pass * SMS + sm) * STEPS + step) * 3]. The pairs from PROFILE_BEGUN_NS on
// tie the SM's clock to the launch's nanoseconds. Of the time until input is ready, what is spent on words that only
// other GPUs still owe is counted apart.
#pragma once
#include "contract.h"
#include "model.h"

constexpr int STEPS_A_LAYER = model::EXPERTS ? 6 : 5;
constexpr int STEPS_A_PASS = model::LAYERS * STEPS_A_LAYER + 2;

struct ProfileTotals {
    u64 wait[model::PROFILE ? STEP_KINDS : 1];
    u64 work[model::PROFILE ? STEP_KINDS : 1];
    u64 starved[model::PROFILE ? STEP_KINDS : 1];  // part of the work: weights were not there yet
    u64 peer[model::PROFILE ? STEP_KINDS : 1];     // waiting for other GPUs
};

struct Profile {
    u64 begun = 0, near = 0, found = 0, ready = 0, peer = 0, starved = 0, early = 0;
    int passes = 0;

    DEVICE static u64 now() {
        u64 t;
        asm volatile("mov.u64 %0, %clock64;" : "=l"(t)::"memory");
        return t;
    }
    DEVICE void begin() {
        if constexpr (model::PROFILE) {
            begun = near = found = ready = now();
            peer = starved = early = 0;
        }
    }
    // Of several inputs that a step waits for in turn the first one counts.
    DEVICE void input_ready() {
        if constexpr (model::PROFILE) {
            if (ready == begun) ready = now();
        }
    }
    // A wait for weights, before the input has been looked for or after.
    DEVICE void starved_since(u64 before) {
        if constexpr (model::PROFILE) {
            const u64 waited = now() - before;
            starved += waited;
            if (ready == begun) early += waited;
        }
    }
    // After each look at words of which other GPUs owe some: `near_missing` if before it some of this GPU's own were missing.
    // That look is not a wait for the others, whatever it finds: it would have been made for one GPU as well.
    DEVICE void looked(bool near_missing) {
        if constexpr (model::PROFILE && model::RANKS > 1) {
            found = now();
            if (near_missing) near = found;
        }
    }
    // All of them are there.
    DEVICE void peers_ready() { peers_ready(near, found); }
    DEVICE void peers_ready(u64 last_near, u64 last) {
        if constexpr (model::PROFILE && model::RANKS > 1) peer += last > last_near ? last - last_near : 0;
    }
    // `step` counts within the pass, `pass` from the first decode pass.
    DEVICE void end(const Params& params, ProfileTotals& totals, u32 sm, StepKind kind, int step, int pass) {
        if constexpr (model::PROFILE) {
            if (threadIdx.x != 0) return;
            const u64 finished = now();
            totals.wait[kind] += ready - begun - early - peer;
            atomicAdd(&totals.peer[kind], peer);
            totals.work[kind] += finished - ready + early;
            totals.starved[kind] += starved;
            if (pass < params.trace_first || pass >= params.trace_last) return;
            u64* stamps = params.profile + model::SMS * PROFILE_COUNT +
                          ((size_t(pass - params.trace_first) * model::SMS + sm) * STEPS_A_PASS + step) * 3;
            stamps[0] = begun + early;  // what was waited before the input was looked for is work, as in the totals
            stamps[1] = ready;
            stamps[2] = finished;
        }
    }
};

// When an SM began with a launch, by both clocks.
struct LaunchBegin {
    u64 ns, clock;
};

// What is left of a launch. One thread of the SM.
DEVICE void leave_profile(const Params& params, const ProfileTotals& totals, u32 sm, int passes, const LaunchBegin& begun) {
    if constexpr (model::PROFILE) {
        u64* out = params.profile + sm * PROFILE_COUNT;
        for (int k = 0; k < STEP_KINDS; ++k) {
            out[PROFILE_TIMES + 2 * k] = totals.wait[k];
            out[PROFILE_TIMES + 2 * k + 1] = totals.work[k];
            out[PROFILE_STARVED + k] = totals.starved[k];
            out[PROFILE_PEER + k] = totals.peer[k];
        }
        out[PROFILE_PASSES] = u64(passes);
        out[PROFILE_BEGUN_NS] = begun.ns;
        out[PROFILE_BEGUN_CLOCK] = begun.clock;
        out[PROFILE_ENDED_NS] = global_ns();
        out[PROFILE_ENDED_CLOCK] = Profile::now();
    }
}

// A finishing warp's wait for other GPUs, if there is one; the others meet it later, as a vector that is late.
class PeerWait {
public:
    DEVICE PeerWait(ProfileTotals& totals, StepKind kind, bool missing) : totals_(totals), kind_(kind) {
        if constexpr (model::PROFILE && model::RANKS > 1) {
            threads_ = __activemask();
            begun_ = __any_sync(threads_, missing) ? Profile::now() : 0;
        }
    }
    DEVICE ~PeerWait() {
        if constexpr (model::PROFILE && model::RANKS > 1) {
            __syncwarp(threads_);
            if (begun_ && threadIdx.x % 32 == 0) atomicAdd(&totals_.peer[kind_], Profile::now() - begun_);
        }
    }

private:
    ProfileTotals& totals_;
    const StepKind kind_;
    u32 threads_ = 0;
    u64 begun_ = 0;
};
