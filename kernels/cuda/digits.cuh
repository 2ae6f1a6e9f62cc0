// Activations as digits, for the tensor cores that multiply eight bits.
//
// Of each chunk of a vector numbers become integers of sixteen bits times a size that the chunk has, and an integer is four digits of
// four bits, each a column of operand B. As E4M3 the bytes 0 .. 15 are the numbers 0 .. 15 times 2^-9, for subnormal numbers lie as far
// apart as those of the least exponent; so four bits and a sign are an operand as they are. Products of a digit with E2M1 and the sum of
// 32 of them fit in thirteen bits: the tensor cores add them up exactly. (Weights in E4M3 have none of that: of their products what is
// less than 2^-14 of the largest one beside it would be dropped.) All that is rounded is a number to the nearest integer, by 2^-17 of
// the power of two over its chunk's largest, so by 2^-16 of that one itself at most.
#pragma once
#include "packed.cuh"
#include "wgmma.h"

namespace packed {

// What is multiplied by a chunk's size and by a sum of products with its upper digits, the others in it as fractions, is this much
// of what it should be.
DEVICE constexpr float of_digits() { return 65535.0f / 4194304.0f; }

// Four numbers of a chunk.
struct Digits {
    u32 upper, lower;  // two digits of each number in its byte
    u32 signs;         // at the uppermost bits of bytes
    float size;        // of the chunk: a power of two

    // All lanes of a warp call it; eight neighbours have the 32 numbers of a chunk.
    DEVICE explicit Digits(const float4& v) {
        constexpr float LEAST = 0x1p-100f;                                // nothing is more than that of a chunk of zeros
        constexpr u32 EXPONENT = 0x7f800000u, LARGEST_OVER = 0x867fff00u;  // less the bits of 2^e: those of 65535 / 2^(e + 1)
        float largest = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
#pragma unroll
        for (int offset = 1; offset < 8; offset *= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, offset));
        const u32 power = __float_as_uint(fmaxf(largest, LEAST)) & EXPONENT;
        size = __uint_as_float(power);
        const float by = __uint_as_float(LARGEST_OVER - power);
        const auto integer = [&](float x) { return __float_as_uint(fmaf(fabsf(x), by, 0x1p23f)); };  // in its lower half
        const u32 first = __byte_perm(integer(v.x), integer(v.y), 0x5140), last = __byte_perm(integer(v.z), integer(v.w), 0x5140);
        lower = __byte_perm(first, last, 0x5410);
        upper = __byte_perm(first, last, 0x7632);
        const auto tops = [](float a, float b) { return __byte_perm(__float_as_uint(a), __float_as_uint(b), 0x0073); };
        signs = __byte_perm(tops(v.x, v.y), tops(v.z, v.w), 0x5410) & 0x80808080u;
    }

    // Each digit into a column of its own, of the chunk's four from `columns` on. Lanes begin with other ones, TURNED, for other banks.
    DEVICE void store(u8* columns, u32 turned) const {
        const u32 first = turned & 2 ? lower : upper, last = turned & 2 ? upper : lower;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 digit = i ^ turned, shift = digit & 1 ? 0 : 4;
            *reinterpret_cast<u32*>(columns + digit * COLUMN_BYTES) = ((i & 2 ? last : first) >> shift & 0x0f0f0f0fu) | signs;
        }
    }

    enum : u32 { COLUMN_BYTES = 16 };
};

// Operand B has 32 rows: two pieces of sixteen bytes of each of its columns, one for what the lanes' eight numbers begin with, the other
// for the rest. Eight columns lie together, 16 bytes of each: two chunks of a vector, or one of two requests. A quad's columns of all
// VECTORS are QUAD_BYTES.
template <int VECTORS>
struct DigitColumns {
    enum : u32 {  // constants would be symbols
        CHUNK_BYTES = 4 * Digits::COLUMN_BYTES,
        BLOCK_BYTES = 2 * CHUNK_BYTES,
        PIECE_BYTES = VECTORS * QUAD_CHUNKS * CHUNK_BYTES,
        QUAD_BYTES = 2 * PIECE_BYTES
    };
    static_assert(QUAD_BYTES == VECTORS * QUAD_CHUNKS * VECTOR_CHUNK_BYTES, "32 columns of four chunks, four digits of each");

