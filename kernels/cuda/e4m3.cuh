// Numbers of FP8 in E4M3, two at a time.
#pragma once
#include "contract.h"

// Two E4M3 numbers (FP8), the nearest to a and b; of two as near the even one, beyond 448 that. The low one in the low byte.
DEVICE u16 pack_e4m3(float low, float high) {
    u16 r;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
    return r;
}
// FP16 that are E4M3 numbers as such, and back: both exact.
DEVICE u16 narrow_e4m3(u32 halves) {
    u16 r;
    asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(r) : "r"(halves));
    return r;
}
DEVICE u32 widen_e4m3(u16 pair) {
    u32 r;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(pair));
    return r;
}
