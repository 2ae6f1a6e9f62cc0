// Consumers with warps side by side who share a token.
#pragma once
#include "core.cuh"

template <int TEAM>
DEVICE void team_sync(u32 team) {
    static_assert(WARPS % TEAM == 0, "whole teams");
    if constexpr (TEAM == WARPS) consumers_sync();
    else if constexpr (TEAM > 1) asm volatile("bar.sync %0, %1;" ::"r"(2 + team), "n"(32 * TEAM) : "memory");
}
