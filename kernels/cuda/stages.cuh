// The ring of a long prompt: a few large stages in place of the slots of decode, in the same memory and that of its vectors. A
// stage holds what one step of a tile needs, activations and weights, or blocks of the cache. The warps that do not compute fill
// them (tile_producer.cuh).
#pragma once
#include "core.cuh"

namespace tiles {

// A tile is TOKENS tokens by up to MOST_ROWS weight rows; a step of it is two chunks of columns.
constexpr int TOKENS = 128, MOST_ROWS = 256, FEW_ROWS = 64;
constexpr int CHUNK = model::PREFILL_CHUNK;
constexpr int CHUNK_TILES = CHUNK / TOKENS;
static_assert(CHUNK % TOKENS == 0, "whole tiles");
constexpr int STEP_COLUMNS = 2 * CHUNK_COLUMNS;
constexpr int TOKEN_BYTES = STEP_COLUMNS * 2;
constexpr int ACTIVATION_BYTES = TOKENS * TOKEN_BYTES;
constexpr int STAGE_BYTES = ACTIVATION_BYTES + MOST_ROWS * TOKEN_BYTES;
// Whether this model's prompts go by tiles at all: Layout.prefills_by_tiles. If not, no stage is ever used.
constexpr bool ANY = model::PREFILL_BY_TILES;
constexpr int FITTING = (SLOTS * SLOT_BYTES + SCRATCH_BYTES - NORM_BYTES) / STAGE_BYTES;
constexpr int STAGES = ANY ? smaller(MOST_STAGES, FITTING) : 1;
static_assert(!ANY || STAGES >= 2, "one stage is filled while another one is used");
constexpr int PRODUCER_WARPS = THREADS / 32 - WARPS;
static_assert(TOKEN_BYTES == 128, "a row of activations is a row of the 128-byte swizzle");

DEVICE u8* stage_memory(Shared& shared, u32 stage) { return &shared.ring[0][0] + stage * STAGE_BYTES; }

// The consumers' end.
class Stages {
public:
    DEVICE explicit Stages(Core& core) : core_(core) {}

    // Waits for the next stage; what the copy engine wrote there is visible after it. Should it never come, the producer
    // finds out: it waits for the stage to be given back.
    DEVICE u32 next() {
        u64* full = &core_.shared.stage_full[at_.slot];
        QuietSpin spin(core_.params);
        bool here = barrier_passed(full, at_.round);
        while (!__all_sync(ALL_LANES, here)) here = here || barrier_passed(full, at_.round) || spin.hopeless();
        return at_.slot;
    }
    // The warp has finished with the stage before the one that is next; `loaded` depends on all that it loaded from it.
    DEVICE void give_back(u32 loaded = 0) {
        __syncwarp();
        const u32 before = at_.slot ? at_.slot - 1 : STAGES - 1;
        if (core_.lane == 0) barrier_arrive_after(&core_.shared.stage_empty[before], loaded, core_.params.zero);
    }
    DEVICE void advance() { at_.advance(STAGES); }
    // All SMs have written what the next phase reads: the producer may copy it. It reads as the copy engine does, which
    // the fence of every writer before the barrier and the producer's own put after the writes.
    template <bool TELLS = false>
    DEVICE void begin_phase() {
        fence_copies();
        core_.template grid_barrier<TELLS>();
        if (threadIdx.x == 0) barrier_arrive(&core_.shared.phase_begun);
    }

private:
    Core& core_;
    Cursor at_;
};

DEVICE constexpr int lane_tiles(int phase) {
    return phase == QKV ? QKV_LANE_TILES : phase == GATE_UP ? GATE_UP_LANE_TILES : OUT_LANE_TILES;
}
DEVICE constexpr int steps_of(int columns) { return ceil_div(columns, STEP_COLUMNS); }

// Whether few tokens' tiles of a phase may have parts of its columns, which the norm behind it adds up.
constexpr int MOST_PARTS = 8;
DEVICE constexpr bool in_parts(int phase) {
    const bool added_up = phase == ATTN_OUT ? !model::OUT_BIAS : phase == DOWN && !experts::ANY;
    return added_up && model::CUTS_COLUMNS;
}
// A part's output lies where those of so many tokens further would.
DEVICE constexpr int part_tokens(int parts) { return CHUNK / parts; }

struct Steps {
    int first, end;
};

// How a phase's products are cut into tiles: so many rows by TOKENS tokens, of all columns or of one of `parts` parts of them.
template <int PHASE>
struct Split {
    static constexpr bool IN_PARTS = in_parts(PHASE);
    static constexpr int STEPS = steps_of(Matrix<PHASE>::COLUMNS);
    int rows, parts, row_tiles, token_tiles, count;  // row_tiles: of one lane

