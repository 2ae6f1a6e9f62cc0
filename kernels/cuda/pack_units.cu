// Fills tapes with packed weights, from rows as files have them or from random ones (engine.models.weights.RandomWeights), in
// the order of engine/backends/cuda/units.py, whose `pack_group` says what goes where.
#include "fold_router.cuh"
#include "pieces.cuh"
#include "random.cuh"
#include "unit_forms.cuh"

// A tensor that a tape is filled from, and the position of a number in it.
struct Element {
    const UnitTensor& tensor;
    int storage, columns;
    int row, column;

    // Of the whole tensor, of which this GPU may have a part.
    DEVICE u64 index() const { return tensor.first + u64(row) * tensor.stride + column; }
    // Whether there is a number in that column of a row (tensor, row); else padding.
    DEVICE static bool is_real(const UnitJob& job, int2 source, int column) {
        if (source.x < 0 || column >= job.columns) return false;
        const UnitTensor& tensor = job.tensors[source.x];
        return tensor.rows || (source.y < int(tensor.height) && column < int(tensor.width));
    }
    DEVICE const u8* block(int elements, int bytes) const {
        return tensor.rows + (u64(row) * (columns / elements) + column / elements) * bytes;
    }
    // Of a random block: 1 or a half.
    DEVICE float share_of_scale(u32 number) const { return fmix32(number + ~tensor.key) & 1 ? 0.5f : 1.0f; }

    DEVICE u32 code() const {
        const u32 random = tensor.rows ? 0 : fmix32(u32(index()) + tensor.key);
        switch (storage) {
            case STORAGE_FP8_BLOCK: {
                if (tensor.rows) return tensor.rows[u64(row) * columns + column];
                return random_e4m3(u32(index()), tensor.key);
            }
            case STORAGE_Q4_K: {
                const int group = column % 256 / 32;
                return block(256, 144)[16 + group / 2 * 32 + column % 32] >> group % 2 * 4 & 15;
            }
            case STORAGE_Q6_K: {
                const u8* bytes = block(256, 210);
                const int half = column % 256 / 128, part = column % 128 / 32, at = column % 32;
                const u32 low = bytes[half * 64 + part % 2 * 32 + at] >> part / 2 * 4 & 15;
                return low | (bytes[128 + half * 32 + at] >> 2 * part & 3) << 4;
            }
            case STORAGE_MXFP4: {
                if (!tensor.rows) return random >> 28;
                const u32 both = block(32, 17)[1 + column % 16];
                return column % 32 < 16 ? both & 15 : both >> 4;
            }
            default:  // Q8_0
                return (tensor.rows ? block(32, 34)[2 + column % 32] : random >> 24) ^ 0x80;
        }
    }
    DEVICE float fp8_scale() const {
        constexpr int SIDE = FP8_BLOCK_SIDE;
        if (tensor.rows) return tensor.scales[u64(row) * ceil_div(columns, SIDE) + column / SIDE];
        const u64 whole_row = index() / tensor.stride, whole_column = index() % tensor.stride;
        return tensor.scale * share_of_scale(u32(whole_row / SIDE * ceil_div(int(tensor.stride), SIDE) + whole_column / SIDE));
    }
    // Q4_K: the scale (0) or the offset (1) of the number's group.
    DEVICE u8 k_scale(int which) const {
        const u8* bytes = block(256, 144) + 4;
        const int group = column % 256 / 32;
        if (group < 4) return bytes[4 * which + group] & 63;
        return u8((bytes[4 + group] >> 4 * which & 15) | bytes[4 * which + group - 4] >> 6 << 4);
    }
    DEVICE u8 exponent() const {
        if (tensor.rows) return block(32, 17)[0];
        return u8(__float_as_uint(tensor.scale * share_of_scale(u32(index() / 32))) >> 23);
    }
    DEVICE u16 half_scale() const {
        if (tensor.rows) return *reinterpret_cast<const u16*>(block(32, 34));
        return half_bits(tensor.scale * share_of_scale(u32(index() / 32)));
    }
    // What all of it means.
    DEVICE float number() const {
        const u32 bits = code();
        switch (storage) {
            case STORAGE_FP8_BLOCK: {
                const u32 exponent = bits >> 3 & 15, fraction = bits & 7;
                const float size = exponent ? __uint_as_float((exponent + 120) << 23 | fraction << 20) : float(fraction) * 0.001953125f;
                return (bits & 0x80 ? -size : size) * fp8_scale();
            }
            case STORAGE_MXFP4: {
                const u32 twice = bits & 7;  // 0, 1, 2, 3, 4, 6, 8, 12
                const float size = twice < 4 ? float(twice) : float((2 + (twice & 1)) << (twice / 2 - 1));
                const u32 e = exponent();
                return (bits & 8 ? -size : size) * __uint_as_float(e > 1 ? (e - 1) << 23 : 1u << (21 + e));
            }
            case STORAGE_Q4_K: {
                const u16* factors = reinterpret_cast<const u16*>(block(256, 144));
                return float(bits) * (half_value(factors[0]) * float(k_scale(0))) - half_value(factors[1]) * float(k_scale(1));
            }
            case STORAGE_Q6_K: {
                const u8* bytes = block(256, 210);
                const float scale = float(static_cast<signed char>(bytes[192 + column % 256 / 16]));
                return float(int(bits) - 32) * (half_value(*reinterpret_cast<const u16*>(bytes + 208)) * scale);
            }
            default:  // Q8_0
                return float(int(bits) - 128) * half_value(half_scale());
        }
    }
};

