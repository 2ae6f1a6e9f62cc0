// Experts of a short prompt: tokens of a chunk grouped by expert, each expert that any of them meets read once. Long ones:
// expert_tiles.cuh.
//
// Every SM sorts the chunk's routes by itself and the same way. A group's tokens lie side by side in operands of 16; rows of the
// groups' matrices are dealt out to SMs in blocks, whichever expert they belong to. Outputs go to a slab for each token and
// slot, and are added in the order of slots.
#pragma once
#include "prefill.cuh"
#include "router.cuh"

namespace expert_prefill {

using prefill::ByShares;
using prefill::Chunk;
using shares::TILE_TOKENS;

constexpr int ROUTES = shares::CHUNK * model::CHOSEN;
constexpr int BLOCK_TILES = 4;  // of eight rows
constexpr int GROUP_TILES = smaller(larger(1, model::EXPERTS), ROUTES) + ROUTES / TILE_TOKENS;
constexpr int MOST_TILES = shares::TILES;  // tokens of one group, at most the chunk
constexpr int HIDDEN_CHUNKS = experts::GATE_UP_CHUNKS;
constexpr int TILE_HALVES = TILE_TOKENS * CHUNK_COLUMNS;  // of a chunk of columns
constexpr int PARTIAL_BYTES = WARPS * BLOCK_TILES * TILE_TOKENS * 4 * int(sizeof(float2));

// What the chunk's tokens meet, in shared memory behind the partial sums.
struct Groups {
    int count;                             // of experts that anybody meets
    u16 expert[model::EXPERTS + 1];        // of each group
    u16 first[model::EXPERTS + 1];         // its first route in `routes`
    u16 tile[model::EXPERTS + 1];          // its first 16 tokens among those of all groups
    u16 routes[ROUTES];                    // token * CHOSEN + slot, by group

    DEVICE int size(int group) const { return first[group + 1] - first[group]; }
};
static_assert(!experts::ANY || PARTIAL_BYTES + int(sizeof(Groups)) + 2 * ROUTES <= SCRATCH_BYTES, "behind the partial sums");

DEVICE Groups& groups_of(Shared& shared) { return *reinterpret_cast<Groups*>(shared.scratch + PARTIAL_BYTES); }

// In the buffer of outputs, behind those of modules: in FP32 a slab for each route; who is met, and how much each counts.
template <class Way>
DEVICE float* slab(const Params& p, int route) {
    constexpr size_t MODULES = size_t(2) * prefill::HISTORY * model::TOTAL_LANES * Way::CHUNK;
    return reinterpret_cast<float*>(p.outputs + MODULES * model::HIDDEN) + size_t(route) * model::HIDDEN;
}
template <class Way>
DEVICE float2* route(const Params& p, int index) {
    return reinterpret_cast<float2*>(slab<Way>(p, Way::CHUNK * model::CHOSEN)) + index;
}

// Bytes of the buffer of outputs up to the end of that.
template <class Way>
DEVICE constexpr size_t routes_end() {
    constexpr size_t MODULES = size_t(2) * prefill::HISTORY * model::TOTAL_LANES * Way::CHUNK, ROUTES = size_t(Way::CHUNK) * model::CHOSEN;
    return (MODULES * sizeof(u16) + ROUTES * sizeof(float)) * model::HIDDEN + ROUTES * sizeof(float2);
}
static_assert(!experts::ANY || routes_end<ByShares>() <= model::OUTPUTS_BYTES, "as the host reserves it");

// Operands of 16 tokens of a group: of hidden columns, and behind all those of an expert's. Before them lie those of tiles.
constexpr size_t BY_TILES = size_t(experts::BY_TILES ? experts::MOST_TILES : 0) * experts::TILE_TOKENS * tiles::STEP_COLUMNS *
                            (tiles::steps_of(model::HIDDEN) + tiles::steps_of(experts::COLUMNS));
DEVICE u16* tokens_operand(const Params& p, int tile) {
    return p.operand_ffn + BY_TILES + size_t(tile) * HIDDEN_CHUNKS * TILE_HALVES;
}
DEVICE u16* gated_operand(const Params& p, int tile) {
    return tokens_operand(p, GROUP_TILES) + size_t(tile) * experts::DOWN_CHUNKS * TILE_HALVES;
}
static_assert(!experts::ANY || (BY_TILES + size_t(GROUP_TILES) * (HIDDEN_CHUNKS + experts::DOWN_CHUNKS) * TILE_HALVES) * sizeof(u16) ==
                                   model::OPERAND_FFN_BYTES,
              "as the host reserves it");
// The word of two columns from an even one of a row of 16.
DEVICE u32* word_of(u16* operand, int column, int row) {
    return shares::operand_word<1>(operand, column / CHUNK_COLUMNS, column % CHUNK_COLUMNS, row);
}

// Which blocks of which groups are an SM's: a range of all groups' blocks one after the other.
template <int WHICH>
struct Share {
    static constexpr int TILES = WHICH == GATE_UP ? experts::GATE_UP_TILES : experts::DOWN_TILES;
    static constexpr int CHUNKS = WHICH == GATE_UP ? experts::GATE_UP_CHUNKS : experts::DOWN_CHUNKS;
    static constexpr int BLOCKS = ceil_div(TILES, BLOCK_TILES);
    static constexpr int STORAGE = experts::STORAGE<WHICH>, STEP = chunks_a_slot(BLOCK_TILES, STORAGE, true);
    int first, last;

