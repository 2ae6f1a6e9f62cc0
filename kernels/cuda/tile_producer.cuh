// The warps that fill the stages of a long prompt. Mirrors the consumers: layers, phases, tiles, steps.
#pragma once
#include "expert_tile_producer.cuh"
#include "tile_attention.cuh"

namespace tiles {

// Where a packed tile's units lie (engine/backends/cuda/tape.py), or an SM's share of halves: in halves of units from the begin of all
// tapes.
struct TapeTile {
    u32 first, layer, column;  // where its first chunk is in the first layer; from layer to layer; from chunk to chunk
    u32 run;                   // tiles from this one on that lie side by side
};
static_assert(sizeof(TapeTile) == 16, "the host packs it so");

DEVICE constexpr int first_tape_tile(int phase) {
    return model::LANES * (phase == QKV        ? 0
                           : phase == ATTN_OUT ? QKV_LANE_TILES
                           : phase == GATE_UP  ? QKV_LANE_TILES + OUT_LANE_TILES
                                               : QKV_LANE_TILES + OUT_LANE_TILES + GATE_UP_LANE_TILES);
}

// One warp of several: issuing a copy takes its thread as long as the engine needs to take it in, some 60 clocks and 30 a KB.
// The first one copies activations and blocks of the cache, and waits for each phase; the others copy weights, which are there
// from the begin, as far ahead as there are stages.
struct Producer {
    const Params& params;
    Shared& shared;
    Place place;
    u32 warp, lane;
    Cursor at{};
    u32 filled = 0;  // stages, in all
    u32 phases = 0;
    u32 layers_met = 0;  // of which experts' tiles were known

    DEVICE bool copies_weights() const { return warp > 0; }

    // Lane 0 waits for the next stage to be free, and announces what this warp copies into it.
    DEVICE void announce(u32 bytes) {
        if (lane == 0) {
            if (filled >= u32(STAGES)) barrier_wait(&shared.stage_empty[at.slot], at.round ^ 1u, params, place, WAIT_EMPTY);
            barrier_expect(&shared.stage_full[at.slot], bytes);
        }
        ++filled;
        __syncwarp();
    }
    DEVICE void await_phase() {
        if (lane == 0) barrier_wait(&shared.phase_begun, phases & 1u, params, place, WAIT_BARRIER);
        ++phases;
        __syncwarp();
        fence_copies();
    }

    // Until it is known which tiles there are: all warps, for weights depend on it too.
    DEVICE void await_experts() {
        place.phase = GATE_UP;
        if (!copies_weights()) await_phase();  // what the norm leaves has yet to be gathered
        if (lane == 0) barrier_wait(&shared.routing.tiled, layers_met & 1u, params, place, WAIT_ROUTE);
        ++layers_met;
        __syncwarp();
    }

    // This warp's part of a tile's weights: lane i has the i-th eight rows, if they begin a run. The warps take turns at the runs
    // and at the two chunks of each.
    struct Weights {
        const u8* from = nullptr;
        u32 step = 0;       // bytes from chunk to chunk
        u32 to = 0;         // of a share of halves: from the begin of the tile's rows
        u32 bytes[2] = {};  // of each chunk of a step; 0: not the first of a run, or another warp's
        u32 all = 0;        // of a step, all lanes

        template <int PHASE>
        DEVICE void open(const Params& p, u32 warp, u32 lane, const Split<PHASE>& split, int index, int layer) {
            const int of_lane = lane_tiles(PHASE), first = split.row_tile(index) * (split.rows / TILE_ROWS);
            const int count = smaller(split.rows / TILE_ROWS, of_lane - first);
            u32 run = 0;
            if constexpr (halves_of(PHASE)) {
                run = open_share<PHASE>(p, first * TILE_ROWS, count * TILE_ROWS, lane, layer);
            } else if (int(lane) < count) {
                const int in_table = first_tape_tile(PHASE) + split.lane(index) * of_lane + first;
                const uint4* table = reinterpret_cast<const uint4*>(p.tape_tiles) + in_table;
                const uint4 tile = __ldg(table + lane);
                const bool follows = lane > 0 && __ldg(table + lane - 1).w > 1;
                from = p.tape + (u64(tile.x) + u64(tile.y) * u32(layer)) * HALF_BYTES;
                step = tile.z * HALF_BYTES;
                if (!follows) run = u32(smaller(int(tile.w), count - int(lane))) * UNIT_BYTES;
            }
            const u32 before = __popc(__ballot_sync(ALL_LANES, run != 0) & ((1u << lane) - 1u));
#pragma unroll
            for (u32 c = 0; c < 2; ++c) bytes[c] = (2 * before + c) % (PRODUCER_WARPS - 1) == warp - 1 ? run : 0;
            all = bytes[0] + bytes[1];
#pragma unroll
            for (int apart = 16; apart; apart /= 2) all += __shfl_xor_sync(ALL_LANES, all, apart);
        }

    private:
        // Of `count` rows from `row` on those that lie in one SM's share, lane i of the i-th that has any: the bytes of a chunk.
        template <int PHASE>
        DEVICE u32 open_share(const Params& p, int row, int count, u32 lane, int layer) {
            constexpr int ROWS = halves_of(PHASE) * HALF_ROWS, ROW_BYTES = CHUNK_COLUMNS * 2;
            static_assert(MOST_ROWS / ROWS + 2 <= 32, "a lane each");
            const int share = row / ROWS + int(lane), begin = larger(row, share * ROWS), end = smaller(row + count, (share + 1) * ROWS);
            if (begin >= end) return 0;
            const uint4 place = __ldg(reinterpret_cast<const uint4*>(p.tape_tiles) + first_tape_tile(PHASE) + share);
            from = p.tape + (u64(place.x) + u64(place.y) * u32(layer)) * HALF_BYTES + (begin - share * ROWS) * ROW_BYTES;
            to = u32(begin - row) * ROW_BYTES;
            step = place.z * HALF_BYTES;
            return u32(end - begin) * ROW_BYTES;
        }
    };

