// A core's share of a matrix in sixteen bits as pieces of 16 bytes: eight columns of one row (engine/backends/cuda/tape.py).
#pragma once
#include "contract.h"

struct Piece {
    int tile, chunk, lane;  // of the share's tiles; a unit has a piece for each lane of a warp
    int group_first, group_tiles, chunks, halves;  // halves: of tiles that the share is; 0: whole ones

    DEVICE Piece(int index, int tiles, int chunks_, int halves_ = 0)
        : tile(index / (chunks_ * 32)), chunk(index / 32 % chunks_), lane(index % 32), chunks(chunks_), halves(halves_) {
        const int groups = ceil_div(tiles, MAX_TILES), base = tiles / groups, larger_ones = tiles % groups;
        const int split = larger_ones * (base + 1);
        group_first = tile < split ? tile / (base + 1) * (base + 1) : split + (tile - split) / base * base;
        group_tiles = tile < split ? base + 1 : base;
    }
    // Of the share's rows, and of the matrix' columns the first.
    DEVICE int row() const { return tile * TILE_ROWS + lane / 4; }
    // The last tile of a share of halves has a half's rows.
    DEVICE bool lies_in_share() const { return !halves || row() < halves * HALF_ROWS; }
    DEVICE int matrix_row(int first) const { return first * (halves ? HALF_ROWS : TILE_ROWS) + row(); }
    DEVICE int column() const { return chunk * CHUNK_COLUMNS + lane % 4 * 8; }
    // `share` is where the share begins, which its `first` tile or half does.
    DEVICE void put(u8* share, int first, const u16 (&values)[8]) const {
        u8* unit = share + (u64(group_first) * chunks + u64(chunk) * group_tiles + (tile - group_first)) * UNIT_BYTES;
        if (halves) unit = share + u64(chunk) * halves * HALF_BYTES + tile * UNIT_BYTES;
        const u32 turn = halves ? u32(first & 1) * 2 : 0;  // half_turn in units.cuh, in pieces
        uint4 out;
        out.x = values[0] | u32(values[1]) << 16;
        out.y = values[2] | u32(values[3]) << 16;
        out.z = values[4] | u32(values[5]) << 16;
        out.w = values[6] | u32(values[7]) << 16;
        reinterpret_cast<uint4*>(unit)[piece_place(lane) ^ turn] = out;
    }
};
