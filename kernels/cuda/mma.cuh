// Tensor-core arithmetic: a 16 x 16 operand A times a 16 x 8 operand B. In matrices A are activations and B eight weight
// rows, as described here; attention has the cache as A and queries as B (attention.cuh).
//
// The lane 4 g + j of a warp holds of A the rows g and g + 8, of B the weight row g, of the sums rows g and
// g + 8 at weight rows 2 j and 2 j + 1. Within 32 consecutive columns any order will do if A and B share it:
// lane j takes columns 8 j .. 8 j + 7 for two successive products, so that one 16-byte load is one operand.
#pragma once
#include "contract.h"
#include "e4m3.cuh"
#include "model.h"

static_assert(UNIT_BYTES == 32 * 16, "eight rows of 32 columns: 16 bytes a lane");

// Operand A of one product in the four consecutive registers that the tensor cores want: for columns 4 s .. 4 s + 3 of
// a lane's eight, words (row g, first two), (row g + 8, first two), (row g, last two), (row g + 8, last two). Operands in
// memory lie in this order, 16 bytes a lane and product, so that loading one is one instruction and no moves.
using Operand = uint4;

DEVICE void mma_f16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

DEVICE void mma_bf16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// With the weights' own type.
DEVICE void mma_weights(float (&c)[4], const Operand& a, u32 b0, u32 b1) {
    if constexpr (model::WEIGHTS_BF16) {
        mma_bf16(c, a.x, a.y, a.z, a.w, b0, b1);
    } else {
        mma_f16(c, a.x, a.y, a.z, a.w, b0, b1);
    }
}

DEVICE u32 pack_f16(float low, float high) {
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

// Beyond 65504, the largest number of FP16, that.
DEVICE u32 saturated_f16(float low, float high) {
    u32 r;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

DEVICE float f16_low(u32 pair) {
    float r;
    asm("{ .reg .f16 a, b; mov.b32 {a, b}, %1; cvt.f32.f16 %0, a; }" : "=f"(r) : "r"(pair));
    return r;
}

DEVICE float f16_high(u32 pair) {
    float r;
    asm("{ .reg .f16 a, b; mov.b32 {a, b}, %1; cvt.f32.f16 %0, b; }" : "=f"(r) : "r"(pair));
    return r;
}

DEVICE u32 pack_bf16(float low, float high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

// A pair of numbers as the sum of two pairs of 16 bits: 22 bits of mantissa with FP16, 16 with BF16.
// Both parts of FP16 saturate, so beyond 65504 the second one has as much of the rest as it can hold, and an infinity is twice that.
struct Split {
    u32 high, low;
};

DEVICE Split split_f16(float x, float y) {
    const u32 high = saturated_f16(x, y);
    return {high, saturated_f16(x - f16_low(high), y - f16_high(high))};
}

DEVICE Split split_weights_type(float x, float y) {
    if constexpr (model::WEIGHTS_BF16) {
        const u32 high = pack_bf16(x, y);
        return {high, pack_bf16(x - __uint_as_float(high << 16), y - __uint_as_float(high & 0xffff0000u))};
    } else {
        return split_f16(x, y);
    }
}

// A number of the weights' type: norms and embedding rows come in it.
DEVICE float weight_low(u32 pair) {
    return model::WEIGHTS_BF16 ? __uint_as_float(pair << 16) : f16_low(pair);
}
DEVICE float weight_high(u32 pair) {
    return model::WEIGHTS_BF16 ? __uint_as_float(pair & 0xffff0000u) : f16_high(pair);
}