    DEVICE Share(const Groups& groups, int sm)
        : first(sm * groups.count * BLOCKS / model::SMS), last((sm + 1) * groups.count * BLOCKS / model::SMS) {}
    DEVICE static int group(int block) { return block / BLOCKS; }
    DEVICE static int tile(int block) { return block % BLOCKS * BLOCK_TILES; }
    DEVICE static int tiles(int block) { return smaller(BLOCK_TILES, TILES - tile(block)); }
};

// The producer's part, by its warp: a lane a tile.
template <int WHICH, class Producer>
DEVICE void produce(Producer& producer, const u8* region, int layer) {
    using Mine = Share<WHICH>;
    constexpr int STEP = Mine::STEP;
    constexpr u64 BEFORE = WHICH == GATE_UP ? 0 : experts::GATE_UP_BYTES;
    producer.place.phase = WHICH;
    const Groups& groups = groups_of(producer.shared);
    const Mine mine(groups, int(producer.place.sm));
    const int t = int(threadIdx.x) - CONSUMERS;
    for (int block = mine.first; block < mine.last && !producer.ended; ++block) {
        const int tiles = Mine::tiles(block), expert = groups.expert[Mine::group(block)];
        const u8* from = region + (u64(layer) * model::EXPERTS + expert) * experts::BYTES + BEFORE +
                         u64(Mine::tile(block) + t) * experts::bytes<WHICH>(Mine::CHUNKS);
        for (int chunk = 0; chunk < Mine::CHUNKS && !producer.ended; chunk += STEP) {
            const u32 bytes = u32(experts::bytes<WHICH>(smaller(STEP, Mine::CHUNKS - chunk)));
            producer.fill_slot(bytes * u32(tiles), [&] {
                if (t < tiles) producer.copy_part(u32(t * experts::bytes<WHICH>(STEP)), from + experts::bytes<WHICH>(chunk), bytes);
            });
        }
    }
}

// One block of rows for all tokens of its group: `finish` gets (pair, token within the group, two sums).
template <int WHICH, class Operand16, class Finish>
DEVICE void block_product(Core& core, int block, int tokens, const Operand16& operand, const Finish& finish) {
    using Mine = Share<WHICH>;
    constexpr int T = BLOCK_TILES, STEP = Mine::STEP;
    float sums[T][MOST_TILES][4] = {};
    const int lane = int(core.lane);
#pragma unroll 1
    for (int first = 0; first < Mine::CHUNKS; first += STEP) {
        const int last = smaller(first + STEP, Mine::CHUNKS);
        core.wait_full();
        const u8* slot = core.shared.ring[core.cursor.slot];
#pragma unroll 1
        for (int c = SlotPart<T>::mine(core.warp, first); c < last; c += WARPS) {
            uint4 b[T];
#pragma unroll
            for (int t = 0; t < T; ++t) b[t] = shares::weights_of<Mine::STORAGE, T, true>(slot, c - first, t, core.lane);
#pragma unroll
            for (int m = 0; m < MOST_TILES; ++m) {
                if (m * TILE_TOKENS >= tokens) break;
                const uint4* from = reinterpret_cast<const uint4*>(operand(m) + size_t(c) * TILE_HALVES) + lane;
                const Operand low = __ldcg(from), high = __ldcg(from + shares::UNIT_HALVES / 8);
#pragma unroll
                for (int t = 0; t < T; ++t) mma_weights(sums[t][m], low, b[t].x, b[t].y);
#pragma unroll
                for (int t = 0; t < T; ++t) mma_weights(sums[t][m], high, b[t].z, b[t].w);
            }
        }
        u32 products = 0;  // of which each waits for its weights
#pragma unroll
        for (int t = 0; t < T; ++t) products |= __float_as_uint(sums[t][0][0]);
        core.free_slot_after(products);
    }
    const int first_pair = Mine::tile(block) * 4;
    shares::add_up<T>(core, sums, tokens, Mine::tiles(block),
        [&](int pair, int token, float2 sum) { finish(first_pair + pair, token, sum); });
}

// A block of warps a token: all scores from the residual stream in FP32, and whom they choose.
template <class Way>
DEVICE void choose(Core& core, const Chunk& chunk, int layer, const u16* norm) {
    constexpr int QUADS = model::HIDDEN / 4, EACH = ceil_div(QUADS, 32);
    const Params& p = core.params;
    float* scores = core.shared.routing.scores;
    for (int token = int(core.place.sm); token < chunk.tokens; token += model::SMS) {
        const float4* stream = reinterpret_cast<const float4*>(p.stream + size_t(token) * model::HIDDEN);
        float4 x[EACH];
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int q = i * 32 + int(core.lane);
            x[i] = q < QUADS ? __ldcg(stream + q) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            squares += dot_self(x[i]);
            if (q < QUADS) scale_by(x[i], __ldg(reinterpret_cast<const uint2*>(norm) + q));
        }
        const float scale = rsqrtf(warp_sum(squares) * (1.0f / float(model::HIDDEN)) + model::NORM_EPS);
#pragma unroll 2
        for (int expert = int(core.warp); expert < model::EXPERTS; expert += WARPS) {
            const uint2* row = reinterpret_cast<const uint2*>(router::row_of(p, layer, expert));
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < EACH; ++i) {
                const int q = i * 32 + int(core.lane);
                if (q < QUADS) sum += router::dot(x[i], __ldg(row + q));
            }
            sum = warp_sum(sum) * scale;
            if constexpr (experts::BIASED) sum += experts::router_bias(p, layer, expert);
            if (core.lane == 0) scores[expert] = sum;
        }
        consumers_sync();
        if (core.warp == 0) {
            int* chosen = core.shared.routing.met.chosen;
            const float weight = router::choose(router::Keys::of_scores(scores, core.lane), core.lane, chosen, [] { return 1.0f; });
            const int slot = int(core.lane);
            if (slot < model::CHOSEN) *route<Way>(p, token * model::CHOSEN + slot) = make_float2(__int_as_float(chosen[slot]), weight);
        }
        consumers_sync();
    }
}

