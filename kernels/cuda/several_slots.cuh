// Products of several requests with weights in FP8 by warpgroups, straight from the slots, with the requests' digits. As slot_runs.cuh has
// them of one: of many tiles the columns of all requests are those of a product, of few each request has products of its own. So each
// sum is made of the same products in the same order as alone.
#pragma once
#include "requests.cuh"
#include "slot_runs.cuh"

namespace several {

// The weights of a group, straight from the slots. Tiles share runs, or have each its own: APART, as experts' do.
template <int STORAGE, bool APART>
class SlotWeightsOfAll : public SlotInPlace<STORAGE, APART> {
    using SlotInPlace<STORAGE, APART>::loaded_;

public:
    template <int T>
    using Sums = packed::RunRows<T, REQUESTS>;

    // Chunks from `begin` to `end`, in a slot that begins with `first`, times those of a window that begins with `window`.
    template <int T>
    DEVICE void multiply_in_window(const Core& core, int first, int begin, int end, int window, Sums<T>& sums) {
        packed::SlotTurns<STORAGE, T, APART, REQUESTS> turns{
            core, first / QUAD_CHUNKS, (begin - first) / QUAD_CHUNKS, ceil_div(end - first, QUAD_CHUNKS), window / QUAD_CHUNKS};
        turns.run(sums);
        loaded_ |= turns.loaded;
    }
};

}  // namespace several
