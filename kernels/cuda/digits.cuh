// Activations as digits, for the tensor cores that multiply eight bits.
//
// Of each chunk of a vector numbers become integers of sixteen bits times a size that the chunk has, and an integer is four digits of
// four bits, each a column of operand B. As E4M3 the bytes 0 .. 15 are the numbers 0 .. 15 times 2^-9, for subnormal numbers lie as far
// apart as those of the least exponent; so four bits and a sign are an operand as they are. Products of a digit with E2M1 and the sum of
// 32 of them fit in thirteen bits: the tensor cores add them up exactly. (Not those with E4M3: slot_runs.cuh, where a size is that of four
// chunks.) All that is rounded is a number to the nearest integer, by 2^-17 of the power of two over its chunk's largest, so by 2^-16
// of that one itself at most.
#pragma once
#include "packed.cuh"
#include "warpgroups.cuh"
#include "wgmma.h"

namespace packed {

// What is multiplied by a chunk's size and by a sum of products with its upper digits, the others in it as fractions, is this much
// of what it should be.
DEVICE constexpr float of_digits() { return 65535.0f / 4194304.0f; }

// The larger ones of two pairs of numbers of sixteen bits.
DEVICE u32 larger_halves(u32 a, u32 b) {
    u32 r;
    asm("max.u16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

// Of chunks of which eight neighbours have the 32 numbers, each four: the powers of two of their largest numbers, or of those of so many
// chunks TOGETHER, side by side in a warp. All lanes of it call this. The upper halves of numbers have their exponents, so two chunks
// share a word; and none waits for another's shuffles.
template <int TOGETHER = 1, int COUNT>
DEVICE void powers_of_chunks(const float4 (&values)[COUNT], u32 (&powers)[COUNT]) {
    constexpr u32 EXPONENT = 0x7f800000u, LEAST = 0x0d800d80u;  // 2^-100: nothing is more than that of a chunk of zeros
    constexpr int WORDS = ceil_div(COUNT, 2);
    const auto largest = [&](int i) {
        const float4& v = values[smaller(i, COUNT - 1)];
        return __float_as_uint(fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
    };
    u32 words[WORDS];
#pragma unroll
    for (int k = 0; k < WORDS; ++k) words[k] = larger_halves(__byte_perm(largest(2 * k), largest(2 * k + 1), 0x7632), LEAST);
#pragma unroll
    for (int offset = 1; offset < 8 * TOGETHER; offset *= 2) {
#pragma unroll
        for (u32& word : words) word = larger_halves(word, __shfl_xor_sync(ALL_LANES, word, offset));
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) powers[i] = (i % 2 ? words[i / 2] : words[i / 2] << 16) & EXPONENT;
}

// Four numbers of a chunk.
struct Digits {
    u32 first, last;  // two numbers each, as integers: their lower bytes, then their upper ones
    u32 signs;        // at the uppermost bits of bytes
    float size;       // of the chunk: a power of two

    // `power` is the chunk's (powers_of_chunks).
    DEVICE Digits(const float4& v, u32 power) : size(__uint_as_float(power)) {
        constexpr u32 LARGEST_OVER = 0x867fff00u;  // less the bits of 2^e: those of 65535 / 2^(e + 1)
        const float by = __uint_as_float(LARGEST_OVER - power);
        const auto integer = [&](float x) { return __float_as_uint(fmaf(fabsf(x), by, 0x1p23f)); };  // in its lower half
        first = __byte_perm(integer(v.x), integer(v.y), 0x5140);
        last = __byte_perm(integer(v.z), integer(v.w), 0x5140);
        const auto tops = [](float a, float b) { return __byte_perm(__float_as_uint(a), __float_as_uint(b), 0x0073); };
        signs = __byte_perm(tops(v.x, v.y), tops(v.z, v.w), 0x5410) & 0x80808080u;
    }

    // Each digit into a column of its own, of the chunk's four from `columns` on. Lanes begin with other ones, TURNED, for other banks.
    DEVICE void store(u8* columns, u32 turned) const {
        constexpr u32 UPPER = 0x7632, LOWER = 0x5410;
        const u32 two[2] = {__byte_perm(first, last, turned & 2 ? LOWER : UPPER), __byte_perm(first, last, turned & 2 ? UPPER : LOWER)};
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 digit = i ^ turned, shift = digit & 1 ? 0 : 4;
            *reinterpret_cast<u32*>(columns + digit * COLUMN_BYTES) = (two[i / 2] >> shift & 0x0f0f0f0fu) | signs;
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
    // Four numbers of a chunk, from its column 4 `four` on; the chunk is so many quads further than `chunk`.
    DEVICE static void store(Shared& shared, int chunk, int vector, u32 four, const Digits& digits, int quads = 0) {
        const u32 quad = u32(chunk) / QUAD_CHUNKS, of_quad = u32(chunk) % QUAD_CHUNKS, place = DigitColumns::place(of_quad, u32(vector));
        u8* columns = shared.operand() + quad * QUAD_BYTES + (four & 1) * PIECE_BYTES + place * CHUNK_BYTES + four / 2 * 4;
        digits.store(columns + quads * int(QUAD_BYTES), (four & 1) | (of_quad & 2));
        float* sizes = shared.sizes() + quad * (QUAD_CHUNKS * VECTORS) + place;
        if (four == 0) sizes[quads * (QUAD_CHUNKS * VECTORS)] = digits.size;
    }
    // The descriptor of a quad's columns from a block on.
    DEVICE static u64 descriptor(Shared& shared, u32 quad, u32 block) {
        const u32 first = descriptor_word(shared_address(shared.operand()), PIECE_BYTES);
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
DEVICE float worth_of_digits(u32 lane, float reduced = 1.0f) {
    const float all = reduced / of_digits();
    return lane & 1 ? all / 256 : all;
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