// The routes of all tokens by expert, in their order. The same on every SM.
DEVICE void group(Core& core, const Chunk& chunk) {
    Groups& groups = groups_of(core.shared);
    u16* met = reinterpret_cast<u16*>(&groups + 1);
    const int routes = chunk.tokens * model::CHOSEN;
    for (int i = int(threadIdx.x); i < routes; i += CONSUMERS) met[i] = u16(__float_as_int(__ldcg(&route<ByShares>(core.params, i)->x)));
    consumers_sync();
    // `first` and `expert` hold, until they are joined, how many routes each expert has
    for (int e = int(threadIdx.x); e < model::EXPERTS; e += CONSUMERS) {
        int count = 0;
        for (int i = 0; i < routes; ++i) count += met[i] == e;
        groups.first[e] = u16(count);
    }
    consumers_sync();
    if (threadIdx.x == 0) {
        int count = 0, first = 0, tile = 0;
        for (int e = 0; e < model::EXPERTS; ++e) {
            const int size = groups.first[e];
            if (!size) continue;
            groups.expert[count] = u16(e);
            groups.first[count] = u16(first);  // count <= e: whoever stood there has been seen
            groups.tile[count] = u16(tile);
            first += size;
            tile += ceil_div(size, TILE_TOKENS);
            ++count;
        }
        groups.first[count] = u16(first);
        groups.count = count;
    }
    consumers_sync();
    for (int k = int(threadIdx.x); k < groups.count; k += CONSUMERS) {
        int at = groups.first[k];
        const int expert = groups.expert[k];
        for (int i = 0; i < routes; ++i) {
            if (met[i] == expert) groups.routes[at++] = u16(i);
        }
    }
    consumers_sync();
    barrier_arrive(&core.shared.routing.grouped);
}

// Each group's tokens side by side.
DEVICE void gather(Core& core) {
    constexpr int WORDS = HIDDEN_CHUNKS * CHUNK_COLUMNS / 2;
    const Groups& groups = groups_of(core.shared);
    const Params& p = core.params;
    u16* from = ByShares::operand<model::HIDDEN>(p.operand_hidden);
    for (int k = int(core.place.sm); k < groups.count; k += model::SMS) {
        for (int e = int(threadIdx.x); e < groups.size(k) * WORDS; e += CONSUMERS) {
            const int row = e / WORDS, column = e % WORDS * 2, token = groups.routes[groups.first[k] + row] / model::CHOSEN;
            const u32* word = shares::operand_word(from, column / CHUNK_COLUMNS, column % CHUNK_COLUMNS, token);
            *word_of(tokens_operand(p, groups.tile[k] + row / TILE_TOKENS), column, row % TILE_TOKENS) = __ldcg(word);
        }
    }
}

