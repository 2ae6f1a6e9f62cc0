// The warp that fills the stages of a long prompt. Mirrors the consumers: layers, phases, tiles, steps.
#pragma once
#include "tile_attention.cuh"

namespace tiles {

// Where a packed tile's units lie (engine/backends/cuda/tape.py): in units of 512 bytes from the begin of all tapes.
struct TapeTile {
    u32 first, layer, column;  // unit of the first layer's first chunk; from layer to layer; from chunk to chunk
    u32 run;                   // tiles from this one on that lie side by side
};
static_assert(sizeof(TapeTile) == 16, "the host packs it so");

DEVICE constexpr int first_tape_tile(int phase) {
    return model::LANES * (phase == QKV        ? 0
                           : phase == ATTN_OUT ? QKV_LANE_TILES
                           : phase == GATE_UP  ? QKV_LANE_TILES + OUT_LANE_TILES
                                               : QKV_LANE_TILES + OUT_LANE_TILES + GATE_UP_LANE_TILES);
}

struct Producer {
    const Params& params;
    Shared& shared;
    Place place;
    u32 lane;
    Cursor at{};
    u32 filled = 0;  // stages, in all
    u32 phases = 0;

    // Lane 0 waits for the next stage to be free, and announces what comes into it.
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

    // The tile of a phase whose weights are being copied: lane i has its i-th eight rows, if they begin a run.
    struct Weights {
        const u8* from = nullptr;
        u32 step = 0;   // bytes from chunk to chunk
        u32 bytes = 0;  // of a chunk; 0: not the first of a run
        u32 all = 0;    // of a chunk, all lanes

        DEVICE void open(const Params& p, u32 lane, const Split& split, int index, int phase, int layer) {
            const int of_lane = lane_tiles(phase), first = split.row_tile(index) * (split.rows / TILE_ROWS);
            const int count = smaller(split.rows / TILE_ROWS, of_lane - first);
            all = u32(count * UNIT_BYTES);
            bytes = 0;
            if (int(lane) >= count) return;
            const uint4* table = reinterpret_cast<const uint4*>(p.tape_tiles) + first_tape_tile(phase) + split.lane(index) * of_lane + first;
            const uint4 tile = __ldg(table + lane);
            const bool follows = lane > 0 && __ldg(table + lane - 1).w > 1;
            if (follows) return;
            from = p.tape + (u64(tile.x) + u64(tile.y) * u32(layer)) * UNIT_BYTES;
            step = tile.z * UNIT_BYTES;
            bytes = u32(smaller(int(tile.w), count - int(lane))) * UNIT_BYTES;
        }
    };

    template <int PHASE>
    DEVICE void matrix(const u16* operand, int tokens, int layer) {
        constexpr int CHUNKS = chunks_of(Matrix<PHASE>::COLUMNS), STEPS = steps_of(Matrix<PHASE>::COLUMNS);
        place.phase = PHASE;
        place.layer = layer;
        const Split split = split_of<lane_tiles(PHASE) * TILE_ROWS>(tokens);
        const int tiles = split.count > int(place.sm) ? ceil_div(split.count - int(place.sm), model::SMS) : 0;
        const int total = tiles * STEPS;
        Weights weights;
        Cursor behind = at;     // the stage that gets the next activations
        int copied = 0;         // activations, in steps
        bool begun = false;
#pragma unroll 1
        for (int i = 0; i < total; ++i) {
            const int step = i % STEPS;
            if (step == 0) weights.open(params, lane, split, int(place.sm) + i / STEPS * model::SMS, PHASE, layer);
            announce(2 * weights.all + ACTIVATION_BYTES);
            u8* to = stage_memory(shared, at.slot) + ACTIVATION_BYTES + lane * UNIT_BYTES;
            if (weights.bytes) {
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    // An odd number of chunks: the last one twice, the second time for columns that are zero.
                    const int chunk = smaller(2 * step + c, CHUNKS - 1);
                    copy_shared(to + c * split.rows * CHUNK_COLUMNS * 2, weights.from + size_t(chunk) * weights.step, weights.bytes,
                                &shared.stage_full[at.slot]);
                }
            }
            at.advance(STAGES);
            // Weights of the first stages are on their way before the phase begins.
            if (!begun && (i == STAGES - 1 || i == total - 1)) {
                await_phase();
                begun = true;
            }
            for (; begun && copied <= i; ++copied) {
                if (lane == 0) {
                    const int tile = int(place.sm) + copied / STEPS * model::SMS;
                    const size_t block = (size_t(split.lane(tile)) * CHUNK_TILES + split.token_tile(tile)) * STEPS + copied % STEPS;
                    copy_shared(stage_memory(shared, behind.slot), reinterpret_cast<const u8*>(operand) + block * ACTIVATION_BYTES,
                                ACTIVATION_BYTES, &shared.stage_full[behind.slot]);
                }
                behind.advance(STAGES);
            }
        }
        if (!begun) await_phase();
    }

    DEVICE void attention(int first, int tokens, int layer) {
        place.phase = ATTENTION;
        await_phase();
        const int items = tile_attention::Item::count(tokens), window = window_of(layer);
        using tile_attention::Item;
#pragma unroll 1
        for (int round = 0; Item::index(round, 0) < items || Item::index(round, model::SMS - 1) < items; ++round) {
            const int index = Item::index(round, int(place.sm));
            if (index >= items) continue;
            const Item item = Item::of(index, first, tokens, window);
            const u16* cache = cache::block(params.kv, layer, item.head / model::QUERIES_PER_KV, 0);
#pragma unroll 1
            for (int stage = item.first_stage; stage < item.end_stage; ++stage) {
                const int block = stage * tile_attention::STAGE_BLOCKS;
                const u32 bytes = u32(smaller(tile_attention::STAGE_BLOCKS, item.end_block - block) * tile_attention::BLOCK_BYTES);
                announce(bytes);
                if (lane == 0) {
                    copy_shared(stage_memory(shared, at.slot), cache + size_t(block) * cache::BLOCK_HALVES, bytes, &shared.stage_full[at.slot]);
                }
                at.advance(STAGES);
            }
        }
    }

    DEVICE void pass(int first, int tokens) {
        place.position = first;
#pragma unroll 1
        for (int layer = 0; layer < model::LAYERS; ++layer) {
            matrix<QKV>(params.operand_hidden, tokens, layer);
            if (layer == model::LAYERS - 1) break;
            if (tokens >= params.tile_attention_from) attention(first, tokens, layer);
            matrix<ATTN_OUT>(params.operand_heads, tokens, layer);
            matrix<GATE_UP>(params.operand_hidden, tokens, layer);
            matrix<DOWN>(params.operand_ffn, tokens, layer);
        }
    }

    // Until the consumers have left the last stages: decode's ring lies in the same memory.
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
