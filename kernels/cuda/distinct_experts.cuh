// Gates and ups of the experts that several requests meet, each expert once: a product of one tall matrix, of all of them in ascending
// order, with the vectors of all requests. What nobody has asked for, sums of an expert with the vector of a request that does not meet
// it, costs nothing more and is dropped.
//
// Waits for: the list, and the vectors in the operand. Computes: this SM's tiles of the matrix. Publishes: of each request the gated
// numbers of its own experts, where it has them alone. `down` has other sums for each request: where in its order an expert stands is in
// how they are added up.
#pragma once
#include "several_products.cuh"

namespace several {

// By one warp, once all requests' experts are chosen.
DEVICE void list_experts(Core& core) {
    constexpr int EACH = router::Keys::EACH;
    experts::Distinct& distinct = core.shared.routes.distinct;
    u32 met[larger(1, EACH)] = {};  // a bit an expert
#pragma unroll 1
    for (int r = 0; r < REQUESTS; ++r) {
        if (!runs(core.shared, r) || int(core.lane) >= model::CHOSEN) continue;
        const int expert = core.shared.routes.met(core.shared.routing, r).chosen[core.lane];
#pragma unroll
        for (int i = 0; i < EACH; ++i) met[i] |= expert / 32 == i ? 1u << expert % 32 : 0u;
    }
    int count = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const u32 all = __reduce_or_sync(ALL_LANES, met[i]);
        if (all >> core.lane & 1u) distinct.experts[count + __popc(all & ((1u << core.lane) - 1u))] = i * 32 + int(core.lane);
        count += __popc(all);
    }
    if (core.lane == 0) {
        const int tiles = count * experts::GATE_UP_TILES, sm = int(core.place.sm);
        const int first = sm * tiles / model::SMS, end = (sm + 1) * tiles / model::SMS;
        distinct.share = {first, end - first};
        distinct.groups = Groups::of(end - first, experts::TILES_A_GROUP);
    }
    __syncwarp();
}

// Four numbers of a request's chunk, from column 4 `four` on, into the vectors' operand. What is multiplied as digits: store_columns.
template <int STORAGE>
DEVICE void store_piece(Shared& shared, int chunk, int request, u32 four, float4 value) {
    if constexpr (is_packed(STORAGE) && packed::lowered() != 1.0f) value = times(value, 1.0f / packed::lowered());
    const auto split = is_packed(STORAGE) ? split_f16 : split_weights_type;
    const Split a = split(value.x, value.y), b = split(value.z, value.w);
    if constexpr (by_warpgroups(STORAGE)) {
        store_quarter(shared.operand(), chunk, request, four, a, b);
        return;
    }
    const int step = int(four & 1);
    u8* to = shared.operand() + chunk * CHUNK_OPERAND_BYTES + step * OPERAND_STEP_BYTES + request_row(request, step) * 64 + four / 2 * 16;
    *reinterpret_cast<Operand*>(to) = make_uint4(a.high, a.low, b.high, b.low);
}

// A request's vector for gate_up, among those of the others.
DEVICE void store_vector(Core& core, const float4 (&values)[Pieces<model::HIDDEN>::COUNT]) {
    constexpr int STORAGE = experts::STORAGE<GATE_UP>;
    const Pieces<model::HIDDEN, staged_by_quads(STORAGE)> pieces(core);
    const int request = core.own.request;
    u32 powers[pieces.COUNT];
    if constexpr (by_digits(STORAGE)) packed::powers_of_chunks<chunks_a_size(STORAGE)>(values, powers);
#pragma unroll
    for (int i = 0; i < pieces.COUNT; ++i) {
        const bool here = pieces.template in_operand<STORAGE>(i);
        if constexpr (by_digits(STORAGE)) {
            const packed::Digits digits(values[i], powers[i]);
            if (here) packed::store_columns<STORAGE, REQUESTS>(core.shared, pieces.chunk(i), request, core.lane & 7, digits);
        } else {
            if (here) store_piece<STORAGE>(core.shared, pieces.chunk(i), request, core.lane & 7, values[i]);
        }
    }
    if constexpr (by_warpgroups(STORAGE)) fence_operand();
}

// GateUpFinish of pairs of the tall matrix, of those experts that the warp's request meets.
struct MetFinish {
    Core& core;
    GateUpFinish finish;
    int own = -1;  // the pair of the request's own tall matrix

