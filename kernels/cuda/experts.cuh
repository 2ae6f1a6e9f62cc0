// Experts: which of them a token meets is known only after the router, where they lie is not: behind the tapes, each at its
// own address (engine/backends/cuda/expert_region.py). A token's experts together are one tall matrix of gates and ups and one
// wide matrix of downs. Who computes which tile of these is dealt out before anything is known; the router's answer is
// nothing but an address.
#pragma once
#include "units.cuh"

namespace experts {

constexpr bool ANY = model::EXPERTS > 0, BIASED = model::EXPERT_BIASES, FOLDED = model::FOLDS_ROUTER;
constexpr int ROWS = larger(1, ceil_div(model::EXPERTS, model::SMS));  // of the router on one SM, at most
constexpr int COLUMNS = model::FFN / model::CHOSEN;         // of one expert
constexpr int GATE_UP_TILES = 2 * COLUMNS / TILE_ROWS, DOWN_TILES = ceil_div(model::HIDDEN, TILE_ROWS);
constexpr int GATE_UP_CHUNKS = ceil_div(model::HIDDEN, CHUNK_COLUMNS), DOWN_CHUNKS = COLUMNS / CHUNK_COLUMNS;
static_assert(!ANY || (model::LANES == 1 && COLUMNS % CHUNK_COLUMNS == 0), "whole chunks of an expert's columns");
static_assert(model::CHOSEN <= 32, "a lane a slot");

// The format of GATE_UP or DOWN, and the bytes of `chunks` chunks of a tile, of whole runs but for a tile's last.
template <int WHICH>
constexpr int STORAGE = only_storage(WHICH);
template <int WHICH>
DEVICE constexpr int bytes(int chunks) {
    return group_bytes(STORAGE<WHICH>, 1, chunks);
}
static_assert(!ANY || (!storage_varies(GATE_UP) && !storage_varies(DOWN)), "experts of all layers lie at like distances");
static_assert(!ANY || DOWN_CHUNKS % unit_form(STORAGE<DOWN>).run == 0, "an expert's columns end with a run");

constexpr int GATE_UP_TILE = bytes<GATE_UP>(GATE_UP_CHUNKS), DOWN_TILE = bytes<DOWN>(DOWN_CHUNKS);
constexpr u64 GATE_UP_BYTES = u64(GATE_UP_TILES) * GATE_UP_TILE;
constexpr u64 BYTES = GATE_UP_BYTES + u64(DOWN_TILES) * DOWN_TILE;

// Matrices whose tiles lie each by itself, in memory and so in a ring slot too.
DEVICE constexpr bool apart(int phase) { return ANY && (phase == GATE_UP || phase == DOWN); }

// Of a long prompt's chunk (expert_tiles.cuh): each expert's tokens in tiles, those of the first expert first.
constexpr bool BY_TILES = ANY && model::PREFILL_BY_TILES;
constexpr int TILE_TOKENS = 128;
constexpr int MOST_TILES = BY_TILES ? model::EXPERTS + model::PREFILL_CHUNK * model::CHOSEN / TILE_TOKENS : 1;
struct Tiles {
    u16 expert[MOST_TILES];                     // whose tokens a tile has
    u16 first[BY_TILES ? model::EXPERTS + 1 : 1];  // tile of each expert, and how many there are
    u16 tokens[BY_TILES ? model::EXPERTS : 1];     // of each expert
};

// Decode, FOLDED: what an SM's consumers and the warp that routes tell each other (folded_router.cuh).
struct RoutingInDecode {
    u64 scored;   // a barrier: of the SM's scores each thread has its part in `sums`
    u64 squared;  // the warps' sums of squares of the vector after attention are in `squares`
    u64 weighed;  // `weights` are known, and `sums` and `squares` needed no more: also on SMs that meet nobody
    float sums[ROWS][WARPS * 32];
    float squares[WARPS];
};
constexpr int DECODE_ROWS = ceil_div(int(sizeof(RoutingInDecode)), int(sizeof(float)) * WARPS);
// Whom a token meets, and how much each counts.
struct Met {
    int chosen[model::CHOSEN];
    float weights[model::CHOSEN];
};
// Who arrives at `known`: of one request each lane of the warp that chooses, of several one thread, once all have met.
constexpr int CHOOSERS = model::REQUESTS == 1 ? 32 : 1;
// What is found out about the layer in hand.
struct Routing {
    u64 known;    // a barrier: the producer waits for it
    u64 taken;    // decode of one request: the producer needs no more of who is met
    u64 grouped;  // prefill: it is known whom the tokens of a chunk meet,
    u64 copied;   // and the producer needs no more of that
    u64 tiled;    // long prompts: `tiles` are known
    alignas(FOLDED ? alignof(RoutingInDecode) : 4) float sums[FOLDED ? DECODE_ROWS : ROWS][WARPS];  // decode; FOLDED: RoutingInDecode
    Met met;
    union {  // prefill
        float scores[larger(1, model::EXPERTS)];  // of a token
        int counts[larger(1, model::EXPERTS)];    // of tokens that meet an expert
    };
    Tiles tiles;