// Eight E2M1 numbers: units.mxfp4_words.
DEVICE u32 fp4_word(const u32 (&code)[8]) {
    u32 word = 0, last = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        word |= (code[i] >> 3 << 7 | (code[i] & 7) << 1) << 8 * i;
        last |= (code[4 + i] >> 3 << 7 | (code[4 + i] & 7) << 1) << 8 * i;
    }
    word |= (last ^ word << 5) >> 7 & 0x01010101u;
#pragma unroll
    for (int bit = 1; bit <= 3; ++bit) {
        const u32 wanted = (last ^ word << 7) >> bit & 0x01010101u;
        word |= (wanted >> 8 | wanted << 24) << (bit + 3);
    }
    return word;
}

// The lower four bits of eight numbers: units.nibble_words.
DEVICE u32 nibble_word(const u32 (&code)[8]) {
    u32 word = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) word |= (code[i] & 15) << (i / 2 * 4 + i % 2 * 16);
    return word;
}

// The upper two of six: of even numbers in the lower byte.
DEVICE u16 upper_bits(const u32 (&code)[8]) {
    u32 bits = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) bits |= code[i] >> 4 << (i / 2 * 2 + i % 2 * 8);
    return u16(bits);
}

DEVICE u32 bytes_word(const u32 (&code)[8], int at) {
    return code[at] | code[at + 1] << 8 | code[at + 2] << 16 | code[at + 3] << 24;
}

