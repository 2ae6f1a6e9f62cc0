// Matrix products of many tokens: tiles of 128 tokens by up to 256 weight rows, wgmma from shared memory. Each of the two
// warpgroups has 64 tokens of a tile, as operand A; the weights are operand B, units of the tape as they lie.
//
// Activations lie in memory as a stage takes them: for each lane, each 128 tokens and each 64 columns 16 KB, a token's
// columns in a row of 128 bytes whose 16-byte pieces are swapped about by token (the 128-byte swizzle of PTX).
#pragma once
#include "rows.cuh"
#include "stages.cuh"
#include "warpgroups.cuh"
#include "wgmma.h"

namespace tiles {

// Where an operand of `columns` columns a lane has the eight columns from `column` of a token.
DEVICE u16* operand_piece(u16* operand, int columns, int lane, int column, int token) {
    const int tile = lane * CHUNK_TILES + token / TOKENS, row = token % TOKENS;
    const size_t block = size_t(tile) * steps_of(columns) + column / STEP_COLUMNS;
    return operand + (block * TOKENS + row) * STEP_COLUMNS + ((column / 8 ^ row) & 7) * 8;
}

// An operand in rows of `ROW_BYTES` bytes, its pieces swapped about within them; eight rows begin `EIGHT_ROWS` bytes after the
// eight before. `place` is `operand_place` of its address, and counts on in 16 bytes.
template <int ROW_BYTES, int EIGHT_ROWS = 8 * ROW_BYTES>
DEVICE u64 operand_descriptor(u32 place) {
    constexpr u32 SWIZZLE = ROW_BYTES == 128 ? 1 : 2;
    return u64(u32(EIGHT_ROWS >> 4) | SWIZZLE << 30) << 32 | place;
}
// What all lanes have alike, so that the compiler knows it: descriptors are made of it by a step's few uniform instructions then, in
// place of forty of every lane.
DEVICE u32 uniform(u32 word) { return __shfl_sync(ALL_LANES, word, 0); }
DEVICE u32 operand_place(const void* operand) { return shared_address(operand) >> 4 | 1u << 16; }

// Before its last steps of a tile the second warpgroup waits for the first one to have begun its very last: so one finishes its sums
// while the tensor cores multiply for the other, and none of them lie idle while both do. A stage is filled anew when both have
// left it, so the first one gets so many steps ahead and no more; of tiles with no fewer steps than there are stages it never has
// ended two before the second one goes on.
constexpr int HEAD_START = STAGES - 1;
constexpr int LEAD_BARRIER = 15;
DEVICE void lead_ends() { asm volatile("bar.arrive %0, %1;" ::"n"(LEAD_BARRIER), "n"(CONSUMERS) : "memory"); }
DEVICE void await_lead() { asm volatile("bar.sync %0, %1;" ::"n"(LEAD_BARRIER), "n"(CONSUMERS) : "memory"); }

// One tile's sums over the columns of `steps` steps: of tokens g and g + 8 of the warp's sixteen, weight rows 8 t + 2 j and the
// next one in sums[4 t ..] and sums[4 t + 2 ..]. In a stage the weights' rows lie side by side, chunk after chunk; or every eight
// of them APART, both chunks of the step.
template <int ROWS, bool APART = false>
DEVICE void multiply(Core& core, Stages& stages, int steps, float (&sums)[ROWS / 2]) {
    constexpr u32 PRODUCT = 32 >> 4;                             // 16 columns further, in a descriptor's units
    constexpr u32 NEXT_CHUNK = (APART ? UNIT_BYTES : ROWS * CHUNK_COLUMNS * 2) >> 4;
    constexpr int EIGHT_ROWS = (APART ? 2 : 1) * UNIT_BYTES;
    const u32 warpgroup = uniform(core.warp / 4);
    const bool ends_apart = steps >= STAGES;
    const int held_back = ends_apart && warpgroup ? steps - HEAD_START : steps;
    const u32 first = operand_place(stage_memory(core.shared, 0));
    const auto product = [&](u32 tokens, u32 weights) {
        wgmma(sums, operand_descriptor<TOKEN_BYTES>(tokens), operand_descriptor<CHUNK_COLUMNS * 2, EIGHT_ROWS>(weights));
    };
    // Also for the compiler: what a product adds to and nobody has set would be live from the kernel's begin.
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        if (step == held_back) await_lead();
        const u32 stage = uniform(first + stages.next() * (STAGE_BYTES >> 4));
        const u32 weights = stage + (ACTIVATION_BYTES >> 4), tokens = stage + warpgroup * (ACTIVATION_BYTES / 2 >> 4);
        products_begin();
        product(tokens, weights);
        product(tokens + PRODUCT, weights + PRODUCT);
        product(tokens + 2 * PRODUCT, weights + NEXT_CHUNK);
        product(tokens + 3 * PRODUCT, weights + NEXT_CHUNK + PRODUCT);
        products_commit();
        products_wait<1>();
        if (step) stages.give_back();
        stages.advance();
    }
    if (ends_apart && !warpgroup) lead_ends();
    products_wait<0>();
    stages.give_back();
}

