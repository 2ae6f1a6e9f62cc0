// The router's rows times a norm times attention's output projection: what each of the heads' numbers adds to an expert's score
// (folded_router.cuh). engine/backends/cuda/folded_router.py says of it in NumPy.
#pragma once
#include "random.cuh"

DEVICE float sixteen_bits(u16 bits, u32 bf16) { return bf16 ? __uint_as_float(u32(bits) << 16) : half_value(bits); }

constexpr int FOLDED_TOGETHER = 8;  // experts of a thread: each number of the projection is unpacked, or made, once for all of them

// A thread a column, a block row (y) some experts. Summed row after row in FP64 and rounded once: rows of the router that are equal
// have equal bits, whatever column or expert. `weight(row, column)` is a number of the projection.
template <class Weight>
DEVICE void fold_router_rows(const FoldJob& job, const Weight& weight) {
    const int first = int(blockIdx.y) * FOLDED_TOGETHER;
    for (int column = int(blockIdx.x * blockDim.x + threadIdx.x); column < job.columns; column += int(gridDim.x * blockDim.x)) {
        double sums[FOLDED_TOGETHER] = {};
        for (int row = 0; row < job.hidden; ++row) {
            const double scaled = double(weight(row, column)) * double(sixteen_bits(job.norm[row], job.bf16));
#pragma unroll
            for (int e = 0; e < FOLDED_TOGETHER; ++e) {
                if (first + e < job.experts) sums[e] += scaled * double(sixteen_bits(job.router[u64(first + e) * job.hidden + row], job.bf16));
            }
        }
#pragma unroll
        for (int e = 0; e < FOLDED_TOGETHER; ++e) {
            if (first + e < job.experts) job.to[u64(first + e) * job.columns + column] = float(sums[e]);
        }
    }
}