    DEVICE static constexpr Split of(int tokens, int rows, int parts = 1) {
        const int row_tiles = ceil_div(lane_tiles(PHASE) * TILE_ROWS, rows), token_tiles = ceil_div(tokens, TOKENS);
        return {rows, parts, row_tiles, token_tiles, model::LANES * row_tiles * token_tiles * parts};
    }
    // A step costs about as much as it reads, storing a row's sums as much as reading twelve; and all SMs wait for the ones with
    // one tile more.
    DEVICE constexpr int cost() const {
        const int step = TOKENS + rows;
        return ceil_div(count, model::SMS) * (IN_PARTS ? step * ceil_div(STEPS, parts) + 12 * rows : step);
    }
    DEVICE constexpr Split cheaper(const Split& other) const { return other.cost() < cost() ? other : *this; }
    DEVICE static constexpr Split cheapest(int tokens, int rows) {
        Split best = of(tokens, rows);
        for (int parts = 2; IN_PARTS && parts <= smaller(MOST_PARTS, STEPS) && tokens <= part_tokens(parts); parts *= 2) {
            best = best.cheaper(of(tokens, rows, parts));
        }
        return best;
    }

    // Tiles next to each other have the same weights: SMs that run side by side find them in the L2.
    DEVICE int token_tile(int tile) const { return tile % token_tiles; }
    DEVICE int part(int tile) const { return IN_PARTS ? tile / token_tiles % parts : 0; }
    DEVICE int lane(int tile) const { return rows_of(tile) / row_tiles; }
    DEVICE int row_tile(int tile) const { return rows_of(tile) % row_tiles; }
    DEVICE Steps steps(int tile) const {
        if constexpr (IN_PARTS) return {STEPS * part(tile) / parts, STEPS * (part(tile) + 1) / parts};
        else return {0, STEPS};
    }

private:
    DEVICE int rows_of(int tile) const { return tile / token_tiles / (IN_PARTS ? parts : 1); }
};

// The rows of a tile that suit a number of tokens: 256, 192, 128, or for gate_up 224 too. A tile of 224 ends with half a slice
// (tiles.cuh), which the finish of gate_up alone can take.
template <int PHASE>
DEVICE constexpr int best_rows(int tokens) {
    const int choices[] = {MOST_ROWS - 64, 128, MOST_ROWS - 32};
    auto best = Split<PHASE>::cheapest(tokens, MOST_ROWS);
    for (int i = 0; i < (PHASE == GATE_UP ? 3 : 2); ++i) best = best.cheaper(Split<PHASE>::cheapest(tokens, choices[i]));
    return best.rows;
}

// Each width is code of its own, so a matrix has three of them: for whole chunks of the prompt, for a quarter of one, and the
// least.
template <int PHASE>
struct Widths {
    static constexpr int WHOLE = best_rows<PHASE>(CHUNK), QUARTER = best_rows<PHASE>(smaller(CHUNK, 512));

    // The one that costs least for a number of tokens.
    DEVICE static constexpr Split<PHASE> best(int tokens) {
        auto least = Split<PHASE>::cheapest(tokens, WHOLE);
        least = least.cheaper(Split<PHASE>::cheapest(tokens, FEW_ROWS));
        return least.cheaper(Split<PHASE>::cheapest(tokens, QUARTER));
    }
};

// Found when the kernel is compiled: to compare them takes longer than a small model's norm.
template <int PHASE>
struct BestSplits {
    Split<PHASE> of[CHUNK_TILES + 1];  // so many tiles of tokens

    DEVICE constexpr BestSplits() : of() {
        for (int tiles = 1; tiles <= CHUNK_TILES; ++tiles) of[tiles] = Widths<PHASE>::best(tiles * TOKENS);
    }
};
template <int PHASE>
__constant__ const BestSplits<PHASE> BEST_SPLITS;

template <int PHASE>
DEVICE const Split<PHASE>& best_split(int tokens) {
    return BEST_SPLITS<PHASE>.of[ceil_div(tokens, TOKENS)];
}

}  // namespace tiles
