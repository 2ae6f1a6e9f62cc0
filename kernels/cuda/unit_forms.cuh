// How many bytes the formats take on the tape, for any model (engine/backends/cuda/units.py).
#pragma once
#include "contract.h"

DEVICE constexpr bool is_packed(int storage) { return storage > STORAGE_BF16; }

// Whether decode multiplies by wgmma (quads.cuh): in formats whose runs a quad is made of.
DEVICE constexpr bool by_warpgroups(int storage) { return is_packed(storage) && unit_form(storage).run <= QUAD_CHUNKS; }

// Whether a unit's numbers are bytes as the tensor cores take them from shared memory, in two pieces of sixteen columns: a lane's words
// lie 128 bytes apart.
DEVICE constexpr bool in_pieces(int storage) { return storage == STORAGE_FP8_BLOCK; }

// From lane to lane of a unit's words.
DEVICE constexpr u32 lane_bytes(int storage) {
    const int unit = unit_form(storage).unit;
    return in_pieces(storage) || unit % 128 ? 4 : unit / 32;
}

// Bytes of one run of a group of `tiles` tiles.
DEVICE constexpr int run_bytes(int storage, int tiles) {
    const UnitForm form = unit_form(storage);
    return round_up(tiles * (form.run * (form.unit + form.unit_scales) + form.run_scales), 16);
}

DEVICE constexpr int group_bytes(int storage, int tiles, int chunks) {
    return ceil_div(chunks, unit_form(storage).run) * run_bytes(storage, tiles);
}
