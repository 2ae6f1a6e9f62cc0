// Which format each matrix has on the tape, and how many bytes its runs take (engine/backends/cuda/units.py).
#pragma once
#include "model.h"
#include "unit_forms.cuh"

constexpr int SLOT_UNITS = model::SLOT_UNITS;
constexpr int SLOT_BYTES = SLOT_UNITS * UNIT_BYTES;

// Bit s: the matrix has Storage s in some layer.
DEVICE constexpr int storages(int phase) { return int(model::STORAGES >> 8 * phase & 0xff); }
constexpr int ALL_STORAGES = storages(QKV) | storages(ATTN_OUT) | storages(GATE_UP) | storages(DOWN) | storages(HEAD);

// Whether warpgroups multiply a format straight from the slots (slot_runs.cuh). A vector's warps have its runs whole then, but not with
// POST_NORMS (staged_by_quads).
DEVICE constexpr bool from_slots(int storage) { return storage == STORAGE_FP8_BLOCK && !model::POST_NORMS; }

// Whether they multiply it in eight bits, with the vector's digits (digits.cuh), else in sixteen.
DEVICE constexpr bool by_digits(int storage) { return storage == STORAGE_MXFP4 || from_slots(storage); }

// How many chunks of a vector share a size then.
DEVICE constexpr int chunks_a_size(int storage) { return from_slots(storage) ? QUAD_CHUNKS : 1; }

// How decode multiplies in a format: packed ones by single warps, or by warpgroups in one of three ways.
enum class Way { SIXTEEN_BITS, BY_WARPS, BY_QUADS, BY_DIGITS, FROM_SLOTS };
DEVICE constexpr Way way_of(int storage) {
    if (!is_packed(storage)) return Way::SIXTEEN_BITS;
    if (!by_warpgroups(storage)) return Way::BY_WARPS;
    return from_slots(storage) ? Way::FROM_SLOTS : by_digits(storage) ? Way::BY_DIGITS : Way::BY_QUADS;
}

// A format as a constant, for what is compiled once for each.
template <int S>
struct Stored {
    static constexpr int STORAGE = S;
};

// Calls `visit` with `storage`, which is one of `POSSIBLE`, as a constant.
template <int POSSIBLE, int S = 0, class Visit>
DEVICE void visit_storage(int storage, const Visit& visit) {
    if constexpr (POSSIBLE >> S == 1) {
        visit(Stored<S>());
    } else if constexpr (POSSIBLE >> S & 1) {
        if (storage == S) {
            visit(Stored<S>());
        } else {
            visit_storage<POSSIBLE, S + 1>(storage, visit);
        }
    } else {
        visit_storage<POSSIBLE, S + 1>(storage, visit);
    }
}

// Of each matrix of each layer. Only models with packed weights have the table.
#ifdef MODEL_LAYER_STORAGES
__constant__ const u8 LAYER_STORAGES[] = MODEL_LAYER_STORAGES;
DEVICE int storage_of(int layer, int phase) { return phase == HEAD ? model::HEAD_STORAGE : LAYER_STORAGES[layer * HEAD + phase]; }
#else
DEVICE constexpr int storage_of(int, int) { return STORAGE_F16; }
#endif

// The format of a matrix that has the same one in all layers.
DEVICE constexpr int only_storage(int phase) {
    int storage = 0;
    while (storages(phase) >> (storage + 1)) ++storage;
    return storage;
}

// Whether any matrix is multiplied by warpgroups, in quads of chunks.
DEVICE constexpr bool any_by_warpgroups() {
    for (int s = 0; ALL_STORAGES >> s; ++s) {
        if ((ALL_STORAGES >> s & 1) && by_warpgroups(s)) return true;
    }
    return false;
}

// Whether any packed matrix is multiplied by single warps.
DEVICE constexpr bool any_by_warps() {
    for (int s = 0; ALL_STORAGES >> s; ++s) {
        if ((ALL_STORAGES >> s & 1) && is_packed(s) && !by_warpgroups(s)) return true;
    }
    return false;
}