    DEVICE RoutingInDecode& decode() { return reinterpret_cast<RoutingInDecode&>(sums); }
};

// Of several requests gate_up may read each expert once that any of them meets (distinct_experts.cuh): those of all are one tall matrix,
// which is shared out anew in each layer. There a row may be in a group of another size than alone; so all groups that there are alone
// must add up in the same order: those of more than four tiles do, those of three and four, and those of one and two.
// Straight from the slots those of four and fewer do so as their slots' runs lie.
DEVICE constexpr int largest_alike(int tiles) {
    if (tiles > HALF_TILES) return MAX_TILES;
    return from_slots(STORAGE<GATE_UP>) ? tiles : tiles > 2 ? HALF_TILES : 2;
}
DEVICE constexpr int common_group() {
    int common = 0;  // none
    for (int t = 1; t <= MAX_TILES; ++t) {
        if (!(group_sizes(GATE_UP) >> t & 1)) continue;
        if (common && common != largest_alike(t)) return 0;
        common = largest_alike(t);
    }
    return common;
}
constexpr int TILES_A_GROUP = common_group();  // tiles of a group of the distinct experts' matrix, at most
constexpr int VECTOR_CHUNKS = round_up(GATE_UP_CHUNKS, by_warpgroups(STORAGE<GATE_UP>) ? 2 * QUAD_CHUNKS : 1);
constexpr bool VECTORS_FIT = ANY && model::REQUESTS > 1 && model::REQUESTS * VECTOR_CHUNKS <= MOST_EXPERT_VECTOR_CHUNKS;
constexpr bool NO_SM_GOES_WITHOUT = model::CHOSEN * GATE_UP_TILES >= model::SMS;
constexpr bool ONCE = VECTORS_FIT && NO_SM_GOES_WITHOUT && TILES_A_GROUP && chunks_a_slot(larger(1, TILES_A_GROUP), STORAGE<GATE_UP>, true) > 0;
// Those of a layer, and what this SM has of their matrix.
struct Distinct {
    static constexpr int MOST = ANY ? model::REQUESTS * model::CHOSEN : 1;
    TileRange share;
    Groups groups;
    int experts[MOST];  // in ascending order
};

// What decode finds out about each request, and the parts of its SM's scores. Of one it lies in `Routing`.
template <bool SEVERAL>
struct Routes {
    DEVICE static Met& met(Routing& routing, int) { return routing.met; }
    DEVICE static float* sums(Routing& routing, int, int row) { return routing.sums[row]; }
};
template <>
struct Routes<true> {
    struct Route {
        Met met;
        float sums[ROWS][FOLDED ? WARPS * 32 : WARPS];
    };
    Route of[ANY ? model::REQUESTS : 1];
    Distinct distinct;

    DEVICE Met& met(Routing&, int request) { return of[request].met; }
    DEVICE float* sums(Routing&, int request, int row) { return of[request].sums[row]; }
};

// The copies that fill one ring slot with chunks [chunk, chunk + chunks) of `tiles` tiles from `tile` on of GATE_UP or DOWN.
// In the slot tiles lie `step` chunks apart.
template <int WHICH>
struct SlotCopies {
    const u8* region;
    const int* chosen;
    int layer, tile, tiles, chunk, chunks, step;

    // Those of the `t`th tile. `copy` gets the offset in the slot, the address, and the bytes.
    template <class Copy>
    DEVICE void of_tile(int t, const Copy& copy) const {
        if constexpr (WHICH == GATE_UP) {
            const int slot = (tile + t) / GATE_UP_TILES, row = (tile + t) % GATE_UP_TILES;
            copy(t * bytes<WHICH>(step), expert(slot) + row * GATE_UP_TILE + bytes<WHICH>(chunk), bytes<WHICH>(chunks));
        } else {  // columns of one expert end where those of the next begin
            for (int first = chunk; first < chunk + chunks;) {
                const int slot = first / DOWN_CHUNKS, column = first % DOWN_CHUNKS;
                const int count = smaller(chunk + chunks - first, DOWN_CHUNKS - column);
                const u8* from = expert(slot) + GATE_UP_BYTES + (tile + t) * DOWN_TILE + bytes<WHICH>(column);
                copy(t * bytes<WHICH>(step) + bytes<WHICH>(first - chunk), from, bytes<WHICH>(count));
                first += count;
            }
        }
    }

private:
    DEVICE const u8* expert(int slot) const { return region + (u64(layer) * model::EXPERTS + chosen[slot]) * BYTES; }
};

}  // namespace experts