    // Which of a quad's chunks of all vectors a vector's chunk `chunk` is. Of one vector the third and the fourth change places (digit_quads.cuh),
    // of several the vectors are turned round in two chunks: else the lanes that store one's chunks would meet in one bank.
    DEVICE static u32 place(u32 chunk, u32 vector) {
        return VECTORS == 1 ? chunk ^ chunk >> 1 : chunk * VECTORS + (vector + half(chunk)) % VECTORS;
    }
    // Of one vector, in which half of a block a chunk is.
    DEVICE static constexpr u32 half(u32 chunk) { return (chunk ^ chunk >> 1) & 1; }
    // Of several, whose chunk is in a half of one of the chunk's blocks.
    DEVICE static u32 vector_in(u32 chunk, u32 block, u32 half) { return (2 * block + half - DigitColumns::half(chunk)) % VECTORS; }
    // Four numbers of a chunk, from its column 4 `four` on.
    DEVICE static void store(Shared& shared, int chunk, int vector, u32 four, const Digits& digits) {
        const u32 quad = u32(chunk) / QUAD_CHUNKS, of_quad = u32(chunk) % QUAD_CHUNKS, place = DigitColumns::place(of_quad, u32(vector));
        digits.store(shared.operand() + quad * QUAD_BYTES + (four & 1) * PIECE_BYTES + place * CHUNK_BYTES + four / 2 * 4,
                     (four & 1) | (of_quad & 2));
        if (four == 0) shared.sizes()[quad * (QUAD_CHUNKS * VECTORS) + place] = digits.size;
    }
    // The descriptor of a quad's columns from a block on.
    DEVICE static u64 descriptor(Shared& shared, u32 quad, u32 block) {
        const u32 first = (shared_address(shared.operand()) & 0x3ffff) >> 4 | PIECE_BYTES >> 4 << 16;
        return u64(BLOCK_BYTES >> 4) << 32 | first + quad * (QUAD_BYTES >> 4) + block * (BLOCK_BYTES >> 4);
    }
};

// Two tiles' rows as operand A: of each a lane's word of a chunk.
DEVICE void unpack_rows(u32 (&rows)[4], const u32 (&word)[2][words(STORAGE_MXFP4)]) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int h = 0; h < 2; ++h) rows[2 * step + h] = e5m2_of_mxfp4(word[h][0], step);
    }
#pragma unroll
    for (u32& row : rows) asm volatile("" : "+r"(row)::"memory");  // before the products begin
}

// A lane has two digits of a row's sum: of the lanes 4 g + j the odd ones have the lower two, which are worth less.
DEVICE float two_digits(const float* sums) { return fmaf(sums[1], 0.0625f, sums[0]); }
template <int STORAGE>
DEVICE float worth_of_digits(u32 lane) {
    constexpr float ALL = reduced(STORAGE) / of_digits();
    return lane & 1 ? ALL / 256 : ALL;
}

// Where the chunk of a quad is left, one of a warpgroup's four sums of a row: apart are lanes, or warps, that have chunks of their own.
template <int T>
DEVICE u32 part_of(u32 chunk, u32 lane) {
    const u32 other = DigitColumns<1>::half(chunk);
    return T > 4 ? 2 * other + (lane & 1) : T > 2 ? chunk % 2 * 2 + other : chunk;
}
// Of few tiles both lanes' digits are added up before.
template <int T>
DEVICE float joined(float sum) {
    return T > 4 ? sum : sum + __shfl_xor_sync(ALL_LANES, sum, 1);
}

}  // namespace packed
