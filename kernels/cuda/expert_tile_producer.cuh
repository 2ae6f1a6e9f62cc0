// Experts of a long prompt: what tiles there are, and how their stages are filled.
//
// Each expert's tokens lie side by side in tiles of 128, those of the first expert first; an SM has every so many-th of all
// products of such a tile with 256 rows of its expert. Weights are experts in sixteen bits as decode's region has them (of
// packed ones a copy): a tile of eight rows lies by itself, so a step of it is one copy of two units.
#pragma once
#include "stages.cuh"

namespace expert_tiles {

constexpr int ROWS = tiles::MOST_ROWS, ROW_TILES_A_TILE = ROWS / TILE_ROWS;
static_assert(experts::TILE_TOKENS == tiles::TOKENS && ROW_TILES_A_TILE == 32, "a lane copies eight rows");

// GATE_UP or DOWN of one expert.
template <int WHICH>
struct Products {
    static constexpr int COLUMNS = WHICH == GATE_UP ? model::HIDDEN : experts::COLUMNS;
    static constexpr int TILES = WHICH == GATE_UP ? experts::GATE_UP_TILES : experts::DOWN_TILES;
    static constexpr int CHUNKS = chunks_of(COLUMNS), STEPS = ceil_div(COLUMNS, tiles::STEP_COLUMNS);
    static constexpr int ROW_TILES = ceil_div(TILES, ROW_TILES_A_TILE);
    static constexpr u64 TILE_BYTES = u64(CHUNKS) * UNIT_BYTES, BYTES = TILES * TILE_BYTES;
    static constexpr int OPERAND_HALVES = tiles::TOKENS * STEPS * tiles::STEP_COLUMNS;  // of a tile of tokens

    int expert, tokens, rows;  // which tile of the tokens', which one of its expert's rows

    // Tiles next to each other have the same weights: SMs that run side by side find them in the L2.
    DEVICE Products(const experts::Tiles& groups, int index) : expert(groups.expert[index / ROW_TILES]) {
        const int first = groups.first[expert], count = groups.first[expert + 1] - first, within = index - first * ROW_TILES;
        rows = within / count;
        tokens = first + within % count;
    }
    DEVICE static int count(const experts::Tiles& groups) { return groups.first[model::EXPERTS] * ROW_TILES; }
};

// Operands of a tile of tokens: of hidden columns, and behind all those of an expert's.
DEVICE u16* tokens_operand(const Params& p, int tile) { return p.operand_ffn + size_t(tile) * Products<GATE_UP>::OPERAND_HALVES; }
DEVICE u16* gated_operand(const Params& p, int tile) {
    return tokens_operand(p, experts::MOST_TILES) + size_t(tile) * Products<DOWN>::OPERAND_HALVES;
}

template <int WHICH, class Producer>
DEVICE void copy_weights(Producer& producer, const Products<WHICH>& products, int layer) {
    using All = Products<WHICH>;
    constexpr u64 EXPERT_BYTES = Products<GATE_UP>::BYTES + Products<DOWN>::BYTES;
    const Params& p = producer.params;
    const int first = products.rows * ROW_TILES_A_TILE, count = smaller(ROW_TILES_A_TILE, All::TILES - first);
    const int lane = int(producer.lane);
    const bool mine = lane < count && lane * (tiles::PRODUCER_WARPS - 1) / count == int(producer.warp) - 1;
    const u32 all = u32(__popc(__ballot_sync(ALL_LANES, mine))) * 2 * UNIT_BYTES;
    const u8* from = p.tape + p.tape_offset[model::SMS + 1] + (u64(layer) * model::EXPERTS + products.expert) * EXPERT_BYTES +
                     (WHICH == GATE_UP ? 0 : Products<GATE_UP>::BYTES) + (first + lane) * All::TILE_BYTES;
#pragma unroll 1
    for (int step = 0; step < All::STEPS; ++step, from += 2 * UNIT_BYTES) {
        producer.announce(all);
        u64* full = &producer.shared.stage_full[producer.at.slot];
        u8* to = tiles::stage_memory(producer.shared, producer.at.slot) + tiles::ACTIVATION_BYTES + lane * 2 * UNIT_BYTES;
        if (mine) {
            // An odd number of chunks: the last one twice, the second time for columns that are zero.
            const bool whole = All::CHUNKS % 2 == 0 || step < All::STEPS - 1;
            copy_shared(to, from, whole ? 2 * UNIT_BYTES : UNIT_BYTES, full);
            if (!whole) copy_shared(to + UNIT_BYTES, from, UNIT_BYTES, full);
        }
        producer.at.advance(tiles::STAGES);
    }
}

template <int WHICH, class Producer>
DEVICE void produce(Producer& producer, const u16* operand, int layer) {
    using All = Products<WHICH>;
    const experts::Tiles& groups = producer.shared.routing.tiles;
    producer.place.phase = WHICH;
    if (!producer.copies_weights()) producer.await_phase();
    const int count = All::count(groups);
#pragma unroll 1
    for (int index = int(producer.place.sm); index < count; index += model::SMS) {
        const All products(groups, index);
        if (producer.copies_weights()) copy_weights<WHICH>(producer, products, layer);
        else producer.activations(operand + size_t(products.tokens) * All::OPERAND_HALVES, All::STEPS);
    }
}

}  // namespace expert_tiles