// The fewest of any format that is multiplied with digits. 0: none is.
DEVICE constexpr int fewest_chunks_a_size() {
    int fewest = 0;
    for (int s = 0; ALL_STORAGES >> s; ++s) {
        if ((ALL_STORAGES >> s & 1) && by_digits(s) && (!fewest || chunks_a_size(s) < fewest)) fewest = chunks_a_size(s);
    }
    return fewest;
}

DEVICE constexpr bool storage_varies(int phase) { return (storages(phase) & (storages(phase) - 1)) != 0; }

// Calls `visit` with the format that a matrix has in a layer.
template <int PHASE, class Visit>
DEVICE void with_storage(int layer, const Visit& visit) {
    if constexpr (storage_varies(PHASE)) {
        visit_storage<storages(PHASE)>(storage_of(layer, PHASE), visit);
    } else {
        visit_storage<storages(PHASE)>(0, visit);
    }
}

// Bit t: some SM has a group of t tiles of this matrix.
DEVICE constexpr int group_sizes(int phase) {
    constexpr int sizes[] = MODEL_GROUP_SIZES;
    return sizes[phase];
}

// The first SM that has no tiles of this matrix; SMS if all have some.
DEVICE constexpr int first_without_tiles(int phase) {
    constexpr int sms[] = MODEL_FIRST_WITHOUT_TILES;
    return sms[phase];
}

// Shares of attn_out and down may be an odd number of halves of tiles, OUT_HALVES; 0: they are whole tiles. Such a share is one group, of
// which the last tile has the rows of a half, and SM i's begins with half i * OUT_HALVES (engine/backends/cuda/tape.py).
constexpr int HALF_PAIRS = HALF_ROWS / 2;
static_assert(model::OUT_HALVES <= 2 * MAX_TILES, "one group");
DEVICE constexpr int halves_of(int phase) { return phase == ATTN_OUT || phase == DOWN ? model::OUT_HALVES : 0; }
// Rows lie as in the tiles of the matrix, and every other share begins in the middle of one: its places of pieces are those of a whole
// tile (piece_place) under an exclusive or with this many bytes.
DEVICE constexpr u32 half_turn(int halves, u32 sm) { return halves ? (sm & 1) * 32 : 0; }
// Pairs of rows before tile `first` of a matrix, or before the half that a share begins with, and of a group of `tiles` tiles.
DEVICE constexpr int pairs_before(int phase, int first) { return first * (halves_of(phase) ? HALF_PAIRS : 2 * HALF_PAIRS); }
DEVICE constexpr int pairs_of_group(int phase, int tiles) {
    return halves_of(phase) ? (tiles ? halves_of(phase) * HALF_PAIRS : 0) : tiles * 2 * HALF_PAIRS;
}
// From chunk to chunk of a group in sixteen bits.
DEVICE constexpr int chunk_bytes(int halves, int tiles) { return halves ? halves * HALF_BYTES : tiles * UNIT_BYTES; }

// Whether no SM has a second group of this matrix: those of a share that is more than one have half of the most tiles at least (Groups).
DEVICE constexpr bool one_group(int phase) { return halves_of(phase) || group_sizes(phase) >> (MAX_TILES + 1) / 2 == 0; }

// Chunks of a 16-bit group that a slot holds: all that fit if a warp can hold its part of them, else as many for each warp.
DEVICE constexpr int most_chunks(int tiles) {
    const int fit = SLOT_UNITS / tiles;
    return fit < WARPS || ceil_div(fit, WARPS) * tiles <= MAX_TILES ? fit : fit - fit % WARPS;
}
DEVICE constexpr bool any_in_uneven_parts() {
    for (int phase = QKV; phase <= HEAD; ++phase) {
        for (int t = 1; t <= MAX_TILES; ++t) {
            if ((group_sizes(phase) >> t & 1) && most_chunks(t) > WARPS && most_chunks(t) % WARPS) return true;
        }
    }
    return false;
}

