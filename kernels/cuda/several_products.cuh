// Decode of several requests: the vectors of all of them times a matrix, in one pass over its weights.
//
// The tensor cores take sixteen rows of activations, and a vector fills two: request r's high parts are row r, its low parts
// row r + 8. So lane 4 r + j has of request r what lane j has of a request alone, from the same weights in the same order: the
// sums are the same to the bit. A window of the vectors' columns lies in shared memory at a time, each warp's own chunks of
// them, and longer vectors come window by window while the weights stream past. Packed weights: several_units.cuh and, where
// warpgroups multiply, several_quads.cuh.
#pragma once
#include "several_units.cuh"
#include "several_window.cuh"

namespace several {

// The weights of a group in 16 bits: what a warp holds in registers of a slot at a time.
struct HeldWeights {
    template <int T>
    using Sums = ::Sums<T>;

    // Takes the first slot of a group of T tiles, while its vectors are still waited for.
    template <int T>
    DEVICE void begin(Core& core, int chunks) {
        weights_.template load<T>(core, 0, smaller(SlotPart<T>::CHUNKS, chunks));
    }
    template <int T, class Window>
    DEVICE void multiply(Core& core, int chunks, Sums<T>& sums, Window& window, bool again) {
        constexpr int STEP = SlotPart<T>::CHUNKS;
        int first = 0;
#pragma unroll 1
        while (true) {
            const int last = smaller(first + STEP, chunks);
#pragma unroll 1
            for (int begin = first; begin < last;) {
                const int at = window.hold(begin, again), end = smaller(last, at + OPERAND_CHUNKS);
                weights_.template multiply_in_window<T>(core, first, begin, end, at, sums);
                begin = end;
            }
            first = last;
            if (first >= chunks) break;
            weights_.template load<T>(core, first, smaller(first + STEP, chunks));
        }
    }
    // Leaves the warp's sums of each request's row pairs.
    template <int T>
    DEVICE void leave(const Core& core, const Sums<T>& sums) const {
        if (core.lane >= 4 * REQUESTS) return;
        float2* mine = partial(core, core.lane / 4, core.warp) + core.lane % 4;
#pragma unroll
        for (int t = 0; t < T; ++t) mine[t * 4] = sums.pair(t);
    }

private:
    SlotWeights<false> weights_;
};

template <int STORAGE, bool PACKED = is_packed(STORAGE), bool BY_WARPGROUPS = by_warpgroups(STORAGE)>
struct WeightsOf {
    using Type = HeldWeights;
};
template <int STORAGE>
struct WeightsOf<STORAGE, true, false> {
    using Type = UnitWeights<STORAGE>;
};
template <int STORAGE>
struct WeightsOf<STORAGE, true, true> {
    using Type = QuadWeights<STORAGE>;
};

// GroupRun of several requests. A warp finishes one request's part of a group, always the same one's.
template <int PHASE, bool NORMED, int STORAGE, class Finish>
class Products {
    using Weights = typename WeightsOf<STORAGE>::Type;
    using Vectors = Window<Matrix<PHASE>::COLUMNS, NORMED, STORAGE>;
    static constexpr int CHUNKS = chunks_of(Matrix<PHASE>::COLUMNS);
    static constexpr int TURNS = WARPS / REQUESTS;  // warps that finish a request's groups in turn

public:
    DEVICE Products(Core& core, Finish& finish) : core_(core), finish_(finish), groups_(core.groups(PHASE)) {
        const int first = int((core.warp / REQUESTS - core.group) & (TURNS - 1));
        if (first < groups_.count && finishes(first)) finish.prepare(pair_of(first));
        begin(0);
    }

    DEVICE void run(const Source& source) {
        Vectors window(core_, source);
#pragma unroll 1
        for (int g = 0; g < groups_.count; ++g) {
            if (g) begin(g);
            with_tiles<PHASE>(groups_.size(g), [&](auto tiles) {
                typename Weights::template Sums<tiles.COUNT> sums;
                weights_.template multiply<tiles.COUNT>(core_, CHUNKS, sums, window, g + 1 < groups_.count);
                if (NORMED && g == 0) leave_squares(window);
                weights_.template leave<tiles.COUNT>(core_, sums);
            });
            consumers_sync();
            if (core_.warp / REQUESTS == (core_.group & (TURNS - 1)) && finishes(g)) finish_group(g);
            ++core_.group;
        }
    }

private:
    DEVICE void leave_squares(const Vectors& window) {
#pragma unroll
        for (int r = 0; r < REQUESTS; ++r) {
            const float sum = warp_sum(window.squares[r]);
            if (core_.lane == 0) core_.shared.squares[(core_.staged & 1) * REQUESTS + r][core_.warp] = sum;
        }
    }
    DEVICE bool finishes(int g) const {
        return runs(core_.shared, core_.own.request) && int(core_.lane) < groups_.size(g) * (TILE_ROWS / 2);
    }
    DEVICE int pair_of(int g) const {
        return (core_.share(PHASE).first + groups_.first(g)) * (TILE_ROWS / 2) + int(core_.lane);
    }
    DEVICE void begin(int g) {
        with_tiles<PHASE>(groups_.size(g), [&](auto tiles) { weights_.template begin<tiles.COUNT>(core_, CHUNKS); });
    }
    DEVICE void finish_group(int g) {
        float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const float2 part = partial(core_, core_.own.request, w)[core_.lane];
            sum.x += part.x;
            sum.y += part.y;
        }
        finish_.post(pair_of(g), sum.x, sum.y);
        const int next = g + TURNS;
        if (next < groups_.count && finishes(next)) finish_.prepare(pair_of(next));
    }

    Core& core_;
    Finish& finish_;
    const Groups groups_;
    Weights weights_;
};

}  // namespace several