DEVICE void gate_up(Core& core, int layer) {
    using Mine = Share<GATE_UP>;
    core.place.phase = GATE_UP;
    const Groups& groups = groups_of(core.shared);
    const Params& p = core.params;
    const Mine mine(groups, int(core.place.sm));
#pragma unroll 1
    for (int block = mine.first; block < mine.last; ++block) {
        const int k = Mine::group(block), tile = groups.tile[k];
        block_product<GATE_UP>(core, block, groups.size(k), [&](int m) { return tokens_operand(p, tile + m); },
            [&](int f, int token, float2 sum) {
                if (f >= experts::COLUMNS) return;
                if constexpr (experts::BIASED) {
                    const float2 bias = experts::gate_up_bias_of(p, layer, groups.expert[k], f);
                    sum = make_float2(sum.x + bias.x, sum.y + bias.y);
                }
                u32* word = word_of(gated_operand(p, tile + token / TILE_TOKENS), f & ~1, token % TILE_TOKENS);
                reinterpret_cast<u16*>(word)[f & 1] = u16(split_weights_type(swiglu(sum.x, sum.y), 0.0f).high);
            });
    }
}

DEVICE void down(Core& core) {
    using Mine = Share<DOWN>;
    core.place.phase = DOWN;
    const Groups& groups = groups_of(core.shared);
    const Params& p = core.params;
    const Mine mine(groups, int(core.place.sm));
#pragma unroll 1
    for (int block = mine.first; block < mine.last; ++block) {
        const int k = Mine::group(block), tile = groups.tile[k];
        block_product<DOWN>(core, block, groups.size(k), [&](int m) { return gated_operand(p, tile + m); },
            [&](int pair, int token, float2 sum) {
                if (2 * pair >= model::HIDDEN) return;
                float* to = slab<ByShares>(p, groups.routes[groups.first[k] + token]) + 2 * pair;
                *reinterpret_cast<float2*>(to) = sum;
            });
    }
}

// What the experts add to each token, in the order of slots; of several GPUs the first one adds their biases.
template <class Way>
DEVICE void join(Core& core, const Chunk& chunk, int layer) {
    constexpr int QUADS = model::HIDDEN / 4;
    const Params& p = core.params;
    const prefill::OutputStore<Way> outputs{core, prefill::outputs_offset<Way>(false, layer)};
    for (int i = int(core.place.sm) * CONSUMERS + int(threadIdx.x); i < chunk.tokens * QUADS; i += model::SMS * CONSUMERS) {
        const int token = i / QUADS, quad = i % QUADS;
        float2 met[model::CHOSEN];
        float4 out[model::CHOSEN], sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int slot = 0; slot < model::CHOSEN; ++slot) {  // all before any is waited for
            met[slot] = __ldcg(route<Way>(p, token * model::CHOSEN + slot));
            out[slot] = __ldcg(reinterpret_cast<const float4*>(slab<Way>(p, token * model::CHOSEN + slot)) + quad);
        }
#pragma unroll
        for (int slot = 0; slot < model::CHOSEN; ++slot) {
            if constexpr (experts::BIASED) {
                if (core.whole_lane() == 0) {
                    const int expert = __float_as_int(met[slot].x);
                    const float2 a = experts::down_bias_of(p, layer, expert, 4 * quad), b = experts::down_bias_of(p, layer, expert, 4 * quad + 2);
                    prefill::add(out[slot], make_float4(a.x, a.y, b.x, b.y));
                }
            }
            prefill::add(sum, out[slot], met[slot].y);
        }
        outputs.store_row(4 * quad, token, make_uint2(split_weights_type(sum.x, sum.y).high, split_weights_type(sum.z, sum.w).high));
    }
}

// A pass over a chunk of tokens that meet experts.
struct ByExperts : ByShares {
    u32& copied;  // parity of the barrier of that name

    DEVICE void mlp(int layer) {
        choose<ByShares>(core, chunk, layer, core.params.norms + size_t(2 * layer + 1) * model::HIDDEN);
        begin_phase();
        group(core, chunk);
        gather(core);
        begin_phase();
        expert_prefill::gate_up(core, layer);
        begin_phase();
        expert_prefill::down(core);
        begin_phase();
        barrier_wait(&core.shared.routing.copied, copied, core.params, core.place, WAIT_ROUTE);  // before its place is used again
        copied ^= 1u;
        join<ByShares>(core, chunk, layer);
    }
};

}  // namespace expert_prefill