// What a thread finishes at a time: the pairs of rows `first_pair` + 4 t + j, t < TILES, of a token and of the one eight further.
// The last slice of a tile may have only `pairs` of them.
template <int TILES>
struct Slice {
    float sums[4 * TILES];
    int first_pair, pairs, token;
};

// What finishing a slice loads, asked for while the one before is finished.
struct NothingAhead {};
template <class Finish>
DEVICE NothingAhead look_ahead(const Core&, const Slice<Finish::TILES>&, int, int, const Finish&) {
    return {};
}

template <class Finish>
DEVICE void finish_slice(Core& core, const Slice<Finish::TILES>& slice, int tokens, const Finish& finish, const NothingAhead&) {
#pragma unroll
    for (int t = 0; t < Finish::TILES; ++t) {
        const int pair = slice.first_pair + 4 * t + int(core.lane & 3);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (slice.token + 8 * i < tokens) finish.store(pair, slice.token + 8 * i, slice.sums[4 * t + 2 * i], slice.sums[4 * t + 2 * i + 1]);
        }
    }
}

// All of a tile's sums, slice by slice: `slice` is the first one's place.
template <int ROWS, class Finish>
DEVICE void finish_tile(Core& core, float (&sums)[ROWS / 2], Slice<Finish::TILES>& slice, int tokens, const Finish& finish) {
    constexpr int SUMS = 4 * Finish::TILES;
    auto ahead = look_ahead(core, slice, slice.first_pair, tokens, finish);
    // A loop that shifts the sums down: unrolled, what follows a product would not fit the instruction cache.
#pragma unroll 1
    for (int s = 0; s < ROWS / 2; s += SUMS) {
        slice.pairs = smaller(SUMS, ROWS / 2 - s);
#pragma unroll
        for (int i = 0; i < SUMS; ++i) slice.sums[i] = sums[i];
        const auto looked = ahead;
        ahead = look_ahead(core, slice, slice.first_pair + SUMS, tokens, finish);
        finish_slice(core, slice, tokens, finish, looked);
        slice.first_pair += SUMS;
#pragma unroll
        for (int i = 0; i + SUMS < ROWS / 2; ++i) sums[i] = sums[i + SUMS];
    }
}

template <int PHASE, int ROWS, class Finish>
DEVICE void tile(Core& core, Stages& stages, int tokens, const Split<PHASE>& split, int index, const Finish& finish) {
    static_assert(PHASE == GATE_UP || ROWS / 2 % (4 * Finish::TILES) == 0, "whole slices");
    float sums[ROWS / 2];
    const Steps steps = split.steps(index);
    multiply<ROWS>(core, stages, steps.end - steps.first, sums);
    core.refresh();
    core.model_lane = split.lane(index);
    Slice<Finish::TILES> slice;
    const int part_first = split.part(index) * part_tokens(split.parts);
    slice.token = part_first + split.token_tile(index) * TOKENS + int(core.warp) * 16 + int(core.lane >> 2);
    slice.first_pair = core.model_lane * lane_tiles(PHASE) * (TILE_ROWS / 2) + split.row_tile(index) * (ROWS / 2);
    finish_tile<ROWS>(core, sums, slice, part_first + tokens, finish);
}

// Waits for: Stages::begin_phase. Leaves what `finish` stores of every token of the chunk.
template <int PHASE, class Finish>
DEVICE void matrix(Core& core, Stages& stages, int tokens, const Finish& finish) {
    core.place.phase = PHASE;
    using Rows = Widths<PHASE>;
    const Split<PHASE> split = best_split<PHASE>(tokens);
#pragma unroll 1
    for (int index = int(core.place.sm); index < split.count; index += model::SMS) {
        if (split.rows == Rows::WHOLE) tile<PHASE, Rows::WHOLE>(core, stages, tokens, split, index, finish);
        else if (Rows::QUARTER != Rows::WHOLE && split.rows == Rows::QUARTER) tile<PHASE, Rows::QUARTER>(core, stages, tokens, split, index, finish);
        else tile<PHASE, FEW_ROWS>(core, stages, tokens, split, index, finish);
    }
    core.refresh();
}

}  // namespace tiles
