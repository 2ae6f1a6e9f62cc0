// Where the time of a token goes, by the clock of each SM: off unless compiled in.
//
// Each step of a pass (five a layer, then head and sample) has three stamps, taken by one thread of the SM: begin,
// input ready, end. Totals go to profile[sm][step kind][2] (wait, work) and the stamps of traced passes to
// profile[SMS * 16 + 8 + ((pass * SMS + sm) * STEPS + step) * 3]. profile[sm][14..15] and the pairs kept at the end
// tie the SM's clock to the launch's nanoseconds.
#pragma once
#include "params.cuh"
#include "model.h"

enum StepKind : int { STEP_QKV = 0, STEP_ATTENTION, STEP_ATTN_OUT, STEP_GATE_UP, STEP_DOWN, STEP_HEAD, STEP_SAMPLE, STEP_KINDS };
constexpr int STEPS_A_PASS = model::LAYERS * 5 * model::SEATS + 2;
constexpr int PROFILE_WORDS_AN_SM = 32;  // 7 kinds x (wait, work), passes, two (nanoseconds, clock) pairs, 7 x starved

struct ProfileTotals {
    u64 wait[model::PROFILE ? STEP_KINDS : 1];
    u64 work[model::PROFILE ? STEP_KINDS : 1];
    u64 starved[model::PROFILE ? STEP_KINDS : 1];  // part of the work: weights were not there yet
};

struct Profile {
    u64 begun = 0, ready = 0, starved = 0;
    int passes = 0;

    DEVICE static u64 now() {
        u64 t;
        asm volatile("mov.u64 %0, %clock64;" : "=l"(t)::"memory");
        return t;
    }
    DEVICE void begin() {
        if constexpr (model::PROFILE) {
            begun = ready = now();
            starved = 0;
        }
    }
    DEVICE void input_ready() {
        if constexpr (model::PROFILE) ready = now();
    }
    // `step` counts within the pass, `pass` from the first decode pass.
    DEVICE void end(const Params& params, ProfileTotals& totals, u32 sm, StepKind kind, int step, int pass) {
        if constexpr (model::PROFILE) {
            if (threadIdx.x != 0) return;
            const u64 finished = now();
            totals.wait[kind] += ready - begun;
            totals.work[kind] += finished - ready;
            totals.starved[kind] += starved;
            if (pass < params.trace_first || pass >= params.trace_last) return;
            u64* stamps = params.profile + model::SMS * PROFILE_WORDS_AN_SM +
                          ((size_t(pass - params.trace_first) * model::SMS + sm) * STEPS_A_PASS + step) * 3;
            stamps[0] = begun;
            stamps[1] = ready;
            stamps[2] = finished;
        }
    }
};
