// Experts of a long prompt, by tiles of wgmma: tokens are gathered by expert, multiplied as dense ones are (tiles.cuh), and what
// each of their experts gives them is added in the order of slots.
#pragma once
#include "expert_prefill.cuh"

namespace expert_tiles {

using prefill::ByTiles;
using prefill::Chunk;

constexpr int PADDING = -1;  // a row of a tile that no token has

// The route (token * CHOSEN + slot) of each row of all tiles, behind the routes themselves.
DEVICE int* rows_of(const Params& p, int tile) {
    return reinterpret_cast<int*>(expert_prefill::route<ByTiles>(p, tiles::CHUNK * model::CHOSEN)) + tile * tiles::TOKENS;
}
static_assert(!experts::BY_TILES || expert_prefill::routes_end<ByTiles>() + size_t(experts::MOST_TILES) * tiles::TOKENS * sizeof(int) ==
                                        model::OUTPUTS_BYTES,
              "as the host reserves it");
DEVICE int expert_met(const Params& p, int route) { return __float_as_int(__ldcg(&expert_prefill::route<ByTiles>(p, route)->x)); }

// How many tokens meet each expert, and so where its tiles lie: the same on every SM. The producer may begin with weights.
DEVICE void count(Core& core, const Chunk& chunk) {
    constexpr int AT_ONCE = 8;
    experts::Routing& routing = core.shared.routing;
    const int routes = chunk.tokens * model::CHOSEN;
    for (int e = int(threadIdx.x); e < model::EXPERTS; e += CONSUMERS) routing.counts[e] = 0;
    consumers_sync();
    for (int first = int(threadIdx.x); first < routes; first += AT_ONCE * CONSUMERS) {
        int met[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) met[i] = expert_met(core.params, smaller(first + i * CONSUMERS, routes - 1));
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            if (first + i * CONSUMERS < routes) atomicAdd(&routing.counts[met[i]], 1);
        }
    }
    consumers_sync();
    if (threadIdx.x == 0) {
        experts::Tiles& groups = routing.tiles;
        int tile = 0;
        for (int e = 0; e < model::EXPERTS; ++e) {
            groups.first[e] = u16(tile);
            groups.tokens[e] = u16(routing.counts[e]);
            for (int left = routing.counts[e]; left > 0; left -= experts::TILE_TOKENS) groups.expert[tile++] = u16(e);
        }
        groups.first[model::EXPERTS] = u16(tile);
    }
    consumers_sync();
    if (threadIdx.x == 0) barrier_arrive(&routing.tiled);
}

// Which route each row of an expert's tiles is, in the order of tokens; a warp an expert.
DEVICE void list(Core& core, const Chunk& chunk) {
    constexpr int AT_ONCE = 8;
    const experts::Tiles& groups = core.shared.routing.tiles;
    const int routes = chunk.tokens * model::CHOSEN, lane = int(core.lane);
    for (int expert = int(core.warp) * model::SMS + int(core.place.sm); expert < model::EXPERTS; expert += WARPS * model::SMS) {
        int* rows = rows_of(core.params, groups.first[expert]);
        int listed = 0;
        for (int first = 0; first < routes; first += AT_ONCE * 32) {
            int met[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) met[i] = expert_met(core.params, smaller(first + i * 32 + lane, routes - 1));
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const int route = first + i * 32 + lane;
                const bool mine = route < routes && met[i] == expert;
                const u32 all = __ballot_sync(ALL_LANES, mine);
                if (mine) rows[listed + __popc(all & ((1u << lane) - 1))] = route;
                listed += __popc(all);
            }
        }
        const int end = (groups.first[expert + 1] - groups.first[expert]) * experts::TILE_TOKENS;
        for (int row = listed + lane; row < end; row += 32) rows[row] = PADDING;
    }
}