    template <int PHASE>
    DEVICE void matrix(const u16* operand, int tokens, int layer) {
        place.phase = PHASE;
        place.layer = layer;
        const Split<PHASE> split = best_split<PHASE>(tokens);
        if (!copies_weights()) await_phase();
#pragma unroll 1
        for (int tile = int(place.sm); tile < split.count; tile += model::SMS) {
            const Steps steps = split.steps(tile);
            if (copies_weights()) {
                weights(split, tile, steps, layer);
            } else {
                const size_t block = (size_t(split.lane(tile)) * CHUNK_TILES + split.token_tile(tile)) * Split<PHASE>::STEPS + steps.first;
                activations(operand + block * (ACTIVATION_BYTES / 2), steps.end - steps.first);
            }
        }
    }
    DEVICE void activations(const u16* block, int steps) {
#pragma unroll 1
        for (int step = 0; step < steps; ++step, block += ACTIVATION_BYTES / 2) {
            announce(ACTIVATION_BYTES);
            if (lane == 0) copy_shared(stage_memory(shared, at.slot), block, ACTIVATION_BYTES, &shared.stage_full[at.slot]);
            at.advance(STAGES);
        }
    }
    template <int PHASE>
    DEVICE void weights(const Split<PHASE>& split, int tile, const Steps& steps, int layer) {
        constexpr int CHUNKS = chunks_of(Matrix<PHASE>::COLUMNS);
        Weights mine;
        mine.open(params, warp, lane, split, tile, layer);
#pragma unroll 1
        for (int step = steps.first; step < steps.end; ++step) {
            announce(mine.all);
            u8* to = stage_memory(shared, at.slot) + ACTIVATION_BYTES + (halves_of(PHASE) ? mine.to : lane * UNIT_BYTES);
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                // An odd number of chunks: the last one twice, the second time for columns that are zero.
                const int chunk = smaller(2 * step + c, CHUNKS - 1);
                if (mine.bytes[c]) {
                    copy_shared(to + c * split.rows * CHUNK_COLUMNS * 2, mine.from + size_t(chunk) * mine.step, mine.bytes[c],
                                &shared.stage_full[at.slot]);
                }
            }
            at.advance(STAGES);
        }
    }

    DEVICE void attention(int first, int tokens, int layer) {
        place.phase = ATTENTION;
        if (!copies_weights()) await_phase();
        using tile_attention::Item;
        const int window = window_of(layer);
        const auto cut = tile_attention::Cut::best(first, tokens, window);
#pragma unroll 1
        for (int round = 0; Item::index(round, 0) < cut.items || Item::index(round, model::SMS - 1) < cut.items; ++round) {
            const int index = Item::index(round, int(place.sm));
            if (index >= cut.items) continue;
            const Item item = Item::of(index, cut.tokens, first, tokens, window);
            const cache::Number* cache = cache::block(params.kv, layer, item.head / model::QUERIES_PER_KV, 0);
#pragma unroll 1
            for (int stage = item.first_stage; stage < item.end_stage; ++stage) {
                const int block = stage * tile_attention::STAGE_BLOCKS;
                const u32 bytes = u32(smaller(tile_attention::STAGE_BLOCKS, item.end_block - block) * tile_attention::BLOCK_BYTES);
                announce(copies_weights() ? 0 : bytes);
                if (lane == 0 && !copies_weights()) {
                    copy_shared(stage_memory(shared, at.slot), cache + size_t(block) * cache::BLOCK_NUMBERS, bytes, &shared.stage_full[at.slot]);
                }
                at.advance(STAGES);
            }
        }
    }

    DEVICE void pass(int first, int tokens, const Layers& layers) {
        place.position = first;
#pragma unroll 1
        for (int layer = layers.first; layer < layers.end; ++layer) {
            matrix<QKV>(params.operand_hidden, tokens, layer);
            if (layer == model::LAYERS - 1) break;
            attention(first, tokens, layer);
            matrix<ATTN_OUT>(params.operand_heads, tokens, layer);
            if constexpr (experts::ANY) {
                await_experts();
                expert_tiles::produce<GATE_UP>(*this, expert_tiles::tokens_operand(params, 0), layer);
                expert_tiles::produce<DOWN>(*this, expert_tiles::gated_operand(params, 0), layer);
            } else {
                matrix<GATE_UP>(params.operand_hidden, tokens, layer);
                matrix<DOWN>(params.operand_ffn, tokens, layer);
            }
        }
    }

    // Until the consumers have left the last stages, whoever filled them: decode's ring lies in the same memory.
    DEVICE void drain() {
        for (u32 left = smaller(int(filled), STAGES); left; --left) {
            const u32 slot = (at.slot + STAGES - left) % STAGES;
            const u32 round = slot < at.slot ? at.round : at.round ^ 1u;
            if (lane == 0) barrier_wait(&shared.stage_empty[slot], round, params, place, WAIT_EMPTY);
        }
        __syncwarp();
    }
};

}  // namespace tiles
