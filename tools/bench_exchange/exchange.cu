// How long an exchange between GPUs takes: every GPU has a vector, all get the sum. One launch does thousands of them,
// each of which needs the result of the one before, as the layers of a model do. The words, stores and polls are those
// of the monokernel (exchange.cuh); nothing else runs.
//
// `gather` adds what tensor parallelism needs besides: every SM gets the whole sum, not only the rows it works on.
#include "exchange.cuh"

constexpr int BLOCK_THREADS = 256;
constexpr int BUFFERS = 2;  // a GPU can be one exchange ahead of another, not two: it needs the other's words to go on
constexpr float STEP = 1.0f / 1024.0f;  // added by each exchange, so that words of an earlier one cannot pass for new

struct Exchanges {
    u32* mine;        // [BUFFERS][RANKS][count], in this GPU's memory
    u32* gathered;    // [BUFFERS][count]
    float* values;    // [count], in and out
    u64* times;       // [2] nanoseconds: when the timed exchanges began and ended on the first SM
    int count;        // a multiple of 4
    int untimed, timed;
    int gather;
};

// The rows of one SM are neighbours; each of its threads has four of them, or none.
struct Quad {
    int first;
    bool here;

    DEVICE explicit Quad(int count) {
        const int quads = count / 4, each = ceil_div(quads, int(gridDim.x));
        const int quad = int(blockIdx.x) * each + int(threadIdx.x);
        first = 4 * quad;
        here = int(threadIdx.x) < each && quad < quads;
    }
};

DEVICE float4 numbers(const uint4& v) {
    return make_float4(untagged(v.x), untagged(v.y), untagged(v.z), untagged(v.w));
}
DEVICE uint4 words(const float4& v, u32 epoch) {
    return make_uint4(tagged(v.x, epoch), tagged(v.y, epoch), tagged(v.z, epoch), tagged(v.w, epoch));
}

// Pushes four numbers to all GPUs and sums what all of them push, in the order of the ranks.
DEVICE float4 all_reduce(const Params& params, const Exchanges& job, Spin& spin, int number, int first, const float4& own) {
    const u32 epoch = (number / BUFFERS & 1) ^ 1;
    const size_t buffer = size_t(number % BUFFERS) * model::RANKS * job.count + first;
    const uint4 mine = words(own, epoch);
    for_each_peer(params, [&](const Peer& peer) { post_far(peer.mail + buffer + size_t(params.rank) * job.count, mine); });
    uint4 theirs[model::RANKS];
    u32 missing = ((1u << model::RANKS) - 1u) & ~(1u << params.rank);
    while (missing) {
#pragma unroll
        for (int r = 0; r < model::RANKS; ++r) {
            if (missing >> r & 1u) theirs[r] = peek4_far(job.mine + buffer + size_t(r) * job.count);
        }
#pragma unroll
        for (int r = 0; r < model::RANKS; ++r) {
            if ((missing >> r & 1u) && fresh(theirs[r], epoch)) missing &= ~(1u << r);
        }
        if (missing && spin.hopeless()) break;
    }
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int r = 0; r < model::RANKS; ++r) {
        const float4 v = numbers(r == params.rank ? mine : theirs[r]);
        sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
    }
    return sum;
}

// Waits until this GPU's whole sum is there and reads all of it; the result keeps the loads alive.
DEVICE u32 read_all(const Exchanges& job, Spin& spin, int number) {
    const u32 epoch = (number / BUFFERS & 1) ^ 1;
    const u32* from = job.gathered + size_t(number % BUFFERS) * job.count;
    u32 seen = 0;
    for (int i = 4 * int(threadIdx.x); i < job.count; i += 4 * BLOCK_THREADS) {
        uint4 v = peek4(from + i);
        while (!fresh(v, epoch)) {
            if (spin.hopeless()) break;
            v = peek4(from + i);
        }
        seen ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    return seen;
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)
exchange_bench(const __grid_constant__ Params params, const __grid_constant__ Exchanges job) {
    const Quad quad(job.count);
    Spin spin(params, Place{blockIdx.x, threadIdx.x / 32, 5, 0, 0}, WAIT_LANES);
    float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (quad.here) value = *reinterpret_cast<const float4*>(job.values + quad.first);
    u32 seen = 0;
    const bool clock = blockIdx.x == 0 && threadIdx.x == 0;
    for (int n = 0; n < job.untimed + job.timed; ++n) {
        if (clock && n == job.untimed) job.times[0] = global_ns();
        if (quad.here) {
            const float4 sum = all_reduce(params, job, spin, n, quad.first, value);
            constexpr float SHARE = 1.0f / model::RANKS;
            value = make_float4(sum.x * SHARE + STEP, sum.y * SHARE + STEP, sum.z * SHARE + STEP, sum.w * SHARE + STEP);
        }
        if (job.gather) {
            u32* to = job.gathered + size_t(n % BUFFERS) * job.count + quad.first;
            const uint4 v = words(value, (n / BUFFERS & 1) ^ 1);
            if (quad.here) post_far(to, v);
            seen ^= read_all(job, spin, n);
            __syncthreads();
        }
    }
    if (clock) job.times[1] = global_ns();
    if (quad.here) *reinterpret_cast<float4*>(job.values + quad.first) = value;
    if (seen == 0x9e3779b9u) job.times[0] = 0;
}