    DEVICE MetFinish(Core& c, int layer) : core(c), finish{c, layer} {}
    DEVICE void prepare(int pair) {
        const int expert = core.shared.routes.distinct.experts[pair / experts::COLUMNS];
        own = -1;
#pragma unroll
        for (int slot = 0; slot < model::CHOSEN; ++slot) {
            if (core.met().chosen[slot] == expert) own = slot * experts::COLUMNS + pair % experts::COLUMNS;
        }
        if (own >= 0) finish.prepare(own);
    }
    DEVICE void post(float2 sum) {
        if (own >= 0) finish.post(own, sum.x, sum.y);
    }
};

// Of groups of up to T tiles. It leaves and adds up sums as Products does: what both share changes the instructions of dense models.
template <int T, int STORAGE>
class DistinctProducts {
    static constexpr int CHUNKS = experts::GATE_UP_CHUNKS;
    using Weights = typename WeightsOf<STORAGE, CHUNKS, true>::Type;
    using Sums = typename Weights::template Sums<T>;
    static constexpr int STEP = Weights::template chunks_a_slot<T>();
    static constexpr int TURNS = WARPS / REQUESTS;  // warps that finish a request's groups in turn

public:
    DEVICE DistinctProducts(Core& core, int layer)
        : core_(core), finish_(core, layer), groups_(core.shared.routes.distinct.groups) {
        const int first = int((core.warp / REQUESTS - core.group) & (TURNS - 1));
        if (first < groups_.count && finishes(first)) finish_.prepare(pair_of(first));
    }

    DEVICE void run() {
#pragma unroll 1
        for (int g = 0; g < groups_.count; ++g) {
            Sums sums;
            multiply(sums);
            leave_sums(sums);
            consumers_sync();
            if (core_.warp / REQUESTS == (core_.group & (TURNS - 1)) && finishes(g)) finish_group(g);
            ++core_.group;
        }
    }

private:
    DEVICE void multiply(Sums& sums) {
#pragma unroll 1
        for (int first = 0; first < CHUNKS; first += STEP) {
            const int last = smaller(first + STEP, CHUNKS);
            if constexpr (is_packed(STORAGE)) {
                weights_.template load<T>(core_, first, last);
            } else {
                weights_.template load<T, true>(core_, first, last);  // late, as what MetFinish asks for may be on its way
            }
            weights_.template multiply_in_window<T>(core_, first, first, last, 0, sums);
            if constexpr (is_packed(STORAGE)) weights_.leave_slot(core_);
        }
    }
    // [request][warp][pair]
    DEVICE float2* partial(u32 request, u32 warp) const {
        return core_.shared.partial(core_.group & 1) + request * REQUEST_PARTIALS + warp * PAIRS;
    }
    DEVICE void leave_sums(const Sums& sums) {
        if constexpr (by_warpgroups(STORAGE)) {
            sums.leave(core_, [&](u32 request, u32 warp) { return partial(request, warp); });
        } else {
            if (core_.lane >= 4 * REQUESTS) return;
            float2* mine = partial(core_.lane / 4, core_.warp) + core_.lane % 4;
#pragma unroll
            for (int t = 0; t < T; ++t) mine[t * 4] = sums.pair(t);
        }
    }
    // Of the lane's pair and the warp's own request.
    DEVICE float2 sum_of_warps() const {
        float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const float2 part = partial(core_.own.request, w)[core_.lane];
            sum.x += part.x;
            sum.y += part.y;
        }
        return sum;
    }
    DEVICE bool finishes(int g) const {
        return runs(core_.shared, core_.own.request) && int(core_.lane) < groups_.size(g) * (TILE_ROWS / 2);
    }
    DEVICE int pair_of(int g) const {
        return (core_.shared.routes.distinct.share.first + groups_.first(g)) * (TILE_ROWS / 2) + int(core_.lane);
    }
    DEVICE void finish_group(int g) {
        finish_.post(sum_of_warps());
        const int next = g + TURNS;
        if (next < groups_.count && finishes(next)) finish_.prepare(pair_of(next));
    }

    Core& core_;
    MetFinish finish_;
    const Groups groups_;
    Weights weights_;
};

}  // namespace several
