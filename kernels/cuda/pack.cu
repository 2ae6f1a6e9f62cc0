// Fills device memory before a launch: random tensors where they are needed (engine.models.weights.RandomWeights), tapes in
// the order of engine/backends/cuda/tape.py. And reads memory as fast as it goes, for the bandwidth that figures are held against.
#include "fold_router.cuh"
#include "pieces.cuh"
#include "random.cuh"

// BF16: the FP16 number, rounded once more.
extern "C" __global__ void fill_random(u16* to, u64 count, u32 key, float scale, float offset, u32 bf16) {
    const u64 step = u64(gridDim.x) * blockDim.x;
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        to[i] = random_number(u32(i), key, scale, offset, bf16);
    }
}

DEVICE u16 number_of(const PackJob& job, const PackTensor& t, int row, int column) {
    if (t.values) return t.values[u64(row) * job.columns + column];
    if (row >= int(t.height) || column >= int(t.width)) return 0;
    return random_number(u32(t.first + u64(row) * t.stride + column), t.key, t.scale, 0.0f, job.bf16);
}

// One block row (y) a core; each thread fills 16 bytes: eight columns of one row.
extern "C" __global__ void pack_matrix(const __grid_constant__ PackJob job) {
    const int core = int(blockIdx.y);
    const TileRange share = job.shares[core];
    const int chunks = ceil_div(job.columns, CHUNK_COLUMNS);
    const int pieces = share.tiles * chunks * 32;
    for (int i = int(blockIdx.x * blockDim.x + threadIdx.x); i < pieces; i += int(gridDim.x * blockDim.x)) {
        const Piece piece(i, share.tiles, chunks, job.halves);
        if (!piece.lies_in_share()) continue;
        const int2 source = job.sources[piece.matrix_row(share.first)];
        const int column = piece.column();
        u16 values[8];
#pragma unroll
        for (int c = 0; c < 8; ++c) {
            values[c] = 0;
            if (source.x < 0 || column + c >= job.columns) continue;
            values[c] = number_of(job, job.tensors[source.x], source.y, column + c);
        }
        piece.put(job.tape + job.offsets[core], share.first, values);
    }
}

// Through the job's first tensor, which is attention's output projection.
extern "C" __global__ void fold_router(const __grid_constant__ PackJob job, const __grid_constant__ FoldJob fold) {
    fold_router_rows(fold, [&](int row, int column) { return sixteen_bits(number_of(job, job.tensors[0], row, column), job.bf16); });
}

// Reads `count` 16-byte words once; the sum keeps the loads alive.
extern "C" __global__ void read_all(const uint4* from, u64 count, u32* sink) {
    u32 sum = 0;
    const u64 step = u64(gridDim.x) * blockDim.x;
    u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; i + 7 * step < count; i += 8 * step) {
        uint4 v[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) v[k] = __ldcs(from + i + k * step);
#pragma unroll
        for (int k = 0; k < 8; ++k) sum ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    for (; i < count; i += step) {
        const uint4 v = __ldcs(from + i);
        sum ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sum == 0x9e3779b9u) *sink = sum;
}
