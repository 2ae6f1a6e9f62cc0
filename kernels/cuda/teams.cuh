// Consumers with warps side by side who share a token.
#pragma once
#include "core.cuh"

template <int TEAM>
DEVICE void team_sync(u32 team) {
    static_assert(WARPS % TEAM == 0, "whole teams");
    if constexpr (TEAM == WARPS) consumers_sync();
    else if constexpr (TEAM > 1) asm volatile("bar.sync %0, %1;" ::"r"(2 + team), "n"(32 * TEAM) : "memory");
}

// RMSNorm's scales of N vectors of a token, from each thread's part of their sums of squares.
template <int TEAM, int N>
DEVICE void join_squares(Core& core, float (&squares)[N], float (&scale)[N]) {
    static_assert(N <= larger(1, model::LANES), "as many as have their parts in shared memory");
    const u32 team = core.warp / TEAM;
    float* parts = core.shared.norm_parts();
#pragma unroll
    for (int l = 0; l < N; ++l) {
        squares[l] = warp_sum(squares[l]);
        if (TEAM > 1 && core.lane == 0) parts[l * WARPS + core.warp] = squares[l];
    }
    team_sync<TEAM>(team);
#pragma unroll
    for (int l = 0; l < N; ++l) {
        float sum = squares[l];
        if constexpr (TEAM > 1) {
            sum = 0.0f;
#pragma unroll
            for (int w = 0; w < TEAM; ++w) sum += parts[l * WARPS + team * TEAM + w];
        }
        scale[l] = rsqrtf(sum * (1.0f / float(model::HIDDEN)) + model::NORM_EPS);
    }
    team_sync<TEAM>(team);
}