// One block row (y) a core; each thread fills the words that one lane takes of a unit: eight columns of one row.
extern "C" __global__ void pack_units(const __grid_constant__ UnitJob job) {
    const int core = int(blockIdx.y), storage = job.storage;
    const UnitForm form = unit_form(storage);
    const TileRange share = job.shares[core];
    const int chunks = round_up(ceil_div(job.columns, CHUNK_COLUMNS), form.run);
    const int groups = ceil_div(share.tiles, MAX_TILES);
    const int pieces = share.tiles * chunks * 32;
    for (int piece = int(blockIdx.x * blockDim.x + threadIdx.x); piece < pieces; piece += int(gridDim.x * blockDim.x)) {
        const int tile = piece / (chunks * 32), chunk = piece / 32 % chunks, lane = piece % 32;
        const int base = share.tiles / groups, larger_ones = share.tiles % groups, split = larger_ones * (base + 1);
        const int tiles = tile < split ? base + 1 : base;
        const int in_group = tile < split ? tile % tiles : (tile - split) % tiles;
        u64 at = job.offsets[core];
        if (tile < split) {
            at += u64(tile / tiles) * group_bytes(storage, tiles, chunks);
        } else {
            at += u64(larger_ones) * group_bytes(storage, base + 1, chunks) + u64((tile - split) / base) * group_bytes(storage, base, chunks);
        }
        u8* run = job.tape + at + u64(chunk / form.run) * run_bytes(storage, tiles);
        const int within = chunk % form.run, column = chunk * CHUNK_COLUMNS + lane % 4 * 8, row_of_tile = lane / 4;
        const int2 source = job.sources[(share.first + tile) * TILE_ROWS + row_of_tile];
        const bool real = Element::is_real(job, source, column);
        u32 code[8];
        const u32 nothing = storage == STORAGE_Q8_0 ? 0x80 : 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const bool numbered = Element::is_real(job, source, column + i);
            code[i] = numbered ? Element{job.tensors[source.x], storage, job.columns, source.y, column + i}.code() : nothing;
        }
        u8* unit = run + (within * tiles + in_group) * form.unit;
        u32* words = reinterpret_cast<u32*>(unit) + lane * (form.unit / 128);
        if (storage == STORAGE_FP8_BLOCK) {
            u32* pieces = reinterpret_cast<u32*>(unit) + lane;
            pieces[0] = bytes_word(code, 0);
            pieces[32] = bytes_word(code, 4);
        } else if (storage == STORAGE_MXFP4) {
            words[0] = fp4_word(code);
        } else if (storage == STORAGE_Q4_K || storage == STORAGE_Q6_K) {
            words[0] = nibble_word(code);
            if (storage == STORAGE_Q6_K) reinterpret_cast<u16*>(unit + 128)[lane] = upper_bits(code);
        } else {
            words[0] = bytes_word(code, 0);
            words[1] = bytes_word(code, 4);
        }
        if (lane % 4) continue;
        const Element first{job.tensors[real ? source.x : 0], storage, job.columns, source.y, column};
        u8* unit_scales = run + form.run * tiles * form.unit + (within * tiles + in_group) * form.unit_scales;
        u8* run_scales = run + form.run * tiles * (form.unit + form.unit_scales) + in_group * form.run_scales;
        if (storage == STORAGE_FP8_BLOCK) {
            if (within == 0 && row_of_tile < 2) reinterpret_cast<float*>(run_scales)[row_of_tile] = real ? first.fp8_scale() : 0.0f;
        } else if (storage == STORAGE_MXFP4) {
            unit_scales[row_of_tile] = real ? first.exponent() : 0;
        } else if (storage == STORAGE_Q4_K) {
            unit_scales[2 * row_of_tile] = real ? first.k_scale(0) : 0;
            unit_scales[2 * row_of_tile + 1] = real ? first.k_scale(1) : 0;
            if (within == 0) reinterpret_cast<u32*>(run_scales)[row_of_tile] = real ? *reinterpret_cast<const u32*>(first.block(256, 144)) : 0;
        } else if (storage == STORAGE_Q6_K) {
            for (int i = 0; i < 2; ++i) unit_scales[2 * row_of_tile + i] = real ? first.block(256, 210)[192 + column % 256 / 16 + i] : 0;
            if (within == 0) reinterpret_cast<u16*>(run_scales)[row_of_tile] = real ? *reinterpret_cast<const u16*>(first.block(256, 210) + 208) : 0;
        } else {
            reinterpret_cast<u16*>(unit_scales)[row_of_tile] = real ? first.half_scale() : 0;
        }
    }
}

// The same matrix in sixteen bits, each number rounded once, for what cannot unpack it.
extern "C" __global__ void unpack_units(const __grid_constant__ UnitJob job) {
    const int core = int(blockIdx.y);
    const TileRange share = job.shares[core];
    const int chunks = ceil_div(job.columns, CHUNK_COLUMNS), pieces = share.tiles * chunks * 32;
    for (int i = int(blockIdx.x * blockDim.x + threadIdx.x); i < pieces; i += int(gridDim.x * blockDim.x)) {
        const Piece piece(i, share.tiles, chunks);
        const int2 source = job.sources[piece.matrix_row(share.first)];
        u16 values[8];
#pragma unroll
        for (int c = 0; c < 8; ++c) {
            const int column = piece.column() + c;
            const float number = Element::is_real(job, source, column) ? Element{job.tensors[source.x], job.storage, job.columns, source.y, column}.number() : 0.0f;
            values[c] = job.bf16 ? bf16_bits(number) : half_bits(number);
        }
        piece.put(job.tape + job.offsets[core], share.first, values);
    }
}

// fold_router of pack.cu, through a packed projection.
extern "C" __global__ void fold_router_units(const __grid_constant__ UnitJob job, const __grid_constant__ FoldJob fold) {
    fold_router_rows(fold, [&](int row, int column) { return Element{job.tensors[0], job.storage, job.columns, row, column}.number(); });
}
