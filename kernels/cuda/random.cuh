// Random weights where they are needed: element i of a tensor as engine.models.weights.RandomWeights says.
#pragma once
#include "e4m3.cuh"

DEVICE u32 fmix32(u32 h) {
    h = (h ^ h >> 16) * 0x85EBCA6Bu;
    h = (h ^ h >> 13) * 0xC2B2AE35u;
    return h ^ h >> 16;
}

DEVICE u16 half_bits(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

DEVICE float half_value(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

DEVICE u16 bf16_bits(float value) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

// In FP16; with `bf16` rounded to BF16 after that. Every operation rounds as NumPy's does: nothing may be fused.
DEVICE u16 random_number(u32 index, u32 key, float scale, float offset, bool bf16) {
    const float unit = __fadd_rn(__fmul_rn(float(fmix32(index + key) >> 8), 1.1920928955078125e-07f), -1.0f);
    const u16 bits = half_bits(__fadd_rn(__fmul_rn(scale, unit), offset));
    return bf16 ? bf16_bits(half_value(bits)) : bits;
}

// Its code in E4M3.
DEVICE u32 random_e4m3(u32 index, u32 key) { return narrow_e4m3(random_number(index, key, float(E4M3_LARGEST), 0.0f, false)) & 0xff; }
