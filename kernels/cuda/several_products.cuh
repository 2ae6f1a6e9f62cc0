// Decode of several requests: the vectors of all of them times a matrix, in one pass over its weights.
//
// The tensor cores take sixteen rows of activations, and a vector fills two: request r's high parts are row r, its low parts
// row r + 8. So lane 4 r + j has of request r what lane j has of a request alone, from the same weights in the same order: the
// sums are the same to the bit. A window of the vectors' columns lies in shared memory at a time, each warp's own chunks of
// them, and longer vectors come window by window while the weights stream past. Packed weights: several_units.cuh and, where
// warpgroups multiply, several_quads.cuh, several_digits.cuh and several_slots.cuh.
#pragma once
#include "several_units.cuh"
#include "several_window.cuh"

namespace several {

// How weights in a format are multiplied: a slot is loaded, multiplied window by window, and left.
template <int STORAGE, int CHUNKS, bool APART, int HALVES = 0, Way WAY = way_of(STORAGE)>
struct WeightsOf {
    using Type = SlotWeights<APART, CHUNKS, HALVES>;
};
template <int STORAGE, int CHUNKS>
struct WeightsOf<STORAGE, CHUNKS, false, 0, Way::BY_WARPS> {
    using Type = UnitWeights<STORAGE>;
};
template <int STORAGE, int CHUNKS, bool APART>
struct WeightsOf<STORAGE, CHUNKS, APART, 0, Way::BY_QUADS> {
    using Type = QuadWeights<STORAGE, CHUNKS, APART>;
};
template <int STORAGE, int CHUNKS, bool APART>
struct WeightsOf<STORAGE, CHUNKS, APART, 0, Way::BY_DIGITS> {
    using Type = DigitWeights<STORAGE, CHUNKS, APART>;
};
template <int STORAGE, int CHUNKS, bool APART>
struct WeightsOf<STORAGE, CHUNKS, APART, 0, Way::FROM_SLOTS> {
    using Type = SlotWeightsOfAll<STORAGE, APART>;
};

// GroupRun of several requests. A warp finishes one request's part of a group, always the same one's.
template <int PHASE, bool NORMED, int STORAGE, class Finish>
class Products {
    static constexpr int CHUNKS = chunks_of(Matrix<PHASE>::COLUMNS);
    using Weights = typename WeightsOf<STORAGE, CHUNKS, false, halves_of(PHASE)>::Type;
    using Vectors = Window<Matrix<PHASE>::COLUMNS, NORMED, STORAGE>;
    template <int T>
    using Sums = typename Weights::template Sums<T>;
    template <int T>
    static constexpr int STEP = Weights::template chunks_a_slot<T>();
    static constexpr bool LATE = model::TOTAL_LANES > 1 || !Vectors::WHOLE;
    static constexpr int TURNS = WARPS / REQUESTS;  // warps that finish a request's groups in turn
    // A loop would keep its addresses until it begins, when the vectors are there and all wait for what this SM makes of them.
    static constexpr bool ONE_GROUP = one_group(PHASE);
    // A second slot of so few chunks that a warp has one at most: its weights, too, are in registers before the vectors are there, so
    // that nobody waits for it, and loads it, between their last word and what this SM makes of them. Not of eight requests, whose
    // vectors leave no registers for it: 359 us a token of SmolLM2 became 368.
    using Rest = SlotWeights<false, WARPS, halves_of(PHASE)>;
    template <int T>
    static constexpr bool HAS_REST = REQUESTS <= 4 && ONE_GROUP && !is_packed(STORAGE) && Vectors::WHOLE && CHUNKS > STEP<T> && CHUNKS - STEP<T> <= WARPS;

public:
    DEVICE Products(Core& core, Finish& finish) : core_(core), finish_(finish), groups_(core.groups(PHASE)), warp_(core.warp + core.params.zero) {
        const int first = int((core.warp / REQUESTS - core.group) & (TURNS - 1));
        if (first < groups_.count) prepare(first);
        load_first(0);
    }