// Of a row: numbers that share one lie side by side.
DEVICE constexpr int scales_of_a_chunk(int storage) { return storage == STORAGE_Q6_K ? 2 : 1; }

// Chunks of a group of `tiles` tiles that a slot holds: as many for each warp as for every other where that can be, or whole
// turns (quads.cuh). Tiles lie side by side, or each apart, as those of experts do.
DEVICE constexpr int chunks_a_slot(int tiles, int storage = STORAGE_F16, bool apart = false, int slot_bytes = SLOT_BYTES) {
    if (!is_packed(storage)) {
        if constexpr (any_in_uneven_parts()) return most_chunks(tiles);
        const int fit = SLOT_UNITS / tiles;
        return fit < WARPS ? fit : fit - fit % WARPS;
    }
    const int fit = slot_bytes / (apart ? tiles * run_bytes(storage, 1) : run_bytes(storage, tiles)) * unit_form(storage).run;
    if (by_warpgroups(storage)) {
        const int turn = tiles > HALF_TILES ? QUAD_CHUNKS : 2 * QUAD_CHUNKS;
        return fit - fit % turn;
    }
    return smaller(fit < WARPS ? fit : fit - fit % WARPS, 8 / scales_of_a_chunk(storage) * WARPS);
}

// The same of a group of halves, in sixteen bits: more, if all warps can hold as many more (half_chunks_a_slot in units.py).
DEVICE constexpr int chunks_a_slot_of_halves(int halves) {
    const int tiles = ceil_div(halves, 2), fit = SLOT_BYTES / (halves * HALF_BYTES) / WARPS * WARPS;
    return larger(chunks_a_slot(tiles), smaller(fit, MAX_TILES / tiles * WARPS));
}

// Of a group of a matrix that lies on the tape.
DEVICE constexpr int group_bytes_of(int phase, int storage, int tiles, int chunks) {
    return halves_of(phase) ? chunks * chunk_bytes(halves_of(phase), tiles) : group_bytes(storage, tiles, chunks);
}
DEVICE constexpr int group_chunks_a_slot(int halves, int storage, int tiles) {
    return halves ? chunks_a_slot_of_halves(halves) : chunks_a_slot(tiles, storage);
}

// The same for groups of PHASE: of the few sizes that they have, each one's is known, and nobody divides.
template <int PHASE, int STORAGE, bool APART, int T = MAX_TILES>
DEVICE int chunks_a_slot_of(int tiles) {
    if constexpr (T == 1) {
        return chunks_a_slot(1, STORAGE, APART);
    } else if constexpr ((group_sizes(PHASE) >> T & 1) == 0) {
        return chunks_a_slot_of<PHASE, STORAGE, APART, T - 1>(tiles);
    } else if constexpr ((group_sizes(PHASE) & ((1 << T) - 1)) == 0) {
        return chunks_a_slot(T, STORAGE, APART);  // the smallest
    } else {
        return tiles == T ? chunks_a_slot(T, STORAGE, APART) : chunks_a_slot_of<PHASE, STORAGE, APART, T - 1>(tiles);
    }
}

// A share is cut into groups of at most MAX_TILES, or `most`, tiles, as even as possible, the larger ones first.
// Made once a launch: dividing takes longer than the phase of a small model can spare.
struct Groups {
    int count, base, larger_ones;
    DEVICE static Groups of(int tiles, int most = MAX_TILES) {
        const int count = ceil_div(tiles, most);
        return {count, count ? tiles / count : 0, count ? tiles % count : 0};
    }
    DEVICE int size(int group) const { return base + (group < larger_ones ? 1 : 0); }
    DEVICE int first(int group) const { return group * base + smaller(group, larger_ones); }
};