// The tokens of each tile side by side; a warp a row.
DEVICE void gather(Core& core) {
    using All = Products<GATE_UP>;
    constexpr int PIECES = All::STEPS * tiles::STEP_COLUMNS / 8, AT_ONCE = 6;
    const Params& p = core.params;
    const int rows = core.shared.routing.tiles.first[model::EXPERTS] * tiles::TOKENS;
    for (int row = int(core.place.sm) * WARPS + int(core.warp); row < rows; row += model::SMS * WARPS) {
        const int route = __ldcg(rows_of(p, 0) + row);
        if (route == PADDING) continue;
        const int token = route / model::CHOSEN;
        u16* to = tokens_operand(p, row / tiles::TOKENS);
        for (int first = int(core.lane); first < PIECES; first += AT_ONCE * 32) {
            uint4 pieces[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const int column = smaller(first + i * 32, PIECES - 1) * 8;
                pieces[i] = __ldcg(reinterpret_cast<const uint4*>(tiles::operand_piece(p.operand_hidden, model::HIDDEN, 0, column, token)));
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const int column = (first + i * 32) * 8;
                if (first + i * 32 < PIECES) store_words(tiles::operand_piece(to, model::HIDDEN, 0, column, row % tiles::TOKENS), pieces[i]);
            }
        }
    }
}

// What gate_up leaves of a tile: the operand of down.
struct Gated {
    static constexpr int COLUMNS = experts::COLUMNS;
    static constexpr bool BIASED = experts::BIASED;
    const Core& core;
    int layer, expert;
    u16* operand;

    DEVICE int first_column(int pair) const { return pair; }
    DEVICE float2 bias(int column) const { return experts::gate_up_bias_of(core.params, layer, expert, column); }
    DEVICE u16* piece(int column, int token) const { return tiles::operand_piece(operand, COLUMNS, 0, column, token); }
};

// And down, to each route's slab.
struct SlabStore {
    static constexpr int TILES = 8;
    const Params& params;
    const int* rows;

    DEVICE void store(int pair, int row, float a, float b) const {
        if (2 * pair >= model::HIDDEN) return;
        float* to = expert_prefill::slab<ByTiles>(params, __ldcg(rows + row)) + 2 * pair;
        store_words(to, make_uint2(__float_as_uint(a), __float_as_uint(b)));
    }
};

template <int WHICH, class FinishOf>
DEVICE void multiply(Core& core, tiles::Stages& stages, const FinishOf& finish_of) {
    using All = Products<WHICH>;
    core.place.phase = WHICH;
    const experts::Tiles& groups = core.shared.routing.tiles;
    const int count = All::count(groups);
#pragma unroll 1
    for (int index = int(core.place.sm); index < count; index += model::SMS) {
        float sums[ROWS / 2];
        tiles::multiply<ROWS, true>(core, stages, All::STEPS, sums);
        core.refresh();
        const All products(groups, index);
        const auto finish = finish_of(products);
        tiles::Slice<finish.TILES> slice;
        slice.token = int(core.warp) * 16 + int(core.lane >> 2);
        slice.first_pair = products.rows * (ROWS / 2);
        const int tokens = groups.tokens[products.expert] - (products.tokens - groups.first[products.expert]) * tiles::TOKENS;
        tiles::finish_tile<ROWS>(core, sums, slice, tokens, finish);
    }
    core.refresh();
}

// A pass over a long chunk of tokens that meet experts.
struct ByExpertTiles : ByTiles {
    DEVICE void mlp(int layer) {
        const Params& p = core.params;
        expert_prefill::choose<ByTiles>(core, chunk, layer, p.norms + size_t(2 * layer + 1) * model::HIDDEN);
        core.grid_barrier();
        count(core, chunk);
        list(core, chunk);
        core.grid_barrier();
        gather(core);
        begin_phase();
        multiply<GATE_UP>(core, stages, [&](const auto& products) {
            return tiles::GatedSlices<Gated>{{core, layer, products.expert, gated_operand(p, products.tokens)}};
        });
        begin_phase();
        multiply<DOWN>(core, stages, [&](const auto& products) { return SlabStore{p, rows_of(p, products.tokens)}; });
        core.grid_barrier();
        expert_prefill::join<ByTiles>(core, chunk, layer);
    }
};

}  // namespace expert_tiles