    DEVICE void run(const Source& source) {
        Vectors window(core_, source);
        int g = 0;
#pragma unroll 1
        do {  // whoever has a share has a group: else to find that out would take a register through the wait
            if (g) load_first(g);
            run_group(g, window);
        } while (!ONE_GROUP && ++g < groups_.count);
    }

private:
    DEVICE void run_group(int g, Vectors& window) {
        const bool own = pair_ >= 0 && (ONE_GROUP || core_.warp / REQUESTS == (core_.group & (TURNS - 1)));
        with_tiles<PHASE>(groups_.size(g), [&](auto tiles) {
            Sums<tiles.COUNT> sums;
            multiply(sums, window, g);
            leave_sums<tiles.COUNT>(sums);
        });
        consumers_sync();
        if (own) finish_group(g);
        ++core_.group;
    }
    // Squares are added up beside the first slot's products if slots are few, else while the last ones end.
    template <int T>
    DEVICE void multiply(Sums<T>& sums, Vectors& window, int g) {
        constexpr bool FEW_SLOTS = Vectors::WHOLE && ceil_div(CHUNKS, STEP<T>) <= 2;
        const bool again = !ONE_GROUP && g + 1 < groups_.count;
        if constexpr (HAS_REST<T>) {
            multiply_in_window<T>(sums, 0, 0, STEP<T>, 0);
            leave_squares(window, g);
            rest_.template multiply_in_window<T>(core_, warp_, STEP<T>, STEP<T>, CHUNKS, 0, sums);
            return;
        }
#pragma unroll (FEW_SLOTS ? 2 : 1)
        for (int first = 0; first < CHUNKS; first += STEP<T>) {
            const int last = smaller(first + STEP<T>, CHUNKS), next = first + STEP<T>;
            multiply_slot(sums, window, first, last, again);
            if (FEW_SLOTS && first == 0) leave_squares(window, g);
            if (next < CHUNKS) load<T>(next, smaller(next + STEP<T>, CHUNKS));
        }
        if (!FEW_SLOTS) leave_squares(window, g);
    }
    // Window by window, or with vectors that lie in shared memory whole.
    template <int T>
    DEVICE void multiply_slot(Sums<T>& sums, Vectors& window, int first, int last, bool again) {
        if constexpr (Vectors::WHOLE) {
            multiply_in_window<T>(sums, first, first, last, 0);
        } else {
#pragma unroll 1
            for (int begin = first; begin < last;) {
                const int at = window.hold(begin, again), end = smaller(last, at + OPERAND_CHUNKS);
                multiply_in_window<T>(sums, first, begin, end, at);
                begin = end;
            }
        }
        if constexpr (is_packed(STORAGE)) weights_.leave_slot(core_);
    }
    template <int T>
    DEVICE void multiply_in_window(Sums<T>& sums, int first, int begin, int end, int at) {
        if constexpr (is_packed(STORAGE)) {
            weights_.template multiply_in_window<T>(core_, first, begin, end, at, sums);
        } else {
            weights_.template multiply_in_window<T>(core_, warp_, first, begin, end, at, sums);
        }
    }
    DEVICE void leave_squares(const Vectors& window, int g) {
        if (NORMED && g == 0) window.leave_squares(core_.shared.squares + (core_.staged & 1) * REQUESTS);
    }
    // LATE: words of a window, or of other lanes, may be on their way. Slots of the latter that were given back at once were filled
    // anew before they were read: four and eight requests of Laneformer-2B had other tokens in each run.
    template <int T>
    DEVICE void load(int first, int last) {
        if constexpr (is_packed(STORAGE)) {
            weights_.template load<T>(core_, first, last);
        } else {
            weights_.template load<T, LATE>(core_, warp_, first, last);
        }
    }
    // [request][warp][pair]
    DEVICE float2* partial(u32 request, u32 warp) const {
        return core_.shared.partial(core_.group & 1) + request * REQUEST_PARTIALS + warp * PAIRS;
    }
    template <int T>
    DEVICE void leave_sums(const Sums<T>& sums) {
        if constexpr (by_warpgroups(STORAGE)) {
            sums.leave(core_, [&](u32 request, u32 warp) { return partial(request, warp); });
        } else {
            if (core_.lane >= 4 * REQUESTS) return;
            float2* mine = partial(core_.lane / 4, core_.warp) + core_.lane % 4;
#pragma unroll
            for (int t = 0; t < T; ++t) mine[t * 4] = sums.pair(t);
        }
    }
    DEVICE bool finishes(int g) const {
        return runs(core_.shared, core_.own.request) && int(core_.lane) < pairs_of_group(PHASE, groups_.size(g));
    }
    DEVICE void prepare(int g) {
        pair_ = finishes(g) ? pair_of(g) : -1;
        if (pair_ >= 0) finish_.prepare(pair_);
    }
    DEVICE int pair_of(int g) const {
        return pairs_before(PHASE, core_.share(PHASE).first + groups_.first(g)) + int(core_.lane);
    }
    DEVICE void load_first(int g) {
        with_tiles<PHASE>(groups_.size(g), [&](auto tiles) {
            load<tiles.COUNT>(0, smaller(STEP<tiles.COUNT>, CHUNKS));
            if constexpr (HAS_REST<tiles.COUNT>) rest_.template load<tiles.COUNT, LATE>(core_, warp_, STEP<tiles.COUNT>, CHUNKS);
        });
    }
    DEVICE void finish_group(int g) {
        float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const float2 part = partial(core_.own.request, w)[core_.lane];
            sum.x += part.x;
            sum.y += part.y;
        }
        finish_.post(pair_, sum.x, sum.y);
        if (!ONE_GROUP && g + TURNS < groups_.count) prepare(g + TURNS);
    }

    Core& core_;
    Finish& finish_;
    const Groups groups_;
    // The warp's number again, as the compiler cannot know: the one that all phases share is spilled where registers are few, and would
    // be read again for each slot.
    const u32 warp_;
    int pair_ = -1;  // of rows, that this thread finishes next, if it does: known before others wait for it
    Weights weights_;
    Rest rest_;
};

}  // namespace several
